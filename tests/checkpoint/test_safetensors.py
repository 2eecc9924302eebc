"""Safetensors checkpoints on disk, and which file of a folder holds the weights; other kinds are named."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors.torch import save_file
from torch.utils.serialization import config

from commands import python
from headscope.checkpoint import Checkpoint, open_checkpoint
from headscope.checkpoint.pickle_header import data_start, read_pickle_header, read_zip_directory
from headscope.checkpoint.raw_files import LocalFile
from headscope.errors import CheckpointError, HeadscopeError, InputError, NotFoundError, UnsupportedError
from making import BASE, bert_checkpoint, write_config, write_safetensors

NATIVE = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]


def some_tensors() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    return {
        "weight": generator.normal(size=(6, 4)).astype(np.float32),
        "bias": generator.normal(size=6).astype(np.float16),
        "ids": np.arange(5),
        "nothing": np.zeros((0, 3), np.float32),
        "one": np.array(2.5),
    }


def test_folder(tmp_path: Path) -> None:
    tensors = some_tensors()
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors", {"format": "np"})
    write_config(tmp_path, {"model_type": "bert"})
    checkpoint = open_checkpoint(tmp_path)
    assert isinstance(checkpoint, Checkpoint)
    assert (checkpoint.origin, checkpoint.where) == ("folder", str(tmp_path.resolve()))
    assert (checkpoint.format, checkpoint.files) == ("safetensors", ("model.safetensors",))
    assert (checkpoint.config, checkpoint.has_config) == ({"model_type": "bert"}, True)
    assert (dict(checkpoint.shared), checkpoint.local) == ({}, True)
    starts = [entry.start for entry in checkpoint.tensors.values()]
    assert starts == sorted(starts)
    assert set(checkpoint.tensors) == set(tensors)
    for name, array in tensors.items():
        entry = checkpoint.tensors[name]
        assert (entry.shape, entry.count, entry.nbytes) == (array.shape, array.size, array.nbytes)
        read = checkpoint.read(name)
        np.testing.assert_array_equal(read, array, strict=True)
        assert not read.flags.writeable


@pytest.mark.parametrize("dtype", NATIVE)
def test_native_dtypes_are_maps_of_the_file(tmp_path: Path, dtype: str) -> None:
    array = np.arange(24).reshape(6, 4).astype(dtype)
    write_safetensors(tmp_path / "a.safetensors", {"pad": np.zeros(3, np.uint8), "x": array})
    checkpoint = open_checkpoint(tmp_path / "a.safetensors")
    whole, part = checkpoint.read("x"), checkpoint.read("x", slice(2, 4), slice(1, -1))
    np.testing.assert_array_equal(whole, array, strict=True)
    np.testing.assert_array_equal(part, array[2:4, 1:-1], strict=True)
    assert np.shares_memory(whole, part)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_short_floats_are_widened_exactly(tmp_path: Path, name: str) -> None:
    bits = 16 if name == "bfloat16" else 8
    codes = torch.arange(2**bits, dtype=torch.int32).to(torch.uint16 if bits == 16 else torch.uint8)
    tensor = codes.view(getattr(torch, name)).reshape(16, -1)
    save_file({"x": tensor}, tmp_path / "a.safetensors")
    expected = tensor.to(torch.float32).numpy()
    checkpoint = open_checkpoint(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(checkpoint.read("x"), expected, strict=True)
    np.testing.assert_array_equal(checkpoint.read("x", slice(3, 5), slice(2, 9)), expected[3:5, 2:9], strict=True)
    assert not checkpoint.read("x").flags.writeable


@pytest.mark.parametrize(
    ("name", "rows", "columns", "message"),
    [
        ("weight", slice(0, 7), None, "rows 0:7 of an axis of 6"),
        ("weight", slice(4, 2), None, "rows 4:2"),
        ("weight", slice(0, 4, 2), None, "rows 0:4:2"),
        ("weight", None, slice(-5, 4), "columns -5:4 of an axis of 4"),
        ("bias", None, slice(0, 1), "columns are axis 1"),
        ("one", slice(0, 1), None, "rows are axis 0"),
        ("weight", 5, None, "rows is 5, expected a slice"),
        ("weigth", None, None, "did you mean weight?"),
        (5, None, None, "there is no tensor '5'"),
    ],
)
def test_slices_beyond_the_tensor_are_refused(
    tmp_path: Path, name: Any, rows: Any, columns: slice | None, message: str
) -> None:
    write_safetensors(tmp_path / "model.safetensors", some_tensors())
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        open_checkpoint(tmp_path).read(name, rows, columns)


def test_dtypes_without_an_array_keep_their_name(tmp_path: Path) -> None:
    header = (
        b'{"x":{"dtype":"F8_E8M0","shape":[2],"data_offsets":[0,2]},'
        b'"y":{"dtype":"F4","shape":[4],"data_offsets":[2,4]}}'
    )
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    checkpoint = open_checkpoint(tmp_path / "a.safetensors")
    assert [(entry.dtype, entry.nbytes) for entry in checkpoint.tensors.values()] == [("F8_E8M0", 2), ("F4", 2)]
    with pytest.raises(UnsupportedError, match="F8_E8M0"):
        checkpoint.read("x")


def shard(folder: Path, *, weight_map: dict[str, str] | None = None) -> Path:
    tensors = some_tensors()
    names = sorted(tensors)
    files = {"model-1.safetensors": names[:2], "model-2.safetensors": names[2:]}
    for file, held in files.items():
        write_safetensors(folder / file, {name: tensors[name] for name in held})
    index = weight_map or {name: file for file, held in files.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def test_shards(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(shard(tmp_path))
    assert checkpoint.files == ("model-1.safetensors", "model-2.safetensors")
    for name, array in some_tensors().items():
        np.testing.assert_array_equal(checkpoint.read(name), array, strict=True)
    assert open_checkpoint(tmp_path / "model.safetensors.index.json").tensors == checkpoint.tensors
    assert list(open_checkpoint(tmp_path / "model-1.safetensors").tensors) == list(checkpoint.tensors)[:2]


def test_fingerprint_is_of_config_and_header_alone(tmp_path: Path) -> None:
    tensors = some_tensors()
    write_safetensors(tmp_path / "a" / "model.safetensors", tensors)
    zeros = {name: np.zeros_like(array) for name, array in reversed(tensors.items())}
    write_safetensors(tmp_path / "b" / "model.safetensors", zeros, {"format": "np"})
    shard(tmp_path / "c")
    wider = {**tensors, "bias": np.zeros(7, np.float16)}
    write_safetensors(tmp_path / "d" / "model.safetensors", wider)
    prints = {folder: open_checkpoint(tmp_path / folder).fingerprint() for folder in "abcd"}
    assert prints["a"] == prints["b"] == prints["c"] != prints["d"]
    write_config(tmp_path / "a", {"hidden_size": 4})
    assert open_checkpoint(tmp_path / "a").fingerprint() != prints["a"]
    assert len(prints["a"]) == 64


def test_any_unicode_is_a_name(tmp_path: Path) -> None:
    names = ["", "ключ", "头", "a\0b", "🤗", "e\u0301", "__metadata__s", "x" * 5000]
    write_safetensors(tmp_path / "model.safetensors", {name: np.ones(1) for name in names}, {"format": "头"})
    assert list(open_checkpoint(tmp_path).tensors) == names


def test_preference(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "other.safetensors", {"other": np.ones(1)})
    write_safetensors(tmp_path / "adapter_model.safetensors", {"adapter": np.ones(1)})
    assert open_checkpoint(tmp_path).files == ("other.safetensors",)
    shard(tmp_path)
    assert len(open_checkpoint(tmp_path).files) == 2
    write_safetensors(tmp_path / "model.safetensors", {"model": np.ones(1)})
    assert open_checkpoint(tmp_path).files == ("model.safetensors",)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./model.safetensor", r"did you mean .*model\.safetensors\?"),
        ("nowhere/at/all", "does not exist either"),
        ("~/no-such-folder-of-weights", "there is no ~/no-such-folder-of-weights"),
        ("x.bin", "there is no x.bin"),
        ("scheme://host/owner/name/tree/main", "pass only the id: owner/name"),
        ("owner/name@v1", "owner/name with revision v1"),
        ("a b", "neither an existing path nor a hub id"),
        ("-lead", "neither an existing path nor a hub id"),
    ],
)
def test_names_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"x": np.ones(1)})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError, match=message):
        open_checkpoint(name)


@pytest.mark.parametrize("name", ["", " ", "a\0b", "a\nb", None, 5, b"x"])
def test_names_that_are_none(name: Any) -> None:
    with pytest.raises(InputError, match="can't be the name"):
        open_checkpoint(name)


def test_config_json_is_not_weights(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json contains no weights"):
        open_checkpoint(write_config(tmp_path, {}))


def test_a_config_that_says_no_limit(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"x": np.ones(1)})
    write_config(tmp_path, {"model_max_length": 10**30})
    assert open_checkpoint(tmp_path).config["model_max_length"] == 10**30


def test_a_revision_needs_the_hub(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"x": np.ones(1)})
    with pytest.raises(InputError, match="revision main was given"):
        open_checkpoint(tmp_path, revision="main")


def test_files_beside_the_weights(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"x": np.ones(1)})
    (tmp_path / "vocab.txt").write_text("a\n")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.file("vocab.txt") == tmp_path.resolve() / "vocab.txt"
    assert checkpoint.file("merges.txt") is None
    for name in ("../vocab.txt", "/vocab.txt", "", "a\\b", "a//b"):
        with pytest.raises(InputError):
            checkpoint.file(name)


TENSOR = {"x": np.ones(1)}


def fill(folder: Path, files: list[str]) -> None:
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.endswith("/"):
            path.mkdir()
        else:
            path.write_text("{}")


@pytest.mark.parametrize(
    ("files", "kind", "message"),
    [
        ([], NotFoundError, "it is empty"),
        (["config.json"], NotFoundError, "no weights: it holds config.json"),
        (["a.safetensors", "b.safetensors"], NotFoundError, "2 weight files but no index.*\n.*\n.*one of the files"),
        (
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
            NotFoundError,
            "download the index.json",
        ),
        (["best.pt", "last.pt"], NotFoundError, "2 weight files"),
        (["training_args.bin", "optimizer.pt", "rng_state_0.pth"], NotFoundError, "no weights: it holds"),
        (["adapter_model.safetensors"], UnsupportedError, "contains an adapter"),
        (["adapter_model.bin", "optimizer.pt"], UnsupportedError, "contains an adapter"),
        (["pytorch_adapter.bin", "adapter_config.json"], UnsupportedError, "contains an adapter"),
        (
            ["tf_model.h5"],
            UnsupportedError,
            r"tf_model.h5 \(TensorFlow\)(.|\n)*transformers 4.49(.|\n)*folder, from_tf=True",
        ),
        (["flax_model.msgpack"], UnsupportedError, r"\(Flax\)(.|\n)*transformers 4.49(.|\n)*folder, from_flax=True"),
        (["bert_model.ckpt.data-00000-of-00001"], UnsupportedError, r"4.49(.|\n)*\.ckpt\.index, from_tf=True, config"),
        (["openvino_model.bin", "openvino_model.xml"], UnsupportedError, "OpenVINO"),
        (["saved_model.pb", "variables/variables.index"], UnsupportedError, "TensorFlow"),
        (["model.mlpackage/"], UnsupportedError, "Core ML"),
        (["config.json", "onnx/model.onnx"], UnsupportedError, r"onnx/model.onnx \(ONNX\)"),
        (["checkpoint-500/model.safetensors"], NotFoundError, r"but in checkpoint-500\n.*\n.*/checkpoint-500$"),
        (["modules.json", "0_Transformer/pytorch_model.bin"], NotFoundError, "no weights here, but in 0_Transformer"),
        (["refs/main", "snapshots/abc/model.safetensors"], NotFoundError, "/snapshots/abc$"),
        (["models--owner--name/refs/main"], NotFoundError, "pass a model's id, such as owner/name"),
        (["model.tar.gz"], NotFoundError, "unpack model.tar.gz"),
    ],
)
def test_folders_without_weights(tmp_path: Path, files: list[str], kind: type[HeadscopeError], message: str) -> None:
    fill(tmp_path, files)
    with pytest.raises(kind, match=message) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.where == str(tmp_path.resolve())


@pytest.mark.parametrize("name", ["last.ckpt", "model.pt", "weights.bin"])
def test_the_only_pickle_that_may_hold_weights(tmp_path: Path, name: str) -> None:
    fill(tmp_path, ["training_args.bin", "optimizer.pt", "scheduler.pt"])
    torch.save({"state_dict": {"x": torch.ones(2)}, "epoch": 3}, tmp_path / name)
    assert open_checkpoint(tmp_path).files == (name,)


@pytest.mark.parametrize(("config", "base"), [({"base_model_name_or_path": "owner/name"}, "'owner/name'"), ([], None)])
def test_an_adapter_names_its_base(tmp_path: Path, config: object, base: str | None) -> None:
    write_safetensors(tmp_path / "adapter_model.safetensors", TENSOR)
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError) as caught:
        open_checkpoint(tmp_path)
    assert str(caught.value.advice).startswith(f"open the base model ({base})," if base else "open the base model,")


def as_saved(folder: Path, name: str) -> bytes:
    torch.save({"x": torch.ones(2)}, folder / name, _use_new_zipfile_serialization=name == "zip")
    return (folder / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "made", "message"),
    [
        ("model.safetensors", "zip", "a zip archive, as torch.save writes it"),
        ("model.safetensors", "legacy", "a pickle, as torch.save wrote it"),
        ("model.safetensors", "gzip", "a gzip archive, not a safetensors file"),
        ("pytorch_model.bin", "gzip", "a gzip archive, not what torch.save writes"),
        ("pytorch_model.bin", "safetensors", "this is a safetensors file.*\n.*\n.*rename it to model.safetensors"),
        ("pytorch_model.bin", "page", "a web page"),
        ("model.safetensors", "page", "a web page"),
        ("model.safetensors", "json", "this is JSON text"),
        ("model.safetensors", "short", "the file has 40 bytes"),
    ],
)
def test_a_file_that_is_not_what_its_name_says(tmp_path: Path, name: str, made: str, message: str) -> None:
    good = write_safetensors(tmp_path / "good", TENSOR).read_bytes()
    data = {
        "zip": lambda: as_saved(tmp_path, "zip"),
        "legacy": lambda: as_saved(tmp_path, "legacy"),
        "gzip": lambda: gzip.compress(good),
        "safetensors": lambda: good,
        "page": lambda: b"<!DOCTYPE html><html><body>Not found</body></html>",
        "json": lambda: b'{"error": "Repository not found, or it is private"}',
        "short": lambda: good[:40],
    }[made]()
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / name)


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    for name in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(CheckpointError, match="not a regular file"):
            open_checkpoint(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [("bert.tar.gz", "packed files"), ("a.onnx", "ONNX files"), ("vocab.txt", "files with this suffix")],
)
def test_files_that_hold_no_weights(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(UnsupportedError, match=f"can't read {message}"):
        open_checkpoint(tmp_path / name)


# PyTorch checkpoints, read without torch: both of torch.save's formats against what torch itself holds.


FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def save(state: Any, path: Path, zipped: bool = True, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path, _use_new_zipfile_serialization=zipped, **options)
    return path


def assert_reads(checkpoint: Any, state: Any) -> None:
    """The same tensors in the same order."""
    assert list(checkpoint.tensors) == list(state)
    for name, tensor in state.items():
        np.testing.assert_array_equal(checkpoint.read(name), tensor.numpy(), strict=True)


def state_dict() -> dict[str, Any]:
    torch.manual_seed(4)
    base = torch.randn(6, 8)
    state: dict[str, Any] = {f"dtype.{name}": (torch.randn(3, 5) * 9).to(getattr(torch, name)) for name in DTYPES}
    state |= {
        "base": base,
        "tied": base,
        "transposed": base.t(),
        "rows": base[2:4],
        "columns": base[:, 3:5],
        "position_ids": torch.arange(7).expand((1, -1)),
        "expanded": torch.ones(1, 4).expand(3, 4),
        "parameter": torch.nn.Parameter(torch.randn(4)),
        "scalar": torch.tensor(3.5),
        "nothing": torch.zeros(0, 4),
        "имя 头": torch.ones(2),
    }
    return state


@FORMATS
def test_every_tensor_as_torch_has_it(tmp_path: Path, zipped: bool) -> None:
    state = state_dict()
    save(state, tmp_path / "pytorch_model.bin", zipped)
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.format, checkpoint.files) == ("pickle", ("pytorch_model.bin",))
    assert list(checkpoint.tensors) == list(state)
    for name, tensor in state.items():
        entry, read = checkpoint.tensors[name], checkpoint.read(name)
        wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        np.testing.assert_array_equal(read, wide.detach().numpy(), strict=True)
        assert not read.flags.writeable
        assert (entry.strides is None) == (tensor.is_contiguous() or tensor.numel() == 0)
        if tensor.ndim == 2 and tensor.shape[0] >= 2:
            part = checkpoint.read(name, slice(1, 2), slice(0, 2))
            np.testing.assert_array_equal(part, wide.detach().numpy()[1:2, 0:2], strict=True)
    assert dict(checkpoint.shared) == {"tied": "base"}


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"])
def test_dtypes_of_untyped_storages(tmp_path: Path, name: str) -> None:
    tensor = torch.arange(24).reshape(4, 6).to(getattr(torch, name))
    save({"x": tensor[1:], "y": tensor}, tmp_path / "pytorch_model.bin")
    checkpoint = open_checkpoint(tmp_path)
    expected = (tensor.float() if "float8" in name else tensor).numpy()
    np.testing.assert_array_equal(checkpoint.read("x"), expected[1:], strict=True)
    np.testing.assert_array_equal(checkpoint.read("y", slice(2, 3)), expected[2:3], strict=True)


@FORMATS
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle_protocols(tmp_path: Path, zipped: bool, protocol: int) -> None:
    module = torch.nn.TransformerEncoderLayer(8, 2, 16)
    state = module.state_dict()
    assert isinstance(state, OrderedDict)
    save(state, tmp_path / "pytorch_model.bin", zipped, pickle_protocol=protocol)
    assert_reads(open_checkpoint(tmp_path), state)


@FORMATS
def test_tensors_outside_the_state_dict(tmp_path: Path, zipped: bool) -> None:
    """A checkpoint of a training run has more than the model: an optimizer, a random state, a score."""
    model = torch.nn.Linear(3, 4)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"rng": torch.get_rng_state(), "model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    save(state, tmp_path / "pytorch_model.bin", zipped)
    assert_reads(open_checkpoint(tmp_path), model.state_dict())


@pytest.mark.parametrize("nest", ["state_dict", "model", "module", "model_state_dict"])
def test_a_state_dict_under_a_usual_name(tmp_path: Path, nest: str) -> None:
    save({"epoch": 3, nest: {"x": torch.ones(3)}, "best": 0.5}, tmp_path / "pytorch_model.bin")
    assert_reads(open_checkpoint(tmp_path), {"x": torch.ones(3)})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (torch.ones(3), "a tensor, not a state dict"),
        ([1, 2], "a list, not a state dict"),
        ({}, "contains no tensors"),
        ({"x": torch.ones(2), "y": {"z": torch.ones(2)}}, "'y' is a dict inside the state dict"),
        ({3: torch.ones(2)}, "the name of a tensor is 3, expected a string"),
    ],
    ids=["tensor", "list", "empty", "half nested", "numbered"],
)
def test_what_is_not_a_state_dict(tmp_path: Path, state: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        open_checkpoint(save(state, tmp_path / "pytorch_model.bin"))


def test_torchscript_is_named(tmp_path: Path) -> None:
    with pytest.warns((DeprecationWarning, FutureWarning), match="torch.jit"):
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(tmp_path / "model.pt"))
    with pytest.raises(UnsupportedError, match="TorchScript"):
        open_checkpoint(tmp_path / "model.pt")


def test_shards_of_pickles(tmp_path: Path) -> None:
    state = {"a": torch.randn(3, 4), "b": torch.randn(5)}
    for name, tensor in state.items():
        save({name: tensor}, tmp_path / f"pytorch_model-{name}.bin")
    index = {"metadata": {}, "weight_map": {name: f"pytorch_model-{name}.bin" for name in state}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.format, len(checkpoint.files)) == ("pickle", 2)
    assert_reads(checkpoint, state)


class Far(LocalFile):
    remote = True


class Stream(io.RawIOBase):
    """A file that can't be gone back in, so that zipfile writes descriptors after its entries."""

    def __init__(self) -> None:
        self.written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, part: Any) -> int:
        self.written += part
        return len(part)


def test_data_starts_follow_from_the_directory_alone(tmp_path: Path) -> None:
    """Over the network, positions are computed without local headers; they equal those in the local headers."""
    for alignment in (64, 4096):
        with config.patch({"save.storage_alignment": alignment}):
            path = save({f"{i}" * (i + 1): torch.zeros(i) for i in range(40)}, tmp_path / f"{alignment}.bin")
        near, far = LocalFile(path), Far(path)
        for entry in read_zip_directory(near).values():
            assert data_start(far, entry) == data_start(near, entry) == entry.start
        assert read_pickle_header(far) == read_pickle_header(near)


def test_archives_that_other_programs_wrote_as_a_stream(tmp_path: Path) -> None:
    """Their data begins anywhere: for one root in 64, where a descriptor of 12 bytes would leave it aligned."""
    with ZipFile(save({"x": torch.arange(50.0)}, tmp_path / "saved.bin")) as archive:
        content = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    path = tmp_path / "pytorch_model.bin"
    for length in range(1, 65):
        stream = Stream()
        with ZipFile(stream, "w") as archive:
            for name, part in content.items():
                archive.writestr(f"{'r' * length}/{name}", part)
        path.write_bytes(stream.written)
        assert read_pickle_header(Far(path)) == read_pickle_header(LocalFile(path))


def test_a_truncated_archive_is_refused_after_one_read(tmp_path: Path) -> None:
    """Its end is missing: reading more of it, over the network, can't find a directory."""
    path = save({"x": torch.zeros(200_000)}, tmp_path / "pytorch_model.bin")
    path.write_bytes(path.read_bytes()[:-60])
    reads = []

    class Counted(LocalFile):
        def read(self, start: int, stop: int) -> bytes:
            reads.append(stop - start)
            return super().read(start, stop)

    with pytest.raises(CheckpointError, match="directory of the zip archive can't be read"):
        read_zip_directory(Counted(path))
    assert len(reads) == 1


def test_zip64(tmp_path: Path) -> None:
    """The same archive with every size in zip64 fields, as files above 4 GB have them."""
    path = save({"x": torch.arange(5.0)}, tmp_path / "pytorch_model.bin")
    data = path.read_bytes()
    entries = read_zip_directory(LocalFile(path))
    end = data.rindex(b"PK\5\6")
    start = struct.unpack_from("<I", data, end + 16)[0]
    directory = b""
    for name, entry in entries.items():
        extra = struct.pack("<HHQQQ", 1, 24, *[entry.info.file_size] * 2, entry.info.header_offset)
        sizes = (0xFFFFFFFF, 0xFFFFFFFF, len(name), len(extra))
        directory += b"PK\1\2" + struct.pack(
            "<HHHHHHIIIHHHHHII", 45, 45, entry.info.flag_bits, 0, 0, 0, entry.info.CRC, *sizes, 0, 0, 0, 0, 0xFFFFFFFF
        )
        directory += name.encode() + extra
    record = b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, len(entries), len(entries), len(directory), start)
    locator = b"PK\6\7" + struct.pack("<IQI", 0, start + len(directory), 1)
    tail = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(data[:start] + directory + record + locator + tail)
    np.testing.assert_array_equal(open_checkpoint(tmp_path).read("x"), np.arange(5, dtype=np.float32), strict=True)


def test_opening_needs_no_numpy_and_reading_no_torch(tmp_path: Path) -> None:
    """Nor does importing the tokenizers need a library."""
    folder = bert_checkpoint(tmp_path / "bert", BASE)
    save(state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    script = (
        "import sys, headscope.checkpoint.tokenizer; from headscope.checkpoint import open_checkpoint\n"
        f"checkpoint = open_checkpoint({str(folder)!r}); checkpoint.fingerprint(); checkpoint.file('vocab.txt')\n"
        f"pickled = open_checkpoint({str(tmp_path / 'pickled')!r})\n"
        "heavy = 'numpy torch transformers huggingface_hub safetensors tokenizers fugashi pickle'\n"
        "early = [name for name in heavy.split() if name in sys.modules]\n"
        "print(early, pickled.read('base').sum(), 'torch' in sys.modules)"
    )
    printed = python(script)
    assert printed.startswith("[] ")
    assert printed.strip().endswith("False")
