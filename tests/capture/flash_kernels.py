"""FlashAttention by the formula, with the signatures of flash-attn 2, flash-attn 3 and kernels from the hub."""

from __future__ import annotations

from typing import Any

import torch


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None,
    causal: bool,
    window: tuple[int, int],
    cap: float,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Contexts (batch, queries, heads, d_value) and log-sum-exps (batch, heads, queries).

    Args:
        q, k, v: (batch, tokens, heads, width), with fewer heads in k and v under grouped-query attention.
        scale: factor of q . k.
        causal, window: aligned at the last query and the last key; -1 is no limit.
        cap: the soft cap; 0 for none.
        sinks: (heads,).
    """
    shared = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(shared, 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q.float(), k.float()) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if cap:
        scores = cap * torch.tanh(scores / cap)
    distance = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] - (k.shape[1] - q.shape[1])
    left, right = window[0], 0 if causal else window[1]
    if left >= 0:
        scores = scores.masked_fill(distance < -left, float("-inf"))
    if right >= 0:
        scores = scores.masked_fill(distance > right, float("-inf"))
    logits = (
        scores
        if sinks is None
        else torch.cat([scores, sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    )
    lse = logits.logsumexp(-1)
    weights = (scores - lse[..., None]).exp()
    return torch.einsum("bhij,bjhd->bihd", weights, v.float()).to(q.dtype), lse


def apart(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for texts of several lengths in a row: (tokens, heads, width), and where each text begins."""
    parts = [
        attend(q[a:b][None], k[c:d][None], v[c:d][None], **options)
        for a, b, c, d in zip(queries, queries[1:], keys, keys[1:], strict=False)
    ]
    return torch.cat([context[0] for context, _ in parts]), torch.cat([lse[0] for _, lse in parts], -1)


class Flash2:
    """flash-attn 2, and kernels-community/flash-attn2: they return contexts."""

    @staticmethod
    def flash_attn_func(
        q: Any,
        k: Any,
        v: Any,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Any = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> torch.Tensor:
        return attend(q, k, v, scale=softmax_scale, causal=causal, window=window_size, cap=softcap)[0]

    @staticmethod
    def flash_attn_varlen_func(
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Any = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: Any = None,
    ) -> torch.Tensor:
        options = {"scale": softmax_scale, "causal": causal, "window": window_size, "cap": softcap}
        return apart(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)[0]


class Flash3:
    """kernels-community/vllm-flash-attn3, and early versions of flash-attn 3: contexts and log-sum-exps, and sinks."""

    @staticmethod
    def flash_attn_func(
        q: Any,
        k: Any,
        v: Any,
        softmax_scale: float | None = None,
        causal: bool = False,
        qv: Any = None,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        num_splits: int = 1,
        pack_gqa: Any = None,
        deterministic: bool = False,
        sm_margin: int = 0,
        s_aux: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return attend(q, k, v, scale=softmax_scale, causal=causal, window=window_size, cap=softcap, sinks=s_aux)

    @staticmethod
    def flash_attn_varlen_func(
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        max_seqlen_q: int,
        max_seqlen_k: int,
        seqused_q: Any = None,
        seqused_k: Any = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        qv: Any = None,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        num_splits: int = 1,
        pack_gqa: Any = None,
        deterministic: bool = False,
        sm_margin: int = 0,
        s_aux: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        options = {"scale": softmax_scale, "causal": causal, "window": window_size, "cap": softcap, "sinks": s_aux}
        return apart(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)
