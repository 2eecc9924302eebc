"""A checkpoint's parameters by role, and the two operations that need nothing else: x W + b, and norms."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.anatomy import Anatomy, Parameter
    from headscope.checkpoint import Checkpoint

    Rows = Float[np.ndarray, "tokens width"]


@dataclass(frozen=True)
class Weights:
    """The parameters of a checkpoint, in fp32.

    fp32 parameters are used in place, in the mapped file; narrower dtypes are upcast once and cached.
    """

    checkpoint: Checkpoint
    anatomy: Anatomy
    _cache: dict[str, Float[np.ndarray, "..."]] = field(default_factory=dict, repr=False)

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        """Threads for element-wise work; matrix products use BLAS's threads."""
        return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="headscope")

    def weight(self, role: str, layer: int | None = None) -> Float[np.ndarray, "..."]:
        """The parameter with this role, in fp32, as stored: a Linear's is (out, in)."""
        return self.read(self.anatomy.parameter(role, layer))

    def bias(self, role: str, layer: int | None = None) -> Float[np.ndarray, " out"]:
        """The bias of the Linear with this role, (out,); 0 in families without it."""
        if self.anatomy.has(f"{role}.bias", layer):
            return self.weight(f"{role}.bias", layer)
        return np.zeros(len(self.weight(f"{role}.weight", layer)), dtype=np.float32)

    def read(self, row: Parameter) -> Float[np.ndarray, "..."]:
        """A parameter of the anatomy, in fp32, as stored."""
        if row.stored not in self._cache:
            self._cache[row.stored] = np.asarray(self.checkpoint.read(row.stored), dtype=np.float32)
        whole = self._cache[row.stored]
        return whole if row.rows is None else whole[slice(*row.rows)]

    def linear(
        self, x: Float[np.ndarray, "tokens into"], role: str, layer: int | None = None
    ) -> Float[np.ndarray, "tokens out"]:
        """x W + b, with the paper's W = weight.T; b is 0 in families without biases."""
        product = x @ self.weight(f"{role}.weight", layer).T
        if self.anatomy.has(f"{role}.bias", layer):
            product += self.weight(f"{role}.bias", layer)
        return product

    def norm(self, x: Rows, role: str, layer: int | None = None) -> Rows:
        """The family's norm, in place.

        LayerNorm: (row - mean) / deviation, scaled and shifted (Ba et al. 2016, eq. 4). RMSNorm: row / root of its mean
        square, scaled (Zhang and Sennrich 2019, eq. 4).
        """
        eps = np.float32(self.anatomy.setting("norm_eps"))
        if self.anatomy.family is None or not self.anatomy.family.rms_norm:
            x -= x.mean(axis=-1, keepdims=True)
        variance = np.einsum("ij,ij->i", x, x)[:, None] / np.float32(x.shape[-1])
        x *= 1 / np.sqrt(variance + eps)
        x *= self.weight(f"{role}.weight", layer)
        if self.anatomy.has(f"{role}.bias", layer):
            x += self.weight(f"{role}.bias", layer)
        return x
