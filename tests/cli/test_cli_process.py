"""The command as a process of its own: what it imports, its streams, how it ends, what a terminal sees; `view`."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import webbrowser
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commands import answer, imported, python, run
from headscope import cli
from headscope.errors import install
from making import LARGE, bert_checkpoint, sparse_safetensors, write_config
from patience import PATIENCE, until
from products import in_turn
from small_bert import small_bert

HEADSCOPE = [sys.executable, "-m", "headscope"]
TEXT = "The cat sat on the mat."


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONIOENCODING": "utf-8", **more}


def headscope(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HEADSCOPE, *args], env=environment(**more), capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE
    )


def on_a_terminal(*args: str, columns: int = 100, **more: str) -> str:
    """What the command writes to a terminal of so many columns."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*HEADSCOPE, *args],
        stdout=child,
        stderr=child,
        stdin=subprocess.DEVNULL,
        env=environment(TERM="xterm-256color", COLORTERM="truecolor", COLUMNS=str(columns), **more),
    )
    os.close(child)
    seen = b""
    while True:
        assert select.select([parent], [], [], PATIENCE)[0], seen
        try:
            piece = os.read(parent, 65536)
        except OSError:  # Linux's word for: the other side is closed
            break
        if not piece:
            break
        seen += piece
    os.close(parent)
    assert process.wait(PATIENCE) == 0
    return seen.decode()


def test_shapes_imports_no_array_library_and_attend_no_torch(small, tmp_path):
    folder, heavy = str(bert_checkpoint(tmp_path, LARGE)), ("torch", "transformers", "huggingface_hub")
    code = "from headscope.cli import app; app({!r}, standalone_mode=False)"
    arrays = ("numpy", "tokenizers", "safetensors", "rich.console")
    assert imported(code.format(["shapes", folder]), (*heavy, *arrays)) == []
    assert imported(code.format(["attend", small, TEXT]), heavy) == []
    assert "335,141,888" in run("shapes", folder).stdout


def test_version():
    done = headscope("--version")
    assert re.fullmatch(r"headscope \d+\.\d+\.\d+\S*\n", done.stdout)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_prints_a_script(shell):
    done = headscope(_HEADSCOPE_COMPLETE=f"source_{shell}")
    assert done.returncode == 0
    assert "headscope" in done.stdout or "HEADSCOPE" in done.stdout


COMPLETED = """eval "$(_HEADSCOPE_COMPLETE=source_bash headscope)"
complete -p headscope
for words in 'headscope att' 'headscope fit - BertForS'; do
    COMP_WORDS=($words) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    $(complete -p headscope | grep -o '_[a-z_]*') headscope
    echo "${COMPREPLY[@]}"
done"""


def test_completion_knows_commands_and_classes(tmp_path):
    """As bash asks, which evaluates the script and calls the function that it names."""
    (tmp_path / "headscope").write_text(f'#!/bin/sh\nexec {COMMAND} "$@"\n')
    (tmp_path / "headscope").chmod(0o755)
    done = shell(COMPLETED, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.stderr == b""
    _, commands, classes = done.stdout.decode().splitlines()
    assert commands.split() == ["attend", "attribute"]
    assert "BertForSequenceClassification" in classes.split()


def test_a_refusal_has_no_traceback_but_with_debug(small):
    quiet, loud = headscope("attend", small, ""), headscope("attend", small, "", "--debug")
    assert quiet.returncode == 2
    assert quiet.stdout == ""
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr


def test_a_terminal_sees_colour_and_no_color_is_kept(small):
    coloured = on_a_terminal("attend", small, TEXT, "--heads", "0.0")
    assert "\x1b[48;2;" in coloured or ";48;2;" in coloured
    plain = on_a_terminal("attend", small, TEXT, "--heads", "0.0", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*[34]8;", plain)
    assert "█" in plain


@pytest.mark.parametrize("columns", [60, 140])
def test_screens_follow_the_window(small, columns):
    text = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal("shapes", small, columns=columns))
    lines = [line for line in text.splitlines() if not line.startswith("next: ")]  # whole, to be pasted
    assert max(map(len, lines)) <= columns


def test_a_command_imports_its_own_module_only() -> None:
    """What one command needs is one module of options; the help and the shell's completion need all of them."""
    code = (
        "import sys; from headscope.cli import MODULES, app; "
        "app({arguments!r}, standalone_mode=False); "
        "print(*(name for name in MODULES if f'headscope.cli.{{name}}' in sys.modules))"
    )
    for arguments, modules in ((["shapes", "-"], "look"), (["--help"], "look one_text surveys explain agents")):
        assert python(code.format(arguments=arguments)).splitlines()[-1] == modules


def test_every_command_has_its_place() -> None:
    """The table of places names each command once, in its module."""
    for module, names in cli.MODULES.items():
        importlib.import_module(f"headscope.cli.{module}")
        registered = [info.callback for info in cli.app.registered_commands if info.callback is not None]
        own = [callback.__name__ for callback in registered if callback.__module__ == f"headscope.cli.{module}"]
        assert tuple(own) == names


def test_nothing_is_collected_at_exit() -> None:
    code = (
        "import gc, sys; from headscope.__main__ import main; sys.argv = ['headscope', '--version']\n"
        "try: main()\n"
        "except SystemExit: print(gc.get_freeze_count(), len(gc.get_objects()))"
    )
    frozen, left = map(int, python(code).split()[-2:])
    assert frozen > 10 * left


COMMAND = f"{sys.executable} -m headscope"
COMMANDS = {
    "help": "--help",
    "shapes": "shapes {small} --json",
    "attend": "attend {small} cat",
    "page": "view {small} cat --html -",
}


@pytest.fixture(scope="module")
def quoted(small: str) -> str:
    """A checkpoint's folder, as a shell takes it: temporary folders may have spaces in their names."""
    return shlex.quote(small)


def shell(line: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """A line for bash, which begins with `headscope`, the command, or lines that call it otherwise."""
    line = line.replace("headscope ", f"{COMMAND} ", 1) if line.startswith("headscope ") else line
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        env=environment(**more),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_streams_that_are_full_or_broken(quoted: str, command: str) -> None:
    line = f"headscope {command.format(small=quoted)}"
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
def test_numbers_of_any_size_are_refused_in_words(quoted: str, command: str, digits: int) -> None:
    line = command.format(small=quoted, n="9" * digits)
    assert isinstance(run(*(part.strip("'") for part in shlex.split(line)), code=2).exception, SystemExit)


@pytest.mark.parametrize("command", ["attend {small} cat --set max_length={n}", "predict {small} [MASK] --top {n}"])
def test_a_limit_may_be_of_any_size_that_is_read(quoted: str, command: str) -> None:
    for digits, code in ((17, 0), (18, 0), (5000, 2)):
        run(*shlex.split(command.format(small=quoted, n="9" * digits)), code=code)


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
def test_ctrl_c_while_modules_are_imported(quoted: str, command: str) -> None:
    """At the first modules that any command imports, then at every 60th, until the command has none left to import."""
    args = shlex.split(command.format(small=quoted))
    for at in itertools.chain((1, 2, 3) if command == "--help" else (), range(10, 400, 60)):
        done = subprocess.run(
            [sys.executable, "-c", INTERRUPTED.format(at=at, args=args)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
        )
        assert done.stderr == b"", (at, done.stderr)
        if done.returncode == 0:
            break
        assert done.returncode == 130
    else:
        assert at > 300


def test_a_warning_of_a_library_is_printable() -> None:
    code = "from headscope.cli.app import prepare; prepare(); import warnings; warnings.warn('a\\x1b[31m\\u202eb\\nc')"
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
    """A folder whose vocabulary is of hostile names; beside it there is none by a hostile name."""
    folder = tmp_path_factory.mktemp("hostile")
    vocabulary = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[red]", "[/bold]")
    vocabulary += tuple(f"\x1b\x9b\x7f\u202e{at}" for at in range(18))
    return str(small_bert(folder, vocabulary=vocabulary))


def hostile_runs(folder: str, odd: str) -> list[list[str]]:
    ids = ["5 6 7", "--set", "ids=true"]
    runs = [[command, folder] for command in ("shapes", "summary", "config")]
    runs += [["fit", folder, "BertModel"], ["fit", folder, odd], ["head", folder, "0", "0"], ["shapes", odd], [odd]]
    runs += [["attend", folder, *ids], ["attend", folder, *ids, "--heads", "0.0"]]
    runs += [["attend", folder, *ids, "--heads", "0.0", *more] for more in (["-q", "2"], ["--top", "2"])]
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


@pytest.mark.parametrize(("form", "part"), in_turn(("", "--json", "--csv", "--markdown"), range(4)))
def test_nothing_that_is_printed_acts_on_a_terminal(
    hostile: str, form: str, part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command in one of the forms; in the others it is slow."""
    monkeypatch.chdir(tmp_path)
    odd = "a\x1b[31m\x9b\x7f\u202e\u2066\n\tb"
    name = HOSTILE.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    for args in (*hostile_runs(hostile, odd), *hostile_runs(f"{hostile}/{name}", odd))[part::4]:
        result = run(*args, *([form] if form else []), code=None)
        assert isinstance(result.exception, (SystemExit, type(None))) or "--debug" in args, (args, result.exception)
        assert acting(result.stdout_bytes) == set(), args
        assert acting(result.stderr_bytes) == set(), args
        assert "[red]" in result.stdout + result.stderr or "--top" not in args or form == "--markdown"
    tokens = answer("attend", hostile, "5 6 7", "--set", "ids=true")["tokens"]
    assert tokens == ["[red]", "[/bold]", "\x1b\x9b\x7f\u202e0"]


@pytest.mark.parametrize("columns", ["40", "200"])
def test_a_hostile_tensor_name_in_every_form(tmp_path: Path, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    name = HOSTILE.replace("\ud800", "")
    write_config(tmp_path, {"model_type": f"m{name}"})
    sparse_safetensors(tmp_path / "model.safetensors", {name: ("F32", (2, 2))})
    for command in ("shapes", "summary", "config"):
        for form in ("", "--json", "--csv", "--markdown"):
            done = run(command, tmp_path, *([form] if form else []))
            assert acting(done.stdout_bytes) | acting(done.stderr_bytes) == set()
    assert "[red]\\x1b[31m\\x9b2J" in run("shapes", tmp_path).stdout
    assert answer("shapes", tmp_path)["parameters"][0]["name"] == name


SURROUNDINGS = ({"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"LC_ALL": "POSIX"})
LINES = ("--help", "attend {small} 'the 猫 sat' --heads 0.0", "shapes {small} --json")


@pytest.mark.parametrize(("surroundings", "encoding", "line"), in_turn(SURROUNDINGS, ("", "ascii", "utf-16"), LINES))
def test_streams_of_other_encodings(quoted: str, surroundings: dict[str, str], encoding: str, line: str) -> None:
    done = shell(f"headscope {line.format(small=quoted)}", PYTHONIOENCODING=encoding, **surroundings)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert encoding != "ascii" or done.stdout.isascii()
    assert encoding != "ascii" or "猫" not in line or b"\\u732b" in done.stdout


def test_odd_terminals(quoted: str) -> None:
    for term, columns in (("dumb", "1"), ("", "7"), ("xterm-256color", "1"), ("xterm-256color", "7")):
        done = shell(
            f"headscope attend {quoted} 'the cat sat' --heads 0.0", TERM=term, COLUMNS=columns, FORCE_COLOR="1"
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == b""


@pytest.fixture(scope="module")
def trace(small: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("trace") / "cat.safetensors"
    run("attend", small, TEXT, "--save", file)
    return str(file)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that are opened; on a desktop, whatever this machine is."""
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: not addresses.append(address))
    monkeypatch.setenv("DISPLAY", ":0")
    return addresses


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As after `pip install .`; the folder of temporary files."""
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


view = partial(run, "view")


def data_of(page: bytes) -> dict[str, Any]:
    """What the page is told: the beginning of its data."""
    found = re.search(rb'id="hs-about">(.*?)</script>', page)
    return dict(json.loads(found[1]))


def shell_of(page: bytes) -> bytes:
    """The page without its trace, whose header may have its fields in any order."""
    return re.sub(rb'(id="hs-trace-0">)[^<]*', rb"\1", page)


# Without the extra


def test_without_the_extra_the_page_is_a_temporary_file(small: str, bare: Path, opened: list[str]) -> None:
    result = view(small, TEXT, "--open", "#l=1&h=0")
    (file,) = bare.iterdir()
    assert opened == [file.as_uri()]
    assert result.stdout == f"headscope is at {file.as_uri()}\n"
    assert file.stat().st_mode & 0o777 == 0o600  # texts are nobody else's business
    about = data_of(file.read_bytes())
    assert (about["home"], about["traces"], about["state"]) == ("file", 1, "l=1&h=0")
    assert f"other texts and changes of the model if it is served: {install('view')}" in result.stderr
    assert "opens at #l=1&h=0" in result.stderr
    assert "no browser" not in result.stderr


def test_options_of_files_hold_for_a_temporary_one(small: str, bare: Path, opened: list[str]) -> None:
    view(small, TEXT, "--heads", "1", "--set", "runs=false", "--no-browser")
    (file,) = bare.iterdir()
    assert data_of(file.read_bytes())["runs"] == []
    assert opened == []


def test_a_saved_trace_has_no_model_to_run(trace: str, bare: Path, opened: list[str]) -> None:
    result = view(trace)
    assert len(opened) == 1
    assert "other texts" not in result.stderr
    assert install("view") in result.stderr


@pytest.mark.parametrize("why", ["none", "fails", "raises"])
def test_without_a_browser_the_address_is_what_remains(
    small: str, bare: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    def broken(address: str) -> bool:
        raise webbrowser.Error("could not locate runnable browser")

    if why == "none":
        monkeypatch.setattr(sys, "platform", "linux")
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
            monkeypatch.delenv(name, raising=False)
    else:
        monkeypatch.setattr(webbrowser, "open", broken if why == "raises" else lambda address: False)
    result = view(small, TEXT)
    (file,) = bare.iterdir()
    assert opened == []
    assert file.as_uri() in result.stdout
    assert "no browser was found" in result.stderr


@pytest.mark.parametrize("full", [False, True])
def test_nowhere_to_write_a_temporary_file(
    small: str, bare: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    def on_a_full_disk(**_: object) -> tuple[int, str]:
        (bare / "page.html").touch()
        return os.open("/dev/full", os.O_WRONLY), str(bare / "page.html")

    if full:
        monkeypatch.setattr(tempfile, "mkstemp", on_a_full_disk)
    else:
        monkeypatch.setattr(tempfile, "tempdir", str(bare / "removed"))
    message = view(small, TEXT, code=2).stderr
    assert "no temporary file can be written: No " in message
    assert "--html FILE" in message
    assert list(bare.iterdir()) == []
    assert opened == []


def test_a_port_needs_the_extra_which_is_said_at_once(bare: Path) -> None:
    message = view("no/such-model", TEXT, "--set", "port=0", code=2).stderr
    assert "where: port" in message
    assert install("view") in message
    assert "trace.to_html" in message


# In a file, or on standard output


def test_where_a_file_opens_is_said_and_checked(small: str, tmp_path: Path) -> None:
    file = tmp_path / "cat.html"
    assert "opens at #l=1&h=0" in view(small, TEXT, "--html", str(file), "--open", "l=1&h=0").stderr
    assert data_of(file.read_bytes())["state"] == "l=1&h=0"
    assert "opens at" not in view(small, TEXT, "--html", str(file)).stderr
    for odd in ("l=1 h=2", "</script>", "l=1\n"):
        assert "--open" in view("no/such-model", TEXT, "--html", str(file), "--open", odd, code=2).stderr


def test_standard_output_has_the_page_and_nothing_else(trace: str, tmp_path: Path) -> None:
    """In a pipe, whatever its encoding."""
    file = tmp_path / "cat.html"
    view(trace, "--html", str(file))
    whole = shell(f"headscope view {shlex.quote(trace)} --html -", PYTHONIOENCODING="ascii")
    assert (whole.returncode, shell_of(whole.stdout)) == (0, shell_of(file.read_bytes()))
    assert len(whole.stdout) == file.stat().st_size
    assert whole.stderr.startswith(b"wrote to standard output: the page of 9 tokens")


def test_a_terminal_is_no_place_for_a_page() -> None:
    parent, child = pty.openpty()
    done = subprocess.run(
        [*HEADSCOPE, "view", "no/such-model", TEXT, "--html", "-"],
        stdout=child,
        stderr=subprocess.PIPE,
        timeout=PATIENCE,
    )
    os.close(child)
    os.close(parent)
    assert done.returncode == 2
    assert b"standard output is a terminal" in done.stderr
    assert b"--html - > page.html" in done.stderr


# Served


def test_a_browser_that_is_waited_for_gets_the_page(small: str, tmp_path: Path) -> None:
    """Such as one in a terminal, or one that $BROWSER names: it ends when its reader closes it."""
    script, result = tmp_path / "browser.py", tmp_path / "result"
    script.write_text(
        "import sys, urllib.request; from pathlib import Path\n"
        "page = urllib.request.urlopen(sys.argv[2]).read()\n"
        "Path(sys.argv[1] + '.partial').write_bytes(page); Path(sys.argv[1] + '.partial').rename(sys.argv[1])\n"
    )
    browser = shlex.join([sys.executable, str(script), str(result), "%s"])
    process = subprocess.Popen(
        [*HEADSCOPE, "view", small, TEXT],
        env={**os.environ, "BROWSER": browser},
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    try:
        until(lambda: result.exists() or process.poll() is not None)
        assert data_of(result.read_bytes())["home"] == "server"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()
