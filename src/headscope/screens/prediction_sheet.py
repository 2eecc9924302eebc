"""Screens of predictions: the likeliest tokens for each mask, or the classes of a text or of each of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headscope.checkpoint import called
from headscope.results.head_values import signed
from headscope.screens.labels import printable
from headscope.screens.pieces import highlighted, noted, shown_tokens
from headscope.screens.tables import Column, Table
from headscope.screens.terminal import Bar, Drawing, Sheet, bars, blank, notes, table, title

if TYPE_CHECKING:
    from headscope.results.explained import Filled, Prediction
    from headscope.traces import Trace


FILLED_COLUMNS = (
    Column("position", align="right"),
    Column("token", kind="code"),
    Column("id", align="right", form="d"),
    Column("probability", align="right", form=".4f"),
)


def fill_sheet(trace: Trace, filled: Sequence[Filled]) -> Sheet:
    """The likeliest tokens for each mask, with their probabilities."""
    rows = tuple(
        (mask.position, token, index, chance)
        for mask in filled
        for token, index, chance in zip(mask.tokens, mask.ids, mask.probabilities, strict=True)
    )
    masks = f"{len(filled)} mask{'s' if len(filled) > 1 else ''}"
    drawings: list[Drawing] = [title(called(trace.model), f"{masks}; tokens count from 0")]
    for mask in filled:
        drawings += [blank, highlighted(shown_tokens(trace), mask.position), guesses(mask)]
    drawings.append(notes(["probabilities are over the whole vocabulary; a full bar is 1"]))
    return Sheet(
        schema="fill",
        record=lambda: {
            "model": trace.model,
            "tokens": trace.tokens,
            "masks": [
                {
                    "position": mask.position,
                    "pieces": [
                        {"token": token, "id": index, "probability": chance}
                        for token, index, chance in zip(mask.tokens, mask.ids, mask.probabilities, strict=True)
                    ],
                }
                for mask in filled
            ],
            **noted(trace.notes),
        },
        table=lambda: Table(FILLED_COLUMNS, rows),
        drawings=tuple(drawings),
    )


def guesses(mask: Filled) -> Drawing:
    """The likeliest tokens for one mask, as bars."""
    found = zip(mask.tokens, mask.probabilities, strict=True)
    return bars([Bar(printable(token), f"{chance:.3f}", chance) for token, chance in found], most=24)


TOP = 5
CLASS_COLUMNS = (
    Column("label", kind="code"),
    Column("logit", align="right", form="+.4f"),
    Column("probability", align="right", form=".4f"),
)
TOKEN_COLUMNS = (Column("position", align="right"), Column("token", kind="code"), *CLASS_COLUMNS)
NOTES = {
    "sequence": "probabilities are over all classes; a full bar is 1",
    "token": "each token with its likeliest class",
    "several": "classes don't exclude each other: each has a probability of its own",
    "score": "one output: a score, with the probability that its sigmoid gives",
    "regression": "one number for each output: the config says regression, so there are no probabilities",
}


def prediction_line(prediction: Prediction) -> str:
    """The likeliest classes of a text in one line, as other screens begin with."""
    rows = prediction.rows(3)
    if prediction.probabilities is None:
        return "the model predicts " + ", ".join(f"{row['label']!r} {signed(row['logit'])}" for row in rows)
    return likeliest([(row["label"], row["probability"]) for row in rows])


def likeliest(labels: Sequence[tuple[str, float]]) -> str:
    """The first of some labels with its probability, and those that follow it."""
    (label, share), *others = labels
    return f"the model predicts {label!r}, probability {share:.4f}" + "".join(
        f"; then {other!r}, {its:.4f}" for other, its in others
    )


def prediction_sheet(model: str, prediction: Prediction, top: int | None = None) -> Sheet:
    """The classes of a text, the likeliest first, or each token with its likeliest class.

    Args:
        model: its name.
        prediction: the prediction.
        top: most classes of a text.
    """
    columns: tuple[Column, ...] = TOKEN_COLUMNS if prediction.task == "token" else CLASS_COLUMNS
    if prediction.probabilities is None:
        columns = columns[:-1]

    def shown(top: int | None) -> Table:
        return Table(columns, tuple(tuple(row[column.key] for column in columns) for row in prediction.rows(top)))

    found = shown(top or TOP) if prediction.task == "sequence" else shown(None)
    body = (
        classes(prediction, top or TOP)
        if prediction.probabilities is not None and prediction.task == "sequence"
        else table(found)
    )
    what = f"{len(prediction.labels)} class{'es' if len(prediction.labels) > 1 else ''}"
    return Sheet(
        record=lambda: {
            "model": model,
            "tokens": prediction.axis.tokens,
            "task": prediction.task,
            "labels": prediction.labels,
            "predictions": prediction.rows(None),
            **noted(prediction.notes),
        },
        table=lambda: shown(top),
        drawings=(title(called(model), what), blank, body, notes([NOTES[prediction.kind]])),
    )


def classes(prediction: Prediction, top: int) -> Drawing:
    """The likeliest classes of a text, as bars."""
    rows = [(printable(row["label"]), row["probability"]) for row in prediction.rows(top)]
    return bars([Bar(name, f"{share:.3f}", share) for name, share in rows], part=2, most=32)
