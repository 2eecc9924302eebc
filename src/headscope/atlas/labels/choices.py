"""Choices of words among the others, above an even share of their tokens; bounded lists of them, whatever the parts.

From word i to word j goes the weight w_ij, W_i to all others together. By an even share j would get b_ij of W_i: its
tokens over those of all others that i sees. The choice of i is the word with the largest excess w_ij - W_i b_ij; its
strength is that excess, and 0 unless w_ij is FACTOR times the even share.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import torch

from headscope.atlas.store import sealed_parquet

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.atlas.shapes import Strongest
    from headscope.atlas.words import Tile, Words
    from headscope.heads.windows import Window

FACTOR = 2.0
"""Even shares that a choice must have, to have any strength."""

STRONGEST = 300
"""Pairs that each half of the documents keeps of each head."""

TWICE = 2
"""Number of times that a pair of forms may be among them."""

SAMPLE_WORDS, SAMPLE_CELLS = 2000, 1 << 18
"""Windows of each half are drawn until so many words look, or have so many words to look at."""

RANDOM, DRAWN = 2, 6
"""The list of queries drawn by lot, the same for every head, beside those of documents with even (0) and odd (1)
numbers; and how many queries it has."""


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


class Best:
    """The strongest pairs of one layer's heads and one half, no pair of forms more than TWICE."""

    def __init__(self, heads: int) -> None:
        self.strength = np.zeros((heads, 0))
        self.fields = np.zeros((6, heads, 0))
        self._new: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, strength: np.ndarray, fields: np.ndarray) -> None:
        """Pairs of a window: (heads, words); document, window, query, key, forms and weight of each."""
        self._new.append((strength, fields))

    def flush(self) -> None:
        """Keep the strongest of what was added."""
        if not self._new:
            return
        strength = np.concatenate([self.strength, *(strength for strength, _ in self._new)], 1)
        fields = np.concatenate([self.fields, *(fields for _, fields in self._new)], 2)
        rows = [self._kept(strength[head], fields[:, head]) for head in range(len(strength))]
        width = max(map(len, rows), default=0)
        self.strength = np.zeros((len(rows), width))
        self.fields = np.zeros((len(fields), len(rows), width))
        for head, row in enumerate(rows):
            self.strength[head, : len(row)] = strength[head, row]
            self.fields[:, head, : len(row)] = fields[:, head, row]
        self._new = []

    @staticmethod
    def _kept(strength: Float[np.ndarray, " n"], fields: Float[np.ndarray, "fields n"]) -> Int[np.ndarray, " kept"]:
        some = np.flatnonzero(strength > 0)
        order = some[np.lexsort((fields[2, some], fields[1, some], fields[0, some], -strength[some]))]
        return order[capped(fields[4, order].tolist())][:STRONGEST]


def capped(forms: Sequence[Any]) -> list[int]:
    """Places of those that are among the first TWICE of their kind."""
    counts: dict[Any, int] = {}
    kept = []
    for at, form in enumerate(forms):
        counts[form] = counts.get(form, 0) + 1
        if counts[form] <= TWICE:
            kept.append(at)
    return kept


def drawn_windows(windows: Iterable[tuple[int, Any, int, int]]) -> list[Any]:
    """Those with the smallest numbers, until they have enough words: (number, window, words that look, words)."""
    looking = cells = 0
    drawn = []
    for _, window, looks, words in sorted(windows, key=lambda row: row[0]):
        if looking >= SAMPLE_WORDS or cells >= SAMPLE_CELLS:
            break
        drawn.append(window)
        looking, cells = looking + looks, cells + looks * words
    return drawn


def lot(*name: object) -> int:
    """A number as good as drawn by lot."""
    return int.from_bytes(hashlib.sha256("\0".join(map(str, name)).encode()).digest()[:8], "big") >> 1


class ChoiceLists:
    """The lists of a part.

    Args:
        windows: all of the part's windows.
        names: its documents' names.
        cells: heads of the model.
    """

    def __init__(self, windows: Sequence[Window], names: Sequence[str], cells: int) -> None:
        self._names = names
        self._windows = {(window.document, window.number): window for window in windows}
        self._half = {document: at % 2 for at, document in enumerate(sorted({w.document for w in windows}))}
        self._best: dict[int, tuple[Best, Best]] = {}
        self._forms: dict[str, int] = {}
        self._named: dict[tuple[int, int], np.ndarray] = {}
        self._random: list[tuple[float, ...]] = []
        self._lot: dict[tuple[int, int], list[tuple[int, int]]] = {}
        orders = (
            (lot(names[window.document], window.number, query), window.document, window.number, query)
            for window in windows
            for query in (np.flatnonzero(window.words.looks).tolist() if (window.words.sizes > 0).sum() > 1 else ())
        )
        for order, document, number, query in heapq.nsmallest(DRAWN, orders):
            self._lot.setdefault((document, number), []).append((query, order))
        self._sample = [
            place
            for half in (0, 1)
            for place in drawn_windows(
                (lot(names[at], number), (at, number), int(window.words.looks.sum()), len(window.words))
                for (at, number), window in self._windows.items()
                if self._half[at] == half
            )
        ]
        self._chosen = {
            place: np.zeros((cells, int(self._windows[place].words.looks.sum())), dtype=np.int32)
            for place in self._sample
        }
        self.strong = np.zeros((2, cells), dtype=np.int64)
        self.reach = np.zeros((cells, 2), dtype=np.int64)

    def take(self, window: Window, choices: Choices, strongest: Strongest, cells: slice) -> None:
        """One layer of one window."""
        words, place = window.words, (window.document, window.number)
        half = self._half[window.document]
        looking = np.flatnonzero(words.looks)
        keys, strength = choices.looks_at[:, looking], choices.strength[:, looking]
        if place not in self._named:
            folded = [form.casefold() for form in words.forms]
            self._named[place] = np.array([self._forms.setdefault(name, len(self._forms)) for name in folded])
        names = self._named[place]
        lists = self._best.setdefault(cells.start, (Best(len(keys)), Best(len(keys))))
        forms = names[looking] * float(1 << 24) + names[keys]
        about = [np.broadcast_to(column, keys.shape) for column in (*place, looking)]
        fields = np.stack([*about, keys, forms, choices.weight[:, looking]])
        lists[half].add(strength, fields)
        self.strong[half, cells] += (strength > 0).sum(1)
        self.reach[cells] = np.maximum(self.reach[cells], choices.reach)
        if place in self._chosen:
            self._chosen[place][cells] = keys
        for query, order in self._lot.get(place, ()):
            for head in np.flatnonzero(strongest.looks_at[:, query] >= 0).tolist():
                key, weight = int(strongest.looks_at[head, query]), float(strongest.weight[head, query])
                self._random.append((RANDOM, cells.start + head, order, *place, query, key, weight, weight))

    def flush(self) -> None:
        """A batch is over."""
        for lists in self._best.values():
            for best in lists:
                best.flush()
        self._named = {}

    def files(self, record: dict[str, Any], renumbered: dict[int, int]) -> dict[str, bytes]:
        """`pairs`: the lists; `choices`: of the windows drawn; `texts`: the words of the windows of both."""
        rows = list(self._random)
        for start, lists in self._best.items():
            for half, best in enumerate(lists):
                for head, at in np.argwhere(best.strength > 0).tolist():
                    document, number, query, key, _, weight = best.fields[:, head, at].tolist()
                    strength = float(best.strength[head, at])
                    rows.append((half, start + head, 0, document, number, query, key, strength, weight))
        columns = {
            name: pyarrow.array([kind(row[at]) for row in rows], arrow)
            for at, (name, kind, arrow) in enumerate(COLUMNS)
        }
        columns["document"] = pyarrow.array([renumbered[int(row[3])] for row in rows], pyarrow.int32())
        words = [self._windows[int(row[3]), int(row[4])].words for row in rows]
        for name, at in (("query_word", 5), ("key_word", 6)):
            forms = [of.forms[int(row[at])] for of, row in zip(words, rows, strict=True)]
            columns[name] = pyarrow.array(forms, pyarrow.string())
        places = sorted({(int(row[3]), int(row[4])) for row in rows} | set(self._sample))
        made = {
            "pairs": pyarrow.table(columns),
            "choices": self._choices(renumbered),
            "texts": self._texts(places, renumbered),
        }
        return {kind: sealed_parquet(table, record) for kind, table in made.items()}

    def _choices(self, renumbered: dict[int, int]) -> pyarrow.Table:
        places = self._sample
        return pyarrow.table(
            {
                "document": pyarrow.array([renumbered[document] for document, _ in places], pyarrow.int32()),
                "window": pyarrow.array([number for _, number in places], pyarrow.int32()),
                "order": pyarrow.array([lot(self._names[at], number) for at, number in places], pyarrow.int64()),
                "keys": pyarrow.array([self._chosen[at].ravel() for at in places], pyarrow.list_(pyarrow.int32())),
            }
        )

    def _texts(self, places: list[tuple[int, int]], renumbered: dict[int, int]) -> pyarrow.Table:
        windows = [self._windows[place] for place in places]
        trees = [window.words.sentence for window in windows]
        numbers: dict[str, list[list[int]]] = {
            "ids": [window.ids.tolist() for window in windows],
            "segments": [window.segments.tolist() for window in windows],
            "of_token": [window.words.of_token.tolist() for window in windows],
            "sep": [window.roles.sep.astype(int).tolist() for window in windows],
            "looks": [np.flatnonzero(window.words.looks).tolist() for window in windows],
            "heads": [[] if tree is None else list(tree.heads) for tree in trees],
        }
        texts = {
            "words": [list(window.words.forms) for window in windows],
            "tags": [[] if tree is None else list(tree.tags) for tree in trees],
            "relations": [[] if tree is None else list(tree.relations) for tree in trees],
        }
        return pyarrow.table(
            {
                "document": pyarrow.array([renumbered[document] for document, _ in places], pyarrow.int32()),
                "window": pyarrow.array([number for _, number in places], pyarrow.int32()),
                "name": pyarrow.array([self._names[document] for document, _ in places], pyarrow.string()),
                **{name: pyarrow.array(rows, pyarrow.list_(pyarrow.int32())) for name, rows in numbers.items()},
                **{name: pyarrow.array(rows, pyarrow.list_(pyarrow.string())) for name, rows in texts.items()},
            }
        )


COLUMNS = (
    ("list", int, pyarrow.int8()),
    ("cell", int, pyarrow.int32()),
    ("order", int, pyarrow.int64()),
    ("document", int, pyarrow.int32()),
    ("window", int, pyarrow.int32()),
    ("query", int, pyarrow.int32()),
    ("key", int, pyarrow.int32()),
    ("strength", float, pyarrow.float32()),
    ("weight", float, pyarrow.float32()),
)


def ranked(table: pyarrow.Table) -> pyarrow.Table:
    """Each list of each head in its order, cut: the strongest first, by lot the smallest numbers."""
    keys = ("list", "cell", "order", "strength", "document", "window", "query")
    table = table.sort_by([(key, "descending" if key == "strength" else "ascending") for key in keys])
    kept: list[int] = []
    lists: dict[tuple[int, int], list[int]] = {}
    for at, place in enumerate(zip(table["list"].to_pylist(), table["cell"].to_pylist(), strict=True)):
        lists.setdefault(place, []).append(at)
    forms = [
        (query.casefold(), key.casefold())
        for query, key in zip(table["query_word"].to_pylist(), table["key_word"].to_pylist(), strict=True)
    ]
    for (which, _), rows in lists.items():
        kept += rows[:DRAWN] if which == RANDOM else [rows[at] for at in capped([forms[at] for at in rows])][:STRONGEST]
    return table.take(pyarrow.array(kept, pyarrow.int64()))


def merged(tables: Iterable[pyarrow.Table], documents: Sequence[int]) -> pyarrow.Table:
    """The lists of all parts as one, documents numbered over the corpus. At most two lists are in memory."""
    whole: pyarrow.Table | None = None
    before = 0
    for table, count in zip(tables, documents, strict=True):
        table = renumbered_by(table, before).replace_schema_metadata(None)
        whole = ranked(table if whole is None else pyarrow.concat_tables([whole, table]))
        before += count
    assert whole is not None
    return whole


def renumbered_by(table: pyarrow.Table, before: int) -> pyarrow.Table:
    """Documents numbered over the corpus, and lists of halves by the parity of those numbers."""
    numbers = pyarrow.array(table["document"].to_numpy().astype(np.int32) + np.int32(before))
    table = table.set_column(table.schema.get_field_index("document"), "document", numbers)
    if before % 2 and "list" in table.column_names:
        lists = table["list"].to_numpy()
        swapped = pyarrow.array(np.where(lists == RANDOM, lists, 1 - lists).astype(np.int8))
        table = table.set_column(table.schema.get_field_index("list"), "list", swapped)
    return table
