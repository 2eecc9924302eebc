"""The tour: one screen with a model, its guess, the head that the guess rests on, a verification, and what to try."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headscope.checkpoint import called
from headscope.results.explained import Filled
from headscope.runs.predicting import check_masks, fill_trace
from headscope.screens.anatomy_sheets import share_bars
from headscope.screens.explain_sheets import guesses
from headscope.screens.matrix import matrix
from headscope.screens.pieces import highlighted, shown_tokens
from headscope.screens.terminal import Drawing, Line, Paper, blank, prose, title
from headscope.verify import verify

if TYPE_CHECKING:
    from headscope.model import Model
    from headscope.results.effect_records import Effects
    from headscope.traces import Trace
    from headscope.verify import Report

SENTENCE = "she opened the {mask} and went in."
WIDEST = 100
GUESSES = 3


@dataclass(frozen=True)
class Tour:
    """The contents of the tour for one model and one sentence.

    Attributes:
        model: the model.
        trace: the trace of the sentence.
        filled: the model's predictions for the mask.
        effects: of each head on the best prediction, with its probability as `aside`.
        report: the comparison of independent computations, without transformers, which takes seconds to import.
    """

    model: Model
    trace: Trace
    filled: Filled
    effects: Effects
    report: Report

    @property
    def head(self) -> tuple[int, int]:
        """The layer and head that the prediction rests on most: without it its probability is lowest."""
        assert self.effects.aside is not None
        layer, head = np.unravel_index(np.argmin(self.effects.aside), self.effects.shape)
        return int(layer), int(head)


def take_tour(model: Model) -> Tour:
    """Trace one sentence with one mask, and collect the contents of the tour.

    Raises:
        UnsupportedError: the checkpoint has no masked-LM head, or no mask token.
    """
    text = SENTENCE.format(mask=check_masks(model))
    trace = model.trace(text)
    filled = fill_trace(model, trace, top=GUESSES)[0]
    return Tour(model, trace, filled, model.effects(text), verify(trace, reference=False))


def tour_drawings(tour: Tour) -> tuple[Drawing, ...]:
    """Return the tour's screen: at most 100 columns and 40 lines."""
    model, trace = tour.model, tour.trace
    layer, head = tour.head
    sizes = model.anatomy.known()
    tokens = shown_tokens(trace)
    weights = np.asarray(trace[layer, head].weights)
    text = f'"{trace.text}"'
    name = model.name
    drawings = (
        title("headscope", "see inside every attention head of BERT and its kin"),
        blank,
        prose(
            f"This is {called(name)}: {model.anatomy.base_class}, "
            f"{sizes.layers} layers of {sizes.heads} heads, d_model {sizes.d_model}, "
            f"{model.parameters.total:,} parameters:"
        ),
        share_bars(model.components),
        blank,
        prose("It reads a sentence and predicts the masked word:"),
        highlighted(tokens, tour.filled.position),
        guesses(tour.filled),
        blank,
        prose(finding(tour, weights)),
        matrix(weights, tokens, tokens, brief=True),
        blank,
        prose(proof(tour.report)),
        blank,
        prose("Try next:"),
        commands(
            (
                (f"headscope effects {name} {text}", "every head silenced in turn"),
                (f"headscope attend {name} {text} --heads {layer}.{head}", "this head"),
                (f"headscope view {name} {text} --html page.html", "all heads on one page"),
                ("headscope summary google-bert/bert-base-uncased", "a model of your choice"),
                ("headscope view - --html live.html", "type, and every head answers"),
            )
        ),
    )
    return tuple(_narrow(drawing) for drawing in drawings)


def finding(tour: Tour, weights: np.ndarray) -> str:
    """Return which head the prediction rests on, by how much, and where the mask looks in it."""
    effects, (layer, head) = tour.effects, tour.head
    assert effects.aside is not None
    without = effects.aside[layer, head]
    mask = tour.filled.position
    tokens = shown_tokens(tour.trace)
    no_words = np.array(tour.trace.queries.special, dtype=bool)
    no_words[mask] = True
    key = int(np.where(no_words, -1.0, weights[mask]).argmax())
    return (
        f"Of all heads “{effects.target.label}” rests most on head {head} of layer {layer} (both from 0): without it, "
        f"its probability is {without:.1%} instead of {effects.base_aside:.1%}. There {tokens[mask]} looks at "
        f"“{tokens[key]}” more than at any other word: {weights[mask, key]:.0%} of its weight."
    )


def proof(report: Report) -> str:
    """Return the report in one sentence."""
    if not report.agrees:
        wrong = ", ".join(check.name for check in report.checks if not check.agrees)
        return f"NOT verified: {wrong} differ between computations; `headscope verify` says where."
    worst = max(report.checks, key=lambda check: check.worst)
    return (
        f"Verified: {len(report.checks)} independent computations agree; worst difference {worst.worst:.0e}, "
        f"rounding allows {worst.tolerance:.0e}."
    )


def commands(rows: Sequence[tuple[str, str]]) -> Drawing:
    """Return a drawing of commands to copy, each with a note beside it if all notes fit."""

    def draw(paper: Paper) -> Iterable[Line]:
        edge = max(len(command) for command, _ in rows)
        fits = edge + max(len(note) for _, note in rows) + 5 <= paper.width
        for command, note in rows:
            yield ((f"  {command:<{edge}}", "bold"), (f"   {note}" if fits else "", "dim"))

    return draw


def _narrow(drawing: Drawing) -> Drawing:
    """Return the drawing, limited to WIDEST columns."""
    return lambda paper: drawing(replace(paper, width=min(paper.width, WIDEST)))
