"""The masks and score terms that a model's attention is given, as rules and small tables, verified cell for cell.

Read `given` first: what the mask of a call means, by who was called. `analyst` finds the rule behind it, with `guess`,
and computes with the rules of a batch. `cells` are maps that exist only as functions, `chunks` is the mask of several
calls that are one, `generated` that of a sequence generated pass by pass, and `flex` reads flex attention's block masks
and score_mods.

    >>> import torch
    >>> from headscope.live.masks.analyst import RawMask, find_rules
    >>> padding = torch.tensor([True, True, True, False])
    >>> allowed = torch.ones(4, 4, dtype=torch.bool).tril() & padding
    >>> rules = find_rules(RawMask(mask=allowed[None, None]), 1, 4, 4, slice(0, 4))
    >>> rule = rules.row(0)
    >>> rule.mask.causal, rule.keys.tolist()
    (True, [True, True, True, False])

Everything in `live` may call it.
"""
