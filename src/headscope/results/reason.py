"""A head's look from one token at another: its score over that of other keys, by pairs of input tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope.results.arrays import ArrayLike
from headscope.results.head_values import signed
from headscope.results.score_parts import Part, kappa_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.results.arrays import TokenAxis

REST = ("biases", "distance")
"""The entries beside the tokens on both sides: the biases' shares, and terms for the distance of query and key."""


@dataclass(frozen=True, eq=False)
class Why(ArrayLike):
    """The score of a query and a key, less the plain mean of the query's scores of all other keys, taken apart.

    Attributes:
        layer: the head's layer.
        head: the head in it.
        query: position of the token that looks.
        key: position of the token that it looks at.
        weight: the weight of the query on the key.
        score: their score.
        others: the mean of the query's scores of the other keys that it sees.
        table: (tokens, biases and distance; the same), what each pair adds to the difference: the row's part of the
            query, times the column's part of the key less the mean of the other keys. Its sum is `score - others`.
        axis: the text's tokens.
        labels: of rows and columns.
        checks: the tokens of the strongest pair: `share` is what all pairs with the token add, and `change` what the
            weight's log odds lose when it is masked for real.
        unchecked: why nothing was masked.
    """

    layer: int
    head: int
    query: int
    key: int
    weight: float
    score: float
    others: float
    table: Float[np.ndarray, "rows columns"]
    axis: TokenAxis
    labels: tuple[str, ...]
    checks: tuple[Part, ...] = ()
    unchecked: str = ""

    @property
    def difference(self) -> float:
        """The score less the mean of the other keys: what the pairs add up to."""
        return self.score - self.others

    @property
    def cells(self) -> Float[np.ndarray, "tokens tokens"]:
        """(tokens, tokens): the pairs of tokens alone."""
        return self.table[: len(self.axis), : len(self.axis)]

    @property
    def rest(self) -> float:
        """The part of pairs with the biases or the distance: cells and rest are the difference."""
        return float(self.table.sum() - self.cells.sum())

    @property
    def kappa(self) -> float:
        """(sum of the pairs' sizes) / |difference|: 1 where nothing cancels."""
        return kappa_of(self.table, 0.0, self.difference)

    def strongest(self, count: int = 10) -> list[tuple[int, int]]:
        """Rows and columns of the table that add most in either direction, the biases' and the distance's too."""
        order = np.argsort(-np.abs(self.table), axis=None, kind="stable")[:count]
        rows, columns = np.unravel_index(order, self.table.shape)
        return [(int(row), int(column)) for row, column in zip(rows, columns, strict=True)]

    def of_token(self, token: int) -> float:
        """The sum of all pairs with a token, on either side."""
        return float(self.table[token].sum() + self.table[:, token].sum() - self.table[token, token])

    @property
    def array(self) -> Float[np.ndarray, "..."]:  # type: ignore[override]
        """The array that this record stands for: `table`."""
        return self.table

    def __repr__(self) -> str:
        row, column = self.strongest(1)[0]
        return (
            f"layer {self.layer}, head {self.head}: {self.axis.tokens[self.query]} scores {self.axis.tokens[self.key]} "
            f"{self.score:.4f}, {signed(self.difference)} over the mean of other keys; most: "
            f"{self.labels[row]} x {self.labels[column]} {signed(self.table[row, column])}"
        )
