"""A layer of a batch, prepared for both fast ways: upcast, with padding folded into the keys, and with its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from headscope.attention import Mask
from headscope.terms import NO_TERMS, Terms

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

FP32_SCORES = 128.0
"""Largest score for fp32: beyond it, fp32's spacing nears 1e-4 of a weight, and fp64 is used."""

ALIGNMENT = 8
"""Fused kernels want widths that are multiples of this number."""


@dataclass(frozen=True, eq=False)
class Layer:
    """The input of both ways.

    Attributes:
        q, k: the first d_head coordinates are the model's. Hidden keys are 0 except for one more coordinate that gives
            them a score far below all others. So a mask of keys needs no bias, may differ between the rows of a batch,
            and works with causal kernels and windows, too.
        scale: factor of q . k.
        d_head: of the model.
        rule: the rest of the mask, causal and window, shared by all rows.
        columns: (batch, heads or 1, keys, columns), multiplied by the weights. The first two are 1 and the key's
            position, counted from the middle, where fp32 is finest.
        distance: True if the mean distance is requested.
        terms: what the model adds to scale * q . k. With terms, a layer is of one row, and its rule hides keys.
    """

    q: Float[torch.Tensor, "batch heads queries width"]
    k: Float[torch.Tensor, "batch kv_heads keys width"]
    scale: float
    d_head: int
    rule: Mask
    columns: Float[torch.Tensor, "batch heads_or_1 keys columns"]
    distance: bool
    terms: Terms = NO_TERMS

    @property
    def at(self) -> int:
        """Position of the first query among the keys."""
        return self.k.shape[2] - self.q.shape[2]

    @property
    def two_sided(self) -> bool:
        """True if distances must be summed besides offsets. In a causal map, distance = -offset."""
        return self.distance and not self.rule.causal

    @property
    def centred(self) -> Float[torch.Tensor, " queries"]:
        """Position of each query, (queries,), counted like the positions in `columns`."""
        queries, keys = self.q.shape[2], self.k.shape[2]
        return torch.arange(queries, device=self.q.device, dtype=self.q.dtype) + (self.at - keys // 2)


@dataclass(frozen=True, eq=False)
class Sums:
    """The output of a fast way, (batch, heads, queries) each; undefined where there is nothing to measure.

    Attributes:
        by_name: the requested ones of `entropy`, `effective_tokens`, `strongest`, `previous`, `same`, `next`, `first`,
            `offset`, and `distance` if the layer is two-sided.
        mixed: (batch, heads, queries, columns): the weights times the layer's columns, without the first two.
    """

    by_name: dict[str, Float[torch.Tensor, "batch heads queries"]]
    mixed: Float[torch.Tensor, "batch heads queries columns"]


def upcast(
    q: Float[torch.Tensor, "batch heads queries d_head"],
    k: Float[torch.Tensor, "batch kv_heads keys d_head"],
    scale: float,
    hidden: Bool[torch.Tensor, "batch keys"] | None,
) -> tuple[Float[torch.Tensor, "batch heads queries width"], Float[torch.Tensor, "batch kv_heads keys width"]]:
    """q and k in fp32, or in fp64 if scores may be extreme, with one more coordinate if keys are hidden."""
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k = q.to(wide), k.to(wide)
    bound = _largest_score(q, k, scale)
    if bound > FP32_SCORES:
        q, k = q.double(), k.double()
    if hidden is None:
        return q, k
    d_head = q.shape[-1]
    more = (0, ALIGNMENT)
    q = torch.nn.functional.pad(q, more)
    k = torch.nn.functional.pad(k.masked_fill(hidden[:, None, :, None], 0), more)
    q[..., d_head] = 1
    k[..., d_head].masked_fill_(hidden[:, None], -(2 * bound + 1000) / scale)
    return q, k


def _largest_score(q: torch.Tensor, k: torch.Tensor, scale: float) -> float:
    """Upper bound of all scores (Cauchy-Schwarz, head by head)."""
    if not q.numel() or not k.numel():
        return 0.0
    longest_q, longest_k = (torch.linalg.vector_norm(x, dim=-1).amax(-1) for x in (q, k))
    return abs(scale) * float((longest_q * longest_k.repeat_interleave(q.shape[1] // k.shape[1], 1)).max())
