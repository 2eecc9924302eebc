"""What filling masks looks like: the text, and under it the best pieces for each mask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headscope.checkpoint import called
from headscope.view.labels import clip, pad, printable, width
from headscope.view.tables import Column, Table
from headscope.view.terminal import Drawing, Line, Paper, Sheet, bar, blank, notes, title
from headscope.view.trace_lines import highlighted, shown_tokens

if TYPE_CHECKING:
    from headscope._trace import Trace
    from headscope.filling import Filled

COLUMNS = (
    Column("position", align="right"),
    Column("token", "piece", kind="code"),
    Column("id", align="right", form="d"),
    Column("probability", align="right", form=".4f"),
)


def fill_sheet(trace: Trace, filled: Sequence[Filled]) -> Sheet:
    """The best pieces for each mask, with their probabilities."""
    rows = tuple(
        (one.position, token, index, chance)
        for one in filled
        for token, index, chance in zip(one.tokens, one.ids, one.probabilities, strict=True)
    )
    masks = f"{len(filled)} mask{'s' if len(filled) > 1 else ''}"
    drawings: list[Drawing] = [title(called(trace.model), f"{masks}; tokens count from 0")]
    for one in filled:
        drawings += [blank, highlighted(shown_tokens(trace), one.position), guesses(one)]
    drawings.append(notes(["probabilities are over the whole vocabulary; a full bar is 1"]))
    return Sheet(
        record=lambda: {
            "model": trace.model,
            "tokens": trace.tokens,
            "masks": [
                {
                    "position": one.position,
                    "pieces": [
                        {"token": token, "id": index, "probability": chance}
                        for token, index, chance in zip(one.tokens, one.ids, one.probabilities, strict=True)
                    ],
                }
                for one in filled
            ],
        },
        table=lambda: Table(COLUMNS, rows),
        drawings=tuple(drawings),
    )


def guesses(one: Filled) -> Drawing:
    """One mask's best pieces as bars."""

    def draw(paper: Paper) -> Iterable[Line]:
        names = [printable(token) for token in one.tokens]
        label = min(24, paper.width // 3, max(map(width, names)))
        room = max(8, min(60, paper.width - label - 11))
        for name, chance in zip(names, one.probabilities, strict=True):
            shown = pad(clip(name, label, paper.sign("…", ".")), label)
            yield ((f"  {shown}  {chance:.3f} ", ""), (bar(chance, room, paper), "cyan"))

    return draw
