"""One edge of one head knocked out: the context that a query would have if it could not see a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.anatomy import check_index
from headscope.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.traces import HeadTrace

MOST_SUBTRACTED = 0.5
"""The largest weight that is subtracted: dividing by 1 - p_ij multiplies rounding errors by at most 2."""


def knockout(head: HeadTrace, query: int, key: int) -> Float[np.ndarray, " d_value"]:
    """The context (d_value,) of one query that can't see one key.

    A softmax without key j is the softmax over all keys, less j's part, divided by what is left of its mass:

        c'_i = (c_i - p_ij v_j) / (1 - p_ij),

    exact and O(keys d_value). Where p_ij > 0.5 the row is recomputed from the other keys' scores instead. What the
    model would make of it needs a run: Geva et al. 2023, “Dissecting Recall of Factual Associations in Auto-Regressive
    Language Models”, knock out edges over several layers.

    Args:
        head: the head.
        query: the query's position, counted from 0.
        key: the key's position, counted from 0.

    Raises:
        InputError: no such position, or a key that is the only one that the query sees.
        TraceError: the trace was kept without values.
    """
    scores = head.scores
    at = check_index(query, scores.shape[0], "query", f"layer {head.layer}, head {head.head}")
    gone = check_index(key, scores.shape[1], "key", f"layer {head.layer}, head {head.head}")
    row = scores[at].astype(np.float64)
    weights = head.weights[at].astype(np.float64)
    weight = weights[gone]
    if weight <= MOST_SUBTRACTED and np.isfinite(row[np.arange(len(row)) != gone]).any():
        values = head.v.astype(np.float64)
        return ((weights @ values - weight * values[gone]) / (1 - weight)).astype(np.float32)
    return without_key(row, head.v, at, gone, f"layer {head.layer}, head {head.head}")


def without_key(
    scores: Float[np.ndarray, " keys"], values: Float[np.ndarray, "keys d_value"], query: int, key: int, where: str
) -> Float[np.ndarray, " d_value"]:
    """The context of a query from the scores of all keys but one.

    Raises:
        InputError: the key is the only one that the query sees.
    """
    rest = scores.astype(np.float64)
    rest[key] = -np.inf
    if np.isfinite(scores[key]) and not np.isfinite(rest).any():
        raise InputError(
            f"key {key} is the only one that query {query} sees, so there is no context without it",
            where=where,
            advice="knock out an edge of a query that sees several keys",
        )
    rest = np.exp(rest - rest.max())
    return (rest @ values.astype(np.float64) / rest.sum()).astype(np.float32)
