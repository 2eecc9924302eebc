"""Figures by matplotlib at the width of a column, in one style: weights, tables of heads, attributions."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.atlas.layout_2d import classical_scaling, label_widths, layer_ticks, leader, place_labels
from headscope.errors import InputError, require
from headscope.files import write_atomically
from headscope.results.explained import LEAST_SHARE
from headscope.screens.inked import LESS, MORE
from headscope.screens.labels import printable

if TYPE_CHECKING:
    from jaxtyping import Float
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

    from headscope.results.effect_records import Removal
    from headscope.results.explained import Attribution, Followed
    from headscope.results.head_values import HeadDistances, HeadValues
    from headscope.traces import Trace

SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "headscope",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
"""Fonts that come with matplotlib and fixed ids, so that the same numbers give the same bytes."""
METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "headscope"},
    "pdf": {"CreationDate": None, "Creator": "headscope", "Producer": None},
    "png": {"Software": "headscope"},
}
"""Metadata of a file, without the time, so that the same numbers give the same bytes."""
KINDS = (".svg", ".pdf", ".png")
COLUMN = 3.35
"""Inches: the width of a column in the proceedings of ACL and NeurIPS' figures beside text."""
STYLE: dict[Any, Any] = {**SETTINGS, "font.size": 7, "axes.titlesize": 7.5, "axes.linewidth": 0.6, "figure.dpi": 150}
STOPS = (
    *((0.0, "#ffffff"), (0.15, "#eef4fb"), (0.3, "#cde0f6")),
    *((0.52, "#7eaee6"), (0.78, "#2f62b5"), (1.0, "#13223d")),
)
"""The page's colours of weights, at these square roots (web/src/drawing/colour.ts)."""
SIGNED = ((0.0, LESS), (0.5, "#ffffff"), (1.0, MORE))
"""The colours of signed numbers at -1, 0 and 1: purple below 0, green above."""
DARK = STOPS[-2][1]
"""The colour of a curve."""
BROKEN = "#d6003c"
PIN, OWN = "#c2410c", "#fdeee4"
"""The number of what a token keeps of itself, and its ground: the page's colours of what is pinned."""
SMALL = 4.5
"""Points: letters of the names of heads on a plane."""
NAMED = 48
"""Most tokens whose names fit beside a matrix; longer texts have positions."""


def plot_trace(
    trace: Trace,
    layer: int,
    head: int | None = None,
    *,
    ax: Any = None,
    width: float = COLUMN,
    save: str | os.PathLike[str] | None = None,
) -> Any:
    """Draw the weights of one head as a matrix, or those of all heads of a layer side by side.

    Ink is on a square-root scale from 0 to 1, as on the page: queries down, keys across.

    Args:
        layer: by its number in the model.
        head: by its number in the layer; None for all of them.
        ax: axes of matplotlib to draw one head into.
        width: of the figure, in inches.
        save: also write the figure: a path that ends in .svg, .pdf or .png.

    Returns:
        The axes; of a layer, an array of them.

    Raises:
        MissingExtraError: matplotlib is not installed; it comes with headscope[plot].
        InputError: `ax` with a whole layer, or `save` has another ending.
    """
    if head is not None:
        shown = trace[layer, head]
        with drawing(ax, (width, width), save) as axes:
            _weights(axes, shown.weights[...], f"layer {shown.layer}, head {shown.head}")
            _tokens(axes, trace.tokens, trace.keys.tokens)
        return axes
    pyplot = _pyplot_for(save)
    with pyplot.rc_context(STYLE):
        if ax is not None:
            raise InputError("ax takes one head", where="ax", advice="name a head, or leave ax out")
        panels = _panels(pyplot, trace, layer, width)
        _save(panels[0, 0].figure, save)
    return panels


def _panels(pyplot: Any, trace: Trace, layer: int, width: float) -> Any:
    """All heads of a layer, four in a row."""
    shown = trace[layer]
    numbers = shown.numbers
    across = min(len(numbers), 4)
    down = -(-len(numbers) // across)
    size = (width, width / across * down)
    _, panels = pyplot.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    for axes, number in zip(panels.ravel(), numbers, strict=False):
        _weights(axes, shown[number].weights[...], f"{shown.layer}.{number}")
        axes.set(xticks=[], yticks=[])
    for axes in panels.ravel()[len(numbers) :]:
        axes.set_visible(False)
    return panels


def plot_values(
    values: HeadValues, *, ax: Any = None, width: float = COLUMN, save: str | os.PathLike[str] | None = None
) -> Any:
    """Draw one number of every head: layers down, heads across, with its scale.

    Numbers that can be negative are purple below 0, white at 0 and green above. The others run from white to dark blue.

    Args:
        ax: axes of matplotlib to draw into.
        width: of the figure, in inches.
        save: also write the figure: a path that ends in .svg, .pdf or .png.

    Raises:
        MissingExtraError: matplotlib is not installed; it comes with headscope[plot].
        InputError: the numbers have a third axis, or `save` has another ending.
    """
    array = values._plane("plot")
    layers, heads = array.shape
    with drawing(ax, (width, max(1.2, 0.8 * width * layers / heads + 0.5)), save) as axes:
        image = _image(axes, array, *_scale(values, array[np.isfinite(array)]))
        axes.set(xlabel="head", ylabel="layer", title=plain([*values.measure.names, values.name])[0])
        axes.set_yticks(range(0, layers, -(-layers // 16)))
        axes.set_xticks(range(0, heads, -(-heads // 16)))
        if values.numbers:
            for axis, of in zip((axes.yaxis, axes.xaxis), values.numbers, strict=True):
                axis.set_ticklabels([str(of[int(place)]) for place in axis.get_ticklocs()])
        bar = axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.03)
        bar.set_label(values.measure.unit)
        bar.outline.set_linewidth(0.4)
    return axes


def _scale(values: HeadValues, finite: Float[np.ndarray, " n"]) -> tuple[Sequence[tuple[float, str]], float, float]:
    """The colours of a measure, and the numbers at their ends: the unit's range, or that of the values."""
    measure = values.measure
    if measure.signed or (finite.size and finite.min() < 0):
        greatest = float(np.abs(finite).max(initial=0)) or 1.0
        return SIGNED, -greatest, greatest
    if measure.low is not None and measure.high is not None:
        return STOPS, measure.low, measure.high
    return (STOPS, float(finite.min()), float(finite.max())) if finite.size else (STOPS, 0.0, 1.0)


def plot_attribution(
    result: Attribution, *, ax: Any = None, width: float = COLUMN, save: str | os.PathLike[str] | None = None
) -> Any:
    """Draw what each token adds: a bar for each, green above 0 and purple below. Arguments as for `plot_values`."""
    with drawing(ax, (width, 0.16 * len(result.scores) + 0.6), save) as axes:
        places = np.arange(len(result.scores))
        axes.barh(places, result.scores, color=[MORE if score > 0 else LESS for score in result.scores])
        axes.set_yticks(places, plain(result.tokens))
        axes.invert_yaxis()
        axes.axvline(0, color="black", lw=0.5)
        axes.set_xlabel(f"added to {plain([str(result.target).removesuffix(' (the default)')])[0]}")
    return axes


def plot_removal(
    curve: Removal, *, ax: Any = None, width: float = COLUMN, save: str | os.PathLike[str] | None = None
) -> Any:
    """Draw a score over the number of silenced heads: its interval shaded, random orders in grey.

    Arguments as for `plot_values`.
    """
    with drawing(ax, (width, 0.7 * width), save) as axes:
        steps, base = np.arange(len(curve) + 1), curve.base.mean()
        if len(curve.random):
            points = ~np.isnan(curve.random[0])
            at = np.concatenate([[0], steps[1:][points]])
            drawn = np.concatenate([np.full((len(curve.random), 1), base), curve.random[:, points]], axis=1)
            axes.fill_between(at, drawn.min(0), drawn.max(0), color="#bbbbbb", alpha=0.5, lw=0)
            axes.plot(at, drawn.mean(0), color="#777777", lw=0.8, label=f"{len(drawn)} random orders, same layers")
        axes.fill_between(steps[1:], curve.low, curve.high, color=DARK, alpha=0.2, lw=0)
        axes.plot(steps, [base, *curve.score], color=DARK, lw=1.2, label="this order")
        axes.set(xlabel="heads silenced", ylabel=plain([curve.measure.name])[0], xlim=(0, len(curve)))
        axes.legend(frameon=False)
    return axes


def plot_distances(
    distances: HeadDistances, *, ax: Any = None, width: float = COLUMN, save: str | os.PathLike[str] | None = None
) -> Any:
    """Draw heads as points, near to each other where their weights are alike, with their names where there is room.

    Arguments as for `plot_values`.
    """
    with drawing(ax, (width, width), save) as axes:
        places, kept = classical_scaling(distances.array)
        layers = [layer for layer, _ in distances.heads]
        points = axes.scatter(*places.T, c=layers, s=8, cmap=colours([(0.0, STOPS[2][1]), *STOPS[3:]]))
        axes.set(aspect="equal", title=f"a plane that holds {kept:.0%} of the squared distances")
        axes.axis("off")
        low, high = np.stack([axes.get_xlim(), axes.get_ylim()], -1)
        unit = float(max(high - low)) / (axes.get_window_extent().width * 72 / axes.figure.dpi)  # a point, 1/72 inch
        names, height, radius = distances.labels or (), SMALL * unit, 1.6 * unit
        widths = label_widths(names, height)
        middles = place_labels(places, widths, height, radius=radius, low=low, high=high)
        for name, point, middle, size in zip(names, places, middles, widths, strict=True):
            if np.isfinite(middle).all():
                axes.text(*middle, name, ha="center", va="center", fontsize=SMALL)
                ends = leader(point, middle, size, height, radius)
                axes.plot(*np.transpose(ends if ends else [point, point]), color="#777777", lw=0.3)
        ticks = layer_ticks(tuple(sorted(set(layers))))
        bar = axes.figure.colorbar(points, ax=axes, fraction=0.05, pad=0.03, ticks=ticks)
        bar.set_label("layer")
        bar.outline.set_linewidth(0.4)
    return axes


def plot_followed(
    followed: Followed, *, ax: Any = None, width: float = 2 * COLUMN, save: str | os.PathLike[str] | None = None
) -> Any:
    """Draw a row for each layer: what every token brings, from .02 on with the head that brings most, and what is kept.

    Ink is on a square-root scale from 0 to 1; a share below 0 has none. Arguments as for `plot_values`.
    """
    totals, best = followed.array, followed.shares.argmax(1)
    layers, tokens = totals.shape
    with drawing(ax, (width, 0.24 * layers + 1.1), save) as axes:
        own = np.where(np.arange(tokens) == followed.token, np.nan, np.maximum(totals, 0))
        _weights(axes, own, followed.sentence.split(". ")[0])
        axes.set_aspect("auto")
        axes.axvspan(followed.token - 0.5, followed.token + 0.5, color=OWN)
        fits = axes.get_window_extent().width * 72 / axes.figure.dpi / tokens > 3 * SMALL
        for (row, at), share in np.ndenumerate(totals if fits else totals[:0]):
            if at == followed.token:
                told, colour = f"{followed.kept[row]:.2f}", PIN
            elif share >= LEAST_SHARE:
                told, colour = f"{share:.2f}\n{followed.layers[row]}.{best[row, at]}", "black"
            else:
                continue
            axes.text(at, row, told.lstrip("0"), ha="center", va="center", fontsize=SMALL, color=colour)
        _tokens(axes, (), followed.tokens)
        axes.set_yticks(range(layers), followed.layers)
        axes.set(xlabel="", ylabel="layer")
    return axes


@contextmanager
def drawing(ax: Axes | None, size: tuple[float, float], save: str | os.PathLike[str] | None) -> Iterator[Any]:
    """The axes to draw into, new ones of this size without `ax`; the figure is written when the block ends."""
    pyplot = _pyplot_for(save)
    with pyplot.rc_context(STYLE):
        axes = pyplot.subplots(figsize=size, layout="constrained")[1] if ax is None else ax
        yield axes
        _save(axes.figure, save)


def _pyplot_for(save: str | os.PathLike[str] | None) -> Any:
    """matplotlib.pyplot, once it is known that the figure can be written."""
    if save is not None and Path(save).suffix.lower() not in KINDS:
        found = f"a figure can't be written as {Path(save).suffix or 'a file without an ending'}"
        raise InputError(found, where=str(save), advice=f"name a file that ends in {', '.join(KINDS)}")
    require("matplotlib", "plot", where="plot")
    from matplotlib import pyplot

    return pyplot


def colours(stops: Sequence[tuple[float, str]]) -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("headscope", list(stops), 513).with_extremes(bad=BROKEN)


def _image(axes: Any, array: np.ndarray, stops: Sequence[tuple[float, str]], low: float, high: float) -> Any:
    image = axes.imshow(np.ma.masked_invalid(array), cmap=colours(stops), vmin=low, vmax=high, aspect="auto")
    image.set_interpolation("nearest")
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return image


def _weights(axes: Any, weights: Float[np.ndarray, "queries keys"], title: str) -> None:
    from matplotlib.colors import PowerNorm

    _image(axes, weights, STOPS, 0, 1).set_norm(PowerNorm(0.5, 0, 1))
    axes.set_aspect("equal" if weights.shape[0] == weights.shape[1] else "auto")
    axes.set_title(title)


def plain(tokens: Sequence[str]) -> list[str]:
    """Tokens with control characters and lone surrogates escaped, and dollar signs: a pair of them is mathematics."""
    return [printable(token).replace("$", r"\$") for token in tokens]


def _tokens(axes: Any, queries: Sequence[str], keys: Sequence[str]) -> None:
    """The tokens beside the rows and below the columns; of a long text, positions."""
    if len(queries) <= NAMED:
        axes.set_yticks(range(len(queries)), plain(queries))
    if len(keys) <= NAMED:
        axes.set_xticks(range(len(keys)), plain(keys), rotation=90)
    axes.set(xlabel="key", ylabel="query")


def _save(figure: Any, save: str | os.PathLike[str] | None) -> None:
    if save is None:
        return
    kind, held = Path(save).suffix.lower()[1:], io.BytesIO()
    figure.savefig(held, format=kind, dpi=300, metadata=METADATA[kind])
    write_atomically(Path(save), held.getvalue())
