"""A layer of a batch made ready for either fast way: widened, padding folded into the keys, columns beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from headscope.attention import Mask

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

FP32_SCORES = 128.0
"""Where a score may be larger than this, fp32's spacing comes near 1e-4 of a weight: fp64 is used."""

ALIGNMENT = 8
"""Fused kernels want widths that are multiples of this."""


@dataclass(frozen=True, eq=False)
class Layer:
    """What both ways compute from.

    Attributes:
        q, k: the first d_head coordinates are the model's. Keys that may not be looked at are 0 but for one more
            coordinate, which gives them a score far below all others: so a mask of keys costs no bias, may differ from
            row to row of the batch, and goes with causal kernels and windows too.
        scale: what q . k is multiplied by.
        d_head: of the model.
        rule: what is left of the mask: causal and window, one for all rows.
        columns: (batch, heads or 1, keys, columns): what the weights are multiplied with. The first two are 1 and the
            key's position, counted from the middle, where fp32 is finest.
        distance: whether the mean distance is asked for.
    """

    q: Float[torch.Tensor, "batch heads queries width"]
    k: Float[torch.Tensor, "batch kv_heads keys width"]
    scale: float
    d_head: int
    rule: Mask
    columns: Float[torch.Tensor, "batch heads_or_1 keys columns"]
    distance: bool

    @property
    def at(self) -> int:
        """Where the first query stands among the keys."""
        return self.k.shape[2] - self.q.shape[2]

    @property
    def two_sided(self) -> bool:
        """Whether distances are needed beside offsets. In a causal map all keys lie behind: one is minus the other."""
        return self.distance and not self.rule.causal

    @property
    def centred(self) -> Float[torch.Tensor, " queries"]:
        """(queries,): where each query stands, counted as the positions of `columns` are."""
        queries, keys = self.q.shape[2], self.k.shape[2]
        return torch.arange(queries, device=self.q.device, dtype=self.q.dtype) + (self.at - keys // 2)


@dataclass(frozen=True, eq=False)
class Sums:
    """What a fast way gives, (batch, heads, queries) each; whatever there is where there is nothing to measure.

    Attributes:
        found: by name what was asked for of `entropy`, `effective_tokens`, `strongest`, `previous`, `same`, `next`,
            `first`, `offset`, and `distance` where the layer is two-sided.
        mixed: (batch, heads, queries, columns): the weights times the layer's columns, without the first two.
    """

    found: dict[str, Float[torch.Tensor, "batch heads queries"]]
    mixed: Float[torch.Tensor, "batch heads queries columns"]


def widened(
    q: Float[torch.Tensor, "batch heads queries d_head"],
    k: Float[torch.Tensor, "batch kv_heads keys d_head"],
    scale: float,
    hidden: Bool[torch.Tensor, "batch keys"] | None,
) -> tuple[Float[torch.Tensor, "batch heads queries width"], Float[torch.Tensor, "batch kv_heads keys width"]]:
    """q and k in fp32, or in fp64 where scores may be extreme, with one more coordinate where keys are hidden."""
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
    """No score is larger than this (Cauchy-Schwarz, head by head)."""
    if not q.numel() or not k.numel():
        return 0.0
    longest_q, longest_k = (torch.linalg.vector_norm(x, dim=-1).amax(-1) for x in (q, k))
    return abs(scale) * float((longest_q * longest_k.repeat_interleave(q.shape[1] // k.shape[1], 1)).max())
