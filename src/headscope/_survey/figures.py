"""The figures of a survey, after Clark et al. 2019, 'What Does BERT Look At?': their statistics and titles."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerFigure:
    """A figure with layers along the x axis, a panel per statistic, a point per head, and a line through layer means.

    Attributes:
        name: the file's name without its suffix.
        title: above the figure.
        panels: statistic -> title of its panel.
        axis: label of the vertical axis, with the unit.
        source: the corresponding figure in the paper.
    """

    name: str
    title: str
    panels: dict[str, str]
    axis: str
    source: str


FIGURES = (
    LayerFigure(
        "special-tokens",
        "Weight on [CLS], on [SEP] and on punctuation",
        {"cls": "[CLS]", "sep": "[SEP]", "punctuation": "punctuation"},
        "mean weight",
        "Clark et al. 2019, figure 2",
    ),
    LayerFigure(
        "neighbours",
        "Weight on the previous token, the same and the next",
        {"previous": "previous token", "same": "same token", "next": "next token"},
        "mean weight",
        "Clark et al. 2019, section 3.1",
    ),
    LayerFigure(
        "entropy",
        "Entropy of every head",
        {"entropy": "entropy"},
        "mean entropy (nats)",
        "Clark et al. 2019, figure 4",
    ),
)

CLUSTERS = "clusters"
"""The figure of heads as points: multidimensional scaling of their Jensen-Shannon distances (figure 6 there)."""
CLUSTERS_TITLE = "Heads that look alike lie together"
CLUSTERS_SOURCE = "Clark et al. 2019, figure 6"


def round_up(value: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `value`; 1 for 0."""
    if not value > 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 2, 2.5, 5, 10) if step * unit >= value * (1 - 1e-9))


def layer_ticks(layers: tuple[int, ...], *, most: int = 12) -> tuple[int, ...]:
    """The layers labelled on an axis: all, or every second, third, …"""
    step = -(-len(layers) // most)
    return layers[::step]
