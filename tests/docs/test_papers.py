"""Papers as scripts: each runs on a checkpoint, prints what came out beside what the paper found, and is short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from naive_layers import MINILM
from patience import PATIENCE

PAPERS = sorted((Path(__file__).parents[2] / "examples" / "papers").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", PAPERS, ids=lambda path: path.stem)
@pytest.mark.parametrize("model", ["-", MINILM], ids=["bundled", "minilm"])
def test_a_paper_runs(script: Path, model: str) -> None:
    done = subprocess.run(
        [sys.executable, str(script), str(model)], capture_output=True, encoding="utf-8", timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"\d", done.stdout)
    assert "nan" not in done.stdout


def test_each_says_what_the_paper_found_in_at_most_40_lines() -> None:
    assert len(PAPERS) >= 5
    for script in PAPERS:
        text = script.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 40, script.name
        assert re.match(rf'"""\w.* {script.stem[-4:]}, “', text), script.name
        assert "They " in text.split('"""')[1], script.name
