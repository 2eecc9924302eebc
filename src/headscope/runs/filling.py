"""Predictions of a masked-LM checkpoint for each mask: its best tokens and their probabilities."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from headscope.attention.activations import softmax
from headscope.errors import CheckpointError, InputError, UnsupportedError
from headscope.results.explained import Filled
from headscope.runs.targets import lacks
from headscope.traces import broken_line

if TYPE_CHECKING:
    from headscope.model import Model
    from headscope.traces import Trace


def fill(
    model: Model,
    text: str,
    pair: str | None = None,
    *,
    top: int = 5,
    max_length: int | None = None,
    ablate: Iterable[tuple[int, int]] = (),
) -> tuple[Filled, ...]:
    """Return the best tokens for each mask of a text.

    Args:
        text: a text with the model's mask token ([MASK], <mask>) at each position to fill.
        pair: a second text of the same input; its masks are filled too.
        top: number of tokens for each mask.
        max_length: cut longer texts to this many tokens.
        ablate: heads to silence, (layer, head).

    Raises:
        UnsupportedError: the checkpoint has no masked-LM head, or its tokenizer has no mask token.
        InputError: the text has no mask, or top is below 1.
        CheckpointError: the weights contain NaN or infinity.
    """
    check_masks(model)
    return fill_trace(model, model.trace(text, pair, max_length=max_length, ablate=ablate), top=top)


def check_masks(model: Model) -> str:
    """Return the mask token of a checkpoint, after checking that the checkpoint can fill it.

    Raises:
        UnsupportedError: there is no masked-LM head or no mask token, or headscope can't run the model.
    """
    model.anatomy.computable()
    tasks = model.anatomy.tasks
    if "masked_lm" not in tasks:
        classes = {"sequence", "token"} & set(tasks)
        instead = "or ask for its classes (predict)" if classes else ""
        raise lacks(model, "masked-LM head", "ForMaskedLM or …ForPreTraining", instead=instead)
    mask = model.tokenizer.mask_token
    if mask is None:
        raise UnsupportedError(
            "the tokenizer has no mask token",
            where=model.checkpoint.where,
            advice="open a checkpoint with the tokenizer that it was trained with",
        )
    return mask


def fill_trace(model: Model, trace: Trace, *, top: int = 5) -> tuple[Filled, ...]:
    """Return the best tokens for each mask of a trace; see `fill`."""
    mask = check_masks(model)
    if top < 1:
        raise InputError(f"top is {top}, expected at least 1", where="top", advice="ask for at least one token")
    positions = [at for at, index in enumerate(trace.ids) if index == model.tokenizer.mask_id]
    if not positions:
        raise InputError(
            f"the text has no {mask}",
            where="text",
            advice=f"write {mask} where a token is to be predicted: 'he took off his {mask}.'",
        )
    logits = model.tops.masked_lm(trace.outputs["last_hidden_state"].array[positions]).astype(np.float64)
    if not np.isfinite(logits).all():
        raise CheckpointError(
            "the scores at the mask are NaN or infinite. "
            f"{broken_line(trace) or 'The head on top contains NaN or infinity.'}",
            where=model.checkpoint.where,
            advice="`headscope verify` names the tensors; use a checkpoint from before training diverged",
        )
    return tuple(
        Filled(
            position=position,
            tokens=tuple(model.tokenizer.token(int(index)) for index in best),
            ids=tuple(int(index) for index in best),
            probabilities=tuple(float(row[index]) for index in best),
        )
        for position, row in zip(positions, softmax(logits), strict=True)
        for best in [np.argsort(-row, kind="stable")[:top]]
    )
