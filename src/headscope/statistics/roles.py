"""What the tokens of a trace are: [CLS], [SEP], punctuation, the first or the second sentence of a pair."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope.statistics.catalog import ROLE_TOKENS

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from headscope._trace import Trace
    from headscope._trace.token_axis import TokenAxis

MARKERS = ("##", "Ġ", "▁")
"""What vocabularies put before a piece to say that a word goes on or begins here."""


@dataclass(frozen=True, eq=False)
class Roles:
    """Which tokens the statistics ask for.

    Attributes:
        cls, sep: (keys,), the tokens that begin a text and those that end one.
        punctuation: (keys,), tokens of the text that are punctuation and nothing else.
        special: (keys,), every token that the tokenizer added.
        sentences: (keys,), 0 or 1 for tokens of the first or second text of a pair; -1 for special tokens, and for all
            where there is one text.
        query_sentences: (queries,), likewise.
        query_special: (queries,), every query that the tokenizer added.
        aligned: whether queries and keys are one sequence, so that query i stands at key i + keys - queries. False in
            cross-attention, which has no token before and no distance.
    """

    cls: Bool[np.ndarray, " keys"]
    sep: Bool[np.ndarray, " keys"]
    punctuation: Bool[np.ndarray, " keys"]
    special: Bool[np.ndarray, " keys"]
    sentences: Int[np.ndarray, " keys"]
    query_sentences: Int[np.ndarray, " queries"]
    query_special: Bool[np.ndarray, " queries"]
    aligned: bool = True

    @staticmethod
    def none(queries: int, keys: int) -> Roles:
        """A sequence of which nothing is known but its order."""
        no = np.zeros(keys, dtype=bool)
        return Roles(no, no, no, no, np.full(keys, -1), np.full(queries, -1), np.zeros(queries, dtype=bool))


def roles_of(trace: Trace) -> Roles:
    """What a trace's tokens are, by the rules of docs/statistics.md."""
    return roles_of_tokens(trace.queries, trace.keys, trace.text, trace.pair)


def roles_of_tokens(queries: TokenAxis, keys: TokenAxis, text: str | None, pair: str | None = None) -> Roles:
    """What tokens are, by the rules of docs/statistics.md. One and the same axis twice is self-attention."""
    special = np.array(keys.special, dtype=bool)
    sentences = _sentences(keys, pair is not None)
    words = _words(keys, sentences, (text, pair))
    return Roles(
        cls=special & np.array([token in ROLE_TOKENS["cls"] for token in keys.tokens], dtype=bool),
        sep=special & np.array([token in ROLE_TOKENS["sep"] for token in keys.tokens], dtype=bool),
        punctuation=~special & np.array([is_punctuation(word) for word in words], dtype=bool),
        special=special,
        sentences=sentences,
        query_sentences=_sentences(queries, pair is not None),
        query_special=np.array(queries.special, dtype=bool),
        aligned=keys is queries,
    )


def is_punctuation(word: str) -> bool:
    """Whether all characters are punctuation as BERT's tokenizer has it: Unicode's P, and ASCII signs like $."""
    return bool(word.strip()) and all(
        unicodedata.category(one).startswith("P") or (one.isascii() and one.isprintable() and not one.isalnum())
        for one in word.replace(" ", "")
    )


def _words(axis: TokenAxis, sentences: Int[np.ndarray, " n"], texts: Sequence[str | None]) -> list[str]:
    """Each token as it stands in the text, where that is known; else its piece without the vocabulary's marker."""
    found = []
    for token, span, sentence in zip(axis.tokens, axis.spans, sentences, strict=True):
        text = texts[max(int(sentence), 0)]
        if span is not None and text is not None and span[1] > span[0]:
            found.append(text[span[0] : span[1]])
            continue
        marker = next((one for one in MARKERS if token.startswith(one) and token != one), "")
        found.append(token.removeprefix(marker))
    return found


def _sentences(axis: TokenAxis, pair: bool) -> Int[np.ndarray, " n"]:
    """0 and 1 for the texts of a pair, -1 for special tokens; all -1 where there is one text.

    The model's segments say so. Models that number both texts 0 (RoBERTa) tell by the separator between them.
    """
    special = np.array(axis.special, dtype=bool)
    found = np.array(axis.segments, dtype=np.int64)
    if pair and not np.any(found[~special] != found[~special][:1]):
        begun = np.cumsum(~special) > 0
        found = (np.cumsum(special & begun) > 0).astype(np.int64)
    if set(found[~special].tolist()) != {0, 1}:
        return np.full(len(special), -1)
    return np.where(special, -1, found)
