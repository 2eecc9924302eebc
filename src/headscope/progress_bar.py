"""Progress of long work: a bar on a terminal and in notebooks; elsewhere a line every 30 seconds, and Python's log.

    with progress_bar("layers", sys.stderr) as work:  # a command; from Python, without a stream
        for done in range(12):
            work(done, 12)

From Python nothing is printed outside of notebooks: the lines go to the logger `headscope`, level INFO. Work that is
done within half a second says nothing anywhere.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, TextIO

LOG = logging.getLogger("headscope")
EVERY = 30.0
"""Seconds between two lines where no bar is drawn."""
PATIENCE = 0.5
"""Seconds before a bar is drawn; importing what draws it would take a third of a short command's time."""


class Work:
    """Long work, and how far it is: called with what is done and all there is, in any unit, or None if unknown.

    Attributes:
        what: what is done, in a word or two: `layers`.
        stream: where a bar or lines go; None from Python.
    """

    def __init__(self, what: str, stream: TextIO | None) -> None:
        self.what, self.stream = what, stream
        self.began = time.monotonic()
        self.done = 0.0
        self.total: float | None = None
        self.text = ""
        self._drawn = in_notebook() if stream is None else stream.isatty()
        self._bar: Any = None

    def __call__(self, done: float, total: float | None = None, text: str = "") -> None:
        """Say how much is done, of how much; `text` says it in words where these numbers alone don't."""
        self.done, self.total, self.text = done, total, text
        if self._bar is None:
            if not self._drawn or time.monotonic() - self.began < PATIENCE or done == total:
                return
            self._bar = _tqdm(self.stream, total)
        self._bar.total = total
        self._bar.n = done
        self._bar.set_description_str(str(self), refresh=False)
        self._bar.refresh()

    def line(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.clear()
        print(text, file=self.stream or sys.stderr)
        if self._bar is not None:
            self._bar.refresh()

    def __str__(self) -> str:
        """The work, how much of it is done, and the time left."""
        if self.text:
            return f"{self.what}: {self.text}"
        if self.total is None:
            return f"{self.what}: {self.done:,.0f}" if self.done else self.what
        seconds = time.monotonic() - self.began
        left = f", {clock(seconds * (self.total - self.done) / self.done)} left" if self.done else ""
        return f"{self.what}: {self.done:,.0f}/{self.total:,.0f}{left}"

    def tell(self) -> None:
        """Write how far it is to the log, and to a stream without a bar."""
        LOG.info("%s", self)
        if self.stream is not None and not self._drawn:
            print(self, file=self.stream, flush=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()


@contextmanager
def progress_bar(what: str, stream: TextIO | None = None) -> Iterator[Work]:
    """Show how far long work is, while the block runs.

    Args:
        what: what is done: `layers`.
        stream: standard error, for a command: a bar if it is a terminal, else lines. None from Python.
    """
    work, ended = Work(what, stream), Event()

    def now_and_then() -> None:
        while not ended.wait(EVERY):
            work.tell()

    teller = Thread(target=now_and_then, name="headscope progress", daemon=True)
    teller.start()
    try:
        yield work
    finally:
        ended.set()
        teller.join()
        work.close()


@contextmanager
def told(progress: Callable[[int, int], None] | None, what: str) -> Iterator[Callable[[int, int], None]]:
    """The caller's own callback; without one, a bar in notebooks and lines of the log."""
    if progress is not None:
        yield progress
        return
    with progress_bar(what) as work:
        yield work


def in_notebook() -> bool:
    """Return True in a kernel of Jupyter, whose output can draw a bar."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


def _tqdm(stream: TextIO | None, total: float | None) -> Any:
    """A bar of tqdm: on a stream, or as a notebook shows it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that ipywidgets, without which the bar is text, is not installed
        from tqdm import tqdm as on_terminal
        from tqdm.auto import tqdm as in_output

        form = "{desc} {bar}"
        if stream is None:
            return in_output(total=total, leave=False, bar_format=form)
        return on_terminal(total=total, file=stream, leave=False, bar_format=form, dynamic_ncols=True)


def clock(seconds: float) -> str:
    """Seconds as 12 s, 3:05 or 2:03:05."""
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours}:{minutes:02}:{whole % 60:02}"
    return f"{minutes}:{whole % 60:02}" if minutes else f"{whole} s"
