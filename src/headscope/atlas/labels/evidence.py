"""Evidence that labels and examples are chosen from: strongest pairs, words drawn of each half or by lot, passages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from headscope.atlas.labels.passages import QUERIES, Passage, classes_of, is_english
from headscope.atlas.labels.predicates import HIGH, MIDDLE, relations_of, sides_of
from headscope.atlas.labels.search import Clause, Facts, Ground

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from headscope.atlas.observe import Observed
    from headscope.heads.windows import Window

STRONGEST = 300
"""Pairs of each head and half of the documents."""

TWICE = 2
"""Number of times that a pair of forms may be among them."""

SAMPLE_WORDS, SAMPLE_CELLS = 2000, 1 << 18
"""Windows of each half are drawn until so many words look, or have so many words to look at."""

RANDOM = 2
"""The list of words drawn by lot, beside those of documents with even (0) and odd (1) numbers."""

COLUMNS = ("list", "cell", "window", "query", "key", "strength", "weight", "query_word", "key_word")


def capped(forms: Sequence[Any]) -> Iterator[int]:
    """Places of those that are among the first TWICE of their kind."""
    counts: dict[Any, int] = {}
    for at, form in enumerate(forms):
        counts[form] = counts.get(form, 0) + 1
        if counts[form] <= TWICE:
            yield at


def pairs_of(observed: Observed) -> pyarrow.Table:
    """The pairs of every head: the strongest of each half, the strongest first, and those drawn by lot."""
    rows = [row for half in (0, 1) for row in _strongest(observed, half)]
    for (window, query), (keys, weights) in observed.drawn.items():
        for cell in np.flatnonzero(keys >= 0).tolist():
            weight = float(weights[cell])
            rows.append((RANDOM, cell, window, query, int(keys[cell]), weight, weight))
    words = [observed.windows[window].words.forms for _, _, window, *_ in rows]
    table = {name: [row[at] for row in rows] for at, name in enumerate(COLUMNS[:-2])}
    for name in ("query", "key"):
        table[f"{name}_word"] = [forms[at] for forms, at in zip(words, table[name], strict=True)]
    return pyarrow.table(table)


def _strongest(observed: Observed, half: int) -> Iterator[tuple[Any, ...]]:
    """Rows of the strongest pairs of one half."""
    places = [place for place, window in enumerate(observed.windows) if window.document % 2 == half]
    if not places:
        return
    looking = [np.flatnonzero(observed.windows[place].words.looks) for place in places]
    window, query = np.repeat(places, list(map(len, looking))), np.concatenate(looking)
    key, strength, weight = (
        np.concatenate([of[place] for place in places], 1) for of in (observed.keys, observed.strength, observed.weight)
    )
    names: dict[str, int] = {}
    folded = [
        np.array([names.setdefault(form.casefold(), len(names)) for form in observed.windows[place].words.forms])
        for place in places
    ]
    starts = np.repeat(np.cumsum([0, *map(len, folded[:-1])]), list(map(len, looking)))
    forms = np.concatenate(folded)
    for cell in range(len(strength)):
        some = np.flatnonzero(strength[cell] > 0)
        some = some[np.lexsort((query[some], window[some], -strength[cell, some]))]
        both = forms[starts[some] + query[some]] * len(names) + forms[starts[some] + key[cell, some]]
        kept = some[list(capped(both.tolist()))][:STRONGEST]
        columns = (window[kept], query[kept], key[cell, kept], strength[cell, kept], weight[cell, kept])
        yield from ((half, cell, *row) for row in zip(*(column.tolist() for column in columns), strict=True))


def drawn_windows(observed: Observed, half: int) -> list[int]:
    """The first windows of a half, until they have enough words."""
    looking = cells = 0
    drawn = []
    for place, window in enumerate(observed.windows):
        if window.document % 2 != half:
            continue
        if looking >= SAMPLE_WORDS or cells >= SAMPLE_CELLS:
            break
        looks = int(window.words.looks.sum())
        drawn.append(place)
        looking, cells = looking + looks, cells + looks * len(window.words)
    return drawn


Own = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""A head's own class of keys: from forms and vectors of words, (words,) of bool."""

Vectors = Callable[[Sequence[int]], "Float[np.ndarray, 'ids d']"]
"""Gives the centred input embeddings of some tokens, of width 0 where the model has none."""


KEPT_BYTES = 1 << 26
"""Most memory for the relations of passages that are kept, 64 MiB: those of a thousand short sentences."""


class Texts:
    """The passages of the sample.

    Args:
        windows: of the sample.
        vectors: gives the embeddings of tokens.
        places: of the windows over whose words the cosines are taken that count as related.

    Attributes:
        english: whether the lists of English words apply.
    """

    def __init__(self, windows: Sequence[Window], vectors: Vectors, places: Sequence[int]) -> None:
        self._windows = windows
        self._facts: dict[int, PassageFacts] = {}
        self._room = KEPT_BYTES
        self.english = is_english(form for window in windows for form in window.words.forms)
        ids = sorted({token for window in windows for token in window.ids.tolist()})
        self._ids = {token: at for at, token in enumerate(ids)}
        self._table = np.asarray(vectors(ids), dtype=np.float32)
        self._cosines = self._related(places) if self._table.shape[1] else None

    def _related(self, places: Sequence[int]) -> tuple[float, float] | None:
        """The cosines of HIGH and MIDDLE over the content words of some passages; None if these have no two."""
        cosines: list[np.ndarray] = []
        for place in places:
            passage = self.passage(place)
            classes = classes_of(passage, english=self.english)
            chosen = np.flatnonzero(classes.get("content", ~classes["PUNCT"]) & (passage.sizes > 0))
            names = np.array(passage.names, dtype=object)[chosen]
            likeness = passage.vectors[chosen] @ passage.vectors[chosen].T
            cosines.append(likeness[names[:, None] != names])
        if not any(map(len, cosines)):
            return None
        high, middle = np.quantile(np.concatenate(cosines), [1 - HIGH, 1 - MIDDLE])
        return float(high), float(middle)

    def passage(self, place: int) -> Passage:
        """The words of a window."""
        words, ids = self._windows[place].words, self._windows[place].ids
        inside = words.of_token >= 0
        vectors = np.zeros((len(words), self._table.shape[1]), dtype=np.float32)
        rows = self._table[[self._ids[token] for token in ids[inside].tolist()]]
        np.add.at(vectors, words.of_token[inside], rows)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        tree = words.sentence
        trees = ((), (), ()) if tree is None else (tree.tags, tree.heads, tree.relations)
        return Passage(words.forms, words.sizes, vectors, *trees)

    def facts(self, place: int) -> PassageFacts:
        """Everything that may be said of the pairs of a window; kept while there is room."""
        if place in self._facts:
            return self._facts[place]
        passage = self.passage(place)
        classes = classes_of(passage, english=self.english)
        relations = dict(relations_of(passage, classes, self._cosines, english=self.english))
        found = PassageFacts(passage, classes, relations)
        size = sum(matrix.nbytes for matrix in relations.values())
        if size <= self._room:
            self._room -= size
            self._facts[place] = found
        return found


@dataclass(frozen=True, eq=False)
class PassageFacts:
    """A window's words with their classes and relations.

    Attributes:
        passage: the words.
        classes: name -> (words,).
        relations: name -> (words, words), query by key.
    """

    passage: Passage
    classes: dict[str, np.ndarray]
    relations: dict[str, np.ndarray]

    def even(self, row: int, behind: int = 1 << 30, ahead: int = 1 << 30) -> Float[np.ndarray, " words"]:
        """b of each word for one that looks, if it sees so far."""
        gaps = np.arange(len(self.passage.forms)) - row
        share = np.where((gaps == 0) | (gaps < -behind) | (gaps > ahead), 0, self.passage.sizes).astype(np.float64)
        return np.asarray(share / max(share.sum(), 1))

    def row(self, clause: Clause, query: int, own: Mapping[str, Own]) -> Bool[np.ndarray, " words"]:
        """The words that a clause holds for one that looks."""
        count = len(self.passage.forms)
        mask = np.ones(count, dtype=bool)
        if clause.query:
            mask &= self.classes[clause.query][query]
        if clause.key in own:
            mask &= own[clause.key](np.array(self.passage.names, dtype=object), self.passage.vectors)
        elif clause.key:
            mask &= self.classes[clause.key]
        if clause.relation:
            mask &= self.relations[clause.relation][query]
        if clause.side:
            mask &= sides_of(np.arange(count) - query)[clause.side]
        return mask

    def of(self, queries: Int[np.ndarray, " n"], keys: Int[np.ndarray, " n"]) -> Facts:
        """Return what holds of some pairs."""
        return Facts(
            {
                "query": {name: self.classes[name][queries] for name in QUERIES if name in self.classes},
                "key": {name: flags[keys] for name, flags in self.classes.items()},
                "relation": {name: matrix[queries, keys] for name, matrix in self.relations.items()},
                "side": sides_of(keys - queries),
            },
            len(queries),
        )


def joined(parts: Sequence[Facts]) -> Facts:
    """The facts of several windows' pairs, one after the other."""
    if not parts:
        return Facts({}, 0)
    tables = {
        slot: {name: np.concatenate([part.of(slot, name) for part in parts]) for name in table}
        for slot, table in parts[0].tables.items()
    }
    return Facts(tables, sum(map(len, parts)))


@dataclass(frozen=True, eq=False)
class Half:
    """The words drawn from one half: every pair of them and the words beside them, and every head's choices.

    Attributes:
        ground: their even shares.
        gaps: (pairs,), key minus query.
        starts: (rows,), where each row's pairs begin: all words of its window, in order.
        keys: (heads, rows), each head's choice; -1 for none.
        words: (words,) of (window, word) -> their number; `word` (pairs,) is each key's.
        names: (words,), the forms.
        vectors: (words, d).
        content: (words,), True for content words.
    """

    ground: Ground
    gaps: Int[np.ndarray, " pairs"]
    starts: Int[np.ndarray, " rows"]
    keys: Int[np.ndarray, "heads rows"]
    word: Int[np.ndarray, " pairs"]
    names: np.ndarray
    vectors: Float[np.ndarray, "words d"]
    content: np.ndarray


def half_of(observed: Observed, places: Sequence[int], texts: Texts) -> Half:
    """The ground of one half: see `drawn_windows`."""
    chosen = [observed.keys[place] for place in places]
    parts: list[Facts] = []
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("even", "row", "gaps", "word", "starts")}
    names: list[str] = []
    vectors, content = [], []
    rows = pairs = 0
    for place in places:
        known = texts.facts(place)
        count, looks = len(known.passage), np.flatnonzero(observed.windows[place].words.looks)
        queries, keys = np.repeat(looks, count), np.tile(np.arange(count), len(looks))
        parts.append(known.of(queries, keys))
        columns["even"] += [known.even(row) for row in looks.tolist()]
        columns["row"].append(np.repeat(np.arange(rows, rows + len(looks)), count))
        columns["gaps"].append(keys - queries)
        columns["word"].append(keys + len(names))
        columns["starts"].append(pairs + count * np.arange(len(looks)))
        names += known.passage.names
        vectors.append(known.passage.vectors)
        content.append(known.classes.get("content", ~known.classes["PUNCT"]))
        rows, pairs = rows + len(looks), pairs + count * len(looks)
    even, row, gaps, word, starts = (
        np.concatenate(column) if column else np.zeros(0, dtype=np.int64) for column in columns.values()
    )
    return Half(
        Ground(joined(parts), even, row, rows),
        gaps,
        starts,
        np.concatenate(chosen, 1).astype(np.int64) if chosen else np.zeros((0, 0), dtype=np.int64),
        word,
        np.array(names, dtype=object),
        np.concatenate(vectors) if vectors else np.zeros((0, 0)),
        np.concatenate(content) if content else np.zeros(0, dtype=bool),
    )
