"""The bytes of trace files: two written by hand, as docs/trace-format.md has them, read and saved again.

Every array holds whole numbers, so that the bytes are the same on every processor.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headscope as hs
from golden.keeping import keep
from making import write_safetensors

TOKENS = 5
HEADS = 2
WIDTH = 4


def whole(*shape: int, start: int = 0) -> np.ndarray:
    """Small whole numbers, which both precisions hold exactly."""
    return ((np.arange(np.prod(shape)) * 7 + start) % 23 - 11).reshape(shape).astype(np.float32)


def axis(tokens: int, **other: Any) -> dict[str, Any]:
    return {
        "tokens": ["[CLS]", "caf\u00e9", "##ing", "\U0001f408", "[SEP]"][:tokens],
        "ids": list(range(101, 101 + tokens)),
        "segments": [0, 0, 0, 1, 1][:tokens],
        "special": [True, False, False, False, True][:tokens],
        "words": [None, 0, 0, 1, None][:tokens],
        "spans": [None, [0, 4], [4, 7], [0, 1], None][:tokens],
        **other,
    }


def arrays(layer: int, *, kv_heads: int = HEADS, keys: int = TOKENS) -> dict[str, np.ndarray]:
    stem = f"layers.{layer}"
    return {
        f"{stem}.q": whole(HEADS, TOKENS, WIDTH, start=layer),
        f"{stem}.k": whole(kv_heads, keys, WIDTH, start=3 + layer),
        f"{stem}.v": whole(kv_heads, keys, WIDTH, start=5 + layer),
        f"{stem}.lse": whole(HEADS, TOKENS, start=9) + 20,
    }


def layer_of(**other: Any) -> dict[str, Any]:
    rest = {"causal": False, "window": None, "name": "", "number": None, "numbers": None}
    return {"scale": 0.5, "stage": "projected", **rest, **other}


def plain() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """A trace without score terms: version 1."""
    tensors = {**arrays(0), **arrays(1), "outputs.last_hidden_state": whole(TOKENS, 8), "outputs.logits": whole(3)}
    tensors["layers.1.mask.keys"] = np.array([True, True, False, True, True])
    tensors["layers.1.lse"] = tensors["layers.1.lse"].astype(np.float64)
    about = {
        "model": "a/model",
        "fingerprint": "ab" * 32,
        "text": "caf\u00e9ing",
        "pair": "\U0001f408",
        "queries": axis(TOKENS),
        "keys": None,
        "layers": [layer_of(), layer_of(causal=True, window=[2, None], stage="rotated", name="encoder.1", number=4)],
        "outputs": {
            "last_hidden_state": {"dims": ["tokens", "d_model"], "labels": None},
            "logits": {"dims": ["labels"], "labels": ["bad", "fair", "good"]},
        },
        "ablated": [[0, 1], [4, 0]],
        "stack": "self",
        "unrecorded": ["layers without attention"],
        "cut": {"row": 2, "queries": [1, 2, 3, 4, 6], "keys": [1, 2, 3, 4, 6], "sizes": [8, 8]},
    }
    return tensors, {"version": 1, **about}


def with_terms() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Cross-attention with every score term, grouped keys and a bias: version 2."""
    keys = 3
    tensors = {**arrays(0, kv_heads=1, keys=keys), **arrays(1, keys=keys)}
    stem = "layers.0"
    tensors[f"{stem}.mask.bias"] = whole(1, TOKENS, keys)
    tensors[f"{stem}.terms.buckets"] = (np.arange(TOKENS + keys - 1) % 4).astype(np.int32)
    tensors[f"{stem}.terms.by_distance"] = whole(HEADS, 4)
    tensors[f"{stem}.terms.by_key"] = whole(HEADS, keys)
    tensors[f"{stem}.terms.sinks"] = whole(HEADS)
    stem = "layers.1"
    tensors[f"{stem}.terms.buckets"] = (np.arange(TOKENS + keys - 1) % 2).astype(np.int32)
    tensors[f"{stem}.terms.relative_keys"] = whole(HEADS, 2, WIDTH)
    tensors[f"{stem}.terms.relative_queries"] = whole(HEADS, 2, WIDTH, start=2)
    about = {
        "model": "",
        "fingerprint": "",
        "text": None,
        "pair": None,
        "queries": axis(TOKENS),
        "keys": axis(keys, spans=[None] * keys),
        "layers": [layer_of(cap=50.0), layer_of(numbers=[1, 3])],
        "outputs": {},
        "ablated": [],
        "stack": "cross",
        "unrecorded": [],
        "cut": None,
    }
    return tensors, {"version": 2, **about}


@pytest.mark.parametrize("make", [plain, with_terms])
def test_a_file_is_read_and_saved_again(make: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    tensors, about = make()
    about = {"format": "headscope.trace", **about}
    metadata = {"format": "headscope.trace", "headscope": json.dumps(about)}
    trace = hs.load(write_safetensors(tmp_path / "trace.safetensors", tensors, metadata))
    value: dict[str, Any] = {
        "repr": repr(trace),
        "stack": trace.stack,
        "tokens": trace.tokens,
        "numbers": trace.numbers,
    }
    for dtype, values in (("fp32", True), ("fp16", True), ("fp32", False)):
        data = trace.save(tmp_path / "saved.safetensors", dtype=dtype, values=values).read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        written = header.pop("__metadata__")  # a map, whose order is the safetensors library's
        assert json.loads(written["headscope"]) == about
        assert set(written) == set(metadata)
        value[f"{dtype} {'with' if values else 'without'} values"] = {
            "metadata": hashlib.sha256(written["headscope"].encode()).hexdigest(),
            "tensors": {name: " ".join(map(str, entry.values())) for name, entry in header.items()},
            "data": hashlib.sha256(data[end:]).hexdigest(),
            "bytes": len(data),
        }
        again = hs.load(tmp_path / "saved.safetensors")
        for layer, record in enumerate(again.layers):
            assert np.array_equal(record.q, tensors[f"layers.{layer}.q"])
            assert np.array_equal(record.lse, tensors[f"layers.{layer}.lse"])
    keep(request, f"trace-bytes-{make.__name__.replace('_', '-')}", value)
