"""The block way: scores are computed once, in blocks that stay in the cache, and every statistic from each block."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from headscope.kernels import SoftmaxBlock, softmax_blocks
from headscope.statistics.catalog import CELLS
from headscope.statistics.layer import Layer, Sums

if TYPE_CHECKING:
    from jaxtyping import Float

FORBIDDEN = -1e30
"""Score of a forbidden cell. Its weight is 0, and so is weight times score, which would be NaN for -inf."""


def sums_by_blocks(layer: Layer, names: Collection[str]) -> Sums:
    """Compute the sums with one matrix product for the scores, one exp, and one narrow product for linear sums.

    With e_ij = exp(s_ij - max_j s_ij) and Z_i = sum_j e_ij: H_i = log Z_i - sum_j e_ij (s_ij - max) / Z_i, the largest
    weight is 1 / Z_i, and 1 / sum_j p_ij^2 = Z_i^2 / sum_j e_ij^2. Memory is O(keys), or O(window).

    Scores are taken in units of log 2, so that e_ij = 2^s_ij.
    """
    batch, heads, queries, _ = layer.q.shape
    keys = layer.k.shape[2]
    # The first two, one and position, are summed below. The others are the left factor and the transposed weights the
    # right one: with columns on the right, MKL takes from a third to four times longer.
    columns = layer.columns[..., 2:].mT
    count = columns.shape[-2]
    columns = columns.expand(batch, heads, count, keys).reshape(batch * heads, count, keys)
    mixed = layer.q.new_zeros(batch * heads, count, queries)
    rows = {name: layer.q.new_zeros(batch * heads, queries) for name in _needed(layer, names)}
    positions = layer.columns[0, 0, :, 1]
    gaps, gaps_of = positions, slice(0)
    for block in softmax_blocks(
        layer.q, layer.k, scale=layer.scale, mask=layer.rule, terms=layer.terms, hidden=FORBIDDEN
    ):
        scores, powers, at = block.shifted, block.powers, (block.heads, block.rows)
        if count:
            mixed[block.heads, :, block.rows] = torch.bmm(columns[block.heads, :, block.keys], powers.mT)
        rows["total"][at] = powers.sum(-1)
        if "strongest" in rows:
            rows["strongest"][at] = powers.amax(-1)
        if "entropy" in rows:
            rows["entropy"][at] = scores.mul_(powers).sum(-1)
        if "effective_tokens" in rows:
            rows["effective_tokens"][at] = torch.linalg.vector_norm(powers, dim=-1)
        if block.sinks is not None:
            _count_sinks(rows, at, block.sinks[..., 0])
        if "first" in rows and block.keys.start == 0:
            rows["first"][at] = powers[..., 0]
        for name, offset in CELLS.items():
            if name in rows:
                _pick(rows[name], block, powers, layer.at + offset)
        if "offset" in rows:
            if gaps_of != block.rows:  # blocks of the same rows follow each other
                gaps, gaps_of = positions[block.keys] - layer.centred[block.rows, None], block.rows
            rows["offset"][at] = torch.mul(powers, gaps, out=scores).sum(-1)
            if "distance" in rows:
                rows["distance"][at] = scores.abs_().sum(-1)
    shape = (batch, heads, queries)
    # A row without keys has no block; 1 keeps it finite until it is set to NaN.
    total = rows.pop("total")
    total = torch.where(total > 0, total, 1)
    mixed /= total[:, None]
    means = {name: row / total for name, row in rows.items()}
    if "entropy" in means:
        means["entropy"] = ((total.log2() - means["entropy"]) * math.log(2)).clamp_min(0)
    if "effective_tokens" in means:
        means["effective_tokens"] = means["effective_tokens"].square().reciprocal()
    if "strongest" in names and layer.terms.sinks is None:
        means["strongest"] = total.reciprocal()
    return Sums({name: row.view(shape) for name, row in means.items()}, mixed.view(batch, heads, count, queries).mT)


def _needed(layer: Layer, names: Collection[str]) -> list[str]:
    """Names of the sums taken row by row.

    Totals, offsets and distances are summed separately: a matrix product adds key by key, and next to one large weight
    fp32 then loses the many small ones further away.
    """
    needed = ["total", *(name for name in ("effective_tokens", "first", *CELLS) if name in names)]
    if "entropy" in names or "normalised_entropy" in names:
        needed.append("entropy")
    if "offset" in names or "distance" in names:
        needed.append("offset")
    if "strongest" in names and layer.terms.sinks is not None:
        needed.append("strongest")
    return [*needed, "distance"] if layer.two_sided else needed


def _count_sinks(
    rows: dict[str, Float[torch.Tensor, "all queries"]], at: tuple[slice, slice], shifted: torch.Tensor
) -> None:
    """Count a sink as one more place: in the total, the entropy and the squares, but in no sum over keys."""
    power = shifted.exp2()
    rows["total"][at] += power
    if "entropy" in rows:
        rows["entropy"][at] += torch.where(power > 0, shifted, 0) * power
    if "effective_tokens" in rows:
        rows["effective_tokens"][at] = torch.hypot(rows["effective_tokens"][at], power)


def _pick(row: Float[torch.Tensor, "all queries"], block: SoftmaxBlock, powers: torch.Tensor, offset: int) -> None:
    """Fill in the cells on the diagonal `offset` keys away from the main one."""
    start, low, high = block.rows.start, block.keys.start, block.keys.stop
    begin = max(start, low - offset)
    end = min(block.rows.stop, high - offset)
    if begin < end:
        cells = powers[:, begin - start : end - start, begin + offset - low : end + offset - low]
        row[block.heads, begin:end] = cells.diagonal(dim1=-2, dim2=-1)
