"""Saving weights and slices: NumPy's npz, a long CSV table, or the whole trace as safetensors."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError
from headscope.files import write_atomically
from headscope.screens.tables import guarded

if TYPE_CHECKING:
    from headscope.traces import Trace

KINDS = (".npz", ".safetensors", ".csv")
MOST_CELLS = {".csv": 20_000_000, ".npz": 500_000_000}
"""Most weights per file: about a gigabyte of CSV, two gigabytes of float32 in memory."""


def check_kind(path: Path, kinds: Sequence[str] = KINDS) -> str:
    """The file's suffix.

    Raises:
        InputError: the suffix is not supported.
    """
    if path.suffix.lower() in kinds:
        return path.suffix.lower()
    found = f"unsupported suffix {path.suffix!r}" if path.suffix else "the file's name has no suffix"
    raise InputError(found, where=str(path), advice=f"use one of {', '.join(kinds)}")


def save_attention(trace: Trace, path: Path, *, layer: int | None = None, head: int | None = None) -> str:
    """Write the weights of one head, of a layer's heads, or of all; return a description of the file.

    - .npz: `weights` (layers, heads, S, S) float32, `layers` and `heads` their numbers, `tokens`, `ids`, `segments`;
    - .csv: a line per cell: layer, head, query, query_token, key, key_token, weight; an apostrophe precedes tokens that
      a spreadsheet might run;
    - .safetensors: the trace itself, from which every head's weights can be computed.

    Raises:
        InputError: another suffix, a file that can't be written, or no such layer or head.
    """
    kind = check_kind(path)
    layers = trace.numbers if layer is None else (trace[layer, -1].layer,)
    heads = trace.head_numbers(layers[0]) if head is None else (trace[layers[0], head].head,)
    unlike = [number for number in layers if head is None and trace.head_numbers(number) != heads]
    if unlike and kind == ".npz":
        found = f"layers {layers[0]} and {unlike[0]} have different heads, so their weights don't fit in one array"
        advice = "choose one layer with --heads, or save the trace as .safetensors"
        raise InputError(found, where=str(path), advice=advice)
    count = sum(len(trace.head_numbers(number)) if head is None else 1 for number in layers)
    shape = f"{len(layers)} × {len(heads)}" if count == len(layers) * len(heads) else f"{count}"
    cells = count * len(trace) * len(trace.keys)
    if cells > MOST_CELLS.get(kind, cells):
        raise InputError(
            f"{shape} heads of {len(trace)} × {len(trace.keys)} weights are {cells:,} values, "
            f"too many for one {kind} file",
            where=str(path),
            advice="choose one head with --heads, or save the trace as .safetensors: its size is linear, "
            "not quadratic, in the text's length",
        )
    if kind == ".safetensors":
        trace.save(path)
        return f"the trace: Q, K, V of {len(trace.layers)} × {trace.heads} heads, {len(trace)} tokens"
    if kind == ".csv":
        write_atomically(path, _csv(trace, layers, None if head is None else heads))
    else:
        weights = np.stack([[np.asarray(trace[row, column].weights) for column in heads] for row in layers])
        save_arrays(
            path,
            {
                "weights": weights.astype(np.float32, copy=False),
                "layers": np.array(list(layers)),
                "heads": np.array(list(heads)),
                "tokens": np.array(trace.tokens, dtype=np.str_),
                "ids": np.array(trace.ids),
                "segments": np.array(trace.segments),
            },
        )
    return f"weights of {shape} heads, {len(trace)} × {len(trace.keys)} each"


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]]) -> None:
    """Write arrays as one .npz, atomically."""
    check_kind(path, (".npz",))
    out = io.BytesIO()
    named: dict[str, Any] = dict(arrays)
    np.savez_compressed(out, **named)  # `allow_pickle=` would be one more array before NumPy 2.1
    write_atomically(path, out.getvalue())


def _csv(trace: Trace, layers: Sequence[int], heads: Sequence[int] | None) -> bytes:
    import csv

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["layer", "head", "query", "query_token", "key", "key_token", "weight"])
    queries, keys = (tuple(map(guarded, axis.tokens)) for axis in (trace.queries, trace.keys))
    for layer in layers:
        for head in trace.head_numbers(layer) if heads is None else heads:
            for query, row in enumerate(np.asarray(trace[layer, head].weights).astype(np.float32).astype("U")):
                writer.writerows(
                    (layer, head, query, queries[query], key, keys[key], weight) for key, weight in enumerate(row)
                )
    return out.getvalue().encode()
