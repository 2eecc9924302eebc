"""No test depends on how much a machine gets done in a given time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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


LONG = """
import time

def test_short():
    pass

def test_long():
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass
"""
LIST = "from costs import Costs\n\ndef pytest_configure(config):\n    config.pluginmanager.register(Costs(0.4))\n"


def test_a_costly_test_is_listed_and_passes(tmp_path: Path) -> None:
    (tmp_path / "test_both.py").write_text(LONG)
    (tmp_path / "conftest.py").write_text(LIST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    settings = {**os.environ, "PYTHONPATH": str(HERE)}
    settings.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run([sys.executable, "-m", "pytest"], cwd=tmp_path, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert re.search(r"(?m)^ +[\d.]+ s  TOO LONG  test_both.py::test_long$", done.stdout), done.stdout
