"""Norms of the vectors that a head gathers, |v_j W_O|, without building a (keys, d_model) array."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headscope.errors import InputError
from headscope.statistics.catalog import need_values
from headscope.terms import Array, namespace

if TYPE_CHECKING:
    from jaxtyping import Float


def norms_from(v: Array | None, W_O: Array | None, names: Iterable[str]) -> tuple[Array, Array]:
    """Return v and W_O (or its gram), which the norm-weighted statistics among `names` need.

    Raises:
        InputError: one of them is missing.
    """
    if v is None or W_O is None:
        raise InputError(
            f"{', '.join(need_values(names))} requires v and W_O",
            where="statistics",
            advice="pass v (kv_heads, keys, d_value) and W_O (heads, d_value, d_model)",
        )
    return v, W_O


def value_norms(
    v: Float[Array, "... kv_heads keys d_value"], W_O: Float[Array, "heads d_value d_model"]
) -> Float[Array, "... heads keys"]:
    """|v_j W_O| of every head, (…, heads, keys)."""
    return norms_by_gram(v, gram_of(W_O))


def gram_of(W_O: Float[Array, "heads d_value d_model"]) -> Float[Array, "heads d_value d_value"]:
    """W_O W_O^T of every head, (heads, d_value, d_value): all that norms of v W_O depend on."""
    return W_O @ W_O.swapaxes(-1, -2)


def norms_by_gram(
    v: Float[Array, "... kv_heads keys d_value"], gram: Float[Array, "heads d_value d_value"]
) -> Float[Array, "... heads keys"]:
    """|v_j W_O| of every head, (…, heads, keys): the root of v_j W_O W_O^T v_j^T."""
    heads, d_value, _ = gram.shape
    kv_heads, keys, _ = v.shape[-3:]
    values = v[..., None, :, :]
    grouped = gram.reshape(kv_heads, heads // kv_heads, d_value, d_value)
    squares = ((values @ grouped) * values).sum(-1).reshape(*v.shape[:-3], heads, keys)
    xp = namespace(v)
    return xp.sqrt(xp.where(squares > 0, squares, xp.zeros_like(squares)))
