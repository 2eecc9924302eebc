"""The rooms of headscope.live: each says what it is about, and shows an example that runs."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

from headscope import live

ROOMS = sorted(path.parent.name for path in Path(live.__file__).parent.glob("*/__init__.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_the_example_of_a_room_runs(room: str) -> None:
    module = import_module(f"headscope.live.{room}")
    outcome = doctest.testmod(module)
    assert outcome.attempted >= 3
    assert not outcome.failed


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_names_its_files(room: str) -> None:
    """And what to read first, and who may call it."""
    module = import_module(f"headscope.live.{room}")
    text = module.__doc__ or ""
    folder = Path(live.__file__).parent / room
    names = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    assert {name for name in names - {"__init__"} if f"`{name}`" not in text} == set()
    assert "first" in text
    assert "call it" in text
