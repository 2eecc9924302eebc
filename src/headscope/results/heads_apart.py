"""Distances between heads: a matrix with the heads' names, its clusters, and its drawing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError, require
from headscope.late import late
from headscope.results.arrays import Named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float

    from headscope.results.head_values import Head


@dataclass(frozen=True, eq=False, repr=False)
class HeadDistances(Named):
    """Distances between all pairs of heads, (heads_total, heads_total): 0 where two have the same weights.

    Attributes:
        heads: (layer, head) of each row and column.
    """

    heads: tuple[Head, ...] = ()

    @classmethod
    def of(cls, array: Float[np.ndarray, "heads_total heads_total"], heads: Sequence[Head]) -> HeadDistances:
        """Distances of these heads."""
        names = tuple(f"{layer}.{head}" for layer, head in heads)
        return cls("head_distances", ("heads_total", "heads_total"), array, names, tuple(heads))

    def clusters(self, count: int) -> list[list[Head]]:
        """The heads in at most `count` groups, the largest first: average linkage by scipy.

        Two groups are as far apart as their heads are on average, and the two nearest are joined until `count` are left
        (Sokal and Michener 1958).

        Raises:
            InputError: `count` is not a number from 1 on.
            MissingExtraError: scipy is not installed.
        """
        if not isinstance(count, int) or count < 1:
            raise InputError(
                f"there can't be {count!r:.40} clusters", where="clusters", advice="pass a number from 1 on"
            )
        require("scipy", where="clusters", otherwise="give array to another library")
        from scipy.cluster import hierarchy
        from scipy.spatial.distance import squareform

        if len(self.heads) < 2:
            return [list(self.heads)]
        apart = self.array.astype(np.float64)
        flat = squareform((apart + apart.T) / 2, checks=False)
        numbers = hierarchy.fcluster(hierarchy.linkage(flat, "average"), count, "maxclust")
        groups = [[self.heads[at] for at in np.flatnonzero(numbers == number)] for number in np.unique(numbers)]
        return sorted(groups, key=lambda group: (-len(group), group))

    def to_pandas(self) -> Any:
        """Return a frame of pandas, with the heads' names (`3.1`) on both sides.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        require("pandas", where="to_pandas", otherwise="use array")
        import pandas

        return pandas.DataFrame(self.array, self.labels, self.labels)

    @late("headscope.screens.figures:plot_distances")
    def plot(self, *, ax: Any = None, width: float = 3.35, save: str | os.PathLike[str] | None = None) -> Any:
        """Draw the heads on a plane, so that those that look alike lie together, in the colours of their layers.

        Classical scaling (Torgerson 1952). Returns the axes of matplotlib. See headscope.screens.figures.
        """
        raise NotImplementedError
