"""The activations that configs name, in NumPy: each computes what transformers computes under that name."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import UnsupportedError

if TYPE_CHECKING:
    from jaxtyping import Float

BLOCK = 1 << 15
"""Numbers per block, about: a block and its scratch space stay in one core's cache."""

FEW_BLOCKS = 2
"""Up to this number of blocks, handing them to threads costs more than the work."""

NORMAL_LIMIT = np.float32(5.5)
"""|x| from which on r is constant: tanh is -1 or 1 there to within fp32's rounding."""

NORMAL_LOGIT = np.array(
    [1.75617307e-09, -1.32263416e-07, 3.96474530e-06, -5.53061980e-05, -3.25949664e-05, 3.63330846e-02, 7.97884941e-01],
    dtype=np.float32,
)
"""Coefficients of r: Phi(x) = (1 + tanh(x r(x^2))) / 2 to within 3e-8 (1e-7 with fp32's rounding).

A weighted minimax fit to (log Phi(x) - log Phi(-x)) / (2 x); the constant is near sqrt(2 / pi), the slope at 0.
"""


def gelu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """x Phi(x) with the exact normal distribution (Hendrycks & Gimpel 2016, section 2)."""
    square = np.clip(x, -NORMAL_LIMIT, NORMAL_LIMIT)
    square *= square
    share = square * NORMAL_LOGIT[0]
    for coefficient in NORMAL_LOGIT[1:-1]:
        share += coefficient
        share *= square
    share += NORMAL_LOGIT[-1]
    share *= x
    np.tanh(share, out=share)
    share += np.float32(1)
    share *= np.multiply(x, np.float32(0.5), out=square)
    return share


def gelu_tanh(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """GELU's approximation by tanh (Hendrycks & Gimpel 2016, section 2): gelu_new in configs."""
    inner = x * x
    inner *= x
    inner *= np.float32(0.044715)
    inner += x
    inner *= np.float32(np.sqrt(2 / np.pi))
    np.tanh(inner, out=inner)
    inner += np.float32(1)
    inner *= x
    inner *= np.float32(0.5)
    return inner


def relu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """max(x, 0)."""
    return np.maximum(x, np.float32(0))


def quick_gelu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """GELU's approximation by x sigmoid(1.702 x) (Hendrycks & Gimpel 2016, section 2)."""
    return x * (np.float32(0.5) * np.tanh(np.float32(0.851) * x) + np.float32(0.5))


def mish(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """x tanh(log(1 + e^x)) (Misra 2019, eq. 1.1)."""
    return x * np.tanh(np.logaddexp(np.float32(0), x))


def silu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """x sigmoid(x), which is x (1 + tanh(x / 2)) / 2: swish in configs."""
    share = np.float32(0.5) * x
    np.tanh(share, out=share)
    share *= np.float32(0.5)
    share += np.float32(0.5)
    share *= x
    return share


def tanh(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The hyperbolic tangent."""
    return np.tanh(x)


ACTIVATIONS: dict[str, Callable[[Float[np.ndarray, "..."]], Float[np.ndarray, "..."]]] = {
    "gelu": gelu,
    "gelu_fast": gelu_tanh,
    "gelu_new": gelu_tanh,
    "gelu_python": gelu,
    "gelu_pytorch_tanh": gelu_tanh,
    "mish": mish,
    "quick_gelu": quick_gelu,
    "relu": relu,
    "silu": silu,
    "swish": silu,
    "tanh": tanh,
}


def activate(name: str, x: Float[np.ndarray, "..."], threads: ThreadPoolExecutor | None = None) -> None:
    """Apply the activation that a config calls `name` to x, in place, in blocks spread over the threads, if any.

    Raises:
        UnsupportedError: headscope has no activation of that name.
    """
    function = ACTIVATIONS.get(name)
    if function is None:
        raise UnsupportedError(
            f"headscope has no activation {name!r}",
            where="config.json",
            advice=f"known activations: {', '.join(ACTIVATIONS)}; otherwise capture the live model in torch",
        )
    flat = x.reshape(-1) if x.flags.c_contiguous else x.T.reshape(-1)

    def work(start: int) -> None:
        flat[start : start + block] = function(flat[start : start + block])

    block = -(-flat.size // max(1, round(flat.size / BLOCK)))
    starts = range(0, flat.size, block)
    if threads is None or len(starts) <= FEW_BLOCKS:
        for start in starts:
            work(start)
    else:
        list(threads.map(work, starts))
