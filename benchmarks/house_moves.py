"""The files that a command passes, and its moves: calls that go from one file of headscope to another.

A call counts wherever it comes from: through another library, in any thread; a generator's resumption is a call, too.
Left out are the bodies of modules, and what they call while they are imported. `run` measures a command of COMMANDS in
a process of its own, so that nothing was imported, opened or copied before.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

TEXT = "The cat sat on the mat."
CORPUS = ("The cat sat on the mat. ", "She took off her hat, and the cat sat down on it. ")
"""Text of each of the survey's documents, which repeat it eight times."""

COMMANDS = {
    "attend": f'headscope attend - "{TEXT}" --heads 0.3',
    "capture": "with hs.capture(model) as captured: model(**inputs); captured.trace[0, 3].weights[:]",
    "survey": "headscope survey - CORPUS --out OUT --set threads=1 --labels --examples 2 --effects 2",
}
"""Name -> what is measured, as a reader would repeat it."""
RESULT = "moves.json"


class Moves(NamedTuple):
    """What a command did.

    Attributes:
        files: functions of so many files ran.
        moves: so many calls went from one file to another.
        busiest: (from, to, number) of the most frequent moves.
    """

    files: int
    moves: int
    busiest: list[tuple[str, str, int]]


def moves_of(command: Callable[[], object], folder: Path) -> Moves:
    """Run a function, and count the moves between the files of a folder."""
    start = f"{folder}{os.sep}"
    files: set[str] = set()
    moves: Counter[tuple[str, str]] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(start) or frame.f_code.co_name == "<module>":
            return
        files.add(file)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(start):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_name != "<module>" and caller.f_code.co_filename != file:
            moves[caller.f_code.co_filename.removeprefix(start), file.removeprefix(start)] += 1

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        command()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Moves(len(files), moves.total(), [(*pair, count) for pair, count in moves.most_common(5)])


def run(name: str) -> Moves:
    """The moves of one of COMMANDS, in a process of its own, as on a terminal of 100 columns without colours."""
    environment = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, name, folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{COMMANDS[name]} exited with {done.returncode}:\n{done.stderr[-2000:]}")
        return Moves(*json.loads((Path(folder) / RESULT).read_text()))


def _command_line(*words: str) -> Callable[[], object]:
    """A command as `headscope` runs it."""

    def command() -> None:
        sys.argv = ["headscope", *words]
        from headscope.cli import main

        try:
            main()
        except SystemExit as end:
            if end.code:
                raise

    return command


def _capture() -> Callable[[], object]:
    """A capture of the bundled model, opened by transformers beforehand, and one head's weights."""
    import torch
    import transformers

    import headscope as hs
    from headscope.checkpoint.resolve import BUNDLED

    model: Any = transformers.BertModel.from_pretrained(BUNDLED)  # which is in evaluation mode
    inputs = transformers.AutoTokenizer.from_pretrained(BUNDLED, trust_remote_code=False)(TEXT, return_tensors="pt")

    def command() -> None:
        with hs.capture(model) as captured, torch.inference_mode():
            model(**inputs)
        captured.trace[0, 3].weights[:]

    return command


def _survey(folder: Path) -> Callable[[], object]:
    """The survey of CORPUS. What it imports from elsewhere is imported beforehand: it has no moves, and takes long."""
    for module in ("torch", "transformers.models.bert", "pyarrow.parquet"):
        importlib.import_module(module)
    (folder / "corpus").mkdir()
    for number, text in enumerate(CORPUS):
        (folder / "corpus" / f"{number}.txt").write_text(text * 8, encoding="utf-8")
    options = ("--set", "threads=1", "--labels", "--examples", "2", "--effects", "2")
    return _command_line("survey", "-", str(folder / "corpus"), "--out", str(folder / "out"), *options)


def main(name: str, folder: Path) -> None:
    """Write the moves of one of COMMANDS into a folder."""
    import headscope

    if name == "attend":
        command = _command_line("attend", "-", TEXT, "--heads", "0.3")
    else:
        command = _capture() if name == "capture" else _survey(folder)
    (folder / RESULT).write_text(json.dumps(moves_of(command, Path(headscope.__file__).parent)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
