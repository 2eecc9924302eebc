"""The mask and the score terms of a sequence generated pass by pass.

A mask is one rule that reproduces every pass's mask cell for cell, terms are tables that reproduce every pass's
numbers. Each pass has a table over its own queries and keys. ALiBi by key may differ between passes by a number for
each head, which changes no softmax; numbers by distance must agree wherever passes share a distance. A pass with a
single query doesn't tell the two apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from headscope.attention.scores import Mask
from headscope.attention.terms import NO_TERMS, Terms
from headscope.live.masks.cells import row_blocks


@dataclass(frozen=True, eq=False)
class Piece:
    """One pass's part of the mask and of the terms of a layer.

    They are those of `count` queries starting at `start`, and of keys from `begin` to `begin + sizes[1]`.
    """

    mask: Mask
    terms: Terms
    start: int
    count: int
    sizes: tuple[int, int]
    begin: int

    def blocks(self, total: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Blocks of queries: their positions in the sequence, and (queries, total), True for keys that they may see."""
        for block in row_blocks(1, self.count, total):
            rows = np.arange(block.start, block.stop)
            allowed_keys = np.zeros((len(rows), total), dtype=bool)
            allowed = self.mask.allowed(rows, np.arange(self.sizes[1]), self.sizes)
            allowed_keys[:, self.begin : self.begin + self.sizes[1]] = True if allowed is None else allowed
            yield self.start + rows, allowed_keys


def grown(pieces: list[Piece], total: int) -> Mask:
    """The mask of the whole sequence: a rule if one reproduces every pass's mask, otherwise a dense bias."""
    if any(piece.mask.bias is not None for piece in pieces):
        return _dense(pieces, total, total)
    seen, first = np.zeros(total, dtype=bool), np.full(total, -1)
    for piece in pieces:
        for rows, allowed in piece.blocks(total):
            seen |= allowed.any(0)
            first[rows] = np.where(allowed.any(1), allowed.argmax(1), -1)
    sees_any = first >= 0
    place, lowest = np.arange(total), int(np.argmax(seen))
    reach = int((place - first)[sees_any].max(initial=0))
    bounded = bool((sees_any & (place - lowest > reach)).any())
    rule = Mask(causal=total > 1, window=(reach, None) if bounded else None, keys=None if seen.all() else seen)
    columns, sizes = np.arange(total), (total, total)
    for piece in pieces:
        for rows, allowed in piece.blocks(total):
            expected = rule.allowed(rows, columns, sizes)
            if not (allowed.all() if expected is None else np.array_equal(expected, allowed)):
                return _dense(pieces, total, total)
    return rule


def stacked(pieces: list[Piece]) -> Mask:
    """The mask of cross-attention: the passes' common rule, or a dense bias if they differ."""
    masks = [piece.mask for piece in pieces]
    plain = all(replace(mask, keys=None).everything for mask in masks)
    if plain and all(np.array_equal(mask.keys, masks[-1].keys) for mask in masks):  # type: ignore[arg-type]
        return masks[-1]
    starts = np.cumsum([0, *(piece.count for piece in pieces)])
    shifted = [replace(piece, start=int(at), begin=0) for piece, at in zip(pieces, starts, strict=False)]
    return _dense(shifted, int(starts[-1]), pieces[-1].sizes[1])


def _dense(pieces: list[Piece], queries: int, keys: int) -> Mask:
    heads = max(1 if piece.mask.bias is None else len(piece.mask.bias) for piece in pieces)
    bias = np.full((heads, queries, keys), -np.inf, dtype=np.float32)
    for piece in pieces:
        columns = slice(piece.begin, piece.begin + piece.sizes[1])
        for rows, allowed in piece.blocks(keys):
            added = np.float32(0) if piece.mask.bias is None else piece.mask.bias[:, rows - piece.start]
            bias[:, rows, columns] = np.where(allowed[:, columns], added, np.float32(-np.inf))
    return Mask(bias=bias)


CLOSE = 1e-5
"""Largest difference between passes, as a share of the largest number: products with positions are rounded."""


def grown_terms(pieces: list[Piece], total: int) -> Terms | None:
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


def _by_key(pieces: list[Piece], total: int) -> torch.Tensor | None:
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


def _by_distance(pieces: list[Piece], total: int, plain: Terms) -> Terms | None:
    tables = [table for piece in pieces for table in (piece.terms.by_distance, piece.terms.by_key) if table is not None]
    heads = max(map(len, tables))
    numbers = torch.full((heads, 2 * total - 1), float("nan"), device="cpu")
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
