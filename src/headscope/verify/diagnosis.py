"""Vectors alone on the other side: which named fault of an implementation reproduces them, if any does.

The encoder runs once for each hypothesis of `hypotheses.py`. A hypothesis whose residual is below ten times the
rounding's is what the other side does; one that leaves less than 5 % of the difference is mainly so, and pairs with
every other are tried. Precision can't be replayed: if no hypothesis fits and every cosine exceeds .99, it is that or a
kernel. Of a pair of faults the larger one alone may not reach 95 %, so pairs of the best three are tried, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from headscope.heads.distances import relative
from headscope.results.parity import Diagnosis, Explanation
from headscope.verify.hypotheses import Hypothesis, Replay, hypotheses

if TYPE_CHECKING:
    from jaxtyping import Float

    Vectors = Float[np.ndarray, "texts d_model"]

FLOOR = 1e-6
"""Residual of vectors in fp32 that another kernel made: 3e-7 to 9e-7 between NumPy and PyTorch."""
IS, MAINLY = 10.0, 0.05
CLOSE = 0.99
SECOND_ROUND = 3
"""The number of the best hypotheses that are paired with every other."""


def diagnose(replay: Replay, vectors: Vectors, *, eps: float = 0.0) -> Diagnosis:
    """Find what reproduces the vectors.

    Args:
        replay: runs the checkpoint that they should be of, over their texts.
        vectors: of the other side, in fp64.
        eps: spacing of the other side's numbers at 1.
    """
    floor = max(FLOOR, eps)
    plain = replay.vectors(replay.plain)
    base = residual(plain, vectors)
    if base < IS * floor:
        return Diagnosis("same", (), base, floor, 0)
    singles = _ranked(replay, hypotheses(replay.model), vectors, plain)
    ranked, tried = singles, len(singles)
    best = singles[0][0]
    if best >= IS * floor:
        few = 1 if best < MAINLY * base else SECOND_ROUND
        pairs = {
            frozenset((first.name, other.name)): pair
            for _, first in singles[:few]
            for _, other in singles
            if (pair := first.with_(other)) is not None
        }
        found = _ranked(replay, pairs.values(), vectors, plain)
        tried += len(found)
        # A pair counts if it is what the other side does; else the simpler explanation stands.
        if found and (found[0][0] < IS * floor or found[0][0] < MAINLY * base <= best):
            ranked = sorted((*found, *singles), key=lambda pair: pair[0])
    explanations = tuple(Explanation(one.name, value) for value, one in ranked[:5])
    best = explanations[0].residual
    cosines = np.einsum("nd,nd->n", plain, vectors) / np.linalg.norm(plain, axis=1) / np.linalg.norm(vectors, axis=1)
    verdict = "is" if best < IS * floor else "mainly" if best < MAINLY * base else ""
    verdict = verdict or ("precision" if cosines.min() > CLOSE else "none")
    return Diagnosis(verdict, explanations, base, floor, tried)


def residual(a: Vectors, b: Vectors) -> float:
    """Root mean square over texts of |a - b| / |b|."""
    return float(np.sqrt(np.mean(np.square(relative(b, a)))))


def _ranked(
    replay: Replay, candidates: Iterable[Hypothesis], vectors: Vectors, plain: Vectors
) -> list[tuple[float, Hypothesis]]:
    """The residual of each hypothesis, the least first; without those that change nothing in these texts."""
    found = []
    for one in candidates:
        replayed = replay.vectors(replace(replay.plain, **one.changes))
        if not np.array_equal(replayed, plain):
            found.append((residual(replayed, vectors), one))
    return sorted(found, key=lambda pair: pair[0])
