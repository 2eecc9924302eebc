"""A word followed through the layers: what every other token brings to it, through which head, and what it keeps."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.late import late
from headscope.results.arrays import ArrayLike
from headscope.results.row_tables import Rows

if TYPE_CHECKING:
    from jaxtyping import Float

LEAST_SHARE = 0.02
"""Below this in every layer, no word is said to be taken in."""


@dataclass(frozen=True, eq=False)
class Followed(Rows, ArrayLike):
    """A token and all that it takes in, layer by layer. In each layer `kept` and the shares of all tokens add up to 1.

    It computes as its array does where NumPy is given it: `np.asarray(followed)` is (layers, tokens), over all heads.

    Attributes:
        token: the position of the token that is followed.
        tokens: the text's tokens.
        words: the word that each token belongs to.
        places: that word's number; equal for the tokens of one word, -1 for marks and special tokens.
        layers: the number of each layer in the model.
        kept: (layers,), what the token keeps of itself, 1 - the mixing ratio AttnResLn-N (AttnRes-N where norms come
            before the sums).
        shares: (layers, heads, tokens), what each token brings through each head; 0 at the token itself. Below 0 where
            a head writes against what all others bring.
        weights: (layers, heads, tokens), the weights of the token's row.
    """

    token: int
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    places: tuple[int, ...]
    layers: tuple[int, ...]
    kept: Float[np.ndarray, " layers"]
    shares: Float[np.ndarray, "layers heads tokens"]
    weights: Float[np.ndarray, "layers heads tokens"]

    @property
    def array(self) -> Float[np.ndarray, "layers tokens"]:  # type: ignore[override]
        """The array that this record stands for: the shares, summed over heads."""
        return self.shares.sum(1)

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each layer and other token: layer, position, token, share, head, head_share, weight.

        `head` is the one that brings most of the token's share, and `weight` that head's weight on it.
        """
        totals, best = self.array, self.shares.argmax(1)
        return [
            {
                "layer": layer,
                "position": at,
                "token": self.tokens[at],
                "share": totals[row, at].item(),
                "head": int(best[row, at]),
                "head_share": self.shares[row, best[row, at], at].item(),
                "weight": self.weights[row, best[row, at], at].item(),
            }
            for row, layer in enumerate(self.layers)
            for at in range(len(self.tokens))
            if at != self.token
        ]

    def brought(self) -> list[dict[str, Any]]:
        """Return a dict for each other word, in the layer where it brings most; most over all layers comes first.

        Its fields are word, position (of its first token), layer, share (over all heads), head (which brings most of
        it) and head_share. Marks, special tokens and the token's own word are left out; a word's tokens count as one.
        """
        listed = []
        for place in sorted(set(self.places) - {-1, self.places[self.token]}):
            own = np.flatnonzero(np.array(self.places) == place)
            by_head = self.shares[:, :, own].sum(-1)  # (layers, heads)
            totals = by_head.sum(-1)
            row = int(totals.argmax())
            head = int(by_head[row].argmax())
            one = {
                "word": self.words[own[0]],
                "position": int(own[0]),
                "layer": self.layers[row],
                "share": totals[row].item(),
                "head": head,
                "head_share": by_head[row, head].item(),
            }
            listed.append((totals.sum(), one))
        return [one for _, one in sorted(listed, key=lambda pair: -pair[0])]

    @late("headscope.screens.figures:plot_followed")
    def plot(self, *, ax: Any = None, width: float = 6.7, save: str | os.PathLike[str] | None = None) -> Any:
        """Draw a row for each layer: what every token brings, through which head, and what is kept.

        Returns the axes of matplotlib. See headscope.screens.figures.
        """

    @property
    def sentence(self) -> str:
        """The finding in words, with its numbers."""
        own = f"“{self.words[self.token]}”"
        least, most = (f"{value:.2f}" for value in (self.kept.min(), self.kept.max()))
        keeps = f"keeps {least} to {most} of itself in a layer" if least != most else f"keeps {least} of itself"
        words = self.brought()
        if not words or max(one["share"] for one in words) < LEAST_SHARE:
            return f"{own} {keeps}; no word brings as much as {LEAST_SHARE:.2f}."
        first, *others = words
        word, layer = f"“{first['word']}”", first["layer"]
        steps = [f"{word}, most in layer {layer} through head {layer}.{first['head']}"]
        elsewhere = [one for one in others if one["layer"] != layer and one["share"] >= LEAST_SHARE]
        if elsewhere:
            other = max(elsewhere, key=lambda one: one["share"])
            steps.insert(int(other["layer"] > layer), f"“{other['word']}” in layer {other['layer']}")
        brings = f"{word} brings {first['share']:.2f} there, {first['head_share']:.2f} through that head"
        return f"{own} takes in {', then '.join(steps)}. It {keeps}; {brings}."

    def __repr__(self) -> str:
        return f"{self.sentence} (layers {len(self.layers)}, heads {self.shares.shape[1]}, tokens {len(self.tokens)})"
