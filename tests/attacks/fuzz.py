"""Damaged files for every reader, by the hundred thousand: `pytest tests/attacks -k damaged --mutations 100000`.

Each mutation is read in its own right and counted: read (the damage was harmless), refused (by an error of ours), or a
finding: an exception that is not ours, a result that breaks the rules, code that was run. Mutation i of a reader is
always the same for one seed, however many run and in how many processes.
"""

from __future__ import annotations

import faulthandler
import random
import resource
import sys
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from attacks.readers import READERS
from headscope.errors import HeadscopeError

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


def fuzz(name: str, indices: Iterable[int], seed: int, keep: Path) -> Counts:
    """Read these mutations of one reader; the files of findings are kept in a folder."""
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
            if counts.foreign > before:
                (keep / f"{name}-{index}").write_bytes(data)
        faulthandler.cancel_dump_traceback_later()
    return counts


def _finding(name: str, index: int, error: BaseException) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if "headscope" in frame.filename] or frames
    kind = f"{type(error).__name__} at {Path(inside[-1].filename).name}:{inside[-1].lineno}"
    return Finding(name, index, kind, "".join(traceback.format_exception(error)[-6:])[-2000:])


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
