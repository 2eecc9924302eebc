"""No test depends on how much a machine gets done in a given time."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
SECONDS = re.compile(
    r"timeout(?:_seconds)?=[\d.]|\.(?:wait|join|result|communicate)\([\d.]|wait_for_timeout\(\d{3}|deadline=\d"
    r"|set_default_timeout\(\d|sleep\([1-9]|\.launch\((?!.*timeout=PATIENCE)"
)


def test_no_test_counts_seconds() -> None:
    """The one limit is PATIENCE, after which a thing is said to hang."""
    counted = {path: SECONDS.findall(path.read_text(encoding="utf-8")) for path in HERE.rglob("*.py")}
    del counted[Path(__file__)]
    assert {path: seconds for path, seconds in counted.items() if seconds} == {}
