"""Scores between the words of a text, of every head, some words at a time: for headscope.atlas.pair_heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from headscope.attention.scores import scores, weights
from headscope.errors import UnsupportedError

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.results.head_values import Head
    from headscope.traces import LayerRecord, Trace

CELLS = 1 << 21
"""Most scores of a tile, of all heads together: 16 MiB."""


class WordTokens:
    """The words of a trace that have tokens, and those tokens."""

    def __init__(self, trace: Trace, count: int) -> None:
        if trace.keys is not trace.queries:
            raise UnsupportedError(
                "queries and keys are different sequences, and a pair is of one",
                where="pair_heads",
                advice="pass an encoder's model",
            )
        of_token = np.array([-1 if word is None else word for word in trace.words])
        sizes = np.bincount(of_token[of_token >= 0], minlength=count)
        self.kept = np.flatnonzero(sizes)
        """The words with tokens, by their numbers in the document."""
        self.tokens = np.argsort(of_token, kind="stable")[np.count_nonzero(of_token < 0) :]
        """(tokens,), the words' tokens, word by word."""
        self.ends = np.concatenate([[0], np.cumsum(sizes[self.kept])])

    def of(self, group: slice) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " words"]]:
        """The tokens of some words, and where each word's begin among them."""
        first = self.ends[group.start]
        return self.tokens[first : self.ends[group.stop]], self.ends[group] - first


def heads_of(trace: Trace) -> Iterator[Head]:
    """Each head's layer and number, layer by layer."""
    for layer in trace.numbers:
        for head in trace.head_numbers(layer):
            yield layer, head


def word_scores(
    trace: Trace, words: WordTokens, directed: bool
) -> Iterator[tuple[int, Float[np.ndarray, "heads n words"]]]:
    """The scores of some words with all words, of all heads, and the first of those words."""
    count = len(words.kept)
    heads = sum(len(record.q) for record in trace.layers)
    step, everything = max(1, CELLS // max(1, heads * len(trace))), slice(0, count)
    groups = [slice(first, min(first + step, count)) for first in range(0, count, step)]

    def tile(group: slice) -> Float[np.ndarray, "heads n words"]:
        return np.concatenate([_between(record, words, group, everything) for record in trace.layers])

    if directed:
        yield from ((group.start, tile(group)) for group in groups)
        return
    sums = np.zeros((heads, count))
    for group in groups:
        part = tile(group)
        sums[:, group] += part.sum(-1)
        sums += part.sum(1)
    with np.errstate(invalid="ignore"):
        shares = sums / sums.sum(-1, keepdims=True)
    for group in groups:
        seen = np.concatenate([_between(record, words, everything, group) for record in trace.layers])
        yield group.start, tile(group) + seen.swapaxes(1, 2) - sums[:, group, None] * shares[:, None]


def _between(
    record: LayerRecord, words: WordTokens, looking: slice, seen: slice
) -> Float[np.ndarray, "heads looking seen"]:
    """The weights of some words on some words."""
    (rows, first), (columns, starts) = words.of(looking), words.of(seen)
    tile = weights(
        scores(
            record.q[:, rows],
            record.k[:, columns],
            scale=record.scale,
            mask=record.mask,
            terms=record.terms,
            rows=rows,
            columns=columns,
            sizes=(record.q.shape[1], record.k.shape[1]),
        ),
        record.lse[:, rows],
    )
    sums = np.add.reduceat(tile.astype(np.float64), starts, axis=2)
    sizes = np.diff(np.append(first, len(rows)))
    return np.add.reduceat(sums, first, axis=1) / sizes[:, None]


def candidates(
    kept: Int[np.ndarray, " words"], first: int, n: int, apart: int, directed: bool
) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
    """The pairs that may be predicted of n words from the first on: rows among these n, and columns among all words.

    Args:
        kept: the words' numbers in the document.
        first: of those n.
        n: how many.
        apart: the fewest words from one to the other.
        directed: False for pairs whose second word comes later.
    """
    offset = kept - kept[first : first + n, None]
    rows, columns = np.nonzero(abs(offset) >= apart if directed else offset >= apart)
    return rows, columns


class Highest:
    """The highest scores of each row so far, and where they stand."""

    def __init__(self, rows: int, count: int) -> None:
        self.count = count
        self.values = np.zeros((rows, 0))
        self.places = np.zeros((rows, 0), dtype=np.int64)

    def take(self, values: Float[np.ndarray, "rows n"], places: Int[np.ndarray, " n"]) -> None:
        """Keep the highest of these and those before, the highest first."""
        values = np.concatenate([self.values, np.nan_to_num(values, nan=-np.inf)], 1)
        places = np.concatenate([self.places, np.broadcast_to(places, (len(values), len(places)))], 1)
        if values.shape[1] > 2 * self.count:
            near = np.argpartition(-values, self.count, axis=1)[:, : self.count]
            values, places = np.take_along_axis(values, near, 1), np.take_along_axis(places, near, 1)
        order = np.argsort(-values, axis=1, kind="stable")[:, : self.count]
        self.values, self.places = np.take_along_axis(values, order, 1), np.take_along_axis(places, order, 1)
