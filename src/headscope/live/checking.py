"""Check that captured tensors reproduce the module's output, in every call, while the model runs.

Contexts are recomputed from Q, K, V, the mask's rule and the score terms, and compared with the module's output.
Attention that isn't softmax(scale Q K^T + mask) V raises an error. Of the libraries' own attention, which treats all
queries alike, a few queries are recomputed: at once (`excess`), or kept as a `Probe` and recomputed together with those
of other layers (`first_excess`), which takes a third of the time. Of any other, `refuse_altered` recomputes every query
of every row, in blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from headscope.attention.scores import FAR, scores
from headscope.attention.terms import NO_TERMS, Terms, add_terms

if TYPE_CHECKING:
    from headscope.live.calls import Call, Projection
    from headscope.live.masks.finding import RowRule

EPS = torch.finfo(torch.float32).eps

SAMPLED_QUERIES = 4
"""Number of queries recomputed in the first and in the last row of a batch."""

BATCH_CELLS = 1 << 22
"""Maximum number of scores of the queries that are recomputed together."""


@dataclass(frozen=True, eq=False)
class Sample:
    """The queries of one row of a batch that are recomputed.

    Attributes:
        index: their positions; a slice, which copies nothing, if the eligible queries are contiguous.
        rows: (n,), their positions.
        hidden: (1 or heads, n, keys), what the mask adds to their scores, -inf where masked; None if it adds nothing.
        empty: (1 or heads, n, 1), True for queries that see no key in a head; None if there are none.
    """

    index: slice | torch.Tensor
    rows: np.ndarray
    hidden: torch.Tensor | None
    empty: torch.Tensor | None = None


_SAMPLES: WeakKeyDictionary[RowRule, Sample | None] = WeakKeyDictionary()
"""Rule of a row -> its sample. The layers of a forward pass share their rules."""


def eligible(rule: RowRule, queries: int) -> np.ndarray:
    """Positions of the queries that are not padding."""
    return np.arange(queries) if rule.queries is None else np.flatnonzero(rule.queries)


def _sampled(rule: RowRule, queries: int) -> np.ndarray:
    """A few eligible queries: some that see keys, spread evenly, with the last; and one that sees none."""
    places = eligible(rule, queries)
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


def sample_at(rule: RowRule, rows: np.ndarray, queries: int, keys: int, device: torch.device) -> Sample:
    """These queries, with what the mask adds to their scores."""
    steps = np.unique(np.diff(rows))
    index: slice | torch.Tensor
    if len(steps) <= 1:
        index = slice(int(rows[0]), int(rows[-1]) + 1, int(steps[0]) if len(steps) else 1)
    else:
        index = torch.from_numpy(rows).to(device)
    if rule.mask.everything:
        return Sample(index, rows, None)
    bias = rule.mask.bias
    hidden = torch.zeros(1, len(rows), keys, device=device) if bias is None else bias[:, rows].to(device)
    allowed = rule.mask.allowed(rows, np.arange(keys), (queries, keys))
    if allowed is not None:
        hidden = hidden.masked_fill(torch.from_numpy(~allowed).to(hidden.device), float("-inf"))
    empty = (hidden == float("-inf")).all(-1, keepdim=True)
    return Sample(index, rows, hidden, empty if bool(empty.any()) else None)


class Probe(NamedTuple):
    """A few queries of one row of a call, with all that their contexts are recomputed from.

    Attributes:
        sample: the queries.
        q: (heads, n, d_head), of these queries.
        k, v: (kv_heads, keys, d_head) and (kv_heads, keys, d_value).
        observed: (heads, n, d_value), the module's contexts; or (n, d_out), its outputs, if there is a projection.
        projection: the projection inside the module, if only its output could be observed.
        scale, terms: what scores are made of.
        queries: number of queries of the row, padding included.
        eps: the spacing of numbers around 1 in the module's precision.
        stepwise: True if the module computed scores in its own precision.
        rounded: as in `Call`.
    """

    sample: Sample
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    observed: torch.Tensor
    projection: Projection | None
    scale: float
    terms: Terms
    queries: int
    eps: float
    stepwise: bool
    rounded: float


def excess(call: Call) -> float | None:
    """Error of the recomputed contexts of a few queries, in multiples of what rounding explains.

    Returns:
        None if rounding explains the error, and under dropout, where contexts can't be recomputed. NaN if the numbers
        compared are not finite.
    """
    return next((times for probe in _probes(call) if (times := _excess(probe)) is not None), None)


def pending_excess(call: Call) -> torch.Tensor | None:
    """The same as a tensor on the call's device, which nothing waits for; at most 1 if rounding explains the error."""
    times = [_difference(probe)[0] / _rounding(probe) for probe in _probes(call)]
    return torch.stack(times).amax() if times else None


def later_probe(call: Call, row: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Probe | None:
    """A probe that remains valid when the call is over; None if there is nothing to recompute.

    Args:
        call: a call without terms, whose contexts were observed.
        row: the row of the batch.
        q, k, v: copies of the row's queries, keys and values in fp32, which are compared instead of the live ones.
    """
    sample = sample_of(call, row)
    if sample is None:
        return None
    observed = call.context[row, :, sample.index].clone()
    return probe_of(call, sample, q[:, sample.index], k, v, observed, NO_TERMS)


def first_excess(probes: Sequence[Probe]) -> tuple[int, float] | None:
    """The first of several probes whose error rounding doesn't explain: its index, and the error as in `excess`.

    The probes are those of `later_probe`. Those of the same sizes are recomputed together.
    """
    alike: dict[tuple[Any, ...], list[int]] = {}
    for at, probe in enumerate(probes):
        key = (id(probe.sample), probe.q.shape, probe.k.shape, probe.v.shape, probe.observed.dtype)
        alike.setdefault(key, []).append(at)
    for places in alike.values():
        most = max(1, BATCH_CELLS // max(1, probes[places[0]].q[..., 0].numel() * probes[places[0]].k.shape[1]))
        for start in range(0, len(places), most):
            part = places[start : start + most]
            if _explained([probes[at] for at in part]):
                continue
            for at in part:
                times = _excess(probes[at])
                if times is not None:
                    return at, times
    return None


def sample_of(call: Call, row: int) -> Sample | None:
    """The queries of a row of the batch that are recomputed; None if none can be."""
    rule, queries = call.rules.row(row), call.q.shape[2]
    if rule not in _SAMPLES:
        rows = _sampled(rule, queries)
        _SAMPLES[rule] = sample_at(rule, rows, queries, call.k.shape[2], call.q.device) if len(rows) else None
    return _SAMPLES[rule]


def probed_rows(call: Call) -> tuple[int, ...]:
    """The first and the last row of a batch; none under dropout, or without tokens."""
    if call.dropout or not call.context.numel():
        return ()
    return (0,) if len(call.q) == 1 else (0, len(call.q) - 1)


def _probes(call: Call) -> Iterator[Probe]:
    for row in probed_rows(call):
        sample = sample_of(call, row)
        if sample is None:
            continue
        parts = call.q[row, :, sample.index], call.k[row], call.v[row]
        yield probe_of(call, sample, *parts, observed_of(call, row, sample), call.terms(row))


def observed_of(call: Call, row: int, sample: Sample) -> torch.Tensor:
    """The module's contexts for these queries: see Probe."""
    if call.returned is None or call.projection is None:
        return call.context[row, :, sample.index]
    return call.returned[row][sample.index]


def probe_of(
    call: Call,
    sample: Sample,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    observed: torch.Tensor,
    terms: Terms,
) -> Probe:
    """A probe of one row of a call. The tensors are those of `Probe`, in any precision."""
    return Probe(
        sample,
        q.float(),
        k.float(),
        v.float(),
        observed,
        None if call.returned is None else call.projection,
        call.scale,
        terms,
        call.q.shape[2],
        call.eps,
        call.weights is not None or call.returned is not None or call.unfused,
        call.rounded,
    )


def _excess(probe: Probe) -> float | None:
    worst, size = _difference(probe)
    difference = float(worst)
    if difference <= float(size) * _share(probe.eps):
        return None
    times = difference / float(_rounding(probe))
    return None if times <= 1 else times


def _explained(probes: Sequence[Probe]) -> bool:
    """Return True if rounding certainly explains the errors of these probes, which are of the same sizes."""
    sample, eps = probes[0].sample, probes[0].eps
    heads, n, width = probes[0].q.shape
    kv_heads, keys, d_value = probes[0].v.shape
    rows = heads // kv_heads * n
    cells = probes[0].q.new_empty(len(probes), kv_heads, rows, keys)
    for out, probe in zip(cells, probes, strict=True):
        q, k = probe.q.reshape(kv_heads, rows, width), probe.k.transpose(1, 2)
        torch.baddbmm(out, q, k, beta=0, alpha=probe.scale, out=out)
    if sample.hidden is not None:
        cells.view(-1, heads, n, keys).add_(sample.hidden)
    weights = torch.softmax(cells, -1)
    recomputed = cells.new_empty(len(probes), kv_heads, rows, d_value)
    for weight, context, probe in zip(weights, recomputed, probes, strict=True):
        torch.bmm(weight, probe.v, out=context)
    recomputed = recomputed.view(-1, heads, n, d_value)
    observed = torch.stack([probe.observed for probe in probes])
    if sample.empty is not None:
        recomputed = recomputed.masked_fill(sample.empty, 0)
        observed = without_nan(observed, recomputed, sample.empty)
    worst, size = (x.flatten(1).abs().amax(1) for x in (recomputed - observed, recomputed))
    return bool((worst <= size * _share(eps)).all())


def _difference(probe: Probe) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest difference between recomputed contexts, or outputs, and the module's; and a bound of their size.

    The bound is lower than the size that `_rounding` multiplies, and cheaper: no context is larger than the largest
    value.
    """
    contexts = recompute(probe)[1]
    if probe.projection is None:
        return _largest(contexts - without_nan(probe.observed, contexts, probe.sample.empty)), _largest(contexts)
    size = _largest(contexts) * probe.projection.weight[0].float().abs().sum()
    outputs = projected(contexts, probe.projection)
    return _largest(outputs - without_nan(probe.observed, outputs, probe.sample.empty)), size


def without_nan(observed: torch.Tensor, recomputed: torch.Tensor, empty: torch.Tensor | None) -> torch.Tensor:
    """The observed numbers, with the recomputed ones where a query sees no key and the module computed NaN.

    A softmax over no key is 0 in fused kernels, and NaN where it is written out. Anything else shows that the query
    looks at keys: a mask of finite numbers hides none of them if it is the same for all.

    Args:
        observed: (..., heads, n, width), or (n, d_out) for outputs.
        recomputed: of the same shape.
        empty: (1 or heads, n, 1), True for queries that see no key in a head; None if there are none.
    """
    if empty is None:
        return observed
    where = (empty if observed.dim() > 2 else empty.all(0)).to(observed.device)
    return torch.where(where & observed.isnan(), recomputed.to(observed.dtype), observed)


def recompute(probe: Probe) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights (heads, n, keys) and contexts (heads, n, d_value); contexts of queries without keys are 0."""
    sample, q, k, v, terms = probe.sample, probe.q, probe.k, probe.v, probe.terms
    heads, n, width = q.shape
    shared = (len(k), heads // len(k) * n, width)
    cells = torch.bmm((q * probe.scale).reshape(shared), k.transpose(1, 2))
    if not terms.nothing:
        cells = _with_terms(cells.view(heads, n, -1), probe).view(*shared[:2], -1)
    if sample.hidden is not None:
        cells.view(heads, n, -1).add_(sample.hidden.to(q.device))
    if terms.sinks is None:
        weights = torch.softmax(cells, -1)
    else:
        sinks = terms.sinks.to(cells)[:, None, None].expand(-1, n, 1).reshape(len(k), -1, 1)
        weights = torch.softmax(torch.cat([cells, sinks], -1), -1)[..., :-1]
    contexts = torch.bmm(weights, v).view(heads, n, -1)
    if sample.empty is not None:
        contexts = contexts.masked_fill(sample.empty.to(contexts.device), 0)
    return weights.view(heads, n, -1), contexts


def projected(contexts: torch.Tensor, projection: Projection) -> torch.Tensor:
    """(n, d_out): the outputs that follow from contexts, (heads, n, d_value)."""
    bias = None if projection.bias is None else projection.bias.float()
    return torch.nn.functional.linear(contexts.transpose(0, 1).flatten(1), projection.weight.float(), bias)


def _with_terms(cells: torch.Tensor, probe: Probe) -> torch.Tensor:
    """The sampled queries' scores, (heads, n, keys), with the terms and the cap."""
    columns, sizes = np.arange(probe.k.shape[1]), (probe.queries, probe.k.shape[1])
    scaled = probe.q * probe.scale
    return add_terms(
        cells, scaled, probe.k, probe.terms, scale=probe.scale, rows=probe.sample.rows, columns=columns, sizes=sizes
    )


def _share(eps: float) -> float:
    """Lower bound of the error that rounding explains, as a share of the largest value."""
    return 1e-4 + 4 * eps


def _rounding(probe: Probe) -> torch.Tensor:
    """The error that rounding explains.

    Scores are sums in fp32: their error is the spacing of fp32 times |q| |k|, plus that of the number that shifts a
    row; if products round their factors, it is that spacing times |q| |k|. Contexts are rounded to the model's
    precision, and so are scores if the model computed its weights itself. In half precision a large shift leaves little
    of the scores: the weights then don't follow from Q and K, and the attention is refused.
    """
    sample, q, k, v = probe.sample, probe.q, probe.k, probe.v
    longest_q, longest_k = (x.norm(dim=-1).amax() for x in (q, k))
    reach = abs(probe.scale) * longest_q * longest_k
    reach = reach + reach_of_terms(probe)
    share = _share(probe.eps) + (8 * EPS + probe.rounded) * reach
    if probe.stepwise:
        share = share + 2 * probe.eps * _largest(raw_scores(probe))
    if sample.hidden is not None:
        shift = sample.hidden.amax(-1)
        largest = shift.masked_fill(shift == float("-inf"), 0).abs().amax().to(v.device)
        share = share + (largest * EPS).clamp(max=1.0)
    size = _largest(v).clamp(min=1e-30)
    if probe.projection is not None:
        size = size * probe.projection.weight.float().abs().sum(1).amax()
    return share * size


def raw_scores(probe: Probe) -> torch.Tensor:
    """(heads, n, keys): the numbers that a module which computes step by step rounds before its softmax."""
    raw = scores(probe.q, probe.k, scale=probe.scale)
    raw = raw if probe.terms.nothing else _with_terms(raw, probe)
    if probe.sample.hidden is not None:
        hidden = probe.sample.hidden.to(raw.device)
        raw = raw + hidden.masked_fill(hidden.abs() > FAR, 0)
    return raw


def reach_of_terms(probe: Probe) -> float:
    """An upper bound of what the terms add to a score."""
    if probe.terms.nothing:
        return 0.0
    longest_q, longest_k = (float(x.norm(dim=-1).amax()) for x in (probe.q, probe.k))
    return float(probe.terms.mapped(_on_cpu).reach(longest_q, longest_k, probe.scale))


def _on_cpu(table: torch.Tensor) -> torch.Tensor:
    return table.float().cpu()


def _largest(x: torch.Tensor) -> torch.Tensor:
    """The largest absolute value; NaN if any value is NaN."""
    return torch.linalg.vector_norm(x, float("inf"))
