"""Each word's strongest other word, and each token's strongest other token, from a layer's tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from headscope._survey.words import Tile, Words

if TYPE_CHECKING:
    from jaxtyping import Int


class Strongest:
    """Every word's strongest other word, and the word that looks at it most, in one layer over one window.

    Words without tokens, and a word's own tokens, are left out; so are words that don't look.

    Args:
        words: the window's.
        heads: how many the layer has.
        like: a tensor on the layer's device, of its dtype.
        seen: whether `seen_by` is wanted, which takes another pass over every tile.

    Attributes:
        looks_at: (heads, words), each word's strongest word; -1 where it sees no other, or has no token.
        weight: (heads, words), what it gives to it; -1 likewise.
        seen_by: (heads, words), the word that gives it most; -1 where none does.
    """

    def __init__(self, words: Words, heads: int, like: torch.Tensor, *, seen: bool = True) -> None:
        size = (heads, len(words))
        device, wide = like.device, torch.promote_types(like.dtype, torch.float32)
        self._silent = torch.from_numpy(words.sizes == 0).to(device)
        self._any_silent = bool(self._silent.any())
        self._seen = seen
        self._looks_at = torch.zeros(size, dtype=torch.int64, device=device)
        self._weight = torch.full(size, -1.0, dtype=wide, device=device)
        self._seen_by = torch.full(size, -1, dtype=torch.int64, device=device)
        self._most = torch.full(size, 0.0, dtype=wide, device=device)

    def take(self, tile: Tile) -> None:
        """The next words. Overwrites the tile's maps, and so its weights where they share memory."""
        n = tile.maps.shape[1]
        end = tile.at + n
        maps = tile.maps
        maps.diagonal(tile.at, 1, 2).fill_(-1)
        if self._any_silent:
            maps.masked_fill_(self._silent, -1)
            maps.masked_fill_(self._silent[tile.at : end, None], -1)
        self._weight[:, tile.at : end], self._looks_at[:, tile.at : end] = maps.max(-1)
        if self._seen:
            most, by = maps.max(1)
            more = most > self._most
            self._most = torch.where(more, most, self._most)
            self._seen_by = torch.where(more, by + tile.at, self._seen_by)

    def done(self) -> Strongest:
        """All words are taken: bring the numbers here."""
        self.looks_at: Int[np.ndarray, "heads words"] = self._looks_at.cpu().numpy()
        self.weight = self._weight.cpu().numpy()
        nothing = self.weight <= 0
        self.looks_at[nothing] = -1
        self.weight[nothing] = -1
        self.seen_by: Int[np.ndarray, "heads words"] = self._seen_by.cpu().numpy()
        return self


class StrongestTokens:
    """The strongest other token of each token whose word has several, in one layer over one window.

    Special tokens, and the token itself, are left out.

    Attributes:
        rows: (heads, tokens), for each such token its word; the same in all heads.
        columns: (heads, tokens), the word of its strongest token.
        weight: (heads, tokens), what it gives to it; -1 where it sees no other.
    """

    def __init__(self, words: Words, heads: int) -> None:
        several = np.concatenate([words.sizes > 1, [False]])  # -1, a special token, is of no word
        self._of = words.of_token
        self._chosen = np.flatnonzero(several[words.of_token])
        self._special = torch.from_numpy(np.flatnonzero(words.of_token < 0))
        self._heads = heads
        self._taken: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def take(self, tile: Tile) -> None:
        """The next words."""
        chosen = self._chosen[(self._chosen >= tile.tokens.start) & (self._chosen < tile.tokens.stop)]
        if not len(chosen):
            return
        at = torch.from_numpy(chosen)
        rows = tile.weights[:, at - tile.tokens.start]
        rows.index_fill_(-1, self._special.to(rows.device), -1)
        rows[:, torch.arange(len(chosen)), at] = -1
        weight, columns = (numbers.cpu().numpy() for numbers in rows.max(-1))
        self._taken.append((np.broadcast_to(self._of[chosen], weight.shape), self._of[columns], weight))

    def done(self) -> StrongestTokens:
        """All words are taken."""
        empty = np.zeros((self._heads, 0))
        taken = list(zip(*self._taken, strict=True)) or [(empty.astype(np.int64),), (empty.astype(np.int64),), (empty,)]
        self.rows, self.columns, self.weight = (np.concatenate(parts, axis=1) for parts in taken)
        return self
