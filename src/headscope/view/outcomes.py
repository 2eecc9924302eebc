"""What a model says of a text: its best pieces at every mask, its labels' probabilities. Before and after a change."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.filling import fill_trace

if TYPE_CHECKING:
    from headscope._trace import Trace
    from headscope.model import Model

TOP = 8
NEXT_SENTENCE = ("is next", "is random")


@dataclass(frozen=True, slots=True)
class Choice:
    """One label, and its share of the probability."""

    label: str
    share: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the model says at one place.

    Attributes:
        what: which output.
        place: the token, counted from 0; None for the whole text.
        token: that token.
        top: the likeliest, first.
    """

    what: str
    place: int | None
    token: str | None
    top: tuple[Choice, ...]

    def plain(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


def outcomes(model: Model, trace: Trace) -> list[Outcome]:
    """Everything that the heads on top of a model predict for a text; empty where there are none, or only NaN."""
    found: list[Outcome] = []
    if not all(np.isfinite(named.array).all() for named in trace.outputs.kept.values()):
        return found
    tasks = model.anatomy.tasks
    if "masked_lm" in tasks and model.tokenizer.mask_id in trace.ids:
        found += [
            Outcome(
                str(model.tokenizer.mask_token),
                one.position,
                trace.tokens[one.position],
                tuple(Choice(token, share) for token, share in zip(one.tokens, one.probabilities, strict=True)),
            )
            for one in fill_trace(model, trace, top=TOP)
        ]
    for name, (task, _) in model.tops.outputs.items():
        if task == "sequence":
            named = trace.outputs[name]
            found.append(Outcome("labels", None, None, _ranked(named.array, named.labels)))
        elif task == "next_sentence" and 1 in trace.segments:
            found.append(Outcome("next sentence", None, None, _ranked(trace.outputs[name].array, NEXT_SENTENCE)))
    return found


def moved(before: Trace, after: Trace) -> float | None:
    """How far the last hidden state moved: mean over tokens of |after - before| / |before|; None where that is NaN."""
    if not {"last_hidden_state"} <= set(before.outputs.kept) & set(after.outputs.kept):
        return None
    a, b = before.outputs["last_hidden_state"].array, after.outputs["last_hidden_state"].array
    if a.shape != b.shape:
        return None
    shift = float(np.mean(np.linalg.norm(b - a, axis=-1) / np.maximum(np.linalg.norm(a, axis=-1), 1e-12)))
    return shift if math.isfinite(shift) else None


def _ranked(logits: np.ndarray, labels: tuple[str, ...] | None) -> tuple[Choice, ...]:
    shares = np.exp(logits.astype(np.float64) - logits.max())
    shares /= shares.sum()
    order = np.argsort(-shares, kind="stable")[:TOP]
    return tuple(Choice(labels[at] if labels and at < len(labels) else str(at), float(shares[at])) for at in order)
