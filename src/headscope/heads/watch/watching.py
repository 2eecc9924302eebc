"""`with hs.watch(model, texts, tokenizer=tokenizer) as watch: … watch.step(step)`: heads while a model trains."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headscope.errors import InputError
from headscope.heads.kinds import counts
from headscope.heads.on_live import TextSet
from headscope.heads.picture import draw
from headscope.heads.watch.steps import Steps, check_pyarrow, file_table, read_steps, table_of, write_steps
from headscope.late import renamed
from headscope.live.evaluating import device_of, wait_for
from headscope.results.measure import Head, HeadValues
from headscope.results.rows import Rows
from headscope.results.table import HeadTable

if TYPE_CHECKING:
    import pyarrow
    from torch import nn


class Watch(Rows):
    """Records the statistics of every head at some steps of a training run; `table` has them.

    Attributes:
        every: the number of steps between two measurements.
        statistics: their names.
        steps: the steps that were measured.
        heads: (layer, head) of every head, layer 0's first; empty before the first measurement.
        seconds: the time that measuring took.
    """

    def __init__(self, texts: TextSet, *, every: int, out: Path | None) -> None:
        self.every = every
        self.statistics = texts.names
        self.heads: tuple[Head, ...] = ()
        self.seconds = 0.0
        self.out = out
        self._texts = texts
        self._values: Steps = {}
        self._measured: HeadTable | None = None
        self._last: int | None = None
        self._started: float | None = None
        self._ended: float | None = None

    def __enter__(self) -> Watch:
        self._started, self._ended = time.perf_counter(), None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and self._last is not None and self._last not in self._values:
            self.measure(self._last)
        self._ended = time.perf_counter()

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that were measured, in order."""
        return tuple(self._values)

    @property
    def share(self) -> float:
        """The share of the time since the block began that measuring took, 0 to 1."""
        if self._started is None:
            return 0.0
        return self.seconds / max((self._ended or time.perf_counter()) - self._started, 1e-9)

    def step(self, step: int) -> bool:
        """Say which step training has reached; every `every`-th is measured, and the last one as the block ends.

        Returns:
            True if this step was measured.

        Raises:
            InputError: the steps don't go up.
        """
        at = _step(step)
        if self._last is not None and at < self._last:
            raise InputError(
                f"step {at} comes after step {self._last}",
                where="watch.step",
                advice="number the steps of the whole training run, not of an epoch",
            )
        self._last = at
        if at % self.every or at in self._values:
            return False
        self.measure(at)
        return True

    def measure(self, step: int) -> None:
        """Measure now, whatever `every` says, and write the file where there is one."""
        at = _step(step)
        device = device_of(self._texts.model)
        wait_for(device)
        began = time.perf_counter()
        heads, values = self._texts.measure()
        if self.heads and heads != self.heads:
            raise InputError(
                f"the model has {len(heads)} heads and had {len(self.heads)} before",
                where=f"step {at}",
                advice="watch a model whose layers and heads stay; begin a new watch where heads are pruned",
            )
        self.heads, self._measured = heads, None
        self._values[at] = values
        self._last = max(at, self._last or 0)
        if self.out is not None:
            self.save(self.out)
        self.seconds += time.perf_counter() - began

    def resume(self, step: int) -> None:
        """Take over the steps up to this one that an earlier run wrote to `out`; later ones are trained anew.

        Raises:
            InputError: the file is not one of a watch over the same statistics.
        """
        if self.out is not None and self.out.is_file():
            self.heads, self._values = read_steps(self.out, self.statistics, until=step)
            self._measured = None

    @property
    def measured(self) -> HeadTable:
        """The measurements along `steps`: arrays are (steps, layers, heads)."""
        if self._measured is None:
            self._measured = table_of(self._values, self.heads, self.statistics)
        return self._measured

    def __getitem__(self, statistic: str) -> HeadValues:
        """(steps, layers, heads): a statistic over training; NaN where a layer lacks a head.

        Raises:
            InputError: the statistic is not watched.
        """
        return self.measured[statistic]

    def patterns(self) -> list[dict[str, int]]:
        """For each step the number of heads of each pattern: previous, same, next, first, sep, even, mixed.

        A head is called by the place that gets 0.4 or more of its mean weight, as `headscope attend` calls it.

        Raises:
            InputError: the statistics that patterns are named by are not all watched.
        """
        return counts(self.measured)

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each step and head: step, layer, head, then the statistics."""
        return self.measured.rows()

    def arrow(self) -> pyarrow.Table:
        """The rows as a table of pyarrow, as in the file."""
        return file_table(self.measured)

    def table(self) -> pyarrow.Table:
        """`arrow`, as it was called."""
        renamed("Watch.table()", "Watch.arrow()")
        return self.arrow()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the table as Parquet, whole or not at all.

        Raises:
            MissingExtraError: pyarrow is not installed.
            InputError: the file can't be written.
        """
        path = Path(path)
        write_steps(self.measured, path)
        return path

    def plot(self, path: str | os.PathLike[str], statistics: str | Iterable[str] | None = None) -> Path:
        """Draw heads as they form: a panel per statistic, steps along, a line for each head in its layer's colour.

        Args:
            path: ends in .svg, .pdf or .png.
            statistics: names; by default the places that patterns are named by, and the entropy.

        Raises:
            MissingExtraError: matplotlib is not installed; it comes with headscope[plot].
            InputError: nothing was measured, a statistic is not watched, or the file can't be written.
        """
        return draw(self.measured, Path(path), statistics)

    def __repr__(self) -> str:
        if not self._values:
            return f"watch of {type(self._texts.model).__name__}: nothing measured yet, every {self.every} steps"
        layers = len({layer for layer, _ in self.heads})
        return (
            f"watch of {type(self._texts.model).__name__}: {len(self.heads)} heads in {layers} layers at "
            f"{len(self._values)} steps, {self.steps[0]:,} to {self.steps[-1]:,}; {self.seconds:.2g} s, "
            f"{self.share:.1%} of the time"
        )


def watch(
    model: nn.Module,
    texts: Sequence[str],
    *,
    tokenizer: Any,
    every: int = 500,
    out: str | os.PathLike[str] | None = None,
    statistics: str | Iterable[str] | None = None,
    length: int | None = None,
) -> Watch:
    """Measure every head at some steps of a training loop, and leave no mark on the training.

    `with hs.watch(model, texts, tokenizer=tokenizer) as watch:` and, in the loop, `watch.step(step)`. See
    docs/training.md.

    Args:
        model: a model of transformers; it is measured without what sits on top.
        texts: a few texts, the same at every step. Longer ones are cut into windows.
        tokenizer: the model's tokenizer, a fast one.
        every: the number of steps between two measurements.
        out: a Parquet file that is written anew after each measurement; none by default.
        statistics: names; by default all that follow from weights.
        length: tokens of a window; by default 512, or what the model takes.

    Raises:
        InputError: no texts or tokenizer, an unknown statistic, `every` below 1.
        UnsupportedError: attention that capture can't see, or a tokenizer without a fast form.
        MissingExtraError: `out` without pyarrow, or no torch.
    """
    number = _number(every)
    if number is None or number < 1:
        raise InputError(f"every {every!r:.40} steps", where="every", advice="give a whole number from 1")
    if out is not None:
        check_pyarrow()
    reading = TextSet(model, texts, tokenizer=tokenizer, statistics=statistics, length=length)
    return Watch(reading, every=number, out=None if out is None else Path(out))


def _step(step: Any) -> int:
    number = _number(step)
    if number is None or number < 0:
        raise InputError(f"{step!r:.40} is not a step", where="watch.step", advice="give a whole number from 0")
    return number


def _number(given: Any) -> int | None:
    try:
        return operator.index(given)
    except TypeError:
        return None
