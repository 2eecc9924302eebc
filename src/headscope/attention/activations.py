"""The activations that configs name, in NumPy: each computes what transformers computes under that name."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import UnsupportedError

if TYPE_CHECKING:
    from jaxtyping import Float

    Function = Callable[[Float[np.ndarray, "..."]], Float[np.ndarray, "..."]]

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

SLOPE_LIMIT = np.float32(20)
"""|x| from which on GELU's slope is 0 or 1."""


def gelu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """x Phi(x) with the exact normal distribution (Hendrycks & Gimpel 2016, section 2)."""
    square = np.clip(x, -NORMAL_LIMIT, NORMAL_LIMIT)
    square *= square
    share = _doubled_normal(x, square)
    share *= np.multiply(x, np.float32(0.5), out=square)
    return share


def gelu_slope(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Phi(x) + x phi(x)."""
    x = np.clip(x, -SLOPE_LIMIT, SLOPE_LIMIT)
    square = np.square(x)
    density = np.exp(np.multiply(square, np.float32(-0.5)))
    density *= x
    density *= np.float32(1 / np.sqrt(2 * np.pi))
    np.minimum(square, np.square(NORMAL_LIMIT), out=square)
    share = _doubled_normal(x, square)
    share *= np.float32(0.5)
    share += density
    return share


def _doubled_normal(x: Float[np.ndarray, "..."], square: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """2 Phi(x), from x and its square, at most that of NORMAL_LIMIT."""
    share = square * NORMAL_LOGIT[0]
    for coefficient in NORMAL_LOGIT[1:-1]:
        share += coefficient
        share *= square
    share += NORMAL_LOGIT[-1]
    share *= x
    np.tanh(share, out=share)
    share += np.float32(1)
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


def gelu_tanh_slope(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """With t = tanh(c (x + a x^3)): (1 + t) / 2 + x c (1 + 3 a x^2) (1 - t^2) / 2."""
    x = np.clip(x, -SLOPE_LIMIT, SLOPE_LIMIT)
    c, a, square = np.float32(np.sqrt(2 / np.pi)), np.float32(0.044715), np.square(x)
    t = np.tanh(c * x * (1 + a * square))
    return np.float32(0.5) * ((1 + t) + x * c * (1 + 3 * a * square) * (1 - np.square(t)))


def relu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """max(x, 0)."""
    return np.maximum(x, np.float32(0))


def relu_slope(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """1 above 0, otherwise 0."""
    return (x > 0).astype(x.dtype)


def sigmoid(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """1 / (1 + e^-x), as (1 + tanh(x / 2)) / 2, which can't overflow."""
    return np.float32(0.5) * np.tanh(np.float32(0.5) * x) + np.float32(0.5)


def log_softmax(logits: Float[np.ndarray, "*n choices"]) -> Float[np.ndarray, "*n choices"]:
    """The logarithm of the softmax over the last axis, in fp64."""
    below = logits.astype(np.float64)
    below -= below.max(axis=-1, keepdims=True)
    return below - np.log(np.exp(below).sum(axis=-1, keepdims=True))


def softmax(logits: Float[np.ndarray, "*n choices"]) -> Float[np.ndarray, "*n choices"]:
    """The softmax over the last axis, in fp64."""
    return np.exp(log_softmax(logits))


def quick_gelu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """GELU's approximation by x sigmoid(1.702 x) (Hendrycks & Gimpel 2016, section 2)."""
    return x * (np.float32(0.5) * np.tanh(np.float32(0.851) * x) + np.float32(0.5))


def quick_gelu_slope(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """With s = sigmoid(1.702 x): s + 1.702 x s (1 - s)."""
    s = sigmoid(np.float32(1.702) * x)
    return s + np.float32(1.702) * x * s * (1 - s)


def mish(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """x tanh(log(1 + e^x)) (Misra 2019, eq. 1.1)."""
    return x * np.tanh(np.logaddexp(np.float32(0), x))


def mish_slope(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """With t = tanh(log(1 + e^x)): t + x (1 - t^2) sigmoid(x)."""
    t = np.tanh(np.logaddexp(np.float32(0), x))
    return t + x * (1 - np.square(t)) * sigmoid(x)


def silu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """x sigmoid(x), which is x (1 + tanh(x / 2)) / 2: swish in configs."""
    share = np.float32(0.5) * x
    np.tanh(share, out=share)
    share *= np.float32(0.5)
    share += np.float32(0.5)
    share *= x
    return share


def silu_slope(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """With s = sigmoid(x): s + x s (1 - s)."""
    s = sigmoid(x)
    return s + x * s * (1 - s)


def tanh(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The hyperbolic tangent."""
    return np.tanh(x)


def tanh_slope(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """1 - tanh(x)^2."""
    return 1 - np.square(np.tanh(x))


ACTIVATIONS: dict[str, tuple[Function, Function]] = {
    "gelu": (gelu, gelu_slope),
    "gelu_fast": (gelu_tanh, gelu_tanh_slope),
    "gelu_new": (gelu_tanh, gelu_tanh_slope),
    "gelu_python": (gelu, gelu_slope),
    "gelu_pytorch_tanh": (gelu_tanh, gelu_tanh_slope),
    "mish": (mish, mish_slope),
    "quick_gelu": (quick_gelu, quick_gelu_slope),
    "relu": (relu, relu_slope),
    "silu": (silu, silu_slope),
    "swish": (silu, silu_slope),
    "tanh": (tanh, tanh_slope),
}
"""A config's name of an activation -> the function and its derivative."""


def functions(name: str) -> tuple[Function, Function]:
    """The activation that a config calls `name`, and its derivative.

    Raises:
        UnsupportedError: headscope has no activation of that name.
    """
    if name not in ACTIVATIONS:
        raise UnsupportedError(
            f"headscope has no activation {name!r:.80}",
            where="config.json",
            advice=f"known activations: {', '.join(ACTIVATIONS)}; otherwise capture the live model in torch",
        )
    return ACTIVATIONS[name]


def activate(name: str, x: Float[np.ndarray, "..."], threads: ThreadPoolExecutor | None = None) -> None:
    """Apply the activation that a config calls `name` to x, in place, in blocks spread over the threads, if any.

    Raises:
        UnsupportedError: headscope has no activation of that name.
    """
    _in_blocks(functions(name)[0], x, threads)


def slope(name: str, x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The derivative of the activation that a config calls `name`, at every x; in blocks, as `activate`.

    Raises:
        UnsupportedError: headscope has no activation of that name.
    """
    slopes = x.copy()
    _in_blocks(functions(name)[1], slopes, None)
    return slopes


def _in_blocks(function: Function, x: Float[np.ndarray, "..."], threads: ThreadPoolExecutor | None) -> None:
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
