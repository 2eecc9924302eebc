"""The contexts of heads that are silenced in a call of a live model, or that attend with another map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from headscope.attention.patterns import OneHead, Way, is_map, maps
from headscope.live.plan.refusals import refuse_transforms

if TYPE_CHECKING:
    from headscope.live.calls import Call


def silence(context: torch.Tensor, ways: Mapping[int, Way], call: Call) -> torch.Tensor:
    """Return a copy of a call's contexts with those of some heads replaced.

    Args:
        context: (batch, heads, queries, d_value).
        ways: head -> "zero", "mean" for the mean of the head's contexts over the queries, or another map.
        call: the call, with values that have their gradient. Queries, keys and values may have one row for all.

    Raises:
        InputError: a map doesn't fit a text, or what its queries see.
        UnsupportedError: a head attends with another map in a transform of torch.func.
    """
    context = context.clone()
    for head, way in ways.items():
        if is_map(way):
            refuse_transforms(call.module)
            for row in range(len(context)):
                places, contexts = _context_of_map(call, way, row, head)
                context[row, head, places] = contexts.to(context.dtype)
        elif way == "zero":
            context[:, head] = 0
        else:
            contexts = context[:, head]
            share = _counted(call, *contexts.shape[:2]).to(contexts.device, contexts.dtype)
            mean = (contexts * share[..., None]).sum(1, keepdim=True) / share.sum(1)[:, None, None].clamp(min=1)
            context[:, head] = mean.expand_as(contexts)
    return context


def _counted(call: Call, batch: int, queries: int) -> torch.Tensor:
    """(batch, queries) bool: True for positions that are neither padding nor masked out in the self-attention."""
    flags, rules = np.ones((batch, queries), dtype=bool), call.beside or call.rules
    for row in range(batch):
        if (counted := rules.row(row).counted) is not None:
            flags[row] = counted
    return torch.from_numpy(flags)


def _context_of_map(call: Call, way: Way, row: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of a row's queries without padding, and a head's contexts there: map @ V.

    Gradients flow through V alone.

    Raises:
        InputError: the map doesn't fit the text, or what its queries see.
    """
    at_key = head * call.k.shape[1] // call.q.shape[1]
    rule, sizes = call.rules.row(row), (call.q.shape[2], call.k.shape[2])
    flags = rule.queries, rule.keys
    queries, keys = (np.arange(n) if on is None else np.flatnonzero(on) for on, n in zip(flags, sizes, strict=True))
    q, k = (_plain(x[row if len(x) > 1 else 0]) for x in (call.q[:, head], call.k[:, at_key]))
    terms = rule.with_terms(call.layer_terms)
    if not terms.nothing:
        spans = (int(queries[0]), len(queries), int(keys[0]), len(keys))
        terms = terms.window(*spans, sizes).of_head(head).mapped(lambda table: _plain(table))
    first = sizes[1] - sizes[0] - len(call.extra_keys)  # of the queries' places among the keys
    places = queries + first - keys[0] if call.own else None
    mask = rule.cut(*flags).of_head(head)
    one = OneHead(q[None, queries], k[None, keys], call.scale, mask, terms, places, call.layer, head)
    v = call.v[row if len(call.v) > 1 else 0, at_key]
    v = v[torch.from_numpy(keys).to(v.device)]
    wide = torch.promote_types(v.dtype, torch.float32)
    with torch.autocast(v.device.type, enabled=False):
        parts = [torch.from_numpy(cells).to(v.device, wide) @ v.to(wide) for cells in maps(way, one)]
    return torch.from_numpy(queries).to(v.device), torch.cat(parts)


def _plain(x: torch.Tensor) -> np.ndarray:
    """The numbers of a tensor in NumPy, in fp32 if they are in less."""
    x = x.detach()
    return (x if x.dtype == torch.float64 else x.float()).cpu().numpy()
