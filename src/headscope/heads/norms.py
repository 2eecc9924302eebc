"""A layer as every way of measuring takes it; norms of what heads gather, |v_j W_O|, without (keys, d_model) arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headscope.attention.scores import EVERYTHING, Mask
from headscope.attention.terms import NO_TERMS, Array, Terms, namespace
from headscope.errors import InputError
from headscope.heads.catalog import need_values

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.traces import LayerRecord


@dataclass(frozen=True, eq=False)
class LayerArrays:
    """A layer to measure: arrays of NumPy, or tensors, which may have a batch axis.

    Attributes:
        q: (heads, queries, d_head).
        k: (kv_heads, keys, d_head).
        v: (kv_heads, keys, d_value), for the norm-weighted statistics alone.
        scale: factor of q . k.
        mask: rules and bias; of a batch one for all rows, or one for each, which may differ only in `keys`.
        terms: what the model adds to scale * q . k; of a batch for all rows, or for each.
        W_O: (heads, d_value, d_model), each head's rows of the output weight; likewise for the norms.
    """

    q: Array
    k: Array
    v: Array | None = None
    scale: float = 1.0
    mask: Mask | Sequence[Mask] = EVERYTHING
    terms: Terms | Sequence[Terms] = NO_TERMS
    W_O: Array | None = None

    @staticmethod
    def of(record: LayerRecord, W_O: Array | None = None) -> LayerArrays:
        """The layer of a trace; with its values if W_O is given."""
        v = None if W_O is None else record.v
        return LayerArrays(record.q, record.k, v, record.scale, record.mask, record.terms, W_O)


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
    xp = namespace(v)
    # Squares of very large or small values leave fp32's range: a power of two, which changes no digit, keeps them in.
    peak = xp.amax(xp.abs(v), -1)[..., None]
    one = xp.ones_like(peak)
    factor = xp.where(peak > 2.0**40, one * 2.0**-70, xp.where(peak < 2.0**-40, one * 2.0**60, one))
    values = (v * factor)[..., None, :, :]
    grouped = gram.reshape(kv_heads, heads // kv_heads, d_value, d_value)
    squares = ((values @ grouped) * values).sum(-1)
    roots = xp.sqrt(xp.where(squares < 0, xp.zeros_like(squares), squares)) / factor[..., None, :, 0]
    return roots.reshape(*v.shape[:-3], heads, keys)
