"""The words of documents whose pairs somebody has marked, the weights between them, and the folds that choose heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import InputError, UnsupportedError
from headscope.explain.residual import weights_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxtyping import Bool, Float

    from headscope.atlas.pair_files import Marked
    from headscope.model import Model
    from headscope.results.head_values import Head
    from headscope.traces import LayerRecord, Trace

FOLDS = 5


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
        self.sizes = sizes[self.kept]
        """(words,), how many tokens each has."""


def word_weights(record: LayerRecord, words: WordTokens) -> Iterator[Float[np.ndarray, "words words"]]:
    """Yield each head's weights between words: sums over the tokens that are seen, means over those that look."""
    starts = np.cumsum(words.sizes) - words.sizes
    for weights in weights_of(record, words.tokens, words.tokens):  # head by head, in fp64
        sums = np.add.reduceat(weights.astype(np.float64), starts, axis=1)
        yield np.add.reduceat(sums, starts, axis=0) / words.sizes[:, None]


def heads_of(trace: Trace) -> list[Head]:
    """Each head's layer and number, layer by layer."""
    return [(layer, head) for layer in trace.numbers for head in trace.head_numbers(layer)]


def read_words(model: Model, one: Marked, apart: int) -> tuple[Trace, WordTokens, set[tuple[int, int]], int]:
    """A document's trace, its words, its pairs as places among the words that have tokens, and how many others it has.

    Raises:
        InputError: the text is too long, or it has no such pair.
    """
    try:
        trace = model.trace(words=list(one.words))
    except InputError as error:
        raise InputError(error.found, where=one.name, advice=error.advice) from error
    words = WordTokens(trace, len(one.words))
    place = {int(word): rank for rank, word in enumerate(words.kept)}
    wanted = {pair for pair in one.pairs if apart <= abs(pair[1] - pair[0])}
    ranks = {(place[i], place[j]) for i, j in wanted if i in place and j in place}
    if not ranks:
        raise InputError(
            f"no marked pair has tokens on both sides and {apart} words from one to the other",
            where=one.name,
            advice="leave the document out, or lower apart",
        )
    return trace, words, ranks, len(wanted) - len(ranks)


def folds_of(
    count: int, chosen_on: int | None
) -> tuple[list[Bool[np.ndarray, " documents"]], Bool[np.ndarray, " documents"]]:
    """The documents that each fold reports on, and those that heads are chosen on in the end.

    Args:
        count: number of documents.
        chosen_on: number of documents at the beginning that choose; None for five folds, each in turn held out.
    """
    number = np.arange(count)
    if chosen_on:
        return [number >= chosen_on], number < chosen_on
    return [number % FOLDS == fold for fold in range(min(FOLDS, count))], number >= 0
