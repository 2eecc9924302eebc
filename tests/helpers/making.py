"""Makers of checkpoints for tests: real safetensors files, sparse ones of full size, and BERT's published headers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headscope.checkpoint.safetensors_header import safetensors_bytes
from headscope.files import BLANK, sealed

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1}
SIZES |= {"U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}
NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "bool": "BOOL"}
NAMES |= {f"{sign}int{bits}": f"{letter}{bits}" for sign, letter in (("", "I"), ("u", "U")) for bits in (8, 16, 32, 64)}

BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
BASE |= {"vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2}
LARGE = {**BASE, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}

BERT_CONFIG = {"architectures": ["BertForPreTraining"], "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu"}
BERT_CONFIG |= {"hidden_dropout_prob": 0.1, "initializer_range": 0.02, "layer_norm_eps": 1e-12, "model_type": "bert"}
BERT_CONFIG |= {"pad_token_id": 0}

SPECIAL_IDS = {"pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
SPECIAL_IDS |= {"mask_token_id": 4}


def header_bytes(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """The length and JSON that begin a safetensors file of these names, dtypes and shapes, padded to 8 bytes."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    reached = 0
    for name, (dtype, shape) in tensors.items():
        size = int(np.prod(shape, dtype=np.int64)) * SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [reached, reached + size]}
        reached += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> Path:
    """Write arrays as a safetensors file; their own dtypes."""
    arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    head = header_bytes({name: (NAMES[array.dtype.name], array.shape) for name, array in arrays.items()}, metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + b"".join(array.tobytes() for array in arrays.values()))
    return path


def sealed_trace(path: Path, data: bytes, **changes: Any) -> Path:
    """Write a trace without a seal, such as the page's, as `Trace.save` does, its record with some other fields."""
    from safetensors.numpy import load

    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    about = json.dumps({**json.loads(header["__metadata__"]["headscope"]), **changes})
    path.write_bytes(sealed(safetensors_bytes(load(data), {"headscope": about, "seal": BLANK.decode()})))
    return path


def sparse_safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> Path:
    """Write a true header and give the file its full length without data: zeros that take no room on the disk."""
    head = header_bytes(tensors)
    size = len(head) + sum(int(np.prod(shape, dtype=np.int64)) * SIZES[dtype] for dtype, shape in tensors.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def write_config(folder: Path, config: Mapping[str, Any]) -> Path:
    """Write config.json into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def bert_header(
    sizes: Mapping[str, int] = BASE,
    *,
    prefix: str = "",
    old_names: bool = False,
    pretraining: bool = False,
    position_ids: bool = False,
    extra: Iterable[tuple[str, tuple[int, ...]]] = (),
    dtype: str = "F32",
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> (dtype, shape) of every tensor of a BERT checkpoint.

    Args:
        sizes: config fields, such as BASE or LARGE.
        prefix: put before the base model's names: "" for BertModel, "bert." for a model with heads on top.
        old_names: call LayerNorm's parameters gamma and beta, as the files of 2018 do.
        pretraining: with cls.*, as BertForPreTraining saves it (the tied decoder weight is not in the file).
        position_ids: with the buffer that older versions of the class saved.
        extra: more names and shapes.
        dtype: of every parameter.
    """
    hidden, inner, vocabulary = sizes["hidden_size"], sizes["intermediate_size"], sizes["vocab_size"]
    weight, bias = ("gamma", "beta") if old_names else ("weight", "bias")
    shapes: dict[str, tuple[int, ...]] = {}

    def dense(name: str, out: int, into: int) -> None:
        shapes.update({f"{name}.weight": (out, into), f"{name}.bias": (out,)})

    def norm(name: str) -> None:
        shapes.update({f"{name}.LayerNorm.{weight}": (hidden,), f"{name}.LayerNorm.{bias}": (hidden,)})

    rows = {"word": vocabulary, "position": sizes["max_position_embeddings"], "token_type": sizes["type_vocab_size"]}
    shapes |= {f"{prefix}embeddings.{name}_embeddings.weight": (count, hidden) for name, count in rows.items()}
    norm(f"{prefix}embeddings")
    for layer in range(sizes["num_hidden_layers"]):
        start = f"{prefix}encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            dense(f"{start}.attention.{part}", hidden, hidden)
        norm(f"{start}.attention.output")
        dense(f"{start}.intermediate.dense", inner, hidden)
        dense(f"{start}.output.dense", hidden, inner)
        norm(f"{start}.output")
    dense(f"{prefix}pooler.dense", hidden, hidden)
    if pretraining:
        shapes["cls.predictions.bias"] = (vocabulary,)
        dense("cls.predictions.transform.dense", hidden, hidden)
        norm("cls.predictions.transform")
        dense("cls.seq_relationship", 2, hidden)
    shapes.update(extra)
    header = {name: (dtype, shape) for name, shape in shapes.items()}
    if position_ids:
        header[f"{prefix}embeddings.position_ids"] = ("I64", (1, sizes["max_position_embeddings"]))
    return header


def change_json(path: Path, **fields: Any) -> None:
    """Give a file of JSON these fields; it is made where it is missing."""
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**held, **fields}), encoding="utf-8")


def bert_checkpoint(folder: Path, sizes: Mapping[str, int] = BASE, *, published: bool = False) -> Path:
    """A folder with config.json and a sparse model.safetensors of full size: BertModel's, or the published file's."""
    write_config(folder, {**BERT_CONFIG, **sizes})
    header = bert_header(sizes, prefix="bert.", old_names=True, pretraining=True) if published else bert_header(sizes)
    sparse_safetensors(folder / "model.safetensors", header)
    return folder
