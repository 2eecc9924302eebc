"""Matrix products of fp32 numbers that PyTorch may round: to TF32 on a GPU, to bf16 on some processors.

`torch.set_float32_matmul_precision`, `torch.backends.cuda.matmul.allow_tf32` and the `fp32_precision` of PyTorch 2.9
let products read their factors with fewer bits. The errors of a model that runs so are larger than fp32's, which checks
have to allow; headscope's own products are not rounded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

SPACINGS = {"high": 2.0**-9, "medium": 2.0**-7}
"""Setting -> twice the largest error of a factor near 1. TF32 has 10 bits; the others may be cut off, not rounded."""

NAMES = {"none": "highest", "ieee": "highest", "tf32": "high", "bf16": "medium"}
"""PyTorch's newer name of a setting -> the older one."""

KINDS = ("cuda", "cpu")
"""The types of devices that have such a setting."""

_BACKENDS: Any = torch.backends
_MATMULS = (_BACKENDS.cuda.matmul, _BACKENDS.mkldnn.matmul) if hasattr(_BACKENDS, "fp32_precision") else ()
"""The holder of each type's setting; before PyTorch 2.9, one setting held for all."""

_LOCK = threading.Lock()
_OPEN: list[tuple[str, ...]] = []
"""The settings that each open block of `exact_products` found."""


def matmul_precision() -> dict[str, str]:
    """Type of device -> highest, high or medium: the precision of its products, outside of `exact_products`."""
    with _LOCK:
        names = _OPEN[0] if _OPEN else _found()
    return {kind: NAMES.get(name, name) for kind, name in zip(KINDS, names, strict=True)}


def rounding_of(x: torch.Tensor) -> float:
    """The spacing of numbers around 1 to which products round x outside of `exact_products`; 0 if they don't."""
    return SPACINGS.get(matmul_precision().get(x.device.type, ""), 0.0) if x.dtype == torch.float32 else 0.0


@contextmanager
def exact_products() -> Iterator[None]:
    """Round no factors of products of fp32 numbers inside the block.

    PyTorch has one setting for all threads: the first block that opens changes it, the last one to close restores it,
    and products of a model in another thread are exact meanwhile.
    """
    with _LOCK:
        found = _found()
        needed = bool(_OPEN) or any(NAMES.get(name, name) in SPACINGS for name in found)
        if needed:
            _OPEN.append(_OPEN[0] if _OPEN else found)
            _set(("ieee", "ieee") if _MATMULS else ("highest", "highest"))
    try:
        yield
    finally:
        if needed:
            with _LOCK:
                before = _OPEN.pop()
                if not _OPEN:
                    _set(before)


def _found() -> tuple[str, ...]:
    return tuple(str(x.fp32_precision) for x in _MATMULS) or (torch.get_float32_matmul_precision(),) * len(KINDS)


def _set(names: tuple[str, ...]) -> None:
    if not _MATMULS:
        torch.set_float32_matmul_precision(names[0])
    for matmul, name in zip(_MATMULS, names, strict=False):
        matmul.fp32_precision = "none"  # as the setting for all backends says
        if matmul.fp32_precision != name:
            matmul.fp32_precision = name
