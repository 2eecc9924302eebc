"""Predictions of a classifier: the classes of a text, or of each of its tokens, with their probabilities."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import CheckpointError
from headscope.results.prediction import Prediction
from headscope.runs.filling import check_masks
from headscope.runs.targets import label_name, lacks
from headscope.traces import broken_line

if TYPE_CHECKING:
    from headscope.model import Model
    from headscope.traces import Trace

TASKS = ("sequence", "token")
"""Tasks with classes, the first that a checkpoint has being what it predicts."""


def predict(
    model: Model,
    text: str,
    pair: str | None = None,
    *,
    max_length: int | None = None,
    ablate: Iterable[tuple[int, int]] = (),
) -> Prediction:
    """Return the classes that a classifier predicts for a text, or for each of its tokens, with probabilities.

    Args:
        text: the text.
        pair: a second text of the same input.
        max_length: cut longer texts to this many tokens.
        ablate: heads to silence, (layer, head).

    Raises:
        UnsupportedError: the checkpoint has no classifier.
        CheckpointError: the weights contain NaN or infinity.
    """
    check_classes(model)
    return predict_trace(model, model.trace(text, pair, max_length=max_length, ablate=ablate))


def check_classes(model: Model) -> str:
    """Return the task of a classifier, after checking that headscope can run it.

    Raises:
        UnsupportedError: there is no classifier, or headscope can't run the model.
    """
    model.anatomy.computable()
    for task in TASKS:
        if task in model.anatomy.tasks:
            return task
    instead = "or fill its masks: this one predicts tokens at them" if "masked_lm" in model.anatomy.tasks else ""
    raise lacks(model, "classifier", "ForSequenceClassification or …ForTokenClassification", instead=instead)


def check_predicts(model: Model) -> None:
    """Check that a checkpoint predicts classes, or tokens at masks.

    Raises:
        UnsupportedError: it predicts neither, or headscope can't run the model.
    """
    model.anatomy.computable()
    tasks = model.anatomy.tasks
    if "masked_lm" in tasks and not {*TASKS} & {*tasks}:
        check_masks(model)
    elif not {*TASKS} & {*tasks}:
        saved_from = "ForMaskedLM, …ForSequenceClassification or …ForTokenClassification"
        raise lacks(model, "head that predicts", saved_from, instead="")


def fills(model: Model, trace: Trace) -> bool:
    """Return True if the model predicts tokens at masks: it has no classes, or the text has a mask."""
    tasks = model.anatomy.tasks
    return "masked_lm" in tasks and (not {*TASKS} & {*tasks} or model.tokenizer.mask_id in trace.ids)


def predict_trace(model: Model, trace: Trace) -> Prediction:
    """Return the predicted classes of a trace; see `predict`."""
    task = check_classes(model)
    (name,) = (name for name, (of, _) in model.tops.outputs.items() if of == task)
    logits = trace.outputs[name].array.astype(np.float64)
    if not np.isfinite(logits).all():
        raise CheckpointError(
            "the scores of the classes are NaN or infinite. "
            f"{broken_line(trace) or 'The head on top contains NaN or infinity.'}",
            where=model.checkpoint.where,
            advice="`headscope verify` names the tensors; use a checkpoint from before training diverged",
        )
    return Prediction(
        task=task,
        labels=tuple(label_name(model, index) for index in range(logits.shape[-1])),
        logits=logits,
        probabilities=model.tops.probabilities(logits),
        axis=trace.queries,
        notes=trace.notes,
    )
