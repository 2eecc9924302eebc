"""Signs that a checkpoint was not loaded properly: missing or unexpected tensors, NaN, untrained heads."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from headscope.checkpoint.entry import DTYPES, UPCAST
from headscope.checkpoint.json_text import few
from headscope.errors import HeadscopeError
from headscope.heads.measure import measure
from headscope.heads.reference import LayerArrays, roles_of
from headscope.traces import broken_line

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.model import Model
    from headscope.traces import Trace

MOST_NAMES = 5
"""Maximum number of tensors or heads that a note lists."""

UNIFORM = 0.98
"""A head whose mean entropy is above this share of log S is called near-uniform."""


def health(trace: Trace, model: Model) -> list[str]:
    """Notes on signs that the model was not loaded properly; empty if there are none."""
    anatomy = model.anatomy
    notes = [f"contradiction: {problem}" for problem in anatomy.problems]
    if anatomy.missing:
        notes.append(f"missing tensors: {few(anatomy.missing, MOST_NAMES)}")
    unexpected = [row.stored for row in anatomy.extra if row.role is None]
    if unexpected:
        notes.append(f"unexpected tensors: {few(unexpected, MOST_NAMES)}")
    if (line := broken_line(trace)) is not None:
        notes.append(line)
    notes += not_finite(model)
    shares = entropy_shares(trace)
    if len(shares) and bool((shares > UNIFORM).all()):
        notes.append(
            f"every head of every layer is near-uniform (entropy above {UNIFORM:.0%} of log S): "
            "the weights look newly initialised, not trained"
        )
    else:
        heads = [f"{layer}.{head}" for layer in trace.numbers for head in trace.head_numbers(layer)]
        uniform = [head for head, share in zip(heads, shares.ravel(), strict=False) if share > UNIFORM]
        if uniform:
            notes.append(f"near-uniform heads (layer.head): {few(uniform, MOST_NAMES)}")
    return notes


def not_finite(model: Model) -> list[str]:
    """A line on tensors with NaN or infinity, if there are any. All weights are read, and others that can be."""
    unexpected = (row for row in model.anatomy.extra if row.role is None)
    unread = {row.stored for row in unexpected if not DTYPES[row.dtype].numpy and row.dtype not in UPCAST}
    read = ((name, model.checkpoint.read(name)) for name in model.checkpoint.tensors if name not in unread)
    broken = [name for name, values in read if values.dtype.kind == "f" and not np.isfinite(values).all()]
    return [f"NaN or infinity in: {few(broken, MOST_NAMES)}"] if broken else []


def unsound(model: Model) -> list[str]:
    """Lines on numbers that are not finite, and on a tokenizer with more tokens than the embeddings have rows.

    Of a checkpoint that is not on this machine, nothing is read. A tokenizer that can't be read is no fault of weights.
    """
    if not model.checkpoint.local:
        return []
    lines, sizes = not_finite(model), model.anatomy.dimensions
    with suppress(HeadscopeError):
        if sizes is not None and (tokens := model.tokenizer.size) > sizes.vocab:
            lines.append(f"the tokenizer has {tokens:,} tokens, the embeddings only {sizes.vocab:,} rows")
    return lines


def entropy_shares(trace: Trace) -> Float[np.ndarray, "layers heads"]:
    """(layers, heads): mean entropy divided by log S; empty for texts under 3 tokens, where it means nothing."""
    if len(trace.keys) < 3:
        return np.zeros((0, trace.heads))
    roles = roles_of(trace)
    layers = [measure(LayerArrays.of(record), roles, ["entropy"], dtype=None)["entropy"] for record in trace.layers]
    return np.stack([entropies.mean(-1) for entropies in layers]) / np.log(len(trace.keys))
