"""Readings of a layer's tiles in a window: each word's choice, its strongest other word, where its weight goes.

From word i to word j goes the weight w_ij, W_i to all others together. By an even share j would get b_ij of W_i: its
tokens over those of all others that i sees. The choice of i is the word with the largest excess w_ij - W_i b_ij; its
strength is that excess, and 0 unless w_ij is FACTOR times the even share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from headscope.atlas.labels.passages import MARKS

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.atlas.words import Tile, Words
    from headscope.heads.windows import Window

FACTOR = 2.0
"""Even shares that a choice must have, to have any strength."""


class Choices:
    """The choices of one layer's heads over one window.

    Attributes:
        looks_at: (heads, words), each word's choice; -1 where it sees no other, or doesn't look.
        strength: (heads, words), 0 where it has no choice.
        weight: (heads, words), what the choice gets.
        reach: (heads, 2), how far back and ahead a word that gets any weight may stand.
    """

    def __init__(self, words: Words, heads: int, like: torch.Tensor) -> None:
        self._sizes = torch.from_numpy(words.sizes).to(like.device)
        self._heads, self._looks = heads, words.looks
        self.looks_at = np.full((heads, len(words)), -1)
        self.strength, self.weight = np.zeros((2, heads, len(words)))
        self.reach = np.zeros((heads, 2), dtype=np.int64)

    def take(self, tile: Tile) -> None:
        """The next words."""
        n, count = tile.maps.shape[1:]
        at = np.arange(tile.at, tile.at + n)
        maps = tile.maps * (self._sizes > 0)
        maps.diagonal(tile.at, 1, 2).zero_()
        seen = maps > 0
        share = seen * self._sizes.to(maps)
        share = share / share.sum(-1, keepdim=True).clamp_min(1)
        even = share.mul_(maps.sum(-1, keepdim=True))
        excess, key = (maps - even).max(-1)
        weight = maps.gather(-1, key[..., None])[..., 0]
        sure = weight >= FACTOR * even.gather(-1, key[..., None])[..., 0]
        looks = self._looks[at]
        some = seen.any(-1).cpu().numpy() & looks
        self.looks_at[:, at] = np.where(some, key.cpu().numpy(), -1)
        self.strength[:, at] = np.where(some, (excess.clamp_min(0) * sure).double().cpu().numpy(), 0)
        self.weight[:, at] = np.where(some, weight.double().cpu().numpy(), 0)
        first = seen.int().argmax(-1).cpu().numpy()
        last = count - 1 - seen.flip(-1).int().argmax(-1).cpu().numpy()
        for way, far in enumerate((at - first, last - at)):
            self.reach[:, way] = np.maximum(self.reach[:, way], np.where(some, far, 0).max(1, initial=0))


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

SUMS = ("first", "sep", "special", "stop", "inner", "entropy", "words", "stop_words", "inner_words")
"""Weights of words on the window's first token, on [SEP], on all special tokens, on the last closing mark, and of
tokens on the other tokens of their word; the entropy of weights among words over log n; and out of how many."""


class WordFlags:
    """Roles of a window's words and tokens, for all layers.

    Attributes:
        silent: (words,), True for words without tokens.
        looks: (words,), True for words that look at others.
        count: words with tokens.
        stop: the last closing mark; None where there is none.
        several: tokens of words that look and have several.
        columns: tokens that are the first one, [SEP] or special.
        places: (columns, 3), 1 for the first token, for [SEP], for special tokens.
    """

    def __init__(self, window: Window) -> None:
        words = window.words
        self.silent, self.looks = words.sizes == 0, words.looks
        self.count = int((~self.silent).sum())
        closing = [at for at, form in enumerate(words.forms) if form in MARKS["closing mark"].split()]
        self.stop = closing[-1] if closing else None
        of = words.of_token
        self.several = np.flatnonzero((of >= 0) & np.append(words.looks & (words.sizes > 1), False)[of])
        places = np.zeros((len(window), 3), dtype=np.float32)
        places[0, 0] = 1
        places[:, 1] = window.roles.sep
        places[:, 2] = window.roles.special
        self.columns = torch.from_numpy(np.flatnonzero(places.any(1)))
        self.places = torch.from_numpy(places)[self.columns]


class Totals:
    """Sums over the words of some windows, for every head.

    Args:
        cells: heads of the model.

    Attributes:
        sums: (heads, SUMS).
        weight: (heads, distances), of the words at each distance, -REACH to REACH.
        pairs: (heads, distances), how many pairs of words these are.
    """

    def __init__(self, cells: int) -> None:
        self.sums: Float[np.ndarray, "heads sums"] = np.zeros((cells, len(SUMS)))
        self.weight: Float[np.ndarray, "heads distances"] = np.zeros((cells, 2 * REACH + 1))
        self.pairs: Int[np.ndarray, "heads distances"] = np.zeros((cells, 2 * REACH + 1), dtype=np.int64)

    def add(self, other: Totals) -> None:
        """Add those of other windows."""
        self.sums += other.sums
        self.weight += other.weight
        self.pairs += other.pairs

    def take(self, tile: Tile, flags: WordFlags, words: Words, cells: slice) -> None:
        """Some words of one layer of one window; `cells`: the layer's heads among all heads."""
        self._take_distances(tile, flags.silent, cells)
        self._take_sums(tile, flags, words, cells)

    def _take_distances(self, tile: Tile, silent: np.ndarray, cells: slice) -> None:
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

    def _take_sums(self, tile: Tile, flags: WordFlags, words: Words, cells: slice) -> None:
        maps = tile.maps
        of = slice(tile.at, tile.at + maps.shape[1])
        present = torch.from_numpy(flags.looks[of]).to(maps)
        total = maps.sum(-1).clamp_min(1e-30)
        # -sum r log r with r = m / total, without another map of r.
        entropies = total.log() - (maps.clamp_min(1e-37).log_().mul_(maps)).sum(-1) / total
        entropies = (entropies * present).clamp_min_(0)
        columns = tile.weights.index_select(-1, flags.columns.to(maps.device)) @ flags.places.to(maps)
        first, sep, special = words.means(columns, of.start, of.stop).unbind(-1)
        looking = int(flags.looks[of].sum())
        sums: dict[str, torch.Tensor | int] = {"first": (first * present).sum(-1), "sep": (sep * present).sum(-1)}
        sums["special"] = (special * present).sum(-1)
        sums["words"] = looking
        if flags.count > 1:
            sums["entropy"] = entropies.sum(-1) / np.log(flags.count)
        if flags.stop is not None:
            others = present.clone()
            if of.start <= flags.stop < of.stop:
                others[flags.stop - of.start] = 0
            sums["stop"], sums["stop_words"] = (maps[..., flags.stop] * others).sum(-1), int(others.sum())
        own = flags.several[(flags.several >= tile.tokens.start) & (flags.several < tile.tokens.stop)]
        if len(own):
            rows = tile.weights[:, own - tile.tokens.start]
            same = torch.from_numpy(words.of_token[own][:, None] == words.of_token).to(rows)
            same[np.arange(len(own)), own] = 0
            sums["inner"], sums["inner_words"] = (rows * same).sum((-1, -2)), len(own)
        for name, numbers in sums.items():
            at = SUMS.index(name)
            self.sums[cells, at] += numbers.double().cpu().numpy() if isinstance(numbers, torch.Tensor) else numbers
