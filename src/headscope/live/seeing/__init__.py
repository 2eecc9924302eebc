"""Calls of attention, seen as they run, whoever makes them: their queries, keys, values, mask, scale and contexts.

There are three ways to see a call: `interface` wraps the functions of transformers' attention interface; `sdpa_watch`
sees PyTorch's operators (`operators`), and `multihead` names those in nn.MultiheadAttention; `inside` reads the inputs
of classes that have a reader (`readers`). Read `observed` first, which runs a function and reads its call. `parts` puts
calls together that are one layer's attention, `missed` notes attention that wasn't read.

    >>> import torch
    >>> from headscope.live import capture
    >>> class Own(torch.nn.Module):
    ...     def forward(self, x):
    ...         q = k = v = x.unflatten(-1, (2, 4)).transpose(1, 2)
    ...         return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    >>> model = torch.nn.Sequential(Own(), Own()).eval()
    >>> with capture(model) as captured:
    ...     _ = model(torch.randn(1, 5, 8))
    >>> captured.trace[1, 0].weights.shape
    (5, 5)

`captured` and `sessions` call it, and `plan` asks what it can read. A mask's meaning is told in `masks`.
"""
