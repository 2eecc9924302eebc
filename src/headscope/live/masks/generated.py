"""The mask and the score terms of a sequence generated pass by pass.

A mask is one rule that reproduces every pass's mask cell for cell, terms are tables that reproduce every pass's
numbers. Each pass has a table over its own queries and keys. ALiBi by key may differ between passes by a number for
each head, which changes no softmax; numbers by distance must agree wherever passes share a distance. A pass with a
single query doesn't tell the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from headscope.attention.scores import Mask
from headscope.attention.terms import NO_TERMS, Terms
from headscope.live.masks.chunks import Part, map_of
from headscope.live.masks.guess import Levels, rule_of


@dataclass(frozen=True, eq=False)
class Piece(Part):
    """One pass's part of the mask and of the terms of a layer.

    Attributes:
        terms: the terms over its queries and keys.
    """

    terms: Terms


def joined_mask(pieces: list[Piece], queries: int, keys: int) -> Mask:
    """The mask of the whole sequence: a rule if one reproduces every pass's mask, otherwise a dense bias."""
    cells = map_of(pieces, queries, keys, torch.zeros(0, device="cpu"))
    levels = Levels(cells[0], float("-inf"), "captured.generations")
    mask = rule_of(levels, queries, keys, None)[0] if cells.dtype == torch.bool else Mask(bias=levels.bias())
    return mask if mask.bias is None else replace(mask, bias=mask.bias.numpy())


CLOSE = 1e-5
"""Largest difference between passes, as a share of the largest number: products with positions are rounded."""


def grown_terms(pieces: list[Piece], total: int) -> Terms | None:
    """The terms of the whole sequence; None if no table by key or by distance reproduces every pass."""
    last = pieces[-1].terms
    if all(piece.terms.nothing for piece in pieces):
        return NO_TERMS
    if len(pieces) == 1 and pieces[0].sizes[2:] == (total, total):
        return last
    if any(piece.terms.relative for piece in pieces):
        return None
    plain = replace(last, buckets=None, by_distance=None, by_key=None)
    positional = [piece for piece in pieces if piece.terms.adds]
    if not positional:
        return plain
    if len(positional) < len(pieces):
        return None
    by_key = _by_key(pieces, total)
    if by_key is not None:
        return replace(plain, by_key=by_key)
    return _by_distance(pieces, total, plain)


def _by_key(pieces: list[Piece], total: int) -> torch.Tensor | None:
    table = pieces[-1].terms.by_key
    if table is None or pieces[-1].places[3].start or table.shape[1] != total:
        return None
    allowed = CLOSE * float(table.abs().max())
    for piece in pieces:
        held = piece.terms.by_key
        if held is None or len(held) != len(table):
            return None
        first = piece.places[3].start
        apart = held - table[:, first : first + held.shape[1]]
        if float((apart.amax(1) - apart.amin(1)).max()) > allowed:
            return None
    return table


def _by_distance(pieces: list[Piece], total: int, plain: Terms) -> Terms | None:
    tables = [table for piece in pieces for table in (piece.terms.by_distance, piece.terms.by_key) if table is not None]
    heads = max(map(len, tables))
    numbers = torch.full((heads, 2 * total - 1), float("nan"), device="cpu")
    for piece in pieces:
        queries, terms = piece.sizes[2], piece.terms
        if terms.by_distance is not None and terms.buckets is not None:
            held = terms.by_distance[:, torch.from_numpy(terms.buckets).long()]
        elif terms.by_key is not None and queries == 1:
            held = terms.by_key.expand(heads, -1)
        else:
            return None
        low = piece.places[3].start - piece.places[2].start - (queries - 1) + total - 1
        known = numbers[:, low : low + held.shape[1]]
        same = known.isnan() | (known == held.to(known))
        if not bool(same.all()):
            return None
        known.copy_(held)
    columns, buckets = torch.unique(numbers.nan_to_num(0), dim=1, return_inverse=True)
    return replace(plain, buckets=buckets.to(torch.int32).numpy(), by_distance=columns)
