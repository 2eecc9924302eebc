"""A trace too large to be sent whole: its header, and the parts that a page requests when somebody looks at them.

The page has the tokens and the shapes; a part is computed from the trace, in blocks of queries, when it is requested:
a head's q and k, a picture of it, a layer's statistics. Parts are little-endian 32-bit floats, without a header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from headscope.attention.scores import softmax_rows
from headscope.checkpoint.json_text import written
from headscope.checkpoint.safetensors_header import safetensors_bytes
from headscope.errors import InputError
from headscope.explain.residual import weights_of
from headscope.heads import Roles, roles_of
from headscope.heads.grid import measure_layer, measured_share, output_weights, written_by
from headscope.heads.reference import value_norms
from headscope.page.trace import about, beside, page_axis, with_masks
from headscope.results.arrays import full
from headscope.traces import Trace
from headscope.traces.file import metadata_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.traces import LayerRecord

CELLS = 1 << 20
"""Cells of a head that are in memory at a time."""
MOST_MASKS = 1e11
"""Multiplications and additions of the passes that mask each word: about five seconds."""


def is_large(trace: Trace) -> bool:
    """Return True if a served page gets this trace in parts: if its statistics come from a share of its queries.

    A trace with score terms is sent whole, for q and k alone don't give its scores.
    """
    terms = any(not record.terms.nothing for record in trace.layers)
    return measured_share(len(trace.queries), len(trace.keys)) > 1 and not terms


def header_bytes(trace: Trace) -> bytes:
    """A trace file for the page without q, k, v and lse, whose shapes it names. Nothing is computed for it."""
    trace = trace.replaced(queries=page_axis(trace), outputs={}, source=trace.source)  # a page doesn't read outputs
    shapes: dict[str, tuple[int, ...]] = {}
    tensors = {}
    for at, record in enumerate(trace.layers):
        stem = f"layers.{at}"
        shapes |= {f"{stem}.q": record.q.shape, f"{stem}.k": record.k.shape}
        if record.v is not None:
            shapes[f"{stem}.v"] = record.v.shape
        if record.mask.bias is not None:
            shapes[f"{stem}.mask.bias"] = np.shape(record.mask.bias)
        if record.mask.keys is not None:
            tensors[f"{stem}.mask.keys"] = np.asarray(record.mask.keys, dtype=bool)
    norms = output_weights(trace, 0, trace.source) is not None
    view = {**about(trace), "precision": "fp32", "findings": None, "opening": None, "away": shapes, "norms": norms}
    return safetensors_bytes(tensors, {**metadata_of(trace), "headscope.view": written(view)})


def part(trace: Trace, request: Mapping[str, Any]) -> bytes:
    """The bytes of a part of the trace.

    Args:
        trace: the trace.
        request: `want`, one of the names in PARTS, and what that part takes.

    Raises:
        InputError: no such part, layer, head or token.
    """
    want = PARTS.get(str(request.get("want")))
    if want is None:
        raise InputError(
            f"there is no part {request.get('want')!r}", where="want", advice=f"request {', '.join(PARTS)}"
        )
    return b"".join(np.ascontiguousarray(array, dtype="<f4").tobytes() for array in want(trace, request))


ROLES: WeakKeyDictionary[Trace, Roles] = WeakKeyDictionary()
"""The roles of tokens that were already read."""
LOCK = Lock()

Part = list[Any]
"""Arrays, which are sent one after the other."""


def _head(trace: Trace, request: Mapping[str, Any]) -> Part:
    """q (queries, d_head), k (keys, d_head), and the bias (queries, keys) where there is one."""
    one = _one(trace, *_place(trace, request))
    return [one.q[0], one.k[0], *([] if one.mask.bias is None else [one.mask.bias[0]])]


def _values(trace: Trace, request: Mapping[str, Any]) -> Part:
    """v, (keys, d_value)."""
    at, head = _place(trace, request)
    one = _one(trace, at, head)
    if one.v is None:
        raise InputError("the trace has no values", where=f"layer {at}", advice="trace the text with values=True")
    return [one.v[0]]


def _norms(trace: Trace, request: Mapping[str, Any]) -> Part:
    """|v_j W_O|, (keys,)."""
    return [_norms_of(trace, *_place(trace, request))]


def _writes(trace: Trace, request: Mapping[str, Any]) -> Part:
    """Of one query: |c_i W_O| of every head (heads,), and its share in what the layer writes (heads,)."""
    at = _layer(trace, request)
    query = _token(request["query"], len(trace.queries), "query")
    record = _full(trace.layers[at])
    out = _out(trace, at)
    assert record.v is not None
    (row,) = softmax_rows(record.q, record.k, scale=record.scale, mask=record.mask, rows=np.array([query]))
    groups = len(record.q) // len(record.v)
    context = row.weights @ np.repeat(record.v, groups, axis=0)
    sizes, shares = written_by(trace, at, context, out)
    return [sizes, shares]


def _measures(trace: Trace, request: Mapping[str, Any]) -> Part:
    """Of some heads of a layer: 1 where the weights are not numbers, statistics (heads,), thumbnails from 0 to 255."""
    at = _layer(trace, request)
    record = trace.layers[at]
    with LOCK:
        if trace not in ROLES:
            ROLES[trace] = roles_of(trace)
    some = record.of_heads(range(*request["heads"]))
    some = replace(some, v=None, lse=vars(some).get("lse"))  # type: ignore[arg-type]  # computed when it is read
    measures = measure_layer(some, ROLES[trace])
    return [measures.broken, *measures.statistics.values(), measures.thumbs]


def _masses(trace: Trace, request: Mapping[str, Any]) -> Part:
    """For every head of a layer, the summed weight on some keys, averaged over some queries (heads,)."""
    at = _layer(trace, request)
    record = trace.layers[at]
    queries, keys = np.array(request["queries"]), np.array(request["keys"])
    kept = None if request.get("kept") is None else np.array(request["kept"])
    masses = []
    for head in range(len(record.q)):
        norms = _norms_of(trace, at, head) if request.get("normed") else np.ones(len(trace.keys), np.float32)
        total = 0.0
        for weights in _some(trace, at, head, queries, keys, kept):
            share = 1 if kept is None else weights[:, len(keys) :].sum(-1, dtype=np.float64)
            mass = (weights[:, : len(keys)] * norms[keys]).sum(-1, dtype=np.float64)
            total += float((mass / np.where(share == 0, 1, share)).sum())
        masses.append(total / len(queries))
    return [np.array(masses)]


@dataclass(frozen=True, eq=False)
class Joined:
    """Tokens that are joined in each row or column of a picture, as one list with starts."""

    starts: Int[np.ndarray, " n"]
    members: Int[np.ndarray, " m"]

    def __len__(self) -> int:
        return len(self.starts) - 1


def _tile(trace: Trace, request: Mapping[str, Any]) -> Part:
    """A picture of a head, (height, width): cells of the rows and columns in `box`, pooled by maximum.

    `rows` and `columns` say which tokens a row and a column of the whole picture join; by default, each is a token.
    A row is the mean over its tokens, a column the sum. `renormalise` distributes the mass of hidden keys over the
    others, `normed` multiplies weights by |v_j W_O|, and of `every` n rows one is computed.
    """
    at, head = _place(trace, request)
    rows, columns = _joined(request.get("rows"), len(trace.queries)), _joined(request.get("columns"), len(trace.keys))
    top, bottom, left, right = request["box"]
    chosen = np.arange(top, bottom, max(1, request.get("every", 1)))
    height, width = (max(1, size) for size in (request["height"], request["width"]))
    height, width = min(height, len(chosen)), min(width, right - left)
    norms = _norms_of(trace, at, head) if request.get("normed") else None
    target = np.arange(len(chosen)) * height // len(chosen)
    lanes = np.searchsorted(np.arange(right - left) * width // (right - left), np.arange(width))
    inside = columns.members[columns.starts[left] : columns.starts[right]]
    joins = None if len(inside) == right - left else columns.starts[left:right] - columns.starts[left]
    picture = np.zeros((height, width), np.float32)
    of_token = np.repeat(np.arange(len(chosen)), np.diff(rows.starts)[chosen])
    tokens = np.concatenate([rows.members[rows.starts[row] : rows.starts[row + 1]] for row in chosen])
    sizes = np.bincount(of_token, minlength=len(chosen)).astype(np.float32)
    for places, weights in _weights(trace, at, head, tokens, of_token):
        part = weights if norms is None else weights * norms
        if len(inside) < len(trace.keys):
            part = part[:, inside]
        if joins is not None:
            part = np.add.reduceat(part, joins, axis=-1)
        if request.get("renormalise"):
            kept = weights[:, columns.members].sum(-1, keepdims=True)
            part = part / np.where(kept == 0, 1, kept)
        joined = of_token[places]
        if len(tokens) > len(chosen):
            starts = np.flatnonzero(np.diff(joined, prepend=-1))
            joined = joined[starts]
            part = np.add.reduceat(part, starts, axis=0) / sizes[joined, None]
        if width < right - left:
            part = np.maximum.reduceat(part, lanes, axis=-1)
        starts = np.flatnonzero(np.diff(target[joined], prepend=-1))
        lines = target[joined[starts]]
        picture[lines] = np.maximum(picture[lines], np.maximum.reduceat(part, starts, axis=0))
    return [picture]


def _beside(trace: Trace, request: Mapping[str, Any]) -> Part:
    """Of a query that is followed: how much each masked token turns it, and its rollout, (2, layers, tokens)."""
    if not with_masks(trace, None, MOST_MASKS):
        raise InputError("each word masked takes too long here", where="beside", advice="look at the shares alone")
    return [beside(trace, _token(request["query"], len(trace.queries), "query"))]


PARTS: dict[str, Callable[[Trace, Mapping[str, Any]], Part]] = {
    "head": _head,
    "values": _values,
    "norms": _norms,
    "writes": _writes,
    "measures": _measures,
    "masses": _masses,
    "tile": _tile,
    "beside": _beside,
}
"""Requests that a page can make, by name."""


def _weights(
    trace: Trace, at: int, head: int, tokens: Int[np.ndarray, " n"], joined: Int[np.ndarray, " n"] | None = None
) -> Iterator[tuple[Int[np.ndarray, " n"], Float[np.ndarray, "n keys"]]]:
    """Yield the weights of some queries over all keys, a few at a time, with their places in the list.

    Args:
        trace: the trace.
        at: place of the layer.
        head: place of the head.
        tokens: the queries.
        joined: (n,), ascending; queries with the same number are in the same part.
    """
    one = _one(trace, at, head)
    step = max(1, CELLS // len(trace.keys))
    start = 0
    while start < len(tokens):
        end = min(len(tokens), start + step)
        if joined is not None:  # a row of the picture is not divided
            end = int(np.searchsorted(joined, joined[end - 1], "right"))
        places = np.arange(start, end)
        cells = (end - start) * len(trace.keys)
        for rows in softmax_rows(one.q, one.k, scale=one.scale, mask=one.mask, rows=tokens[places], cells=cells):
            yield places, rows.weights[0]
        start = end


def _some(
    trace: Trace,
    at: int,
    head: int,
    queries: Int[np.ndarray, " n"],
    keys: Int[np.ndarray, " m"],
    kept: Int[np.ndarray, " k"] | None,
) -> Iterator[Float[np.ndarray, "n m"]]:
    """Yield the weights of some queries on some keys, and then on those that rows are renormalised over."""
    one = _one(trace, at, head)
    columns = keys if kept is None else np.concatenate([keys, kept])
    if not one.has_lse:
        for _, weights in _weights(trace, at, head, queries):
            yield weights[:, columns]
        return
    step = max(1, CELLS // len(columns))
    for start in range(0, len(queries), step):
        rows = queries[start : start + step]
        yield weights_of(one, rows, columns)[0]


def _out(trace: Trace, at: int) -> Float[np.ndarray, "heads d_value d_model"]:
    out = output_weights(trace, at, trace.source)
    if out is None:
        raise InputError("the trace has no values, or its model no W_O", where=f"layer {at}", advice="look at weights")
    return out


def _norms_of(trace: Trace, at: int, head: int) -> Float[np.ndarray, " keys"]:
    out, v = _out(trace, at), _one(trace, at, head).v
    assert v is not None
    return np.asarray(value_norms(v, out[head : head + 1])[0])


def _one(trace: Trace, at: int, head: int) -> LayerRecord:
    return _full(trace.layers[at].of_heads([head]))


def _full(record: LayerRecord) -> LayerRecord:
    """The record in fp32, for scores and norms outgrow fp16; `lse` if it is known."""
    v = None if record.v is None else full(record.v)
    lse = record.lse if record.has_lse else None
    return replace(record, q=full(record.q), k=full(record.k), v=v, lse=lse)  # type: ignore[arg-type]


def _layer(trace: Trace, request: Mapping[str, Any]) -> int:
    return _token(request["layer"], len(trace.layers), "layer")


def _place(trace: Trace, request: Mapping[str, Any]) -> tuple[int, int]:
    """The places of a layer and a head, counted from 0 among those that the trace has."""
    at = _layer(trace, request)
    return at, _token(request["head"], len(trace.layers[at].q), "head")


def _token(value: int, size: int, where: str) -> int:
    if not 0 <= value < size:
        raise InputError(f"there is no {where} {value}", where=where, advice=f"they run from 0 to {size - 1}")
    return value


def _joined(value: dict[str, Any] | None, size: int) -> Joined:
    """The tokens of each row or column; None for one each."""
    if value is None:
        return Joined(np.arange(size + 1), np.arange(size))
    return Joined(*(np.array(value[name], dtype=np.int64) for name in ("starts", "members")))
