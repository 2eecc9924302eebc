"""The live model that a captured trace came from, as far as the trace needs one."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from headscope.errors import TraceError, UnsupportedError

if TYPE_CHECKING:
    from headscope.capture.calls import Forward, Stack
    from headscope.capture.checking import Witness
    from headscope.trace import Named


class CapturedModel:
    """A live model, held weakly: a trace keeps no model alive.

    Attributes:
        name: the model's name.
        stack: which attention of it the trace is of; `row`: which row of the batch.
        args, kwargs: what the model was called with.
        witnesses: for each layer what was kept of the module's own output, or None.
        queries, keys: bool over the batch's positions, those that are not padding; None for all.
    """

    fingerprint = ""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        forward: Forward,
        stack: Stack,
        row: int,
        witnesses: tuple[Witness | None, ...],
        queries: np.ndarray | None,
        keys: np.ndarray | None,
    ) -> None:
        self.name = name
        self.stack = stack
        self.row = row
        self.args: tuple[Any, ...] = forward.args
        self.kwargs: dict[str, Any] = forward.kwargs
        self.witnesses = witnesses
        self.queries = queries
        self.keys = keys
        self._model = weakref.ref(model)
        self._called = weakref.ref(forward.module)

    @property
    def model(self) -> nn.Module | None:
        """The model, while it is alive."""
        return self._model()

    @property
    def called(self) -> nn.Module | None:
        """The module whose call was the forward pass, while it is alive."""
        return self._called()

    def W_O(self, layer: int, head: int) -> np.ndarray:
        """(d_head, d_model): the head's rows of W^O, where the module is an nn.MultiheadAttention.

        Raises:
            UnsupportedError: where the output projection stands is not known for this architecture.
            TraceError: the model is gone.
        """
        model = self.model
        if model is None:
            raise TraceError(
                f"{self.name} is gone", where=f"layer {layer}, head {head}", advice="keep the model, or open it again"
            )
        modules = [
            module
            for path, module in model.named_modules()
            if isinstance(module, nn.MultiheadAttention) and _matches(path, self.stack.pattern)
        ]
        if not modules:
            raise UnsupportedError(
                f"{self.name}: which of its parameters are W_O is not known for live models of transformers",
                where=f"layer {layer}, head {head}",
                advice="hs.open(…) knows W_O of the checkpoints that it reads; context is there for every model",
            )
        mha = modules[layer]
        width = mha.embed_dim // mha.num_heads
        weight: torch.Tensor = mha.out_proj.weight.detach()
        return weight[:, head * width : (head + 1) * width].T.float().cpu().numpy()

    def late_output(self, name: str, last_hidden_state: np.ndarray) -> Named | None:
        """Nothing: a live model's outputs are what it returned."""
        return None

    def late_outputs(self) -> tuple[str, ...]:
        """None."""
        return ()


def _matches(path: str, pattern: str) -> bool:
    from headscope.capture.stacks import pattern_of

    return pattern_of(path) == pattern
