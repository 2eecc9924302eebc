"""A grid of heads in the terminal: layers down, heads across, in as many blocks as the width needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headscope.view.terminal import Drawing, Line, Paper, text_line


def head_grid(
    layers: Sequence[int], heads: Sequence[int], cell: Callable[[int, int, Paper], tuple[str, str]], *, room: int
) -> Drawing:
    """Draw one cell for each head.

    Args:
        layers: the layers' numbers.
        heads: the heads' numbers.
        cell: the text, `room` columns wide, and the style of the cell of (layer, head).
        room: width of a cell in columns.
    """

    number = max([2, *(len(str(layer)) for layer in layers)])
    margin = len("layer ") + number  # of two digits: twelve heads of six columns take 80

    def draw(paper: Paper) -> Iterable[Line]:
        fit = max(1, (paper.width - margin) // room)
        for first in range(0, len(heads), fit):
            columns = heads[first : first + fit]
            yield text_line(f"{'head':>{margin}}" + "".join(f"{head:>{room}}" for head in columns), "bold")
            for layer in layers:
                yield ((f"layer {layer:>{number}}", "bold"), *(cell(layer, head, paper) for head in columns))

    return draw
