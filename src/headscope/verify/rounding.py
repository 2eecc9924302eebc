"""Comparing rounded numbers: tolerances from the precisions of a trace's numbers, and the worst difference of each.


u is half the spacing of a precision's numbers at 1: 2^-24 in fp32, 2^-11 in fp16, 2^-8 in bf16. Rounding changes a
number by at most u times its size. With r = |scale| |q| |k|, which no score exceeds (Cauchy-Schwarz):

- Scores of rounded vectors, |dq| <= u |q| and |dk| <= u |k|, have an error d <= 2 u r; scores that were themselves
  rounded n times, d <= n u r; sums of d_head products in fp32, about d = sqrt(d_head) u r (Higham and Mary 2019).
- Errors of scores within [-d, d] change the weights of a row by at most d in total, and each weight by at most d / 2
  (two keys of equal weight, one d up, one d down). exp(s - lse) with the lse of exact scores has an error of d times
  the weight.
- A context then has an error of at most (d + u) max |v_j|: from its weights, and from the rounding of v. The error of
  sum_j p_j x_j is d times the mean distance of x from its mean, which is at most its standard deviation, as long as d
  is small; in any case, (exp(2 d) - 1) / 2 times that.

A kernel that runs in bf16 or fp16 sums scores in fp32, rounds each weight before multiplying it with v, and rounds the
context: errors of u sum_j p_j |x_j| and of u times the context. Attention that is not fused also rounds scores, three
times (product, scale, mask): d = 3 u r.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headscope.attention.scores import FAR
from headscope.results.verify_report import Check

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.live.keeping.contents import ContextProducts
    from headscope.traces import LayerRecord, Trace


EPS = float(np.finfo(np.float32).eps)
U32 = EPS / 2
U16 = 2.0**-11

FP32 = 2e-5
"""Tolerance between two correct computations in fp32, for numbers around 1."""

KERNEL = 4e-6
"""Additional tolerance for fused kernels in fp32, whose exp is an approximation."""

FP32_REASON = "fp32 rounds each product of a few hundred terms to about 1e-6 of its size"
FP16_REASON = "the trace stores its numbers in half precision, which has 11 bits"


@dataclass(frozen=True)
class Limits:
    """Tolerances between two correct computations of a trace's numbers; for numbers beyond 1, times their size.

    Attributes:
        fp32: for numbers computed in fp32 from inputs that were not rounded.
        numbers: for q, k and v.
        weights: for weights, compared with those of q and k before rounding.
        sums: for sums of rows of weights, compared with 1.
        contexts: for weights @ V.
        reason: the reason for these tolerances.
    """

    fp32: float
    numbers: float
    weights: float
    sums: float
    contexts: float
    reason: str


def limits_of(trace: Trace) -> Limits:
    """The tolerances of a trace, as derived in this module's docstring.

    A weight is exp(s - lse): its relative error is the absolute error of its score, which grows with the scores.
    """
    size = max((_score_size(record) for record in trace.layers), default=0.0)
    fp32 = max(FP32, EPS * size)
    if trace.precision == "fp32":
        large = f"the scores are large: the spacing of fp32 is {EPS:.1e} at 1, but {EPS * size:.1e} at their size"
        return Limits(fp32, fp32, fp32, fp32, fp32, FP32_REASON if fp32 == FP32 else large)
    furthest = max((float(reach(record).max(initial=0.0)) for record in trace.layers), default=0.0)
    # A capture in half precision computes lse from the rounded numbers; a file stores lse from before rounding.
    of_rounded = all(record.q.dtype == np.float16 for record in trace.layers)
    return Limits(
        fp32=fp32,
        numbers=fp32 + U16,
        weights=fp32 + U16 * 2 * furthest,
        sums=fp32 if of_rounded else fp32 + U16 * 2 * furthest,
        contexts=fp32 + U16 * (2 * furthest + 1),
        reason=FP16_REASON,
    )


def reach(record: LayerRecord) -> Float[np.ndarray, "heads queries"]:
    """(heads, queries): r, an upper bound of the query's scores, terms included, without the cap and the mask."""
    q, k = (np.sqrt(np.square(part, dtype=np.float64).sum(-1)) for part in (record.q, record.k))
    longest = np.repeat(k.max(-1, initial=0.0), len(q) // len(k))[:, None]
    bound: np.ndarray = abs(record.scale) * q * longest + record.terms.reach(q, longest, record.scale)
    return bound


def score_error(record: LayerRecord, unit: float) -> Float[np.ndarray, "heads queries"]:
    """(heads, queries): d, the largest difference of scores from two correct computations in fp32 on the same q and k.

    Args:
        record: the layer.
        unit: u of the precision to which the module rounded its scores and the numbers in its mask.
    """
    bound = reach(record)
    arithmetic = 2 * np.sqrt(record.q.shape[-1]) * U32 * bound
    if record.mask.bias is None:
        return arithmetic + 3 * unit * bound
    bias = np.where(np.isfinite(record.mask.bias), record.mask.bias, 0.0)
    shift = np.abs(bias.max(-1))
    size = np.where(np.abs(bias) > FAR, 0.0, np.abs(bias)).max(-1)
    # A score added to a shift is rounded twice; no error is counted if the shift erases every score.
    spacing = np.where(shift > FAR, EPS * shift.astype(np.float64), 0.0)
    spacing = np.where(spacing > 4 * bound, 0.0, spacing)
    return arithmetic + 3 * unit * (bound + size) + spacing


def products_tolerance(
    record: LayerRecord,
    products: ContextProducts,
    spread: Float[np.ndarray, "heads queries"],
    size: Float[np.ndarray, "heads queries"],
    gathered: Float[np.ndarray, "heads queries"],
) -> Float[np.ndarray, "heads queries"]:
    """Tolerance of products of contexts, sum_j p_ij x_j with x_j = v_j . r.

    Args:
        record: the layer.
        products: those of its contexts.
        spread, size, gathered: (heads, queries) each, as ContextProducts.expect returns them.
    """
    unit = products.eps / 2
    storage_unit = U16 if record.q.dtype == np.float16 else 0.0
    error = score_error(record, 0.0 if products.fused else unit) + 2 * storage_unit * reach(record)
    length = np.sqrt(np.square(products.direction, dtype=np.float64).sum())
    tolerance: np.ndarray = np.expm1(2 * np.minimum(error, 1)) / 2 * spread + unit * size
    return tolerance + length * gathered * (unit + storage_unit + KERNEL)


COUNTED = 7.0
"""Scores further than this below a row's log-sum-exp have a negligible weight: less than 1 in 1,000."""


def drifted(
    record: LayerRecord, q: Float[np.ndarray, "heads queries d_head"], k: Float[np.ndarray, "heads keys d_head"]
) -> Float[np.ndarray, "heads queries"]:
    """(heads, queries): bound of the difference between scores of another run's q and k and the record's scores."""

    def longest(x: Float[np.ndarray, "heads keys d_head"]) -> Float[np.ndarray, "heads 1"]:
        length: np.ndarray = np.sqrt(np.square(x, dtype=np.float64).sum(-1)).max(-1, keepdims=True)
        return length

    keys = np.repeat(record.k, len(record.q) // len(record.k), 0).astype(np.float64)
    apart = np.sqrt(np.square(q - record.q.astype(np.float64)).sum(-1))
    lengths = np.sqrt(np.square(record.q, dtype=np.float64).sum(-1))
    moved = longest(k - keys)
    bound: np.ndarray = abs(record.scale) * (apart * longest(k) + lengths * moved)
    return bound + replace(record.terms, by_distance=None, by_key=None).reach(apart, moved, record.scale)


def rerun(
    record: LayerRecord, layer: int, unit: float, drift: Float[np.ndarray, "heads queries"] | None = None
) -> Float[np.ndarray, "heads queries"]:
    """Tolerance of weights from a second run of the model in eager attention, (heads, queries).

    The second run rounds every relevant score, |s| <= min(r, |lse| + 7), three times, and its hidden states drift away
    from the first run's: each earlier layer adds independent roundings. So the weights differ by a few u |s|, growing
    as the square root of the number of layers: 1.8 u |s| was the most observed in 12 layers with moderate scores, and
    (2 + sqrt(layer)) u |s| is accepted. In bf16 that is a lot for large scores, because such attention is imprecise.

    Args:
        record: the layer.
        layer: number of earlier layers.
        unit: u of the model's precision.
        drift: bound of the difference between scores due to the two runs' different q and k, if known.
    """
    furthest = reach(record)
    storage_unit = U16 if record.q.dtype == np.float16 else 0.0
    counted = np.minimum(furthest, np.where(np.isfinite(record.lse), np.abs(record.lse), 0.0) + COUNTED)
    grown, apart = (np.sqrt(layer), 0.0) if drift is None else (0.0, drift / 2)
    tolerance = score_error(record, 0.0) / 2 + storage_unit * furthest + unit * ((2 + grown) * counted + 1) + apart
    return np.clip(tolerance, 5 * FP32, 1.0)


def _score_size(record: LayerRecord) -> float:
    """Magnitude of a layer's relevant scores, or of the products of the vectors' lengths if that is larger."""
    # An lse in fp64 was not rounded.
    sizes = np.abs(record.lse[np.isfinite(record.lse)]) if record.lse.dtype == np.float32 else np.zeros(0)
    return float(max(4 * sizes.max(initial=0.0), reach(record).max(initial=0.0)))


ROW_BLOCK = 64
"""Number of queries whose rows are in memory at a time."""


class Worst:
    """Tracks the largest difference of one comparison over all layers and heads, and its place.

    If each number has its own tolerance, the largest difference is the one with the largest share of its tolerance.

    Args:
        name, compared, tolerance, reason: as in the Check.
    """

    def __init__(self, name: str, compared: str, tolerance: float, reason: str) -> None:
        self._fixed = {"name": name, "compared": compared, "reason": reason}
        self._tolerance = tolerance
        self._size = 0.0
        self._share = -1.0
        self._allowed: float | None = None
        self._found: dict[str, float] = {"worst": -1.0}

    def see(
        self,
        ours: Float[np.ndarray, "..."],
        theirs: Float[np.ndarray, "..."],
        axes: tuple[str, ...],
        *,
        allowed: Float[np.ndarray, "..."] | None = None,
        size: float = 0.0,
        **place: int,
    ) -> None:
        """Compare two arrays.

        Args:
            ours: the trace's numbers.
            theirs: the numbers to compare with.
            axes: names of the arrays' first axes; later axes have no names.
            allowed: tolerance of each number, instead of the comparison's.
            size: magnitude of the terms that these numbers are sums of, if larger than the numbers themselves.
            place: place of the arrays; if an axis is in both `axes` and `place`, its value is an offset.
        """
        ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs)
        difference = np.abs(ours - theirs)
        if not difference.size:
            return
        self._size = max(self._size, size, float(np.max(np.abs(theirs))))
        shares = difference if allowed is None else difference / np.maximum(allowed, np.finfo(np.float64).tiny)
        at = int(np.argmax(np.where(np.isnan(shares), np.inf, shares)))
        share = float(shares.reshape(-1)[at])
        if np.isnan(self._share) or not (np.isnan(share) or share > self._share):
            return
        index = np.unravel_index(at, difference.shape)
        self._share = share
        self._allowed = None if allowed is None else float(np.broadcast_to(allowed, difference.shape)[index])
        numbers = {"worst": difference[index], "ours": ours[index], "theirs": theirs[index]}
        where = {axis: int(i) + place.get(axis, 0) for axis, i in zip(axes, index, strict=False)}
        self._found = {name: float(number) for name, number in numbers.items()} | place | where

    def check(self) -> Check:
        """The result. The tolerance is multiplied by the size of the numbers compared if that is more than 1."""
        tolerance = self._allowed
        if tolerance is None:
            tolerance = self._tolerance * max(1.0, self._size if np.isfinite(self._size) else 1.0)
        return Check(**self._fixed, tolerance=tolerance, **self._found)  # type: ignore[arg-type]


Limit = tuple[float, str]
"""Tolerance between two correct computations, for numbers around 1, and the reason for it."""


def row_blocks(count: int) -> Iterator[slice]:
    """Slices of a few queries each, from 0 to `count`."""
    for start in range(0, count, ROW_BLOCK):
        yield slice(start, min(start + ROW_BLOCK, count))
