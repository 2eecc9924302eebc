"""Files are written whole or not at all; links, devices, pipes and modes stay; what a killed run left is removed."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

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
    code = "from pathlib import Path; from headscope.files import write_atomically as w; print('first')\n"
    code += "w(Path('/dev/stdout'), b'second\\n'); w(Path('/dev/fd/1'), b'third\\n'); print('last')"
    with open(tmp_path / "out", "wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "first\nsecond\nthird\nlast\n"


def test_an_existing_file_keeps_its_mode_and_a_new_one_gets_the_umask(tmp_path: Path) -> None:
    for bits in (0o600, 0o640, 0o666, 0o755):
        path = tmp_path / f"{bits:o}"
        path.write_bytes(b"before")
        path.chmod(bits)
        write_atomically(path, b"after")
        assert (mode(path), path.read_bytes()) == (bits, b"after")
    code = "import os, sys; from pathlib import Path; from headscope.files import write_atomically\n"
    code += "os.umask(int(sys.argv[1], 8)); write_atomically(Path(sys.argv[2]), b'x')"
    for umask, expected in (("022", 0o644), ("077", 0o600), ("000", 0o666)):
        path = tmp_path / f"new-{umask}"
        subprocess.run([sys.executable, "-c", code, umask, str(path)], check=True)
        assert mode(path) == expected


def test_another_group_gets_nothing_that_was_not_its(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the group can't be kept, its rights are not given to ours."""
    partial, target = tmp_path / "partial", tmp_path / "target"
    partial.write_bytes(b"")
    target.write_bytes(b"")

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(files.os, "chown", refuse)
    made = partial.stat()
    for bits, expected in ((0o660, 0o600), (0o664, 0o644), (0o640, 0o600)):
        status = SimpleNamespace(st_mode=stat.S_IFREG | bits, st_uid=made.st_uid + 1, st_gid=made.st_gid + 1)
        files._keep_attributes(str(partial), target, status)
        assert mode(partial) == expected


def test_an_access_list_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"user.origin": b"here", "system.posix_acl_access": b"list", "security.capability": b"powers"}
    given: dict[str, bytes] = {}
    monkeypatch.setattr(files.os, "listxattr", lambda _: list(kept))
    monkeypatch.setattr(files.os, "getxattr", lambda _, name: kept[name])
    monkeypatch.setattr(files.os, "setxattr", lambda _, name, value: given.update({name: value}))
    (tmp_path / "x").write_bytes(b"before")
    write_atomically(tmp_path / "x", b"after")
    assert given == {"user.origin": b"here", "system.posix_acl_access": b"list"}


def test_the_umask_is_never_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to all threads: in between, files of others would be made with any mode."""
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask was set"))
    write_atomically(tmp_path / "x", b"1")
    write_atomically(tmp_path / "x", b"2")


def test_threads_get_their_modes(tmp_path: Path) -> None:
    expected = 0o666 & ~int(subprocess.check_output(["sh", "-c", "umask"]), 8)
    wrong: list[str] = []
    interval = sys.getswitchinterval()

    def work(number: int) -> None:
        for turn in range(60):
            ours, others = tmp_path / f"ours-{number}-{turn}", tmp_path / f"others-{number}-{turn}"
            write_atomically(ours, b"x")
            others.write_bytes(b"x")
            wrong.extend(path.name for path in (ours, others) if mode(path) != expected)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    assert not [name for name in names(tmp_path) if name.startswith(".")]


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
    """But not what a living one is files, and nothing that only looks like it."""
    target = tmp_path / "trace.safetensors"
    target.write_bytes(b"before")
    others = (".trace.safetensors.0a1b2c3d", ".x.partial", f".x.{files.MACHINE}-0123.partial", "x.partial")
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / name)], stdout=subprocess.PIPE)
        for name in ("trace.safetensors", "ü" * 120)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writing\n"
        partial = set(names(tmp_path)) - {*others, target.name}
        assert len(partial) == 2
        assert all(files.PARTIAL.fullmatch(name) for name in partial)
        remove_partial_files(tmp_path)
        assert partial < set(names(tmp_path))
        writers[0].send_signal(signal.SIGKILL)
        writers[0].wait()
        code = "import sys; from pathlib import Path; from headscope.files import write_atomically\n"
        code += "write_atomically(Path(sys.argv[1]), b'after')"
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "another")], check=True)
        assert len(set(names(tmp_path)) - {*others, target.name, "another"}) == 1
        assert target.read_bytes() == b"before"
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    remove_partial_files(tmp_path)
    assert names(tmp_path) == sorted([*others, target.name, "another"])


def test_a_partial_file_that_was_removed_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, turns = files.fcntl.flock, []

    def late(handle: int, operation: int) -> None:
        turns.append(operation)
        if len(turns) == 1:
            remove_partial_files(tmp_path)
        flock(handle, operation)

    write_atomically(tmp_path / "x", b"")  # the folder has been looked at
    monkeypatch.setattr(files.fcntl, "flock", late)
    write_atomically(tmp_path / "x", b"whole")
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"whole"
