"""Examples: pairs of words that heads link, with their text. The most telling of the corpus, and some drawn by lot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow

from headscope.atlas.labels.choices import RANDOM, TWICE
from headscope.atlas.store import check_columns
from headscope.errors import InputError
from headscope.results.schemas import Example, columns, table_of

if TYPE_CHECKING:
    from headscope.atlas.labels.verdicts import Labels

AROUND = 8
"""Words of text before the first word of a pair and after the second."""

BETWEEN = 24
"""Words between the two of which all are shown; of more, the middle is left out."""


class Examples(Mapping[tuple[int, int], tuple[Example, ...]]):
    """`examples[layer, head]`: the best ones first, then those drawn by lot."""

    def __init__(self, table: pyarrow.Table) -> None:
        check_columns(table, columns(Example), ("up", "down"))
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


def examples_table(heads: Sequence[tuple[int, int]], pairs: pyarrow.Table, labels: Labels, most: int) -> pyarrow.Table:
    """The examples of all heads, with their texts.

    Args:
        heads: (layer, head) of every head.
        pairs: the lists of all parts, merged.
        labels: which of the pairs they explain, and the texts.
        most: how many best ones of each head.
    """
    lists: dict[tuple[int, int], list[dict[str, Any]]] = {}
    clauses = labels.explained.tolist()
    for row, clause in zip(pairs.to_pylist(), clauses, strict=True):
        lists.setdefault((row["cell"], row["list"] == RANDOM), []).append({**row, "clause": clause})
    chosen = []
    for (cell, by_lot), rows in sorted(lists.items(), key=lambda item: item[0]):
        if by_lot:
            chosen += [(heads[cell], "random", rank, row) for rank, row in enumerate(rows)]
            continue
        rows.sort(key=lambda row: (-row["strength"], row["document"], row["window"], row["query"]))
        for kind, some in _kinds(rows, most).items():
            chosen += [(heads[cell], kind, rank, row) for rank, row in enumerate(some)]
    found = []
    for head, kind, rank, row in chosen:
        place = (row["document"], row["window"])
        name, words = labels.texts.text(place)
        query, key = row["query"], row["key"]
        around = _around(words, *sorted((query, key)))
        arcs = _relations(*labels.texts.tree(place), query, key)
        pair = (row["window"], query, key, row["query_word"], row["key_word"])
        found.append(Example(*head, kind, rank, row["weight"], name, *pair, *around, *arcs))
    return table_of(Example, found)


def _kinds(rows: list[dict[str, Any]], most: int) -> dict[str, list[dict[str, Any]]]:
    """The strongest pairs of a head that its label explains, or all where it has none; and those that it doesn't."""
    explained = [row for row in rows if row["clause"]]
    if not explained:
        return {"best": _varied(rows, most)}
    count = max(row["clause"] for row in explained)
    of = [[row for row in explained if row["clause"] == clause] for clause in range(1, count + 1)]
    later = [row for some in of[1:] for row in _varied(some, most // count)]
    best = sorted(_varied([*later, *of[0]], most), key=lambda row: -row["strength"])
    rest = [row for row in rows if not row["clause"]]
    return {"best": best, "other": _varied(rest, (most + 1) // 2)}


def _varied(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """The strongest, one of a window, a pair of forms no more than TWICE."""
    windows: set[tuple[int, int]] = set()
    forms: Counter[tuple[str, str]] = Counter()
    kept: list[dict[str, Any]] = []
    for row in rows:
        place, pair = (row["document"], row["window"]), (row["query_word"].casefold(), row["key_word"].casefold())
        if len(kept) < most and place not in windows and forms[pair] < TWICE:
            windows.add(place)
            forms[pair] += 1
            kept.append(row)
    return kept


def _relations(heads: Sequence[int], relations: Sequence[str], query: int, key: int) -> tuple[str | None, str | None]:
    """The query's relation if the key is its head, and the key's if the query is."""
    if not heads:
        return None, None
    return relations[query] if heads[query] == key else None, relations[key] if heads[key] == query else None


def _around(words: list[str], first: int, second: int) -> tuple[str, str, str]:
    """The text before, between and after two words."""
    before = words[max(0, first - AROUND) : first]
    between = words[first + 1 : second]
    after = words[second + 1 : second + 1 + AROUND]
    if len(between) > BETWEEN:
        half = BETWEEN // 2
        between = [*between[:half], "…", *between[-half:]]
    return " ".join(before), " ".join(between), " ".join(after)
