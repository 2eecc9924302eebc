"""The shape of attention: the strongest words, and how far it looks: from a layer's tiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import torch

from headscope.atlas.store import sealed_parquet
from headscope.atlas.words import Tile, Words
from headscope.results.schemas import DistributionRow, table_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.atlas.words import Tile


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


REACH = 10
"""Words to either side up to which weights are summed by distance."""


class Distances:
    """A part's weights by distance.

    Args:
        cells: heads of the model.
    """

    def __init__(self, cells: int) -> None:
        self.weight: Float[np.ndarray, "heads distances"] = np.zeros((cells, 2 * REACH + 1))
        self.pairs: Int[np.ndarray, "heads distances"] = np.zeros((cells, 2 * REACH + 1), dtype=np.int64)

    def take(self, tile: Tile, silent: np.ndarray, cells: slice) -> None:
        """Some words of one layer of one window.

        Args:
            tile: the words, and where they look.
            silent: (words,), True for words without tokens.
            cells: the layer's heads among all heads.
        """
        words, n = len(silent), tile.maps.shape[1]
        present = ~silent[tile.at : tile.at + n]
        at = np.arange(tile.at, tile.at + n)[:, None]
        to = at + np.arange(-REACH, REACH + 1)
        inside = (to >= 0) & (to < words)
        to = np.where(inside, to, 0)
        both = inside & present[:, None] & ~silent[to]
        near = tile.maps.gather(2, torch.from_numpy(to).to(tile.maps.device).expand(len(tile.maps), -1, -1))
        self.weight[cells] += (near.double().cpu().numpy() * both).sum(1)
        self.pairs[cells] += both.sum(0)

    def file(self, record: dict[str, Any]) -> bytes:
        """The sums as a file beside the part, a row for each head."""
        columns = {}
        for name, numbers in (("weight", self.weight), ("pairs", self.pairs)):
            columns[name] = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(numbers.ravel()), numbers.shape[1])
        return sealed_parquet(pyarrow.table(columns), record)


def distributions_table(tables: Iterable[pyarrow.Table], heads: Sequence[tuple[int, int]]) -> pyarrow.Table:
    """`survey.distributions`, from the files beside the parts."""
    total: dict[str, np.ndarray] = {}
    for table in tables:
        for name in table.column_names:
            column = table[name].combine_chunks()
            numbers = column.flatten().to_numpy().reshape(len(column), -1)
            total[name] = total[name] + numbers if name in total else numbers.copy()
    rows = []
    for cell, place in enumerate(heads):
        for at, distance in enumerate(range(-REACH, REACH + 1)):
            pairs = int(total["pairs"][cell, at])
            mean = total["weight"][cell, at] / pairs if pairs else None
            rows.append(DistributionRow(*place, distance, mean, pairs))
    return table_of(DistributionRow, rows)
