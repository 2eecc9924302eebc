"""Damaged files for every reader, by the hundred thousand: `python tests/attacks/fuzz.py --mutations 100000`.

Each mutation is read in its own right and counted: read (the damage was harmless), refused (by an error of ours), or a
finding: an exception that is not ours, a result that breaks the rules, code that was run. A finding is
printed with the command that repeats it. The exit code is 0 only if there is none.

Mutation i of a reader is always the same for one seed, however many run and in how many processes.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

if __name__ in ("__main__", "__mp_main__"):
    tests = Path(__file__).resolve().parents[1]
    sys.path[:1] = [str(tests), str(tests / "helpers")]
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")  # one process per core

from attacks.readers import READERS
from headscope.errors import HeadscopeError

CHUNK = 500
MOST_MEMORY = 8 << 30
LONGEST_SECONDS = 600
"""A guard against hanging: a process that takes longer over 100 mutations is ended."""

CODE = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "subprocess.Popen", "pickle.find_class")
CODE += ("socket.connect", "socket.bind", "ctypes.dlopen", "shutil.rmtree", "os.remove")
"""Audit events that no reader has a reason for while it reads."""


@dataclass
class Finding:
    """One mutation that was neither read nor refused.

    Attributes:
        reader: its name.
        index: which of the reader's mutations.
        kind: the exception's class and the place that raised it, or what else happened.
        detail: the end of the traceback.
    """

    reader: str
    index: int
    kind: str
    detail: str


@dataclass
class Counts:
    """The results of a reader's mutations.

    Attributes:
        mutations, read, refused, foreign, code: how many; code that was run counts as foreign too.
        findings: one of each kind, the first.
    """

    mutations: int = 0
    read: int = 0
    refused: int = 0
    foreign: int = 0
    code: int = 0
    findings: dict[str, Finding] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        for name in ("mutations", "read", "refused", "foreign", "code"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for kind, finding in other.findings.items():
            first = self.findings.setdefault(kind, finding)
            if finding.index < first.index:
                self.findings[kind] = finding

    def found(self, finding: Finding) -> None:
        self.foreign += 1
        self.findings.setdefault(finding.kind, finding)


_events: list[str] = []
_watching = False


def _audit(event: str, _arguments: object) -> None:
    if _watching and event in CODE:
        _events.append(event)


_places: dict[str, tuple[list[bytes], TemporaryDirectory[str]]] = {}


def prepared(name: str) -> tuple[list[bytes], Path]:
    """A reader's whole files and its folder, made once in this process; the first file is read as it is."""
    if name not in _places:
        limit, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))  # a survey maps libraries of its own while it is made
        place = TemporaryDirectory(prefix="headscope-fuzz-")
        files = READERS[name].prepare(Path(place.name))
        READERS[name].read(files[0], Path(place.name))
        _places[name] = files, place
        if limit != most:
            limit_memory()
    files, place = _places[name]
    return files, Path(place.name)


def mutation(name: str, index: int, seed: int, files: list[bytes]) -> bytes:
    """Mutation `index` of a reader."""
    rng = random.Random(f"{seed}/{name}/{index}")
    return rng.choice(READERS[name].mutations)(rng, rng.choice(files), files)


def fuzz(name: str, indices: Iterable[int], seed: int, keep: Path | None = None) -> Counts:
    """Read these mutations of one reader, in this process.

    Args:
        keep: a folder for the files of findings.
    """
    global _watching
    counts = Counts()
    reader = READERS[name]
    files, folder = prepared(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for index in indices:
            data = mutation(name, index, seed, files)
            if counts.mutations % 100 == 0:
                faulthandler.dump_traceback_later(LONGEST_SECONDS, exit=True)
            counts.mutations += 1
            before = counts.foreign
            _watching = True
            try:
                reader.read(data, folder)
                counts.read += 1
            except HeadscopeError as error:
                counts.refused += 1
                if not (error.where and error.advice and len(str(error)) < 5000):
                    counts.found(Finding(name, index, "an error without place or advice, or a long one", str(error)))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 -- a panic of Rust code derives from BaseException alone
                counts.found(_finding(name, index, error))
            finally:
                _watching = False
            if _events:
                counts.code += 1
                counts.found(Finding(name, index, f"code: {_events[0]}", ", ".join(_events)))
                _events.clear()
            if keep is not None and counts.foreign > before:
                (keep / f"{name}-{index}").write_bytes(data)
        faulthandler.cancel_dump_traceback_later()
    return counts


def _finding(name: str, index: int, error: BaseException) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if "headscope" in frame.filename] or frames
    kind = f"{type(error).__name__} at {Path(inside[-1].filename).name}:{inside[-1].lineno}"
    return Finding(name, index, kind, "".join(traceback.format_exception(error)[-6:])[-2000:])


def _start(worker: bool) -> None:
    if worker:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    watch()
    limit_memory()


@cache
def watch() -> None:
    """Note code that is run while a reader reads. Python keeps a hook as long as the process lives: one is enough."""
    sys.addaudithook(_audit)


def limit_memory() -> None:
    """Let this process take MOST_MEMORY more than it has."""
    import torch  # noqa: F401 -- its libraries are mapped before the limit

    linux = sys.platform == "linux"
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if linux else 0
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def forget() -> None:
    """Remove the files of all readers."""
    for _, place in _places.values():
        place.cleanup()
    _places.clear()


def run(names: list[str], indices: range, seed: int, jobs: int, keep: Path | None) -> tuple[dict[str, Counts], bool]:
    """All mutations of all readers, in several processes; what came of them, and whether it was interrupted."""
    results = {name: Counts() for name in names}
    chunks = [(name, indices[at : at + CHUNK]) for name in names for at in range(0, len(indices), CHUNK)]

    def done(name: str, counts: Counts) -> None:
        results[name].add(counts)
        if results[name].mutations == len(indices):
            print(name, results[name], file=sys.stderr, flush=True)

    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _start, (True,))
    waiting: dict[Future[Counts], tuple[str, range]] = {}
    try:
        if jobs == 1:
            _start(worker=False)
            for name, part in chunks:
                done(name, fuzz(name, part, seed, keep))
            return results, False
        waiting = {pool.submit(fuzz, name, part, seed, keep): (name, part) for name, part in chunks}
        for future in as_completed(waiting):
            name, part = waiting[future]
            done(name, future.result())
    except BrokenProcessPool:
        lost = [waiting[future] for future in waiting if not future.done() or future.exception() is not None]
        name, part = lost[0]
        detail = f"a process died or hung in one of: {', '.join(f'{one} {two}' for one, two in lost[:jobs])}"
        results[name].found(Finding(name, part[0], "a process died", detail))
    except KeyboardInterrupt:
        return results, True
    finally:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
    return results, False


def show(results: dict[str, Counts], seed: int) -> None:
    """The counts as a table, then each kind of finding."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 110)
    table = Table(title=f"mutations with seed {seed}")
    for column in ("reader", "mutations", "read", "refused", "foreign", "code run"):
        table.add_column(column, justify="left" if column == "reader" else "right", no_wrap=True)
    for name, counts in results.items():
        numbers = (counts.mutations, counts.read, counts.refused, counts.foreign, counts.code)
        table.add_row(name, *(f"{number:,}" for number in numbers))
    console.print(table)
    for counts in results.values():
        for finding in counts.findings.values():
            console.print(f"\n{finding.reader}: {finding.kind}", style="bold", markup=False, highlight=False)
            console.print(finding.detail, markup=False, highlight=False)
            again = f"python tests/attacks/fuzz.py --reader {finding.reader} --seed {seed} --only {finding.index}"
            console.print(f"again: {again} --keep FOLDER", markup=False, highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=100_000, help="per reader")
    parser.add_argument("--reader", action="append", choices=list(READERS), help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--only", type=int, help="only this mutation")
    parser.add_argument("--keep", type=Path, help="a folder for the files of findings")
    given = parser.parse_args()
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    indices = range(given.mutations) if given.only is None else range(given.only, given.only + 1)
    results, interrupted = run(given.reader or list(READERS), indices, given.seed, given.jobs, given.keep)
    show(results, given.seed)
    if interrupted:
        return 130
    return int(any(counts.foreign for counts in results.values()))


if __name__ == "__main__":
    sys.exit(main())
