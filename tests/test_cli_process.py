"""The command as a process of its own: what it imports, how it ends, what a terminal sees."""

from __future__ import annotations

import importlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys

import pytest

from commands import python
from headscope import cli
from making import LARGE, bert_checkpoint
from patience import PATIENCE

HEADSCOPE = [sys.executable, "-m", "headscope"]
TEXT = "The cat sat on the mat."


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS")}
    return {**kept, "PYTHONIOENCODING": "utf-8", "HF_HUB_OFFLINE": "1", **more}


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


def test_shapes_imports_no_array_library(tmp_path):
    folder = bert_checkpoint(tmp_path, LARGE)
    code = (
        "import sys; from headscope.cli import app; "
        f"app(['shapes', {str(folder)!r}], standalone_mode=False); "
        "heavy = {'numpy', 'torch', 'transformers', 'tokenizers', 'huggingface_hub', 'safetensors', 'rich.console'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    *printed, heavy = python(code, env=environment()).splitlines()
    assert heavy == "[]"
    assert "335,141,888" in "".join(printed)


def test_attend_imports_no_torch(small):
    code = (
        "import sys; from headscope.cli import app; "
        f"app(['attend', {small!r}, {TEXT!r}], standalone_mode=False); "
        "print(sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))"
    )
    assert python(code, env=environment()).splitlines()[-1] == "[]"


def test_version():
    done = headscope("--version")
    assert re.fullmatch(r"headscope \d+\.\d+\.\d+\S*\n", done.stdout)


def test_help_names_every_command():
    done = headscope("--help")
    for command in ("shapes", "summary", "config", "head", "attend", "verify", "fit", "predict"):
        assert re.search(rf"\b{command}\b", done.stdout)
    assert "[MASK]" in headscope("predict", "--help").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell):
    done = headscope(_HEADSCOPE_COMPLETE=f"source_{shell}")
    assert done.returncode == 0
    assert "headscope" in done.stdout or "HEADSCOPE" in done.stdout


def test_completion_knows_commands_and_classes():
    def completed(words: str) -> str:
        return headscope(_HEADSCOPE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" "))).stdout

    assert completed("headscope att").split() == ["attend", "attribute"]
    assert "BertForSequenceClassification" in completed("headscope fit - BertForS")


def test_a_refusal_has_no_traceback_but_with_debug(small):
    quiet, loud = headscope("attend", small, ""), headscope("attend", small, "", "--debug")
    assert quiet.returncode == 2
    assert quiet.stdout == ""
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr


def test_a_closed_pipe_is_quiet(small):
    process = subprocess.Popen(
        [*HEADSCOPE, "shapes", small, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(PATIENCE) == 141
    assert said == b""


def test_control_c_exits_with_130(small):
    code = (
        "import os, signal, sys; import headscope.model; "
        "headscope.model.open_model = lambda *a, **k: os.kill(os.getpid(), signal.SIGINT); "
        f"from headscope.cli import main; sys.argv = ['headscope', 'shapes', {small!r}]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 128 + signal.SIGINT
    assert "Traceback" not in done.stderr


def test_a_terminal_sees_colour_and_no_color_is_kept(small):
    coloured = on_a_terminal("attend", small, TEXT, "--heads", "0.0")
    assert "\x1b[48;2;" in coloured or ";48;2;" in coloured
    plain = on_a_terminal("attend", small, TEXT, "--heads", "0.0", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*[34]8;", plain)
    assert "█" in plain


def test_machine_output_on_a_terminal_is_plain(small):
    text = on_a_terminal("shapes", small, "--json", columns=40)
    assert "\x1b" not in text
    assert len(json.loads(text)["parameters"]) == 39


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_screens_follow_the_window(small, columns):
    text = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal("shapes", small, columns=columns))
    lines = [line for line in text.splitlines() if not line.startswith("next: ")]  # whole, to be pasted
    assert max(map(len, lines)) <= columns


def test_a_stream_that_knows_no_unicode(small):
    done = subprocess.run(
        [*HEADSCOPE, "attend", small, "the 猫 sat", "--heads", "0.0"],
        env=environment(PYTHONIOENCODING="ascii"),
        capture_output=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0
    assert b"\\u732b" in done.stdout
    assert done.stdout.isascii()


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
    frozen, left = map(int, python(code, env=environment()).split()[-2:])
    assert frozen > 10 * left
