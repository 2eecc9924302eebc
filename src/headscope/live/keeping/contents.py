"""The contents of tensors at one moment, to tell later whether they are still the same.

A mask that several layers share may be changed in place between them. Version counters don't tell: writes through
`.data` and NumPy leave them alone, and tensors made in inference mode have none. So the numbers themselves are looked
at. On a CPU they are hashed, in blocks: a position bias may be as large as a map, of which no copy is kept. On other
devices a copy is compared, and nobody waits for the answer.

Of contexts, one number per query and head is kept, so that every context can be compared later.

Each is the product of a query's context with a fixed random vector r. If a recomputed context c' differs from the
module's c, then (c' - c) . r differs from 0 by about |c' - c| (Freivalds 1977), so one number stands for the d_head
numbers of a context. No two numbers of r are alike, so that equal changes of two of them don't cancel.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from headscope.attention.scores import attend
from headscope.live.masks.cells import BLOCK_CELLS

if TYPE_CHECKING:
    from headscope.traces import LayerRecord


HASHED = frozenset({"cpu"})
"""Types of devices whose tensors are hashed."""

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
"""Types of objects that can't change."""

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32}
MULTIPLIER = -7046029254386353131
"""2^64 over the golden ratio: multiples of it are far apart."""


class Contents:
    """Contents of some objects when this is made.

    A function is the same only if it is the same object. Objects of other classes may hide anything, so they never
    count as the same.

    Args:
        things: tensors, numbers, functions, and tuples, lists and mappings of them.
    """

    def __init__(self, *things: Any) -> None:
        self._elsewhere: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []
        self._key = self._of(things)

    def keep(self) -> None:
        """Copy the tensors that are not hashed, so that they can be compared later."""
        self._copies = [x.clone() for x in self._elsewhere]

    def same(self, kept: Contents, doubts: list[torch.Tensor]) -> bool:
        """Return True if these contents equal those that were kept.

        Args:
            kept: the earlier contents.
            doubts: of tensors in the same memory, on devices that shouldn't wait, True is returned, and a tensor is
                appended that is True if they differ nevertheless.
        """
        if self._key != kept._key:
            return False
        later = []
        for x, y, copy in zip(self._elsewhere, kept._elsewhere, kept._copies, strict=True):
            if (x.data_ptr(), x.stride()) == (y.data_ptr(), y.stride()):
                later.append((x != copy).any())
            elif not torch.equal(x, copy):
                return False
        doubts += later
        return True

    def _of(self, thing: Any) -> Any:
        """A hashable object that equals that of another thing only if both hold the same."""
        if isinstance(thing, torch.Tensor) and not thing.is_nested:
            form = (thing.shape, thing.dtype, thing.device)
            if thing.device.type in HASHED:
                return (*form, tuple(hashes(thing)))
            self._elsewhere.append(thing.detach())
            return form
        if isinstance(thing, PLAIN):
            return type(thing), thing
        if isinstance(thing, (tuple, list)):
            return tuple(map(self._of, thing))
        if isinstance(thing, Mapping):
            return tuple((key, self._of(value)) for key, value in thing.items())
        return thing if callable(thing) and not isinstance(thing, torch.Tensor) else object()


class Weights:
    """The parameters of a model when this is made: which they are, and how often each was written to.

    Those on no device are left out: whoever offloads a model puts others in their places in each pass.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._known = [
            (weakref.ref(x), None if x.is_inference() else x._version, None if x.is_meta else x.data_ptr())
            for module in modules
            for x in module._parameters.values()
            if x is not None and type(x) is nn.Parameter
        ]

    def same(self, earlier: Weights) -> bool:
        """Return True if these are the same parameters, unchanged since. Writes through `.data` aren't seen."""
        known, then = ([entry for entry in x._known if entry[2] is not None] for x in (self, earlier))
        return len(known) == len(then) and all(
            now() is not None and now() is before() and rest == others
            for (now, *rest), (before, *others) in zip(known, then, strict=True)
        )


def marked(rows: torch.Tensor) -> torch.Tensor:
    """(rows,): the product of each row of a matrix with a fixed vector, to tell later whether it was changed."""
    kind = rows.device.type
    if torch.is_autocast_enabled(kind):
        with torch.autocast(kind, enabled=False):
            return marked(rows)
    return torch.mv(rows.detach().float(), direction(rows.shape[1], rows.device))


def hashes(x: torch.Tensor) -> Iterator[int]:
    """Hashes of a tensor's bytes, a block at a time; numbers that `expand` repeats are read once."""
    for block in _blocks(once(x.detach())):
        flat = block.contiguous().as_strided((block.numel(),), (1,))  # of one number, the stride may be 0
        yield hash(flat.view(torch.uint8).numpy().tobytes())


def together(numbers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Numbers, which may be on several devices, in one tensor: to read them waits for a device once."""
    if not numbers:
        return torch.zeros(0, device="cpu")
    return torch.stack([number.to(numbers[0].device) for number in numbers])


def once(x: torch.Tensor) -> torch.Tensor:
    """The numbers that `expand` repeats along an axis, once."""
    for axis, stride in enumerate(x.stride()):
        if stride == 0:
            x = x.narrow(axis, 0, min(1, x.shape[axis]))
    return x


def _blocks(x: torch.Tensor) -> Iterator[torch.Tensor]:
    if x.numel() <= BLOCK_CELLS:
        yield x
    else:
        for part in x.unbind() if len(x) == 1 else x.chunk(2):
            yield from _blocks(part)


def fingerprint(x: torch.Tensor) -> torch.Tensor:
    """A number for each vector along the last axis, from all of its bits."""
    x = x.detach().reshape(x.shape or (1,)).contiguous()
    x = x if x.stride(-1) == 1 else x.clone(memory_format=torch.contiguous_format)  # of one number each
    bits = x.view(BITS[min(x.element_size(), 4)]).long()
    weights = (2 * torch.arange(bits.shape[-1], device=x.device) + 1) * MULTIPLIER
    weights = (weights ^ (weights >> 29)) * MULTIPLIER  # without order: evenly spaced, they give mirror images one sum
    return (bits * weights).sum(-1)


@cache
def direction(size: int, device: torch.device) -> torch.Tensor:
    """(size,): a fixed pseudorandom vector of numbers from 0.5 to 1.5 and from -1.5 to -0.5."""
    values = np.random.default_rng(size).uniform(-1, 1, size)
    return torch.from_numpy((values + 0.5 * np.sign(values)).astype(np.float32)).to(device)


CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class ContextProducts:
    """A projection of a module's contexts onto one direction, kept for verification.

    Attributes:
        values: (heads, queries): context . r of each head.
        direction: (d_value,): r.
        eps: the spacing of numbers around 1 in the model's precision.
        fused: True if a fused kernel computed the contexts; it sums scores in fp32.
    """

    values: np.ndarray
    direction: np.ndarray
    eps: float
    fused: bool

    def expect(self, record: LayerRecord) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Compute, in fp64, the `values` that follow from a layer's record.

        Returns:
            The expected `values`; and, (heads, queries) each, with x_j = v_j . r: the standard deviation of x under the
            row's weights, the root of its mean square, and sum_j p_ij |v_j|.
        """
        assert record.v is not None
        shared = len(record.q) // len(record.k)
        q, k, v = (part.astype(np.float64) for part in (record.q, record.k, record.v))
        projected = np.einsum("hkd,d->hk", np.repeat(v, shared, 0), self.direction.astype(np.float64))
        lengths = np.repeat(np.sqrt(np.square(v).sum(-1)), shared, 0)
        columns = np.stack([projected, np.square(projected), lengths], -1)
        mixed, _ = attend(q, np.repeat(k, shared, 0), columns, scale=record.scale, mask=record.mask, terms=record.terms)
        means, squares, gathered = (mixed[..., column] for column in range(3))
        spread = np.sqrt(np.maximum(squares - np.square(means), 0))
        return means, spread, np.sqrt(squares), gathered
