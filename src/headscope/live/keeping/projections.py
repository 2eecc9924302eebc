"""Find W_O in a model: the weight of the Linear that reads an attention's output.

Names don't matter. A Linear is an attention's output projection if its input is the memory that the attention wrote,
with the same numbers: for each query, the contexts of all heads side by side. If something comes between them (a norm,
a gate, a hook), or more than one module reads the output (an adapter), there is no W_O to multiply a head's context by.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from headscope.checkpoint.weights_elsewhere import is_wrapped, stored, with_numbers
from headscope.errors import UnsupportedError
from headscope.live.keeping.contents import marked
from headscope.live.plan.stacks import is_conv1d, is_linear, packs_linear
from headscope.live.progress import WeakStorage, is_plain

if TYPE_CHECKING:
    from headscope.live.plan.stacks import Place, Stack

SAME_AS_LINEAR = ("FalconLinear",)
"""Subclasses of nn.Linear in transformers whose forward computes the same: x W^T + b, in two steps."""

CLOSE = 1e-6
"""Products of the same matrix differ by less, relative to the longest, whatever adds them up."""


@dataclass(frozen=True, eq=False)
class Awaited:
    """An attention's output on its way to the projection. It keeps no memory alive.

    Attributes:
        place: the stack and the layer.
        storage: weak reference to the output's memory.
        pointer: address at which the output begins.
        shape: (batch, queries, heads, d_value).
        dtype: its numbers' type, which a view of them need not have.
        mark: a number for each query and head that tells whether they changed; None on a GPU, which would have to wait.
    """

    place: tuple[Stack, int]
    storage: WeakStorage
    pointer: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    mark: torch.Tensor | None = None

    @classmethod
    def of(cls, output: torch.Tensor, place: Place, mark: torch.Tensor | None = None) -> Awaited | None:
        """Describe an attention's `output`, (batch, queries, heads, d_value); None if it is not contiguous.

        Args:
            output: the output.
            place: its place.
            mark: of the output, if it is known.
        """
        if not output.is_contiguous():
            return None
        mark, shape = mark_of(output) if mark is None else mark, tuple(output.shape)
        return cls((place.stack, place.layer), WeakStorage(output), output.data_ptr(), shape, output.dtype, mark)

    def may_be_in(self, argument: Any) -> bool:
        """Return True if an argument begins where a number of this output is, or was."""
        if not is_plain(argument) or argument.layout != torch.strided:
            return False
        return 0 <= argument.data_ptr() - self.pointer < prod(self.shape) * self.dtype.itemsize

    def is_in(self, argument: Any) -> bool:
        """Return True if a module's argument is made of this output's numbers: of all or some, in any order."""
        if not self.may_be_in(argument) or self.storage != WeakStorage(argument):
            return False
        memory, d_value = argument.untyped_storage(), self.shape[-1]
        first = (self.pointer - memory.data_ptr()) // self.dtype.itemsize
        empty = torch.empty(0, dtype=self.dtype, device=argument.device)
        whole = empty.set_(memory, first, (prod(self.shape[:-1]), d_value), (d_value, 1))
        return self.mark is None or torch.equal(self.mark, marked(whole))

    def is_all_of(self, argument: torch.Tensor) -> bool:
        """Return True if a module's argument, which is in this output, is all of it, with the heads side by side."""
        sizes = prod(self.shape), prod(self.shape[2:])
        return argument.is_contiguous() and (argument.numel(), argument.shape[-1]) == sizes


def mark_of(output: torch.Tensor) -> torch.Tensor | None:
    """(batch * queries * heads,): the products of contexts with a fixed vector, to tell whether they change.

    Args:
        output: (batch, queries, heads, d_value), the contexts.

    Returns:
        None on a GPU, where comparing them would have to wait, and if they aren't contiguous.
    """
    return None if output.is_cuda or not output.is_contiguous() else marked(output.reshape(-1, output.shape[-1]))


@dataclass(frozen=True)
class Output:
    """The modules that read an attention's output.

    Attributes:
        paths: their names in the model.
        d_value: number of W_O's rows that belong to one head; 0 if none of them reads all contexts of a query at once.
        mark: tells whether W_O was changed since the pass; None if that can't be told.
    """

    paths: tuple[str, ...]
    d_value: int
    mark: torch.Tensor | None = None

    def marked(self, model: nn.Module) -> Output:
        """The same with a mark of W_O as it is now."""
        return replace(self, mark=_mark(self._weight(model))) if len(self.paths) == 1 else self

    def is_changed(self, model: nn.Module) -> bool:
        """Return True if W_O has other numbers now."""
        if self.mark is None:
            return False
        weight = self._weight(model)
        if getattr(weight, "is_meta", False) or type(weight).__name__ == "DTensor":
            return False  # it is refused
        mark, now = self.mark.cpu(), _mark(weight)
        return now is None or now.shape != mark.shape or not torch.allclose(now.cpu(), mark, CLOSE, CLOSE * mark.norm())

    def _weight(self, model: nn.Module) -> Any:
        return stored(model, f"{self.paths[0]}.weight")


def _mark(weight: Any) -> torch.Tensor | None:
    """A mark of a weight; None if it isn't a matrix of numbers."""
    plain = type(weight) in (nn.Parameter, torch.Tensor) and weight.dim() == 2 and not weight.is_meta
    return marked(weight) if plain and weight.is_floating_point() else None


def rows_of_W_O(model: nn.Module, output: Output | None, layer: int, head: int) -> np.ndarray:
    """(d_value, d_model): the head's rows of W_O, in fp32.

    Raises:
        UnsupportedError: no single Linear is the projection, or its weight is stored in a form that can't be read.
    """
    where, name, output = f"layer {layer}, head {head}", type(model).__name__, output or Output((), 0)
    if len(output.paths) > 1:
        readers = ", ".join(output.paths)
        raise UnsupportedError(
            f"{name}: {len(output.paths)} modules read the contexts ({readers}), so W_O is not one matrix",
            where=where,
            advice="merge the adapter into the model first, then capture again",
        )
    module = model.get_submodule(output.paths[0]) if output.paths else None
    if module is None or not is_linear(module) or not output.d_value:
        other = "" if module is None or is_linear(module) else f": {output.paths[0]} does, which is not a plain Linear"
        raise UnsupportedError(
            f"{name}: no Linear reads the contexts of this layer's heads unchanged, so there is no W_O{other}",
            where=where,
            advice="use trace[layer, head].context instead: W_O requires a Linear that reads the contexts of all heads",
        )
    plain = type(module).forward is nn.Linear.forward or type(module).__name__ in SAME_AS_LINEAR
    if isinstance(module, nn.Linear) and not plain:
        raise UnsupportedError(
            f"{name}: {output.paths[0]} ({type(module).__name__}) overrides forward, so W_O may differ from its weight",
            where=where,
            advice="merge its additions into an nn.Linear first, then capture again",
        )
    weight = module.weight() if packs_linear(module) else with_numbers(model, f"{output.paths[0]}.weight", where)  # type: ignore[operator]
    wrapped = not isinstance(weight, torch.Tensor) or is_wrapped(weight)
    if wrapped or weight.dim() != 2 or not weight.is_floating_point():
        kind = type(weight).__name__ if wrapped else weight.dtype
        raise UnsupportedError(
            f"{name}: {output.paths[0]} stores packed weights ({kind})",
            where=where,
            advice="capture the model before quantising it",
        )
    W = weight.detach() if is_conv1d(module) else weight.detach().T
    rows: np.ndarray = W[head * output.d_value : (head + 1) * output.d_value].float().cpu().numpy()
    return rows
