"""The trace file for the page: half precision, with what the page shows before it computes anything: its findings.

And what follows a word through the layers: vectors that make shares of V, and two measures beside.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.scores import softmax_rows
from headscope.attention.terms import RELATIVE
from headscope.checkpoint import model_name
from headscope.checkpoint.json_text import written
from headscope.checkpoint.safetensors_header import safetensors_bytes
from headscope.errors import InputError, TraceError, UnsupportedError
from headscope.explain.content import content_of
from headscope.explain.findings import MOST, findings
from headscope.explain.mixing import rollouts_to
from headscope.explain.residual import check_whole
from headscope.explain.taken_in import followed, kind_of, readers_of
from headscope.heads import Roles, roles_of
from headscope.heads.grid import THUMB, measure_layer, measured_share, write_norms
from headscope.heads.head_distances import turned
from headscope.heads.kinds import FINDINGS
from headscope.model import Model
from headscope.page.runs import CHEAP
from headscope.results.arrays import rounded
from headscope.results.explained import LEAST_SHARE, Cell, Finding
from headscope.results.tokens import own_span, whole_words
from headscope.screens.pieces import labels
from headscope.traces import Trace
from headscope.traces.file import DTYPES, pack
from headscope.traces.views import position_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.anatomy import Anatomy
    from headscope.explain.taken_in import Readers
    from headscope.results.tokens import TokenAxis


VIEW_VERSION = 1
VALUES_UP_TO = 4 << 20
"""Most bytes of V that are included by default; without V a cell's last step can't be shown in full."""


def page_bytes(trace: Trace, **options: Any) -> bytes:
    """The trace file for the page; options and errors are those of `page_file`."""
    return page_file(trace, **options)[0]


def page_file(
    trace: Trace,
    *,
    dtype: str = "fp16",
    values: bool | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    masks: bool = False,
) -> tuple[bytes, bool]:
    """The trace file with the page's own tensors (docs/trace-format.md, "What the page adds").

    Args:
        trace: to write.
        dtype: fp16 or fp32, of Q, K and V; an array that fp16 is too narrow for is in fp32.
        values: include V, and what makes shares of it; None includes them for short texts only.
        layers, heads: only these, counted from 0.
        masks: other measures stand beside the word that the page opens on: see `beside`.

    Returns:
        Its bytes, and True if the trace has V and it was left out by default.

    Raises:
        InputError: no such dtype, layer or head.
    """
    if dtype not in DTYPES:
        raise InputError(f"unsupported dtype {dtype!r} for a page", where="dtype", advice="use fp32 or fp16")
    narrow = _narrow(trace, layers, heads, DTYPES[dtype])
    narrow = narrow.replaced(queries=page_axis(trace))
    width = np.dtype(DTYPES[dtype]).itemsize
    size = sum(record.v.size * width for record in narrow.layers if record.v is not None)
    left_out = values is None and size > VALUES_UP_TO
    if values is None:
        values = not left_out
    roles = roles_of(trace)
    measures = [measure_layer(record, roles) for record in narrow.layers]
    tables = [measured.statistics for measured in measures]
    narrow = narrow.replaced(
        layers=[
            record if measured.lse is None else replace(record, lse=measured.lse)
            for record, measured in zip(narrow.layers, measures, strict=True)
        ]
    )
    tensors, header = pack(narrow, DTYPES[dtype], values)
    names = list(tables[0]) if tables else []
    tensors["view.thumbs"] = np.stack([measured.thumbs for measured in measures])
    tensors["view.statistics"] = np.array([[table[name] for table in tables] for name in names], dtype=np.float32)
    writes = write_norms(narrow, trace.source)
    if writes is not None:
        tensors["view.value_norms"], tensors["view.writes"], tensors["view.shares"] = writes
    if values:
        tensors |= readers(trace, narrow, DTYPES[dtype])
    share = measured_share(len(trace.queries), len(trace.keys))
    listed, opening = page_findings(trace, narrow, tables) if share == 1 else (None, None)
    if masks and opening is not None and "view.readers" in tensors:
        tensors["view.beside"] = beside(trace, opening["query"])[:, list(narrow.numbers)]
    own = {"statistics": names, "precision": dtype, "findings": listed, "opening": opening}
    header["headscope.view"] = written(about(trace) | own)
    return safetensors_bytes(tensors, header), left_out


def page_axis(trace: Trace) -> TokenAxis:
    """The queries with the words and the spans that everything else counts by: those of headscope.results.tokens."""
    axis = trace.queries
    numbers, _ = whole_words(axis, trace.text, trace.pair)
    words = tuple(None if word is None else number for number, word in zip(numbers, axis.words, strict=True))
    return replace(axis, words=words, spans=tuple(own_span(axis, at) for at in range(len(axis))))


def about(trace: Trace) -> dict[str, Any]:
    """The fields of `headscope.view` that take no computation."""
    roles = roles_of(trace)
    return {
        "version": VIEW_VERSION,
        "labels": labels(trace.queries, trace.text, trace.pair),
        "key_labels": None if trace.keys is trace.queries else labels(trace.keys),
        "name": model_name(trace.model),
        "roles": {"masses": {"punctuation": roles.punctuation.tolist()}, "texts": roles.sentences.tolist()},
        "measured": measured_share(len(trace.queries), len(trace.keys)),
        "anatomy": anatomy_of(trace.source) if isinstance(trace.source, Model) else None,
    }


def estimated_bytes(
    trace: Trace,
    *,
    dtype: str = "fp16",
    values: bool | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> int:
    """Approximate size of the result of `page_bytes`."""
    width = np.dtype(DTYPES.get(dtype, np.float16)).itemsize
    rows = (len(trace.queries) + len(trace.keys)) * (2 if values else 1)
    count = len(trace.layers if layers is None else layers) * (trace.heads if heads is None else len(heads))
    return count * (rows * trace.d_head * width + 4 * len(trace.queries) + THUMB * THUMB)


def _chosen(requested: Sequence[int] | None, numbers: Sequence[int], noun: str) -> list[int]:
    """The places of the layers or heads with these numbers."""
    if requested is None:
        return list(range(len(numbers)))
    where = "the trace" if noun == "layer" else "a layer"
    places = {position_of(number, tuple(numbers), noun, where) for number in requested}
    if not places:
        advice = f"the trace has the {noun}s {', '.join(map(str, numbers))}"
        raise InputError(f"no {noun} was chosen", where=f"{noun}s", advice=advice)
    return sorted(places)


def _narrow(
    trace: Trace, layers: Sequence[int] | None, heads: Sequence[int] | None, dtype: type[np.floating[Any]]
) -> Trace:
    """Only these layers and heads, rounded as in the file, so that every number can be recomputed from the file."""

    def kept(part: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        return rounded(part, dtype).astype(np.float32)

    records = []
    for at in _chosen(layers, trace.numbers, "layer"):
        record, number = trace.layers[at], trace.numbers[at]
        all_heads = trace.head_numbers(number)
        chosen = _chosen(heads, all_heads, "head")
        # If every query is measured, the measurement gives the log-sum-exps.
        measured = measured_share(len(trace.queries), len(trace.keys)) == 1
        some = record if len(chosen) == len(record.q) else record.of_heads(chosen)
        records.append(
            replace(
                some,
                q=kept(some.q),
                k=kept(some.k),
                v=None if some.v is None else kept(some.v),
                lse=None if measured else some.lse,  # type: ignore[arg-type]  # None: computed when it is read
                terms=some.terms.mapped(kept, RELATIVE),
                number=number,
                numbers=tuple(all_heads[head] for head in chosen),
            )
        )
    if len({len(record.q) for record in records}) > 1:
        found = f"the layers have {', '.join(str(len(record.q)) for record in records)} heads"
        raise InputError(found, where="page", advice="choose heads that every layer has: trace.to_html(…, heads=[…])")
    return trace.replaced(layers=records, outputs={}, source=None, precision="fp32")


def anatomy_of(model: Model) -> dict[str, Any]:
    """A model's components, its sizes, and the form of its layers, for the page's drawing of it."""
    anatomy, sizes = model.anatomy, model.anatomy.known()
    forms = [_form(anatomy, layer) for layer in range(sizes.layers)]
    kinds = [form for at, form in enumerate(forms) if form not in forms[:at]]
    names = ("layers", "heads", "kv_heads", "d_model", "d_head", "d_heads", "d_keys", "d_ffn")
    return {
        "class": anatomy.base_class,
        "total": model.parameters.total,
        "extra": model.extra.total,
        "sizes": {name: getattr(sizes, name) for name in names},
        "components": [asdict(part) for part in model.components],
        "norm": "RMSNorm" if anatomy.family and anatomy.family.rms_norm else "LayerNorm",
        "first": anatomy.is_pre_norm,
        "divisor": anatomy.products * sizes.d_head,
        "distances": anatomy.adds_distances,
        "kinds": kinds,
        "layers": [kinds.index(form) for form in forms],
    }


def _form(anatomy: Anatomy, layer: int) -> dict[str, Any]:
    """A layer's parameters, whether a norm comes before its attention, and whether queries and keys are rotated."""
    return {
        "before": anatomy.has("layer.attention_input_norm.weight", layer),
        "rotates": anatomy.rotation_bases[layer] is not None,
        "rows": [
            {"name": re.sub(r"^.*?layers?\.\d+\.", "", row.name), "shape": row.shape, "count": row.count}
            for row in anatomy.rows_of(layer)
        ],
    }


LEAST_LINK = 0.1
"""The least weight between two words that a page opens on where no finding is a link."""
NOT_LINKING = ("previous", "next", "same", "cls", "sep", "punctuation")
"""A head above the threshold of one of these is positional or a sink: a page doesn't open on it."""

Table = Mapping[str, "Float[np.ndarray, ' heads']"]


def page_findings(
    trace: Trace, narrow: Trace, tables: Sequence[Table]
) -> tuple[list[dict[str, Any]], dict[str, int] | None]:
    """The records of the page's findings, the most telling first, and the cell to open on.

    Args:
        trace: the whole trace, with its source.
        narrow: the layers and heads of it that the page holds.
        tables: by layer of `narrow`, the mean statistics of its heads.

    Returns:
        Records as `Finding.as_dict()`; and layer, head, query and key by number, None if there is nothing to open on.
    """
    held = {(layer, head) for layer in narrow.numbers for head in narrow.head_numbers(layer)}
    some = [_held(finding, held) for finding in findings(trace, layers=narrow.numbers, most=None)]
    listed = [finding for finding in some if finding is not None][:MOST]
    pinned = [finding.cells[0] for finding in listed if finding.cells[0].query is not None]
    linked = any(finding.kind == "link" for finding in listed)
    opening = pinned[0] if linked else _strongest_link(narrow, tables, roles_of(trace)) or next(iter(pinned), None)
    records = [finding.as_dict() for finding in listed]
    if opening is None or opening.query is None or opening.key is None:
        return records, None
    return records, {"layer": opening.layer, "head": opening.head, "query": opening.query, "key": opening.key}


def _held(finding: Finding, held: Container[tuple[int, int]]) -> Finding | None:
    """A finding with the cells that the page holds; None if it holds none, or one of two heads that look alike."""
    cells = tuple(cell for cell in finding.cells if (cell.layer, cell.head) in held)
    if not cells or (finding.kind == "alike" and len(cells) < len(finding.cells)):
        return None
    return replace(finding, cells=cells)


def _strongest_link(narrow: Trace, tables: Sequence[Table], roles: Roles) -> Cell | None:
    """The strongest weight between two words, in the sharpest head that is neither positional nor a sink."""
    if narrow.keys is not narrow.queries:
        return None
    best: tuple[float, int, int] | None = None
    for at, table in enumerate(tables):
        for head, sharp in enumerate(table["strongest"]):
            rests = any(table[name][head] > FINDINGS[name] for name in NOT_LINKING if name in table)
            if not rests and np.isfinite(sharp) and (best is None or sharp > best[0]):
                best = float(sharp), at, head
    if best is None:
        return None
    _, at, head = best
    one, content = narrow.layers[at].of_heads([head]), content_of(narrow, narrow.queries, roles)
    strongest, cell = LEAST_LINK, None
    for part in softmax_rows(one.q, one.k, scale=one.scale, mask=one.mask, terms=one.terms):
        queries = np.asarray(part.rows)
        apart = content.place[queries][:, None] != content.place[None, :]
        weights = np.where(content.content[queries][:, None] & content.content[None, :] & apart, part.weights[0], 0)
        row, key = np.unravel_index(int(weights.argmax()), weights.shape)
        if weights[row, key] > strongest:
            strongest = float(weights[row, key])
            layer = narrow.numbers[at]
            cell = Cell(layer, narrow.head_numbers(layer)[head], int(queries[row]), int(key))
    return cell


def readers(trace: Trace, narrow: Trace, dtype: type[np.floating[Any]]) -> dict[str, np.ndarray]:
    """Vectors that make shares of V, as large as V, and what each token keeps (headscope.explain.taken_in).

    Nothing where `trace.follow` raises an error, or a layer's heads are not all there: shares would not add up to 1.
    """
    try:
        check_whole(trace)
        if narrow.heads < trace.heads:
            return {}
        held = [part for part in readers_of(trace, np.arange(len(trace.queries))) if part[0] in narrow.numbers]
    except (TraceError, UnsupportedError):
        return {}
    return {
        "view.readers": rounded(np.concatenate([vectors for _, vectors, _ in held]), dtype),
        "view.kept": np.array([kept for _, _, kept in held], dtype=np.float32),
        "view.followed": _followed(trace, held),
    }


def _followed(trace: Trace, held: Sequence[Readers]) -> Float[np.ndarray, "tokens eleven"]:
    """The finding of each token in these layers, as `Followed.brought` counts words; NaN where no word brings much.

    The first token of the word that brings most over all layers, its best layer's place, the head's (layers * heads)
    that brings most there; the same two of the word that brings most in another layer, NaN without one. Then of the
    first word the head that looks hardest at it, its weight and its share; and those of the head that brings most.
    """
    found = np.full((len(trace.queries), 11), np.nan)
    for token in range(len(found)):
        one = followed(trace, token, [(number, vectors[:, [token]], kept[[token]]) for number, vectors, kept in held])
        brought = one.brought()
        if not brought or max(word["share"] for word in brought) < LEAST_SHARE:
            continue
        places, row = np.array(one.places), one.layers.index(brought[0]["layer"])
        first = brought[0]["position"]
        heads = one.shares.shape[1]
        found[token, :3] = first, row, row * heads + brought[0]["head"]
        others = [word for word in brought if word["layer"] != brought[0]["layer"] and word["share"] >= LEAST_SHARE]
        if others:
            other = max(others, key=lambda word: word["share"])
            found[token, 3:5] = other["position"], one.layers.index(other["layer"])
        looks, brings = (part[:, :, places == one.places[first]].sum(-1).ravel() for part in (one.weights, one.shares))
        for at, head in ((5, looks.argmax()), (8, brings.argmax())):
            found[token, at : at + 3] = head, looks[head], brings[head]
    return found.astype(np.float32)


def beside(trace: Trace, token: int) -> Float[np.ndarray, "two layers tokens"]:
    """Two more measures of what a token takes in from each other, after each layer.

    The first is 1 - the cosine of its vector with what it is where the other token is masked, one pass for each: it
    counts whatever the other does on the way, and is no sum. NaN at the token itself and at special tokens. The second
    is the rollout of what is followed (`kind_of`) up to the layer.

    Raises:
        InputError: the trace has no model that headscope runs, or its tokenizer has no mask token.
        TraceError, UnsupportedError: as `trace.rollout`.
    """
    model = _maskable(trace)
    if model is None:
        raise InputError("masking needs the model, and a mask token", where="follow", advice="look at the shares alone")
    turns = np.full((len(trace.layers), len(trace.queries)), np.nan)
    before = _vectors(model, trace, token, None)
    for at, special in enumerate(trace.special):
        if at != token and not special:
            turns[:, at] = turned(before, _vectors(model, trace, token, at))
    return np.stack([turns, rollouts_to(trace, token, kind_of(trace))]).astype(np.float32)


def with_masks(trace: Trace, include: bool | None, most: float = CHEAP) -> bool:
    """Return True if a page has what is `beside`: if it can be had, and was asked for or costs no more than this."""
    model = _maskable(trace)
    if model is None or include is not None:
        return model is not None and bool(include)
    encoder = sum(row.count for row in model.parameters if row.layer is not None)
    return model.anatomy.dimensions is not None and 2.0 * encoder * len(trace.queries) ** 2 <= most


def _maskable(trace: Trace) -> Model | None:
    """The trace's model, if it can run its text again with a token masked."""
    model = trace.source
    return model if isinstance(model, Model) and not trace.changed and model.tokenizer.mask_id is not None else None


def _vectors(model: Model, trace: Trace, token: int, masked: int | None) -> Float[np.ndarray, "layers d_model"]:
    """A token's vectors after each layer, with another token masked."""
    ids = [model.tokenizer.mask_id if at == masked else one for at, one in enumerate(trace.ids)]
    run = model.trace(ids=ids, segments=list(trace.segments), hidden_states=True)  # type: ignore[arg-type]
    layers = range(1, len(trace.layers) + 1)
    return np.stack([run.outputs[f"hidden_states.{layer}"].array[token] for layer in layers])
