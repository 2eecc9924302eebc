"""The modules of a model that attend, found before anything runs: their stacks, their layers, and what can't be read.

Read `stacks` first, which makes a model's plan: it sorts modules into stacks and numbers their layers. `classes` tells
what a class of modules runs, `refusals` are the errors for attention that capture can't read.

    >>> import torch
    >>> from headscope.live.plan.stacks import plan_of
    >>> layer = torch.nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=8, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, num_layers=3, enable_nested_tensor=False)
    >>> {(stack.name, stack.pattern) for stack in plan_of(model).stacks.values()}
    {('self', 'layers.*.self_attn')}

Everything in `live` may call it. It calls `seeing`'s files on `nn.MultiheadAttention` and readers, to ask what they
read.
"""
