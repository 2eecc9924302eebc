"""The other sides of a parity comparison, for the fuzz run: vectors in a file, an ONNX file, an endpoint's answer."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from headscope.checkpoint.tokenizer import Encoded
from headscope.results.explained import Pooling
from headscope.verify.endpoint import Endpoint
from headscope.verify.onnx_side import OnnxSide
from headscope.verify.vectors import check_vectors, read_vectors
from patience import PATIENCE

IDS = (1, 4, 2)
TEXT = Encoded(IDS, ("a", "b", "c"), (0, 0, 0), (True, False, True), (None,) * 3, (None,) * 3)
WIDTH = 4


def npy_files(_: Path) -> list[bytes]:
    files = []
    for dtype in (np.float32, np.float64, np.float16):
        file = io.BytesIO()
        np.save(file, np.arange(2 * WIDTH, dtype=dtype).reshape(2, WIDTH))
        files.append(file.getvalue())
    return files


def read_npy(folder: Path) -> None:
    check_vectors(read_vectors(folder / "v.npy"), 2, WIDTH, "v.npy")


def answers(form: str, _: Path) -> list[bytes]:
    """Answers of either form to two texts."""
    rows = np.arange(2 * WIDTH).reshape(2, WIDTH) / 8
    data = [{"object": "embedding", "index": at, "embedding": row.tolist()} for at, row in enumerate(rows)][::-1]
    return [json.dumps(rows.tolist() if form == "embed" else {"data": data, "model": "m"}).encode()]


class Answered(Endpoint):
    """An endpoint that has answered."""

    data = b""

    def _asked(self, texts: list[str]) -> list[object]:
        return self._rows(self.data, len(texts))


def read_answer(form: str, data: bytes, _: Path) -> None:
    endpoint = Answered(f"http://127.0.0.1/{form}", served="m", timeout=PATIENCE)
    endpoint.data = data
    check_vectors(endpoint.vectors(["a", "b"], together=True), 2, WIDTH, form)


def onnx_files(_: Path) -> list[bytes]:
    """One layer's attention with one head, of ten tokens."""
    random = np.random.default_rng(0)
    sizes = {"E": (10, WIDTH), **dict.fromkeys("QKVO", (WIDTH, WIDTH))}
    nodes = [
        helper.make_node("Gather", ["E", "input_ids"], ["x"]),
        *(helper.make_node("MatMul", ["x", name], [name.lower()]) for name in "QKV"),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["c"]),
        helper.make_node("MatMul", ["c", "O"], ["o"]),
        helper.make_node("Add", ["o", "x"], ["last_hidden_state"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["b", "s", WIDTH])],
        [numpy_helper.from_array(random.normal(size=size).astype(np.float32), name) for name, size in sizes.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return [model.SerializeToString()]


def read_onnx(folder: Path) -> None:
    side = OnnxSide(folder / "m.onnx")
    reading = side.read(TEXT, Pooling())
    for layer in range(side.shape.layers):
        assert reading.weights(layer).shape[-2:] == (len(IDS), len(IDS))
