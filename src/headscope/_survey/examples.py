"""What heads look at, in pairs of words with their text: the most telling of the corpus, and some drawn by lot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from headscope._survey.beside import read_beside
from headscope._survey.pairs import ALL, FAR, LOT
from headscope._survey.rules import NEIGHBOURS
from headscope.errors import InputError

TWICE = 2
"""How often a word may be the query, or the key, of a head's best examples."""

AROUND = 8
"""Words of text before the first word of a pair and after the second."""

BETWEEN = 24
"""Words between the two of which all are shown; of more, the middle is left out."""

COLUMNS = (
    ("layer", pyarrow.int16()),
    ("head", pyarrow.int16()),
    ("kind", pyarrow.string()),
    ("rank", pyarrow.int32()),
    ("weight", pyarrow.float32()),
    ("document", pyarrow.string()),
    ("window", pyarrow.int32()),
    ("query", pyarrow.int32()),
    ("key", pyarrow.int32()),
    ("query_word", pyarrow.string()),
    ("key_word", pyarrow.string()),
    ("before", pyarrow.string()),
    ("between", pyarrow.string()),
    ("after", pyarrow.string()),
    ("up", pyarrow.string()),
    ("down", pyarrow.string()),
)


@dataclass(frozen=True)
class Example:
    """A word, and the other word that it looks at most.

    Attributes:
        layer, head: whose.
        kind: `best`, or `random` for one that was drawn by lot.
        rank: among its kind, from 0.
        weight: from the word to the other, 0 to 1.
        document: its name.
        window: which of the document's windows, from 0.
        query, key: the word that looks and the one that it looks at, as the window's words count from 0.
        query_word, key_word: both as they stand in the text.
        before, between, after: the text around them, words apart by spaces; ` … ` where some are left out.
        up: the relation of the word that looks, where the other is its head; of a treebank.
        down: the relation of the other, where the word that looks is its head.
    """

    layer: int
    head: int
    kind: str
    rank: int
    weight: float
    document: str
    window: int
    query: int
    key: int
    query_word: str
    key_word: str
    before: str
    between: str
    after: str
    up: str | None = None
    down: str | None = None

    def __str__(self) -> str:
        query, key = f"[{self.query_word}]", f"<{self.key_word}>"
        pair = (query, key) if self.query < self.key else (key, query)
        words = (self.before, pair[0], self.between, pair[1], self.after)
        return f"{self.weight:.2f}  " + " ".join(word for word in words if word)


class Examples(Mapping[tuple[int, int], tuple[Example, ...]]):
    """`examples[layer, head]`: the best ones first, then those drawn by lot."""

    def __init__(self, table: pyarrow.Table) -> None:
        self.table = table
        """All of them."""
        self._of: dict[tuple[int, int], list[Example]] = {}
        for row in table.to_pylist():
            self._of.setdefault((row["layer"], row["head"]), []).append(Example(**row))

    def __getitem__(self, place: tuple[int, int]) -> tuple[Example, ...]:
        if place not in self._of:
            raise InputError(
                f"there are no examples of {place!r}",
                where="examples[layer, head]",
                advice="name a layer and a head of the model, both from 0",
            )
        return tuple(self._of[place])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


def examples_table(
    folder: Path,
    documents: Sequence[int],
    heads: Sequence[tuple[int, int]],
    pairs: pyarrow.Table,
    labels: pyarrow.Table,
    most: int,
) -> pyarrow.Table:
    """The examples of all heads, with their texts."""
    neighbours = [label in NEIGHBOURS for label in labels["label"].to_pylist()]
    lists: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in pairs.to_pylist():
        if row["list"] == LOT or row["list"] == (ALL if neighbours[row["cell"]] else FAR):
            lists.setdefault((row["cell"], 1 if row["list"] == LOT else 0), []).append(row)
    chosen = []
    for (cell, by_lot), rows in sorted(lists.items(), key=lambda item: item[0]):
        for rank, row in enumerate(rows if by_lot else _varied(rows, most)):
            chosen.append((heads[cell], "random" if by_lot else "best", rank, row))
    texts = _texts(folder, documents, {(row["document"], row["window"]) for _, _, _, row in chosen})
    columns: dict[str, list[Any]] = {name: [] for name, _ in COLUMNS}
    for (layer, head), kind, rank, row in chosen:
        name, words = texts[row["document"], row["window"]]
        before, between, after = _around(words, *sorted((row["query"], row["key"])))
        values = {"layer": layer, "head": head, "kind": kind, "rank": rank, "document": name}
        values |= {"before": before, "between": between, "after": after}
        for column, _ in COLUMNS:
            columns[column].append(values[column] if column in values else row[column])
    return pyarrow.table({name: pyarrow.array(columns[name], kind) for name, kind in COLUMNS})


def _varied(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """The strongest, one of a window, no word more than twice on either side."""
    windows: set[tuple[int, int]] = set()
    queries: Counter[str] = Counter()
    keys: Counter[str] = Counter()
    kept = []
    for row in rows:
        place, query, key = (row["document"], row["window"]), row["query_word"].casefold(), row["key_word"].casefold()
        if place in windows or queries[query] == TWICE or keys[key] == TWICE:
            continue
        windows.add(place)
        queries[query] += 1
        keys[key] += 1
        kept.append(row)
        if len(kept) == most:
            break
    return kept


def _texts(
    folder: Path, documents: Sequence[int], wanted: set[tuple[int, int]]
) -> dict[tuple[int, int], tuple[str, list[str]]]:
    """Of some windows the document's name and the words."""
    texts = {}
    before = 0
    for table, count in zip(read_beside(folder, "texts", len(documents)), documents, strict=True):
        numbers = table["document"].to_numpy().astype(np.int64) + before
        windows = table["window"].to_numpy()
        for at, place in enumerate(zip(numbers.tolist(), windows.tolist(), strict=True)):
            if place in wanted:
                texts[place] = (table["name"][at].as_py(), table["words"][at].as_py())
        before += count
    return texts


def _around(words: list[str], first: int, second: int) -> tuple[str, str, str]:
    """The text before, between and after two words."""
    before = words[max(0, first - AROUND) : first]
    between = words[first + 1 : second]
    after = words[second + 1 : second + 1 + AROUND]
    if len(between) > BETWEEN:
        half = BETWEEN // 2
        between = [*between[:half], "…", *between[-half:]]
    return " ".join(before), " ".join(between), " ".join(after)
