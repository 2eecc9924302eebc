"""Attributions: what each input token adds to one output, by DecompX."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import not_a_number
from headscope.explain.propagation import hold
from headscope.explain.readout import top_gradient
from headscope.results.effect_records import Target, Wanted
from headscope.results.explained import Attribution
from headscope.runs.effects import prepared_for
from headscope.runs.masking import maskable, masked_changes, with_masking
from headscope.runs.predicting import predicted
from headscope.runs.targets import check_slope, choose, read
from headscope.runs.texts import as_input, axis_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.checkpoint.tokenizer import Encoded
    from headscope.model import Model


def attribute(
    model: Model,
    text: str,
    target: Wanted = None,
    *,
    pair: str | None = None,
    max_length: int | None = None,
    check: bool = True,
) -> Attribution:
    """Attribute one output to the input tokens: what does each of them add?

    The formula is in headscope.explain.propagation; it costs about two forward passes.

    Args:
        model: the model.
        text: the text.
        target: the output; by default the best word at the first mask, else the predicted class, else the text's
            vector. See headscope.runs.targets.
        pair: a second text that goes with it.
        max_length: cut a longer text to this many tokens.
        check: also mask each of the three words with the greatest scores for real, in three forward passes.

    Raises:
        InputError: an unknown target, no mask, a text that is too long.
        UnsupportedError: the model lacks the output, or has parts without a rule.
    """
    found = prepared_for(model, text, target, pair, max_length=max_length)
    result = attribution_of(model, found.encoded, target, text=found.text, pair=found.pair, check=check)
    return replace(result, notes=found.notes)


def attribution_of(
    model: Model,
    encoded: Encoded,
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
    result = Attribution(goal, "decompx", scores, total, on_top + below, axis_of(encoded), text, pair, prediction=said)
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
