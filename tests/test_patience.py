"""No test depends on how much a machine gets done in a given time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = re.compile(
    r"timeout(?:_seconds)?=[\d.]|\.(?:wait|join|result|communicate)\([\d.]|wait_for_timeout\(\d{3}|deadline=\d|set_default_timeout\(\d"
)


@pytest.mark.parametrize("path", sorted(HERE.rglob("*.py")), ids=lambda path: path.relative_to(HERE).as_posix())
def test_no_test_counts_seconds(path: Path) -> None:
    """The one limit is PATIENCE, after which a thing is said to hang."""
    if path != Path(__file__):
        assert SECONDS.findall(path.read_text(encoding="utf-8")) == []
