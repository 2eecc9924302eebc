"""One screen that shows what headscope is for: a model, a sentence, a guess, a head, a proof, and where to go next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headscope.checkpoint import called
from headscope.filling import Filled, check_masks, fill_trace
from headscope.verify import verify
from headscope.view.anatomy_sheets import share_bars
from headscope.view.filling_sheet import guesses
from headscope.view.matrix import matrix
from headscope.view.patterns import Pattern, all_patterns
from headscope.view.terminal import Drawing, Line, Paper, blank, prose, text_line, title
from headscope.view.trace_lines import highlighted, shown_tokens

if TYPE_CHECKING:
    from headscope._trace import Trace
    from headscope.model import Model
    from headscope.verify import Report

SENTENCE = "she opened the {mask} and went in."
WIDEST = 100
GUESSES = 3


@dataclass(frozen=True)
class Tour:
    """What the tour shows of one model and one sentence.

    Attributes:
        model: the model.
        trace: what reading the sentence left behind.
        filled: its guess for the mask.
        head: the head that gives most to the token before.
        report: the independent computations, transformers left out, for it takes seconds to import.
    """

    model: Model
    trace: Trace
    filled: Filled
    head: Pattern
    report: Report


def take_tour(model: Model, sentence: str = SENTENCE) -> Tour:
    """Read one sentence with one mask and find what is worth showing.

    Args:
        sentence: `{mask}` stands for the model's own mask token.

    Raises:
        UnsupportedError: the checkpoint has no masked-LM head, or no mask token.
    """
    trace = model.trace(sentence.format(mask=check_masks(model)))
    return Tour(
        model=model,
        trace=trace,
        filled=fill_trace(model, trace, top=GUESSES)[0],
        head=max(all_patterns(trace), key=lambda one: one.means["previous"]),
        report=verify(trace, reference=False),
    )


def tour_drawings(tour: Tour) -> tuple[Drawing, ...]:
    """The tour's screen: at most 100 columns and 40 lines."""
    model, trace, head = tour.model, tour.trace, tour.head
    sizes = model.anatomy.known()
    tokens = shown_tokens(trace)
    weights = np.asarray(trace[head.layer, head.head].weights)
    place = f"-L {head.layer} -H {head.head}"
    text = f'"{trace.text}"'
    name = model.name
    drawings = (
        title("headscope", "see inside every attention head of BERT and its kin"),
        blank,
        prose(
            f"This is {called(name)}: {model.anatomy.base_class}, "
            f"{sizes.layers} layers of {sizes.heads} heads, {sizes.d_model} numbers per token, "
            f"{model.parameters.total:,} parameters:"
        ),
        share_bars(model.components),
        blank,
        prose("It reads a sentence and guesses the hidden word:"),
        highlighted(tokens, tour.filled.position),
        guesses(tour.filled),
        blank,
        prose(
            f"Layer {head.layer}, head {head.head} (from 0) looks most like 'previous token': "
            f"{head.means['previous']:.0%} of each query's weight is there."
        ),
        matrix(weights, tokens, tokens, brief=True),
        blank,
        prose(proof(tour.report)),
        blank,
        text_line_drawing("Try next:"),
        commands(
            (
                (f"headscope attend {name} {text}", "all heads at a glance"),
                (f"headscope attend {name} {text} {place} -q 3", "one token"),
                (f"headscope fill {name} {text}", "guess words"),
                ("headscope summary google-bert/bert-base-uncased", "a model of your choice"),
            )
        ),
    )
    return tuple(_narrow(drawing) for drawing in drawings)


def proof(report: Report) -> str:
    """The report in one sentence."""
    if not report.agrees:
        wrong = ", ".join(check.name for check in report.checks if not check.agrees)
        return f"NOT proven: {wrong} differ between computations; `headscope verify` says where."
    worst = max(report.checks, key=lambda check: check.worst)
    return (
        f"Proven: {len(report.checks)} independent computations agree; worst difference {worst.worst:.0e}, "
        f"rounding allows {worst.tolerance:.0e}."
    )


def text_line_drawing(text: str) -> Drawing:
    """One line."""
    return lambda paper: [text_line(text)]


def commands(rows: Sequence[tuple[str, str]]) -> Drawing:
    """Commands to copy, and beside them, where it fits, what they show."""

    def draw(paper: Paper) -> Iterable[Line]:
        edge = max(len(command) for command, _ in rows)
        fits = edge + max(len(what) for _, what in rows) + 5 <= paper.width
        for command, what in rows:
            yield ((f"  {command:<{edge}}", "bold"), (f"   {what}" if fits else "", "dim"))

    return draw


def _narrow(drawing: Drawing) -> Drawing:
    """The drawing on paper of at most WIDEST columns."""
    return lambda paper: drawing(replace(paper, width=min(paper.width, WIDEST)))
