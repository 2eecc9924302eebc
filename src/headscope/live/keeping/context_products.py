"""Products of contexts: one number per query and head, kept so that every context can be compared later.

Each is the product of a query's context with a fixed random vector r. If a recomputed context c' differs from the
module's c, then (c' - c) . r differs from 0 by about |c' - c| (Freivalds 1977), so one number stands for the d_head
numbers of a context. No two numbers of r are alike, so that equal changes of two of them don't cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from headscope.attention.scores import attend
from headscope.live.keeping.contents import direction

if TYPE_CHECKING:
    from headscope.live.calls import Call
    from headscope.live.keeping.copies import Carrier
    from headscope.traces import LayerRecord

CPU = torch.device("cpu")


@cache
def same_direction(heads: int, size: int) -> np.ndarray:
    """(heads, size): the vector, for each head."""
    return direction(size, CPU).expand(heads, -1).numpy()


@dataclass(frozen=True, eq=False)
class ContextProducts:
    """A projection of a module's contexts onto one direction, kept for verification.

    Attributes:
        values: (heads, queries): context . r of each head.
        directions: (heads, d_value): r.
        eps: the spacing of numbers around 1 in the model's precision.
        fused: True if a fused kernel computed the contexts; it sums scores in fp32.
    """

    values: np.ndarray
    directions: np.ndarray
    eps: float
    fused: bool

    def expect(self, record: LayerRecord) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Compute, in fp64, the `values` that follow from a layer's record.

        Returns:
            The expected `values`; and, (heads, queries) each, with x_j = v_j . r: the standard deviation of x under the
            row's weights, the root of its mean square, and sum_j p_ij |v_j|.
        """
        assert record.v is not None
        shared = len(record.q) // len(record.k)
        q, k, v = (part.astype(np.float64) for part in (record.q, record.k, record.v))
        projected = np.einsum("hkd,hd->hk", np.repeat(v, shared, 0), self.directions.astype(np.float64))
        lengths = np.repeat(np.sqrt(np.square(v).sum(-1)), shared, 0)
        columns = np.stack([projected, np.square(projected), lengths], -1)
        mixed, _ = attend(q, np.repeat(k, shared, 0), columns, scale=record.scale, mask=record.mask, terms=record.terms)
        means, squares, gathered = (mixed[..., column] for column in range(3))
        spread = np.sqrt(np.maximum(squares - np.square(means), 0))
        return means, spread, np.sqrt(squares), gathered


def products(
    call: Call,
    row: int,
    heads: list[int] | None,
    queries: torch.Tensor | None,
    carrier: Carrier,
) -> ContextProducts | None:
    """The products of one row of the batch; None if the call's output can't be compared.

    Args:
        call: the call.
        row: the row of the batch.
        heads: the heads that are kept; None for all.
        queries: positions that are not padding; None for all.
        carrier: brings its values to the CPU.
    """
    if call.dropout:
        return None
    count, d_value = call.q.shape[1], call.v.shape[-1]
    if call.mark is None:
        # In the memory layout of the interface's functions: query by query, the heads side by side.
        contexts = call.context[row].transpose(0, 1).reshape(-1, d_value)
        mark = torch.mv(contexts.float(), direction(d_value, call.context.device))
    else:
        mark = call.mark.view(len(call.q), -1)[row]
    values = mark.view(-1, count).T
    directions = same_direction(count, d_value)
    if heads is not None:
        values, directions = values[heads], directions[heads]
    if queries is not None:
        values = values[:, queries]
    fused = call.kernel_lse is not None and call.weights is None and not call.rounded
    kept = values if values.device == CPU else carrier.copy(values, torch.float32)
    return ContextProducts(kept.numpy(), directions, call.eps, fused)
