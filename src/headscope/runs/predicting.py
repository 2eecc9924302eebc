"""Predictions: the best tokens for each mask, or the classes of a text or of each of its tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.activations import softmax
from headscope.errors import CheckpointError, InputError
from headscope.heads.head_distances import relative
from headscope.results.explained import Filled, LabelShare, Prediction
from headscope.runs.masking import mask_of
from headscope.runs.targets import label_name, lacks, logits_of
from headscope.runs.texts import one_text
from headscope.settings import whole
from headscope.traces import broken_line, kept_outputs

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.attention.patterns import Heads
    from headscope.model import Model
    from headscope.results.effect_records import Target
    from headscope.traces import Trace


def fill(
    model: Model,
    text: str,
    pair: str | None = None,
    *,
    top: int = 5,
    max_length: int | None = None,
    ablate: Heads = (),
) -> tuple[Filled, ...]:
    """Return the best tokens for each mask of a text.

    Args:
        text: a text with the model's mask token ([MASK], <mask>) at each position to fill.
        pair: a second text of the same input; its masks are filled too.
        top: number of tokens for each mask.
        max_length: cut longer texts to this many tokens.
        ablate: heads to silence, (layer, head), or to change in another way, as in `Model.trace`.

    Raises:
        UnsupportedError: the checkpoint has no masked-LM head, or its tokenizer has no mask token.
        InputError: the text has no mask, or top is below 1.
        CheckpointError: the weights contain NaN or infinity.
    """
    check_masks(model)
    return fill_trace(model, model.trace(one_text(text), pair, max_length=max_length, ablate=ablate), top=top)


def check_masks(model: Model) -> str:
    """Return the mask token of a checkpoint, after checking that the checkpoint can fill it.

    Raises:
        UnsupportedError: there is no masked-LM head or no mask token, or headscope can't run the model.
    """
    model.anatomy.computable()
    if "masked_lm" not in model.anatomy.tasks:
        instead = "or ask for its classes (predict)" if _has_classes(model) else ""
        raise lacks(model, "masked-LM head", "ForMaskedLM or …ForPreTraining", instead=instead)
    mask_of(model)
    return str(model.tokenizer.mask_token)


def fill_trace(model: Model, trace: Trace, *, top: int = 5) -> tuple[Filled, ...]:
    """Return the best tokens for each mask of a trace; see `fill`."""
    mask = check_masks(model)
    top = whole(top, "top", 1)
    positions = [at for at, index in enumerate(trace.ids) if index == model.tokenizer.mask_id]
    if not positions:
        raise InputError(
            f"the text has no {mask}",
            where="text",
            advice=f"write {mask} where a token is to be predicted: 'he took off his {mask}.'",
        )
    logits = model.tops.masked_lm(trace.outputs["last_hidden_state"].array[positions]).astype(np.float64)
    _check_finite(logits, "at the mask", model, trace)
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


def _check_finite(scores: np.ndarray, of: str, model: Model, trace: Trace) -> None:
    if not np.isfinite(scores).all():
        raise CheckpointError(
            f"the scores {of} are NaN or infinite. {broken_line(trace) or 'The head on top contains NaN or infinity.'}",
            where=model.checkpoint.where,
            advice="`headscope verify` names the tensors; use a checkpoint from before training diverged",
        )


TASKS = ("sequence", "token")
"""Tasks with classes, the first that a checkpoint has being what it predicts."""


def predict(
    model: Model,
    text: str,
    pair: str | None = None,
    *,
    max_length: int | None = None,
    ablate: Heads = (),
) -> Prediction:
    """Return the classes that a classifier predicts for a text, or for each of its tokens, with probabilities.

    Args:
        text: the text.
        pair: a second text of the same input.
        max_length: cut longer texts to this many tokens.
        ablate: heads to silence, (layer, head), or to change in another way, as in `Model.trace`.

    Raises:
        UnsupportedError: the checkpoint has no classifier.
        CheckpointError: the weights contain NaN or infinity.
    """
    _check_classes(model)
    return predict_trace(model, model.trace(one_text(text), pair, max_length=max_length, ablate=ablate))


def _check_classes(model: Model) -> str:
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
    if _has_classes(model):
        return
    if "masked_lm" in model.anatomy.tasks:
        check_masks(model)
    else:
        saved_from = "ForMaskedLM, …ForSequenceClassification or …ForTokenClassification"
        raise lacks(model, "head that predicts", saved_from, instead="")


def fills(model: Model, trace: Trace) -> bool:
    """Return True if the model predicts tokens at masks: it has no classes, or the text has a mask."""
    return "masked_lm" in model.anatomy.tasks and (not _has_classes(model) or model.tokenizer.mask_id in trace.ids)


def _has_classes(model: Model) -> bool:
    return not {*TASKS}.isdisjoint(model.anatomy.tasks)


def predict_trace(model: Model, trace: Trace) -> Prediction:
    """Return the predicted classes of a trace; see `predict`."""
    task = _check_classes(model)
    (name,) = (name for name, (of, _) in model.tops.outputs.items() if of == task)
    logits = trace.outputs[name].array.astype(np.float64)
    _check_finite(logits, "of the classes", model, trace)
    return Prediction(
        task=task,
        labels=tuple(label_name(model, index) for index in range(logits.shape[-1])),
        logits=logits,
        probabilities=model.tops.probabilities(logits),
        axis=trace.queries,
        notes=trace.notes,
    )


TOP = 8
MOST_CLASSES = 100
NEXT_SENTENCE = ("is next", "is random")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A prediction at one token or for the whole text.

    Attributes:
        what: name of the output.
        place: position of the token, counted from 0; None for the whole text.
        token: the token there.
        top: the likeliest choices, best first.
    """

    what: str
    place: int | None
    token: str | None
    top: tuple[LabelShare, ...]

    def plain(self) -> dict[str, Any]:
        """The prediction as a JSON record."""
        return asdict(self)


def outcomes(model: Model, trace: Trace) -> list[Outcome]:
    """All predictions of a model's output heads for a text; empty if it has none, or if an output has NaN."""
    predictions: list[Outcome] = []
    if not all(np.isfinite(named.array).all() for named in kept_outputs(trace.outputs).values()):
        return predictions
    tasks = model.anatomy.tasks
    if "masked_lm" in tasks and model.tokenizer.mask_id in trace.ids:
        predictions += [
            Outcome(
                str(model.tokenizer.mask_token),
                mask.position,
                trace.tokens[mask.position],
                tuple(LabelShare(token, share) for token, share in zip(mask.tokens, mask.probabilities, strict=True)),
            )
            for mask in fill_trace(model, trace, top=TOP)
        ]
    for name, (task, _) in model.tops.outputs.items():
        if task == "sequence":
            named = trace.outputs[name]
            shares = model.tops.probabilities(named.array)
            if shares is not None:
                predictions.append(Outcome("labels", None, None, _ranked(shares, named.labels)))
        elif task == "next_sentence" and 1 in trace.segments:
            predictions.append(
                Outcome("next sentence", None, None, _ranked(softmax(trace.outputs[name].array), NEXT_SENTENCE))
            )
    return predictions


def predicted(model: Model, target: Target, last: Float[np.ndarray, "tokens d_model"]) -> tuple[LabelShare, ...]:
    """The model's prediction where a target is read: the likeliest choice and the runner-up, or a score's probability.

    Empty for vectors, which predict nothing, and for a regression, which has no probabilities.
    """
    if target.kind not in ("word", "class", "score", "token"):
        return ()
    (logits,) = logits_of(model, target, target.rows_of(last)[None])
    shares = softmax(logits) if target.kind == "word" else model.tops.probabilities(logits)
    if shares is None:
        return ()
    best = np.argsort(-shares, kind="stable")[:2]
    names = [model.tokenizer.token(int(at)) if target.kind == "word" else label_name(model, int(at)) for at in best]
    return tuple(LabelShare(name, float(shares[at])) for name, at in zip(names, best, strict=True))


def classes_of(model: Model) -> list[str]:
    """The labels of a sequence classifier; empty if the model is none."""
    if "sequence" not in model.anatomy.tasks:
        return []
    return [str(label) for label in model.tops.labels() or ()][:MOST_CLASSES]


def shifts(before: Trace, after: Trace) -> Float[np.ndarray, " tokens"] | None:
    """Relative change of each token's last hidden state, |after - before| / |before|; None for NaN."""
    if not {"last_hidden_state"} <= set(kept_outputs(before.outputs)) & set(kept_outputs(after.outputs)):
        return None
    a, b = before.outputs["last_hidden_state"].array, after.outputs["last_hidden_state"].array
    if a.shape != b.shape:
        return None
    shift = relative(a, b)
    return shift if np.isfinite(shift).all() else None


def _ranked(shares: Float[np.ndarray, " labels"], labels: tuple[str, ...] | None) -> tuple[LabelShare, ...]:
    order = np.argsort(-shares, kind="stable")[:TOP]
    return tuple(LabelShare(labels[at] if labels and at < len(labels) else str(at), float(shares[at])) for at in order)
