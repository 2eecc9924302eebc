"""`headscope survey` as a process of its own: what it prints, where it writes, how it is stopped."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from surveying import contents

import commands
from headscope.atlas.run import Tally
from headscope.atlas.survey_progress import clock, described
from patience import PATIENCE

HEADSCOPE = [sys.executable, "-m", "headscope", "survey", "-"]
INTERRUPTED = """
import os, runpy, signal, sys

renamed = 0

def interrupt(event, args):
    global renamed
    if event == "os.rename" and os.path.basename(args[1]).startswith("part-"):
        renamed += 1
        if renamed == 2:
            os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
runpy.run_module("headscope", run_name="__main__", alter_sys=True)
"""
"""`python -m headscope`, interrupted as the second part is about to get its name."""

ASKED = [*("--set", "length=32", "--set", "part_size=500", "--set", "max_document=10000", "--set", "threads=1")]


def run(*args: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*HEADSCOPE, *args], capture_output=True, timeout=PATIENCE)


@pytest.mark.slow
def test_the_same_files_as_in_python(corpus, whole, tmp_path):
    done = run(str(corpus), "--out", str(tmp_path / "out"), *ASKED, "--set", "head_distances=2")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    result = contents(tmp_path / "out")
    site = {name: result.pop(name) for name in list(result) if name.startswith("site/")}
    pages = {f"site/head-{layer}-{head}.html" for layer in range(4) for head in range(4)}
    assert set(site) == {"site/index.html", "site/report.js", "site/report.css"} | pages
    assert all(b"<html" in page for name, page in site.items() if name.endswith(".html"))
    assert result == contents(whole.folder)
    screen = done.stdout.decode()
    assert "8 documents" in screen
    assert "4 documents were refused: 2 empty, 1 not UTF-8, 1 too long" in screen
    means = whole["previous"].array
    layer, head = divmod(int(means.argmax()), 4)
    (line,) = (line for line in screen.splitlines() if line.startswith("previous"))
    assert line.split()[1:3] == [f"{layer}.{head}", f"{means.max():.3f}"]


def test_standard_input_and_json(tmp_path):
    arguments = ["survey", "-", "-", "--out", str(tmp_path / "out"), "--statistic", "cls, sep", "--json"]
    done = commands.run(*arguments, input="The cat sat.")
    record = json.loads(done.stdout)
    aggregates = json.loads((tmp_path / "out" / "aggregates.json").read_bytes())
    assert record == {**aggregates, "schema": "headscope/survey", "version": 1}
    assert record["windows"] == 1
    assert list(record["statistics"]) == ["cls", "sep"]


def test_an_interrupted_survey_says_how_to_resume(corpus, whole, tmp_path):
    out = tmp_path / "out"
    requested = ["survey", "-", str(corpus), "--out", str(out), *ASKED]
    requested += ["--set", "head_distances=2", "--set", "report=false"]
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, *requested], capture_output=True, timeout=PATIENCE)
    assert done.returncode == 130, done.stderr
    parts = len(list(out.glob("parts/part-*.parquet")))
    assert parts == 1
    message = f"stopped: {parts} finished parts are kept in {out}; run the same command to resume\n"
    assert done.stderr.decode() == message
    assert done.stdout == b""
    assert not any(path.name.startswith(".") for path in (out / "parts").iterdir())


def test_a_refusal_is_in_words(tmp_path):
    done = run(str(tmp_path / "none"), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert b"no such file or folder" in done.stderr
    assert b"Traceback" not in done.stderr


def test_progress_in_words():
    tally = Tally(total=1000.0, weight=600.0, kept=200.0, documents=1200, tokens=50_000, kept_parts=3)
    assert described(tally, 10) == "1,200 documents · 3 parts kept · 5,000 tokens/s · 10 s left"
    assert described(Tally(total=None), 0) == "0 documents"
    assert [clock(seconds) for seconds in (0.2, 65, 3600 + 62)] == ["0 s", "1:05", "1:01:02"]


def test_the_command_line_starts_without_what_a_survey_needs():
    code = (
        "import sys; from headscope.cli import app; import headscope.atlas; "
        "print(sorted({'torch', 'transformers', 'pyarrow', 'ray', 'numpy'} & set(sys.modules)))"
    )
    assert commands.python(code) == "[]\n"
