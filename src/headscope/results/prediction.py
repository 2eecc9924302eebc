"""The classes that a classifier predicts, with their probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError
from headscope.results.arrays import TokenAxis
from headscope.results.row_tables import Rows

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Prediction(Rows):
    """The classes that a classifier predicts.

    Attributes:
        task: `sequence`, one prediction for the text, or `token`, one for each token.
        labels: names of the classes, or their numbers.
        logits: (labels,) or (tokens, labels).
        probabilities: the same shape, 0 to 1; None for a regression.
        axis: the text's tokens.
        notes: what was done to the text before the model saw it.
    """

    task: str
    labels: tuple[str, ...]
    logits: Float[np.ndarray, "*tokens labels"]
    probabilities: Float[np.ndarray, "*tokens labels"] | None
    axis: TokenAxis
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The likeliest class of the text.

        Raises:
            InputError: the model predicts a class for each token; `rows()` has them.
        """
        return str(self.rows(1)[0]["label"]) if self.task == "sequence" else self._refuse()

    def _refuse(self) -> str:
        raise InputError(
            "the model predicts a class for each token, not one for the text",
            where="label",
            advice="prediction.rows() has each token with its label",
        )

    @property
    def kind(self) -> str:
        """The meaning of the numbers: `sequence`, `token`, `several`, `score` or `regression`."""
        if self.probabilities is None:
            return "regression"
        if self.task == "token":
            return "token"
        if len(self.labels) == 1:
            return "score"
        return "sequence" if abs(float(self.probabilities.sum()) - 1) < 1e-9 else "several"

    def rows(self, top: int | None = None) -> list[dict[str, Any]]:
        """Return a dict for each class of a text, the likeliest first, or for each token its likeliest class.

        Keys: label, logit, probability (not for a regression), and for tokens position and token.

        Args:
            top: most classes of a text.
        """
        if self.task == "token":
            best = self.logits.argmax(axis=-1)
            return [
                {"position": at, "token": token, **self._row((at, int(index)))}
                for at, (token, index) in enumerate(zip(self.axis.tokens, best, strict=True))
            ]
        return [self._row((int(at),)) for at in np.argsort(-self.logits, kind="stable")[:top]]

    def _row(self, place: tuple[int, ...]) -> dict[str, Any]:
        row: dict[str, Any] = {"label": self.labels[place[-1]], "logit": float(self.logits[place])}
        if self.probabilities is not None:
            row["probability"] = float(self.probabilities[place])
        return row

    def __repr__(self) -> str:
        if self.task == "token":
            return f"a label of {len(self.labels)} for each of {len(self.axis)} tokens"
        shares = ", ".join(f"{row['label']} {row.get('probability', row['logit']):.3f}" for row in self.rows(3))
        return f"prediction: {shares}"
