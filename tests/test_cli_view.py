"""`headscope view`: served, as a file, on standard output, and after an installation without any extra."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import webbrowser
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commands import run
from headscope.errors import install
from patience import PATIENCE

HEADSCOPE = [sys.executable, "-m", "headscope"]
TEXT = "The cat sat on the mat."


@pytest.fixture(scope="module")
def trace(small: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A saved trace."""
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
    assert found is not None
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
    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            os.close(self.handle)

        def write(self, content: bytes) -> None:
            raise OSError(28, "No space left on device")

    def fdopen(handle: int, mode: str) -> Full:
        stream = Full()
        stream.handle = handle
        return stream

    if full:
        monkeypatch.setattr("headscope.files.os.fdopen", fdopen)
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
    file = tmp_path / "cat.html"
    view(trace, "--html", str(file))
    result = view(trace, "--html", "-")
    assert len(result.stdout_bytes) == file.stat().st_size
    assert shell_of(result.stdout_bytes) == shell_of(file.read_bytes())
    assert result.stderr.startswith("wrote to standard output: the page of 9 tokens")


def shell(line: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shlex.join(HEADSCOPE)} {line}"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", **more},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
    )


def test_a_page_in_a_pipe(trace: str, tmp_path: Path) -> None:
    file = tmp_path / "cat.html"
    view(trace, "--html", str(file))
    line = f"view {shlex.quote(trace)} --html -"
    whole = shell(line, PYTHONIOENCODING="ascii")
    assert (whole.returncode, shell_of(whole.stdout)) == (0, shell_of(file.read_bytes()))
    left = shell(f"{line} | true")
    assert (left.returncode, left.stdout, left.stderr) == (141, b"", b"")
    full = shell(f"{line} >/dev/full")
    assert full.returncode == 2
    assert full.stderr == b"error: standard output can't be written to: No space left on device\n"


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
        env={**os.environ, "BROWSER": browser, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + PATIENCE
        while not result.exists():
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        assert data_of(result.read_bytes())["home"] == "server"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()
