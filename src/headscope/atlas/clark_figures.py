"""The figures of a survey, after Clark et al. 2019, 'What Does BERT Look At?': what they show."""

from __future__ import annotations

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

CLUSTERS_TITLE = "Heads that look alike lie together"
CLUSTERS_SOURCE = "Clark et al. 2019, figure 6"


def layer_ticks(layers: tuple[int, ...], *, most: int = 12) -> tuple[int, ...]:
    """The layers labelled on an axis: all, or every second, third, …"""
    step = -(-len(layers) // most)
    return layers[::step]
