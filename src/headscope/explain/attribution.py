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

from headscope.encoder.task_heads import before_last
from headscope.errors import InputError, not_a_number
from headscope.explain.propagation import SLOPES, hold
from headscope.explain.steps import Affine, Chain, Pooled, Step, held_activation, held_linear, held_norm
from headscope.results.effect_records import Target, Wanted
from headscope.results.explained import Attribution
from headscope.runs.effects import prepared_for
from headscope.runs.masking import maskable, masked_changes, with_masking
from headscope.runs.predicting import predicted
from headscope.runs.targets import choose, read
from headscope.runs.texts import as_input, one_text

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.checkpoint.tokenizer import Prepared
    from headscope.model import Model

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
    g, added = _top(model, target, last, slopes).back(np.ones((1, 1), dtype=np.float32))
    return g, float(added)


def _top(model: Model, target: Target, last: Tokens, slopes: str) -> Step:
    """The step from the last hidden state to a target's number; a classifier may read the mean of vectors or scores."""
    if target.direction is not None:
        along = np.zeros((1, last.shape[1]), dtype=np.float32)
        along[0, : len(target.direction)] = target.direction / target.length
        return Chain((Pooled.mean(model.pooling.tokens(target.prompt), len(last)), Affine(along)))
    assert target.index is not None
    mean = Pooled.mean(slice(None) if target.row is None else slice(target.row, target.row + 1), len(last))
    of_scores = target.row is None and model.tops.pooling != "mean"
    task = {"word": "masked_lm", "token": "token"}.get(target.kind, "sequence")
    role = "sequence.out" if task == "sequence" and model.anatomy.has("sequence.out.weight") else "classifier"
    out = Affine(*model.tops.decoder()) if task == "masked_lm" else held_linear(model.encoder, role)
    steps = (*dense_steps(model, task, last if of_scores else mean.into(last), slopes), out.rows([target.index]))
    return Chain((*steps, mean) if of_scores else (mean, *steps))


def dense_steps(model: Model, task: str, rows: Tokens, slopes: str = SLOPES) -> tuple[Step, ...]:
    """The steps from last hidden states to what a task's last Linear reads.

    Of a masked-LM head, logits = LayerNorm(act(x W + b)) D^T + bias: the LayerNorm's deviation is held, act is its
    tangent. EuroBERT's decoder reads x itself, so there are none.
    """
    encoder, (dense, activation, norm) = model.encoder, before_last(model.tops, task)
    if not model.anatomy.has(f"{dense}.weight"):
        return ()
    active, values = held_activation(activation, encoder.linear(rows, dense), slopes)
    norms = (held_norm(encoder, values, norm),) if model.anatomy.has(f"{norm}.weight") else ()
    return (held_linear(encoder, dense), active, *norms)


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
    return attribution_of(model, found, target, check=check)


def attribution_of(model: Model, text: Prepared, target: Wanted = None, *, check: bool = True) -> Attribution:
    """The attribution of a text that is already tokenized; arguments and errors as for `attribute`."""
    encoded = text.encoded
    held = hold(model.encoder, as_input(encoded))
    goal = choose(model, encoded, held.last, target)
    if "embedding_distance" in (goal.kind, goal.against and goal.against.kind):
        raise InputError(
            "the distance of a vector from itself has slope 0 in every direction",
            where="target",
            advice="use the target ('embedding',), or change heads for real: method='zero'",
        )
    total = _number(model, goal, held.last)
    g, on_top = top_gradient(model, goal, held.last)
    scores, below = held.parts(g)
    said = predicted(model, goal, held.last)
    result = Attribution(
        goal, "decompx", scores, total, on_top + below, encoded, text.text, text.pair, said, notes=text.notes
    )
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
