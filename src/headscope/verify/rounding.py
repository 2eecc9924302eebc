"""What rounding explains: tolerances that follow from the precision in which numbers were computed, and were kept.

u is half the spacing of a precision's numbers at 1: 2^-24 in fp32, 2^-11 in fp16, 2^-8 in bf16. Rounding moves a number
by at most u times its size. With r = |scale| |q| |k|, which no score exceeds (Cauchy-Schwarz):

- Scores of rounded vectors, |dq| <= u |q| and |dk| <= u |k|, are off by d <= 2 u r; scores that were themselves rounded
  n times by d <= n u r; sums of d_head products in fp32 by about d = sqrt(d_head) u r (Higham and Mary 2019).
- Errors of scores within [-d, d] move the weights of a row by at most d in all, each weight by at most d / 2 (two keys
  of equal weight, one d up, one d down). exp(s - lse) with the lse of exact scores is off by d times the weight.
- A context is then off by (d + u) max |v_j| at most: by its weights, and by v's own rounding. sum_j p_j x_j is off by d
  times the mean distance of x from its mean, which is at most its standard deviation, as long as d is small; in any
  case by (exp(2 d) - 1) / 2 times that.

A kernel that ran in bf16 or fp16 sums scores in fp32, rounds each weight before it meets v, and rounds the context:
once u sum_j p_j |x_j|, once u times the context. Attention that is not fused rounds scores too, three times (product,
scale, mask): d = 3 u r.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope.attention import FAR

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._capture.checking import Witness
    from headscope._trace import LayerRecord, Trace

EPS = float(np.finfo(np.float32).eps)
U32 = EPS / 2
U16 = 2.0**-11

FP32 = 2e-5
"""What two right computations in fp32 may differ by, for numbers around 1."""

KERNEL = 4e-6
"""What fused kernels in fp32 may be off by beside that: their exp is an approximation."""

FP32_REASON = "fp32 rounds each product of a few hundred terms to about 1e-6 of its size"
FP16_REASON = "the trace keeps its numbers in half precision, which has 11 bits"


@dataclass(frozen=True)
class Limits:
    """What two right computations of a trace's numbers may differ by; of numbers beyond 1, times their size.

    Attributes:
        fp32: of what is computed in fp32 from numbers that are as they were.
        numbers: of q, k and v.
        weights: of weights, against those of q and k before they were rounded.
        sums: of rows of weights, against 1.
        contexts: of weights @ V.
        reason: why.
    """

    fp32: float
    numbers: float
    weights: float
    sums: float
    contexts: float
    reason: str


def limits_of(trace: Trace) -> Limits:
    """The limits of a trace. See this file's first lines.

    A weight is exp(s - lse): its relative error is the absolute error of its score, which grows with the scores.
    """
    size = max((_score_size(record) for record in trace.layers), default=0.0)
    fp32 = max(FP32, EPS * size)
    if trace.precision == "fp32":
        large = f"fp32 has a spacing of {EPS:.1e} at 1, and the scores are large: it is {EPS * size:.1e} for theirs"
        return Limits(fp32, fp32, fp32, fp32, fp32, FP32_REASON if fp32 == FP32 else large)
    furthest = max((float(reach(record).max(initial=0.0)) for record in trace.layers), default=0.0)
    # A capture that keeps half precision has the log-sum-exps of what it keeps; a file has those from before.
    own = all(record.q.dtype == np.float16 for record in trace.layers)
    return Limits(
        fp32=fp32,
        numbers=fp32 + U16,
        weights=fp32 + U16 * 2 * furthest,
        sums=fp32 if own else fp32 + U16 * 2 * furthest,
        contexts=fp32 + U16 * (2 * furthest + 1),
        reason=FP16_REASON,
    )


def reach(record: LayerRecord) -> Float[np.ndarray, "heads queries"]:
    """(heads, queries): r, which no score of the query exceeds, its mask left out."""
    q, k = (np.sqrt(np.square(part, dtype=np.float64).sum(-1)) for part in (record.q, record.k))
    found: np.ndarray = abs(record.scale) * q * np.repeat(k.max(-1, initial=0.0), len(q) // len(k))[:, None]
    return found


def score_error(record: LayerRecord, unit: float) -> Float[np.ndarray, "heads queries"]:
    """(heads, queries): d, how far apart scores may be that two right computations in fp32 made of the same q and k.

    Args:
        unit: u of the precision to which the module rounded its scores, and the numbers in its mask.
    """
    found = reach(record)
    arithmetic = 2 * np.sqrt(record.q.shape[-1]) * U32 * found
    if record.mask.bias is None:
        return arithmetic + 3 * unit * found
    bias = np.where(np.isfinite(record.mask.bias), record.mask.bias, 0.0)
    shift = np.abs(bias.max(-1))
    size = np.where(np.abs(bias) > FAR, 0.0, np.abs(bias)).max(-1)
    # Two roundings of a score beside a shift; none where the shift leaves nothing of any score.
    spacing = np.where(shift > FAR, EPS * shift.astype(np.float64), 0.0)
    spacing = np.where(spacing > 4 * found, 0.0, spacing)
    return arithmetic + 3 * unit * (found + size) + spacing


def witnessed(
    record: LayerRecord,
    witness: Witness,
    spread: Float[np.ndarray, "heads queries"],
    size: Float[np.ndarray, "heads queries"],
    gathered: Float[np.ndarray, "heads queries"],
) -> Float[np.ndarray, "heads_or_1 queries"]:
    """What rounding explains of a witness's values, sum_j p_ij x_j with x_j = v_j . r.

    Args:
        spread, size, gathered: (heads, queries) each, as Witness.expect gives them.
    """
    unit = witness.eps / 2
    kept = U16 if record.q.dtype == np.float16 else 0.0
    error = score_error(record, 0.0 if witness.fused else unit) + 2 * kept * reach(record)
    lengths = np.sqrt(np.square(witness.directions, dtype=np.float64).sum(-1))[:, None]
    found: np.ndarray = np.expm1(2 * np.minimum(error, 1)) / 2 * spread + unit * size
    found = found + lengths * gathered * (unit + kept + KERNEL)
    return found if witness.length is None else found.sum(0, keepdims=True) + (unit + KERNEL) * witness.length


COUNTED = 7.0
"""Scores that lie further than this below a row's log-sum-exp have no weight to speak of: less than 1 in 1,000."""


def drifted(
    record: LayerRecord, q: Float[np.ndarray, "heads queries d_head"], k: Float[np.ndarray, "heads keys d_head"]
) -> Float[np.ndarray, "heads queries"]:
    """(heads, queries): how far scores of another run's q and k may be from those of the record's (Cauchy-Schwarz)."""

    def longest(x: Float[np.ndarray, "heads keys d_head"]) -> Float[np.ndarray, "heads 1"]:
        found: np.ndarray = np.sqrt(np.square(x, dtype=np.float64).sum(-1)).max(-1, keepdims=True)
        return found

    keys = np.repeat(record.k, len(record.q) // len(record.k), 0).astype(np.float64)
    apart = np.sqrt(np.square(q - record.q.astype(np.float64)).sum(-1))
    own = np.sqrt(np.square(record.q, dtype=np.float64).sum(-1))
    found: np.ndarray = abs(record.scale) * (apart * longest(k) + own * longest(k - keys))
    return found


def rerun(
    record: LayerRecord, layer: int, unit: float, drift: Float[np.ndarray, "heads queries"] | None = None
) -> Float[np.ndarray, "heads queries"]:
    """What rounding explains of the weights of a second run of the model in eager attention, (heads, queries).

    That run rounds every score that counts three times, |s| <= min(r, |lse| + 7), and its hidden states drift away from
    the first run's: each layer before this one adds roundings of its own, independent of the others'. So the weights
    differ by a few u |s|, growing as the root of the number of layers: at most 1.8 of them were seen in 12 layers of
    moderate scores, and 2 + sqrt(layer) are allowed. In bf16 that is much where scores are large, which is what such
    attention is worth.

    Args:
        layer: how many layers came before.
        unit: u of the model's precision.
        drift: how far scores are apart for the two runs' q and k are, where that is known.
    """
    furthest = reach(record)
    kept = U16 if record.q.dtype == np.float16 else 0.0
    counted = np.minimum(furthest, np.where(np.isfinite(record.lse), np.abs(record.lse), 0.0) + COUNTED)
    grown, apart = (np.sqrt(layer), 0.0) if drift is None else (0.0, drift / 2)
    found = score_error(record, 0.0) / 2 + kept * furthest + unit * ((2 + grown) * counted + 1) + apart
    return np.clip(found, 5 * FP32, 1.0)


def _score_size(record: LayerRecord) -> float:
    """How large a layer's scores are where they count, or how long the vectors are that they are products of."""
    # A lse in fp64 was not rounded.
    seen = np.abs(record.lse[np.isfinite(record.lse)]) if record.lse.dtype == np.float32 else np.zeros(0)
    return float(max(4 * seen.max(initial=0.0), reach(record).max(initial=0.0)))
