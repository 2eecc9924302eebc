"""Examples as lines: the words around each pair, and what the word that looks gives to every one of them.

Weights are not kept while a survey runs. At the end the windows of the chosen examples are run once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow
import torch

from headscope.atlas.store import read_beside
from headscope.atlas.words import Words
from headscope.attention.scores import softmax_rows
from headscope.live.calls import Call, Consumer, Forward
from headscope.live.plan.stacks import Stack
from headscope.results.schemas import LineRow, table_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

AROUND = 30
"""Words before the first word of a pair, after the second, and beside both in between."""


@dataclass(frozen=True, eq=False)
class Reading:
    """A window to run again, and what to read in it.

    Attributes:
        place: document and window, as the texts beside the parts number them.
        ids, segments: (tokens,).
        sep: (tokens,), True for [SEP].
        words: the window's.
        wanted: (layer, which of its heads, query word) of each row to read.
    """

    place: tuple[int, int]
    ids: Int[np.ndarray, " tokens"]
    segments: Int[np.ndarray, " tokens"]
    sep: Bool[np.ndarray, " tokens"]
    words: Words
    wanted: tuple[tuple[int, int, int], ...]

    def token(self, word: int) -> int:
        """The token at which a word begins."""
        return int(np.argmax(self.words.of_token == word))


@dataclass(frozen=True, eq=False)
class Read:
    """Readings of one window.

    Attributes:
        rows: for each of `Reading.wanted` the weights, (3 + words,): on the first token if it is special, on [SEP],
            on all special tokens, then on each word.
        first_token, sep_token: their names; None where the window has none.
        text: a text that the tokenizer turns into the window's tokens; None if its words with spaces are not one.
    """

    rows: tuple[Float[np.ndarray, " places"], ...]
    first_token: str | None
    sep_token: str | None
    text: str | None


class RowReader(Consumer):
    """The consumer that reads some rows of the heads of one window."""

    def __init__(self, reading: Reading) -> None:
        self.rows: dict[tuple[int, int, int], np.ndarray] = {}
        self._words = reading.words
        self._wanted: dict[int, list[tuple[int, int]]] = {}
        for layer, head, query in reading.wanted:
            self._wanted.setdefault(layer, []).append((head, query))
        special = reading.words.of_token < 0
        first = np.zeros(len(special), dtype=bool)
        first[0] = special[0]
        self._places = torch.from_numpy(np.stack([first, reading.sep, special], -1)).float()

    def wants(self, stack: Stack, layer: int) -> bool:
        """Return True for layers with a wanted row."""
        return layer in self._wanted

    def take(self, forward: Forward, call: Call) -> None:
        """Read one layer's rows."""
        wide = torch.promote_types(call.q.dtype, torch.float32)
        q, k = call.q[0].to(wide), call.k[0].to(wide)
        to = torch.cat([self._places, self._words.membership], 1).to(q)
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
            weights = (rows.weights.mean(1) @ to).float().cpu().numpy()
            for head, wanted in self._wanted[call.layer]:
                if wanted == query:
                    self.rows[call.layer, head, query] = weights[head]


def lines_table(
    folder: Path,
    documents: Sequence[int],
    heads: Sequence[tuple[int, int]],
    examples: pyarrow.Table,
    run: Callable[[Iterator[Reading]], Iterator[tuple[Reading, Read]]],
) -> pyarrow.Table:
    """`survey.lines`: a row for each row of the examples, in their order.

    Args:
        folder: the survey's.
        documents: how many documents each part has.
        heads: (layer, head) of every head.
        examples: `survey.examples.table`.
        run: runs the windows again.
    """
    numbers: dict[int, list[int]] = {}
    for layer, head in heads:
        numbers.setdefault(layer, []).append(head)
    rows = examples.to_pylist()
    wanted: dict[tuple[str, int], dict[tuple[int, int, int], None]] = {}
    for row in rows:
        place = (row["layer"], numbers[row["layer"]].index(row["head"]), row["query"])
        wanted.setdefault((row["document"], row["window"]), {})[place] = None
    found: dict[tuple[str, int], tuple[Reading, Read]] = {}
    names: dict[tuple[int, int], tuple[str, int]] = {}

    def todo() -> Iterator[Reading]:
        for part, table in enumerate(read_beside(folder, "texts", len(documents))):
            for text in table.to_pylist():
                name = (text["name"], text["window"])
                if name not in wanted:
                    continue
                place = (sum(documents[:part]) + text["document"], text["window"])
                names[place] = name
                yield Reading(
                    place,
                    np.array(text["ids"], dtype=np.int64),
                    np.array(text["segments"], dtype=np.int64),
                    np.array(text["sep"], dtype=bool),
                    Words(np.array(text["of_token"], dtype=np.int64), tuple(text["words"])),
                    tuple(wanted[name]),
                )

    for reading, read in run(todo()):
        found[names[reading.place]] = reading, read
    lines = []
    for row in rows:
        reading, read = found[row["document"], row["window"]]
        at = reading.wanted.index((row["layer"], numbers[row["layer"]].index(row["head"]), row["query"]))
        first, sep, special, *weights = read.rows[at].tolist()
        shown = _shown(row["query"], row["key"], len(reading.words))
        line = LineRow(
            **{name: row[name] for name in ("layer", "head", "kind", "rank")},
            first=first,
            sep=sep,
            special=special,
            first_token=read.first_token,
            sep_token=read.sep_token,
            numbers=shown,
            words=[reading.words.forms[word] for word in shown],
            weights=[weights[word] for word in shown],
            query_token=reading.token(row["query"]),
            key_token=reading.token(row["key"]),
            ids=reading.ids.tolist(),
            text=read.text,
        )
        lines.append(line)
    return table_of(LineRow, lines)


def _shown(query: int, key: int, words: int) -> list[int]:
    """The words of a line: AROUND around both words of a pair, all in between if those meet."""
    near = {word for place in (query, key) for word in range(place - AROUND, place + AROUND + 1)}
    return sorted(word for word in near if 0 <= word < words)
