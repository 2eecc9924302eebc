"""The statistics by name, and what both computations share: who counts, and where there is nothing to measure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention import Array, Mask, namespace
from headscope.errors import InputError
from headscope.statistics.roles import Roles

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

MEANINGS = {
    "entropy": "entropy of a query's weights, in nats",
    "normalised_entropy": "entropy / log of the number of keys that the mask allows: 1 where all weigh the same",
    "effective_tokens": "effective number of attended tokens, 1 / sum of squared weights",
    "strongest": "the largest weight",
    "previous": "weight on the token before",
    "next": "weight on the token after",
    "same": "weight on the token itself",
    "first": "weight on the first token",
    "cls": "weight on [CLS]",
    "sep": "weight on all [SEP] together",
    "punctuation": "weight on all punctuation together",
    "other_sentence": "weight of a token of one text on the other text of a pair",
    "offset": "mean of key minus query, in tokens: negative where a head looks back",
    "distance": "mean distance between query and key, in tokens",
    "norm": "sum of |weight * v W_O|: how long the vectors are that a query gathers",
    "norm_special": "share of `norm` that comes from special tokens",
}
"""What is measured, per query; a head's number is the mean over its queries."""

POSITIONS = ("previous", "next", "same", "offset", "distance")
NORMS = ("norm", "norm_special")


def chosen(names: Iterable[str] | None, without: Iterable[str] = ()) -> tuple[str, ...]:
    """The statistics asked for, in the order of MEANINGS; all but `without` if None.

    Raises:
        InputError: there is no such statistic, or none is named.
    """
    if names is None:
        return tuple(name for name in MEANINGS if name not in without)
    asked = (names,) if isinstance(names, str) else tuple(names)
    unknown = [name for name in asked if name not in MEANINGS]
    if unknown or not asked:
        raise InputError(
            f"there is no statistic {unknown[0]!r}" if unknown else "no statistic is named",
            where="names",
            advice=f"ask for some of {', '.join(MEANINGS)}; trace.head_distances() compares heads",
        )
    return tuple(name for name in MEANINGS if name in asked)


def allowed_counts(mask: Mask, queries: int, keys: int) -> Int[np.ndarray, " queries"]:
    """(queries,): how many keys the mask's rules (a bias is none) allow each query, without building a map."""
    low, high = mask.reach(np.arange(queries) + keys - queries, keys)
    visible = np.ones(keys, dtype=bool) if mask.keys is None else np.asarray(mask.keys, dtype=bool)
    before = np.concatenate([[0], np.cumsum(visible)])
    return np.maximum(before[np.maximum(high, low)] - before[low], 0)


def padding(mask: Mask, roles: Roles, queries: int) -> Bool[np.ndarray, " queries"]:
    """(queries,): queries that are padding: tokens that no query may look at. Not known in cross-attention."""
    if mask.keys is None or not roles.aligned:
        return np.zeros(queries, dtype=bool)
    return ~np.asarray(mask.keys, dtype=bool)[-queries:]


def measured(
    names: Iterable[str], counts: Int[np.ndarray, "heads_or_1 queries"], mask: Mask, roles: Roles
) -> dict[str, Bool[np.ndarray, "heads_or_1 queries"]]:
    """For each statistic which queries have one, by the rules of docs/statistics.md.

    Args:
        counts: how many keys each query may look at.
    """
    queries = counts.shape[-1]
    keys = len(roles.special)
    at = np.arange(queries) + keys - queries
    pair = bool((roles.sentences >= 0).any()) and roles.aligned
    there: dict[str, Any] = {
        "normalised_entropy": counts > 1,
        "previous": at - 1 >= 0,
        "next": at + 1 < keys,
        "same": at >= 0,
        "cls": roles.cls.any(),
        "sep": roles.sep.any(),
        "punctuation": roles.punctuation.any(),
        "other_sentence": (roles.query_sentences >= 0) & pair,
        "norm_special": roles.special.any(),
    }
    seeing = (counts > 0) & ~padding(mask, roles, queries)
    return {name: seeing & there.get(name, True) & (roles.aligned if name in POSITIONS else True) for name in names}


def without_the_unmeasured(
    found: Mapping[str, Float[np.ndarray, "heads queries"]],
    counts: Int[np.ndarray, "heads_or_1 queries"],
    mask: Mask,
    roles: Roles,
) -> dict[str, Float[np.ndarray, "heads queries"]]:
    """NaN wherever there is nothing to measure; `found` holds whatever came out there."""
    use = measured(found, counts, mask, roles)
    return {name: np.where(use[name], values, np.nan) for name, values in found.items()}


def norms_from(v: Array | None, W_O: Array | None, names: Iterable[str]) -> tuple[Array, Array]:
    """v and W_O (or what was made of it), which the norm-weighted statistics among `names` need.

    Raises:
        InputError: one of them is missing.
    """
    if v is None or W_O is None:
        raise InputError(
            f"{', '.join(name for name in names if name in NORMS)} can't be had without v and W_O",
            where="statistics",
            advice="pass v (kv_heads, keys, d_value) and W_O (heads, d_value, d_model)",
        )
    return v, W_O


def value_norms(
    v: Float[Array, "... kv_heads keys d_value"], W_O: Float[Array, "heads d_value d_model"]
) -> Float[Array, "... heads keys"]:
    """(…, heads, keys): |v_j W_O| of every head. No (keys, d_model) is built."""
    return norms_by_gram(v, gram_of(W_O))


def gram_of(W_O: Float[Array, "heads d_value d_model"]) -> Float[Array, "heads d_value d_value"]:
    """(heads, d_value, d_value): W_O W_O^T of every head: all that lengths of v W_O depend on."""
    return W_O @ W_O.swapaxes(-1, -2)


def norms_by_gram(
    v: Float[Array, "... kv_heads keys d_value"], gram: Float[Array, "heads d_value d_value"]
) -> Float[Array, "... heads keys"]:
    """(…, heads, keys): |v_j W_O|, the root of v_j W_O W_O^T v_j^T."""
    heads, d_value, _ = gram.shape
    kv_heads, keys, _ = v.shape[-3:]
    values = v[..., None, :, :]
    grouped = gram.reshape(kv_heads, heads // kv_heads, d_value, d_value)
    squares = ((values @ grouped) * values).sum(-1).reshape(*v.shape[:-3], heads, keys)
    xp = namespace(v)
    return xp.sqrt(xp.where(squares > 0, squares, xp.zeros_like(squares)))
