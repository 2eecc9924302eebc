"""An ONNX file: read within bounds, and run by onnxruntime on the CPU. Needs the extra `onnx`: imported late.

Only onnxruntime's own operators run. External data must lie in the file's folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.encoder.tops import sentence_embedding
from headscope.errors import CheckpointError, MissingExtraError, NotFoundError, UnsupportedError, first_line, install

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.results.explained import Pooling

MOST_BYTES = (1 << 31) - 1
"""Of the graph itself: protobuf's own limit."""
LAST, SENTENCE = ("last_hidden_state", "token_embeddings"), "sentence_embedding"


class OnnxRun:
    """A graph in a session of onnxruntime.

    Args:
        model: the graph, which may have more outputs than the file.
        path: the file.
        declared: the outputs of the file itself.

    Raises:
        CheckpointError: onnxruntime rejects the file.
        MissingExtraError: onnxruntime is not installed.
    """

    def __init__(self, model: Any, path: Path, declared: list[str]) -> None:
        self._where, self._declared = str(path), declared
        self._session = session_of(model, path)

    def vector(self, outputs: Mapping[str, np.ndarray], pooling: Pooling, prompt: int) -> Float[np.ndarray, " d"]:
        """A text's vector: the file's own output, or its tokens' vectors, pooled."""
        vector = outputs.get(SENTENCE)
        return (
            sentence_embedding(self.last(outputs), pooling, prompt) if vector is None else vector[0].astype(np.float32)
        )

    def outputs(self, ids: np.ndarray, segments: np.ndarray) -> dict[str, np.ndarray]:
        """Every output for one text, each with an axis of texts.

        Raises:
            CheckpointError: onnxruntime can't run it.
            UnsupportedError: the graph has another input.
        """
        feed = self._feed(ids, segments)
        names = [value.name for value in self._session.get_outputs()]
        try:
            return dict(zip(names, self._session.run(names, feed), strict=True))
        except Exception as error:  # onnxruntime's errors have no common class
            raise CheckpointError(
                f"onnxruntime can't run the file on {len(ids)} tokens: {first_line(error)}"[:500],
                where=self._where,
                advice="export the model again, with dynamic axes for texts and tokens",
            ) from error

    def last(self, outputs: Mapping[str, np.ndarray]) -> Float[np.ndarray, "tokens d_model"]:
        """The tokens' vectors.

        Raises:
            UnsupportedError: no output has them.
        """
        for name in (*LAST, *self._declared):
            if name in outputs and outputs[name].ndim == 3:
                return outputs[name][0].astype(np.float32)
        raise UnsupportedError(
            f"no output has the tokens' vectors; the outputs are {', '.join(self._declared)}",
            where=self._where,
            advice="export the base model, with the output last_hidden_state",
        )

    def _feed(self, ids: np.ndarray, segments: np.ndarray) -> dict[str, np.ndarray]:
        """The graph's inputs for one text.

        Raises:
            UnsupportedError: the graph has another input.
        """
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": segments}
        given["position_ids"] = np.arange(len(ids))
        feed = {}
        for value in self._session.get_inputs():
            if value.name not in given:
                raise UnsupportedError(
                    f"the graph has an input {value.name!r}; headscope gives {', '.join(given)}",
                    where=self._where,
                    advice="export the model with these inputs",
                )
            feed[value.name] = given[value.name][None].astype(np.int32 if "int32" in value.type else np.int64)
        return feed


def read_model(path: Path) -> Any:
    """The graph, without external data, which is checked to lie in the file's folder.

    Raises:
        NotFoundError, CheckpointError, MissingExtraError: see OnnxSide.
    """
    try:
        import onnx
    except ImportError as error:
        raise MissingExtraError("onnx is not installed", where=str(path), advice=install("onnx")) from error
    if not path.is_file():
        raise NotFoundError("there is no such file", where=str(path), advice="name an .onnx file")
    if path.stat().st_size > MOST_BYTES:
        raise CheckpointError(
            f"the file has more than {MOST_BYTES:,} bytes", where=str(path), advice="save its weights as external data"
        )
    try:
        model = onnx.load_model_from_string(path.read_bytes())
    except Exception as error:  # protobuf's errors differ between its versions
        raise CheckpointError(
            f"it is no ONNX file: {first_line(error)}", where=str(path), advice="export the model again"
        ) from error
    if any(isinstance(name, bytes) for name in _names(model.graph)) or not all(
        node.output for node in model.graph.node
    ):
        found = "a node has no output, or a name is not valid UTF-8"
        raise CheckpointError(found, where=str(path), advice="export the model again")
    folder = path.parent.resolve()
    for tensor in all_tensors(model.graph):
        for entry in tensor.external_data:
            if entry.key == "location" and not (folder / entry.value).resolve().is_relative_to(folder):
                raise CheckpointError(
                    f"tensor {tensor.name} lies outside of the file's folder: {entry.value!r:.80}",
                    where=str(path),
                    advice="keep external data beside the file",
                )
    return model


def _names(graph: Any) -> Iterator[str | bytes]:
    """The names of a graph's nodes and tensors; protobuf gives those that are not valid UTF-8 as bytes."""
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
    yield from (value.name for value in (*graph.input, *graph.output, *graph.initializer))
    yield from (part for tensor in all_tensors(graph) for one in tensor.external_data for part in (one.key, one.value))


def all_tensors(graph: Any) -> Iterator[Any]:
    """Every stored tensor of a graph and of the graphs in its nodes' attributes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from all_tensors(inner)


def session_of(model: Any, path: Path) -> Any:
    """A session of onnxruntime's CPU provider.

    Raises:
        CheckpointError: onnxruntime rejects the file.
        MissingExtraError: onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime is not installed", where=str(path), advice=install("onnx")) from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent.resolve()))
    if threads := os.environ.get("OMP_NUM_THREADS", "").strip():
        options.intra_op_num_threads = int(threads) if threads.isdecimal() else 0
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common class
        raise CheckpointError(
            f"onnxruntime rejects the file: {first_line(error)}"[:500],
            where=str(path),
            advice="export it again with another opset, such as 17; quantize_dynamic can't read opset 23",
        ) from error
