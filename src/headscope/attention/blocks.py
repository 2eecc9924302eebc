"""Scores and their softmax in torch, in blocks of bounded size, for attention that no fused kernel computes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from headscope.attention.scores import EVERYTHING, Mask
from headscope.attention.terms import NO_TERMS, Terms, add_terms

BLOCK_CELLS = {"cpu": 1 << 19}
"""Maximum number of scores in a block: 2 MiB of fp32 on a CPU, so that all work on them stays in the cores' caches."""

OTHER_CELLS = 1 << 24
"""The same for other devices, which need more work at once."""

BLOCK_ROWS = 64
"""Minimum number of rows of a matrix product; blocks may exceed the maximum above to reach it."""

FORBIDDEN = -1e30
"""Score of a forbidden cell. Its weight is 0, and so is weight times score, which would be NaN for -inf."""


def _score_blocks(
    q: torch.Tensor, k: torch.Tensor, scale: float, mask: Mask, terms: Terms
) -> Iterator[tuple[slice, slice, slice, torch.Tensor]]:
    """The heads, queries and keys of each block of `softmax_blocks`, and their scores, overwritten by the next block.

    Only `causal` and `window` are applied, and no sinks. Queries without any key are in no block.
    """
    batch, heads, queries, width = q.shape
    kv_heads, keys = k.shape[1:3]
    shared = heads // kv_heads
    groups = batch * kv_heads
    q, k = q.reshape(groups, shared, queries, width), k.reshape(groups, keys, width).transpose(1, 2)
    reach_first, reach_end = mask.reach(np.arange(queries) + keys - queries, keys)
    cells = BLOCK_CELLS.get(q.device.type, OTHER_CELLS)
    least = max(1, BLOCK_ROWS // shared)
    step = min(max(queries, 1), max(least, cells // max(1, groups * shared * keys)))
    if mask.window is not None and queries:
        # A block of n queries has n more keys than a single query sees, so a narrow window calls for few queries.
        step = min(step, max(least, int((reach_end - reach_first).max()) - 1))
    buffer = q.new_empty(0)
    for start in range(0, queries, step):
        stop = min(start + step, queries)
        firsts, ends = reach_first[start:stop], reach_end[start:stop]
        seeing = firsts < ends
        if not seeing.any():
            continue
        low, high = int(firsts[seeing].min()), int(ends[seeing].max())
        corners = _corners(firsts, ends, (low, high), q.device)
        rows, span = stop - start, high - low
        many = max(1, min(groups, cells // (shared * rows * span)))
        if buffer.numel() < many * shared * rows * span:
            buffer = q.new_empty(many * shared * rows * span)
        for group in range(0, groups, many):
            count = min(many, groups - group)
            scores = buffer[: count * shared * rows * span].view(count, shared * rows, span)
            some = q[group : group + count, :, start:stop].reshape(count, shared * rows, width)
            torch.baddbmm(scores, some, k[group : group + count, :, low:high], beta=0, alpha=scale, out=scores)
            scores = scores.view(count * shared, rows, span)
            if terms.adds or terms.cap is not None:
                members = [head % heads for head in range(group * shared, (group + count) * shared)]
                scores = add_terms(
                    scores,
                    some.view(count * shared, rows, width) * scale,
                    k[group : group + count, :, low:high].transpose(1, 2),
                    terms if members == list(range(heads)) else terms.of_heads(members),
                    scale=scale,
                    rows=np.arange(start, stop),
                    columns=np.arange(low, high),
                    sizes=(queries, keys),
                )
            for columns, forbidden in corners:
                scores[..., columns].masked_fill_(forbidden, FORBIDDEN)
            yield slice(group * shared, (group + count) * shared), slice(start, stop), slice(low, high), scores


def _corners(
    firsts: np.ndarray, ends: np.ndarray, span: tuple[int, int], device: torch.device
) -> list[tuple[slice, torch.Tensor]]:
    """The columns of a block that contain forbidden cells, each with a (rows, columns) mask of these cells.

    Args:
        firsts, ends: the range of keys that each of the block's queries may see.
        span: the range of the block's keys.
        device: the device of the masks.
    """
    low, high = span
    first, end = (torch.as_tensor(x, device=device)[:, None] for x in (firsts, ends))
    left, right = min(int(firsts.max()), high), max(int(ends.min()), low)
    corners = []
    if left > low:
        corners.append((slice(0, left - low), torch.arange(low, left, device=device) < first))
    if right < high:
        corners.append((slice(right - low, high - low), torch.arange(right, high, device=device) >= end))
    return corners


@dataclass(frozen=True, eq=False)
class SoftmaxBlock:
    """The softmax of some heads and consecutive queries, with scores in units of log 2, so that exp becomes 2^x.

    Attributes:
        heads: range of heads, out of batch * heads.
        rows, keys: ranges of queries and keys: a block leaves out keys that none of its queries may look at.
        shifted: (heads, rows, keys), (scores - highest) / log 2, where the highest is the query's largest score or its
            sink; the next block overwrites them.
        powers: (heads, rows, keys), 2^shifted = exp(scores - highest); the next block overwrites them.
        sinks: (heads, rows, 1), (sink - highest) / log 2, -inf for queries without keys; None if there are no sinks.
    """

    heads: slice
    rows: slice
    keys: slice
    shifted: torch.Tensor
    powers: torch.Tensor
    sinks: torch.Tensor | None = None


def softmax_blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    scale: float,
    mask: Mask = EVERYTHING,
    terms: Terms = NO_TERMS,
) -> Iterator[SoftmaxBlock]:
    """The softmax over whole rows in blocks of bounded size, ordered by rows, then heads: O(keys) memory, or O(window).

    The blocks depend only on the shapes and the type of device, not on the number of threads. On a CPU, torch's exp2
    takes a third of the time of exp, and a thirtieth if the result underflows, as it does in every forbidden cell.

    Args:
        q: (batch, heads, queries, width), of 32 bits or more.
        k: (batch, kv_heads, keys, width).
        scale: factor of q . k.
        mask: a mask without a bias. Queries without a key by its causality and window are in no block.
        terms: what the model adds to scale * q . k, before masking.
    """
    forbidden = None if mask.keys is None else ~torch.as_tensor(np.array(mask.keys, dtype=bool), device=q.device)
    spare = q.new_empty(0)
    # Terms are in natural units, so their scores are converted afterwards.
    unit = math.log(2) if terms.nothing else 1.0
    for at, rows, keys, scores in _score_blocks(q, k, scale / unit, mask, terms):
        if unit == 1:
            scores /= math.log(2)
        if forbidden is not None:
            scores.masked_fill_(forbidden[keys], FORBIDDEN)
        highest = scores.amax(-1, keepdim=True)
        sinks = None
        if terms.sinks is not None:
            empty = highest <= FORBIDDEN
            sinks = terms.sinks.to(highest)[[head % q.shape[1] for head in range(at.start, at.stop)]] / math.log(2)
            sinks = sinks[:, None, None].expand(highest.shape)
            highest = torch.where(empty, highest, torch.maximum(highest, sinks))
            sinks = (sinks - highest).masked_fill(empty, float("-inf"))
        scores -= highest
        if spare.numel() < scores.numel():
            spare = torch.empty_like(scores).view(-1)
        powers = torch.exp2(scores, out=spare[: scores.numel()].view(scores.shape))
        yield SoftmaxBlock(at, rows, keys, scores, powers, sinks)
