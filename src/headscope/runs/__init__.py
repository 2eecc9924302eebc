"""Changed runs: a pass started again from a layer with some heads changed, and one number read of it.

Read them in this order:

    engine.py           an `Edit` of a head, the `Base` that runs start from, and the runs, by the NumPy encoder
    targets.py          the number that is read: a word's logit, a class's, a vector's projection or distance, a loss
    effects.py          each head changed in turn: silenced, patched, one edge cut
    groups.py           groups of heads silenced, beside as many at random
    window_readouts.py  the same over a corpus's windows, with sets of heads silenced
    masking.py          words masked for real
    texts.py            texts as a model reads them, and passes over them: traces, or the last states alone
    predicting.py       predictions at masks, and of labels

    runner = NumpyRunner(model)
    base = runner.base([as_input(model.tokenizer.encode("a text"))])
    target = choose(model, encoded, base.last, None)
    runner.run(base, [frozenset({Edit(3, 5)}), frozenset({Edit(3, 5), Edit(4, 1, "mean")})], [target]).values
"""
