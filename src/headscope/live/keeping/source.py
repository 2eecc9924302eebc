"""The live model that a trace was captured from, with what the trace needs of it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from headscope.errors import TraceError
from headscope.live.genuine import switches_of
from headscope.live.keeping.contents import Weights
from headscope.live.keeping.projections import Output, rows_of_W_O

if TYPE_CHECKING:
    from headscope.live.calls import Forward
    from headscope.live.keeping.contents import ContextProducts
    from headscope.live.plan.stacks import Stack
    from headscope.results.arrays import Named
    from headscope.traces import Cut


class CapturedModel:
    """A live model, weakly referenced: a trace doesn't keep its model alive.

    Attributes:
        name: the model's name.
        stack: the trace's stack of attention.
        turn: number of earlier calls of the transformer in the same forward pass.
        cut: the positions of the batch that the trace has.
        args, kwargs: the arguments of the model's call.
        autocast: the autocast setting during the call.
        drawn, contents, weights, switches, dropped, changed_inside, implementations: as in `Forward`.
        products: for each layer, those of the module's output, or None.
    """

    fingerprint = ""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        forward: Forward,
        stack: Stack,
        turn: int,
        cut: Cut,
        products: tuple[ContextProducts | None, ...],
    ) -> None:
        self.name, self.stack, self.turn, self.cut = name, stack, turn, cut
        self.args: tuple[Any, ...] = forward.args
        self.kwargs: dict[str, Any] = forward.kwargs
        self.autocast, self.drawn = forward.autocast, forward.drawn
        self.implementations = forward.implementations
        self.contents = forward.contents
        self.weights, self.switches, self.dropped = forward.weights, forward.switches, forward.dropped
        self.changed_inside = forward.changed_inside
        self.products = products
        self._projections = {layer: output for (owner, layer), output in forward.projections.items() if owner == stack}
        self._model: Callable[[], nn.Module | None] = weakref.ref(model)
        self._called: Callable[[], nn.Module | None] = weakref.ref(forward.module)

    def __repr__(self) -> str:
        return f"the live {self.name}, stack {self.stack.name}"

    def __getstate__(self) -> dict[str, Any]:
        """The state without the model, and what running it again takes: neither is sent to another process."""
        gone = {"_model": _gone, "_called": _gone, "_projections": {}, "args": (), "kwargs": {}, "drawn": {}}
        return {**vars(self), **gone, "contents": None, "weights": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> CapturedModel:
        """Return the object itself, which is never changed."""
        return self

    @property
    def model(self) -> nn.Module | None:
        """The model; None once it no longer exists."""
        return self._model()

    @property
    def called(self) -> nn.Module | None:
        """The module whose call was the forward pass; None once it no longer exists."""
        return self._called()

    def W_O(self, layer: int, head: int) -> np.ndarray:
        """(d_value, d_model): the head's rows of W_O.

        Raises:
            UnsupportedError: this attention has no single W_O. See headscope.live.keeping.projections.
            TraceError: the model no longer exists, or has another W_O by now.
        """
        where, output = f"layer {layer}, head {head}", self._projections.get(layer)
        model = self.existing(where)
        if output is not None and output.is_changed(model):
            raise _changed(f"{output.paths[0]} of {type(model).__name__} has", where)
        return rows_of_W_O(model, output, layer, head)

    def existing(self, where: str) -> nn.Module:
        """The model.

        Raises:
            TraceError: the model no longer exists.
        """
        if (model := self.model) is None:
            raise TraceError(
                f"the live model {self.name} no longer exists",
                where=where,
                advice="keep a reference to the model while you use the trace, or capture again",
            )
        return model

    def unchanged(self, where: str) -> nn.Module:
        """The model, with the weights of the pass.

        Raises:
            TraceError: the model no longer exists, or its weights have changed.
        """
        model = self.existing(where)
        if self.has_changed:
            raise _changed(f"{type(model).__name__} has", where)
        return model

    def projection(self, layer: int) -> Output | None:
        """The modules that read the layer's contexts; None if they are unknown."""
        return self._projections.get(layer)

    @property
    def has_changed(self) -> bool:
        """True if the model's weights have changed since the pass."""
        model, called = self.model, self.called
        if model is None or called is None:
            return False
        if self.weights is not None and not Weights(called.modules()).same(self.weights):
            return True
        return any(output.is_changed(model) for output in self._projections.values())

    @property
    def switched(self) -> str:
        """The reason why the model may compute something else now, with the same weights; empty if there is none."""
        called = self.called
        same = called is None or switches_of(called.modules()) == self.switches
        return "" if same else "the model has other hooks, or uses other adapters, than in the captured pass"

    def late_output(self, name: str, last_hidden_state: np.ndarray, prompt: int = 0) -> Named | None:
        """Return None: a live model's outputs are those that it returned."""
        return None

    def late_outputs(self) -> tuple[str, ...]:
        """Return no names, for the same reason."""
        return ()


def _changed(what: str, where: str) -> TraceError:
    return TraceError(
        f"{what} other weights than in the forward pass: it was trained, loaded or replaced",
        where=where,
        advice="ask before the model changes, or capture it again",
    )


def _gone() -> None:
    """Replaces the weak references in another process."""
