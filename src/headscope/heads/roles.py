"""Roles of a trace's tokens: [CLS], [SEP], punctuation, texts of a pair; and the queries that have each statistic.

For the other queries a statistic is NaN, by the rules of docs/statistics.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.scores import Mask
from headscope.heads.catalog import CATALOG, CELLS, MASSES, ROLE_TOKENS
from headscope.results.tokens import punctuation

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from headscope.results.arrays import TokenAxis
    from headscope.traces import Trace


@dataclass(frozen=True, eq=False)
class Roles:
    """The roles of tokens that the statistics depend on.

    Attributes:
        cls, sep: (keys,), tokens that begin a text and tokens that end one.
        punctuation: (keys,), tokens of the text that are punctuation only.
        special: (keys,), tokens that the tokenizer added.
        sentences: (keys,), 0 or 1 for tokens of the first or second text of a pair; -1 for special tokens, and for all
            tokens of a single text.
        query_sentences: (queries,), the same for queries.
        query_special: (queries,), queries that the tokenizer added.
        aligned: True if queries and keys are one sequence, so that query i is at key i + keys - queries. False in
            cross-attention, which has neither neighbours nor distances.
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
        """The roles of a sequence of unknown tokens."""
        no = np.zeros(keys, dtype=bool)
        return Roles(no, no, no, no, np.full(keys, -1), np.full(queries, -1), np.zeros(queries, dtype=bool))


def roles_of(trace: Trace) -> Roles:
    """The roles of a trace's tokens, by the rules of docs/statistics.md."""
    return roles_of_tokens(trace.queries, trace.keys, trace.text, trace.pair)


def roles_of_tokens(queries: TokenAxis, keys: TokenAxis, text: str | None, pair: str | None = None) -> Roles:
    """The roles of tokens, by the rules of docs/statistics.md. The same axis object twice means self-attention."""
    special = np.array(keys.special, dtype=bool)
    sentences = _sentences(keys, pair is not None)
    return Roles(
        cls=special & np.array([token in ROLE_TOKENS["cls"] for token in keys.tokens], dtype=bool),
        sep=special & np.array([token in ROLE_TOKENS["sep"] for token in keys.tokens], dtype=bool),
        punctuation=np.array(punctuation(keys, text, pair), dtype=bool),
        special=special,
        sentences=sentences,
        query_sentences=_sentences(queries, pair is not None),
        query_special=np.array(queries.special, dtype=bool),
        aligned=keys is queries,
    )


def _sentences(axis: TokenAxis, pair: bool) -> Int[np.ndarray, " n"]:
    """0 and 1 for the texts of a pair, -1 for special tokens; all -1 for a single text.

    By the model's segments, or by the separator for models that give both texts segment 0 (RoBERTa).
    """
    special = np.array(axis.special, dtype=bool)
    sentences = np.array(axis.segments, dtype=np.int64)
    if pair and not np.any(sentences[~special] != sentences[~special][:1]):
        begun = np.cumsum(~special) > 0
        sentences = (np.cumsum(special & begun) > 0).astype(np.int64)
    if set(sentences[~special].tolist()) != {0, 1}:
        return np.full(len(special), -1)
    return np.where(special, -1, sentences)


def allowed_counts(mask: Mask, queries: int, keys: int) -> Int[np.ndarray, " queries"]:
    """Number of keys that the mask's rules (not its bias) allow each query, (queries,), without building a map."""
    first, end = mask.reach(np.arange(queries) + keys - queries, keys)
    visible = np.ones(keys, dtype=bool) if mask.keys is None else np.asarray(mask.keys, dtype=bool)
    before = np.concatenate([[0], np.cumsum(visible)])
    return np.maximum(before[np.maximum(end, first)] - before[first], 0)


def padding(mask: Mask, roles: Roles, queries: int) -> Bool[np.ndarray, " queries"]:
    """True for queries that are padding, (queries,): tokens masked as keys. Unknown, so False, in cross-attention."""
    if mask.keys is None or not roles.aligned:
        return np.zeros(queries, dtype=bool)
    return ~np.asarray(mask.keys, dtype=bool)[-queries:]


def measured(
    names: Iterable[str],
    counts: Int[np.ndarray, "heads_or_1 n"],
    mask: Mask,
    roles: Roles,
    *,
    rows: Int[np.ndarray, " n"],
    queries: int,
) -> dict[str, Bool[np.ndarray, "heads_or_1 n"]]:
    """For each statistic, True for the queries that have it.

    Args:
        names: of the statistics.
        counts: number of keys that each query may look at.
        mask: of the whole map.
        roles: of the tokens.
        rows: positions of the queries.
        queries: number of queries in the whole map.
    """
    keys = len(roles.special)
    at = rows + keys - queries
    pair = bool((roles.sentences >= 0).any()) and roles.aligned
    exists: dict[str, Any] = {
        "normalised_entropy": counts > 1,
        "other_sentence": (roles.query_sentences[rows] >= 0) & pair,
        "norm_special": roles.special.any(),
        **{name: (at + offset >= 0) & (at + offset < keys) for name, offset in CELLS.items()},
        **{name: getattr(roles, role).any() for name, role in MASSES.items()},
    }
    seeing = (counts > 0) & ~padding(mask, roles, queries)[rows]
    ordered = {name: roles.aligned or CATALOG[name].needs != "order" for name in names}
    return {name: seeing & exists.get(name, True) & ordered[name] for name in names}
