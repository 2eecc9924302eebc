"""Attributions: what each input token adds to one output, by DecompX, by ALTI, or by gradients of the live model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import CheckpointError, InputError
from headscope.explain.alti import alti
from headscope.explain.propagation import hold
from headscope.explain.readout import top_gradient
from headscope.results.effects import Target, Wanted
from headscope.results.explained import Attribution
from headscope.runs.effects import prepared_for
from headscope.runs.masking import maskable, masked_changes, with_masking
from headscope.runs.outcomes import predicted
from headscope.runs.targets import check_slope, choose, read
from headscope.runs.texts import as_input, axis_of, last_states

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.checkpoint.tokenizer import Encoded
    from headscope.model import Model

METHODS = {
    "decompx": "what each token's embedding adds to the output, with attention, norms and slopes held (adds up)",
    "alti": "what share of the token that the output reads each token makes up (not negative, adds up to 1)",
    "integrated_gradients": "gradients along the line from padding to the text (adds up to the difference)",
}
"""A method of attribution, and the meaning of its parts."""

RETIRED = {
    "attention_gradient": "it is now the recipe “Attention x gradient” in docs/recipes.md, since raw weights were more "
    f"faithful; use {', '.join(METHODS)}"
}
"""Methods that attribute no longer has, and what to do."""

STEPS = 32
"""Points of the integral in integrated gradients."""


def attribute(
    model: Model,
    text: str,
    target: Wanted = None,
    *,
    method: str = "decompx",
    pair: str | None = None,
    max_length: int | None = None,
    steps: int = STEPS,
    check: bool = True,
) -> Attribution:
    """Attribute one output to the input tokens: what does each of them add?

    | method | formula | cost |
    |---|---|---|
    | decompx | headscope.explain.propagation | 2 forward passes |
    | alti | headscope.explain.propagation | a forward pass, and tokens^2 heads d_model for each layer |
    | integrated_gradients | headscope.runs.gradients | `steps` forward and backward passes in torch |

    Args:
        model: the model.
        text: the text.
        target: the output; by default the best word at the first mask, else the predicted class, else the text's
            vector. See headscope.runs.targets.
        method: one of METHODS.
        pair: a second text that goes with it.
        max_length: cut a longer text to this many tokens.
        steps: points of the integral in integrated gradients.
        check: also mask each of the three words with the greatest scores for real, in three forward passes.

    Raises:
        InputError: an unknown method or target, no mask, a text that is too long.
        UnsupportedError: the model lacks the output, or has parts without a rule.
        MissingExtraError: a method with gradients, without torch and transformers.
    """
    found = prepared_for(model, text, target, pair, max_length=max_length)
    result = attribution_of(
        model, found.encoded, target, text=found.text, pair=found.pair, method=method, steps=steps, check=check
    )
    return replace(result, notes=found.notes)


def attribution_of(
    model: Model,
    encoded: Encoded,
    target: Wanted = None,
    *,
    text: str,
    pair: str | None = None,
    method: str = "decompx",
    steps: int = STEPS,
    check: bool = True,
) -> Attribution:
    """The attribution of a text that is already tokenized; arguments and errors as for `attribute`."""
    if method not in METHODS:
        raise InputError(
            f"there is no method {method!r:.40}",
            where="method",
            advice=RETIRED.get(method, f"use {', '.join(METHODS)}"),
        )
    if method == "integrated_gradients":
        (last,) = last_states(model, [encoded])
        goal = check_slope(choose(model, encoded, last, target))
        scores, total, rest = _integrated(model, encoded, goal, steps)
    else:
        held = hold(model.encoder, as_input(encoded))
        last, goal = held.last, check_slope(choose(model, encoded, held.last, target))
        total = _number(model, goal, last)
        if method == "alti":
            scores, rest = alti(model.encoder, held, goal.row, goal.prompt), None
        else:
            g, on_top = top_gradient(model, goal, last)
            scores, below = held.parts(g)
            rest = on_top + below
    result = Attribution(
        goal, method, scores, total, rest, axis_of(encoded), text, pair, prediction=predicted(model, goal, last)
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
        raise CheckpointError(
            f"the output is {number}, so nothing adds up to it",
            where=model.checkpoint.where,
            advice="`headscope verify` says where NaN or infinity comes from",
        )
    return number


def _integrated(
    model: Model, encoded: Encoded, goal: Target, steps: int
) -> tuple[Float[np.ndarray, " tokens"], float, float]:
    """The scores, the number, and the number for the baseline."""
    from headscope.runs.gradients import integrated_gradients
    from headscope.runs.modules import inputs_of, module_for, score_of

    module, inputs, score = module_for(model, goal), inputs_of(model, encoded), score_of(goal)
    padding = model.tokenizer.pad_id
    if padding is None:
        raise InputError(
            "the tokenizer has no padding token to start from",
            where="integrated_gradients",
            advice="name it in tokenizer_config.json, or call headscope.runs.gradients.integrated_gradients",
        )
    mask = goal.row if goal.kind == "word" else None
    kept = [special or at == mask for at, special in enumerate(encoded.special)]
    ids = [index if stays else padding for index, stays in zip(encoded.ids, kept, strict=True)]
    baseline = inputs["input_ids"].new_tensor([ids])
    found = integrated_gradients(module, inputs, score, baseline, steps=steps)
    return found.tokens, found.score, found.baseline
