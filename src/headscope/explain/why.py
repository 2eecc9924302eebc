"""The reasons of a weight: a head's score of a query and a key as a sum over pairs of input tokens.

With c_{i<-a} the share of input token a in what the head reads at position i (headscope.explain.propagation), W_Q and
W_K of the head, R_i the rotation of position i where there is one, and J the other keys that query i sees,

    s_ij - mean_(k in J) s_ik = scale sum_ab (c_{i<-a} W_Q R_i) . (c_{j<-b} W_K R_j - mean_k c_{k<-b} W_K R_k)
                                + distances

so that pairs (a, b) and biases, which are a share like a token's, add up to the difference exactly. Terms of the
distance are pairs with "distance": DeBERTa's product of a query with a distance is on the query's side, that of a key
with a distance on the key's side, and MPNet's number per distance belongs to no token.

The mean of the other keys is the plain one: weighted by the weights it would be the key itself where the weight is near
1, and the runner-up alone cancels more (docs/reference/explaining.md has the figures of a trial).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from headscope.anatomy import check_index
from headscope.encoder.distances import rotate
from headscope.errors import InputError, TraceError, not_a_number
from headscope.explain.propagation import Held, hold
from headscope.explain.residual import check_whole, opened_model, scores_of
from headscope.explain.steps import Chain, held_linear
from headscope.results.score_parts import REST, Part, Why
from headscope.runs.masking import with_masking
from headscope.runs.texts import as_input

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, Int

    from headscope.model import Model
    from headscope.traces import HeadTrace, LayerRecord

    Shares = Float[np.ndarray, "shares rows d_head"]


def why(head: HeadTrace, query: int, key: int, *, check: bool = True) -> Why:
    """Take the score of a query and a key apart, by pairs of input tokens, against the mean of the other keys.

    The cost: as many forward passes up to the layer as the text has tokens. Arguments are those of `HeadTrace.why`.

    Raises:
        InputError: no such token, or the query sees no other key, or not this one.
        TraceError: there is no model, layers or heads are missing, or heads were silenced.
        UnsupportedError: the model is a live one, or its layers have a form without a rule.
        CheckpointError: a score of the query is not a number.
    """
    trace = head.trace
    check_whole(trace)
    model = opened_model(trace, "taking a score apart")
    if trace.changed:
        raise TraceError(
            "heads were silenced or attended with another map in this trace, and its layers read what they left",
            where="trace.ablated",
            advice="trace the text again without ablate",
        )
    query, key = (check_index(at, len(trace), "token", "the trace") for at in (query, key))
    result = _taken_apart(model, head, query, key)
    return _checked(model, result) if check else result


def _taken_apart(model: Model, head: HeadTrace, query: int, key: int) -> Why:
    """The answer without checks."""
    trace = head.trace
    held = hold(model.encoder, as_input(trace.queries))
    seen, row = _scores(held.layers[head.layer].record, head.head, query)
    others = seen[seen != key]
    if key not in seen or not len(others):
        raise InputError(
            f"query {query} doesn't see key {key}" if key not in seen else f"query {query} sees no other key",
            where=f"layer {head.layer}, head {head.head}",
            advice=f"it sees the keys {seen[0]} to {seen[-1]}",
        )
    table = _table(model, held, head.layer, head.head, (query, key, others))
    log_sum = float(np.logaddexp.reduce(row[seen]))
    return Why(
        head.layer,
        head.head,
        query,
        key,
        float(np.exp(row[key] - log_sum)),
        float(row[key]),
        float(row[others].mean()),
        table,
        trace.queries,
        (*trace.tokens, *REST),
    )


def _scores(record: LayerRecord, head: int, query: int) -> tuple[Int[np.ndarray, " seen"], Float[np.ndarray, " keys"]]:
    """The keys that a query sees, and its scores of all keys, -inf for those that it doesn't see; none may be NaN."""
    row = scores_of(record.of_heads([head]), np.array([query]))[0, 0].astype(np.float64)
    if not (row < np.inf).all():
        raise not_a_number("a score is NaN or infinite", f"head {head}, query {query}")
    return np.flatnonzero(np.isfinite(row)), row


def _table(
    model: Model, held: Held, layer: int, head: int, places: tuple[int, int, Int[np.ndarray, " others"]]
) -> Float[np.ndarray, "rows columns"]:
    """The parts of all pairs, biases and distances included."""
    query, key, others = places
    record = held.layers[layer].record
    of_key = head * len(record.k) // len(record.q)
    rows = np.array([query, key, *others])
    queries = _projected(model, held, layer, "layer.query", head, rows[:1])[:, 0]
    keys = _projected(model, held, layer, "layer.key", of_key, rows[1:])
    keys = keys[:, 0] - keys[:, 1:].mean(axis=1)
    count = len(queries)
    table = np.zeros((count + 1, count + 1))
    table[:count, :count] = record.scale * queries @ keys.T
    terms, tokens = record.terms.of_head(head), record.q.shape[1]
    if terms.buckets is None:
        return table
    buckets = terms.buckets[rows[1:] - query + tokens - 1]
    if terms.relative_keys is not None:
        vectors = terms.relative_keys[0, buckets].astype(np.float64)
        table[:count, count] = record.scale * queries @ (vectors[0] - vectors[1:].mean(axis=0))
    if terms.relative_queries is not None:
        vectors = terms.relative_queries[0, buckets].astype(np.float64)
        along = _projected(model, held, layer, "layer.key", of_key, rows[1:])
        products = record.scale * np.einsum("skd,kd->sk", along, vectors)
        table[count, :count] = products[:, 0] - products[:, 1:].mean(axis=1)
    if terms.by_distance is not None:
        numbers = terms.by_distance[0, buckets].astype(np.float64)
        table[count, count] = numbers[0] - numbers[1:].mean()
    return table


def _projected(model: Model, held: Held, layer: int, role: str, head: int, rows: Int[np.ndarray, " rows"]) -> Shares:
    """The shares of a head's queries or keys at some positions, rotated: each token's, and last the biases'."""
    encoder, norm = model.encoder, held.layers[layer].norm
    angles = encoder.angles(layer, len(held.embedded))
    sizes, family = model.anatomy.known(), model.anatomy.family
    of_head = held_linear(encoder, role, layer).rows(slice(head * sizes.d_head, (head + 1) * sizes.d_head))
    found = held.shares(rows, below=layer, top=Chain((of_head,) if norm is None else (norm, of_head)))
    if angles is not None:
        assert family is not None
        assert family.rotary is not None
        found = rotate(found, angles[0][rows], angles[1][rows], pairs=family.rotary.pairs)
    return found.astype(np.float64)


def _checked(model: Model, result: Why) -> Why:
    """The answer with the tokens of its strongest pair masked for real, one by one."""
    pairs = (pair for pair in result.strongest(result.table.size) if max(pair) < len(result.axis))
    tokens = sorted(set(next(pairs)), key=lambda token: -abs(result.of_token(token)))
    parts = [
        Part(result.axis.tokens[token], (token,), result.of_token(token), result.axis.special[token])
        for token in tokens
    ]

    def changes(parts: Sequence[Part]) -> list[float]:
        before = _log_odds(model, result, ())
        return [before - _log_odds(model, result, part.tokens) for part in parts]

    checks, unchecked = with_masking(model, parts, changes)
    return replace(result, checks=checks, unchecked=unchecked)


def _log_odds(model: Model, result: Why, masked: Sequence[int]) -> float:
    """log(p / (1 - p)) of the weight, with some tokens masked."""
    ids = [model.tokenizer.mask_id if at in masked else index for at, index in enumerate(result.axis.ids)]
    trace = model.trace(ids=ids, segments=list(result.axis.segments))  # type: ignore[arg-type]
    seen, row = _scores(trace.layers[result.layer], result.head, result.query)
    others = seen[seen != result.key]
    return float(row[result.key] - np.logaddexp.reduce(row[others]))
