"""Statistics of live models, computed as their layers run, on their device: of any batch, and of a few fixed texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import nn

from headscope.errors import InputError, UnsupportedError
from headscope.heads.catalog import WEIGHTS_ONLY, chosen, need_values
from headscope.heads.fast import Prepared, prepare
from headscope.heads.norms import LayerArrays
from headscope.heads.roles import Roles
from headscope.heads.windows import Cutter, batches, inputs_of, takes_segments, window_length
from headscope.live.calls import Call, Forward
from headscope.live.captured import feed
from headscope.live.evaluating import device_of, undisturbed
from headscope.live.stacks import Stack

if TYPE_CHECKING:
    from jaxtyping import Float

BATCH_TOKENS = 2048
"""Most tokens of the texts that go through the model together."""

Grams = Callable[[int], "torch.Tensor | None"]
"""Layer -> W_O W_O^T of its heads, (heads, d_value, d_value), or None if no statistic needs it."""


class LayerReader(Protocol):
    """Whoever reads layers beside their statistics, such as a survey's labels."""

    def take(self, call: Call) -> None:
        """Read a layer of the batch."""


class StatisticsConsumer:
    """Receives each layer's call and keeps the mean of every statistic over the queries of each window.

    Attributes:
        names: the statistics, in the order of the last axis.
        roles: the roles of the tokens of each row of the batch; set before the model runs.
        layers: layer -> (batch, heads, statistics), of the last forward pass.
        acts: reads the layers word by word, for syntax, labels and examples; None if not needed.
    """

    def __init__(self, names: tuple[str, ...], gram: Grams, acts: LayerReader | None = None) -> None:
        self.names = names
        self.roles: Sequence[Roles] = ()
        self.layers: dict[int, Float[torch.Tensor, "batch heads statistics"]] = {}
        self.acts = acts
        self._gram = gram
        self._prepared: Prepared | None = None

    def begin(self, forward: Forward) -> None:
        """Start a forward pass: forget the last one's numbers."""
        self.layers = {}
        self._prepared = None

    def drop(self, forward: Forward) -> None:
        """Forget a forward pass that raised."""
        self.layers = {}

    def end(self, forward: Forward) -> None:
        """Do nothing: there is nothing to finish."""

    def wants(self, stack: Stack, layer: int) -> bool:
        """Return True: every layer is measured."""
        return True

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
            if self.acts is not None:
                self.acts.take(call)

    def table(self) -> Float[torch.Tensor, "batch cells statistics"]:
        """(batch, heads of all layers, statistics) in fp32 on the CPU: layer 0's heads first."""
        return torch.cat([self.layers[layer] for layer in sorted(self.layers)], 1).float().cpu()


class TextSet:
    """A few fixed texts, cut once, on which a model is measured again and again.

    Attributes:
        model: the model without what sits on top, where it says what that is.
        names: the statistics.
        windows: the texts' tokens.

    Raises:
        InputError: no texts, no tokenizer, an unknown statistic, or one that needs values.
        UnsupportedError: the tokenizer has no fast form.
    """

    def __init__(
        self,
        model: nn.Module,
        texts: Sequence[str],
        *,
        tokenizer: Any,
        statistics: str | Iterable[str] | None,
        length: int | None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(
                f"{type(model).__name__} is not an nn.Module", where="model", advice="pass the model that is trained"
            )
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts) or not texts:
            raise InputError(
                "watching needs a list of texts", where="texts", advice='pass some: hs.watch(model, ["The cat sat."])'
            )
        if tokenizer is None:
            raise InputError(
                "watching needs the model's tokenizer",
                where="tokenizer",
                advice="pass tokenizer=AutoTokenizer.from_pretrained(…); a Trainer hands on its processing_class",
            )
        self.names = WEIGHTS_ONLY if statistics is None else chosen(statistics)
        if lengths := need_values(self.names):
            raise InputError(
                f"{', '.join(lengths)} can't be watched: W_O would have to be read anew at every step",
                where="statistics",
                advice=f"take some of {', '.join(WEIGHTS_ONLY)}; a survey of a saved checkpoint has all",
            )
        base = getattr(model, "base_model", model)
        self.model = base if isinstance(base, nn.Module) else model
        cutter = Cutter(tokenizer, window_length(self.model, tokenizer, length))
        self.windows = cutter.cut(list(texts))
        if not self.windows:
            raise InputError("the tokenizer finds no token in the texts", where="texts", advice="pass other texts")
        self._segments = takes_segments(self.model, tokenizer)

    def measure(self) -> tuple[tuple[tuple[int, int], ...], Float[np.ndarray, "heads_total statistics"]]:
        """(layer, head) of every head, and its mean of every statistic over the windows; NaN where none has one."""
        measure = StatisticsConsumer(self.names, lambda layer: None)
        values = []
        heads: tuple[tuple[int, int], ...] = ()
        with undisturbed(self.model), feed(self.model, measure):
            for batch in batches(self.windows, BATCH_TOKENS):
                together = [self.windows[at] for at in batch]
                measure.roles = [window.roles for window in together]
                self.model(**inputs_of(together, device_of(self.model), segments=self._segments))
                values.append(measure.table().numpy().astype(np.float64))
                heads = tuple(
                    (at, head) for at in sorted(measure.layers) for head in range(measure.layers[at].shape[1])
                )
        return heads, _means(np.concatenate(values))


def _means(values: Float[np.ndarray, "windows heads_total statistics"]) -> Float[np.ndarray, "heads_total statistics"]:
    present = ~np.isnan(values)
    count = present.sum(0)
    return np.where(count > 0, np.where(present, values, 0).sum(0) / np.maximum(count, 1), np.nan)
