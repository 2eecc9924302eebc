"""PyTorch checkpoints, read without torch: both of torch.save's formats against what torch itself holds."""

from __future__ import annotations

import json
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import python
from headscope.checkpoint import open_checkpoint
from headscope.checkpoint.pickle_header import data_start, read_pickle_header, read_zip_directory
from headscope.checkpoint.raw_files import LocalFile
from headscope.errors import UnsupportedError

torch = pytest.importorskip("torch")

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
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(tmp_path / "model.pt"))
    with pytest.raises(UnsupportedError, match="TorchScript"):
        open_checkpoint(tmp_path / "model.pt")


def test_shards(tmp_path: Path) -> None:
    state = {"a": torch.randn(3, 4), "b": torch.randn(5)}
    for name, tensor in state.items():
        save({name: tensor}, tmp_path / f"pytorch_model-{name}.bin")
    index = {"metadata": {}, "weight_map": {name: f"pytorch_model-{name}.bin" for name in state}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.format, len(checkpoint.files)) == ("pickle", 2)
    assert_reads(checkpoint, state)


def test_data_starts_follow_from_the_directory_alone(tmp_path: Path) -> None:
    """Over the network, positions are computed without local headers; they equal those in the local headers."""

    class Far(LocalFile):
        remote = True

    for alignment in (64, 4096):
        torch.utils.serialization.config.save.storage_alignment = alignment
        try:
            path = save({f"{i}" * (i + 1): torch.zeros(i) for i in range(40)}, tmp_path / f"{alignment}.bin")
        finally:
            torch.utils.serialization.config.save.storage_alignment = 64
        near, far = LocalFile(path), Far(path)
        for entry in read_zip_directory(near).values():
            if "/data/" in entry.name:
                assert data_start(far, entry) == data_start(near, entry)
        assert read_pickle_header(far) == read_pickle_header(near)


def test_zip64(tmp_path: Path) -> None:
    """The same archive with every size in zip64 fields, as files above 4 GB have them."""
    path = save({"x": torch.arange(5.0)}, tmp_path / "pytorch_model.bin")
    data = path.read_bytes()
    entries = read_zip_directory(LocalFile(path))
    end = data.rindex(b"PK\5\6")
    start = struct.unpack_from("<I", data, end + 16)[0]
    directory = b""
    for name, entry in entries.items():
        extra = struct.pack("<HHQQQ", 1, 24, entry.size, entry.size, entry.header)
        sizes = (0xFFFFFFFF, 0xFFFFFFFF, len(name), len(extra))
        directory += b"PK\1\2" + struct.pack(
            "<HHHHHHIIIHHHHHII", 45, 45, entry.flags, 0, 0, 0, entry.crc, *sizes, 0, 0, 0, 0, 0xFFFFFFFF
        )
        directory += name.encode() + extra
    record = b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, len(entries), len(entries), len(directory), start)
    locator = b"PK\6\7" + struct.pack("<IQI", 0, start + len(directory), 1)
    tail = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(data[:start] + directory + record + locator + tail)
    np.testing.assert_array_equal(open_checkpoint(tmp_path).read("x"), np.arange(5, dtype=np.float32), strict=True)


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    save(state_dict(), tmp_path / "pytorch_model.bin")
    script = (
        "import sys; from headscope.checkpoint import open_checkpoint\n"
        f"checkpoint = open_checkpoint({str(tmp_path)!r})\n"
        "early = [name for name in ('numpy', 'torch', 'pickle', 'zipfile') if name in sys.modules]\n"
        "print(early, checkpoint.read('base').sum(), 'torch' in sys.modules)"
    )
    printed = python(script)
    assert printed.startswith("[] ")
    assert printed.strip().endswith("False")
