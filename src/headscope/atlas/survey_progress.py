"""Progress of a survey on a terminal: documents, tokens a second, time left. Elsewhere, only reports of damage."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from headscope.atlas.run import Tally


@contextmanager
def progress_on(stream: TextIO, folder: Path) -> Iterator[Callable[[Tally], None]]:
    """Yield the callback for a survey's progress. When interrupted, say what is finished and how to resume."""
    try:
        with _bar(stream) as (draw, print_line), _damage_as_lines(print_line):
            yield draw
    except KeyboardInterrupt:
        done = len(list(folder.glob("parts/part-*.parquet")))
        if not done:
            raise
        stream.write(f"stopped: {done:,} finished parts are kept in {folder}; run the same command to resume\n")
        raise


@contextmanager
def _damage_as_lines(print_line: Callable[[str], None]) -> Iterator[None]:
    """Print each DamageWarning as a line of its own instead of in Python's format."""
    from headscope.atlas.survey_data import DamageWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", DamageWarning)
        show_other = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, DamageWarning):
                print_line(f"damaged: {message}")
            else:
                show_other(message, category, *place, **more)

        warnings.showwarning = show
        yield


@contextmanager
def _bar(stream: TextIO) -> Iterator[tuple[Callable[[Tally], None], Callable[[str], None]]]:
    """Yield a function that draws the bar, and one that prints a line above it."""
    if not stream.isatty():
        yield lambda tally: None, lambda line: print(line, file=stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("loading the model", total=None)
        started: list[float] = []

        def draw(tally: Tally) -> None:
            if not started:
                started.append(time.monotonic())
            seconds = time.monotonic() - started[0]
            bar.update(task, description=described(tally, seconds), total=tally.total, completed=tally.weight)

        yield draw, lambda line: bar.console.print(line, markup=False, highlight=False, soft_wrap=True)


def described(tally: Tally, seconds: float) -> str:
    """Documents, tokens a second and time left, after `seconds` of this run."""
    if tally.stage:
        return tally.stage
    words = [f"{tally.documents:,} documents"]
    if tally.kept_parts:
        words.append(f"{tally.kept_parts:,} parts kept")
    done = tally.weight - tally.kept
    if tally.tokens and seconds > 0:
        words.append(f"{tally.tokens / seconds:,.0f} tokens/s")
        if tally.total is not None and done > 0:
            words.append(f"{clock((tally.total - tally.weight) * seconds / done)} left")
    return " · ".join(words)


def clock(seconds: float) -> str:
    """Seconds as 12 s, 3:05 or 2:03:05."""
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours}:{minutes:02}:{whole % 60:02}"
    return f"{minutes}:{whole % 60:02}" if minutes else f"{whole} s"
