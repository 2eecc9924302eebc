"""Effects of silencing or patching each head on one output: exact, with the later layers run again for each head.

For every head (l, h) the model runs with that head's context replaced, everything after it computed anew, and

    change = target with the head changed - target as it is,

so that a head that the output rests on has a change below 0. Only layers from l on run again, from kept prefixes: with
L layers of H heads, H (L - 1) / 2 + 2 H / 3 forward passes' worth of products instead of H L. Of the last layer, a
target that reads one token needs little more than keys and values. BERT-base at 128 tokens: 68 forward passes for a
mask, 75 for a pooled vector, instead of 144.

Instead of a whole head, one edge of it may be cut: the query's context is then the one it would have if it could not
see that key (headscope.explain.knockout), and every other query keeps its own.

Sources: silencing, Michel, Levy and Neubig 2019, “Are Sixteen Heads Really Better than One?”; patching,
Vig et al. 2020, “Investigating Gender Bias in Language Models Using Causal Mediation Analysis”; edges, Geva et al.
2023, “Dissecting Recall of Factual Associations in Auto-Regressive Language Models”.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope._trace.arrays import ArrayLike
from headscope.anatomy import check_index
from headscope.errors import CheckpointError, InputError
from headscope.explain.each_head import LayerRead, changed_readings, without_edge
from headscope.explain.intervals import mean_interval
from headscope.explain.prefixes import keep
from headscope.explain.runs import as_input, encoded_text, last_states
from headscope.explain.similarity import axis_of
from headscope.explain.target import Target, Wanted, choose, read

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace import TokenAxis
    from headscope.checkpoint.tokenizer import Encoded
    from headscope.model import Model

    Heads = Float[np.ndarray, "layers heads"]

METHODS = {
    "zero": "the head's context is 0",
    "mean": "every token gets the mean of the head's contexts over the text",
    "gradient": "no head is silenced: the first-order estimate of what zero would do",
}
"""What is done to a head, and what it means."""


@dataclass(frozen=True, eq=False)
class Effects(ArrayLike):
    """The effects of changing each head on one output of one text.

    Attributes:
        target: the output, and whether it was chosen by default.
        method: zero, mean, gradient, patch (the head's context comes from another text), or edge (only one is cut).
        change: (layers, heads), the target's number with the head changed less the number as it is.
        base: the number as it is, in `target.unit`.
        aside: (layers, heads), the probability or cosine (`target.aside`) with the head changed; None where the target
            has none, and for gradients.
        base_aside: the probability or cosine as it is.
        axis: the text's tokens.
        text: the text.
        pair: the second text.
        patch_from: the text that the contexts come from.
        edge: (query, key), the positions of the edge that is cut.
    """

    target: Target
    method: str
    change: Heads
    base: float
    aside: Heads | None
    base_aside: float | None
    axis: TokenAxis
    text: str
    pair: str | None = None
    patch_from: str | None = None
    edge: tuple[int, int] | None = None

    def strongest(self, count: int = 10) -> list[tuple[int, int]]:
        """The heads (layer, head) that change the output most in either direction, the greatest first."""
        return strongest(self.change, count)

    def correlation(self, other: Effects | Heads) -> float:
        """Pearson's correlation over all heads with other changes, such as the gradient's estimate; see `correlation`.

        Raises:
            InputError: the other has other layers or heads.
        """
        return correlation(self.change, other.change if isinstance(other, Effects) else other)

    @property
    def array(self) -> Float[np.ndarray, "..."]:  # type: ignore[override]
        """The array that this record stands for: `change`."""
        return self.change

    def __repr__(self) -> str:
        layer, head = self.strongest(1)[0]
        return (
            f"effects of {self.change.size} heads ({self.method}) on {self.target}, {self.base:.4f} as it is; most: "
            f"layer {layer}, head {head}, {self.change[layer, head]:+.4f}"
        )


@dataclass(frozen=True, eq=False)
class EffectsOverTexts(ArrayLike):
    """The effects on several texts.

    Attributes:
        each: those of each text.
        mean: (layers, heads), the mean change.
        low, high: (layers, heads), its 95 % interval over texts (Student's t); NaN for fewer than two texts.
    """

    each: tuple[Effects, ...]
    mean: Heads
    low: Heads
    high: Heads

    def strongest(self, count: int = 10) -> list[tuple[int, int]]:
        """The heads (layer, head) with the greatest mean change in either direction."""
        return strongest(self.mean, count)

    @property
    def array(self) -> Float[np.ndarray, "..."]:  # type: ignore[override]
        """The array that this record stands for: `mean`."""
        return self.mean

    def __repr__(self) -> str:
        layer, head = self.strongest(1)[0]
        low, high = self.low[layer, head], self.high[layer, head]
        return (
            f"effects of {self.mean.size} heads on {len(self.each)} texts; most: layer {layer}, head {head}, "
            f"{self.mean[layer, head]:+.4f} (95 % interval {low:+.4f} to {high:+.4f})"
        )


def strongest(change: Heads, count: int) -> list[tuple[int, int]]:
    """The places of the greatest absolute values, the greatest first."""
    order = np.argsort(-np.abs(change), axis=None, kind="stable")[:count]
    return [(int(layer), int(head)) for layer, head in zip(*np.unravel_index(order, change.shape), strict=True)]


def correlation(first: Heads, other: Heads) -> float:
    """Pearson's correlation between two arrays of one shape; NaN where one of them is constant.

    Raises:
        InputError: the shapes differ.
    """
    if np.shape(first) != np.shape(other):
        raise InputError(
            f"changes of {np.shape(first)} and of {np.shape(other)}",
            where="correlation",
            advice="compare effects of the same model, (layers, heads)",
        )
    a, b = (np.asarray(values, dtype=np.float64) - np.mean(values) for values in (first, other))
    with np.errstate(invalid="ignore", divide="ignore"):
        return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def effects(
    model: Model,
    text: str,
    target: Wanted = None,
    *,
    pair: str | None = None,
    method: str = "zero",
    patch_from: str | None = None,
    edge: tuple[int, int] | None = None,
    max_length: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Effects:
    """Silence or patch each head in turn, and read one output of a text; the formula and the cost are at the top.

    Args:
        model: the model.
        text: the text.
        target: the output; by default the best word at the first mask, else the predicted class, else the text's
            vector. See headscope.explain.target.
        pair: a second text that goes with it.
        method: `zero`, `mean` (over the text's tokens), or `gradient`, which runs the model in torch.
        patch_from: a text with the same number of tokens, from whose run each head's context is taken instead.
        edge: (query, key), positions counted from 0: cut this edge of each head, instead of silencing the whole head.
        max_length: cut a longer text to this many tokens.
        progress: called with the layers done and all layers.

    Raises:
        InputError: an unknown method or target, no mask, a text that is too long, another number of tokens, no such
            edge.
        UnsupportedError: the model lacks the output, or is one that headscope doesn't run.
        MissingExtraError: `gradient` without torch and transformers.
    """
    encoded = encoded_text(model, text, pair, max_length=max_length)
    return effects_of(
        model,
        encoded,
        target,
        text=text,
        pair=pair,
        method=method,
        patch_from=patch_from,
        edge=edge,
        max_length=max_length,
        progress=progress,
    )


def effects_of(
    model: Model,
    encoded: Encoded,
    target: Wanted = None,
    *,
    text: str,
    pair: str | None = None,
    method: str = "zero",
    patch_from: str | None = None,
    edge: tuple[int, int] | None = None,
    max_length: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    layer_read: LayerRead | None = None,
) -> Effects:
    """The effects on a text that is already tokenized; arguments as for `effects`.

    Args:
        model: the model.
        encoded: the text's tokens.
        target: the output.
        text: the text, for the record.
        pair: the second text, for the record.
        method: zero, mean or gradient.
        patch_from: a text with the same number of tokens.
        edge: (query, key), the edge to cut.
        max_length: cut a longer text to patch from to this many tokens.
        progress: called with the layers done and all layers.
        layer_read: called with a layer's number and the changes of its heads; never for gradients.

    Raises:
        InputError: an unknown method or target, two changes at once, another number of tokens, no such edge.
        UnsupportedError: the model lacks the output.
        MissingExtraError: `gradient` without torch and transformers.
    """
    if method not in METHODS:
        raise InputError(
            f"a head can't be changed by {method!r:.40}", where="method", advice=f"use {', '.join(METHODS)}"
        )
    given = [name for name, value in (("patch_from", patch_from), ("edge", edge)) if value is not None]
    if len(given) + (method != "zero") > 1:
        raise InputError(
            f"a head is changed in one way, not by {' and '.join([method, *given])}",
            where="method",
            advice="leave out all but one of method, patch_from and edge",
        )
    if patch_from is not None and pair is not None:
        raise InputError(
            "a text with a second text can't be patched from a single one",
            where="patch_from",
            advice="leave out the second text",
        )
    if method == "gradient":
        return _by_gradient(model, encoded, target, text, pair)
    other = None
    if patch_from is not None:
        source = encoded_text(model, patch_from, max_length=max_length)
        if len(source) != len(encoded):
            raise InputError(
                f"the text has {len(encoded)} tokens and the one to patch from {len(source)}",
                where="patch_from",
                advice="patch from a text with the same number of tokens, so that each token has its counterpart",
            )
        other = keep(model.encoder, as_input(source))
    kept = keep(model.encoder, as_input(encoded))
    if edge is not None:
        trace = model.trace(ids=encoded.ids, segments=encoded.segments)
        other = without_edge(kept, trace, *(check_index(place, len(encoded), "token", "edge") for place in edge))
    goal = choose(model, encoded, kept.last, target)
    before = read(model, goal, goal.rows_of(kept.last)[None])
    base = float(before.values[0])
    base_aside = None if before.aside is None else float(before.aside[0])
    report = None if layer_read is None else _less(base, layer_read)
    values, aside = changed_readings(model, kept, other, goal, method, progress, report)
    if not np.isfinite(values).all():
        raise CheckpointError(
            "with a head silenced the output is not a number",
            where=model.checkpoint.where,
            advice="`headscope verify` says where NaN or infinity comes from",
        )
    way = given[0].removesuffix("_from") if given else method
    axis = axis_of(encoded)
    return Effects(goal, way, values - base, base, aside, base_aside, axis, text, pair, patch_from, edge)


def _less(base: float, layer_read: LayerRead) -> LayerRead:
    """The same callback, called with changes instead of numbers."""
    return lambda layer, numbers: layer_read(layer, numbers - base)


def _by_gradient(model: Model, encoded: Encoded, target: Wanted, text: str, pair: str | None) -> Effects:
    """The first-order estimate of what silencing each head does: -sum A dL/dA over a head's contexts A.

    Its absolute value is the importance of Michel et al. 2019, there averaged over texts.
    """
    (last,) = last_states(model, [encoded])
    goal = choose(model, encoded, last, target)
    from headscope.explain.gradients import gradients
    from headscope.explain.modules import inputs_of, module_for, score_of

    slopes = gradients(module_for(model, goal), inputs_of(model, encoded), score_of(goal))
    before = read(model, goal, goal.rows_of(last)[None])
    aside = None if before.aside is None else float(before.aside[0])
    base = float(before.values[0])
    return Effects(goal, "gradient", -slopes.heads, base, None, aside, axis_of(encoded), text, pair)


def effects_over_texts(
    model: Model,
    texts: Sequence[str],
    target: Wanted = None,
    *,
    pair: Sequence[str] | None = None,
    method: str = "zero",
    patch_from: Sequence[str] | None = None,
    max_length: int | None = None,
) -> EffectsOverTexts:
    """The effects on each text, and their mean with its 95 % interval. Arguments as for `effects`, one for each text.

    Raises:
        InputError: no text, or another number of second texts or of texts to patch from.
    """
    if not texts:
        raise InputError("there are no texts", where="text", advice="pass at least one text")
    given: dict[str, Sequence[str | None]] = {}
    for name, several in (("pair", pair), ("patch_from", patch_from)):
        if several is not None and (isinstance(several, str) or len(several) != len(texts)):
            count = "one text" if isinstance(several, str) else f"{len(several)} texts"
            raise InputError(f"{len(texts)} texts and {count}", where=name, advice="pass one for each text")
        given[name] = [None] * len(texts) if several is None else several
    each = tuple(
        effects(model, text, target, pair=second, method=method, patch_from=source, max_length=max_length)
        for text, second, source in zip(texts, given["pair"], given["patch_from"], strict=True)
    )
    mean, low, high = mean_interval(np.stack([effect.change for effect in each]))
    return EffectsOverTexts(each, mean, low, high)
