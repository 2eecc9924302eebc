"""Recompute every query of a call, in blocks, and compare each number of its contexts.

That is done for all attention that isn't the libraries' own: it may change a single cell. The tolerance of each number
follows from rounding alone, by the derivation in headscope.verify.rounding: errors of scores within [-d, d] change a
context by at most (exp(2 d) - 1) / 2 times the largest value, and rounding weights, values and sums by a few units of
that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import _disable_current_modes

from headscope.errors import UnsupportedError
from headscope.live.checking import (
    EPS,
    Probe,
    eligible,
    observed_of,
    probe_of,
    projected,
    raw_scores,
    reach_of_terms,
    recompute,
    sample_at,
    without_nan,
)
from headscope.live.refusals import refuse

if TYPE_CHECKING:
    from headscope.live.calls import Call

CELLS = {"cpu": 1 << 20}
"""Maximum number of scores in a block: 4 MiB of fp32 on a CPU."""

OTHER_CELLS = 1 << 24
"""The same for other devices, which need more work at once."""

SUMS = 1e-5
"""Error of exponentials and short sums in fp32, as a share of the largest value."""

LEAST_WEIGHT = 1e-7
"""Weights may differ by this, whatever their size: fp16 has no smaller numbers."""


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
            places, q = eligible(call.rules.row(row), call.q.shape[2]), call.q[row]
            k, v = call.k[row].float(), call.v[row].float()
            step = max(1, CELLS.get(device, OTHER_CELLS) // (len(q) * k.shape[1]))
            for start in range(0, len(places), step):
                part = places[start : start + step]
                sample = sample_at(call.rules.row(row), part, q.shape[1], k.shape[1], q.device)
                observed = observed_of(call, row, sample)
                probe = probe_of(call, sample, q[:, sample.index], k, v, observed, call.terms(row))
                returned = None if call.weights is None else call.weights[row, :, sample.index]
                times = _times(probe, returned)
                if not bool((times <= 1).all()):
                    head, query = divmod(int(times.argmax()), len(part))
                    place = f"query {part[query]}" if probe.projection else f"head {head}, query {part[query]}"
                    refuse(float(times.max()), kind, f"{where}, row {row}, {place}", call.rules)


def _times(probe: Probe, returned: torch.Tensor | None) -> torch.Tensor:
    """(heads, n), or (1, n) for outputs: each query's error, in multiples of what rounding explains.

    Args:
        probe: the queries.
        returned: (heads, n, keys), the weights that the module returned, if it did.
    """
    weights, contexts = recompute(probe)
    heads = len(contexts)
    share = _share(probe)
    largest = probe.v.abs().amax(1, keepdim=True).repeat_interleave(heads // len(probe.v), 0)
    observed, tolerance = probe.observed.float(), share * largest
    if probe.projection is not None:
        outputs = projected(contexts, probe.projection)
        observed = without_nan(observed, outputs, probe.sample.empty)
        absolute = type(probe.projection)(probe.projection.weight.abs(), None)
        tolerance = projected(tolerance, absolute) + probe.eps * outputs.abs()
        return _worst(outputs - observed, tolerance)[None]
    empty = probe.sample.empty
    times = _worst(contexts - without_nan(observed, contexts, empty), tolerance)
    if returned is None or returned.shape != weights.shape:
        return times
    if empty is not None:
        weights = weights.masked_fill(empty.to(weights.device), 0)
    different = weights - without_nan(returned.float(), weights, empty)
    return torch.maximum(times, _worst(different, 2 * share * weights + LEAST_WEIGHT))


def _worst(difference: torch.Tensor, tolerance: torch.Tensor) -> torch.Tensor:
    return (difference.abs() / tolerance.clamp(min=1e-30)).amax(-1)


def _share(probe: Probe) -> torch.Tensor:
    """(heads, n, 1): the error of a context that rounding explains, as a share of the largest value."""
    heads, width = len(probe.q), probe.q.shape[-1]
    longest = probe.k.norm(dim=-1).amax(1).repeat_interleave(heads // len(probe.k))[:, None, None]
    reach = abs(probe.scale) * probe.q.norm(dim=-1, keepdim=True) * longest + reach_of_terms(probe)
    error = (2 * width**0.5 * EPS + probe.rounded) * reach
    if probe.sample.hidden is not None:
        shift = probe.sample.hidden.amax(-1, keepdim=True).to(error.device)
        error = error + EPS * shift.masked_fill(shift == float("-inf"), 0).abs()
    if probe.stepwise and not probe.rounded and probe.eps > EPS:
        error = error + 2 * probe.eps * raw_scores(probe).abs().amax(-1, keepdim=True)
    sums = SUMS + 2 * probe.k.shape[1] ** 0.5 * EPS
    return sums + 2 * probe.eps + torch.expm1(2 * error.clamp(max=1)) / 2
