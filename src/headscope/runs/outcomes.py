"""A model's predictions for a text: the likeliest tokens at every mask, and the probabilities of labels."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.activations import softmax
from headscope.heads.head_distances import relative
from headscope.results.explained import LabelShare
from headscope.runs.filling import fill_trace
from headscope.runs.targets import label_name, logits_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.model import Model
    from headscope.results.effect_records import Target
    from headscope.traces import Trace

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
    if not all(np.isfinite(named.array).all() for named in trace.outputs.kept.values()):
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
    if not {"last_hidden_state"} <= set(before.outputs.kept) & set(after.outputs.kept):
        return None
    a, b = before.outputs["last_hidden_state"].array, after.outputs["last_hidden_state"].array
    if a.shape != b.shape:
        return None
    shift = relative(a, b)
    return shift if np.isfinite(shift).all() else None


def _ranked(shares: Float[np.ndarray, " labels"], labels: tuple[str, ...] | None) -> tuple[LabelShare, ...]:
    order = np.argsort(-shares, kind="stable")[:TOP]
    return tuple(LabelShare(labels[at] if labels and at < len(labels) else str(at), float(shares[at])) for at in order)
