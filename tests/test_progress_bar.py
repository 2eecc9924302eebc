"""Progress of long work: on a terminal, in a pipe, in the log, and in a notebook's kernel."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import headscope as hs
from commands import Terminal, run
from headscope import progress_bar as module
from headscope.progress_bar import clock, progress_bar, told
from patience import PATIENCE


@pytest.mark.parametrize(
    ("patience", "stream", "layers", "said"),
    [(0.0, Terminal, 4, "4/4"), (float("inf"), Terminal, 4, ""), (0.0, Terminal, 1, ""), (0.0, io.StringIO, 4, "")],
    ids=["slow", "quick", "one layer", "a pipe"],
)
def test_a_long_forward_pass_says_how_many_layers_are_done(
    patience: float, stream: type[io.StringIO], layers: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", patience)
    written = stream()
    with progress_bar("layers", written) as progress:
        for done in range(1, layers + 1):
            progress(done, layers)
    shown = written.getvalue()
    assert ("layers" in shown and said in shown) if said else shown == ""


def test_a_line_from_time_to_time_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while nothing is called: a part of a corpus may take minutes."""
    monkeypatch.setattr(module, "EVERY", 0.01)
    twice = threading.Event()

    class Pipe(io.StringIO):
        def write(self, text: str) -> int:
            written = super().write(text)
            if self.getvalue().count("\n") >= 2:
                twice.set()
            return written

    pipe = Pipe()
    with caplog.at_level(logging.INFO, "headscope"), progress_bar("layers", pipe) as progress:
        progress(1, 4)
        assert twice.wait(PATIENCE)
    assert all(line.startswith("layers: 1/4, ") for line in pipe.getvalue().splitlines()[1:])
    assert any(record.getMessage().startswith("layers: 1/4, ") for record in caplog.records)
    assert not [thread for thread in threading.enumerate() if thread.name == "headscope progress"]


def test_from_python_nothing_is_printed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "EVERY", 0.001)
    caplog.set_level(logging.INFO, "headscope")
    model, texts = hs.open(), ["a [MASK] sat on the mat"] * 3
    while not caplog.records:  # the work may be done sooner than the first line is due
        model.effects(texts)
    assert caplog.records[0].getMessage().startswith("texts")
    assert capsys.readouterr() == ("", "")


def test_texts_are_counted_as_layers_are() -> None:
    model, steps = hs.open(), list[tuple[int, int]]()

    def note(done: int, every: int) -> None:
        steps.append((done, every))

    model.effects(["a [MASK] sat", "the [MASK] of the house stood open"], progress=note)
    assert steps[-1] == (2, 2)
    steps.clear()
    model.effects("a [MASK] sat", progress=note)
    assert steps[-1] == (4, 4)


def test_a_survey_in_a_pipe_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.001)
    (tmp_path / "corpus.txt").write_text("The cat sat on the mat.\n\n" * 40)
    done = run("survey", "-", tmp_path / "corpus.txt", "--out", tmp_path / "out", "--set", "report=false")
    lines = done.stderr.splitlines()
    assert "survey: loading the model" in lines
    assert any(line.startswith("survey: ") and "documents" in line for line in lines)


def test_the_caller_s_own_callback_is_taken() -> None:
    own: Callable[[int, int], None] = lambda done, every: None  # noqa: E731
    with told(own, "layers") as progress:
        assert progress is own


def test_seconds_in_words() -> None:
    assert [clock(seconds) for seconds in (0.2, 65, 3600 + 62)] == ["0 s", "1:05", "1:01:02"]
