"""The place where NaN or infinity first appears in the numbers of a trace, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from headscope.traces.layer_records import LayerRecord, finite_heads, is_broken, kept_outputs

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.traces.record import Trace

BROKEN = "NaN or infinity"


def broken_line(trace: Trace) -> str | None:
    """One line that says where the model's numbers are not finite and where that begins; None if all are finite."""
    heads = trace.broken
    after = [name for name, named in kept_outputs(trace.outputs).items() if not np.isfinite(named.array).all()]
    if not heads and not after and all(finite_heads(part).all() for record in trace.layers for part in _parts(record)):
        return None
    where = f"the weights of {_listed(trace, heads)}" if heads else (after or ["the values"])[0]
    return f"{BROKEN} in {where}. It begins {_beginning(trace)}; `headscope verify` names the tensors."


def _beginning(trace: Trace) -> str:
    """Describe the first place with NaN or infinity."""
    for layer, record in zip(trace.numbers, trace.layers, strict=True):
        size = len(record.q)
        parts = {
            "queries": finite_heads(record.q, size),
            "keys": finite_heads(record.k, size),
            "values": np.ones(size, bool) if record.v is None else finite_heads(record.v, size),
            "scores": ~is_broken(record),
        }
        if not any(finite.any() for name, finite in parts.items() if name != "scores"):
            return (
                f"before layer {layer}, in the embeddings"
                if layer == 0
                else f"after the attention of layer {layer - 1}"
            )
        for name, finite in parts.items():
            if not finite.all():
                heads = np.array(trace.head_numbers(layer))[~finite]
                which = "all heads" if len(heads) == size > 1 else _numbers("head", heads.tolist())
                return f"in layer {layer}: the {name} of {which}"
    return f"after the attention of layer {trace.numbers[-1]}"


def _parts(record: LayerRecord) -> Iterable[Float[np.ndarray, "..."]]:
    return [part for part in (record.q, record.k, record.v) if part is not None]


def _listed(trace: Trace, heads: Sequence[tuple[int, int]]) -> str:
    """The heads by layer; layers in which all heads are broken are listed together."""
    of_layer = {layer: [head for at, head in heads if at == layer] for layer in trace.numbers}
    whole = {layer: broken == list(trace.head_numbers(layer)) for layer, broken in of_layer.items()}
    parts = []
    for all_of_it, group in groupby((layer for layer in of_layer if of_layer[layer]), whole.__getitem__):
        layers = list(group)
        if all_of_it:
            parts.append(f"all heads of {_numbers('layer', layers)}")
        else:
            parts += [f"{_numbers('head', of_layer[layer])} of layer {layer}" for layer in layers]
    return ", ".join(parts)


def _numbers(noun: str, numbers: Sequence[int]) -> str:
    """Format numbers with their noun: layer 3; layers 1 to 11; heads 0, 2, 5."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{noun}s {numbers[0]} to {numbers[-1]}"
    return f"{noun}s {', '.join(map(str, numbers))}"
