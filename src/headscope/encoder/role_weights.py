"""A checkpoint's parameters by role, and the two operations that need nothing else: x W + b, and norms."""

from __future__ import annotations

import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from headscope.encoder.products import FEW_TOKENS, as_stored, empty_aligned, few_products, many_products, transposed

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from jaxtyping import Float

    from headscope.anatomy import Anatomy, Parameter
    from headscope.checkpoint import Checkpoint

    Rows = Float[np.ndarray, "tokens width"]


SCRATCH_NUMBERS = 1 << 21
"""Largest array that is kept between layers and texts for intermediate results, 8 MiB."""

NORM_NUMBERS = 1 << 16
"""Numbers of the rows that a norm passes over at a time: 256 KiB, which stay in a core's cache."""

THREAD_LIMITS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
"""Environment variables that limit OpenBLAS's threads; the first that is set counts."""


@dataclass(frozen=True)
class EncoderWeights:
    """The parameters of a checkpoint, in fp32.

    fp32 parameters are used in place, in the mapped file; narrower dtypes are upcast once and cached. For many texts,
    weights are copied: see products.py.
    """

    checkpoint: Checkpoint
    anatomy: Anatomy
    _cache: dict[str, Float[np.ndarray, "..."]] = field(default_factory=dict, repr=False)
    _held: dict[tuple[str, int | None], Float[np.ndarray, "..."] | None] = field(
        default_factory=dict, repr=False, compare=False
    )
    _looked_up: dict[Hashable, tuple[Hashable, list[Float[np.ndarray, "..."]]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    copies: dict[Hashable, Float[np.ndarray, "..."]] | None = field(default=None, repr=False, compare=False)
    _kept: threading.local = field(default_factory=threading.local, repr=False, compare=False)

    @cached_property
    def threads(self) -> ThreadPoolExecutor | None:
        """Threads for element-wise work, as many as BLAS uses for matrix products; None for a single thread."""
        limit = next((os.environ[name] for name in THREAD_LIMITS if os.environ.get(name, "").isdecimal()), None)
        count = min(os.cpu_count() or 1, int(limit) or 1 if limit else math.inf)
        return ThreadPoolExecutor(int(count), thread_name_prefix="headscope") if count > 1 else None

    @cached_property
    def norm_eps(self) -> np.float32:
        """The number that norms add to a variance."""
        return np.float32(self.anatomy.setting("norm_eps"))

    @cached_property
    def activation(self) -> str:
        """The name of the feed-forward networks' activation."""
        return str(self.anatomy.setting("activation"))

    def scratch(self, purpose: str, shape: tuple[int, ...]) -> Float[np.ndarray, "..."]:
        """An array to overwrite, valid until this thread's next call for this purpose.

        It is the same memory again, unless it is large: new memory costs as much as two passes over it.
        """
        numbers = math.prod(shape)
        if numbers > SCRATCH_NUMBERS:
            return np.empty(shape, dtype=np.float32)
        kept: dict[str, Float[np.ndarray, " n"]] = self._kept.__dict__
        if purpose not in kept or len(kept[purpose]) < numbers:
            kept[purpose] = empty_aligned((numbers,))
        return kept[purpose][:numbers].reshape(shape)

    def weight(self, role: str, layer: int | None = None) -> Float[np.ndarray, "..."]:
        """The parameter with this role, in fp32, as stored: a Linear's is (out, in).

        Raises:
            CheckpointError: the checkpoint lacks this parameter.
        """
        held = self.held(role, layer)
        return self.read(self.anatomy.parameter(role, layer)) if held is None else held

    def held(self, role: str, layer: int | None = None) -> Float[np.ndarray, "..."] | None:
        """The parameter with this role, in fp32, as stored; None if the checkpoint has none."""
        key = role, layer
        if key not in self._held:
            row = self.anatomy.find(role, layer)
            self._held[key] = None if row is None else self.read(row)
        return self._held[key]

    def bias(self, role: str, layer: int | None = None) -> Float[np.ndarray, " out"]:
        """The bias of the Linear with this role, (out,); 0 in families without it."""
        bias = self.held(f"{role}.bias", layer)
        return np.zeros(len(self.weight(f"{role}.weight", layer)), dtype=np.float32) if bias is None else bias

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
        product, bias = self.product(x, (role,), layer), self.held(f"{role}.bias", layer)
        return np.array(product, order="C") if bias is None else np.add(product, bias, order="C")

    def product(
        self, x: Float[np.ndarray, "tokens into"], roles: Sequence[str], layer: int | None = None
    ) -> Float[np.ndarray, "tokens out"]:
        """x W for the W of these roles side by side, in the order in memory in which BLAS is fastest.

        It is valid until this thread's next product with these roles.
        """
        key, stored = self._linears(tuple(roles), layer)
        tokens, width = len(x), sum(map(len, stored))
        if tokens > FEW_TOKENS:
            if self.copies is not None:
                copy = transposed(self.copies, key, stored)
                row = width if len(stored) == 1 else copy.strides[0] // copy.itemsize  # as in the copy
                return np.matmul(x, copy, out=self.scratch(roles[0], (tokens, row))[:, :width])
            return many_products(x, stored, out=self.scratch(roles[0], (width, tokens)))
        parts = stored if self.copies is None else [as_stored(self.copies, key, stored)]
        return few_products(x, parts, out=self.scratch(roles[0], (tokens, width)))

    def _linears(self, roles: tuple[str, ...], layer: int | None) -> tuple[Hashable, list[Float[np.ndarray, "_ into"]]]:
        """Return what identifies the weights of these roles, and the weights as stored."""
        if (roles, layer) not in self._looked_up:
            parameters = [self.anatomy.parameter(f"{role}.weight", layer) for role in roles]
            key = tuple((row.stored, row.rows) for row in parameters)
            self._looked_up[roles, layer] = key, [self.read(row) for row in parameters]
        return self._looked_up[roles, layer]

    def norm(self, x: Rows, role: str, layer: int | None = None) -> Rows:
        """The family's norm, in place.

        LayerNorm: (row - mean) / deviation, scaled and shifted (Ba et al. 2016, eq. 4). RMSNorm: row / root of its mean
        square, scaled (Zhang and Sennrich 2019, eq. 4).
        """
        eps = self.norm_eps
        centred = self.anatomy.family is None or not self.anatomy.family.rms_norm
        scale = self.weight(f"{role}.weight", layer)
        shift = self.held(f"{role}.bias", layer)
        width = np.float32(x.shape[-1])
        ones = np.ones(x.shape[-1], dtype=x.dtype)
        step = max(1, NORM_NUMBERS // x.shape[-1])
        for start in range(0, len(x), step):
            rows = x[start : start + step]
            if centred:
                rows -= (rows @ ones / width)[:, None]
            variance = np.einsum("ij,ij->i", rows, rows) / width
            rows *= (1 / np.sqrt(variance + eps))[:, None]
            rows *= scale
            if shift is not None:
                rows += shift
        return x
