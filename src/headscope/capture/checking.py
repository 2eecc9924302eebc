"""Whether what was captured leads to what the module computed: a few queries at once, every query later.

At capture time, the contexts of a few queries are recomputed from Q, K, V, the mask's rule and the log-sum-exps, and
compared with what the module gave: attention that isn't softmax(scale Q K^T + mask) V is refused then and there.

For every query, a witness is kept: its context's product with a fixed vector of signs r. If a recomputed context c'
differs from the module's c, then (c' - c) . r differs from 0 by about |c' - c| (Freivalds 1977): one number per query
and head witnesses d_head of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from headscope.attention import attend, scores, weights

if TYPE_CHECKING:
    from headscope.capture.calls import Call
    from headscope.trace import LayerRecord

SAMPLED_ROWS = 2
"""Rows of a batch of which queries are sampled."""

SAMPLED_QUERIES = 4
"""Queries that are recomputed in each."""


def signs(size: int) -> np.ndarray:
    """(size,) of 1 and -1, always the same ones."""
    return np.where(np.random.default_rng(size).random(size) < 0.5, -1.0, 1.0).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Witness:
    """What is kept of a module's output for verification.

    Attributes:
        values: (heads, queries): context . r of each head; or (1, queries): output . r, where only what comes after
            the output projection could be seen.
        directions: (heads, d_value): r, or each head's rows of W_O times r.
        offset: the projection's bias times r.
        eps: the spacing of numbers around 1 in the model's precision.
    """

    values: np.ndarray
    directions: np.ndarray
    offset: float
    eps: float

    def expect(self, record: LayerRecord) -> np.ndarray:
        """What `values` must be if the layer's record is right, in fp64."""
        assert record.v is not None
        q, k, v = (part.astype(np.float64) for part in (record.q, record.k, record.v))
        context, _ = attend(q, k, v, scale=record.scale, mask=record.mask)
        found: np.ndarray = np.einsum("hqd,hd->hq", context, self.directions.astype(np.float64))
        return found if len(self.values) > 1 or len(found) == 1 else found.sum(0, keepdims=True) + self.offset


def witness(call: Call, row: int, heads: list[int] | None, queries: torch.Tensor | None) -> Witness | None:
    """The witness of one row of the batch; None where the call's output can't be witnessed.

    Args:
        heads: those that are kept; None for all.
        queries: positions that are not padding; None for all.
    """
    if call.dropout:
        return None
    count, d_value = call.q.shape[1], call.v.shape[-1]
    eps = float(torch.finfo(call.context.dtype).eps)
    if call.returned is None:
        r = torch.from_numpy(signs(d_value)).to(call.context.device)
        values = call.context[row].float() @ r
        directions = np.tile(signs(d_value), (count, 1))
        offset = 0.0
    else:
        if call.silenced or heads is not None or call.projection is None:
            return None
        after = signs(call.returned.shape[-1])
        r = torch.from_numpy(after).to(call.returned.device)
        values = (call.returned[row].float() @ r)[None]
        directions = (r @ call.projection.weight.float()).reshape(count, d_value).cpu().numpy()
        bias = call.projection.bias
        offset = 0.0 if bias is None else float(bias.float() @ r)
    if heads is not None:
        values, directions = values[heads], directions[heads]
    if queries is not None:
        values = values[:, queries]
    return Witness(values.cpu().numpy(), directions, offset, eps)


def deviation(call: Call) -> torch.Tensor | None:
    """How far recomputed contexts of a few queries are from the module's, over what rounding explains.

    Above 1 something other than rounding is at work. A tensor on the device, so that nothing waits for it.
    """
    if call.dropout:
        return None
    queries, keys = call.q.shape[2], call.k.shape[2]
    worst = []
    with torch.autocast(call.q.device.type, enabled=False):
        for row in {0, len(call.q) - 1} if len(call.q) > 1 else {0}:
            rule = call.rules.row(row)
            seen = np.ones(queries, dtype=bool) if rule.queries is None else rule.queries.copy()
            if rule.unseen is not None:
                seen &= ~rule.unseen
            places = np.flatnonzero(seen)
            if not len(places):
                continue
            rows = np.unique(places[np.linspace(0, len(places) - 1, SAMPLED_QUERIES).astype(int)])
            at = torch.from_numpy(rows).to(call.q.device)
            q, k, v = call.q[row][:, at].float(), call.k[row].float(), call.v[row].float()
            raw = scores(
                q, k, scale=call.scale, mask=rule.mask, rows=rows, columns=np.arange(keys), sizes=(queries, keys)
            )
            cells = weights(raw, call.lse[row][:, at].float())
            n, kv_heads = len(rows), len(v)
            ours = (cells.reshape(kv_heads, -1, n, keys) @ v[:, None]).reshape(len(q), n, -1)
            theirs = call.context[row][:, at].float()
            size = v.abs().amax().clamp(min=1e-30)
            if call.returned is not None and call.projection is not None:
                weight, bias = call.projection.weight.float(), call.projection.bias
                ours = torch.nn.functional.linear(
                    ours.transpose(0, 1).flatten(1), weight, None if bias is None else bias.float()
                )
                theirs = call.returned[row][at].float()
                size = size * weight.abs().sum(1).amax()
            worst.append((ours - theirs).abs().amax() / size / _rounding(call, q, k, raw))
    return torch.stack(worst).amax() if worst else None


def _rounding(call: Call, q: torch.Tensor, k: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
    """What rounding explains, in shares of the largest value.

    Scores are sums in fp32, off by its spacing times |q| |k|; contexts are rounded to the model's precision, and where
    the model computed its weights itself, scores are too.
    """
    eps = torch.finfo(call.context.dtype if call.returned is None else call.returned.dtype).eps
    reach = abs(call.scale) * q.norm(dim=-1).amax() * k.norm(dim=-1).amax()
    found: torch.Tensor = 1e-4 + 4 * eps + 8 * torch.finfo(torch.float32).eps * reach
    if call.weights is not None or call.returned is not None:
        found = found + 2 * eps * raw.masked_fill(raw == float("-inf"), 0).abs().amax()
    return found
