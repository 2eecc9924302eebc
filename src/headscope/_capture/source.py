"""The live model that a captured trace came from, as far as the trace needs one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from headscope._capture.projections import Output, rows_of_W_O
from headscope.errors import TraceError

if TYPE_CHECKING:
    from headscope._capture.calls import Forward, Stack
    from headscope._capture.checking import Witness
    from headscope._trace import Named


class CapturedModel:
    """A live model, held weakly: a trace keeps no model alive.

    Attributes:
        name: the model's name.
        stack: which attention of it the trace is of; `row`: which row of the batch.
        turn: how many times the transformer had been called before in the forward pass.
        sizes: queries and keys of the batch, padding included.
        args, kwargs: what the model was called with; `autocast`: how autocast was set then.
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
        turn: int,
        sizes: tuple[int, int],
        row: int,
        witnesses: tuple[Witness | None, ...],
        queries: np.ndarray | None,
        keys: np.ndarray | None,
    ) -> None:
        self.name = name
        self.stack = stack
        self.turn = turn
        self.sizes = sizes
        self.row = row
        self.args: tuple[Any, ...] = forward.args
        self.kwargs: dict[str, Any] = forward.kwargs
        self.autocast = forward.autocast
        self.witnesses = witnesses
        self.queries = queries
        self.keys = keys
        self._projections = {layer: output for (of, layer), output in forward.projections.items() if of == stack}
        self._model: Callable[[], nn.Module | None] = weakref.ref(model)
        self._called: Callable[[], nn.Module | None] = weakref.ref(forward.module)

    def __getstate__(self) -> dict[str, Any]:
        """Without the model: a trace goes to another process alone."""
        return {**vars(self), "_model": _gone, "_called": _gone}

    def __deepcopy__(self, memo: dict[int, Any]) -> CapturedModel:
        """Itself: nothing of it is ever changed."""
        return self

    @property
    def model(self) -> nn.Module | None:
        """The model, while it is alive."""
        return self._model()

    @property
    def called(self) -> nn.Module | None:
        """The module whose call was the forward pass, while it is alive."""
        return self._called()

    def W_O(self, layer: int, head: int) -> np.ndarray:
        """(d_value, d_model): the head's rows of W^O, as the model has them at this moment.

        Raises:
            UnsupportedError: this attention has no such projection. See headscope._capture.projections.
            TraceError: the model is gone.
        """
        model = self.model
        if model is None:
            raise TraceError(
                f"{self.name} is gone", where=f"layer {layer}, head {head}", advice="keep the model, or open it again"
            )
        return rows_of_W_O(model, self._projections.get(layer), layer, head)

    def projection(self, layer: int) -> Output | None:
        """The Linear that W_O of a layer is in; None where it is not known."""
        return self._projections.get(layer)

    def late_output(self, name: str, last_hidden_state: np.ndarray) -> Named | None:
        """Nothing: a live model's outputs are what it returned."""
        return None

    def late_outputs(self) -> tuple[str, ...]:
        """None."""
        return ()


def _gone() -> None:
    """What is left of a weak reference in another process."""
