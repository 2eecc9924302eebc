"""Attributions: what each input token adds to one output, by DecompX, by ALTI, or by gradients of the live model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope._trace.arrays import ArrayLike
from headscope.errors import CheckpointError, InputError
from headscope.explain.alti import alti
from headscope.explain.linearised import back_through, check_linearisable, freeze, top_gradient
from headscope.explain.runs import as_input, encoded_text, last_states
from headscope.explain.similarity import axis_of
from headscope.explain.target import Target, Wanted, choose, read

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace import TokenAxis
    from headscope.checkpoint.tokenizer import Encoded
    from headscope.model import Model

METHODS = {
    "decompx": "what each token's embedding adds to the output, with attention, norms and slopes held (adds up)",
    "alti": "what share of the token that the output reads each token makes up (not negative, adds up to 1)",
    "attention_gradient": "attention x gradient, over all heads and queries of all layers (does not add up)",
    "integrated_gradients": "gradients along the line from padding to the text (adds up to the difference)",
}
"""How the parts are found, and what they are."""

STEPS = 32
"""Points of the integral in integrated gradients."""


@dataclass(frozen=True, eq=False)
class Attribution(ArrayLike):
    """The parts of one output, token by token.

    Attributes:
        target: the output, and whether it was chosen by default.
        method: decompx, alti, attention_gradient or integrated_gradients.
        scores: (tokens,) in `target.unit`; shares of 1 for alti.
        total: the target's number.
        rest: what is no token's: the biases' row in DecompX, the number for the baseline in integrated gradients; None
            where the scores don't add up to the number.
        axis: the text's tokens.
        text: the text.
        pair: the second text.
        by_head: (layers, heads, tokens), the scores of each head, for attention_gradient; else None.
    """

    target: Target
    method: str
    scores: Float[np.ndarray, " tokens"]
    total: float
    rest: float | None
    axis: TokenAxis
    text: str
    pair: str | None = None
    by_head: Float[np.ndarray, "layers heads tokens"] | None = None

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens, as the vocabulary spells them."""
        return self.axis.tokens

    @property
    def gap(self) -> float | None:
        """The number less the rest and all scores: rounding, or the integral's error; None where they don't add up."""
        return None if self.rest is None else self.total - self.rest - float(self.scores.sum())

    def strongest(self, count: int = 10) -> list[int]:
        """The tokens with the greatest scores in either direction, the greatest first."""
        return [int(at) for at in np.argsort(-np.abs(self.scores), kind="stable")[:count]]

    @property
    def array(self) -> Float[np.ndarray, "..."]:  # type: ignore[override]
        """The array that this record stands for: `scores`."""
        return self.scores

    def __repr__(self) -> str:
        best = self.strongest(1)[0]
        return (
            f"attribution ({self.method}) of {self.target}, {self.total:.4f}, to {len(self.axis)} tokens; most: token "
            f"{best}, {self.tokens[best]}, {self.scores[best]:+.4f}"
        )


def attribute(
    model: Model,
    text: str,
    target: Wanted = None,
    *,
    method: str = "decompx",
    pair: str | None = None,
    max_length: int | None = None,
    steps: int = STEPS,
) -> Attribution:
    """Attribute one output to the input tokens: what does each of them add?

    | method | formula | cost |
    |---|---|---|
    | decompx | headscope.explain.linearised | 2 forward passes |
    | alti | headscope.explain.alti | a forward pass, and tokens^2 heads d_model for each layer |
    | attention_gradient | headscope.explain.gradients | a forward and a backward pass in torch |
    | integrated_gradients | headscope.explain.gradients | `steps` of these |

    The baseline of integrated gradients has the padding token's word embedding in place of each token of the text.
    Special tokens, and the mask that a word stands for, keep theirs, and so have score 0.

    Args:
        model: the model.
        text: the text.
        target: the output; by default the best word at the first mask, else the predicted class, else the text's
            vector. See headscope.explain.target.
        method: one of METHODS.
        pair: a second text that goes with it.
        max_length: cut a longer text to this many tokens.
        steps: points of the integral in integrated gradients.

    Raises:
        InputError: an unknown method or target, no mask, a text that is too long.
        UnsupportedError: the model lacks the output, or has parts without a rule.
        MissingExtraError: a method with gradients, without torch and transformers.
    """
    encoded = encoded_text(model, text, pair, max_length=max_length)
    return attribution_of(model, encoded, target, text=text, pair=pair, method=method, steps=steps)


def attribution_of(
    model: Model,
    encoded: Encoded,
    target: Wanted = None,
    *,
    text: str,
    pair: str | None = None,
    method: str = "decompx",
    steps: int = STEPS,
) -> Attribution:
    """The attribution of a text that is already tokenized; arguments as for `attribute`.

    Args:
        model: the model.
        encoded: the text's tokens.
        target: the output.
        text: the text, for the record.
        pair: the second text, for the record.
        method: one of METHODS.
        steps: points of the integral in integrated gradients.

    Raises:
        InputError: an unknown method or target, no mask.
        UnsupportedError: the model lacks the output, or has parts without a rule.
        MissingExtraError: a method with gradients, without torch and transformers.
    """
    if method not in METHODS:
        raise InputError(f"there is no method {method!r:.40}", where="method", advice=f"use {', '.join(METHODS)}")
    if method in ("decompx", "alti"):
        check_linearisable(model)
        frozen = freeze(model.encoder, as_input(encoded))
        goal = choose(model, encoded, frozen.last, target)
        total = _number(model, goal, frozen.last)
        if method == "alti":
            shares = alti(model.encoder, frozen, goal.row)
            return Attribution(goal, method, shares, total, None, axis_of(encoded), text, pair)
        g, on_top = top_gradient(model, goal, frozen.last)
        g, below = back_through(model.encoder, frozen, g)
        parts = (g.astype(np.float64) * frozen.embedded).sum(axis=-1)
        return Attribution(goal, method, parts, total, on_top + below, axis_of(encoded), text, pair)
    (last,) = last_states(model, [encoded])
    goal = choose(model, encoded, last, target)
    return _by_gradients(model, encoded, goal, method, text, pair, steps, _number(model, goal, last))


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


def _by_gradients(
    model: Model, encoded: Encoded, goal: Target, method: str, text: str, pair: str | None, steps: int, total: float
) -> Attribution:
    from headscope.explain.modules import inputs_of, module_for, score_of

    module, inputs, score = module_for(model, goal), inputs_of(model, encoded), score_of(goal)
    if method == "attention_gradient":
        from headscope.explain.gradients import gradients

        keys = gradients(module, inputs, score).keys
        return Attribution(goal, method, keys.sum(axis=(0, 1)), total, None, axis_of(encoded), text, pair, keys)
    from headscope.explain.gradients import integrated_gradients

    padding = model.tokenizer.pad_id
    if padding is None:
        raise InputError(
            "the tokenizer has no padding token to start from",
            where="integrated_gradients",
            advice="name it in tokenizer_config.json, or call headscope.explain.gradients.integrated_gradients",
        )
    mask = goal.row if goal.kind == "word" else None
    kept = [special or at == mask for at, special in enumerate(encoded.special)]
    ids = [index if stays else padding for index, stays in zip(encoded.ids, kept, strict=True)]
    baseline = inputs["input_ids"].new_tensor([ids])
    integrated = integrated_gradients(module, inputs, score, baseline, steps=steps)
    return Attribution(
        goal, method, integrated.tokens, integrated.score, integrated.baseline, axis_of(encoded), text, pair
    )
