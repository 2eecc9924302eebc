"""Which of a model's parameters are W_O: the weights of the Linear that an attention's output goes into.

Nothing is told by names. A Linear is an attention's output projection if what it is given is the very memory that the
attention wrote, row after row: each query's contexts of all heads, side by side. Where something stands between (a
norm, a gate), or more than one Linear reads it (an adapter), there is no W_O that a head could be multiplied by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from headscope.errors import UnsupportedError

if TYPE_CHECKING:
    from headscope._capture.calls import Stack

ADVICE = "the head's context is there: trace[layer, head].context; W_O needs a Linear that takes all heads' contexts"


@dataclass(frozen=True, eq=False)
class Awaited:
    """An attention's output on its way to the projection. Holds no memory.

    Attributes:
        place: the stack and the layer.
        storage: a weak reference to the memory; `pointer`: where in it the output begins.
        shape: (batch, queries, heads, d_value).
    """

    place: tuple[Stack, int]
    storage: StorageWeakRef
    pointer: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, output: torch.Tensor, stack: Stack, layer: int) -> Awaited | None:
        """What to wait for after an attention gave `output`, (batch, queries, heads, d_value); None if it has gaps."""
        if not output.is_contiguous():
            return None
        return cls((stack, layer), _weakly(output), output.data_ptr(), tuple(output.shape))

    def is_in(self, given: object) -> bool:
        """Whether what a Linear was given is this output, with the heads side by side."""
        if not isinstance(given, torch.Tensor) or given.data_ptr() != self.pointer or not given.is_contiguous():
            return False
        batch, queries, heads, d_value = self.shape
        sizes = (given.numel(), given.shape[-1])
        return sizes == (batch * queries * heads * d_value, heads * d_value) and self.storage == _weakly(given)


def _weakly(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Output:
    """The Linears that were given an attention's output.

    Attributes:
        paths: their names in the model.
        d_value: how many of the projection's rows belong to one head.
    """

    paths: tuple[str, ...]
    d_value: int


def may_read(module: nn.Module) -> bool:
    """Whether it may take part in an output projection.

    That is nn.Linear, transformers' Conv1D, which stores W and not W^T, and whoever has parameters of its own beside
    one of these, as adapters have.
    """
    if isinstance(module, nn.Linear) or _is_conv1d(module):
        return True
    if all(one is None for one in module._parameters.values()):
        return False
    return any(isinstance(one, nn.Linear) or _is_conv1d(one) for one in module.children())


def _is_conv1d(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"


def rows_of_W_O(model: nn.Module, output: Output | None, layer: int, head: int) -> np.ndarray:
    """(d_value, d_model): the head's rows of W_O, in fp32.

    Raises:
        UnsupportedError: the projection is not known, or is stored in a form that can't be read.
    """
    where = f"layer {layer}, head {head}"
    name = type(model).__name__
    if output is None or not output.paths:
        raise UnsupportedError(
            f"{name}: the contexts of this layer's heads go into no Linear as they are, so there is no W_O to name",
            where=where,
            advice=ADVICE,
        )
    if len(output.paths) > 1:
        readers = ", ".join(output.paths)
        raise UnsupportedError(
            f"{name}: {len(output.paths)} modules read the contexts ({readers}), so W_O is not one matrix",
            where=where,
            advice="merge the adapter into the model first, then capture again",
        )
    module = model.get_submodule(output.paths[0])
    if isinstance(module, nn.Linear) and type(module).forward is not nn.Linear.forward:
        raise UnsupportedError(
            f"{name}: {output.paths[0]} is a {type(module).__name__} with a forward of its own, so W_O may "
            "be more than its weight",
            where=where,
            advice="merge what it adds into an nn.Linear first, then capture again",
        )
    stored = getattr(module, "weight", None)
    if not isinstance(stored, torch.Tensor) or stored.dim() != 2 or not stored.is_floating_point():
        raise UnsupportedError(
            f"{name}: {output.paths[0]} keeps its weights as {getattr(stored, 'dtype', type(stored).__name__)}, packed",
            where=where,
            advice="capture the model before it is quantised",
        )
    W = stored.detach() if _is_conv1d(module) else stored.detach().T
    rows: np.ndarray = W[head * output.d_value : (head + 1) * output.d_value].float().cpu().numpy()
    return rows
