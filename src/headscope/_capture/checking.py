"""Check that captured tensors reproduce the module's output: a few queries at capture time, all of them later.

At capture time, the contexts of a few queries are recomputed from Q, K, V, the mask's rule and the log-sum-exps, and
compared with the module's output. Attention that isn't softmax(scale Q K^T + mask) V raises an error immediately.

For every query, a witness is kept: the product of its context with a fixed vector of signs r. If a recomputed context
c' differs from the module's c, then (c' - c) . r differs from 0 by about |c' - c| (Freivalds 1977), so one number per
query and head stands for the d_head numbers of a context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch

from headscope.attention import FAR, attend, scores
from headscope.terms import Terms, add_terms

if TYPE_CHECKING:
    from headscope._capture.calls import Call
    from headscope._capture.carrying import Carrier
    from headscope._capture.masks import RowRule
    from headscope._trace import LayerRecord

EPS = torch.finfo(torch.float32).eps
CPU = torch.device("cpu")

SAMPLED_QUERIES = 4
"""Number of queries recomputed in the first and in the last row of a batch."""


@cache
def signs(size: int, device: torch.device) -> torch.Tensor:
    """(size,): a fixed pseudorandom vector of 1 and -1."""
    values = np.where(np.random.default_rng(size).random(size) < 0.5, -1.0, 1.0).astype(np.float32)
    return torch.from_numpy(values).to(device)


@dataclass(frozen=True, eq=False)
class Witness:
    """A projection of a module's output onto one direction, kept for verification.

    Attributes:
        values: (heads, queries): context . r of each head; or (1, queries): output . r, if only the output after the
            projection could be observed.
        directions: (heads, d_value): r, or each head's rows of W_O times r.
        offset: the projection's bias times r.
        eps: the spacing of numbers around 1 in the model's precision.
        fused: True if a fused kernel computed the output; it sums scores in fp32.
        length: |r| times the length of the longest output; None if the output before the projection was observed.
    """

    values: np.ndarray
    directions: np.ndarray
    offset: float
    eps: float
    fused: bool
    length: float | None

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
        values = means if self.length is None else means.sum(0, keepdims=True) + self.offset
        return values, spread, np.sqrt(squares), gathered


def witness(
    call: Call, row: int, heads: list[int] | None, queries: torch.Tensor | None, carrier: Carrier
) -> Witness | None:
    """The witness of one row of the batch; None if the call's output can't be compared.

    Args:
        carrier: brings its values to the CPU.
        call: the call.
        row: the row of the batch.
        heads: the heads that are kept; None for all.
        queries: positions that are not padding; None for all.
    """
    if call.dropout:
        return None
    count, d_value = call.q.shape[1], call.v.shape[-1]
    eps = float(torch.finfo(call.context.dtype).eps)
    if call.returned is None:
        r = signs(d_value, call.context.device)
        # In the memory layout of the interface's functions: query by query, the heads side by side.
        values = (call.context[row].transpose(0, 1).float() @ r).T
        directions = signs(d_value, CPU).expand(count, -1).numpy()
        offset, length = 0.0, None
    else:
        if call.silenced or heads is not None or call.projection is None:
            return None
        r = signs(call.returned.shape[-1], call.returned.device)
        values = (call.returned[row].float() @ r)[None]
        directions = (r @ call.projection.weight.float()).reshape(count, d_value).cpu().numpy()
        bias = call.projection.bias
        offset = 0.0 if bias is None else float(bias.float() @ r)
        length = float(call.returned[row].float().norm(dim=-1).amax()) * len(r) ** 0.5
    if heads is not None:
        values, directions = values[heads], directions[heads]
    if queries is not None:
        values = values[:, queries]
    fused = call.kernel_lse is not None and call.weights is None and call.returned is None
    return Witness(carrier.copy(values, torch.float32).numpy(), directions, offset, eps, fused, length)


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


def _sample(rule: RowRule, queries: int, keys: int, device: torch.device) -> Sample | None:
    """A few of the queries that are not padding and see a key, spread evenly, with the last; None if there are none."""
    eligible = np.ones(queries, dtype=bool) if rule.queries is None else rule.queries.copy()
    if rule.unseen is not None:
        eligible &= ~rule.unseen
    places = np.flatnonzero(eligible)
    if not len(places):
        return None
    index: slice | torch.Tensor
    if places[-1] - places[0] == len(places) - 1:
        step = max(1, (len(places) - 1) // (SAMPLED_QUERIES - 1))
        rows = places[::-step][:SAMPLED_QUERIES][::-1]
        index = slice(int(rows[0]), int(rows[-1]) + 1, step)
    else:
        rows = np.unique(places[np.linspace(0, len(places) - 1, SAMPLED_QUERIES).astype(int)])
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


def excess(call: Call) -> float | None:
    """Error of the recomputed contexts of a few queries, in multiples of what rounding explains.

    Returns:
        None if rounding explains the error, and under dropout, where contexts can't be recomputed. NaN if the numbers
        compared are not finite.
    """
    for row, sample in _samples(call):
        worst, size = _difference(call, row, sample)
        difference = float(worst)
        if difference <= float(size) * _share(call):
            continue
        times = difference / float(_rounding(call, row, sample))
        if not times <= 1:
            return times
    return None


def pending_excess(call: Call) -> torch.Tensor | None:
    """The same as a tensor on the call's device, which nothing waits for; at most 1 if rounding explains the error."""
    times = [_difference(call, row, sample)[0] / _rounding(call, row, sample) for row, sample in _samples(call)]
    return torch.stack(times).amax() if times else None


def _samples(call: Call) -> Iterator[tuple[int, Sample]]:
    """The first and the last row of a batch, with their samples; none under dropout."""
    for row in () if call.dropout else sorted({0, len(call.q) - 1}):
        rule = call.rules.row(row)
        if rule not in _SAMPLES:
            _SAMPLES[rule] = _sample(rule, call.q.shape[2], call.k.shape[2], call.q.device)
        sample = _SAMPLES[rule]
        if sample is not None:
            yield row, sample


def _difference(call: Call, row: int, sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest difference between recomputed contexts, or outputs, and the module's; and a bound of their size.

    The bound is lower than the size that `_rounding` multiplies, and cheaper: no context is larger than the largest
    value.
    """
    q, k, v = call.q[row, :, sample.index].float(), call.k[row].float(), call.v[row].float()
    heads, n, width = q.shape
    shared = (len(k), heads // len(k) * n, width)
    cells = torch.bmm((q * call.scale).reshape(shared), k.transpose(1, 2))
    terms = call.terms(row)
    if not terms.nothing:
        cells = _with_terms(cells.view(heads, n, -1), q, k, call, terms, sample).view(*shared[:2], -1)
    if sample.hidden is not None:
        cells.view(heads, n, -1).add_(sample.hidden.to(q.device))
    if terms.sinks is None:
        weights = torch.softmax(cells, -1)
    else:
        sinks = terms.sinks.to(cells)[:, None, None].expand(-1, n, 1).reshape(len(k), -1, 1)
        weights = torch.softmax(torch.cat([cells, sinks], -1), -1)[..., :-1]
    recomputed = torch.bmm(weights, v).view(heads, n, -1)
    observed = call.context[row, :, sample.index]
    if sample.empty is not None:
        recomputed, observed = (x.masked_fill(sample.empty.to(x.device), 0) for x in (recomputed, observed))
    if call.returned is None or call.projection is None:
        return _largest(recomputed - observed), _largest(recomputed)
    weight, bias = call.projection.weight.float(), call.projection.bias
    joined = torch.nn.functional.linear(
        recomputed.transpose(0, 1).flatten(1), weight, None if bias is None else bias.float()
    )
    return _largest(joined - call.returned[row][sample.index]), _largest(recomputed) * weight[0].abs().sum()


def _with_terms(
    cells: torch.Tensor, q: torch.Tensor, k: torch.Tensor, call: Call, terms: Terms, sample: Sample
) -> torch.Tensor:
    """The sampled queries' scores, (heads, n, keys), with the terms and the cap."""
    columns, sizes = np.arange(k.shape[1]), (call.q.shape[2], k.shape[1])
    return add_terms(cells, q * call.scale, k, terms, scale=call.scale, rows=sample.rows, columns=columns, sizes=sizes)


def _share(call: Call) -> float:
    """Lower bound of the error that rounding explains, as a share of the largest value."""
    return 1e-4 + 4 * _eps(call)


def _eps(call: Call) -> float:
    return torch.finfo(call.context.dtype if call.returned is None else call.returned.dtype).eps


def _rounding(call: Call, row: int, sample: Sample) -> torch.Tensor:
    """The error that rounding explains.

    Scores are sums in fp32: their error is the spacing of fp32 times |q| |k|, plus that of the number that shifts a
    row. Contexts are rounded to the model's precision, and so are scores if the model computed its weights itself. In
    half precision a large shift leaves little of the scores: the weights then don't follow from Q and K, and the
    attention is refused.
    """
    q, k, v = call.q[row, :, sample.index].float(), call.k[row].float(), call.v[row].float()
    longest_q, longest_k = (x.norm(dim=-1).amax() for x in (q, k))
    terms = call.terms(row)
    reach = abs(call.scale) * longest_q * longest_k
    if not terms.nothing:
        reach = reach + float(terms.mapped(_on_cpu).reach(float(longest_q), float(longest_k), call.scale))
    share = _share(call) + 8 * EPS * reach
    if call.weights is not None or call.returned is not None or call.unfused:
        raw = scores(q, k, scale=call.scale)
        raw = raw if terms.nothing else _with_terms(raw, q, k, call, terms, sample)
        if sample.hidden is not None:
            hidden = sample.hidden.to(raw.device)
            raw = raw + hidden.masked_fill(hidden.abs() > FAR, 0)
        share = share + 2 * _eps(call) * _largest(raw)
    if sample.hidden is not None:
        shift = sample.hidden.amax(-1)
        largest = shift.masked_fill(shift == float("-inf"), 0).abs().amax().to(v.device)
        share = share + (largest * EPS).clamp(max=1.0)
    size = _largest(v).clamp(min=1e-30)
    if call.returned is not None and call.projection is not None:
        size = size * call.projection.weight.float().abs().sum(1).amax()
    return share * size


def _on_cpu(table: torch.Tensor) -> torch.Tensor:
    return table.float().cpu()


def _largest(x: torch.Tensor) -> torch.Tensor:
    """The largest absolute value; NaN if any value is NaN."""
    return torch.linalg.vector_norm(x, float("inf"))
