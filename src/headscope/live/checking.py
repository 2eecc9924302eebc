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
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from headscope.attention.scores import FAR, scores
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
"""The queries of one row of a batch that are recomputed, as the first attributes of `_Probe` say it."""

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
    if not len(places) or places[-1] - places[0] == len(places) - 1:
        step = max(1, (len(places) - 1) // (SAMPLED_QUERIES - 1))
        return places[::-step][:SAMPLED_QUERIES][::-1]
    return np.unique(places[np.linspace(0, len(places) - 1, SAMPLED_QUERIES).astype(int)])


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


class _Probe(NamedTuple):
    """A few queries of one row of a call, with all that their contexts are recomputed from.

    Attributes:
        at: their positions; a slice, which copies nothing, if the eligible queries are contiguous.
        rows: (n,), their positions.
        hidden: (1 or heads, n, keys), what the mask adds to their scores, -inf where masked; None if it adds nothing.
        empty: (1 or heads, n, 1), True for queries that see no key in a head; None if there are none.
        call: the call.
        q: (heads, n, d_head), of these queries.
        k, v: (kv_heads, keys, d_head) and (kv_heads, keys, d_value).
        observed: (heads, n, d_value), the module's contexts.
        terms: the score terms of the row.
    """

    at: slice | torch.Tensor
    rows: np.ndarray
    hidden: torch.Tensor | None
    empty: torch.Tensor | None
    call: Call
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    observed: torch.Tensor
    terms: Terms


def excess(call: Call) -> torch.Tensor | None:
    """Error of the recomputed contexts of a few queries, in multiples of what rounding explains.

    Returns:
        A number on the call's device, which nothing has waited for, of the first and the last row of the batch; NaN if
        the numbers compared are not finite. None without tokens, and under dropout: contexts can't be recomputed.
    """
    if call.dropout or not call.context.numel():
        return None
    times = [
        _times(_probe_of(call, row, sample, call.k[row].float(), call.v[row].float()), None).amax()
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
                probe = _probe_of(call, row, sample, k, v)
                returned = None if call.weights is None else call.weights[row, :, probe.at]
                times = _times(probe, returned)
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


def _probe_of(call: Call, row: int, sample: Sample, k: torch.Tensor, v: torch.Tensor) -> _Probe:
    """A probe of one row of a call."""
    at, *_ = sample
    q, observed = (x[row, :, at] for x in (call.q, call.context))
    return _Probe(*sample, call, q.float(), k, v, observed, call.terms(row))


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
    return torch.where(empty.to(observed.device) & observed.isnan(), recomputed.to(observed.dtype), observed)


def _recompute(probe: _Probe) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights (heads, n, keys) and contexts (heads, n, d_value); contexts of queries without keys are 0."""
    q, k, v, terms = probe.q, probe.k, probe.v, probe.terms
    heads, n, width = q.shape
    shared = (len(k), heads // len(k) * n, width)
    cells = torch.bmm((q * probe.call.scale).reshape(shared), k.transpose(1, 2))
    if not terms.nothing:
        cells = _with_terms(cells.view(heads, n, -1), probe).view(*shared[:2], -1)
    if probe.hidden is not None:
        cells.view(heads, n, -1).add_(probe.hidden.to(q.device))
    if terms.sinks is None:
        weights = torch.softmax(cells, -1)
    else:
        sinks = terms.sinks.to(cells)[:, None, None].expand(-1, n, 1).reshape(len(k), -1, 1)
        weights = torch.softmax(torch.cat([cells, sinks], -1), -1)[..., :-1]
    contexts = torch.bmm(weights, v).view(heads, n, -1)
    if probe.empty is not None:
        contexts = contexts.masked_fill(probe.empty.to(contexts.device), 0)
    return weights.view(heads, n, -1), contexts


def _with_terms(cells: torch.Tensor, probe: _Probe) -> torch.Tensor:
    """The sampled queries' scores, (heads, n, keys), with the terms and the cap."""
    scale, sizes = probe.call.scale, (probe.call.q.shape[2], probe.k.shape[1])
    rows, columns = probe.rows, np.arange(sizes[1])
    return add_terms(cells, probe.q * scale, probe.k, probe.terms, scale=scale, rows=rows, columns=columns, sizes=sizes)


def _times(probe: _Probe, returned: torch.Tensor | None) -> torch.Tensor:
    """(heads, n): each query's error, in multiples of what rounding explains.

    Args:
        probe: the queries.
        returned: (heads, n, keys), the weights that the module returned, if it did.
    """
    weights, contexts = _recompute(probe)
    heads = len(contexts)
    share = _share(probe)
    largest = _for_each_head(probe.v.abs().amax(1, keepdim=True), heads)
    observed, tolerance = probe.observed.float(), share * largest
    empty = probe.empty
    times = _worst(contexts - _without_nan(observed, contexts, empty), tolerance)
    if returned is None or returned.shape != weights.shape:
        return times
    if empty is not None:
        weights = weights.masked_fill(empty.to(weights.device), 0)
    different = weights - _without_nan(returned.float(), weights, empty)
    return torch.maximum(times, _worst(different, 2 * share * weights + LEAST_WEIGHT))


def _for_each_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x if len(x) == heads else x.repeat_interleave(heads // len(x), 0)


def _worst(difference: torch.Tensor, tolerance: torch.Tensor) -> torch.Tensor:
    return (difference.abs() / tolerance.clamp(min=1e-30)).amax(-1)


def _share(probe: _Probe) -> torch.Tensor:
    """(heads, n, 1): the error of a context that rounding explains, as a share of the largest value."""
    call, heads, width = probe.call, len(probe.q), probe.q.shape[-1]
    longest = _for_each_head(torch.linalg.vector_norm(probe.k, dim=-1).amax(1), heads)[:, None, None]
    rounding = 2 * width**0.5 * EPS + call.rounded
    error = torch.linalg.vector_norm(probe.q, dim=-1, keepdim=True) * longest * (rounding * abs(call.scale))
    if not probe.terms.nothing:
        error = error + rounding * _reach_of_terms(probe)
    if probe.hidden is not None:
        shift = probe.hidden.amax(-1, keepdim=True).to(error.device)
        error = error + EPS * shift.masked_fill(shift == float("-inf"), 0).abs()
    if (call.weights is not None or call.unfused) and not call.rounded and call.eps > EPS:
        error = error + 2 * call.eps * _raw_scores(probe).abs().amax(-1, keepdim=True)
    sums = SUMS + 2 * probe.k.shape[1] ** 0.5 * EPS
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


def _raw_scores(probe: _Probe) -> torch.Tensor:
    """(heads, n, keys): the numbers that a module which computes step by step rounds before its softmax."""
    raw = scores(probe.q, probe.k, scale=probe.call.scale)
    raw = raw if probe.terms.nothing else _with_terms(raw, probe)
    if probe.hidden is not None:
        hidden = probe.hidden.to(raw.device)
        raw = raw + hidden.masked_fill(hidden.abs() > FAR, 0)
    return raw


def _reach_of_terms(probe: _Probe) -> float:
    """An upper bound of what the terms add to a score."""
    longest_q, longest_k = (float(x.norm(dim=-1).amax()) for x in (probe.q, probe.k))
    terms = probe.terms.mapped(lambda table: table.float().cpu())
    return float(terms.reach(longest_q, longest_k, probe.call.scale))
