"""Positions inside the layers: rotary angles, and score terms that depend on the distance of a query and a key.

Rotary positions (Su et al. 2021): a head's dimensions form pairs; pair i of a token at position m turns by m theta_i,
with theta_i = base^(-2i / d_head). The dot product of a query and a key then depends on the distance of their
positions alone (eq. 16).

MPNet (Song et al. 2020), as T5 (Raffel et al. 2020, section 2.1): a number per head and bucket of distances.
DeBERTa (He et al. 2021, eq. 4): products with vectors of distances, r,

    s_ij = (q_i . k_j + q_i . W_K r_d + k_j . W_Q r_d) / sqrt(3 d_head),    d = delta(i, j)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from headscope.attention.scores import split_heads
from headscope.attention.terms import Terms

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.anatomy import Disentangled
    from headscope.encoder.role_weights import EncoderWeights

    Distances = Int[np.ndarray, " distances"]
    Heads = Float[np.ndarray, "*runs heads tokens d_head"]
    Angles = Float[np.ndarray, "tokens half"]


STORED = "rotary_embeddings.inv_freq"
"""The end of the name under which ESM's files hold their frequencies, which may have been rounded to fp16."""


def _frequencies(weights: EncoderWeights, base: float) -> Float[np.ndarray, " half"]:
    """(d_head / 2,): theta_i, from the file if it holds them."""
    for name in weights.anatomy.buffers:
        if name.endswith(STORED):
            return np.asarray(weights.checkpoint.read(name), dtype=np.float32)
    return default_frequencies(base, weights.anatomy.known().d_head)


def default_frequencies(base: float, d_head: int) -> Float[np.ndarray, " half"]:
    """(d_head / 2,): theta_i, in fp32, as models compute it: base^(2i / d_head) is rounded before its inverse."""
    exponents = np.arange(0, d_head, 2, dtype=np.float32) / np.float32(d_head)
    return np.float32(1) / np.power(base, exponents, dtype=np.float64).astype(np.float32)


def turns(weights: EncoderWeights, base: float, tokens: int) -> tuple[Angles, Angles]:
    """(tokens, d_head / 2) each: cosines and sines of the angles at positions 0, 1, ….

    RoFormer's files hold a table of them, sines before cosines. All others compute the angle m theta_i in fp32, whose
    rounding at the 8,192nd position is 2e-4: a better angle would be another model.
    """
    if weights.anatomy.has("rotation.weight"):
        sin, cos = np.split(weights.weight("rotation.weight")[:tokens], 2, axis=1)
        return cos, sin
    angles = np.arange(tokens, dtype=np.float32)[:, None] * _frequencies(weights, base)
    wide = angles.astype(np.float64)
    return np.cos(wide).astype(np.float32), np.sin(wide).astype(np.float32)


def rotate(x: Heads, cos: Angles, sin: Angles, *, pairs: bool, out: Heads | None = None) -> Heads:
    """(heads, tokens, d_head): every pair (a, b) becomes (a cos - b sin, b cos + a sin).

    Args:
        x: queries or keys.
        cos: cosines of these tokens' angles.
        sin: sines of these tokens' angles.
        pairs: True if dimensions 2i and 2i + 1 form a pair; False for i and i + d_head / 2.
        out: other memory for the result.
    """
    half = x.shape[-1] // 2
    first, second = (slice(0, None, 2), slice(1, None, 2)) if pairs else (slice(0, half), slice(half, None))
    a, b = x[..., first], x[..., second]
    turned = np.empty_like(x) if out is None else out
    np.multiply(a, cos, out=turned[..., first])
    turned[..., first] -= b * sin
    np.multiply(b, cos, out=turned[..., second])
    turned[..., second] += a * sin
    return turned


T5_BUCKETS, T5_LONGEST = 32, 128
"""MPNet's number of buckets, and the distance from which on all share one."""


def distances_of(tokens: int) -> Distances:
    """(2 tokens - 1,): j - i, from the last query and the first key to the first query and the last key."""
    return np.arange(1 - tokens, tokens)


def t5_buckets(tokens: int) -> Distances:
    """(2 tokens - 1,): T5's bucket of each distance j - i: small ones one by one, then by logarithm, for each side."""
    half = T5_BUCKETS // 2
    exact = half // 2
    distances = distances_of(tokens)
    size = np.abs(distances)
    logs = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact)).astype(np.float32)
    steps = (logs / np.float32(math.log(T5_LONGEST / exact)) * np.float32(half - exact)).astype(np.int64)
    buckets = np.where(size < exact, size, np.minimum(exact + steps, half - 1)) + half * (distances > 0)
    return buckets.astype(np.int32)


def deberta_buckets(tokens: int, settings: Disentangled) -> Distances:
    """(2 tokens - 1,): delta(i, j) for each j - i: the row of the table of distances.

    Distances i - j up to half the span have a row each, larger ones share rows by their logarithm, and those beyond
    the table share its last.
    """
    back = -distances_of(tokens)
    if settings.logarithmic:
        middle = settings.span // 2
        size = np.where(np.abs(back) < middle, middle - 1, np.abs(back)).astype(np.float32)
        scale = np.log(np.float32((settings.longest - 1) / middle))
        logs = np.ceil(np.log(size / np.float32(middle)) / scale * np.float32(middle - 1)) + np.float32(middle)
        back = np.where(size <= middle, back, (logs * np.sign(back)).astype(np.int64))
    return np.clip(back + settings.span, 0, settings.rows - 1).astype(np.int32)


def by_distance(weights: EncoderWeights, tokens: int) -> Terms:
    """MPNet's terms, the same in every layer."""
    table = np.ascontiguousarray(weights.weight("distances.weight").T)
    terms = Terms(buckets=t5_buckets(tokens), by_distance=table)
    return terms.window(0, tokens, 0, tokens, (tokens, tokens))


def relative_tables(
    weights: EncoderWeights, layer: int, settings: Disentangled
) -> dict[str, Float[np.ndarray, "heads buckets d_head"]]:
    """DeBERTa's relative keys and queries of a layer, one vector per head and row of the table of distances."""
    vectors = weights.weight("distances.weight")[: settings.rows]
    if weights.anatomy.has("distances_norm.weight"):
        vectors = weights.norm(np.array(vectors), "distances_norm")
    names = {"c2p": ("relative_keys", "key"), "p2c": ("relative_queries", "query")}
    tables = {}
    for kind in settings.kinds:
        table, role = names[kind]
        projected = weights.linear(vectors, f"layer.{role}" if settings.shared else f"layer.relative_{role}", layer)
        tables[table] = np.ascontiguousarray(split_heads(projected, weights.anatomy.known().heads))
    return tables


def disentangled(
    settings: Disentangled, tables: dict[str, Float[np.ndarray, "heads buckets d_head"]], tokens: int
) -> Terms:
    """DeBERTa's terms of a layer, with the rows that occur in a text of this length."""
    terms = Terms(
        buckets=deberta_buckets(tokens, settings),
        relative_keys=tables.get("relative_keys"),
        relative_queries=tables.get("relative_queries"),
    )
    return terms.window(0, tokens, 0, tokens, (tokens, tokens))
