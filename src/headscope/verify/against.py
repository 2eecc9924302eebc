"""Compare a trace's weights with others: the `attentions` that a model returned, or any arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.scores import EVERYTHING
from headscope.checkpoint.json_text import few
from headscope.errors import InputError
from headscope.results.verify_report import Check
from headscope.verify.rounding import Limit, Worst, row_blocks

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.traces import Trace

WHERE = "verify(against=…)"
ADVICE = "pass the `attentions` that the model returned, or an array of (layers, heads, queries, keys)"


def compare(trace: Trace, against: Any, limit: Limit) -> Check:
    """Compare a trace with other weights.

    Args:
        trace: the trace.
        against: one array for each layer, or one array with a first axis for the layers: NumPy, torch in any precision,
            or anything with `__array__`. Each layer is (heads, queries, keys), or (batch, heads, queries, keys), of
            which the trace's row is used. Queries and keys are the trace's, or those of the whole batch with its
            padding, of which the trace's positions are used. Layers and heads are those in the trace, or all of the
            model's, of which the trace's are used. If the arrays are of other layers, as Swin returns the last one of
            each stage, the check says which layer each of them is.
        limit: tolerance of the trace's own numbers.

    Returns:
        The worst cell.

    Raises:
        InputError: `against` is not a set of weights, or its size differs from the trace's.
    """
    problem = None
    try:
        plain = _compared(trace, dict(zip(trace.numbers, _layers(trace, against), strict=True)), limit)
        if plain.agrees:
            return plain
    except InputError as error:
        if "layer" not in error.found:
            raise
        problem = error
    placed = _placed(trace, against, limit)
    if placed is not None:
        return placed
    if problem is not None:
        raise problem
    return plain


def _placed(trace: Trace, against: Any, limit: Limit) -> Check | None:
    """The comparison of arrays that are of some of the trace's layers, in order; None if that explains nothing."""
    same_count = len(against) == len(trace.numbers)
    usual = dict(enumerate(trace.numbers)) if same_count else dict(zip(trace.numbers, trace.numbers, strict=True))
    layers: dict[int, int] = {}
    fitting: set[int] = set()
    for at, array in enumerate(against):
        for number in (one for one in trace.numbers if one > max(layers.values(), default=-1)):
            heads = trace.head_numbers(number)
            with suppress(InputError):
                if len(_row(trace, array, f"layer {number}")) != len(heads):
                    continue
                agrees = all(_compared(trace, {number: array}, limit, some).agrees for some in (heads[:1], heads))
                fitting.add(at)
                if agrees:
                    layers[at] = number
                    break
    moved = any(usual.get(at) != number for at, number in layers.items())
    # In their usual places, arrays may only be left over if they are of another shape, as those of other stages are.
    if not layers or (not moved and (len(fitting) == len(against) or not fitting <= layers.keys())):
        return None
    names = [
        f"array {at} is {f'layer {layers[at]}' if at in layers else 'of no layer here'}" for at in range(len(against))
    ]
    return _compared(trace, {number: against[at] for at, number in layers.items()}, limit, note=f": {few(names, 8)}")


def _compared(
    trace: Trace, layers: Mapping[int, Any], limit: Limit, heads: tuple[int, ...] | None = None, *, note: str = ""
) -> Check:
    """Compare layers, by their numbers, with the arrays that are given for them."""
    eps = max(_eps(layer) for layer in layers.values())
    tolerance, reason = limit
    if eps > 1e-5:
        tolerance, reason = max(tolerance, 8 * eps), f"the given weights have a spacing of {eps:.1e} at 1"
    worst = Worst("weights (given)", f"against the arrays that were passed{note}", tolerance, reason)
    for number, layer in layers.items():
        numbers = trace.head_numbers(number)
        place = f"layer {number}"
        row = _row(trace, layer, place)
        indices = _indices(len(row), numbers, "head", place)
        queries = _positions(row.shape[1], trace.positions, trace.cut.sizes[0], "queries", place)
        keys = _positions(row.shape[2], trace.key_positions, trace.cut.sizes[1], "keys", place)
        for head, index in zip(numbers, indices, strict=True):
            if heads is None or head in heads:
                _compare_head(worst, trace, (number, head), row[index], queries, keys)
    return worst.check()


def causes(trace: Trace, against: Any, check: Check) -> tuple[str, ...]:
    """The cause of a difference, if one explains it: a boolean mask, which eager attention adds as 0 and 1.

    Tested on the model's first layer: the inputs of later ones differ already.

    Args: those of `compare`, and its result.
    """
    record = trace.layers[0]
    if check.agrees or trace.numbers[0] != 0:
        return ()
    bias = record.mask.bias
    if bias is not None and not (np.isneginf(bias) | (bias == 0)).all():
        return ()
    plain = trace.replaced(layers=(replace(record, mask=EVERYTHING), *trace.layers[1:]))
    row = _row(trace, _layers(trace, against)[0], "layer 0")
    queries = _positions(row.shape[1], trace.positions, trace.cut.sizes[0], "queries", "layer 0")
    keys = _positions(row.shape[2], trace.key_positions, trace.cut.sizes[1], "keys", "layer 0")
    numbers, hides = trace.head_numbers(0), False
    for head, index in zip(numbers, _indices(len(row), numbers, "head", "layer 0"), strict=True):
        for rows in row_blocks(len(queries)):
            given = np.stack([_array(row[index][int(query)])[keys] for query in queries[rows]])
            allowed = np.isfinite(trace[0, head].scores[rows])
            added = np.asarray(plain[0, head].scores[rows], dtype=np.float64) + allowed
            expected = np.exp(added - added.max(axis=1, keepdims=True))
            expected /= expected.sum(axis=1, keepdims=True)
            # Keys that the trace cut as padding had a part of the weight.
            sums = given.sum(axis=1, keepdims=True)
            with np.errstate(divide="ignore", invalid="ignore"):  # rows of 0 or infinity are of no softmax
                shares = given / sums
            if not np.allclose(shares, expected, rtol=0, atol=check.tolerance):
                return ()
            hides |= not allowed.all() or bool((sums < 1 - check.tolerance).any())
    if not hides:  # a mask that hides nothing changes nothing, however it is added
        return ()
    return (
        "the given weights are those of a boolean mask that was added to the scores, True as 1, as eager attention "
        "does: pass it as numbers, 0 where a key may be looked at and torch.finfo(dtype).min elsewhere",
    )


def _compare_head(worst: Worst, trace: Trace, place: tuple[int, int], expected: Any, queries: Any, keys: Any) -> None:
    """Compare one head, a few rows at a time, without queries that see no key."""
    head = trace[place]
    sees_keys = np.isfinite(head.lse) | np.isnan(head.lse)
    for rows in row_blocks(len(sees_keys)):
        block = _array(expected[slice(int(queries[rows][0]), int(queries[rows][-1]) + 1)])
        cells = block[queries[rows] - queries[rows][0]][:, keys]
        ours = head.weights[rows]
        cells = np.where(sees_keys[rows, None], cells, ours)
        worst.see(ours, cells, ("query", "key"), layer=place[0], head=place[1], query=rows.start)


def _wrong(found: str, advice: str = ADVICE) -> InputError:
    return InputError(found, where=WHERE, advice=advice)


def _layers(trace: Trace, against: Any) -> list[Any]:
    """The arrays of the layers that the trace kept."""
    if against is None or (isinstance(against, Sequence) and not len(against)):
        raise _wrong(
            f"there are no weights, but {against!r}",
            "transformers returns weights only if the call asks for them, output_attentions=True, and from eager "
            'attention: model.set_attn_implementation("eager")',
        )
    if isinstance(against, (str, bytes)) or not (isinstance(against, Sequence) or _ndim(against) > 0):
        raise _wrong(f"expected weights, got {type(against).__name__}")
    if _ndim(against) not in (-1, 4, 5):
        raise _wrong(f"expected an array of 4 or 5 axes, got {_ndim(against)}")
    return [against[at] for at in _indices(len(against), trace.numbers, "layer", "`against`")]


def _indices(count: int, numbers: tuple[int, ...], noun: str, place: str) -> list[int]:
    """Indices of the trace's layers or heads in the arrays: in the same order, or by their numbers."""
    if count == len(numbers):
        return list(range(count))
    if count > max(numbers):
        return list(numbers)
    raise _wrong(
        f"{place} has {count} {noun}s; the trace has {noun}s {', '.join(map(str, numbers))}",
        f"pass the {noun}s of the trace, or all of the model's",
    )


def _row(trace: Trace, layer: Any, place: str) -> Any:
    """(heads, queries, keys) of the trace's row in one layer's array."""
    if isinstance(layer, (list, tuple)):
        if layer and all(_ndim(step) in (3, 4) for step in layer):
            raise _wrong(
                f"{place} is a tuple of {len(layer)} arrays, as generate() returns for its steps",
                "pass those of one forward pass: captured.traces[step].verify(against=attentions[step])",
            )
        try:
            layer = np.array([_array(part) for part in layer])
        except ValueError as error:
            raise _wrong(f"{place}: lists of unlike lengths") from error
    if _ndim(layer) == 3:
        return layer
    if _ndim(layer) != 4:
        kind = "None" if layer is None else f"{type(layer).__name__} of shape {np.shape(layer)}"
        raise _wrong(f"{place}: expected an array of 3 or 4 axes, got {kind}")
    if trace.row < len(layer):
        return layer[trace.row]
    if len(layer) == 1:
        return layer[0]
    raise _wrong(
        f"{place} has {len(layer)} rows; the trace is row {trace.row} of its batch",
        "pass the attentions of the same batch, or of this row alone",
    )


def _positions(size: int, kept: np.ndarray, batch: int, noun: str, place: str) -> np.ndarray:
    """Positions of the trace's queries or keys along an axis of the arrays."""
    if size == batch:
        return kept
    if size == len(kept):
        return np.arange(size)
    both = f"{len(kept)}" if batch == len(kept) else f"{len(kept)} (of {batch} in the batch, padding included)"
    raise _wrong(f"{place} has {size} {noun}; the trace has {both}", "pass the weights of the same text")


def _ndim(value: Any) -> int:
    return int(getattr(value, "ndim", -1))


def _eps(array: Any) -> float:
    """The spacing of numbers around 1 in an array's precision, if that is less than fp32; otherwise 0."""
    if isinstance(array, (list, tuple)):
        return max(map(_eps, array), default=0.0)
    name = str(getattr(array, "dtype", "")).removeprefix("torch.")
    return {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(name, 0.0)


def _array(part: Any) -> Float[np.ndarray, "..."]:
    """Convert part of an array to NumPy in fp64; torch tensors may be on a device, need a gradient or be in bf16."""
    if hasattr(part, "detach"):
        part = part.detach().float().cpu()
    return np.asarray(part, dtype=np.float64)
