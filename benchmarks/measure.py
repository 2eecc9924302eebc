"""Measuring: whole processes or functions, alternating (A B A B …), with medians and ratios within one run."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
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
    warm_ups: int = 1,
) -> Pair:
    """Alternate two functions within this process; arguments as for `in_turn`."""
    seconds = in_turn({"ours": ours, "theirs": theirs}, rounds=rounds, clock=clock, warm_ups=warm_ups)
    return _pair(seconds["ours"], seconds["theirs"], None)


def in_turn(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    clock: Callable[[], float] = now,
    times: int = 1,
    warm_ups: int = 1,
) -> dict[str, list[float]]:
    """Seconds of each function in each round, in which the functions follow one another.

    Args:
        calls: the functions, by name.
        rounds: number of rounds.
        clock: seconds; by default, of the clock above.
        times: number of calls in a row in each round, whose mean is the round's figure: more for short functions.
        warm_ups: number of calls of each function before the first round.
    """
    for call in calls.values():
        for _ in range(warm_ups):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started = clock()
            for _ in range(times):
                call()
            seconds[name].append((clock() - started) / times)
    return seconds


WARM = 5
"""Warm-ups of a forward pass."""


def limit_threads(count: int) -> None:
    """Limit the threads of BLAS and of torch; to be called before either is imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(count)
    import torch

    torch.set_num_threads(count)


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
