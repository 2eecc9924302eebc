"""Means over texts with their 95 % intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The 97.5th percentile of Student's t with 1 to 30 degrees of freedom."""

Z_975 = 1.959964


def t_975(freedom: int) -> float:
    """The 97.5th percentile of Student's t; beyond 30 degrees of freedom by Cornish and Fisher's expansion, to 1e-4."""
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    z = Z_975
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def mean_interval(
    values: Float[np.ndarray, "texts ..."],
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """The mean over the first axis, and the bounds of its 95 % interval: mean -+ t s / sqrt(n), NaN where n < 2."""
    count = len(values)
    mean = values.mean(axis=0)
    if count < 2:
        nothing = np.full_like(mean, np.nan)
        return mean, nothing, nothing
    half = t_975(count - 1) * values.std(axis=0, ddof=1) / np.sqrt(count)
    return mean, mean - half, mean + half
