"""Progress of a long forward pass on a terminal, in layers. A short one shows nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 0.5
"""Seconds before a bar appears. Importing rich alone would take a third of a short command's time."""


@contextmanager
def layer_progress(stream: TextIO) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback for a forward pass, called with the layers done and all layers; None without a terminal."""
    if not stream.isatty():
        yield None
        return
    started = time.monotonic()
    with ExitStack() as stack:
        bar: Progress | None = None

        def update(done: int, layers: int) -> None:
            nonlocal bar
            if bar is None:
                if time.monotonic() - started < PATIENCE or done >= layers:
                    return
                bar = stack.enter_context(_bar(stream))
                bar.add_task("layers", total=layers)
            bar.update(bar.task_ids[0], completed=done)

        yield update


def _bar(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(file=stream), transient=True)
