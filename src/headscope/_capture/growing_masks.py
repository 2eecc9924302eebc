"""The mask of a sequence that grew pass by pass: one rule that gives every pass's mask cell for cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headscope.attention import Mask

BLOCK_CELLS = 1 << 20
"""Cells of a map whose mask is looked at together."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A pass's part of a mask: `count` queries from `start` on, keys from `begin` to `begin + sizes[1]`."""

    mask: Mask
    start: int
    count: int
    sizes: tuple[int, int]
    begin: int

    def blocks(self, total: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Some queries at a time: where they stand in the sequence, and (queries, total), which keys they may see."""
        step = max(1, BLOCK_CELLS // max(1, total))
        for at in range(0, self.count, step):
            rows = np.arange(at, min(at + step, self.count))
            found = np.zeros((len(rows), total), dtype=bool)
            allowed = self.mask.allowed(rows, np.arange(self.sizes[1]), self.sizes)
            found[:, self.begin : self.begin + self.sizes[1]] = True if allowed is None else allowed
            yield self.start + rows, found


def grown(pieces: list[Piece], total: int) -> Mask:
    """The mask of the whole sequence: a rule where one gives every pass's mask cell for cell, else a dense bias."""
    if any(piece.mask.bias is not None for piece in pieces):
        return _dense(pieces, total, total)
    seen, first = np.zeros(total, dtype=bool), np.full(total, -1)
    for piece in pieces:
        for rows, allowed in piece.blocks(total):
            seen |= allowed.any(0)
            first[rows] = np.where(allowed.any(1), allowed.argmax(1), -1)
    there = first >= 0
    place, lowest = np.arange(total), int(np.argmax(seen))
    reach = int((place - first)[there].max(initial=0))
    bounded = bool((there & (place - lowest > reach)).any())
    rule = Mask(causal=total > 1, window=(reach, None) if bounded else None, keys=None if seen.all() else seen)
    columns, sizes = np.arange(total), (total, total)
    for piece in pieces:
        for rows, allowed in piece.blocks(total):
            expected = rule.allowed(rows, columns, sizes)
            if not (allowed.all() if expected is None else np.array_equal(expected, allowed)):
                return _dense(pieces, total, total)
    return rule


def stacked(pieces: list[Piece]) -> Mask:
    """The mask of cross-attention: what the passes have in common, else a dense bias."""
    keys = pieces[-1].sizes[1]
    last = pieces[-1].mask
    for piece in pieces:
        mask = piece.mask
        if mask.causal or mask.window is not None or mask.bias is not None or not _same(mask.keys, last.keys):
            moved = np.cumsum([0, *(one.count for one in pieces)])
            shifted = [replace(one, start=int(at), begin=0) for one, at in zip(pieces, moved, strict=False)]
            return _dense(shifted, int(moved[-1]), keys)
    return last


def _same(a: Any, b: Any) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b))


def _dense(pieces: list[Piece], queries: int, keys: int) -> Mask:
    heads = max(1 if piece.mask.bias is None else len(piece.mask.bias) for piece in pieces)
    bias = np.full((heads, queries, keys), -np.inf, dtype=np.float32)
    for piece in pieces:
        columns = slice(piece.begin, piece.begin + piece.sizes[1])
        for rows, allowed in piece.blocks(keys):
            own = np.float32(0) if piece.mask.bias is None else piece.mask.bias[:, rows - piece.start]
            bias[:, rows, columns] = np.where(allowed[:, columns], own, np.float32(-np.inf))
    return Mask(bias=bias)
