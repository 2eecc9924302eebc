"""What surrounds the command: its streams, numbers of any size, Ctrl-C at any moment."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from commands import run
from making import sparse_safetensors, write_config
from patience import PATIENCE
from products import pairwise
from small_bert import small_bert

HEADSCOPE = f"{sys.executable} -m headscope"
COMMANDS = {
    "help": "--help",
    "shapes": "shapes {small} --json",
    "attend": "attend {small} cat",
}


@pytest.fixture(scope="module")
def small(small):
    """A checkpoint's folder, as a shell takes it: temporary folders may have spaces in their names."""
    return shlex.quote(small)


def shell(line: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """A line for bash; `headscope` in it is the command."""
    line = line.replace("headscope", HEADSCOPE, 1)
    names = ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    env = {**kept, "PYTHONIOENCODING": "utf-8", "HF_HUB_OFFLINE": "1", **more}
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        env=env,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_streams_that_are_full_or_broken(small: str, command: str) -> None:
    line = f"headscope {command.format(small=small)}"
    whole = shell(line)
    assert whole.returncode == 0, whole.stderr
    done = shell(f"{line} | true")
    assert (done.returncode, done.stdout, done.stderr) == (141, b"", b"")
    done = shell(f"{line} >/dev/full")
    assert done.returncode == 2
    assert done.stderr.decode() == "error: standard output can't be written to: No space left on device\n"


NUMBERS = [
    "attend {small} {n} --set ids=true",
    "attend {small} '5 -{n}' --set ids=true",
    "attend {small} cat --ablate {n}.0",
    "attend {small} cat --ablate 0.{n}",
    "attend {small} cat --heads {n}",
    "attend {small} cat --heads 0.{n}",
    "attend {small} cat --heads 0.{n}",
    "attend {small} cat --heads 0.0 -q {n}",
    "attend {small} cat --heads 0.0 --set start={n}",
    "attend {small} cat --heads 0.0 --set threshold={n}",
    "head {small} {n} 0",
    "head {small} {n}.0",
    "head {small} 0.{n}",
    "view {small} cat --html /dev/null/x --heads {n}",
    "view {small} cat --html /dev/null/x --heads 0.{n}",
    "view {small} cat --no-browser --set port={n}",
    "survey {small} {small} --out {small}/out --set threads={n}",
    "survey {small} {small} --out {small}/out --set length={n}",
]


@pytest.mark.parametrize("digits", [19, 5000])
@pytest.mark.parametrize("command", NUMBERS)
def test_numbers_of_any_size_are_refused_in_words(small: str, command: str, digits: int) -> None:
    line = command.format(small=small, n="9" * digits)
    assert isinstance(run(*(part.strip("'") for part in shlex.split(line)), code=2).exception, SystemExit)


@pytest.mark.parametrize("command", ["attend {small} cat --set max_length={n}", "predict {small} [MASK] --top {n}"])
def test_a_limit_may_be_of_any_size_that_is_read(small: str, command: str) -> None:
    for digits, code in ((17, 0), (18, 0), (5000, 2)):
        run(*shlex.split(command.format(small=small, n="9" * digits)), code=code)


# Ctrl-C


INTERRUPTED = """
import os, signal, sys
class Finder:
    left = {at}
    def find_spec(self, name, path=None, target=None):
        Finder.left -= 1
        if Finder.left == 0:
            os.kill(os.getpid(), signal.SIGINT)
        if Finder.left < -5000:
            raise AssertionError
sys.argv = ["headscope", *{args!r}]
from headscope.__main__ import main
sys.meta_path.insert(0, Finder())
main()
"""


@pytest.mark.parametrize("command", ["attend {small} cat", "shapes {small}", "--help"])
def test_ctrl_c_while_modules_are_imported(small: str, command: str) -> None:
    """At the first module that is imported, the 10th, the 20th, …, until the command has none left to import."""
    args = shlex.split(command.format(small=small))
    for at in itertools.chain((1, 2, 3), range(10, 400, 60)):
        done = subprocess.run(
            [sys.executable, "-c", INTERRUPTED.format(at=at, args=args)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        assert done.stderr == b"", (at, done.stderr)
        if done.returncode == 0:
            break
        assert done.returncode == 130
    else:
        assert at > 300


def test_a_warning_of_a_library_is_printable() -> None:
    code = (
        "from headscope.cli.streams import prepare; prepare(); import warnings; warnings.warn('a\\x1b[31m\\u202eb\\nc')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=PATIENCE)
    assert b"a\\x1b[31m\\u202eb\n" in done.stderr
    assert b"\x1b" not in done.stderr


# What is printed


HOSTILE = "[red]\x1b[31m\x9b2J\x7f\u202e\u2066\u200b\u2028\ud800name\n\t"
ACTING = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) != "\n"]
ACTING += list("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u2028\u2029\u061c")


def acting(output: bytes) -> set[str]:
    text = output.decode()
    return {character for character in ACTING if character in text}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A folder with a hostile name, a tensor, a config and a vocabulary of such names."""
    name = HOSTILE.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    folder = tmp_path_factory.mktemp("hostile") / name.replace("/", "")
    folder.mkdir()
    vocabulary = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"\x1b\x9b\x7f\u202e{at}" for at in range(20)))
    return str(small_bert(folder, vocabulary=vocabulary))


def hostile_runs(folder: str, odd: str) -> list[list[str]]:
    ids = ["5 6 7", "--set", "ids=true"]
    runs = [[command, folder] for command in ("shapes", "summary", "config")]
    runs += [["fit", folder, "BertModel"], ["fit", folder, odd], ["head", folder, "0", "0"], ["shapes", odd], [odd]]
    runs += [["attend", folder, *ids], ["attend", folder, *ids, "--heads", "0.0"]]
    runs += [["attend", folder, *ids, "--heads", "0.0", "-q", odd], ["attend", folder, odd, "--set", "words=true"]]
    runs += [["predict", folder, "[MASK]"], ["predict", folder, odd]]
    runs += [
        ["attend", folder, *ids, "--save", f"{odd}.npz"],
        ["shapes", folder, f"--{odd}"],
        ["head", folder, odd, odd],
    ]
    runs += [
        ["attend", folder, odd, "--set", "ids=true"],
        ["attend", folder, *ids, "--ablate", odd],
        ["attend", folder, odd, "--debug"],
    ]
    runs += [["attend", folder, *ids, "--set", f"scale={odd}"], ["view", folder, *ids, "--html", f"/nowhere/{odd}"]]
    runs += [["view", folder, *ids, "--html", f"x{odd}.html"], ["survey", folder, odd, "--out", odd]]
    return runs


@pytest.mark.parametrize("form", ["", "--json", "--csv", "--markdown"])
def test_nothing_that_is_printed_acts_on_a_terminal(
    hostile: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    odd = "a\x1b[31m\x9b\x7f\u202e\u2066\n\tb"
    for args in hostile_runs(hostile, odd):
        result = run(*args, *([form] if form else []), code=None)
        assert isinstance(result.exception, (SystemExit, type(None))) or "--debug" in args, (args, result.exception)
        assert acting(result.stdout_bytes) == set(), args
        assert acting(result.stderr_bytes) == set(), args


def test_a_tensor_by_a_hostile_name_in_every_form(tmp_path: Path) -> None:
    name = HOSTILE.replace("\ud800", "")
    write_config(tmp_path, {"model_type": f"m{name}"})
    sparse_safetensors(tmp_path / "model.safetensors", {name: ("F32", (2, 2))})
    for command in ("shapes", "summary", "config"):
        for form in ("", "--json", "--csv", "--markdown"):
            done = shell(f"headscope {command} {tmp_path} {form}", COLUMNS="40")
            assert acting(done.stdout) | acting(done.stderr) == set()


SURROUNDINGS = ({"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"LC_ALL": "POSIX"})
LINES = ("--help", "attend {small} 'the 猫 sat' --heads 0.0", "shapes {small} --json")


@pytest.mark.parametrize(("surroundings", "encoding", "line"), pairwise(SURROUNDINGS, ("", "ascii", "utf-16"), LINES))
def test_streams_of_other_encodings(small: str, surroundings: dict[str, str], encoding: str, line: str) -> None:
    done = shell(f"headscope {line.format(small=small)}", PYTHONIOENCODING=encoding, **surroundings)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""


def test_odd_terminals(small: str) -> None:
    for term in ("dumb", "", "xterm-256color"):
        for columns in ("1", "7"):
            done = shell(
                f"headscope attend {small} 'the cat sat' --heads 0.0", TERM=term, COLUMNS=columns, FORCE_COLOR="1"
            )
            assert done.returncode == 0, done.stderr
            assert done.stderr == b""
