"""Scores of texts with heads of an opened model silenced: accuracy, loss, how far vectors move, or your own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from headscope.attention.activations import log_softmax
from headscope.encoder.task_heads import pooled
from headscope.errors import InputError, UnsupportedError, not_a_number
from headscope.heads import scored
from headscope.progress_bar import told
from headscope.results.head_values import Head, HeadValues, Measure
from headscope.runs.effects import METHODS, effects, effects_over_texts, prepared_for
from headscope.runs.engine import Edit, NumpyRunner, check_way
from headscope.runs.targets import choose, class_count, logits_of
from headscope.runs.texts import as_input, batches, column_of, one_for_each, texts_of
from headscope.settings import named

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.model import Model
    from headscope.results.effect_records import Effects, Removal, Target, Wanted
    from headscope.results.tokens import TokenAxis

    Outputs = Float[np.ndarray, " n"]

Metric: TypeAlias = "str | Callable[[Outputs, Any], float]"

MEASURES = {
    "accuracy": Measure("accuracy", meaning="share of texts whose label is the likeliest", unit="share", low=None),
    "loss": Measure(
        "loss", meaning="-log p(label); of a regression, the squared error", unit="nats", low=None, high=None
    ),
    "vector": Measure("vector", meaning="|after - before| / |before| of the text's vector", unit="share", high=None),
}
"""The scores that have names."""


class Labelled(NamedTuple):
    """A text as the model reads it, and its label as it was passed."""

    encoded: TokenAxis
    wanted: Any
    label: Any


@dataclass(eq=False)
class TextScores:
    """Computes `headscope.heads.scored.Scores` over texts, with layers before the first silenced one kept."""

    model: Model
    texts: Sequence[Labelled]
    metric: Metric
    method: str

    def __post_init__(self) -> None:
        sizes = self.model.anatomy.known()
        self.every: Sequence[Head] = [(layer, head) for layer, head in np.ndindex(sizes.layers, sizes.heads)]
        self.heads: Sequence[Head] = self.every
        """Every head."""
        self.measure = MEASURES[self.metric] if isinstance(self.metric, str) else Measure.of_score(self.metric)
        """The description of the metric's number; a function's has the function's name."""

    def __call__(self, sets: Sequence[frozenset[Head]], tell: scored.Tell) -> Float[np.ndarray, "sets texts"]:
        runner, parts = NumpyRunner(self.model), list[np.ndarray]()
        for batch in batches(self.texts, lambda one: len(one.encoded)):
            tell(sum(part.shape[1] for part in parts), len(self.texts))
            parts.append(self._of(runner, batch, sets))
        tell(len(self.texts), len(self.texts))
        return np.concatenate(parts, axis=1)

    def _of(
        self, runner: NumpyRunner, batch: Sequence[Labelled], sets: Sequence[frozenset[Head]]
    ) -> Float[np.ndarray, "sets texts"]:
        base = runner.base([as_input(one.encoded) for one in batch])
        lasts = [base.last[rows] for rows in base.rows]
        targets = [self._target(one, last) for one, last in zip(batch, lasts, strict=True)]
        if self.metric in ("accuracy", "loss") and any(target.direction is not None for target in targets):
            found = f"{self.metric} of a text for which the model has neither classes nor a word to predict"
            advice = 'use metric="vector", or texts with a mask'
            raise UnsupportedError(found, where=self.model.checkpoint.where, advice=advice)
        before = [
            outputs(self.model, target, target.rows_of(last)[None])[0]
            for target, last in zip(targets, lasts, strict=True)
        ]
        numbers = np.empty((len(sets), len(batch)))
        plain = [at for at, heads in enumerate(sets) if not heads]
        changed = [at for at, heads in enumerate(sets) if heads]
        for text, one in enumerate(batch):
            numbers[plain, text] = self._number(one, targets[text], before[text], before[text])
        edits = [frozenset(Edit(*head, self.method) for head in sets[at]) for at in changed]
        for runs, hidden in runner.states(base, edits, [target.places for target in targets]) if edits else ():
            for text, (one, target, rows) in enumerate(zip(batch, targets, hidden, strict=True)):
                for run, after in zip(runs, outputs(self.model, target, rows), strict=True):
                    numbers[changed[run], text] = self._number(one, target, before[text], after)
        return numbers

    def _target(self, one: Labelled, last: Float[np.ndarray, "tokens d_model"]) -> Target:
        """The output that a text's label names; an error says which label it is."""
        try:
            return choose(self.model, one.encoded, last, one.wanted)
        except InputError as error:
            if one.label is not None and error.where == "target":
                error.where = f"labels[{next(at for at, text in enumerate(self.texts) if text is one)}]"
            raise

    def _number(self, one: Labelled, target: Target, before: Outputs, after: Outputs) -> float:
        """The score of one text."""
        if not isinstance(self.metric, str):
            number = self.metric(after, one.label)
            try:
                return float(number)
            except (TypeError, ValueError, RuntimeError) as error:
                advice = "return one number for a text's outputs and its label"
                found = f"the metric is {number!r:.60}, not a number"
                raise InputError(found, where="metric", advice=advice) from error
        if not np.isfinite(after).all():
            raise not_a_number("with a head changed the output is not a number", self.model.checkpoint.where)
        if self.metric == "vector":
            return float(np.linalg.norm(after - before) / np.linalg.norm(before))
        if target.kind == "score":
            return float(np.square(after[0] - float(one.label)))
        index = int(np.argmax(before)) if one.label is None else target.index
        return float(np.argmax(after) == index) if self.metric == "accuracy" else float(-log_softmax(after)[index])


def outputs(
    model: Model, target: Target, hidden: Float[np.ndarray, "runs rows d_model"]
) -> Float[np.ndarray, "runs n"]:
    """The numbers that a score is computed from: the logits that a target is among, or the text's vector, in fp64."""
    if target.direction is None:
        return logits_of(model, target, hidden).astype(np.float64)
    return pooled(hidden, model.pooling, target.prompt if target.row is None else 0).astype(np.float64)


def text_scores(
    model: Model,
    texts: Sequence[str],
    labels: Sequence[Any] | None,
    metric: Metric,
    *,
    pair: Sequence[str] | None,
    method: str,
    max_length: int | None,
) -> TextScores:
    """The scores of texts, whose labels have been checked.

    Raises:
        InputError: no texts, another number of labels or second texts, an unknown metric or method, or a metric without
            the labels that it needs.
        UnsupportedError: the model has no classes or masked words that a label could name.
    """
    texts, pair, labels = texts_of(texts, "texts"), texts_of(pair, "pair"), labels_of(labels)
    if isinstance(texts, str) or not texts:
        raise InputError("scores are over a list of texts", where="texts", advice="pass a list with at least one text")
    of_each, seconds = one_for_each(texts, labels, "labels"), one_for_each(texts, pair, "pair")
    if not callable(metric) and (not isinstance(metric, str) or metric not in MEASURES):
        advice = f"use {', '.join(MEASURES)}, or a function of (outputs, label)"
        raise InputError(f"there is no metric {metric!r:.40}", where="metric", advice=advice)
    check_way(method, METHODS, "method")
    model.anatomy.computable()
    regression = "sequence" in model.anatomy.tasks and class_count(model) == 1
    check_metric(model, metric, labels, regression)
    given, own = [], callable(metric) or regression
    for text, second, label in zip(texts, seconds, of_each, strict=True):
        plain = label.item() if hasattr(label, "item") else label
        wanted = ("embedding",) if metric == "vector" else None if own else plain
        found = prepared_for(model, text, wanted, second, max_length=max_length)
        given.append(Labelled(found.encoded, wanted, plain))
    return TextScores(model, given, metric, method)


def labels_of(given: Any) -> Any:
    """Labels in a column of pandas, an array or a tensor as a list.

    Raises:
        InputError: it is a table, or a label is missing or several.
    """
    labels = column_of(given, "labels")
    for at, label in enumerate(labels if isinstance(labels, list) else ()):
        several = isinstance(label, (list, tuple)) or np.ndim(label) > 0
        if several or _is_missing(label):
            found = "an array" if several else "missing"
            raise InputError(f"label {at} is {found}", where=f"labels[{at}]", advice="pass one class for each text")
    return labels


def _is_missing(label: Any) -> bool:
    """Return True for None, NaN, and pandas' NA, which is neither equal to itself nor unequal."""
    try:
        return label is None or bool(label != label)
    except TypeError:
        return True


def check_metric(model: Model, metric: Metric, labels: Sequence[Any] | None, regression: bool) -> None:
    """Check that a named metric can be computed from this model's outputs and these labels."""
    several = model.anatomy.config.get("problem_type") == "multi_label_classification"
    if metric in ("accuracy", "loss") and several:
        found = f"{metric} of a classifier whose labels don't exclude each other"
        raise UnsupportedError(found, where=model.checkpoint.where, advice="pass metric= a function of (logits, label)")
    numbers = labels is not None and all(hasattr(one, "__float__") and not isinstance(one, str) for one in labels)
    if regression and (metric == "accuracy" or (metric == "loss" and not numbers)):
        advice = 'pass metric="loss" with a number for each text in labels=, or a function of (logits, label)'
        raise InputError("the model gives one number, no classes", where="metric", advice=advice)
    if metric == "vector" and labels is not None:
        raise InputError("a vector needs no labels", where="labels", advice="leave them out, or name another metric")


@named
def effects_on(
    model: Model,
    text: str | list[str],
    target: Wanted = None,
    *,
    labels: Sequence[Any] | None = None,
    metric: str | Callable[[np.ndarray, Any], float] | None = None,
    pair: str | list[str] | None = None,
    method: str = "zero",
    patch_from: str | list[str] | None = None,
    edge: tuple[int, int] | None = None,
    max_length: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Effects | HeadValues:
    """The effects on one text, or on each of several. Arguments and errors as for `effects`, `effects_over_texts`.

    Raises:
        InputError: an edge of several texts, a list of second texts for one text, or a target beside labels.
    """
    text, pair, patch_from = texts_of(text, "text"), texts_of(pair, "pair"), texts_of(patch_from, "patch_from")
    options: dict[str, Any] = {"pair": pair, "method": method, "patch_from": patch_from, "max_length": max_length}
    if labels is not None or metric is not None:
        if any(one is not None for one in (target, patch_from, edge)):
            raise InputError(
                "labels and metric beside a target, a text to patch from or an edge",
                where="metric",
                advice="ask for the score's change, or for the target's",
            )
        metric = "accuracy" if metric is None else metric
        scores = text_scores(model, text, labels, metric, pair=pair, method=method, max_length=max_length)
        with told(progress, "texts") as tell:
            return scored.change_of_each(scores, tell)
    if isinstance(text, list):
        if edge is not None:
            raise InputError("an edge is of one text", where="edge", advice="pass one text, not a list")
        with told(progress, "texts") as tell:
            return effects_over_texts(model, text, target, **options, progress=tell)
    for name, second in (("pair", pair), ("patch_from", patch_from)):
        if isinstance(second, list):
            raise InputError(f"one text and a list of {len(second)}", where=name, advice="pass one text for it")
    with told(progress, "layers") as tell:
        return effects(model, text, target, **options, edge=edge, progress=tell)


@named
def removal(
    model: Model,
    texts: Sequence[str],
    labels: Sequence[Any] | None = None,
    *,
    metric: Metric = "accuracy",
    order: str | Sequence[Head] = "rank",
    less_is_better: bool | None = None,
    random: int = 5,
    steps: int | None = None,
    pair: Sequence[str] | None = None,
    method: str = "zero",
    max_length: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Removal:
    """See `Model.removal`."""
    scores = text_scores(model, texts, labels, metric, pair=pair, method=method, max_length=max_length)
    less = metric in ("loss", "vector") if less_is_better is None else less_is_better
    with told(progress, "texts") as tell:
        return scored.removal(scores, order=order, less_is_better=less, random=random, steps=steps, tell=tell)
