"""The record of a capture: the copies of a pass, the traces made from them, and the model that they came from.

Read `building` first, which makes a trace of a pass. `copies` keeps queries, keys and values, `contents` tells tensors
apart without keeping them, `projections` finds W_O, `generation` joins the passes of a generated text by their
`cached_sequences`, and `source` is the trace's way back to its model.

    >>> import torch
    >>> from headscope.live import capture
    >>> attention = torch.nn.MultiheadAttention(8, num_heads=2, batch_first=True).eval()
    >>> with capture(attention, layers=[0]) as captured:
    ...     _ = attention(*[torch.randn(1, 5, 8)] * 3, need_weights=False)
    >>> trace = captured.trace
    >>> trace[0, 1].q.shape, trace[0, 1].k.shape
    ((5, 4), (5, 4))

`captured` and `replay` call it, and `seeing` for what it knows of projections and contents.
"""
