"""Attention over a batch with a mask for each row: contexts, log-sum-exps, and which queries count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headscope.attention.kernels import attend_with_lse, check_log_sum_exps
from headscope.attention.terms import NO_TERMS, Terms

if TYPE_CHECKING:
    from headscope.live.masks.analyst import Rules


def contexts(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, rules: Rules, terms: Terms = NO_TERMS
) -> tuple[torch.Tensor, torch.Tensor]:
    """Contexts (batch, heads, queries, d_value) and log-sum-exps (batch, heads, queries), row by row.

    Args:
        q, k, v: (batch, heads, tokens, width), with fewer heads in k and v under grouped-query attention.
        scale: factor of q . k.
        rules: the masks of the batch.
        terms: the layer's own terms.
    """
    with torch.autocast(q.device.type, enabled=False):
        if rules.shared:
            return attend_with_lse(q, k, v, scale=scale, mask=rules.row(0).mask, terms=rules.row(0).with_terms(terms))
        rows = [
            attend_with_lse(q[i], k[i], v[i], scale=scale, mask=rule.mask, terms=rule.with_terms(terms))
            for i, rule in enumerate(map(rules.row, range(len(q))))
        ]
    return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])


def log_sum_exps(
    lse: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    rules: Rules,
    terms: Terms = NO_TERMS,
) -> torch.Tensor:
    """(batch, heads, queries): the log-sum-exps of the model's own kernel, or computed here if it gave none.

    Args:
        lse: those of the kernel, or None.
        q, k, v: as in `contexts`.
        scale: factor of q . k.
        rules: the masks of the batch.
        terms: the layer's own terms.
    """
    batch, _, queries, _ = q.shape
    if lse is None:
        _, lse = contexts(q, k, v.to(q.dtype), scale, rules, terms)
    elif rules.row(0).with_terms(terms).nothing:
        check_log_sum_exps("the model's kernel", lse, q, k, scale=scale, mask=rules.row(0).mask)
    if all(row.unseen is None for row in rules.rows):
        return lse
    rows = [
        torch.zeros(queries, dtype=torch.bool) if unseen is None else torch.from_numpy(unseen.copy())
        for unseen in (rules.row(i).unseen for i in range(batch))
    ]
    return lse.masked_fill(torch.stack(rows).to(lse.device)[:, None], float("-inf"))


def score_bound(q: torch.Tensor, k: torch.Tensor, scale: float) -> float:
    """An upper bound of all scores (Cauchy-Schwarz)."""
    if not q.numel() or not k.numel():
        return 0.0
    longest = [float(torch.linalg.vector_norm(x.detach().float(), dim=-1).amax()) for x in (q, k)]
    return abs(scale) * longest[0] * longest[1]


def kept_queries(rules: Rules, batch: int, like: torch.Tensor) -> torch.Tensor | None:
    """(batch, queries) bool: True for positions that are neither padding nor masked out; None if all are.

    Args:
        rules: the masks of the batch.
        batch: number of rows.
        like: (batch, heads, queries, …), a tensor of the call.
    """
    if all(row.counted is None for row in rules.rows):
        return None
    rows = [
        torch.ones(like.shape[2], dtype=torch.bool) if counted is None else torch.from_numpy(counted.copy())
        for counted in (rules.row(i).counted for i in range(batch))
    ]
    return torch.stack(rows).to(like.device)
