"""Screen of filled masks: the text, and below it the likeliest tokens for each mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headscope.checkpoint import called
from headscope.screens.labels import printable
from headscope.screens.pieces import highlighted, noted, shown_tokens
from headscope.screens.tables import Column, Table
from headscope.screens.terminal import Bar, Drawing, Sheet, bars, blank, notes, title

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
    found = zip(mask.tokens, mask.probabilities, strict=True)
    return bars([Bar(printable(token), f"{chance:.3f}", chance) for token, chance in found], most=24)
