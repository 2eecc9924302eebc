"""Every statistic from the weights themselves, in blocks of queries, in fp64: the definitions, written as they read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from headscope.attention import EVERYTHING, Mask
from headscope.statistics.definitions import NORMS, chosen, norms_from, value_norms, without_the_unmeasured
from headscope.statistics.roles import Roles
from headscope.statistics.weight_blocks import Block, block_statistics, blocks

if TYPE_CHECKING:
    from jaxtyping import Float


def plain_statistics(
    q: Float[np.ndarray, "heads queries d_head"],
    k: Float[np.ndarray, "kv_heads keys d_head"],
    v: Float[np.ndarray, "kv_heads keys d_value"] | None = None,
    *,
    scale: float,
    roles: Roles,
    mask: Mask = EVERYTHING,
    W_O: Float[np.ndarray, "heads d_value d_model"] | None = None,
    names: Iterable[str] | None = None,
) -> dict[str, Float[np.ndarray, "heads queries"]]:
    """Statistics of every query of a layer, (heads, queries) each; NaN where there is nothing to measure.

    Args:
        v: for the norm-weighted statistics, which need W_O too; without both, these are left out.
        W_O: each head's rows of the output weight.
        mask: which keys a query may look at; a bias counts.
        names: which; all if None.

    Raises:
        InputError: there is no such statistic, or it needs v and W_O.
    """
    names = chosen(names, () if v is not None and W_O is not None else NORMS)
    norms = needed_norms(v, W_O, names)
    parts, counts = [], []
    for block in blocks(q.astype(np.float64), k.astype(np.float64), scale=scale, mask=mask):
        parts.append(_measure(block, roles, q.shape[1], norms, names))
        counts.append((block.scores > -np.inf).sum(-1))
    if not parts:
        return {name: np.zeros(q.shape[:2]) for name in names}
    found = {name: np.concatenate([part[name] for part in parts], axis=-1) for name in names}
    return without_the_unmeasured(found, np.concatenate(counts, axis=-1), mask, roles)


def needed_norms(
    v: Float[np.ndarray, "kv_heads keys d_value"] | None,
    W_O: Float[np.ndarray, "heads d_value d_model"] | None,
    names: tuple[str, ...],
) -> Float[np.ndarray, "heads keys"] | None:
    """(heads, keys): |v_j W_O| in fp64; None where no statistic asks for it."""
    if not set(names) & set(NORMS):
        return None
    v, W_O = norms_from(v, W_O, names)
    return value_norms(v.astype(np.float64), W_O.astype(np.float64))


def _measure(
    block: Block, roles: Roles, queries: int, norms: Float[np.ndarray, "heads keys"] | None, names: tuple[str, ...]
) -> dict[str, Float[np.ndarray, "heads n"]]:
    """The statistics of a block's queries, whatever they are where there is nothing to measure."""
    weights = block.weights
    keys = weights.shape[-1]
    at = np.arange(block.rows.start, block.rows.stop) + keys - queries
    found = block_statistics(block, roles.special, queries)
    with np.errstate(divide="ignore", invalid="ignore"):
        found["normalised_entropy"] = found["entropy"] / np.log((block.scores > -np.inf).sum(-1))
        found["effective_tokens"] = 1 / np.square(weights).sum(-1)
        for name in ("cls", "sep", "punctuation"):
            found[name] = weights[..., getattr(roles, name)].sum(-1)
        mine = roles.query_sentences[block.rows]
        others = (roles.sentences[None, :] >= 0) & (roles.sentences[None, :] != mine[:, None])
        found["other_sentence"] = np.where(others, weights, 0).sum(-1)
        found["offset"] = (weights * (np.arange(keys)[None, :] - at[:, None])).sum(-1)
        if norms is not None:
            lengths = weights * norms[:, None, :]
            found["norm"] = lengths.sum(-1)
            found["norm_special"] = lengths[..., roles.special].sum(-1) / found["norm"]
    return {name: found[name] for name in names}
