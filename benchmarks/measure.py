"""Measuring: whole processes or functions, alternating (A B A B …), with medians and ratios within one run."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CLOCK = os.environ.get("HEADSCOPE_BENCHMARK_CLOCK", "wall")
"""`wall`, or `processor`: the seconds that processors spent, which a busy machine changes far less."""


def now() -> float:
    """Seconds of the clock; those of processors are this process's, in all of its threads."""
    return time.process_time() if CLOCK == "processor" else time.perf_counter()


@dataclass(frozen=True)
class Run:
    """One whole process: seconds of the clock, and the peak of its resident memory in MB."""

    seconds: float
    megabytes: float


@dataclass(frozen=True)
class Pair:
    """Two alternating measurements.

    Attributes:
        ours, theirs: the median of each, in seconds.
        ratio: the median of theirs / ours, pair by pair.
        low, high: the smallest and largest of those ratios.
        rounds: seconds of (ours, theirs) in each round.
        megabytes: the largest peak of each, where whole processes were measured.
    """

    ours: float
    theirs: float
    ratio: float
    low: float
    high: float
    rounds: tuple[tuple[float, float], ...]
    megabytes: tuple[float, float] | None = None


def process(command: Sequence[str], environment: dict[str, str] | None = None) -> Run:
    """Run a command to its end; discard its output, but show a failure."""
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        child = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
        _, status, usage = os.wait4(child.pid, 0)
        seconds = usage.ru_utime + usage.ru_stime if CLOCK == "processor" else time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            output.seek(0)
            raise RuntimeError(f"{' '.join(command)} exited with {child.returncode}:\n{output.read().decode()[-2000:]}")
    return Run(seconds, usage.ru_maxrss / (1 if sys.platform == "darwin" else 1024))


def pair_processes(
    ours: Sequence[str], theirs: Sequence[str], *, rounds: int, environment: dict[str, str] | None = None
) -> Pair:
    """Alternate two commands, after one warm-up of each."""
    process(ours, environment), process(theirs, environment)
    runs = [(process(ours, environment), process(theirs, environment)) for _ in range(rounds)]
    return _pair(
        [ours.seconds for ours, _ in runs],
        [theirs.seconds for _, theirs in runs],
        (max(ours.megabytes for ours, _ in runs), max(theirs.megabytes for _, theirs in runs)),
    )


def pair_calls(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    rounds: int,
    clock: Callable[[], float] = now,
) -> Pair:
    """Alternate two functions within this process, after one warm-up of each, by the clock above or another."""

    def seconds(call: Callable[[], object]) -> float:
        started = clock()
        call()
        return clock() - started

    ours(), theirs()
    runs = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    return _pair([one for one, _ in runs], [other for _, other in runs], None)


def _pair(ours: list[float], theirs: list[float], megabytes: tuple[float, float] | None) -> Pair:
    rounds = tuple(zip(ours, theirs, strict=True))
    ratios = [b / a for a, b in rounds]
    return Pair(
        statistics.median(ours),
        statistics.median(theirs),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        rounds,
        megabytes,
    )
