"""The mask of a sequence generated pass by pass: one rule that reproduces every pass's mask cell for cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headscope.attention import Mask

BLOCK_CELLS = 1 << 20
"""Maximum number of cells whose mask is read at once."""


@dataclass(frozen=True, eq=False)
class Piece:
    """One pass's part of a mask: `count` queries starting at `start`, and keys from `begin` to `begin + sizes[1]`."""

    mask: Mask
    start: int
    count: int
    sizes: tuple[int, int]
    begin: int

    def blocks(self, total: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Blocks of queries: their positions in the sequence, and (queries, total), True for keys that they may see."""
        step = max(1, BLOCK_CELLS // max(1, total))
        for at in range(0, self.count, step):
            rows = np.arange(at, min(at + step, self.count))
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
    keys = pieces[-1].sizes[1]
    last = pieces[-1].mask
    for piece in pieces:
        mask = piece.mask
        if mask.causal or mask.window is not None or mask.bias is not None or not _same(mask.keys, last.keys):
            starts = np.cumsum([0, *(each.count for each in pieces)])
            shifted = [replace(each, start=int(at), begin=0) for each, at in zip(pieces, starts, strict=False)]
            return _dense(shifted, int(starts[-1]), keys)
    return last


def _same(a: Any, b: Any) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b))


def _dense(pieces: list[Piece], queries: int, keys: int) -> Mask:
    heads = max(1 if piece.mask.bias is None else len(piece.mask.bias) for piece in pieces)
    bias = np.full((heads, queries, keys), -np.inf, dtype=np.float32)
    for piece in pieces:
        columns = slice(piece.begin, piece.begin + piece.sizes[1])
        for rows, allowed in piece.blocks(keys):
            added = np.float32(0) if piece.mask.bias is None else piece.mask.bias[:, rows - piece.start]
            bias[:, rows, columns] = np.where(allowed[:, columns], added, np.float32(-np.inf))
    return Mask(bias=bias)
