"""Explanations from a trace alone: mixing between tokens, attributions of an output, findings worth reading.

Read them in this order:

    residual.py          values, W_O, the LayerNorms and the inputs of a trace's layers, at a few query rows
    mixing.py            the vectors that tokens send each other; mixing ratio, rollout, value zeroing
    promotes.py          the tokens whose logits a head or a feed-forward raises
    steps.py             linear steps of a pass held at one text: norms, activations, gates, attention, convolutions
    propagation.py       shares of tokens through these steps, forward or backward: a rule for each form of layer
    attribution.py       the gradient of a target at the last hidden state, and the parts of one output
    scorers.py           scores of two texts as products of features: bi-encoders, late interaction, sparse models
    matching.py          why a query and its documents match: hs.match
    why.py               why a head looks from one token at another: its score by pairs of input tokens
    finding_measures.py  the numbers behind findings
    findings.py          what is worth reading in a trace, as sentences

They are called through `Trace`, `LayerTrace`, `HeadTrace` and `Model`: trace.rollout(to=4), model.attribute(text).
What a changed run tells is in headscope.runs.
"""
