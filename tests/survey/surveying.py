"""Shared by the tests of surveys: a text, small options, and a folder as bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ALICE = (Path(__file__).parent.parent / "data" / "alice.txt").read_text(encoding="utf-8")

OPTIONS: dict[str, Any] = {"length": 32, "part_size": 500, "max_document": 10_000, "threads": 1, "report": False}
"""Small windows and parts, so that there are many of both. One thread, as in Ray's workers."""


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by its name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
