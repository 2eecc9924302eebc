"""Weight on special tokens, the closing mark and a word's own tokens: sums over words, for every head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import torch

from headscope.atlas.labels.passages import MARKS
from headscope.atlas.store import sealed_parquet

if TYPE_CHECKING:
    from headscope.atlas.labels.choices import ChoiceLists
    from headscope.atlas.words import Tile, Words
    from headscope.heads.windows import Window

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


class Sums:
    """The sums of a part.

    Args:
        cells: heads of the model.
    """

    def __init__(self, cells: int) -> None:
        self._table = np.zeros((cells, len(SUMS)))

    def take(self, tile: Tile, flags: WordFlags, words: Words, cells: slice) -> None:
        """Some words of one layer of one window."""
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
            self._table[cells, at] += numbers.double().cpu().numpy() if isinstance(numbers, torch.Tensor) else numbers

    def file(self, record: dict[str, Any], lists: ChoiceLists) -> bytes:
        """The sums as a file beside the part, a row for each head, with how many words have a choice, and its reach."""
        columns: dict[str, Any] = {name: self._table[:, at] for at, name in enumerate(SUMS)}
        columns |= {"even": lists.strong[0], "odd": lists.strong[1]}
        columns |= {"behind": lists.reach[:, 0], "ahead": lists.reach[:, 1]}
        return sealed_parquet(pyarrow.table(columns), record)


def summed(tables: Iterable[pyarrow.Table], documents: Iterable[int]) -> dict[str, np.ndarray]:
    """The sums of all parts by name, (heads,); halves by the parity of documents over the corpus; the longest reach."""
    whole: dict[str, np.ndarray] = {}
    before = 0
    for table, count in zip(tables, documents, strict=True):
        part = {name: table[name].to_numpy() for name in table.column_names}
        if before % 2:
            part["even"], part["odd"] = part["odd"], part["even"]
        for name, numbers in part.items():
            reach = name in ("behind", "ahead")
            old = whole.get(name, np.zeros_like(numbers))
            whole[name] = np.maximum(old, numbers) if reach else old + numbers
        before += count
    return whole
