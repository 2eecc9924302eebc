"""Progress of a survey: documents, tokens a second, time left, and reports of damage as lines."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from headscope.progress_bar import Work, clock, progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from headscope.atlas.run import Tally


@contextmanager
def progress_on(stream: TextIO, folder: Path) -> Iterator[Callable[[Tally], None]]:
    """Yield the callback for a survey's progress. When interrupted, say what is finished and how to resume."""
    try:
        with progress_bar("survey", stream) as work, _damage_as_lines(work.line):
            yield tally_shown(work)
    except KeyboardInterrupt:
        done = len(list(folder.glob("parts/part-*.parquet")))
        if not done:
            raise
        stream.write(f"stopped: {done:,} finished parts are kept in {folder}; run the same command to resume\n")
        raise


def tally_shown(work: Work) -> Callable[[Tally], None]:
    """The callback that shows a survey's tally; seconds count from its first call, when the model is loaded."""
    work.text = "loading the model"
    started: list[float] = []

    def show(tally: Tally) -> None:
        if not started:
            started.append(time.monotonic())
        work(tally.weight, tally.total, described(tally, time.monotonic() - started[0]))

    return show


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
