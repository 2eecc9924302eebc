"""Attributions: what each input token adds to one output, by DecompX.

They begin with the gradient of a target at the last hidden state, through what sits on top of the model, made linear
there. With g the gradient and c what the biases on top add, the target is sum_i g_i . last_i + c. The length of a
pooled vector is held at its true value, so that a cosine is linear too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import not_a_number
from headscope.explain.propagation import SLOPES, hold
from headscope.explain.steps import Chain, Step, held_activation, held_linear, held_norm
from headscope.results.effect_records import Target, Wanted
from headscope.results.explained import Attribution
from headscope.runs.effects import prepared_for
from headscope.runs.masking import maskable, masked_changes, with_masking
from headscope.runs.predicting import predicted
from headscope.runs.targets import check_slope, choose, read
from headscope.runs.texts import as_input, one_text

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.model import Model
    from headscope.results.tokens import TokenAxis

    Tokens = Float[np.ndarray, "tokens d_model"]


def top_gradient(model: Model, target: Target, last: Tokens, *, slopes: str = SLOPES) -> tuple[Tokens, float]:
    """(tokens, d_model), the gradient of a target at the last hidden state, and what the biases on top add to it.

    Args:
        model: the model.
        target: any but the loss and the distance of a vector from itself.
        last: the last hidden state.
        slopes: as for headscope.explain.propagation.hold.
    """
    if target.against is not None:
        (g, bias), (other, less) = (
            top_gradient(model, one, last, slopes=slopes) for one in (target.alone, target.against)
        )
        return g - other, bias - less
    g = np.zeros_like(last)
    if target.direction is not None:
        along = (target.direction / target.length).astype(np.float32)
        rows = model.pooling.tokens(target.prompt)
        g[rows, : len(along)] = along / len(g[rows])
        return g, 0.0
    assert target.index is not None
    if target.kind in ("class", "score") and target.row is None:
        return _over_all_tokens(model, target.index, last, slopes)
    assert target.row is not None
    row = last[target.row : target.row + 1]
    steps, bias = _steps(model, target, row, slopes)
    g[target.row], more = _through(steps, model, target, bias)
    return g, more


def _over_all_tokens(model: Model, index: int, last: Tokens, slopes: str) -> tuple[Tokens, float]:
    """A sequence classifier that reads all tokens: its mean of their vectors, or of their scores."""
    target = Target("class", "", index, None)
    if model.tops.pooling == "mean":
        steps, bias = _steps(model, target, last.mean(axis=0, keepdims=True), slopes)
        row, more = _through(steps, model, target, bias)
        return np.repeat(row / np.float32(len(last)), len(last), axis=0), more
    steps, bias = _steps(model, target, last, slopes)
    g, added = Chain(tuple(steps)).back(np.repeat(_slope(model, target)[None], len(last), axis=0) / len(last))
    return g, float(added) + bias


def _through(
    steps: list[Step], model: Model, target: Target, bias: float
) -> tuple[Float[np.ndarray, "1 d_model"], float]:
    g, added = Chain(tuple(steps)).back(_slope(model, target)[None])
    return g, float(added) + bias


def _out(model: Model, target: Target) -> str:
    """The role of the last Linear of a classifier; one of texts has its own, or one that follows the pooler."""
    own = target.kind != "token" and model.anatomy.has("sequence.out.weight")
    return "sequence.out" if own else "classifier"


def _slope(model: Model, target: Target) -> Float[np.ndarray, " width"]:
    """The row of the last Linear that gives the target."""
    assert target.index is not None
    if target.kind == "word":
        return model.tops.decoder()[0][target.index]
    return model.encoder.weight(f"{_out(model, target)}.weight")[target.index]


def _steps(model: Model, target: Target, rows: Tokens, slopes: str) -> tuple[list[Step], float]:
    """The steps from the rows that are read to the last Linear, and that one's bias."""
    encoder, anatomy = model.encoder, model.anatomy
    assert target.index is not None
    if target.kind == "word":
        task, activation, biases = "masked_lm", model.tops.masked_lm_activation(), model.tops.decoder()[1]
    else:
        task = "token" if target.kind == "token" else "sequence"
        family = anatomy.family.sequence_activation if anatomy.family else None
        activation, biases = str(family or model.tops.activation()), encoder.held(f"{_out(model, target)}.bias")
    bias = 0.0 if biases is None else float(biases[target.index])
    dense = "masked_lm.transform" if task == "masked_lm" else f"{task}.dense"
    if task == "sequence" and not anatomy.has("sequence.out.weight"):
        dense, activation = "pooler", "tanh"
    if not anatomy.has(f"{dense}.weight"):
        return [], bias
    active, values = held_activation(activation, encoder.linear(rows, dense), slopes)
    steps: list[Step] = [held_linear(encoder, dense), active]
    if dense != "pooler" and anatomy.has(f"{task}.norm.weight"):
        steps.append(held_norm(encoder, values, f"{task}.norm"))
    return steps, bias


def masked_lm_steps(model: Model, rows: Tokens) -> list[Step]:
    """The steps from last hidden states to what the masked-LM head's decoder reads."""
    return _steps(model, Target("word", "", 0, None), rows, SLOPES)[0]


def attribute(
    model: Model,
    text: str,
    target: Wanted = None,
    *,
    pair: str | None = None,
    max_length: int | None = None,
    check: bool = True,
) -> Attribution:
    """Attribute one output to the input tokens. Arguments and errors are those of `Model.attribute`.

    The formula is in headscope.explain.propagation; it costs about two forward passes.
    """
    found = prepared_for(model, one_text(text), target, pair, max_length=max_length)
    result = attribution_of(model, found.encoded, target, text=found.text, pair=found.pair, check=check)
    return replace(result, notes=found.notes)


def attribution_of(
    model: Model,
    encoded: TokenAxis,
    target: Wanted = None,
    *,
    text: str,
    pair: str | None = None,
    check: bool = True,
) -> Attribution:
    """The attribution of a text that is already tokenized; arguments and errors as for `attribute`."""
    held = hold(model.encoder, as_input(encoded))
    goal = check_slope(choose(model, encoded, held.last, target))
    total = _number(model, goal, held.last)
    g, on_top = top_gradient(model, goal, held.last)
    scores, below = held.parts(g)
    said = predicted(model, goal, held.last)
    result = Attribution(goal, "decompx", scores, total, on_top + below, encoded, text, pair, prediction=said)
    if not check:
        return result
    best = maskable(model, result.parts(), {"": encoded.ids})
    checks, unchecked = with_masking(model, best, partial(masked_changes, model, encoded, goal, total))
    return replace(result, checks=checks, unchecked=unchecked)


def _number(model: Model, target: Target, last: Float[np.ndarray, "tokens d_model"]) -> float:
    """The target's number as it is.

    Raises:
        CheckpointError: it is not a number.
    """
    number = float(read(model, target, target.rows_of(last)[None]).values[0])
    if not np.isfinite(number):
        raise not_a_number(f"the output is {number}, so nothing adds up to it", model.checkpoint.where)
    return number
