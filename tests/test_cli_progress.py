"""The bar of a long forward pass: on a terminal only, after a while only, with the layers done."""

from __future__ import annotations

import io
import sys

import pytest

from commands import Terminal
from headscope.cli.app import layer_progress


def run(stream: io.StringIO, layers: int = 4) -> str:
    with layer_progress(stream) as said:
        if said is not None:
            for done in range(1, layers + 1):
                said(done, layers)
    return stream.getvalue()


def test_a_long_forward_pass_says_how_many_layers_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["headscope.cli.app"], "PATIENCE", 0.0)
    shown = run(Terminal())
    assert "layers" in shown
    assert "4/4" in shown


def test_a_short_one_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["headscope.cli.app"], "PATIENCE", float("inf"))
    assert run(Terminal()) == ""


def test_one_layer_that_is_done_needs_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["headscope.cli.app"], "PATIENCE", 0.0)
    assert run(Terminal(), layers=1) == ""


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["headscope.cli.app"], "PATIENCE", 0.0)
    assert run(io.StringIO()) == ""
