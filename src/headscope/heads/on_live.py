"""Statistics of live models, computed as their layers run, on their device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from headscope.errors import UnsupportedError
from headscope.heads.fast import Prepared, prepare
from headscope.heads.reference import LayerArrays, Roles
from headscope.live.calls import Call, Consumer, Forward

if TYPE_CHECKING:
    from jaxtyping import Float

Grams = Callable[[int], "torch.Tensor | None"]
"""Layer -> W_O W_O^T of its heads, (heads, d_value, d_value), or None if no statistic needs it."""


class StatisticsConsumer(Consumer):
    """Receives each layer's call and keeps the mean of every statistic over the queries of each window.

    Attributes:
        names: the statistics, in the order of the last axis.
        roles: the roles of the tokens of each row of the batch; set before the model runs.
        layers: layer -> (batch, heads, statistics), of the last forward pass.
    """

    def __init__(self, names: tuple[str, ...], gram: Grams) -> None:
        self.names = names
        self.roles: Sequence[Roles] = ()
        self.layers: dict[int, Float[torch.Tensor, "batch heads statistics"]] = {}
        self._gram = gram
        self._prepared: Prepared | None = None

    def begin(self, forward: Forward) -> None:
        """Start a forward pass: forget the last one's numbers."""
        self.layers = {}
        self._prepared = None

    def drop(self, forward: Forward) -> None:
        """Forget a forward pass that raised."""
        self.layers = {}

    def take(self, forward: Forward, call: Call) -> None:
        """Measure one layer.

        Raises:
            UnsupportedError: cross-attention, several stacks of attention, or queries that are not the tokens.
        """
        tokens = len(self.roles[0].special)
        if call.stack.cross or not call.own or call.q.shape[2] != tokens or call.k.shape[2] != tokens:
            raise UnsupportedError(
                f"{call.q.shape[2]} queries and {call.k.shape[2]} keys for {tokens} tokens"
                if not call.stack.cross
                else "the model has cross-attention",
                where=f"{call.path}, layer {call.layer}",
                advice="a survey reads models with one stack of self-attention over the tokens: encoders and decoders",
            )
        if call.layer in self.layers:
            raise UnsupportedError(
                f"the model has more than one stack of attention: layer {call.layer} was seen twice",
                where=call.path,
                advice="pass one stack: hs.survey(model.get_encoder(), …, tokenizer=tokenizer)",
            )
        with torch.no_grad():
            if self._prepared is None:
                self._prepared = prepare(self.roles, self.names, device=call.q.device)
            gram = self._gram(call.layer)
            shared, rows = call.rules.shared, range(len(call.q))
            layer = LayerArrays(
                call.q,
                call.k,
                call.v if gram is not None else None,
                call.scale,
                call.mask(0) if shared else [call.mask(row) for row in rows],
                call.terms(0) if shared else [call.terms(row) for row in rows],
            )
            values = self._prepared.of(layer, gram=gram)
            wide = torch.float32 if values.device.type == "mps" else torch.float64  # MPS has no fp64
            self.layers[call.layer] = values.to(wide).nanmean(-1).permute(1, 2, 0)

    def table(self) -> Float[torch.Tensor, "batch cells statistics"]:
        """(batch, heads of all layers, statistics) in fp32 on the CPU: layer 0's heads first."""
        return torch.cat([self.layers[layer] for layer in sorted(self.layers)], 1).float().cpu()
