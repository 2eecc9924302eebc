"""Check that captured tensors reproduce the module's output, in every call, while the model runs.

Contexts are recomputed from Q, K, V, the mask's rule and the score terms, and compared with the module's output.
Attention that isn't softmax(scale Q K^T + mask) V raises an error. Of the libraries' own attention, which treats all
queries alike, a few queries are recomputed (`excess`); of any other, which may change a single cell, every query of
every row, in blocks (`refuse_altered`).

The tolerance of each number follows from rounding alone, by the derivation in headscope.verify.rounding: errors of
scores within [-d, d] change a context by at most (exp(2 d) - 1) / 2 times the largest value, and rounding weights,
values and sums by a few units of that.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from headscope.attention.scores import FAR
from headscope.attention.terms import Terms, add_terms
from headscope.errors import UnsupportedError
from headscope.live.masks.analyst import score_bound
from headscope.live.plan.refusals import refuse

if TYPE_CHECKING:
    from headscope.live.calls import Call
    from headscope.live.masks.analyst import RowRule

EPS = torch.finfo(torch.float32).eps

SAMPLED_QUERIES = 4
"""Number of queries recomputed in the first and in the last row of a batch."""

CELLS = {"cpu": 1 << 20}
"""Maximum number of scores in a block of queries: 4 MiB of fp32 on a CPU."""

OTHER_CELLS = 1 << 24
"""The same for other devices, which need more work at once."""

SUMS = 1e-5
"""Error of exponentials and short sums in fp32, as a share of the largest value."""

LEAST_WEIGHT = 1e-7
"""Weights may differ by this, whatever their size: fp16 has no smaller numbers."""

Sample = tuple["slice | torch.Tensor", np.ndarray, "torch.Tensor | None", "torch.Tensor | None"]
"""A few queries of one row of a batch, with the mask: how to index them, by a slice, which copies nothing, if they are
evenly spread; their positions; (1 or heads, n, keys), what the mask adds to their scores, -inf where masked, or None;
(1 or heads, n, 1), True for queries that see no key in a head, or None if there are none."""

_SAMPLES: WeakKeyDictionary[RowRule, Sample | None] = WeakKeyDictionary()
"""Rule of a row -> its sample. The layers of a forward pass share their rules."""


def _eligible(rule: RowRule, queries: int) -> np.ndarray:
    """Positions of the queries that are not padding."""
    return np.arange(queries) if rule.queries is None else np.flatnonzero(rule.queries)


def _sampled(rule: RowRule, queries: int) -> np.ndarray:
    """A few eligible queries: some that see keys, spread evenly, with the last; and one that sees none."""
    places = _eligible(rule, queries)
    if rule.unseen is None:
        return _spread(places)
    unseen = rule.unseen[places]
    return np.sort(np.concatenate([_spread(places[~unseen]), places[unseen][:1]]))


def _spread(places: np.ndarray) -> np.ndarray:
    """A few of these positions, spread evenly, with the last."""
    step = max(1, (len(places) - 1) // (SAMPLED_QUERIES - 1))
    return places[::-step][:SAMPLED_QUERIES][::-1]


def _sample_at(rule: RowRule, rows: np.ndarray, queries: int, keys: int, device: torch.device) -> Sample:
    """These queries, with what the mask adds to their scores."""
    steps = np.unique(np.diff(rows))
    index: slice | torch.Tensor
    if len(steps) <= 1:
        index = slice(int(rows[0]), int(rows[-1]) + 1, int(steps[0]) if len(steps) else 1)
    else:
        index = torch.from_numpy(rows).to(device)
    if rule.mask.everything:
        return index, rows, None, None
    bias = rule.mask.bias
    hidden = torch.zeros(1, len(rows), keys, device=device) if bias is None else bias[:, rows].to(device)
    allowed = rule.mask.allowed(rows, np.arange(keys), (queries, keys))
    if allowed is not None:
        hidden = hidden.masked_fill(torch.from_numpy(~allowed).to(hidden.device), float("-inf"))
    empty = (hidden == float("-inf")).all(-1, keepdim=True)
    return index, rows, hidden, empty if bool(empty.any()) else None


def excess(call: Call) -> torch.Tensor | None:
    """Error of the recomputed contexts of a few queries, in multiples of what rounding explains.

    Returns:
        A number on the call's device, which nothing has waited for, of the first and the last row of the batch; NaN if
        the numbers compared are not finite. None without tokens, and under dropout: contexts can't be recomputed.
    """
    if call.dropout or not call.context.numel():
        return None
    times = [
        _times(call, row, sample, call.k[row].float(), call.v[row].float()).amax()
        for row in sorted({0, len(call.q) - 1})
        if (sample := _sample_of(call, row)) is not None
    ]
    return reduce(torch.maximum, times) if times else None


def refuse_altered(call: Call) -> None:
    """Compare every query of a call.

    Raises:
        UnsupportedError: rounding doesn't explain the difference, or dropout makes a comparison impossible.
    """
    kind = type(call.module).__name__
    where = f"{call.path or kind}, layer {call.layer}"
    if call.dropout:
        raise UnsupportedError(
            f"{kind} applies dropout in attention that isn't a library's own, so its contexts can't be compared",
            where=where,
            advice="call model.eval() first",
        )
    if not call.k.numel():
        return  # all contexts are 0
    device = call.q.device.type
    with (
        torch.no_grad(),
        torch.autocast(device, enabled=False),
        torch._C.DisableTorchFunction(),
        _disable_current_modes(),
    ):
        for row in range(len(call.q)):
            places = _eligible(call.rules.row(row), call.q.shape[2])
            k, v = call.k[row].float(), call.v[row].float()
            step = max(1, CELLS.get(device, OTHER_CELLS) // (call.q.shape[1] * k.shape[1]))
            for start in range(0, len(places), step):
                part = places[start : start + step]
                sample = _sample_at(call.rules.row(row), part, call.q.shape[2], k.shape[1], call.q.device)
                returned = None if call.weights is None else call.weights[row, :, sample[0]]
                times = _times(call, row, sample, k, v, returned)
                if not bool((times <= 1).all()):
                    head, query = divmod(int(times.argmax()), len(part))
                    place = f"{where}, row {row}, head {head}, query {part[query]}"
                    refuse(float(times.max()), kind, place)


def _sample_of(call: Call, row: int) -> Sample | None:
    """The queries of a row of the batch that are recomputed; None if none can be."""
    rule, queries = call.rules.row(row), call.q.shape[2]
    if rule not in _SAMPLES:
        rows = _sampled(rule, queries)
        _SAMPLES[rule] = _sample_at(rule, rows, queries, call.k.shape[2], call.q.device) if len(rows) else None
    return _SAMPLES[rule]


def _without_nan(observed: torch.Tensor, recomputed: torch.Tensor, empty: torch.Tensor | None) -> torch.Tensor:
    """The observed numbers, with the recomputed ones where a query sees no key and the module computed NaN.

    A softmax over no key is 0 in fused kernels, and NaN where it is written out. Anything else shows that the query
    looks at keys: a mask of finite numbers hides none of them if it is the same for all.

    Args:
        observed: (..., heads, n, width).
        recomputed: of the same shape.
        empty: (1 or heads, n, 1), True for queries that see no key in a head; None if there are none.
    """
    if empty is None:
        return observed
    return torch.where(empty & observed.isnan(), recomputed, observed)


def _times(
    call: Call, row: int, sample: Sample, k: torch.Tensor, v: torch.Tensor, returned: torch.Tensor | None = None
) -> torch.Tensor:
    """(heads, n): each query's error, in multiples of what rounding explains. Contexts of queries without keys are 0.

    Args:
        call: the call.
        row: the row of the batch.
        sample: the queries.
        k, v: (kv_heads, keys, d_head) and (kv_heads, keys, d_value), of the row in fp32.
        returned: (heads, n, keys), the weights that the module returned, if it did.
    """
    at, rows, hidden, empty = sample
    q, observed, terms = call.q[row, :, at].float(), call.context[row, :, at].float(), call.terms(row)
    (heads, n, width), sizes, scaled = q.shape, (call.q.shape[2], k.shape[1]), q * call.scale
    cells = torch.bmm(scaled.reshape(len(k), -1, width), k.transpose(1, 2)).view(heads, n, -1)
    if not terms.nothing:
        columns = np.arange(sizes[1])
        cells = add_terms(cells, scaled, k, terms, scale=call.scale, rows=rows, columns=columns, sizes=sizes)
    hidden = None if hidden is None else hidden.to(q.device)
    share = _share(call, q, k, terms, hidden, cells)
    if hidden is not None:
        cells += hidden
    if terms.sinks is None:
        weights = torch.softmax(cells, -1)
    else:
        sinks = terms.sinks.to(cells)[:, None, None].expand(-1, n, 1)
        weights = torch.softmax(torch.cat([cells, sinks], -1), -1)[..., :-1]
    contexts = torch.bmm(weights.reshape(len(v), -1, sizes[1]), v).view(heads, n, -1)
    if empty is not None:
        empty = empty.to(q.device)
        contexts, weights = (x.masked_fill(empty, 0) for x in (contexts, weights))
    largest = _for_each_head(v.abs().amax(1, keepdim=True), heads)
    times = _worst(contexts - _without_nan(observed, contexts, empty), share * largest)
    if returned is None or returned.shape != weights.shape:
        return times
    different = weights - _without_nan(returned.float(), weights, empty)
    return torch.maximum(times, _worst(different, 2 * share * weights + LEAST_WEIGHT))


def _for_each_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x if len(x) == heads else x.repeat_interleave(heads // len(x), 0)


def _worst(difference: torch.Tensor, tolerance: torch.Tensor) -> torch.Tensor:
    return (difference.abs() / tolerance.clamp(min=1e-30)).amax(-1)


def _share(
    call: Call, q: torch.Tensor, k: torch.Tensor, terms: Terms, hidden: torch.Tensor | None, cells: torch.Tensor
) -> torch.Tensor:
    """(heads, n, 1): the error of a context that rounding explains, as a share of the largest value.

    Args:
        call: the call.
        q, k: (heads, n, d_head), of the queries, and (kv_heads, keys, d_head).
        terms: the score terms of the row.
        hidden: what the mask adds to the scores, if it does.
        cells: (heads, n, keys), the scores before that.
    """
    lengths, reaches = (torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (q, k))
    longest = _for_each_head(reaches.amax(1, keepdim=True), len(q))
    rounding = 2 * q.shape[-1] ** 0.5 * EPS + call.rounded
    error = lengths * longest * (rounding * abs(call.scale))
    if not terms.nothing:
        reach = terms.mapped(lambda table: table.float().cpu()).reach
        error = error + rounding * float(reach(float(lengths.amax()), float(reaches.amax()), call.scale))
    if hidden is not None:
        shift = hidden.amax(-1, keepdim=True)
        error = error + EPS * shift.masked_fill(shift == float("-inf"), 0).abs()
    if (call.weights is not None or call.unfused) and not call.rounded and call.eps > EPS:
        # A module that computes step by step rounds these numbers before its softmax.
        raw = cells if hidden is None else cells + hidden.masked_fill(hidden.abs() > FAR, 0)
        error = error + 2 * call.eps * raw.abs().amax(-1, keepdim=True)
    sums = SUMS + 2 * k.shape[1] ** 0.5 * EPS
    return sums + 2 * call.eps + torch.expm1(2 * error.clamp(max=1)) / 2


def share_of(q: torch.Tensor, k: torch.Tensor, eps: float) -> float:
    """The error of all contexts of a call that rounding explains, step by step, as a share of the largest values.

    Args:
        q, k: (batch, heads, tokens, d_head).
        eps: the spacing of numbers around 1 in the module's precision.
    """
    width = q.shape[-1]
    error = 2 * (width**0.5 * EPS + eps) * score_bound(q, k, width**-0.5)
    return SUMS + 4 * eps + float(np.expm1(2 * min(error, 1))) / 2
