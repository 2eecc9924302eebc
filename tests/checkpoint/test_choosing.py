"""Which file of a folder holds the weights; folders and files of other kinds are named, with a way out."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from headscope.checkpoint import open_checkpoint
from headscope.errors import CheckpointError, HeadscopeError, NotFoundError, UnsupportedError
from making import write_safetensors

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
        (
            ["a.safetensors", "b.safetensors"],
            NotFoundError,
            "2 weight files but no index.*\n.*\n.*one of the files",
        ),
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
