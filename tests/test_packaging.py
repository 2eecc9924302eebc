"""What is built for users: the wheel has the model and the pages, the sdist all that its own tests need."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
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
    assert "headscope/view/static/page.html" in names
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
