"""Answers about tokens: the parts of an output, mixing ratios, promoted words, the words at masks, a word followed.

The classes that a classifier predicts, with their probabilities; findings, each a sentence with its numbers and heads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any
from typing import Annotated as Of

import numpy as np

from headscope.errors import InputError
from headscope.late import late
from headscope.results.arrays import ArrayLike
from headscope.results.effect_records import Target
from headscope.results.head_values import signed
from headscope.results.row_tables import Rows
from headscope.results.score_parts import Part, kappa_of, parts_of
from headscope.results.tokens import TokenAxis
from headscope.settings import whole

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True, slots=True)
class LabelShare:
    """A label and its probability."""

    label: Of[str, "the word, the class, or the label of a token."]
    share: Of[float, "its probability."]


@dataclass(frozen=True, eq=False)
class Attribution(Rows, ArrayLike):
    """The parts of one output, token by token.

    Attributes:
        target: the output, and whether it was chosen by default.
        method: decompx.
        scores: (tokens,) in `target.unit`.
        total: the target's number.
        rest: the part of no token: the biases' row in DecompX.
        axis: the text's tokens.
        text: the text.
        pair: the second text.
        prediction: what the model predicts there: the likeliest choice and the runner-up; empty for vectors.
        checks: the strongest words, the strongest first, each masked for real; empty where nothing was masked.
        unchecked: why nothing was masked; empty if something was, or nobody asked.
        notes: what was added to the text, lower-cased or cut.
    """

    target: Target
    method: str
    scores: Float[np.ndarray, " tokens"]
    total: float
    rest: float
    axis: TokenAxis
    text: str
    pair: str | None = None
    prediction: tuple[LabelShare, ...] = ()
    checks: tuple[Part, ...] = ()
    unchecked: str = ""
    notes: tuple[str, ...] = ()

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens, as the vocabulary spells them."""
        return self.axis.tokens

    @property
    def gap(self) -> float:
        """The number less the rest and all scores: rounding."""
        return self.total - self.rest - float(self.scores.sum())

    @property
    def kappa(self) -> float:
        """(sum of |scores| + |rest|) / |total|: 1 where nothing cancels, above KAPPA ranks mean more than amounts."""
        return kappa_of(self.scores, self.rest, self.total)

    def parts(self, by: str = "word") -> list[Part]:
        """The scores of whole words, sentences or tokens, in the text's order, with the changes that are known.

        Special tokens stand alone.

        Args:
            by: `token`, `word` or `sentence`.

        Raises:
            InputError: another name.
        """
        changes = {part.tokens: part.change for part in self.checks}
        parts = parts_of(self.scores, self.axis, by, self.text, self.pair)
        return [replace(part, change=changes.get(part.tokens)) for part in parts]

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each token: position, token, score."""
        scores = zip(self.tokens, self.scores.tolist(), strict=True)
        return [{"position": at, "token": token, "score": score} for at, (token, score) in enumerate(scores)]

    @late("headscope.screens.figures:plot_attribution")
    def plot(self, *, ax: Any = None, width: float = 3.35, save: str | os.PathLike[str] | None = None) -> Any:
        """Draw what each token adds, as bars.

        Returns the axes of matplotlib. See headscope.screens.figures.
        """

    def strongest(self, count: int = 10) -> list[int]:
        """The tokens with the greatest scores in either direction, the greatest first."""
        return [int(at) for at in np.argsort(-np.abs(self.scores), kind="stable")[: whole(count, "count", 0)]]

    @property
    def array(self) -> Float[np.ndarray, "..."]:  # type: ignore[override]
        """The array that this record stands for: `scores`."""
        return self.scores

    def __repr__(self) -> str:
        best = self.strongest(1)[0]
        return (
            f"attribution ({self.method}) of {self.target}, {self.total:.4f}, to {len(self.axis)} tokens; most: token "
            f"{best}, {self.tokens[best]}, {signed(self.scores[best])}"
        )


@dataclass(frozen=True)
class Pooling:
    """The computation of the text's vector from the tokens' vectors.

    Attributes:
        mode: `mean` over all tokens, special ones included, or `cls`: the first token's vector.
        normalized: True if the vector is divided by its length.
        stated: True if the checkpoint specifies the pooling; False if this is sentence-transformers' default for a
            model without modules.json, the mean without normalisation.
        max_length: number of tokens to which sentence-transformers cuts a text; None without a limit.
        lowercase: True if sentence-transformers lower-cases a text before tokenizing it.
        prompt: the text that sentence-transformers puts before every text by default; may be empty.
        include_prompt: False if the prompt's tokens, and the special ones before them, are left out of the pooling.
        width: the vector's first numbers that count (truncate_dim), after the division by its length; None for all.
    """

    mode: str = "mean"
    normalized: bool = False
    stated: bool = False
    max_length: int | None = None
    lowercase: bool = False
    prompt: str = ""
    include_prompt: bool = True
    width: int | None = None

    def tokens(self, prompt: int) -> slice:
        """The tokens whose mean is the vector, after a prompt's: all others, or the first of them."""
        return slice(prompt, prompt + 1 if self.mode == "cls" else None)

    @property
    def limit(self) -> int | None:
        """The number of tokens of every text that is read, not only of one whose vector is; None without a limit."""
        return self.max_length if self.stated else None

    def __str__(self) -> str:
        ways = {"mean": "the mean over all tokens", "cls": "the first token's vector"}
        length = ", divided by its length" if self.normalized else ""
        width = "" if self.width is None else f", its first {self.width} numbers"
        source = "as modules.json says" if self.stated else "the default: there is no modules.json"
        return f"{ways[self.mode]}{length}{width} ({source})"


@dataclass(frozen=True, eq=False)
class MixingRatio(Rows, ArrayLike):
    """The share of each token's new vector that comes from other tokens, 0 to 1.

    It computes as its array does where NumPy is given it: `np.asarray(ratio)` is (layers, queries).

    Attributes:
        kind: one of KINDS.
        layers: the number of each layer in the model.
        ratios: (layers, queries); NaN where a query sees nothing.
    """

    kind: str
    layers: tuple[int, ...]
    ratios: Float[np.ndarray, "layers queries"]

    @property
    def mean(self) -> Float[np.ndarray, " layers"]:
        """(layers,): the mean over the queries that have a ratio."""
        counted = ~np.isnan(self.ratios)
        total = np.where(counted, self.ratios, 0).sum(-1)
        return np.where(counted.any(-1), total / np.maximum(counted.sum(-1), 1), np.nan)

    @property
    def array(self) -> Float[np.ndarray, "..."]:  # type: ignore[override]
        """The array that this record stands for: `ratios`."""
        return self.ratios

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each layer and query: layer, query, ratio."""
        return [
            {"layer": self.layers[at], "query": query, "ratio": ratio.item()}
            for (at, query), ratio in np.ndenumerate(self.ratios)
        ]

    def __repr__(self) -> str:
        means = ", ".join(f"{layer}: {ratio:.1%}" for layer, ratio in zip(self.layers, self.mean, strict=True))
        return f"mixing ratio {self.kind} (layers {len(self.layers)}, queries {self.ratios.shape[1]}), means {means}"


@dataclass(frozen=True, eq=False)
class Promotion:
    """The direct effect of one part of the model on the masked-LM logits at one token.

    Attributes:
        part: what writes, in words.
        query: the token at which it writes.
        raised: the tokens whose logits rise most, the largest effect first: a dict for each, of token, id and effect.
        lowered: those whose logits fall most, the largest fall first, likewise.
        effects: (vocabulary,): all of them. A number added to all logits alike changes no probability:
            `effects - effects.mean()` leaves it out.
    """

    part: str
    query: int
    raised: list[dict[str, Any]]
    lowered: list[dict[str, Any]]
    effects: Float[np.ndarray, " vocabulary"]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without the whole vocabulary."""
        return {"part": self.part, "query": self.query, "raised": self.raised, "lowered": self.lowered}

    def __repr__(self) -> str:
        lists = (("raises", self.raised), ("lowers", self.lowered))
        lines = [f"{verb} " + ", ".join(f"{e['token']} {signed(e['effect'], 3)}" for e in rows) for verb, rows in lists]
        return "\n  ".join([f"{self.part}, at token {self.query}:", *lines])


@dataclass(frozen=True, repr=False)
class Filled(Rows):
    """The predictions for one mask.

    Attributes:
        position: the mask's position among the tokens, counted from 0.
        tokens: the best tokens, best first, as the vocabulary spells them.
        ids: their ids.
        probabilities: softmax over the whole vocabulary, 0 to 1.
    """

    position: int
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    probabilities: tuple[float, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each token: position, token, id, probability."""
        best = zip(self.tokens, self.ids, self.probabilities, strict=True)
        return [
            {"position": self.position, "token": token, "id": index, "probability": share}
            for token, index, share in best
        ]

    def __repr__(self) -> str:
        best = (f"{token} {share:.1%}" for token, share in zip(self.tokens, self.probabilities, strict=True))
        return f"the mask at token {self.position}: {', '.join(best)}"


@dataclass(frozen=True)
class Cell:
    """Place of a finding: a head, and a weight of it where it is one weight. All by number, counted from 0."""

    layer: Of[int, "from 0."]
    head: Of[int, "from 0."]
    query: Of[int | None, "position of the token that looks; null for the whole head."] = None
    key: Of[int | None, "position of the token that it looks at, likewise."] = None


@dataclass(frozen=True, repr=False)
class Finding:
    """Something about a head, a pair of heads or one weight that is unlike what the head does on average.

    The formula of each surprise is in headscope.explain.finding_measures.
    """

    kind: Of[str, "link, previous, next, same, same_word, sink, alike or negligible."]
    sentence: Of[str, "in plain English."]
    numbers: Of[Mapping[str, float], "what it says in numbers, by name."]
    cells: Of[tuple[Cell, ...], "where it is."]
    surprise: Of[float, "how far the number is from what is expected, in nats."]
    tokens: Of[
        tuple[str, ...], "for `sink`, what the heads rest on, as this vocabulary spells it; or `punctuation`."
    ] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        cells = [asdict(cell) for cell in self.cells]
        return {**vars(self), "numbers": dict(self.numbers), "cells": cells, "tokens": list(self.tokens)}

    def __repr__(self) -> str:
        return self.sentence


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
        if self.task != "sequence":
            found = "the model predicts a class for each token, not one for the text"
            raise InputError(found, where="label", advice="prediction.rows() has each token with its label")
        return str(self.rows(1)[0]["label"])

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
            top: most classes of a text; None for all.

        Raises:
            InputError: `top` is not a whole number from 0 on.
        """
        top = None if top is None else whole(top, "top", 0)
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
        weights: (layers, heads, tokens), the weights of the token's row; 0, as `shares`, beyond a layer's last head.
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
