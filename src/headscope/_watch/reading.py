"""Statistics of every head of a live model over a few fixed texts, computed where the model runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from headscope._capture import feed
from headscope._survey.loading import Loaded, inputs_of, takes_segments, window_length
from headscope._survey.measuring import Measure
from headscope._survey.windows import Cutter, batches
from headscope._watch.undisturbed import device_of, undisturbed
from headscope.errors import InputError
from headscope.statistics.catalog import WEIGHTS_ONLY, chosen, need_values

if TYPE_CHECKING:
    from jaxtyping import Float

BATCH_TOKENS = 2048
"""Most tokens that go through the model together."""


class Reader:
    """Measures a model on texts that are cut once.

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
        cutter = Cutter(tokenizer, window_length(Loaded(self.model, tokenizer, "", 0), length))
        self.windows = cutter.cut(list(texts))
        if not self.windows:
            raise InputError("the tokenizer finds no token in the texts", where="texts", advice="pass other texts")
        self._segments = takes_segments(self.model, tokenizer)

    def measure(self) -> tuple[tuple[tuple[int, int], ...], Float[np.ndarray, "heads_total statistics"]]:
        """(layer, head) of every head, and its mean of every statistic over the windows; NaN where none has one."""
        measure = Measure(self.names, lambda layer: None)
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
