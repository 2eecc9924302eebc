"""The record of a parity comparison: two sides that should compute the same, step by step and head by head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.results.report import Check, Report
from headscope.results.table import HeadTable

if TYPE_CHECKING:
    import pyarrow
    from jaxtyping import Float

STEPS = ("tokens", "embeddings", "attention", "feed-forward", "vector")
"""The steps of a pass, in order; attention and feed-forward once in each layer."""


@dataclass(frozen=True)
class Move:
    """The weight that changes most of all.

    Attributes:
        layer: of the head.
        head: its number.
        text: index of the text.
        query: position of the token that looks.
        key: position of the token that it looks at.
        query_token: the token that looks.
        key_token: the token that it looks at.
        a: the weight in the first side.
        b: the weight in the other.
    """

    layer: int
    head: int
    text: int
    query: int
    key: int
    query_token: str
    key_token: str
    a: float
    b: float

    def __str__(self) -> str:
        pair = f"{self.query_token!r} → {self.key_token!r}"
        return f"head {self.layer}.{self.head} changes most: {pair} {self.a:.2f} → {self.b:.2f}"


@dataclass(frozen=True, eq=False)
class Cost:
    """The cost of a difference in search and in predictions.

    Attributes:
        cosines: (texts,), of each text's vectors in both sides.
        rank_correlation: Spearman's, of the similarities of all pairs of texts; NaN for fewer than three texts.
        top1_changes: the number of texts whose nearest other text is another one; 0 for fewer than three.
        predictions: the number of predictions that both sides made; 0 if the model predicts nothing.
        flips: how many of them differ.
    """

    cosines: Float[np.ndarray, " texts"]
    rank_correlation: float
    top1_changes: int
    predictions: int = 0
    flips: int = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "cosines": self.cosines.tolist()}


@dataclass(frozen=True)
class Explanation:
    """A hypothesis about what the other side does otherwise.

    Attributes:
        name: a clause whose subject is the other side; of a pair, both.
        residual: root mean square over texts of |v - b| / |b|, with v the vectors that the first side makes so.
    """

    name: str
    residual: float


@dataclass(frozen=True)
class Diagnosis:
    """The fault of the other side, told from vectors alone.

    Attributes:
        verdict: `same`, `is` (the first explanation reproduces the vectors), `mainly` (it explains at least 95 %),
            `precision` (none does, and the vectors are close: a precision or a kernel) or `none`.
        explanations: the best first; those that can't be told apart have the same residual.
        residual: without any hypothesis.
        floor: residual of vectors that are the same but for rounding.
        tried: how many hypotheses were tried, pairs included.
    """

    verdict: str
    explanations: tuple[Explanation, ...]
    residual: float
    floor: float
    tried: int

    @property
    def margin(self) -> float:
        """The residual of the second best explanation in those of the best."""
        best, second = (max(one.residual, self.floor) for one in self.explanations[:2])
        return second / best

    def __str__(self) -> str:
        if self.verdict in ("precision", "none"):
            return {
                "precision": f"a precision or a kernel: none of {self.tried} named faults gives these vectors",
                "none": f"none of {self.tried} named faults gives these vectors",
            }[self.verdict]
        if self.verdict == "same":
            return "nothing is wrong"
        best = self.explanations[0]
        names = [one.name for one in self.explanations if one.residual < 2 * max(best.residual, self.floor)]
        either = " or ".join(names[:3])
        if self.verdict == "mainly":
            return f"mainly: it {either}, which explains {1 - best.residual / self.residual:.0%} of the difference"
        margin = "" if len(names) > 1 else f"; the next best explanation is {self.margin:.3g} times worse"
        return f"it {either}{margin}"


@dataclass(frozen=True, eq=False, repr=False)
class Parity(Report):
    """Two sides that should compute the same: where they first part, which heads change, what it costs.

    The checks are the steps of a pass in order: tokens, embeddings, attention and feed-forward of each layer, vector.
    A step's number is the largest relative difference |b - a| / |a| of a token's vector over all texts, and for tokens
    the share of texts that the sides cut into other tokens.

    Attributes:
        a: the first side's name.
        b: the other's.
        texts: the texts.
        heads: for each head `divergence`, Jensen-Shannon's, and `weight_change`, the largest change of a weight: means
            over texts with 95 % intervals. None if a side gives only vectors.
        move: the weight that changes most; None likewise.
        differences: for each text the relative differences, (steps, tokens), of the steps between tokens and vector;
            no tokens for a text that the sides read as other tokens.
        tokens: the first side's tokens of each text.
        cost: cosines, ranks and predictions.
        diagnosis: what the other side does otherwise, if it gives only vectors that differ; else None.
    """

    a: str = ""
    b: str = ""
    texts: tuple[str, ...] = ()
    heads: HeadTable | None = None
    move: Move | None = None
    differences: tuple[Float[np.ndarray, "steps tokens"], ...] = ()
    tokens: tuple[tuple[str, ...], ...] = ()
    cost: Cost | None = None
    diagnosis: Diagnosis | None = None

    @property
    def first(self) -> Check | None:
        """The step at which the sides first part; None if they agree."""
        return next((check for check in self.checks if not check.agrees), None)

    def sentence(self) -> str:
        """The answer in one sentence."""
        first = self.first
        if first is None:
            worst = max(check.worst for check in self.checks)
            return f"the same to {worst:.1e}" if worst else "the same, bit for bit"
        where = f"layer {first.layer}, {first.name}" if first.layer is not None else f"the {first.name}"
        if first.name == "tokens" and first.query is not None:
            where += f" of text {first.text}, at token {first.query}"
        if self.diagnosis is not None:
            return f"the vectors part: {self.diagnosis}"
        if first.name == "tokens" or self.move is None:
            return f"part at {where}"
        return f"part at {where}; {self.move}"

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each head: layer, head, divergence and weight_change with their intervals; none without heads."""
        return [] if self.heads is None else self.heads.rows()

    def strongest(self, count: int = 10) -> list[tuple[int, int]]:
        """The heads (layer, head) that changed most by `divergence`, the greatest first."""
        return [] if self.heads is None else self.heads.strongest("divergence", count)

    def arrow(self) -> pyarrow.Table:
        """The relative difference of every token at every step: text, token, position, layer, step, difference.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        from headscope.results.rows import arrow_of

        steps = [check for check in self.checks if check.name not in ("tokens", "vector")]
        cells: dict[str, list[Any]] = {
            name: [] for name in ("text", "position", "token", "layer", "step", "difference")
        }
        for text, table in enumerate(self.differences):
            for at, position in np.ndindex(table.shape):
                row = (
                    text,
                    position,
                    self.tokens[text][position],
                    steps[at].layer,
                    steps[at].name,
                    table[at, position],
                )
                for column, value in zip(cells.values(), row, strict=True):
                    column.append(value)
        return arrow_of(cells)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as a dict for JSON; NaN and infinity become null."""
        return {
            "a": self.a,
            "b": self.b,
            "sentence": self.sentence(),
            **{name: value for name, value in super().to_dict().items() if name != "model"},
            "move": None if self.move is None else dict(vars(self.move)),
            "heads": None if self.heads is None else self.heads.json(),
            "diagnosis": None if self.diagnosis is None else _diagnosis(self.diagnosis),
            "cost": None if self.cost is None else self.cost.to_dict(),
            "texts": list(self.texts),
        }

    def __repr__(self) -> str:
        return f"{self.a} and {self.b}: {self.sentence()}"


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    """For JSON."""
    return {**vars(diagnosis), "explanations": [dict(vars(one)) for one in diagnosis.explanations]}
