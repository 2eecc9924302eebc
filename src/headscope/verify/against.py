"""A trace's weights against anybody's: what a model returned as `attentions`, or arrays from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError
from headscope.verify.report import Check, Limit, Worst, row_blocks

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace import LayerRecord, Trace

WHERE = "verify(against=…)"
ADVICE = "pass what the model returned as `attentions`, or an array of (layers, heads, queries, keys)"


def compare(trace: Trace, against: Any, limit: Limit) -> Check:
    """The worst cell of a trace against weights from elsewhere.

    Args:
        against: one array for each layer, or one with an axis for the layers in front, of NumPy, of torch in any
            precision, or of whoever has `__array__`. Each is (heads, queries, keys), or (batch, heads, queries, keys),
            of which the trace's row is taken. Queries and keys are the trace's own, or those of the whole batch with
            its padding, of which the trace's positions are taken. Layers and heads are those that the trace kept, or
            all of the model's, of which the trace's numbers are taken.
        limit: what the trace's own numbers may be off by.

    Raises:
        InputError: it is something else, or of another size.
    """
    layers = _layers(trace, against)
    eps = max(_eps(one) for one in layers)
    tolerance, reason = limit
    if eps > 1e-5:
        tolerance, reason = max(tolerance, 8 * eps), f"their weights have a spacing of {eps:.1e} at 1"
    worst = Worst("weights (given)", "against the arrays that were passed", tolerance, reason)
    for number, record, theirs in zip(trace.numbers, trace.layers, layers, strict=True):
        numbers = trace.head_numbers(number)
        place = f"layer {number}"
        batch = _row(trace, theirs, place)
        heads = _chosen(len(batch), numbers, "head", place)
        queries = _positions(batch.shape[1], trace.positions, trace.cut.sizes[0], "queries", place)
        keys = _positions(batch.shape[2], trace.key_positions, trace.cut.sizes[1], "keys", place)
        for head, their_head in zip(numbers, heads, strict=True):
            _see(worst, trace, record, (number, head), batch[their_head], queries, keys)
    return worst.check()


def _see(
    worst: Worst, trace: Trace, record: LayerRecord, place: tuple[int, int], theirs: Any, queries: Any, keys: Any
) -> None:
    """Compare one head, some rows at a time; queries that see no key are left out, as everywhere."""
    one = trace[place]
    seen = np.isfinite(one.lse) | np.isnan(one.lse)
    for rows in row_blocks(len(seen)):
        given = _array(theirs[slice(int(queries[rows][0]), int(queries[rows][-1]) + 1)])
        cells = given[queries[rows] - queries[rows][0]][:, keys]
        ours = one.weights[rows]
        cells = np.where(seen[rows, None], cells, ours)
        worst.see(ours, cells, ("query", "key"), layer=place[0], head=place[1], query=rows.start)


def _layers(trace: Trace, against: Any) -> list[Any]:
    """The arrays of the layers that the trace kept."""
    if isinstance(against, (str, bytes)) or not (isinstance(against, Sequence) or _ndim(against) > 0):
        raise InputError(f"{type(against).__name__} holds no weights", where=WHERE, advice=ADVICE)
    if _ndim(against) not in (-1, 4, 5):
        raise InputError(f"an array of {_ndim(against)} axes", where=WHERE, advice=ADVICE)
    if not len(against):
        raise InputError(
            "there are no weights: the tuple is empty",
            where=WHERE,
            advice='transformers gives them in eager attention: model.set_attn_implementation("eager")',
        )
    return [against[at] for at in _chosen(len(against), trace.numbers, "layer", "what was passed")]


def _chosen(count: int, numbers: tuple[int, ...], noun: str, place: str) -> list[int]:
    """Where the layers or heads of the trace stand among theirs: in the same order, or by their numbers."""
    if count == len(numbers):
        return list(range(count))
    if count > max(numbers):
        return list(numbers)
    raise InputError(
        f"{place} has {count} {noun}s, the trace has the {noun}s {', '.join(map(str, numbers))}",
        where=WHERE,
        advice=f"pass the {noun}s that the trace has, or all of the model's",
    )


def _row(trace: Trace, theirs: Any, place: str) -> Any:
    """(heads, queries, keys) of the trace's row."""
    if isinstance(theirs, (list, tuple)):
        if theirs and all(_ndim(one) in (3, 4) for one in theirs):
            raise InputError(
                f"{place} is a tuple of {len(theirs)} arrays, as generate() gives them: one step after the other",
                where=WHERE,
                advice="pass those of one forward pass: captured.traces[step].verify(against=attentions[step])",
            )
        theirs = np.asarray(theirs)
    if _ndim(theirs) == 3:
        return theirs
    if _ndim(theirs) != 4:
        found = "nothing" if theirs is None else f"{type(theirs).__name__} of shape {np.shape(theirs)}"
        raise InputError(f"{place}: {found}", where=WHERE, advice=ADVICE)
    if trace.row < len(theirs):
        return theirs[trace.row]
    if len(theirs) == 1:
        return theirs[0]
    raise InputError(
        f"{place} has {len(theirs)} rows, the trace is of row {trace.row} of its batch",
        where=WHERE,
        advice="pass the attentions of the same batch, or of this row alone",
    )


def _positions(size: int, kept: tuple[int, ...], batch: int, noun: str, place: str) -> np.ndarray:
    """Where the trace's queries or keys stand in an axis of theirs."""
    if size == batch:
        return np.array(kept)
    if size == len(kept):
        return np.arange(size)
    both = f"{len(kept)}" if batch == len(kept) else f"{len(kept)} (of {batch} in the batch, padding included)"
    raise InputError(
        f"{place} has {size} {noun}, the trace has {both}", where=WHERE, advice="pass the weights of the same text"
    )


def _ndim(one: Any) -> int:
    return int(getattr(one, "ndim", -1))


def _eps(one: Any) -> float:
    """The spacing of numbers around 1 in an array's precision."""
    if isinstance(one, (list, tuple)):
        return 0.0
    name = str(getattr(one, "dtype", "")).removeprefix("torch.")
    return {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(name, 0.0)


def _array(part: Any) -> Float[np.ndarray, "..."]:
    """A part of somebody's array as NumPy's: torch has precisions that NumPy lacks, devices and gradients."""
    if hasattr(part, "detach"):
        part = part.detach().float().cpu()
    return np.asarray(part, dtype=np.float64)
