"""Attention over a batch whose rows have masks of their own: contexts, log-sum-exps, which queries count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headscope.kernels import attend_with_lse

if TYPE_CHECKING:
    from headscope._capture.masks import Rules


def contexts(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, rules: Rules
) -> tuple[torch.Tensor, torch.Tensor]:
    """Contexts (batch, heads, queries, d_value) and log-sum-exps, each row of the batch by its own rule."""
    with torch.autocast(q.device.type, enabled=False):
        if rules.shared:
            return attend_with_lse(q, k, v, scale=scale, mask=rules.row(0).mask)
        rows = [attend_with_lse(q[i], k[i], v[i], scale=scale, mask=rules.row(i).mask) for i in range(len(q))]
    return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])


def log_sum_exps(
    lse: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, rules: Rules
) -> torch.Tensor:
    """(batch, heads, queries): what the model's own kernel computed, else one more fused call or blocks."""
    batch, _, queries, _ = q.shape
    if lse is None:
        _, lse = contexts(q, k, v.to(q.dtype), scale, rules)
    if all(row.unseen is None for row in rules.rows):
        return lse
    rows = [
        torch.zeros(queries, dtype=torch.bool) if one is None else torch.from_numpy(one.copy())
        for one in (rules.row(i).unseen for i in range(batch))
    ]
    return lse.masked_fill(torch.stack(rows).to(lse.device)[:, None], float("-inf"))


def score_bound(q: torch.Tensor, k: torch.Tensor, scale: float) -> float:
    """No score is larger than this (Cauchy-Schwarz)."""
    if not q.numel() or not k.numel():
        return 0.0
    longest = [float(torch.linalg.vector_norm(x.detach().float(), dim=-1).amax()) for x in (q, k)]
    return abs(scale) * longest[0] * longest[1]


def kept_queries(rules: Rules, batch: int, like: torch.Tensor) -> torch.Tensor | None:
    """(batch, queries) bool: positions that are neither padding nor masked out; None where all are."""
    if all(row.counted is None for row in rules.rows):
        return None
    rows = [
        torch.ones(like.shape[2], dtype=torch.bool) if one is None else torch.from_numpy(one.copy())
        for one in (rules.row(i).counted for i in range(batch))
    ]
    return torch.stack(rows).to(like.device)
