"""What labels are counted from: sums over the words of each document, for every head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import torch

from headscope._survey.table import sealed_parquet
from headscope.statistics.roles import is_punctuation

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from headscope._survey.strongest import Strongest
    from headscope._survey.windows import Window
    from headscope._survey.words import Tile, Words

OFFSETS = (-4, -3, -2, -1, 1, 2, 3, 4)
"""Of a word's strongest word, in words."""

CONTENT = frozenset({"NOUN", "PROPN", "VERB", "ADJ", "ADV", "NUM"})
"""Tags of words that say something; where there are no tags, words of SHORT characters of ASCII or fewer don't."""
SHORT = 3

SUMS = (
    "words",  # that have a strongest word
    "chance",  # of each: one in so many other words
    *(f"at{offset:+d}" for offset in OFFSETS),  # the strongest word stands there
    *(f"weight{offset:+d}" for offset in OFFSETS),  # and gets that much
    "same_words",  # content words that occur again, not as neighbours only
    "same",  # of them, strongest is such an occurrence
    "same_chance",
    "inner",  # tokens whose left or right neighbour is of the same word
    "inner_weight",
    "outer_weight",  # what they would give if it were of another word
    "text_words",  # that are not punctuation
    "punctuation",  # their weight on punctuation
    "punctuation_chance",
    "entropy",  # of the weights among words, over log n
    "key",  # 1 - H(mean row) / log n
    "query",  # (H(mean row) - mean H(row)) / log n
    "spread_words",
    "first",  # weight on the window's first token
    "first_chance",
    "sep",
    "sep_chance",
    "special",
)
"""The columns, for each document and head. Weights and shares are sums over words, so that they add up."""


class Marks:
    """What a window's words are, for all layers.

    Attributes:
        punctuation: (words,).
        same: (words, words), True where a content word occurs again; neighbours left out.
        others: (words,), how many other words with tokens there are.
        places: (tokens, 3), 1 for the first token, for [SEP], for special tokens.
        pairs: what neighbouring tokens are: for -1 and +1, (tokens,), 1 same word, 0 another word, -1 none.
    """

    def __init__(self, window: Window) -> None:
        words = window.words
        assert words is not None
        self.punctuation = np.array([is_punctuation(form) for form in words.forms], dtype=bool)
        self.silent = words.sizes == 0
        self.others = np.full(len(words), int((~self.silent).sum()) - 1)
        self.same = _same(words, self.punctuation | self.silent)
        tokens = len(window)
        places = np.zeros((tokens, 3), dtype=np.float32)
        places[0, 0] = 1
        places[:, 1] = window.roles.sep
        places[:, 2] = window.roles.special
        self.places = torch.from_numpy(places)
        self.chances = places[:, :2].mean(0)
        of = words.of_token
        self.neighbours = []
        for step in (-1, 1):
            kinds = np.full(tokens, -1)
            here, beside = (slice(1, None), slice(None, -1)) if step < 0 else (slice(None, -1), slice(1, None))
            both = (of[here] >= 0) & (of[beside] >= 0)
            kinds[here] = np.where(both, (of[here] == of[beside]).astype(int), -1)
            self.neighbours.append(kinds)


def _same(words: Words, out: Bool[np.ndarray, " words"]) -> Bool[np.ndarray, "words words"]:
    forms = [form.casefold() for form in words.forms]
    counts = Counter(forms)
    tags = words.sentence.tags if words.sentence is not None else None
    same = np.zeros((len(forms), len(forms)), dtype=bool)
    told = tags is not None and any(tag in CONTENT for tag in tags)
    for at, form in enumerate(forms):
        if out[at] or counts[form] < 2:
            continue
        if told and tags is not None:
            content = tags[at] in CONTENT
        else:
            content = any(sign.isalpha() for sign in form) and (len(form) > SHORT or not form.isascii())
        if content:
            same[at] = [other == form and abs(place - at) > 1 for place, other in enumerate(forms)]
    return same


class Spread:
    """How the weights of one layer are spread over one window, from its tiles."""

    def __init__(self, marks: Marks, words: Words) -> None:
        self._marks, self._words = marks, words
        self._total: dict[str, Float[np.ndarray, " heads"]] = {}
        self._row: Float[torch.Tensor, "heads words"] | None = None
        self._punctuation = torch.from_numpy(marks.punctuation.astype(np.float32))

    def take(self, tile: Tile) -> Float[torch.Tensor, "heads n"]:
        """The next words; the entropies of their weights among words."""
        marks, words = self._marks, self._words
        n = tile.maps.shape[1]
        of = slice(tile.at, tile.at + n)
        present = torch.from_numpy(~marks.silent[of]).to(tile.maps)
        total = tile.maps.sum(-1, keepdim=True)
        rows = tile.maps / total.clamp_min(1e-30)
        row = (rows * present[:, None]).sum(1)
        self._row = row if self._row is None else self._row + row
        entropies = torch.special.entr(rows).sum(-1)
        self._add("entropy", (entropies * present).sum(-1))
        text = present * (1 - self._punctuation[of]).to(present)
        self._add("punctuation", ((tile.maps @ self._punctuation.to(present)) * text).sum(-1))
        places = words.averaging[of, tile.tokens].to(present) @ (tile.weights @ marks.places.to(present))
        for name, sums in zip(("first", "sep", "special"), places.sum(1).unbind(-1), strict=True):
            self._add(name, sums)
        start = tile.tokens.start
        for step, kinds in zip((-1, 1), marks.neighbours, strict=True):
            rows_here = np.arange(tile.tokens.start, tile.tokens.stop)
            kind = kinds[rows_here]
            for name, wanted in (("inner", 1), ("outer", 0)):
                chosen = rows_here[kind == wanted]
                if len(chosen):
                    self._add(f"{name}{step:+d}", tile.weights[:, chosen - start, chosen + step].sum(-1))
        return entropies

    def _add(self, name: str, sums: Float[torch.Tensor, " heads"]) -> None:
        numbers = sums.double().cpu().numpy()
        self._total[name] = self._total[name] + numbers if name in self._total else numbers

    def sums(self, heads: int) -> dict[str, Any]:
        """The columns that it knows, as sums over words."""
        marks, total = self._marks, self._total
        none = np.zeros(heads)
        count = int((~marks.silent).sum())
        sums: dict[str, Any] = {name: total.get(name, none) for name in ("first", "sep", "special", "punctuation")}
        sums["first_chance"], sums["sep_chance"] = count * marks.chances
        sums["text_words"] = int((~marks.silent & ~marks.punctuation).sum())
        sums["punctuation_chance"] = sums["text_words"] * (marks.punctuation & ~marks.silent).sum() / max(count, 1)
        if count > 1 and self._row is not None:
            log = np.log(count)
            mean = self._row.double() / count
            mean_entropy = torch.special.entr(mean).sum(-1).cpu().numpy()
            sums["entropy"] = total["entropy"] / log
            sums["key"] = count * (1 - mean_entropy / log)
            sums["query"] = count * mean_entropy / log - sums["entropy"]
            sums["spread_words"] = count
        inner = [int((kinds == 1).sum()) for kinds in marks.neighbours]
        outer = [int((kinds == 0).sum()) for kinds in marks.neighbours]
        if all(outer):
            sums["inner"] = sum(inner)
            sums["inner_weight"] = total.get("inner-1", none) + total.get("inner+1", none)
            sums["outer_weight"] = sum(
                n * total[f"outer{step:+d}"] / many for step, n, many in zip((-1, 1), inner, outer, strict=True)
            )
        return sums


class Sums:
    """The sums of a part: for each document and head."""

    def __init__(self, cells: int) -> None:
        self._cells = cells
        self._documents: dict[int, Float[np.ndarray, "heads sums"]] = {}

    def take(self, document: int, marks: Marks, strongest: Strongest, spread: Spread, cells: slice) -> None:
        """Add one layer of one window."""
        table = self._documents.setdefault(document, np.zeros((self._cells, len(SUMS))))[cells]
        looks_at, weight = strongest.looks_at, strongest.weight
        heads = len(looks_at)
        present = (weight >= 0).any(0)
        sums = spread.sums(heads)
        sums["words"] = present.sum()
        sums["chance"] = (1 / np.maximum(marks.others, 1))[present].sum()
        gaps = looks_at - np.arange(looks_at.shape[1])
        for offset in OFFSETS:
            hits = (gaps == offset) & (looks_at >= 0)
            sums[f"at{offset:+d}"] = hits.sum(-1)
            sums[f"weight{offset:+d}"] = (hits * weight).sum(-1)
        again = np.flatnonzero(marks.same.any(-1) & present)
        if len(again):
            sums["same_words"] = len(again)
            sums["same"] = (marks.same[again, looks_at[:, again]] & (looks_at[:, again] >= 0)).sum(-1)
            sums["same_chance"] = (marks.same[again].sum(-1) / np.maximum(marks.others[again], 1)).sum()
        for at, name in enumerate(SUMS):
            if name in sums:
                table[:, at] += sums[name]

    def file(self, record: dict[str, Any], renumbered: dict[int, int]) -> bytes:
        """The sums as a file beside the part, a row for each document and head."""
        order = sorted(self._documents, key=renumbered.__getitem__)
        numbers = [renumbered[document] for document in order]
        values = np.stack([self._documents[document] for document in order]) if order else np.zeros((0, 1, len(SUMS)))
        columns: dict[str, Any] = {
            "document": pyarrow.array(np.repeat(np.array(numbers, dtype=np.int32), self._cells)),
            "cell": pyarrow.array(np.tile(np.arange(self._cells, dtype=np.int32), len(numbers))),
        }
        for at, name in enumerate(SUMS):
            columns[name] = pyarrow.array(np.ascontiguousarray(values[..., at]).reshape(-1), pyarrow.float64())
        return sealed_parquet(pyarrow.table(columns), record)


def read_sums(tables: Sequence[pyarrow.Table], cells: int) -> Float[np.ndarray, "documents heads sums"]:
    """The sums of parts, document after document."""
    blocks = [np.stack([table[name].to_numpy() for name in SUMS], -1).reshape(-1, cells, len(SUMS)) for table in tables]
    return np.concatenate(blocks) if blocks else np.zeros((0, cells, len(SUMS)))
