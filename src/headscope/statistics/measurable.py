"""The queries for which a statistic is defined, by the rules of docs/statistics.md; for the others it is NaN."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention import Mask
from headscope.statistics.catalog import CATALOG, CELLS, MASSES
from headscope.statistics.roles import Roles

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


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
