"""Effects of heads on one output, the output itself, and what becomes of a score as heads are silenced in turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from headscope.late import late
from headscope.results.head_values import Head, HeadValues, Measure
from headscope.results.row_tables import Rows
from headscope.results.tokens import TokenAxis

if TYPE_CHECKING:
    from jaxtyping import Float

    Heads = Float[np.ndarray, "layers heads"]

Wanted: TypeAlias = "Target | str | int | tuple[Any, ...] | None"

UNITS = {
    "word": "logit",
    "class": "logit",
    "score": "logit",
    "token": "logit",
    "embedding": "share",
    "embedding_distance": "1 - cosine",
    "similarity": "cosine",
    "loss": "nats",
}
"""Every number that runs read, and its unit."""


@dataclass(frozen=True, eq=False)
class Target:
    """One number that a model computes from the last hidden state of a text.

    Attributes:
        kind: `word`, `class`, `score` (the only output of a sequence classifier), `token`, `embedding`,
            `embedding_distance`, `similarity` or `loss`.
        label: the word, the class, the label; for similarity the second text.
        index: which logit; None for the kinds without.
        row: the token whose last hidden state is read; None where several are.
        prompt: number of tokens at the beginning that the mean leaves out: `TokenAxis.prompt`.
        direction: (d_model,) of length 1, the direction that vectors are measured along.
        length: of the text's vector before anything is changed; 1 for the kinds without.
        chosen: True where nobody named it and it is the default.
        masked: for `loss`, the positions of the masked tokens, and the tokens that they hide.
        against: an alternative of the same kind at the same token, whose number is subtracted.

    The number itself is, before the softmax where there is one,

        word, class, score, token    the logit
        embedding                    e . u / |e_0|, with u = e_0 / |e_0| and e_0 the vector before anything is changed:
                                     1 at first, and 0.9 where a tenth of its length along its own direction is gone
        embedding_distance           1 - cos(e, e_0)
        similarity                   cos(e, b), with b the second text's vector
        loss                         the mean of -log p(token) over the masked tokens
    """

    kind: str
    label: str
    index: int | None
    row: int | None
    direction: Float[np.ndarray, " d_model"] | None = None
    length: float = 1.0
    chosen: bool = False
    masked: tuple[tuple[int, int], ...] = ()
    against: Target | None = None
    prompt: int = 0

    @property
    def alone(self) -> Target:
        """The target without its alternative."""
        return self if self.against is None else replace(self, against=None)

    @property
    def unit(self) -> str:
        """The unit of the number."""
        return UNITS[self.kind]

    @property
    def aside(self) -> str:
        """A second reading of the same output: probability or cosine; empty where there is none."""
        if self.against is not None:
            return ""
        return {"logit": "probability", "share": "cosine"}.get(self.unit, "")

    @property
    def measure(self) -> Measure:
        """Description of a change of the number, for tables of heads."""
        return Measure("effect", meaning=f"change of {self}", unit=self.unit, low=None, high=None)

    @property
    def places(self) -> tuple[int, ...] | None:
        """The positions of the tokens whose last hidden states it reads; None for all."""
        if self.masked:
            return tuple(at for at, _ in self.masked)
        return None if self.row is None else (self.row,)

    def rows_of(self, last: Float[np.ndarray, "tokens d_model"]) -> Float[np.ndarray, "rows d_model"]:
        """The rows of a last hidden state that it reads."""
        return last if self.places is None else last[list(self.places)]

    def __str__(self) -> str:
        at = f"at token {self.row}"
        sentences = {
            "word": f"the logit of the word {self.label!r} {at}",
            "class": f"the logit of the class {self.label!r}",
            "score": "the score",
            "token": f"the logit of the label {self.label!r} {at}",
            "embedding": "the text's vector, as its projection on the unchanged one",
            "embedding_distance": "the distance of the text's vector from the unchanged one (1 - cosine)",
            "similarity": f"the cosine with {self.label!r}",
            "loss": f"the masked-LM loss of {len(self.masked)} tokens",
        }
        default = " (the default)" if self.chosen else ""
        return sentences[self.kind] + default + ("" if self.against is None else f", less {self.against.alone}")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Effects(HeadValues):
    """The effects of changing each head on one output of one text.

    The array, (layers, heads), is the target's number with the head changed less the number as it is.

    Attributes:
        target: the output, and whether it was chosen by default.
        method: zero, mean, patch (the head's context comes from another text), or edge (only one is cut).
        base: the number as it is, in `target.unit`.
        aside: (layers, heads), the probability or cosine (`target.aside`) with the head changed; None where the target
            has none.
        base_aside: the probability or cosine as it is.
        axis: the text's tokens.
        text: the text.
        pair: the second text.
        patch_from: the text that the contexts come from.
        edge: (query, key), the positions of the edge that is cut.
        notes: what was added to the text, lower-cased or cut.
    """

    target: Target
    method: str
    base: float
    aside: Heads | None
    base_aside: float | None
    axis: TokenAxis
    text: str
    pair: str | None = None
    patch_from: str | None = None
    edge: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()

    @property
    def change(self) -> Heads:
        """The array."""
        return self.array

    def columns(self) -> Iterator[tuple[str, np.ndarray]]:
        """The change, and the probability or cosine with the head changed, if there is one."""
        yield "change", self.array
        if self.aside is not None and self.target.aside is not None:
            yield self.target.aside, self.aside

    def __repr__(self) -> str:
        heads = f"effects of {self.size} heads ({self.method})"
        return f"{heads} on {self.target}, {self.base:.4f} as it is; most: {self._most()}"


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

    def __repr__(self) -> str:
        texts = f"{self.each.shape[1]} texts"
        chosen = f", in an order chosen on {self.chosen_on} others" if self.chosen_on else ""
        half = len(self) // 2
        shown = "; ".join(
            f"{step} silenced: {self.score[step - 1]:.4g}" for step in dict.fromkeys((1, half, len(self))) if step
        )
        return f"{self.measure.name} on {texts}{chosen}: {self.base.mean():.4g} with all heads; {shown}"
