"""Files are written whole or not at all; links, devices, pipes and modes stay; remains are removed."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headscope import files
from headscope.errors import InputError
from headscope.files import remove_partial_files, write_atomically


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "target").write_bytes(b"before")
    (tmp_path / "second").symlink_to("inner/target")
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "dangling").symlink_to("inner/new")
    write_atomically(tmp_path / "first", b"after")
    write_atomically(tmp_path / "dangling", b"new")
    assert os.readlink(tmp_path / "first") == "second"
    assert os.readlink(tmp_path / "second") == "inner/target"
    assert (tmp_path / "inner" / "target").read_bytes() == b"after"
    assert (tmp_path / "inner" / "new").read_bytes() == b"new"
    assert names(tmp_path / "inner") == ["new", "target"]
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="can't be written"):
        write_atomically(tmp_path / "loop", b"x")


def test_a_device_is_written_to(tmp_path: Path) -> None:
    """By way of links, so that code that replaces what it is given replaces only these."""
    for name, device in (("null", "/dev/null"), ("full", "/dev/full")):
        (tmp_path / name).symlink_to(device)
    before = os.stat("/dev/null")
    write_atomically(tmp_path / "null", b"x" * 100_000)
    assert os.readlink(tmp_path / "null") == "/dev/null"
    after = os.stat("/dev/null")
    assert (after.st_ino, after.st_mode, after.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)
    with pytest.raises(InputError, match="the disk is full"):
        write_atomically(tmp_path / "full", b"x")
    assert os.readlink(tmp_path / "full") == "/dev/full"


def test_a_pipe_takes_what_is_written(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    write_atomically(pipe, b"x" * 300_000)
    reader.join()
    assert received == [b"x" * 300_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(InputError, match="can't be written"):
            write_atomically(Path("socket"), b"x")
        assert stat.S_ISSOCK(os.stat("socket").st_mode)
    with pytest.raises(InputError, match="directory"):
        write_atomically(tmp_path, b"x")
    for name in ("a\0b", "a\ud800b", "a" * 300):
        with pytest.raises(InputError, match="can't be written"):
            write_atomically(tmp_path / name, b"x")
    (tmp_path / "locked").write_bytes(b"before")
    monkeypatch.setattr(files.os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(InputError, match="read-only"):
        write_atomically(tmp_path / "locked", b"x")
    assert (tmp_path / "locked").read_bytes() == b"before"


def test_standard_output_keeps_what_stands_before(tmp_path: Path) -> None:
    code = "from pathlib import Path; from headscope.files import write_atomically as w\n"
    code += "print('first', flush=True); w(Path('/dev/stdout'), b'second\\n'); w(Path('/dev/fd/1'), b'third\\n')"
    with open(tmp_path / "out", "wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "first\nsecond\nthird\n"


def test_an_existing_file_keeps_its_mode_and_a_new_one_gets_the_umask(tmp_path: Path) -> None:
    for bits in (0o600, 0o640, 0o666, 0o755):
        path = tmp_path / f"{bits:o}"
        path.write_bytes(b"before")
        path.chmod(bits)
        write_atomically(path, b"after")
        assert (mode(path), path.read_bytes()) == (bits, b"after")
    modes = {"022": 0o644, "077": 0o600, "000": 0o666}
    code = "import os; from pathlib import Path; from headscope.files import write_atomically\n"
    code += f"for umask in {[*modes]}: os.umask(int(umask, 8)); write_atomically(Path(umask), b'x')"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert {umask: mode(tmp_path / umask) for umask in modes} == modes


def test_the_umask_is_never_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to all threads: in between, files of others would be made with any mode."""
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask was set"))
    write_atomically(tmp_path / "x", b"1")
    write_atomically(tmp_path / "x", b"2")


WRITER = """
import os, signal, sys
from pathlib import Path
from headscope import files

def wait(*paths):
    print("writing", flush=True)
    signal.pause()

files.os.replace = wait
files.write_atomically(Path(sys.argv[1]), b"half")
"""


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    """Below the folder, too; but nothing that only looks like it."""
    target = tmp_path / "parts" / "trace.safetensors"
    target.parent.mkdir()
    target.write_bytes(b"before")
    others = (".trace.safetensors.0a1b2c3d", ".x.partial", ".x.0123.partial", "x.partial")
    for name in others:
        (target.parent / name).write_bytes(b"mine")
    for name in (target.name, "ü" * 120):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(target.parent / name)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout.readline() == b"writing\n"
            writer.send_signal(signal.SIGKILL)
    partial = set(names(target.parent)) - {*others, target.name}
    assert len(partial) == 2
    assert target.read_bytes() == b"before"
    remove_partial_files(tmp_path)
    assert names(target.parent) == sorted([*others, target.name])
