"""Each word's strongest other word, from a layer's tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from headscope._survey.words import Tile, Words

if TYPE_CHECKING:
    from jaxtyping import Int


class Strongest:
    """Every word's strongest other word, and the word that looks at it most, in one layer over one window.

    Words without tokens, and a word's own tokens, are left out.

    Attributes:
        looks_at: (heads, words), each word's strongest word; -1 where it sees no other, or has no token.
        weight: (heads, words), what it gives to it; -1 likewise.
        seen_by: (heads, words), the word that gives it most; -1 where none does.
    """

    def __init__(self, words: Words, heads: int, like: torch.Tensor) -> None:
        size = (heads, len(words))
        device, wide = like.device, torch.promote_types(like.dtype, torch.float32)
        self._silent = torch.from_numpy(words.sizes == 0).to(device)
        self._looks_at = torch.zeros(size, dtype=torch.int64, device=device)
        self._weight = torch.full(size, -1.0, dtype=wide, device=device)
        self._seen_by = torch.full(size, -1, dtype=torch.int64, device=device)
        self._most = torch.full(size, 0.0, dtype=wide, device=device)

    def take(self, tile: Tile) -> None:
        """The next words."""
        n = tile.maps.shape[1]
        end = tile.at + n
        maps = tile.maps.clone()
        maps.diagonal(tile.at, 1, 2).fill_(-1)
        maps.masked_fill_(self._silent, -1)
        maps.masked_fill_(self._silent[tile.at : end, None], -1)
        self._weight[:, tile.at : end], self._looks_at[:, tile.at : end] = maps.max(-1)
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
