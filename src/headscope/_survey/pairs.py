"""The strongest pairs of words of every head, and a few drawn by lot: bounded, exact, whatever the parts."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from headscope._survey.rules import BEYOND
from headscope._survey.sums import EVEN, Marks, ranks_of
from headscope._survey.table import sealed_parquet

if TYPE_CHECKING:
    from jaxtyping import Int

    from headscope._survey.conllu import Sentence
    from headscope._survey.strongest import Strongest, StrongestTokens
    from headscope._survey.sums import Spread
    from headscope._survey.windows import Window

ALL, FAR, LOT, PIECES = 0, 1, 2, 3
"""The lists: every pair of a word and its strongest word; those that are no neighbours; queries drawn by lot; every
token whose word has several, and its strongest token, each by its word."""

KEPT = 100
"""Pairs of each list, for coverage; for examples more, as some are left out for variety."""

SPARE = 20
"""Pairs that are kept for each example that is wanted."""

DRAWN = 6
"""Queries drawn by lot, the same for every head."""

FIELDS = ("document", "window", "query", "key", "flags", "rank")

FLAGS = ("first", "sep", "popular", "even")
"""Of a pair: the query gives the first token, or [SEP], more than the key; the key is one of the window's POPULAR
words; the query's weights are spread evenly (EVEN). Flag n is bit n of the field."""

RANKS = 1000
"""Ranks by meaning are kept as so many parts of 1; -1 where there is none."""


class Best:
    """The strongest pairs of one layer's heads, ties by document, window and query."""

    def __init__(self, heads: int, most: int) -> None:
        self._most = most
        self.weight = np.zeros((heads, 0), dtype=np.float32)
        self.fields = np.zeros((len(FIELDS), heads, 0), dtype=np.int32)
        self._new: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, weight: np.ndarray, fields: np.ndarray) -> None:
        """Pairs of a window: (heads, words), (fields, heads, words). Those of weight -1 don't count."""
        self._new.append((weight, fields))

    def flush(self) -> None:
        """Keep the strongest of what was added."""
        if not self._new:
            return
        weight = np.concatenate([self.weight, *(weight for weight, _ in self._new)], 1)
        fields = np.concatenate([self.fields, *(fields for _, fields in self._new)], 2)
        if weight.shape[1] > 2 * self._most:  # only those as strong as the last that may be kept are sorted
            last = np.partition(weight, -self._most, axis=1)[:, -self._most]
            some = (weight >= last[:, None]).any(0)
            weight, fields = weight[:, some], fields[:, :, some]
        order = np.lexsort((fields[2], fields[1], fields[0], -weight), axis=-1)[:, : self._most]
        self.weight = np.take_along_axis(weight, order, 1)
        self.fields = np.take_along_axis(fields, order[None], 2)
        self._new = []


class PairLists:
    """The lists of a part.

    Args:
        windows: all of the part's windows.
        names: its documents' names.
        most: pairs of a list.
    """

    def __init__(self, windows: Sequence[Window], names: Sequence[str], most: int) -> None:
        self._names = names
        self._windows = {(window.document, window.number): window for window in windows}
        self._most = most
        self._best: dict[int, dict[int, Best]] = {}
        self._lot: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for order, document, number, query in heapq.nsmallest(DRAWN, self._orders(windows)):
            self._lot.setdefault((document, number), []).append((query, order))
        self._rows: list[tuple[int, ...]] = []
        self._weights: list[float] = []

    def _orders(self, windows: Sequence[Window]) -> Iterator[tuple[int, int, int, int]]:
        """A number as good as drawn by lot for every word that looks at others."""
        for window in windows:
            words = window.words
            assert words is not None
            for query in np.flatnonzero(words.looks).tolist() if np.count_nonzero(words.sizes) > 1 else ():
                name = f"{self._names[window.document]}\0{window.number}\0{query}"
                digest = hashlib.sha256(name.encode()).digest()
                yield int.from_bytes(digest[:8], "big") >> 1, window.document, window.number, query

    def take(
        self,
        window: Window,
        marks: Marks,
        strongest: Strongest,
        spread: Spread,
        tokens: StrongestTokens,
        cells: slice,
    ) -> None:
        """One layer of one window."""
        looks_at, weight = strongest.looks_at, strongest.weight.astype(np.float32)
        heads = len(looks_at)
        looking = np.flatnonzero(marks.looks)
        lists = self._best.setdefault(cells.start, {kind: Best(heads, self._most) for kind in (ALL, FAR, PIECES)})
        flags, rank = self._told(marks, strongest, spread)
        fields = self._fields(window, np.broadcast_to(looking, flags.shape), looks_at[:, looking], flags, rank)
        lists[ALL].add(weight[:, looking], fields)
        far = np.abs(fields[3] - fields[2]) > 1
        lists[FAR].add(np.where(far, weight[:, looking], np.float32(-1)), fields)
        none = np.zeros_like(tokens.rows)
        pieces = self._fields(window, tokens.rows, tokens.columns, none, none - 1)
        lists[PIECES].add(tokens.weight.astype(np.float32), pieces)
        for query, order in self._lot.get((window.document, window.number), ()):
            at = int(np.searchsorted(looking, query))
            for head in np.flatnonzero(looks_at[:, query] >= 0).tolist():
                self._rows.append((LOT, cells.start + head, order, *fields[:, head, at].tolist()))
                self._weights.append(float(weight[head, query]))

    @staticmethod
    def _told(
        marks: Marks, strongest: Strongest, spread: Spread
    ) -> tuple[Int[np.ndarray, "heads n"], Int[np.ndarray, "heads n"]]:
        """The flags and ranks of the words that look."""
        looking = np.flatnonzero(marks.looks)
        looks_at, weight = strongest.looks_at[:, looking], strongest.weight[:, looking]
        told = (
            spread.first[:, looking] > weight,
            spread.sep[:, looking] > weight,
            (looks_at[..., None] == spread.popular[:, None]).any(-1),
            spread.entropies[:, looking] >= EVEN,
        )
        flags = np.asarray(sum(flag.astype(np.int32) << at for at, flag in enumerate(told)))
        rank = np.full(looks_at.shape, -1, dtype=np.int32)
        if marks.ranks is not None:
            known = ranks_of(marks, strongest.looks_at)[:, looking]
            rank = np.where(np.isnan(known), -1, np.nan_to_num(known) * RANKS).astype(np.int32)
        return flags, rank

    @staticmethod
    def _fields(window: Window, *columns: Int[np.ndarray, "heads n"]) -> Int[np.ndarray, "fields heads n"]:
        place = [np.full(columns[0].shape, number) for number in (window.document, window.number)]
        return np.stack([*place, *columns]).astype(np.int32)

    def flush(self) -> None:
        """A batch is over."""
        for lists in self._best.values():
            for best in lists.values():
                best.flush()

    def files(self, record: dict[str, Any], renumbered: dict[int, int]) -> dict[str, bytes]:
        """`pairs`: the lists; `texts`: the words of the windows that they are from."""
        rows, weights = list(self._rows), list(self._weights)
        for start, lists in self._best.items():
            for kind, best in lists.items():
                for head, at in np.argwhere(best.weight >= 0).tolist():
                    rows.append((kind, start + head, 0, *best.fields[:, head, at].tolist()))
                    weights.append(float(best.weight[head, at]))
        places = sorted({(row[3], row[4]) for row in rows})
        marks = {place: _Marked(self._windows[place]) for place in places}
        told = [marks[row[3], row[4]].of(row[5], row[6]) for row in rows]
        columns: dict[str, Any] = {
            name: pyarrow.array([row[at] for row in rows], kind) for at, (name, kind) in enumerate(PLACES)
        }
        columns["document"] = pyarrow.array([renumbered[row[3]] for row in rows], pyarrow.int32())
        columns["weight"] = pyarrow.array(weights, pyarrow.float32())
        for at, (name, kind) in enumerate(TOLD):
            columns[name] = pyarrow.array([tell[at] for tell in told], kind)
        texts = {
            "document": pyarrow.array([renumbered[document] for document, _ in marks], pyarrow.int32()),
            "window": pyarrow.array([number for _, number in marks], pyarrow.int32()),
            "name": pyarrow.array([self._names[document] for document, _ in marks], pyarrow.string()),
            "words": pyarrow.array(
                [list(marked.words.forms) for marked in marks.values()], pyarrow.list_(pyarrow.string())
            ),
            **_tokens([self._windows[document, number] for document, number in marks]),
        }
        table = ranked(pyarrow.table(columns), self._most)
        return {"pairs": sealed_parquet(table, record), "texts": sealed_parquet(pyarrow.table(texts), record)}


def _tokens(windows: Sequence[Window]) -> dict[str, pyarrow.Array]:
    """The columns of `texts` that running a window again needs."""
    lists: dict[str, list[list[int]]] = {
        "ids": [window.ids.tolist() for window in windows],
        "segments": [window.segments.tolist() for window in windows],
        "of_token": [window.words.of_token.tolist() for window in windows if window.words is not None],
        "sep": [window.roles.sep.astype(int).tolist() for window in windows],
    }
    return {name: pyarrow.array(rows, pyarrow.list_(pyarrow.int32())) for name, rows in lists.items()}


PLACES = (
    ("list", pyarrow.int8()),
    ("cell", pyarrow.int32()),
    ("order", pyarrow.int64()),
    ("document", pyarrow.int32()),
    ("window", pyarrow.int32()),
    ("query", pyarrow.int32()),
    ("key", pyarrow.int32()),
    ("flags", pyarrow.int32()),
    ("rank", pyarrow.int32()),
)

TOLD = (
    ("query_word", pyarrow.string()),
    ("key_word", pyarrow.string()),
    ("same", pyarrow.bool_()),
    ("punctuation", pyarrow.bool_()),
    ("up", pyarrow.string()),
    ("down", pyarrow.string()),
)
"""What is known of a pair: the words, whether they are one and the same, whether the key is punctuation, the query's
relation if the key is its head, and the key's if the query is."""


class _Marked:
    """What pairs of one window are."""

    def __init__(self, window: Window) -> None:
        assert window.words is not None
        self.words = window.words
        self._marks = Marks(window)

    def of(self, query: int, key: int) -> tuple[Any, ...]:
        """The columns of TOLD."""
        words, tree = self.words, self.words.sentence
        up = None if tree is None else _relation(tree, query, key)
        down = None if tree is None else _relation(tree, key, query)
        same, punctuation = bool(self._marks.same[query, key]), bool(self._marks.punctuation[key])
        return words.forms[query], words.forms[key], same, punctuation, up, down


def _relation(tree: Sentence, dependent: int, head: int) -> str | None:
    """How one word depends on another: by its relation, or by a derived one."""
    above = tree.heads[dependent]
    if above == head:
        return tree.relations[dependent]
    if above >= 0 and tree.heads[above] == head:
        return BEYOND.get(tree.relations[dependent].partition(":")[0])
    return None


def ranked(table: pyarrow.Table, most: int) -> pyarrow.Table:
    """Each list of each head in its order, cut: the strongest first, by lot the smallest numbers."""
    keys = ("list", "cell", "order", "weight", "document", "window", "query")
    table = table.sort_by([(key, "descending" if key == "weight" else "ascending") for key in keys])
    groups = table["list"].to_numpy().astype(np.int64) * (1 << 32) + table["cell"].to_numpy()
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    rank = np.arange(len(groups)) - np.repeat(starts, np.diff(np.append(starts, len(groups))))
    limit = np.where(table["list"].to_numpy() == LOT, DRAWN, most)
    return table.filter(pyarrow.array(rank < limit))


def merged(tables: Iterable[pyarrow.Table], documents: Sequence[int], most: int) -> pyarrow.Table:
    """The lists of all parts as one, documents numbered over the corpus. At most two lists are in memory."""
    whole: pyarrow.Table | None = None
    before = 0
    for table, count in zip(tables, documents, strict=True):
        at = table.schema.get_field_index("document")
        numbers = pyarrow.array(table["document"].to_numpy().astype(np.int32) + np.int32(before))
        table = table.set_column(at, "document", numbers).replace_schema_metadata(None)
        whole = ranked(table if whole is None else pyarrow.concat_tables([whole, table]), most)
        before += count
    assert whole is not None
    return whole
