"""What is built for users: the wheel has the model and the pages, the sdist all that its own tests need."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
IGNORED = {"__pycache__", "node_modules", "dist", "build", "site"}
"""Folders that .gitignore names; those with a dot and *.egg-info are left out by their spelling."""


def build(kind: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    (path,) = folder.iterdir()
    return path


def test_a_wheel_has_the_bundled_model_and_the_page(tmp_path: Path) -> None:
    names = set(zipfile.ZipFile(build("wheel", tmp_path)).namelist())
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert f"headscope/models/tiny/{name}" in names
    assert "headscope/py.typed" in names
    assert "headscope/page/static/page.html" in names
    assert not any(name.startswith(("tests", "training", "web")) for name in names)


def test_an_sdist_has_every_file_of_the_repository(tmp_path: Path) -> None:
    """So its tests pass where it is unpacked: they read the docs, the benchmarks and the sources of the page."""
    path = build("sdist", tmp_path)
    with tarfile.open(path) as archive:
        packed = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for folder in ("src", "tests", "docs", "benchmarks", "examples", "training", "web", ".ci"):
        for file in (REPOSITORY / folder).rglob("*"):
            parts = file.relative_to(REPOSITORY).parts
            if file.is_file() and not any(part in IGNORED or part.endswith((".egg-info", "_cache")) for part in parts):
                assert "/".join(parts) in packed
    loose = {file.name for file in REPOSITORY.iterdir() if file.is_file()}
    assert {name for name in loose if name.endswith((".md", ".cff", ".toml", ".yml")) or name == "LICENSE"} <= packed


READ_ONLY = """
import errno, os, sys

def audit(event, args):
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if (writes and args[0] != os.devnull) or event in ("os.mkdir", "os.rename", "os.remove", "shutil.copyfile"):
        raise OSError(errno.EROFS, "Read-only file system")

sys.addaudithook(audit)
sys.argv = ["headscope", "view", "-", "The cat sat on the mat.", "--no-browser"]
from headscope.__main__ import main

main()
"""


def test_the_page_is_served_from_a_filesystem_that_cannot_be_written() -> None:
    """As in the container."""
    command = [sys.executable, "-B", "-c", READ_ONLY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        address = re.search(r"http://\S+", said)
        assert address is not None, said
        with urllib.request.urlopen(address[0]) as page:
            assert b"cat" in page.read()
        server.send_signal(signal.SIGINT)
        assert server.wait() == 0


def test_the_container_has_a_user_without_rights_and_the_server() -> None:
    lines = (REPOSITORY / "Containerfile").read_text(encoding="utf-8").splitlines()
    assert "USER 65534:65534" in lines
    assert any("[view]" in line for line in lines)
    assert any("--read-only --cap-drop=all" in line for line in lines)


def test_ci_tells_uv_where_pip_finds_packages() -> None:
    """Also where pip is quiet, as it is there; else uv would take other builds of the same versions."""
    pip = {"QUIET": "1", "INDEX_URL": "a", "EXTRA_INDEX_URL": "b c", "FIND_LINKS": "/d e", "NO_INDEX": "true"}
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / ".ci" / "as_pip.py")],
        env={**os.environ, "PIP_CONFIG_FILE": os.devnull, **{f"PIP_{name}": value for name, value in pip.items()}},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.stdout.splitlines() == [
        'index-strategy = "unsafe-best-match"',
        'extra-index-url = ["b", "c"]',
        'find-links = ["/d", "e"]',
        'index-url = "a"',
        "no-index = true",
    ], done.stderr
