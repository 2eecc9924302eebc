"""ONNX files as sides: every form of attention, read from real exports, against the checkpoint's own weights."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import headscope as hs
from compare.models import edited, scaled
from headscope.verify.onnx_side import OnnxSide
from parity.exports import NAMES, Base, export, quantise
from parity.sides import TEXTS, small

CLOSE = 5e-6


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Path]:
    """A checkpoint, its module, and its export."""
    folder = tmp_path_factory.mktemp("onnx")
    module = small(folder / "bert")
    return folder / "bert", module, export(module, folder / "plain.onnx")


def fused(source: Path, target: Path, *, multi_head: bool) -> Path:
    """As onnxruntime's optimizer fuses it."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    options = FusionOptions("bert")
    options.use_multi_head_attention = multi_head
    made = optimizer.optimize_model(
        str(source), model_type="bert", num_heads=4, hidden_size=32, opt_level=0, optimization_options=options
    )
    made.save_model_to_file(str(target))
    return target


def agree(folder: Path, path: Path, tolerance: float = CLOSE) -> hs.Parity:
    """The file is the same as the checkpoint, in every step and every weight."""
    report = hs.parity(folder, path, TEXTS, tolerance=tolerance)
    assert report.agrees, repr(report)
    assert report.skipped == ()
    assert [check.name for check in report.checks[:3]] == ["tokens", "embeddings", "attention"]
    assert report.heads is not None
    assert report.heads["weight_change"].array.max() < CLOSE
    return report


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_exports_by_torchscript(bert: tuple[Path, Any, Path], tmp_path: Path, attention: str) -> None:
    agree(bert[0], export(bert[1], tmp_path / "m.onnx", attention, opset=14 if attention == "sdpa" else 17))


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_exports_by_dynamo(bert: tuple[Path, Any, Path], tmp_path: Path, attention: str, opset: int) -> None:
    agree(bert[0], export(bert[1], tmp_path / "m.onnx", attention, opset=opset, dynamo=True))


@pytest.mark.parametrize("stem", ["DistilBert", "MPNet", "ModernBert"])
def test_other_families(tmp_path: Path, stem: str) -> None:
    module = small(tmp_path / "a", stem)
    model = Base(module)
    model.forward = lambda input_ids, attention_mask, token_type_ids: (
        module(  # type: ignore[method-assign]
            input_ids=input_ids, attention_mask=attention_mask
        ).last_hidden_state
    )
    ids = torch.arange(5, 14)[None]
    axes = {name: {0: "b", 1: "s"} for name in NAMES[:2]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(), (ids, torch.ones_like(ids), ids), str(tmp_path / "m.onnx"), input_names=list(NAMES),
            output_names=["last_hidden_state"], dynamic_axes=axes, opset_version=17, dynamo=False,
        )  # fmt: skip
    agree(tmp_path / "a", tmp_path / "m.onnx")


@pytest.mark.parametrize("multi_head", [False, True])
def test_onnxruntimes_fused_operators(bert: tuple[Path, Any, Path], tmp_path: Path, multi_head: bool) -> None:
    path = fused(bert[2], tmp_path / "m.onnx", multi_head=multi_head)
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    assert ("MultiHeadAttention" if multi_head else "Attention") in kinds
    assert "Softmax" not in kinds
    agree(bert[0], path)


def test_quantised_forms(bert: tuple[Path, Any, Path], tmp_path: Path) -> None:
    """The weights of QAttention, dequantised, are those of the same file with its Softmax, as far as int8 allows."""
    quantise(bert[2], tmp_path / "q.onnx")
    report = hs.parity(bert[0], tmp_path / "q.onnx", TEXTS)
    assert not report.agrees
    assert report.notes[0].endswith("is quantised: MatMulInteger")
    assert report.move is not None
    assert 1e-3 < abs(report.move.b - report.move.a) < 0.5
    path = fused(bert[2], tmp_path / "f.onnx", multi_head=False)
    options = {"DefaultTensorType": TensorProto.FLOAT}
    quantise(path, tmp_path / "fq.onnx", extra_options=options)
    kinds = {node.op_type for node in onnx.load(tmp_path / "fq.onnx").graph.node}
    assert "QAttention" in kinds
    other = hs.parity(bert[0], tmp_path / "fq.onnx", TEXTS)
    assert other.move is not None
    assert 1e-3 < abs(other.move.b - other.move.a) < 0.5


def test_a_fault_in_the_file_is_found(bert: tuple[Path, Any, Path], tmp_path: Path) -> None:
    from transformers import AutoModel

    name = "encoder.layer.1.attention.self.query.weight"
    folder = edited(tmp_path / "b", {name: scaled(slice(16, 24), 1.5)}, bert[0])
    path = export(AutoModel.from_pretrained(folder).eval(), tmp_path / "m.onnx")
    report = hs.parity(bert[0], path, TEXTS)
    assert report.first is not None
    assert (report.first.name, report.first.layer) == ("attention", 1)
    assert report.strongest(1) == [(1, 2)]
    wanted = hs.parity(bert[0], folder, TEXTS)
    np.testing.assert_allclose(report.heads["divergence"], wanted.heads["divergence"], atol=1e-6)  # type: ignore[index]


def attention_23(path: Path) -> tuple[Path, np.ndarray]:
    """A graph of one opset-23 Attention with 2 heads of 4; and its weights on ids 0 to 4 by a plain formula."""
    random = np.random.default_rng(0)
    words, *matrices = (random.normal(size=size).astype(np.float32) for size in ((9, 8), *[(8, 8)] * 4))
    stored = [numpy_helper.from_array(x, name) for x, name in zip((words, *matrices), "EQKVO", strict=True)]
    nodes = [
        helper.make_node("Gather", ["E", "input_ids"], ["x"]),
        *(helper.make_node("MatMul", ["x", name], [name.lower()]) for name in "QKV"),
        helper.make_node("Attention", ["q", "k", "v"], ["c"], q_num_heads=2, kv_num_heads=2),
        helper.make_node("MatMul", ["c", "O"], ["o"]),
        helper.make_node("Add", ["o", "x"], ["last_hidden_state"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["b", "s", 8])],
        stored,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), path)
    x = words[:5].astype(np.float64)
    q, k = ((x @ one).reshape(5, 2, 4).swapaxes(0, 1) for one in matrices[:2])
    powers = np.exp(q @ k.swapaxes(1, 2) / 2)
    return path, powers / powers.sum(-1, keepdims=True)


def test_the_attention_of_opset_23(tmp_path: Path) -> None:
    path, expected = attention_23(tmp_path / "m.onnx")
    side = OnnxSide(path)
    assert (side.shape.layers, side.shape.heads, side.shape.d_model) == (1, 2, 8)
    base, weights, _ = side._run(np.arange(5), np.zeros(5, np.int64))
    np.testing.assert_allclose(weights(0), expected, atol=2e-6)
    np.testing.assert_allclose(base.layers[0].summed, base.last)


def changed(source: Path, target: Path, change: Callable[[Any], None]) -> Path:
    """A copy of a file with its model changed."""
    model = onnx.load(source)
    change(model)
    target.write_bytes(model.SerializeToString())
    return target


def no_softmax(model: Any) -> None:
    for node in model.graph.node:
        node.op_type = "Sigmoid" if node.op_type == "Softmax" else node.op_type


def grouped(model: Any) -> None:
    node = next(node for node in model.graph.node if node.op_type == "Softmax")
    node.op_type, node.domain = "GroupQueryAttention", "com.microsoft"


def no_residual(model: Any) -> None:
    for node in model.graph.node:
        node.op_type = "Sub" if node.op_type == "Add" else node.op_type


def outside(model: Any) -> None:
    tensor = next(one for one in model.graph.initializer if len(one.raw_data) > 1000)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"


def other_input(model: Any) -> None:
    model.graph.input.append(helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, [1]))


def unknown_operator(model: Any) -> None:
    model.graph.node.append(helper.make_node("RunMyCode", ["last_hidden_state"], ["y"], domain="evil"))


REFUSED = {
    "no softmax": (no_softmax, "no attention was found.*Sigmoid"),
    "grouped": (grouped, "doesn't read the operator GroupQueryAttention"),
    "no residual": (no_residual, "isn't added to a residual stream; the last operator after it was"),
    "outside": (outside, r"lies outside of the file's folder: '\.\./\.\./etc/passwd'"),
    "input": (other_input, "an input 'pixel_values'"),
    "operator": (unknown_operator, "onnxruntime rejects the file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused(bert: tuple[Path, Any, Path], tmp_path: Path, name: str) -> None:
    change, says = REFUSED[name]
    with pytest.raises(hs.HeadscopeError, match=says):
        hs.parity(bert[0], changed(bert[2], tmp_path / "m.onnx", change), TEXTS)


def test_a_name_that_is_not_text_is_refused(bert: tuple[Path, Any, Path], tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(bert[2].read_bytes().replace(b"Softmax", b"Softma\xff", 1))
    with pytest.raises(hs.HeadscopeError, match="a name is not valid UTF-8"):
        hs.parity(bert[0], tmp_path / "m.onnx", TEXTS)


@pytest.mark.parametrize("share", [0, 10, 1000, 0.5, 0.99])
def test_a_truncated_file_is_refused(bert: tuple[Path, Any, Path], tmp_path: Path, share: float) -> None:
    whole = bert[2].read_bytes()
    (tmp_path / "m.onnx").write_bytes(whole[: int(share if share > 1 else share * len(whole))])
    with pytest.raises(hs.HeadscopeError):
        hs.parity(bert[0], tmp_path / "m.onnx", TEXTS)


def test_external_data_beside_the_file_is_read(bert: tuple[Path, Any, Path], tmp_path: Path) -> None:
    onnx.save(onnx.load(bert[2]), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    agree(bert[0], tmp_path / "m.onnx")
    (tmp_path / "m.data").unlink()
    with pytest.raises(hs.HeadscopeError, match="onnxruntime rejects"):
        hs.parity(bert[0], tmp_path / "m.onnx", TEXTS)


def test_sides_of_other_sizes_and_without_a_tokenizer(bert: tuple[Path, Any, Path], tmp_path: Path) -> None:
    with pytest.raises(hs.HeadscopeError, match="the bundled model has 4 layers"):
        hs.parity("-", bert[2], TEXTS)
    with pytest.raises(hs.HeadscopeError, match=r"neither side has a tokenizer(?s:.)*--set tokenizer=NAME"):
        hs.parity(bert[2], bert[2], TEXTS)
    assert hs.parity(bert[2], bert[2], TEXTS, tokenizer=str(bert[0])).agrees
    with pytest.raises(hs.HeadscopeError, match="no such file"):
        hs.parity(bert[0], tmp_path / "none.onnx", TEXTS)
    shutil.copy(bert[0] / "config.json", tmp_path / "config.onnx")
    with pytest.raises(hs.HeadscopeError):
        hs.parity(bert[0], tmp_path / "config.onnx", TEXTS)
