"""An ONNX file as a side of a parity comparison, run by `onnx_run.py`. Needs the extra `onnx`: imported late."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.activations import softmax
from headscope.errors import UnsupportedError
from headscope.runs.edits import Base, KeptLayer
from headscope.verify.onnx_graph import Attention, Graph
from headscope.verify.onnx_run import OnnxRun, read_model
from headscope.verify.sides import Reading, Shape, encoded_by, predictions

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.checkpoint.tokenizer import Encoded
    from headscope.results.explained import Pooling

    Weights = Float[np.ndarray, "heads queries keys"]


class OnnxSide:
    """An ONNX file.

    Args:
        path: the file.
        tokenizer: a tokenizer, or the name of a checkpoint that has it; None to read the other side's ids.

    Raises:
        NotFoundError: there is no such file.
        CheckpointError: the file is damaged or invalid, or its external data lies elsewhere.
        UnsupportedError: its attention has a form that headscope doesn't read.
        MissingExtraError: onnx or onnxruntime is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], tokenizer: Any = None) -> None:
        self.name = os.fspath(path)
        self.pooling: Pooling | None = None
        self._tokenizer = tokenizer
        model = read_model(Path(path))
        graph = Graph(model.graph, self.name)
        self._attentions = graph.attentions()
        declared = [value.name for value in model.graph.output]
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        wanted = {name for attention in self._attentions for name in _tensors(attention)}
        inputs = {value.name for value in model.graph.input}
        for name in sorted(wanted - {*declared, *self._constants} - inputs):
            model.graph.output.add().name = name
        self._file = OnnxRun(model, Path(path), declared)
        base, weights = self._run(np.arange(3), np.zeros(3, np.int64))[:2]
        self.shape = Shape(len(self._attentions), len(weights(0)), base.last.shape[-1])
        quantised = sorted(
            {node.op_type for node in model.graph.node if "Integer" in node.op_type or node.op_type[0] == "Q"}
        )
        self.notes: tuple[str, ...] = (f"{self.name} is quantised: {', '.join(quantised)}",) if quantised else ()

    def encode(self, text: str, max_length: int | None) -> Encoded | None:
        """The text's tokens; None without a tokenizer."""
        return None if self._tokenizer is None else encoded_by(self._tokenizer, text, max_length)

    def read(self, text: Encoded, pooling: Pooling) -> Reading:
        """Run the text."""
        base, weights, outputs = self._run(np.array(text.ids), np.array(text.segments))
        logits = outputs.get("logits")
        return Reading(
            base,
            weights,
            self._file.vector(outputs, pooling, text.prompt),
            np.zeros(0, int) if logits is None else predictions(logits[0]),
        )

    def _run(self, ids: np.ndarray, segments: np.ndarray) -> tuple[Base, Any, Mapping[str, np.ndarray]]:
        """The states, a function that gives a layer's weights, and all outputs."""
        outputs = self._file.outputs(ids, segments)

        def state(name: str) -> np.ndarray:
            return outputs[name][0].astype(np.float32)

        layers = [KeptLayer(state(one.into), state(one.summed)) for one in self._attentions]
        base = Base((slice(0, len(ids)),), tuple(layers), self._file.last(outputs))

        def weights(layer: int) -> Weights:
            attention = self._attentions[layer]
            if attention.weights:
                cells = outputs[attention.weights].astype(np.float32)
                return cells.reshape(-1, *cells.shape[-2:])
            return recomputed(attention, lambda name: self._value(name, outputs))

        return base, weights, outputs

    def _value(self, name: str, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """A tensor: a constant, or one that was computed."""
        if name in self._constants:
            from onnx import numpy_helper

            return np.asarray(numpy_helper.to_array(self._constants[name], str(Path(self.name).parent)))
        return outputs[name]


def _tensors(attention: Attention) -> Iterator[str]:
    """The tensors to read of an attention."""
    yield from (attention.into, attention.summed)
    if attention.weights:
        yield attention.weights
    else:
        yield from filter(None, attention.node.input)


def recomputed(attention: Attention, value: Any) -> Weights:
    """The weights of one of onnxruntime's fused operators, from its inputs. Texts are read alone, without padding.

    Args:
        attention: the operator.
        value: gives a tensor by its name.

    Raises:
        UnsupportedError: the operator has inputs or attributes that change its scores otherwise.
    """
    from onnx import helper

    node = attention.node
    settings = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    inputs: list[Any] = [value(name) if name else None for name in node.input]
    heads = int(settings["num_heads"])
    changes = [name for name in ("unidirectional", "do_rotary") if settings.get(name)]
    if changes:
        raise UnsupportedError(
            f"{attention.kind} with {', '.join(changes)}", where=node.name or node.output[0], advice="export it again"
        )
    if node.op_type == "MultiHeadAttention":
        q, k = _unpacked(inputs)
        bias = inputs[5] if len(inputs) > 5 else None
    else:
        x, W, b = (np.asarray(one, dtype=np.float64) for one in inputs[:3])
        if node.op_type == "QAttention":
            points = (inputs[at] if at < len(inputs) else None for at in (6, 7))
            x_zero, W_zero = (0.0 if one is None else np.asarray(one, dtype=np.float64) for one in points)
            x, W = (x - x_zero) * inputs[3], (W - W_zero) * inputs[4]
        product = x[0] @ W + b
        width = product.shape[-1] // 3
        q, k = product[:, :width], product[:, width : 2 * width]
        bias = inputs[5] if node.op_type == "Attention" and len(inputs) > 5 else None
    q, k = (part.reshape(len(part), heads, -1).swapaxes(0, 1) for part in (q, k))
    scores = q @ k.swapaxes(-1, -2) * (settings.get("scale") or 1 / np.sqrt(q.shape[-1]))
    if bias is not None:
        scores = scores + bias.reshape(-1, *scores.shape[-2:])[-heads:]
    return softmax(scores).astype(np.float32)


def _unpacked(inputs: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, width) each: queries and keys of MultiHeadAttention, whose biases may be one more input.

    They come apart, (texts, tokens, width); with keys as (texts, heads, tokens, d_head); or packed as (texts, tokens,
    heads, 3, d_head).
    """
    first = np.asarray(inputs[0][0], dtype=np.float64)
    other = inputs[1] if len(inputs) > 1 else None
    if other is None:
        q, k = (first[:, :, at].reshape(len(first), -1) for at in (0, 1))
    else:
        q, k = first, np.asarray(other[0], dtype=np.float64)
        k = k.swapaxes(0, 1).reshape(k.shape[1], -1) if k.ndim == 3 else k
    if len(inputs) > 3 and inputs[3] is not None:
        width = q.shape[-1]
        q, k = q + inputs[3][:width], k + inputs[3][width : 2 * width]
    return q, k
