"""Screen of filled masks: the text, and below it the likeliest tokens for each mask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headscope.checkpoint import called
from headscope.screens.labels import fitted, printable, width
from headscope.screens.pieces import highlighted, noted, shown_tokens
from headscope.screens.tables import Column, Table
from headscope.screens.terminal import Drawing, Line, Paper, Sheet, bar, blank, notes, title

if TYPE_CHECKING:
    from headscope.results.explained import Filled
    from headscope.traces import Trace

COLUMNS = (
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
        table=lambda: Table(COLUMNS, rows),
        drawings=tuple(drawings),
    )


def guesses(mask: Filled) -> Drawing:
    """The likeliest tokens for one mask, as bars."""

    def draw(paper: Paper) -> Iterable[Line]:
        names = [printable(token) for token in mask.tokens]
        label = min(24, paper.width // 3, max(map(width, names)))
        room = max(8, min(60, paper.width - label - 11))
        for name, chance in zip(names, mask.probabilities, strict=True):
            label_text = fitted(name, label, paper.sign("…", "."))
            yield ((f"  {label_text}  {chance:.3f} ", ""), (bar(chance, room, paper), "cyan"))

    return draw
