"""A trace on disk: one safetensors file, as docs/trace-format.md describes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.scores import Mask
from headscope.attention.terms import RELATIVE, TABLES, Terms
from headscope.checkpoint.entry import read_tensor
from headscope.checkpoint.formats import TRACE_FORMAT
from headscope.checkpoint.json_text import MOST_BYTES, JsonError, brief, parse_object, written
from headscope.checkpoint.raw_files import HeldFile, LocalFile
from headscope.checkpoint.safetensors_header import read_entries_and_metadata, read_metadata, safetensors_bytes
from headscope.errors import CheckpointError, HeadscopeError, InputError, TraceError, UnsupportedError
from headscope.files import BLANK, fault, sealed, write_atomically
from headscope.results.arrays import Named, full, rounded
from headscope.results.tokens import TokenAxis
from headscope.traces.layer_records import Cut, LayerRecord, ModelWeights, beyond_half, kept_outputs
from headscope.traces.record import Trace

if TYPE_CHECKING:
    from jaxtyping import Shaped

VERSION = 2
"""The newest format. Traces without score terms are written in version 1, which older readers know."""
DTYPES = {"fp32": np.float32, "fp16": np.float16}


def save(trace: Trace, path: str | Path, *, dtype: str, values: bool) -> Path:
    """Write a trace to a file atomically.

    Raises:
        InputError: `dtype` is neither fp32 nor fp16, fp16 is too narrow, the folder doesn't exist, or the trace is too
            long to be read again.
    """
    path = Path(path)
    if dtype not in DTYPES:
        raise InputError(f"a trace can't be saved with dtype {dtype!r}", where="dtype", advice="use fp32 or fp16")
    tensors, header = pack(trace, DTYPES[dtype], values)
    for index, number in enumerate(trace.numbers):
        for name in ("q", "k", "v", *(f"terms.{name}" for name in RELATIVE)):
            if (part := tensors.get(f"layers.{index}.{name}")) is not None and part.dtype != DTYPES[dtype]:
                raise beyond_half(number, name.removeprefix("terms."))
    if (size := len(header["headscope"])) > MOST_BYTES:
        raise InputError(
            f"a trace of {len(trace)} tokens can't be saved: they take {size:,} bytes, the limit is {MOST_BYTES:,}",
            where=str(path),
            advice="trace a shorter text",
        )
    write_atomically(path, sealed(safetensors_bytes(tensors, {**header, "seal": BLANK.decode()})))
    return path


def pack(
    trace: Trace, dtype: type[np.floating[Any]], values: bool
) -> tuple[dict[str, Shaped[np.ndarray, "..."]], dict[str, str]]:
    """The tensors and the metadata of a trace's file. What fp16 is too narrow for is in fp32."""
    tensors: dict[str, np.ndarray] = {}
    for index, record in enumerate(trace.layers):
        stem = f"layers.{index}"
        vectors = {"q": record.q, "k": record.k, "v": record.v if values else None}
        tensors |= {f"{stem}.{name}": rounded(part, dtype) for name, part in vectors.items() if part is not None}
        tensors[f"{stem}.lse"] = record.lse
        terms = record.terms
        if terms.buckets is not None:
            tensors[f"{stem}.terms.buckets"] = terms.buckets.astype(np.int32)
        for name in TABLES:
            table = getattr(terms, name)
            if table is not None:
                tensors[f"{stem}.terms.{name}"] = rounded(table, dtype if name in RELATIVE else np.float32)
        if record.mask.keys is not None:
            tensors[f"{stem}.mask.keys"] = np.asarray(record.mask.keys, dtype=bool)
        if record.mask.bias is not None:
            tensors[f"{stem}.mask.bias"] = np.asarray(record.mask.bias, dtype=np.float32)
    for name, output in kept_outputs(trace.outputs).items():
        tensors[f"outputs.{name}"] = np.ascontiguousarray(output.array, dtype=np.float32)
    return tensors, metadata_of(trace)


def metadata_of(trace: Trace) -> dict[str, str]:
    """The metadata of a trace's file."""
    about = {
        "format": TRACE_FORMAT,
        "version": 1 if all(record.terms.nothing for record in trace.layers) else VERSION,
        "model": trace.model,
        "fingerprint": trace.fingerprint,
        "text": trace.text,
        "pair": trace.pair,
        "queries": trace.queries.columns(),
        "keys": None if trace.keys is trace.queries else trace.keys.columns(),
        "layers": [
            {
                "scale": record.scale,
                "stage": record.stage,
                "causal": record.mask.causal,
                "window": record.mask.window,
                "name": record.name,
                "number": record.number,
                "numbers": record.numbers,
                **({} if record.terms.cap is None else {"cap": record.terms.cap}),
            }
            for record in trace.layers
        ],
        "outputs": {
            name: {"dims": output.dims, "labels": output.labels} for name, output in kept_outputs(trace.outputs).items()
        },
        "ablated": sorted(trace.ablated),
        **({"swapped": [[*head, way] for head, way in trace.swapped.items()]} if trace.swapped else {}),
        "stack": trace.stack,
        "unrecorded": trace.unrecorded,
        "cut": None if trace.cut == Cut.none(len(trace.queries), len(trace.keys)) else vars(trace.cut),
        **({"prompt": trace.prompt} if trace.prompt else {}),
        **({"notes": trace.notes} if trace.notes else {}),
        **({"precision": trace.precision} if trace.precision != "fp32" else {}),
    }
    return {"format": TRACE_FORMAT, "headscope": written(about)}


def load(path: str | os.PathLike[str], *, model: ModelWeights | None = None) -> Trace:
    """Read a trace that `Trace.save` wrote.

        trace.save("cat.safetensors")
        trace = hs.load("cat.safetensors", model=hs.open())

    Args:
        path: the file.
        model: the model that the trace came from (`hs.open(…)`), required for whatever needs its parameters: a head's
            output, logits, verification against the model.

    Returns:
        The trace, with Q, K and V in fp32; `trace.precision` is fp16 if they were ever rounded to it.

    Raises:
        TraceError: the file doesn't exist, is not a trace or is damaged, or the trace came from another model than
            `model`.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"expected a file, got {type(path).__name__}", where="load", advice="pass a trace's file")
    path = Path(path)
    tensors, about = _contents(path)
    if about.get("version") not in range(1, VERSION + 1):
        raise TraceError(
            f"the trace has format version {brief(about.get('version'))}; this headscope reads versions 1 to {VERSION}",
            where=str(path),
            advice="create the trace again, or use the version of headscope that wrote it",
        )
    try:
        trace = _unpack(about, tensors, model)
    except MemoryError as error:
        raise _too_large(path) from error
    fingerprint = getattr(model, "fingerprint", "")
    if fingerprint and trace.fingerprint and fingerprint != trace.fingerprint:
        raise TraceError(
            f"the trace came from {trace.model} ({trace.fingerprint[:12]}), not from this model ({fingerprint[:12]})",
            where=str(path),
            advice="open the model that the trace came from",
        )
    return trace


def is_trace(path: str | os.PathLike[str]) -> bool:
    """Return True if a file's header identifies it as a trace. Only the header is read.

    Raises:
        TraceError: the path is a pipe, a device or a socket, which is neither a trace nor the name of a model.
    """
    path = Path(path)
    try:
        if not path.exists() or path.is_dir():
            return False
    except (OSError, ValueError):  # too long for a file name, or contains a NUL
        return False
    source = _opened(path)
    try:
        return read_metadata(source).get("format") == TRACE_FORMAT
    except CheckpointError:
        return False


def _opened(path: Path) -> LocalFile:
    """Open a trace's file.

    Raises:
        TraceError: the file doesn't exist, is not a regular file, or can't be read.
    """
    try:
        return LocalFile(path)
    except CheckpointError as error:
        raise TraceError(error.found, where=error.where, advice="pass a file that Trace.save wrote") from error


def _contents(path: Path) -> tuple[dict[str, Shaped[np.ndarray, "..."]], dict[str, Any]]:
    """The tensors of a trace's file, and the metadata that describes them.

    Raises:
        TraceError: the file can't be read, or is not a trace.
    """
    source = _opened(path)
    try:
        entries, metadata = read_entries_and_metadata(source)
        about = parse_object(metadata.get("headscope", ""), unique=False)
        if about.get("format") != TRACE_FORMAT:
            raise JsonError(f"its format is {brief(about.get('format'))}")
        held = HeldFile(source)
        damage = fault(held.data)
        arrays = {name: read_tensor(held, entry, None, None) for name, entry in entries.items()}
        tensors = {name: np.require(array, requirements=("ALIGNED", "WRITEABLE")) for name, array in arrays.items()}
    except (CheckpointError, UnsupportedError, JsonError) as error:
        raise TraceError(
            f"the file is not a headscope trace: {error.found if isinstance(error, HeadscopeError) else error}",
            where=str(path),
            advice="pass a file that Trace.save or `headscope attend --save` wrote",
        ) from error
    except MemoryError as error:
        raise _too_large(path) from error
    if damage is not None:
        raise TraceError(f"the trace is damaged: {damage}", where=str(path), advice="create the trace again")
    return tensors, _frozen(about)


def _too_large(path: Path) -> TraceError:
    return TraceError(
        f"the trace of {path.stat().st_size:,} bytes doesn't fit in memory",
        where=str(path),
        advice="create the trace again with fewer layers or a shorter text",
    )


def _unpack(about: Mapping[str, Any], tensors: Mapping[str, np.ndarray], source: ModelWeights | None) -> Trace:
    def tensor(name: str) -> Any:
        kept = tensors.get(name)
        return None if kept is None else full(kept)

    layers = []
    for index, layer in enumerate(about["layers"]):
        stem = f"layers.{index}"
        keys, bias = tensor(f"{stem}.mask.keys"), tensor(f"{stem}.mask.bias")
        tables = {name: tensor(f"{stem}.terms.{name}") for name in ("buckets", *TABLES)}
        layers.append(
            LayerRecord(
                **{name: tensor(f"{stem}.{name}") for name in ("q", "k", "v", "lse")},
                **{name: layer[name] for name in ("scale", "stage", "name", "number", "numbers")},
                terms=Terms(**tables, cap=layer.get("cap")),
                mask=Mask(causal=layer["causal"], window=layer["window"], keys=keys, bias=bias),
            )
        )
    half = tensors["layers.0.q"].dtype == np.float16
    queries = TokenAxis(**about["queries"], prompt=about.get("prompt", 0))
    key_axis = queries if about["keys"] is None else TokenAxis(**about["keys"])
    return Trace(
        **{name: about[name] for name in ("model", "fingerprint", "text", "pair", "stack", "unrecorded")},
        queries=queries,
        keys=key_axis,
        layers=layers,
        outputs={
            name: Named(name, kept["dims"], tensor(f"outputs.{name}"), kept["labels"])
            for name, kept in about["outputs"].items()
        },
        ablated=frozenset(about["ablated"]),
        swapped={(layer, head): way for layer, head, way in about.get("swapped", ())},
        source=source,
        cut=Cut.none(len(queries), len(key_axis)) if about["cut"] is None else Cut(**about["cut"]),
        notes=about.get("notes", ()),
        precision="fp16" if half or about.get("precision") == "fp16" else "fp32",
    )


def _frozen(value: Any) -> Any:
    """JSON with tuples for its lists."""
    if isinstance(value, dict):
        return {name: _frozen(inner) for name, inner in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
