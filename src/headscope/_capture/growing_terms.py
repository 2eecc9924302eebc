"""The score terms of a sequence generated pass by pass: tables that reproduce every pass's numbers.

Each pass has a table over its own queries and keys. ALiBi by key may differ between passes by a number for each head,
which changes no softmax; numbers by distance must agree wherever passes share a distance. A pass with a single query
doesn't tell the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from headscope.terms import NO_TERMS, Terms

CLOSE = 1e-5
"""Largest difference between passes, as a share of the largest number: products with positions are rounded."""


@dataclass(frozen=True, eq=False)
class TermsPiece:
    """One pass's part of the terms: `sizes` queries and keys, from `start` and from `begin` on."""

    terms: Terms
    start: int
    sizes: tuple[int, int]
    begin: int


def grown_terms(pieces: list[TermsPiece], total: int) -> Terms | None:
    """The terms of the whole sequence; None if no table by key or by distance reproduces every pass."""
    last = pieces[-1].terms
    if all(piece.terms.nothing for piece in pieces):
        return NO_TERMS
    if len(pieces) == 1 and pieces[0].sizes == (total, total):
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


def _by_key(pieces: list[TermsPiece], total: int) -> torch.Tensor | None:
    table = pieces[-1].terms.by_key
    if table is None or pieces[-1].begin or table.shape[1] != total:
        return None
    allowed = CLOSE * float(table.abs().max())
    for piece in pieces:
        held = piece.terms.by_key
        if held is None or len(held) != len(table):
            return None
        apart = held - table[:, piece.begin : piece.begin + held.shape[1]]
        if float((apart.amax(1) - apart.amin(1)).max()) > allowed:
            return None
    return table


def _by_distance(pieces: list[TermsPiece], total: int, plain: Terms) -> Terms | None:
    tables = [table for piece in pieces for table in (piece.terms.by_distance, piece.terms.by_key) if table is not None]
    heads = max(map(len, tables))
    numbers = torch.full((heads, 2 * total - 1), float("nan"))
    for piece in pieces:
        queries, terms = piece.sizes[0], piece.terms
        if terms.by_distance is not None and terms.buckets is not None:
            held = terms.by_distance[:, torch.from_numpy(terms.buckets).long()]
        elif terms.by_key is not None and queries == 1:
            held = terms.by_key.expand(heads, -1)
        else:
            return None
        low = piece.begin - piece.start - (queries - 1) + total - 1
        known = numbers[:, low : low + held.shape[1]]
        same = known.isnan() | (known == held.to(known))
        if not bool(same.all()):
            return None
        known.copy_(held)
    columns, buckets = torch.unique(numbers.nan_to_num(0), dim=1, return_inverse=True)
    return replace(plain, buckets=buckets.to(torch.int32).numpy(), by_distance=columns)
