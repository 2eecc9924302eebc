"""The mask and the score terms of a sequence generated pass by pass.

A mask is one rule that reproduces every pass's mask cell for cell, terms are tables that reproduce every pass's
numbers. Each pass is a `Part`, with a table over its own queries and keys. ALiBi by key may differ between passes by a
number for each head, which changes no softmax; numbers by distance must agree wherever passes share a distance. A pass
with a single query doesn't tell the two apart.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from headscope.attention.scores import Mask
from headscope.attention.terms import NO_TERMS, Terms
from headscope.live.masks.chunks import Part, map_of
from headscope.live.masks.guess import Levels, rule_of


def joined_mask(parts: list[Part], queries: int, keys: int) -> Mask:
    """The mask of the whole sequence: a rule if one reproduces every pass's mask, otherwise a dense bias."""
    cells = map_of(parts, queries, keys, torch.zeros(0, device="cpu"))
    levels = Levels(cells[0], float("-inf"), "captured.generations")
    mask = rule_of(levels, queries, keys, None)[0] if cells.dtype == torch.bool else Mask(bias=levels.bias())
    return mask if mask.bias is None else replace(mask, bias=mask.bias.numpy())


CLOSE = 1e-5
"""Largest difference between passes, as a share of the largest number: products with positions are rounded."""


def grown_terms(parts: list[Part], total: int) -> Terms | None:
    """The terms of the whole sequence; None if no table by key or by distance reproduces every pass."""
    last = parts[-1].terms
    if all(part.terms.nothing for part in parts):
        return NO_TERMS
    if len(parts) == 1 and parts[0].sizes[2:] == (total, total):
        return last
    if any(part.terms.relative for part in parts):
        return None
    plain = replace(last, buckets=None, by_distance=None, by_key=None)
    positional = [part for part in parts if part.terms.adds]
    if not positional:
        return plain
    if len(positional) < len(parts):
        return None
    by_key = _by_key(parts, total)
    if by_key is not None:
        return replace(plain, by_key=by_key)
    return _by_distance(parts, total, plain)


def _by_key(parts: list[Part], total: int) -> torch.Tensor | None:
    table = parts[-1].terms.by_key
    if table is None or parts[-1].places[3].start or table.shape[1] != total:
        return None
    allowed = CLOSE * float(table.abs().max())
    for part in parts:
        held = part.terms.by_key
        if held is None or len(held) != len(table):
            return None
        first = part.places[3].start
        apart = held - table[:, first : first + held.shape[1]]
        if float((apart.amax(1) - apart.amin(1)).max()) > allowed:
            return None
    return table


def _by_distance(parts: list[Part], total: int, plain: Terms) -> Terms | None:
    tables = [table for part in parts for table in (part.terms.by_distance, part.terms.by_key) if table is not None]
    heads = max(map(len, tables))
    numbers = torch.full((heads, 2 * total - 1), float("nan"), device="cpu")
    for part in parts:
        queries, terms = part.sizes[2], part.terms
        if terms.by_distance is not None and terms.buckets is not None:
            held = terms.by_distance[:, torch.from_numpy(terms.buckets).long()]
        elif terms.by_key is not None and queries == 1:
            held = terms.by_key.expand(heads, -1)
        else:
            return None
        low = part.places[3].start - part.places[2].start - (queries - 1) + total - 1
        known = numbers[:, low : low + held.shape[1]]
        same = known.isnan() | (known == held.to(known))
        if not bool(same.all()):
            return None
        known.copy_(held)
    columns, buckets = torch.unique(numbers.nan_to_num(0), dim=1, return_inverse=True)
    return replace(plain, buckets=buckets.to(torch.int32).numpy(), by_distance=columns)
