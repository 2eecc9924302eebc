"""What labels are counted from: sums over the words of each document, for every head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import torch

from headscope._survey.meaning import Vectors, ranks
from headscope._survey.table import sealed_parquet
from headscope.statistics.roles import is_punctuation

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from headscope._survey.strongest import Strongest
    from headscope._survey.windows import Window
    from headscope._survey.words import Tile, Words

OFFSETS = (-4, -3, -2, -1, 1, 2, 3, 4)
"""Of a word's strongest word, in words."""

CONTENT = frozenset({"NOUN", "PROPN", "VERB", "ADJ", "ADV", "NUM"})
"""Tags of words that say something; where there are no tags, words of SHORT characters of ASCII or fewer don't."""
SHORT = 3

EVEN = 0.82
"""Entropy over log n from which a word's weights count as spread evenly."""

SUMS = (
    "words",  # that look and have a strongest word
    "chance",  # of each: one in so many other words
    *(f"at{offset:+d}" for offset in OFFSETS),  # the strongest word stands there
    *(f"weight{offset:+d}" for offset in OFFSETS),  # and gets that much
    "same_words",  # content words that occur again, not as neighbours only
    "same",  # of them, strongest is such an occurrence
    "same_chance",
    *(f"same_chance{offset:+d}" for offset in OFFSETS),  # the word that stands there is such an occurrence
    "similar_words",  # content words whose strongest word is another content word, not a neighbour
    "similar_weight",  # what they give to it
    "similar",  # times its rank among such words by meaning
    "similar_chance",
    "inner",  # tokens whose left or right neighbour is of the same word
    "inner_weight",
    "outer_weight",  # what they would give if it were of another word
    "text_words",  # that are not punctuation
    "punctuation",  # their weight on punctuation
    "punctuation_chance",
    *(f"punctuation_chance{offset:+d}" for offset in OFFSETS),  # the word that stands there is punctuation
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

POPULAR = 3
"""Words of a window that get most in all."""


class Marks:
    """What a window's words are, for all layers.

    Attributes:
        looks: (words,), True for words that look at others.
        silent: (words,), True for words without tokens.
        count: how many others there are.
        punctuation: (words,).
        same: (words, words), True where a content word occurs again; neighbours left out.
        ranks: (words, words), see meaning.ranks; None where the model has no input embeddings, or they are not needed.
        usual_rank: (words,), each key's mean rank; with `ranks`.
        others: (words,), how many other words with tokens there are.
        columns: tokens that are the first one, [SEP] or special.
        places: (columns, 3), 1 for the first token, for [SEP], for special tokens.
        chances: the shares of the first token and of [SEP] among tokens.
        neighbours: what neighbouring tokens are: for -1 and +1, (tokens,), 1 same word, 0 another word, -1 none.
    """

    def __init__(self, window: Window, vectors: Vectors | None = None) -> None:
        words = window.words
        assert words is not None
        self.looks = words.looks
        self.punctuation = np.array([is_punctuation(form) for form in words.forms], dtype=bool)
        self.silent = words.sizes == 0
        self.count = int((~self.silent).sum())
        self.others = np.full(len(words), self.count - 1)
        content = _content(words, self.punctuation | self.silent)
        names = np.unique([form.casefold() for form in words.forms], return_inverse=True)[1]
        self.same = _same(names, content, self.looks)
        self.ranks: Float[np.ndarray, "words words"] | None = None
        if vectors is not None and vectors.known and content.any():
            tags = words.sentence.tags if words.sentence is not None else ("",) * len(words)
            classes = np.where(content, np.unique(tags, return_inverse=True)[1], -1)
            self.ranks = ranks(vectors.of(window.ids, words), classes, names, self.looks)
            counts = (~np.isnan(self.ranks)).sum(0)
            self.usual_rank = np.nansum(self.ranks, 0) / np.maximum(counts, 1)
        tokens = len(window)
        places = np.zeros((tokens, 3), dtype=np.float32)
        places[0, 0] = 1
        places[:, 1] = window.roles.sep
        places[:, 2] = window.roles.special
        self.columns = torch.from_numpy(np.flatnonzero(places.any(1)))
        self.places = torch.from_numpy(places)[self.columns]
        self.chances = places[:, :2].mean(0)
        of = words.of_token
        looking = (of >= 0) & self.looks[of]
        self.neighbours = []
        for step in (-1, 1):
            kinds = np.full(tokens, -1)
            here, beside = (slice(1, None), slice(None, -1)) if step < 0 else (slice(None, -1), slice(1, None))
            both = looking[here] & (of[beside] >= 0)
            kinds[here] = np.where(both, (of[here] == of[beside]).astype(int), -1)
            self.neighbours.append(kinds)


def _content(words: Words, out: Bool[np.ndarray, " words"]) -> Bool[np.ndarray, " words"]:
    """The words that say something."""
    tags = words.sentence.tags if words.sentence is not None else ()
    if any(tag in CONTENT for tag in tags):
        return ~out & np.array([tag in CONTENT for tag in tags], dtype=bool)
    forms = words.forms
    told = [any(sign.isalpha() for sign in form) and (len(form) > SHORT or not form.isascii()) for form in forms]
    return ~out & np.array(told, dtype=bool)


def _same(
    names: Int[np.ndarray, " words"], content: Bool[np.ndarray, " words"], looks: Bool[np.ndarray, " words"]
) -> Bool[np.ndarray, "words words"]:
    at, rows = np.arange(len(names)), np.flatnonzero(content & looks)
    same = np.zeros((len(names), len(names)), dtype=bool)
    same[rows] = (names[rows, None] == names) & (np.abs(rows[:, None] - at) > 1)
    return same


class Spread:
    """How the weights of one layer are spread over one window, from its tiles.

    Attributes:
        entropies: (heads, words), of each word's weights among words, over log n.
        first, sep: (heads, words), what each word gives to the first token and to [SEP].
    """

    def __init__(self, marks: Marks, words: Words, heads: int) -> None:
        self._marks, self._words = marks, words
        self._total: dict[str, Float[np.ndarray, " heads"]] = {}
        self._row: Float[torch.Tensor, "heads words"] | None = None
        self._punctuation = torch.from_numpy(np.flatnonzero(marks.punctuation))
        self._text = torch.from_numpy(~marks.punctuation)
        self.entropies, self.first, self.sep = np.zeros((3, heads, len(words)))

    def take(self, tile: Tile) -> Float[torch.Tensor, "heads n"]:
        """The next words; the entropies of their weights among words."""
        marks, words, maps = self._marks, self._words, tile.maps
        of = slice(tile.at, tile.at + maps.shape[1])
        present = torch.from_numpy(marks.looks[of]).to(maps)
        total = maps.sum(-1).clamp_min_(1e-30)
        punctuation = maps.index_select(-1, self._punctuation.to(maps.device)).sum(-1)
        row = ((present / total)[:, None] @ maps)[:, 0]
        self._row = row if self._row is None else self._row + row
        # -sum r log r with r = m / total, without another map of r.
        entropies = total.log() - (maps.clamp_min(1e-37).log_().mul_(maps)).sum(-1) / total
        entropies = (entropies * present).clamp_min_(0)
        self._add("entropy", entropies.sum(-1))
        self._add("punctuation", (punctuation * present * self._text[of].to(maps)).sum(-1))
        columns = tile.weights.index_select(-1, marks.columns.to(maps.device)) @ marks.places.to(maps)
        first, sep, special = words.means(columns, of.start, of.stop).unbind(-1)
        for name, weights in (("first", first), ("sep", sep), ("special", special)):
            self._add(name, (weights * present).sum(-1))
        log = np.log(max(marks.count, 2))
        for kept, numbers in ((self.entropies, entropies / log), (self.first, first), (self.sep, sep)):
            kept[:, of] = numbers.double().cpu().numpy()
        self._take_neighbours(tile)
        return entropies

    def _take_neighbours(self, tile: Tile) -> None:
        rows = np.arange(tile.tokens.start, tile.tokens.stop)
        for step, kinds in zip((-1, 1), self._marks.neighbours, strict=True):
            kind = kinds[rows]
            for name, wanted in (("inner", 1), ("outer", 0)):
                chosen = rows[kind == wanted]
                if len(chosen):
                    self._add(f"{name}{step:+d}", tile.weights[:, chosen - tile.tokens.start, chosen + step].sum(-1))

    def _add(self, name: str, sums: Float[torch.Tensor, " heads"]) -> None:
        numbers = sums.double().cpu().numpy()
        self._total[name] = self._total[name] + numbers if name in self._total else numbers

    @property
    def popular(self) -> Int[np.ndarray, "heads n"]:
        """(heads, POPULAR or fewer), the words that get most of all words together."""
        assert self._row is not None
        count = min(POPULAR, self._row.shape[-1])
        return self._row.topk(count, -1).indices.cpu().numpy()

    def sums(self, heads: int) -> dict[str, Any]:
        """The columns that it knows, as sums over words."""
        marks, total = self._marks, self._total
        none = np.zeros(heads)
        looking = int(marks.looks.sum())
        sums: dict[str, Any] = {name: total.get(name, none) for name in ("first", "sep", "special", "punctuation")}
        sums["first_chance"], sums["sep_chance"] = looking * marks.chances
        text = marks.looks & ~marks.punctuation
        sums["text_words"] = int(text.sum())
        sums["punctuation_chance"] = (
            sums["text_words"] * (marks.punctuation & ~marks.silent).sum() / max(marks.count, 1)
        )
        for offset in OFFSETS:
            sums[f"punctuation_chance{offset:+d}"] = int((text & _shifted(marks.punctuation, offset)).sum())
        if marks.count > 1 and looking and self._row is not None:
            log = np.log(marks.count)
            mean = self._row.double() / looking
            mean_entropy = torch.special.entr(mean).sum(-1).cpu().numpy()
            sums["entropy"] = total["entropy"] / log
            sums["key"] = looking * (1 - mean_entropy / log)
            sums["query"] = looking * mean_entropy / log - sums["entropy"]
            sums["spread_words"] = looking
        inner = [int((kinds == 1).sum()) for kinds in marks.neighbours]
        outer = [int((kinds == 0).sum()) for kinds in marks.neighbours]
        if all(outer):
            sums["inner"] = sum(inner)
            sums["inner_weight"] = total.get("inner-1", none) + total.get("inner+1", none)
            sums["outer_weight"] = sum(
                n * total[f"outer{step:+d}"] / many for step, n, many in zip((-1, 1), inner, outer, strict=True)
            )
        return sums


def _shifted(flags: Bool[np.ndarray, " words"], offset: int) -> Bool[np.ndarray, " words"]:
    """For each word, the flag of the word that stands `offset` to its right; False beyond the ends."""
    shifted = np.zeros_like(flags)
    if abs(offset) < len(flags):
        here = slice(max(-offset, 0), len(flags) - max(offset, 0))
        shifted[here] = flags[here.start + offset : here.stop + offset]
    return shifted


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
            for offset in OFFSETS:
                sums[f"same_chance{offset:+d}"] = int(marks.same.diagonal(offset).sum())
        if marks.ranks is not None:
            rank = ranks_of(marks, looks_at)
            counts = ~np.isnan(rank)
            sums["similar_words"] = counts.sum(-1)
            sums["similar_weight"] = np.where(counts, weight, 0).sum(-1)
            sums["similar"] = np.where(counts, weight * rank, 0).sum(-1)
            sums["similar_chance"] = np.where(counts, weight * marks.usual_rank[looks_at], 0).sum(-1)
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


def ranks_of(marks: Marks, looks_at: Int[np.ndarray, "heads words"]) -> Float[np.ndarray, "heads words"]:
    """The rank by meaning of each word's strongest word; NaN where it has none."""
    assert marks.ranks is not None
    rank = marks.ranks[np.arange(looks_at.shape[1]), looks_at]
    return np.where(looks_at >= 0, rank, np.nan)


def read_sums(tables: Sequence[pyarrow.Table], cells: int) -> Float[np.ndarray, "documents heads sums"]:
    """The sums of parts, document after document."""
    blocks = [np.stack([table[name].to_numpy() for name in SUMS], -1).reshape(-1, cells, len(SUMS)) for table in tables]
    return np.concatenate(blocks) if blocks else np.zeros((0, cells, len(SUMS)))
