"""The block way: scores once, in blocks that stay in the cache, and every statistic from each while it is there."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from headscope.kernels import ScoreBlock, score_blocks
from headscope.statistics.layer import PICKED, Layer, Sums

if TYPE_CHECKING:
    from jaxtyping import Float

FORBIDDEN = -1e30
"""The score of a forbidden cell: its weight is 0, and so is weight times score, which -inf would not give."""


def sums_by_blocks(layer: Layer, names: Collection[str]) -> Sums:
    """One matrix product for the scores, one exp, one narrow product for all that is linear in the weights.

    With e_ij = exp(s_ij - max_j s_ij) and Z_i = sum_j e_ij: H_i = log Z_i - sum_j e_ij (s_ij - max) / Z_i, the largest
    weight is 1 / Z_i, and 1 / sum_j p_ij^2 = Z_i^2 / sum_j e_ij^2. Memory is O(keys), or O(window).
    """
    batch, heads, queries, _ = layer.q.shape
    keys = layer.k.shape[2]
    count = layer.columns.shape[-1]
    # Key by key in memory: a narrow product with columns that lie side by side takes two to three times as long (MKL).
    columns = layer.columns.expand(batch, heads, keys, count).mT.contiguous().view(-1, count, keys).mT
    mixed = layer.q.new_zeros(batch * heads, queries, count)
    rows = {name: layer.q.new_zeros(batch * heads, queries) for name in _needed(layer, names)}
    spare = layer.q.new_empty(0)
    positions = layer.columns[0, 0, :, 1]
    gaps, gaps_of = positions, slice(0)
    for block in score_blocks(layer.q, layer.k, scale=layer.scale, mask=layer.rule, hidden=FORBIDDEN):
        scores, at = block.scores, (block.heads, block.rows)
        if spare.numel() < scores.numel():
            spare = torch.empty_like(scores).view(-1)
        scores -= scores.amax(-1, keepdim=True)
        powers = torch.exp(scores, out=spare[: scores.numel()].view(scores.shape))
        mixed[at] = torch.bmm(powers, columns[block.heads, block.keys])
        rows["total"][at] = powers.sum(-1)
        if "entropy" in rows:
            rows["entropy"][at] = scores.mul_(powers).sum(-1)
        if "position" in rows:
            rows["position"][at] = torch.mul(powers, positions[block.keys], out=scores).sum(-1)
        if "effective_tokens" in rows:
            rows["effective_tokens"][at] = torch.linalg.vector_norm(powers, dim=-1)
        if "first" in rows and block.keys.start == 0:
            rows["first"][at] = powers[..., 0]
        for name, offset in PICKED.items():
            if name in rows:
                _pick(rows[name], block, powers, layer.at + offset)
        if "distance" in rows:
            if gaps_of != block.rows:  # blocks of all heads follow each other
                gaps, gaps_of = (positions[block.keys] - layer.centred[block.rows, None]).abs(), block.rows
            rows["distance"][at] = torch.mul(powers, gaps, out=scores).sum(-1)
    shape = (batch, heads, queries)
    # A row that sees nothing has no block: 1 keeps it finite until it becomes NaN.
    total = rows.pop("total")
    total = torch.where(total > 0, total, 1)
    mixed /= total[..., None]
    found = {name: row / total for name, row in rows.items()}
    if "entropy" in found:
        found["entropy"] = (total.log() - found["entropy"]).clamp_min(0)
    if "effective_tokens" in found:
        found["effective_tokens"] = found["effective_tokens"].square().reciprocal()
    if "strongest" in names:
        found["strongest"] = total.reciprocal()
    if "position" in found:
        mixed[..., 1] = found.pop("position")
    return Sums({name: row.view(shape) for name, row in found.items()}, mixed.view(*shape, count))


def _needed(layer: Layer, names: Collection[str]) -> list[str]:
    """What is summed row by row.

    Totals, positions and distances are summed by themselves: a matrix product adds up key after key, and where one
    weight is large, fp32 then loses the many small ones, which stand far away.
    """
    needed = ["total", *(name for name in ("effective_tokens", "first", *PICKED) if name in names)]
    if "entropy" in names or "normalised_entropy" in names:
        needed.append("entropy")
    if "offset" in names or "distance" in names:
        needed.append("position")
    return [*needed, "distance"] if layer.two_sided else needed


def _pick(row: Float[torch.Tensor, "all queries"], block: ScoreBlock, powers: torch.Tensor, offset: int) -> None:
    """Fill in the cells that stand `offset` keys from where query and key have the same number."""
    start, low, high = block.rows.start, block.keys.start, block.keys.stop
    begin = max(start, low - offset)
    end = min(block.rows.stop, high - offset)
    if begin < end:
        cells = powers[:, begin - start : end - start, begin + offset - low : end + offset - low]
        row[block.heads, begin:end] = cells.diagonal(dim1=-2, dim2=-1)
