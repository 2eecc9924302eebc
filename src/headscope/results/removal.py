"""The curve of removal: what becomes of a score as heads are silenced one after the other."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.late import late
from headscope.results.head_values import Head, Measure
from headscope.results.row_tables import Rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True, eq=False, repr=False)
class Removal(Rows):
    """A score after each head that was silenced, with heads drawn at random from the same layers beside it.

    Attributes:
        measure: what the score is.
        order: the heads as they were silenced; each step has all heads before it silenced, too.
        method: how: zero, mean, ….
        base: (texts,), the score of each text with all heads.
        each: (steps, texts), the score of each text after each step.
        low: (steps,), of the 95 % interval of the mean score: Student's t of the change over texts.
        high: (steps,), likewise.
        random: (orders, steps), the mean score where as many heads of each layer are silenced, drawn at random; NaN at
            steps where it wasn't measured.
        chosen_on: number of other texts, on which the order was chosen; 0 for an order that was given.
    """

    measure: Measure
    order: tuple[Head, ...]
    method: str
    base: Float[np.ndarray, " texts"]
    each: Float[np.ndarray, "steps texts"]
    low: Float[np.ndarray, " steps"]
    high: Float[np.ndarray, " steps"]
    random: Float[np.ndarray, "orders steps"]
    chosen_on: int = 0

    @property
    def score(self) -> Float[np.ndarray, " steps"]:
        """The mean score over texts after each step."""
        return self.each.mean(-1)

    def __len__(self) -> int:
        return len(self.order)

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each step; `random`, `random_low`, `random_high`: mean, least, greatest of the orders."""
        base, score = float(self.base.mean()), self.score
        rows = []
        for step, (layer, head) in enumerate(self.order):
            row = {"step": step + 1, "layer": layer, "head": head, self.measure.name: float(score[step])}
            row |= {"low": float(self.low[step]), "high": float(self.high[step]), "change": float(score[step]) - base}
            drawn = self.random[:, step] if len(self.random) else np.array([np.nan])
            parts = {"random": drawn.mean(), "random_low": drawn.min(), "random_high": drawn.max()}
            rows.append(row | {name: float(number) for name, number in parts.items()})
        return rows

    @late("headscope.screens.figures:plot_removal")
    def plot(self, *, ax: Any = None, width: float = 3.35, save: str | os.PathLike[str] | None = None) -> Any:
        """Draw the score over the number of silenced heads, with its interval, and the random orders in grey.

        Returns the axes of matplotlib. See headscope.screens.figures.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        texts = f"{self.each.shape[1]} texts"
        chosen = f", in an order chosen on {self.chosen_on} others" if self.chosen_on else ""
        half = len(self) // 2
        shown = "; ".join(
            f"{step} silenced: {self.score[step - 1]:.4g}" for step in dict.fromkeys((1, half, len(self))) if step
        )
        return f"{self.measure.name} on {texts}{chosen}: {self.base.mean():.4g} with all heads; {shown}"
