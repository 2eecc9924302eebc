"""The sides of a parity comparison: each reads a text and gives its states, step by step, and its vector.

A checkpoint is read here, by headscope's encoder; a live model in `torch_side.py`. A side's states are those of a
`Base`: the layer's input, the sum after attention before any norm that follows it, the last hidden states.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from headscope.checkpoint.tokenizer import Encoded
from headscope.encoder.tops import sentence_embedding
from headscope.errors import InputError
from headscope.explain.residual import weights_of
from headscope.model import Model, open_model
from headscope.results.explained import Pooling
from headscope.runs.engine import NumpyRunner
from headscope.runs.texts import as_input, as_sentence

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.runs.edits import Base

    Weights = Float[np.ndarray, "heads queries keys"]


@dataclass(frozen=True)
class Shape:
    """The sizes that both sides must share; None for a size that a side doesn't tell."""

    layers: int
    heads: int
    d_model: int
    vocabulary: int | None = None


@dataclass(frozen=True, eq=False)
class Reading:
    """One text as a side reads it.

    Attributes:
        base: the states of the pass.
        weights: makes the weights of a layer, by its index.
        vector: (d,), the text's vector.
        predicted: (predictions,), the index of the highest logit of each; empty if the model predicts nothing.
    """

    base: Base
    weights: Callable[[int], Weights]
    vector: Float[np.ndarray, " d"]
    predicted: np.ndarray


class Side(Protocol):
    """A side that gives its states.

    Attributes:
        name: for people.
        shape: its sizes.
        pooling: how its vectors are made; None if it takes the other side's.
        notes: what a reader must know about it.
    """

    name: str
    shape: Shape
    pooling: Pooling | None
    notes: tuple[str, ...]

    def encode(self, text: str, max_length: int | None) -> Encoded | None:
        """The text's tokens; None if the side has no tokenizer."""

    def read(self, text: Encoded, pooling: Pooling) -> Reading:
        """Run the text."""


class CheckpointSide:
    """A checkpoint, run by headscope's encoder.

    Args:
        model: the opened checkpoint.

    Raises:
        UnsupportedError: headscope doesn't run this family, or pools in another way.
    """

    def __init__(self, model: Model) -> None:
        sizes = model.anatomy.computable()
        self.model = model
        self.name = model.name
        self.shape = Shape(sizes.layers, sizes.heads, sizes.d_model, sizes.vocab)
        self.pooling: Pooling | None = model.pooling
        self.notes = tuple(model.tokenizer.doubts(pair=False))
        self._runner = NumpyRunner(model)

    def encode(self, text: str, max_length: int | None) -> Encoded | None:
        """The text's tokens, cut as sentence-transformers cuts them, or to the position table."""
        return as_sentence(self.model, text, max_length=max_length).encoded

    def read(self, text: Encoded, pooling: Pooling) -> Reading:
        """Run the text."""
        base = self._runner.base([as_input(text)])
        encoder = self.model.encoder

        def weights(layer: int) -> Weights:
            into = encoder.attention_input(base.layers[layer].into, layer)
            _, (record,) = encoder.self_attention(into, layer, base.rows)
            return weights_of(record, np.arange(len(text)))

        predicted = [predictions(self._logits(base, name)) for name in self.model.tops.outputs if "logits" in name]
        return Reading(
            base, weights, sentence_embedding(base.last, pooling, text.prompt), np.concatenate([[], *predicted])
        )

    def _logits(self, base: Base, name: str) -> np.ndarray:
        output = self.model.tops.compute(name, base.last)
        assert output is not None
        return output.array


def encoded_by(tokenizer: Any, text: str, max_length: int | None, pooling: Pooling | None = None) -> Encoded:
    """A text's tokens by a transformers tokenizer, or by that of a checkpoint, which is named or open.

    Args:
        tokenizer: the tokenizer.
        text: the text.
        max_length: a limit beside the pooling's.
        pooling: says how a SentenceTransformer reads texts.

    Raises:
        InputError: it is no tokenizer.
    """
    if isinstance(tokenizer, (str, os.PathLike)):
        tokenizer = open_model(tokenizer)
    if isinstance(tokenizer, Model):
        return as_sentence(tokenizer, text, max_length=max_length).encoded
    if not callable(tokenizer):
        raise InputError(
            f"expected a tokenizer, got {type(tokenizer).__name__}",
            where="tokenizer",
            advice="pass transformers.AutoTokenizer.from_pretrained(…), or the name of a checkpoint that has one",
        )
    pooling = pooling or Pooling()
    limits = [length for length in (pooling.max_length, max_length) if length is not None]
    text = pooling.prompt + text
    encoded = tokenizer(
        text.lower() if pooling.lowercase else text,
        truncation=bool(limits),
        max_length=min(limits, default=None),
        return_special_tokens_mask=True,
    )
    ids = tuple(encoded["input_ids"])
    segments, special = encoded.get("token_type_ids", (0,) * len(ids)), encoded["special_tokens_mask"]
    nothing = (None,) * len(ids)
    tokens = tuple(tokenizer.convert_ids_to_tokens(list(ids)))
    prompt = 0
    if pooling.prompt and not pooling.include_prompt:
        alone = tokenizer(pooling.prompt, return_special_tokens_mask=True)["special_tokens_mask"]
        prompt = len(alone) - bool(alone[-1])
    return Encoded(ids, tokens, tuple(segments), tuple(map(bool, special)), nothing, nothing, prompt)


def predictions(logits: np.ndarray) -> np.ndarray:
    """The index of the highest of each row's logits; a row of one logit predicts by its sign."""
    rows = logits.reshape(-1, logits.shape[-1]) if logits.ndim > 1 else logits[None]
    return (rows[:, 0] > 0).astype(int) if rows.shape[-1] == 1 else rows.argmax(-1)
