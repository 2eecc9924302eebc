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
"""Elements per block: a block and its scratch space stay in one core's cache."""

ERF_CLAMP = np.float32(3.925724783138660)
ERF_ODD = np.array(
    [0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861, 0.18520832239976145, 1.128379143519084],
    dtype=np.float32,
)
ERF_EVEN = np.array(
    [-1.1791602954361697e-7, 0.000023547966471313185, 0.0010179625278914885, 0.014070470171167667,
     0.11098505178285362, 0.49746925110067538, 1.0],
    dtype=np.float32,
)  # fmt: skip


def erf(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The error function in fp32, to within 6e-7: an odd rational approximation, x P(x^2) / Q(x^2), on |x| <= 3.93.

    The coefficients are the minimax coefficients that Eigen and XLA use for float; beyond the clamp, erf is 1 in fp32.
    """
    x = np.clip(x, -ERF_CLAMP, ERF_CLAMP)
    square = x * x
    x *= horner(square, ERF_ODD)
    x /= horner(square, ERF_EVEN)
    return x


def horner(x: Float[np.ndarray, "..."], coefficients: Float[np.ndarray, " n"]) -> Float[np.ndarray, "..."]:
    """Evaluate a polynomial by Horner's rule; the coefficient of the highest power comes first."""
    total = x * coefficients[0]
    total += coefficients[1]
    for coefficient in coefficients[2:]:
        total *= x
        total += coefficient
    return total


def gelu(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """x Phi(x) with the exact normal distribution, by erf (Hendrycks & Gimpel 2016, section 2)."""
    share = erf(x * np.float32(np.sqrt(0.5)))
    share *= np.float32(0.5)
    share += np.float32(0.5)
    share *= x
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


def activate(name: str, x: Float[np.ndarray, "..."], threads: ThreadPoolExecutor) -> None:
    """Apply the activation that a config calls `name` to x, in place, in blocks spread over all threads.

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
    flat = x.reshape(-1)

    def work(start: int) -> None:
        flat[start : start + BLOCK] = function(flat[start : start + BLOCK])

    starts = range(0, flat.size, BLOCK)
    if len(starts) == 1:
        work(0)
    else:
        list(threads.map(work, starts))
