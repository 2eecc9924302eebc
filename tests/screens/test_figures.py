"""Figures: the numbers in them, the page's colours and sign rule, the width, files whose bytes are steady."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.dom.minidom
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_hex, to_rgba

import headscope as hs
from headscope.screens.figures import COLUMN, SIGNED, STOPS
from headscope.screens.inked import LESS, MORE, signed_style

mpl.use("agg")
TEXT = "She took off her [MASK]."
WEB = Path(__file__).parents[2] / "web" / "src"
COLOURS = (WEB / "drawing" / "colour.ts").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def closed() -> Any:
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def trace(bundled: Any) -> Any:
    return bundled.trace(TEXT)


def test_one_head_is_its_weights(trace: Any) -> None:
    axes = trace.plot(2, 1)
    (image,) = axes.images
    np.testing.assert_array_equal(np.asarray(image.get_array()), trace[2, 1].weights[...])
    assert axes.get_title() == "layer 2, head 1"
    assert [label.get_text() for label in axes.get_xticklabels()] == list(trace.tokens)
    assert axes.figure.get_size_inches()[0] == COLUMN
    for at, colour in STOPS:  # of the square-root scale
        np.testing.assert_allclose(image.to_rgba(at**2), to_rgba(colour), atol=0.02)


def test_the_colours_are_the_pages() -> None:
    """Purple for less, green for more: one rule for the page, figures and terminals."""
    (line,) = re.findall(r"light: (\[\[0, .*\]\]),", COLOURS)
    stops = json.loads(line)
    assert [(at, to_hex([part / 255 for part in colour])) for at, colour in stops] == list(STOPS)
    (more, less) = re.findall(r"light: \{ more: (\[.*?\]), less: (\[.*?\]) \}", COLOURS)[0]
    named = [to_hex([part / 255 for part in json.loads(one)]) for one in (less, more)]
    assert named == [LESS, MORE]
    assert SIGNED == ((0.0, LESS), (0.5, "#ffffff"), (1.0, MORE))
    assert f"--more: {MORE}; --less: {LESS};" in (WEB / "base.css").read_text(encoding="utf-8")
    assert signed_style(1.0).endswith(f"on {MORE}")
    assert signed_style(-1.0).endswith(f"on {LESS}")


def test_a_layer_is_all_of_its_heads(trace: Any) -> None:
    panels = trace.plot(1)
    shown = [axes for axes in panels.ravel() if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == ["1.0", "1.1", "1.2", "1.3"]
    for head, axes in enumerate(shown):
        np.testing.assert_array_equal(np.asarray(axes.images[0].get_array()), trace[1, head].weights[...])
    assert trace.plot(-1, np.int64(-1)).get_title() == "layer 3, head 3"
    assert [panel.get_title() for panel in trace.plot(-1).ravel()] == ["3.0", "3.1", "3.2", "3.3"]


def test_effects_are_purple_above_0_and_green_below(bundled: Any) -> None:
    effects = bundled.effects(TEXT)
    axes = effects.plot()
    image = axes.images[0]
    np.testing.assert_allclose(np.asarray(image.get_array()), effects.change)
    greatest = abs(effects.change).max()
    assert image.get_clim() == (-greatest, greatest)
    assert [to_hex(image.to_rgba(value)) for value in (-greatest, 0, greatest)] == [LESS, "#ffffff", MORE]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("head", "layer")


def test_tables_and_attributions(bundled: Any, trace: Any) -> None:
    statistics = trace.statistics()
    image = statistics.plot("previous").images[0]
    assert image.get_clim() == (0, 1), "the unit's range"
    np.testing.assert_allclose(np.asarray(image.get_array()), statistics["previous"].array)
    attribution = bundled.attribute(TEXT)
    bars = attribution.plot().patches
    np.testing.assert_allclose([bar.get_width() for bar in bars], attribution.scores)
    assert {to_hex(bar.get_facecolor()) for bar in bars} <= {LESS, MORE}


def test_into_axes_of_ones_own(trace: Any) -> None:
    _, axes = pyplot.subplots(1, 2)
    assert trace.plot(0, 0, ax=axes[0]) is axes[0]
    assert trace.statistics()["entropy"].plot(ax=axes[1]) is axes[1]
    assert len(pyplot.get_fignums()) == 1
    with pytest.raises(hs.errors.InputError, match="ax takes one head"):
        trace.plot(0, ax=axes[0])


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_a_file_is_the_same_each_time(trace: Any, tmp_path: Path, kind: str) -> None:
    files = [tmp_path / f"{number}.{kind}" for number in range(2)]
    for file in files:
        trace.plot(0, 1, save=file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(files[0].read_bytes()) > 1000


def test_what_cant_be_drawn_is_an_error(trace: Any, tmp_path: Path) -> None:
    with pytest.raises(hs.errors.InputError, match=r"can't be written as \.bmp"):
        trace.plot(0, 0, save=tmp_path / "x.bmp")
    with pytest.raises(hs.errors.InputError, match="has the axes"):
        trace.statistics("entropy", per_query=True)["entropy"].plot()
    with pytest.raises(hs.errors.InputError):
        trace.plot(9, 0)


def test_broken_weights_and_dollars(bundled: Any) -> None:
    trace = bundled.trace("Costs $5 or $6.")
    axes = trace.plot(0, 0)
    axes.figure.canvas.draw()
    values = trace.statistics()["entropy"]
    values.array[0, 0] = np.nan
    image = values.plot().images[0]
    assert np.ma.getmaskarray(image.get_array())[0, 0]


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_lone_surrogates_and_control_characters_are_escaped(trace: Any, tmp_path: Path, kind: str) -> None:
    odd = ["\ud800", "\x1b[31m", "\x00", "a\nb", "\u202e"]
    axis = trace.queries
    tokens = (*odd, *axis.tokens[len(odd) :])
    changed = dataclasses.replace(trace, queries=dataclasses.replace(axis, tokens=tokens))
    axes = changed.plot(0, 0, save=tmp_path / f"head.{kind}")
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[: len(odd)] == [r"\ud800", r"\x1b[31m", r"\0", r"a\nb", r"\u202e"]
    if kind == "svg":
        xml.dom.minidom.parse(str(tmp_path / "head.svg"))
