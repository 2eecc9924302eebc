"""What is built for users: the wheel has the model and the pages, the sdist all that its own tests need, no more."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

import headscope

REPOSITORY = Path(__file__).parents[2]
FOLDERS = (".ci", ".github", "benchmarks", "docs", "examples", "skills", "src", "tests", "training", "web")
LOOSE = """.containerignore .gitignore CHANGELOG.md CITATION.cff CONTRIBUTING.md Containerfile LICENSE NOTICE
README.ja.md README.md README.zh.md SECURITY.md mkdocs.yml pyproject.toml"""
IGNORED = {"__pycache__", "node_modules", "dist", "build", "site"}
"""Folders that .gitignore names; those with a dot and *.egg-info are left out by their spelling."""
DATA = {
    "models/tiny": "README.md config.json curve.json curve.svg evaluation.json model.safetensors tokenizer.json "
    "tokenizer_config.json",
    "page/static": "encoder.js page.html report.html typed.html widget.js words.json",
    ".": "py.typed",
}
"""Folder of the package -> its files that are not Python's."""


def sources() -> set[str]:
    """The files of the repository, as a clean clone has them."""
    files = [file.relative_to(REPOSITORY) for folder in FOLDERS for file in (REPOSITORY / folder).rglob("*")]
    made = [any(part in IGNORED or part.endswith((".egg-info", "_cache")) for part in file.parts) for file in files]
    kept = {str(file.as_posix()) for file, left_out in zip(files, made, strict=True) if not left_out}
    return {file for file in kept if (REPOSITORY / file).is_file()} | set(LOOSE.split())


def build(kind: str, folder: Path, source: Path = REPOSITORY) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (path,) = folder.iterdir()
    return path


def test_a_release_has_the_files_of_the_repository_and_no_others(tmp_path: Path) -> None:
    """Tests pass where the sdist is unpacked: they read the docs and the page's sources. The wheel is built from it."""
    with tarfile.open(build("sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("headscope-*")
    packed = {file.relative_to(unpacked).as_posix() for file in unpacked.rglob("*") if file.is_file()}
    assert packed == sources() | {"PKG-INFO"}

    with zipfile.ZipFile(build("wheel", tmp_path / "wheel", unpacked)) as wheel:
        installed = {file.filename: file.file_size for file in wheel.infolist()}
    package = {name.removeprefix("src/") for name in packed if name.startswith("src/headscope/")}
    about = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "licenses/NOTICE")
    assert installed.keys() == package | {f"{unpacked.name}.dist-info/{name}" for name in about}
    data = {f"headscope/{folder}/{name}".replace("/./", "/") for folder in DATA for name in DATA[folder].split()}
    assert {name for name in package if not name.endswith(".py")} == data
    assert [name for name in data if installed[name] == 0] == ["headscope/py.typed"]


def test_a_release_has_one_version() -> None:
    texts = {name: (REPOSITORY / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "CITATION.cff")}
    newest = re.search(r"^## (\S+?)(,|$| )", texts["CHANGELOG.md"], re.MULTILINE)
    cited = re.search(r"^version: (.*)$", texts["CITATION.cff"], re.MULTILINE)
    web = json.loads((REPOSITORY / "web" / "package.json").read_text(encoding="utf-8"))
    assert [newest[1], cited[1], web["version"]] == 3 * [headscope.__version__]


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


def test_the_documentation_names_the_least_versions_that_are_installed() -> None:
    """With torch 2.5 no capture runs: no stances. transformers 5.0 shows ModernBERT's last state unnormed."""
    settings = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    least = re.search(r'torch = \["torch>=([\d.]+)", "transformers>=([\d.]+)"\]', settings)
    told = (REPOSITORY / "docs" / "reference" / "capturing.md").read_text(encoding="utf-8")
    assert least is not None
    assert f"({least[2]} or newer, with torch {least[1]} or newer)" in told
