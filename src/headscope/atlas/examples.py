"""Examples: pairs of words that heads link, the most telling of the sample and some drawn by lot; with their lines.

A line has the words around a pair, and what the word that looks gives to every one of them. Weights are not kept while
the sample runs: the windows of the chosen examples are run once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import torch

from headscope.atlas.job import Batch, Job
from headscope.atlas.labels.evidence import RANDOM, TWICE
from headscope.attention.scores import softmax_rows
from headscope.errors import InputError
from headscope.heads.windows import Window
from headscope.live.calls import Call, Consumer, Forward
from headscope.live.plan.stacks import Stack
from headscope.results.schemas import Example, LineRow, table_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.atlas.observe import Observed
    from headscope.results.head_values import Head

AROUND = 8
"""Words of text before the first word of a pair and after the second."""

BETWEEN = 24
"""Words between the two of which all are shown; of more, the middle is left out."""

BESIDE = 30
"""Words of a line before the first word of a pair, after the second, and beside both in between."""


class Examples(dict["Head", tuple[Example, ...]]):
    """`examples[layer, head]`: the best ones first, then those drawn by lot."""

    def __init__(self, table: pyarrow.Table) -> None:
        super().__init__()
        for row in table.to_pylist():
            place = row["layer"], row["head"]
            self[place] = (*self.get(place, ()), Example(**row))

    def __repr__(self) -> str:
        return f"{sum(map(len, self.values())):,} examples of {len(self)} heads: examples[layer, head]"

    def __missing__(self, place: Head) -> tuple[Example, ...]:
        advice = "name a layer and a head of the model, both from 0"
        raise InputError(f"there are no examples of {place!r}", where="examples[layer, head]", advice=advice)


def examples_of(
    job: Job, observed: Observed, pairs: pyarrow.Table, explained: Sequence[int]
) -> Iterator[tuple[str, pyarrow.Table]]:
    """`survey.examples` and, of each of them, `survey.lines`; each table under its name.

    Args:
        job, observed: what the heads do over the sample.
        pairs: see `pairs_of`.
        explained: of each of the pairs, the number of the clause that explains it, from 1; otherwise 0.
    """
    chosen = _chosen(job, observed, pairs, explained)
    yield "examples", table_of(Example, [example for example, _ in chosen])
    yield "lines", _lines(job, observed, chosen)


def _chosen(job: Job, observed: Observed, pairs: pyarrow.Table, explained: Sequence[int]) -> list[tuple[Example, int]]:
    """The examples of all heads, with their texts, each with the place of its window among those observed."""
    lists: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row, clause in zip(pairs.to_pylist(), explained, strict=True):
        lists.setdefault((row["cell"], row["list"] == RANDOM), []).append({**row, "clause": clause})
    chosen = []
    for (cell, by_lot), rows in sorted(lists.items(), key=lambda item: item[0]):
        if by_lot:
            chosen += [(cell, "random", rank, row) for rank, row in enumerate(rows)]
            continue
        rows.sort(key=lambda row: (-row["strength"], row["window"], row["query"]))
        for kind, some in _kinds(rows, job.settings.examples).items():
            chosen += [(cell, kind, rank, row) for rank, row in enumerate(some)]
    found = []
    for cell, kind, rank, row in chosen:
        query, key, window = row["query"], row["key"], observed.windows[row["window"]]
        around = _around(window.words.forms, *sorted((query, key)))
        name, arcs = observed.names[window.document], _relations(window, query, key)
        pair = (window.number, query, key, row["query_word"], row["key_word"])
        example = Example(*job.heads[cell], kind, rank, row["weight"], name, *pair, *around, *arcs)
        found.append((example, row["window"]))
    return found


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
    windows: set[int] = set()
    forms: Counter[tuple[str, str]] = Counter()
    kept: list[dict[str, Any]] = []
    for row in rows:
        place, pair = row["window"], (row["query_word"].casefold(), row["key_word"].casefold())
        if len(kept) < most and place not in windows and forms[pair] < TWICE:
            windows.add(place)
            forms[pair] += 1
            kept.append(row)
    return kept


def _relations(window: Window, query: int, key: int) -> tuple[str | None, str | None]:
    """The query's relation if the key is its head, and the key's if the query is."""
    tree = window.words.sentence
    if tree is None:
        return None, None
    up, down = tree.heads[query] == key, tree.heads[key] == query
    return tree.relations[query] if up else None, tree.relations[key] if down else None


def _around(words: Sequence[str], first: int, second: int) -> tuple[str, str, str]:
    """The text before, between and after two words."""
    before = words[max(0, first - AROUND) : first]
    between = list(words[first + 1 : second])
    after = words[second + 1 : second + 1 + AROUND]
    if len(between) > BETWEEN:
        half = BETWEEN // 2
        between = [*between[:half], "…", *between[-half:]]
    return " ".join(before), " ".join(between), " ".join(after)


@dataclass(frozen=True, eq=False)
class Read:
    """Readings of one window.

    Attributes:
        rows: for each of `Batch.rows` the weights, (3 + words,): on the first token if it is special, on [SEP],
            on all special tokens, then on each word.
        first_token, sep_token: their names; None where the window has none.
        text: a text that the tokenizer turns into the window's tokens; None if its words with spaces are not one.
    """

    rows: tuple[Float[np.ndarray, " places"], ...]
    first_token: str | None
    sep_token: str | None
    text: str | None


class RowReader(Consumer):
    """The consumer that reads some rows of the heads of one window: layer, which of its heads, query word."""

    def __init__(self, window: Window, wanted: Sequence[tuple[int, int, int]]) -> None:
        self.rows: dict[tuple[int, ...], np.ndarray] = {}
        words = self._words = window.words
        self._wanted: dict[int, list[tuple[int, int]]] = {}
        for layer, head, query in wanted:
            self._wanted.setdefault(layer, []).append((head, query))
        special = words.of_token < 0
        first = np.zeros(len(special), dtype=bool)
        first[0] = special[0]
        self._places = torch.from_numpy(np.stack([first, window.roles.sep, special], -1)).float()

    def wants(self, stack: Stack, layer: int) -> bool:
        """Return True for layers with a wanted row."""
        return layer in self._wanted

    def take(self, forward: Forward, call: Call) -> None:
        """Read one layer's rows."""
        wide = torch.promote_types(call.q.dtype, torch.float32)
        q, k = call.q[0].to(wide), call.k[0].to(wide)
        places = self._places.to(q)
        for query in sorted({query for _, query in self._wanted[call.layer]}):
            tokens = np.flatnonzero(self._words.of_token == query)
            (rows,) = softmax_rows(
                q,
                k,
                scale=call.scale,
                mask=call.mask(0),
                terms=call.terms(0),
                rows=tokens,
                cells=q.shape[0] * q.shape[1] ** 2,
            )
            mean = rows.weights.mean(1, keepdim=True)
            weights = torch.cat([mean @ places, self._words.sums(mean)], -1)[:, 0].float().cpu().numpy()
            for head, wanted in self._wanted[call.layer]:
                if wanted == query:
                    self.rows[call.layer, head, query] = weights[head]


def _lines(job: Job, observed: Observed, pairs: Sequence[tuple[Example, int]]) -> pyarrow.Table:
    """`survey.lines`: a row for each of the examples, in their order. Their windows run again."""
    within = {head: at for _, of in groupby(job.heads, key=lambda head: head[0]) for at, head in enumerate(of)}
    rows = [(example.layer, within[example.layer, example.head], example.query) for example, _ in pairs]
    wanted: dict[int, dict[tuple[int, int, int], None]] = {}
    for (_, place), row in zip(pairs, rows, strict=True):
        wanted.setdefault(place, {})[row] = None
    todo = [Batch(place, (observed.windows[place],), rows=tuple(some)) for place, some in wanted.items()]
    found = {batch.at: read for batch, read in job.workers.each("read", todo)}
    lines = []
    for (example, place), row in zip(pairs, rows, strict=True):
        weights = found[place].rows[list(wanted[place]).index(row)].tolist()
        lines.append(_line(example, observed.windows[place], found[place], weights))
    return table_of(LineRow, lines)


def _line(example: Example, window: Window, read: Read, weights: list[float]) -> LineRow:
    first, sep, special, *weights = weights
    query, key, words = example.query, example.key, window.words
    near = {word for place in (query, key) for word in range(place - BESIDE, place + BESIDE + 1)}
    shown = sorted(word for word in near if 0 <= word < len(words))
    return LineRow(
        example.layer,
        example.head,
        example.kind,
        example.rank,
        first=first,
        sep=sep,
        special=special,
        first_token=read.first_token,
        sep_token=read.sep_token,
        numbers=shown,
        words=[words.forms[word] for word in shown],
        weights=[weights[word] for word in shown],
        query_token=int(np.argmax(words.of_token == query)),
        key_token=int(np.argmax(words.of_token == key)),
        ids=window.ids.tolist(),
        text=read.text,
    )
