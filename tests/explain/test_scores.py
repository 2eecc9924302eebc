"""Scores with heads silenced, one by one and one after the other, against passes in torch whose hooks silence them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch

import headscope as hs
from explain.tops import captured_trace, edited_pass, readable
from headscope.errors import HeadscopeError, InputError, UnsupportedError
from headscope.heads import scored
from headscope.heads.intervals import t_975
from headscope.runs.engine import Edit
from random_models import Made

TEXTS = ["the cat sat", "she took off her hat and sat down .", "the dog", "the mat and the hat", "her cat sat on it"]
TEXTS += ["a dog sat !"]
LABELS = ["good", 0, "fair", "bad", 2, "fair"]
NUMBERS = [2, 0, 1, 0, 2, 1]
ALL = [(layer, head) for layer in range(3) for head in range(4)]


def logits(module: Any, model: hs.Model, heads: Iterable[tuple[int, int]] = ()) -> torch.Tensor:
    """(texts, classes), each text on its own, these heads silenced."""
    edits, ids = [Edit(*head) for head in heads], [list(model.tokenizer.encode(text).ids) for text in TEXTS]
    return torch.stack([edited_pass(module, one, edits).logits[0] for one in ids]).double()


def margin(row: np.ndarray, label: Any) -> float:
    return float(row[NUMBERS[LABELS.index(label)]] - row.mean())


def by_hand(metric: Any, rows: torch.Tensor) -> np.ndarray:
    """The score of each text from its logits."""
    truth = torch.tensor(NUMBERS)
    if metric == "accuracy":
        return (rows.argmax(-1) == truth).double().numpy()
    if metric == "loss":
        return torch.nn.functional.cross_entropy(rows, truth, reduction="none").numpy()
    return (rows[range(len(truth)), truth] - rows.mean(-1)).numpy()


@pytest.fixture(scope="module")
def classifier(classes: Made) -> tuple[hs.Model, Any]:
    return hs.open(classes.folder), classes.module


@pytest.mark.parametrize("metric", ["accuracy", "loss", margin])
def test_the_change_of_a_score_is_that_of_zeroed_columns(classifier: Any, metric: Any) -> None:
    model, module = classifier
    found = model.effects(TEXTS, labels=LABELS, metric=metric)
    before = by_hand(metric, logits(module, model))
    each = np.stack([by_hand(metric, logits(module, model, [head])) - before for head in ALL], -1).reshape(-1, 3, 4)
    np.testing.assert_allclose(found, each.mean(0), rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.stack(found.each), each, rtol=0, atol=1e-5)
    half = t_975(5) * each.std(0, ddof=1) / np.sqrt(6)
    np.testing.assert_allclose(found.high - found.low, 2 * half, rtol=0, atol=1e-5)
    assert found.name == ("margin" if callable(metric) else metric)
    assert np.abs(found).max() > 0


def test_without_labels_accuracy_is_agreement_with_the_model_itself(classifier: Any) -> None:
    model, module = classifier
    own = logits(module, model).argmax(-1)
    found = model.effects(TEXTS, metric="accuracy")
    for layer, head in ALL:
        agree = (logits(module, model, [(layer, head)]).argmax(-1) == own).double().mean()
        assert found[layer, head] == pytest.approx(float(agree) - 1)


def test_words_at_masks_vectors_and_numbers(model: hs.Model, tmp_path: Path) -> None:
    masked = [f"{text} [MASK]" for text in TEXTS[:3]]
    loss = model.effects(masked, labels=["cat", "hat", "mat"], metric="loss")
    moved = model.effects(masked, metric="vector", pair=["a dog", "the cat", "it"])
    before, after = [], []
    for rows, options in ((before, {}), (after, {"ablate": {(1, 2)}})):
        for text, second, word in zip(masked, ("a dog", "the cat", "it"), ("cat", "hat", "mat"), strict=True):
            trace = model.trace(text, **options)
            row = trace.outputs["logits"].array[trace.tokens.index("[MASK]")].astype(float)
            pooled = model.trace(text, second, **options).outputs["last_hidden_state"].array.astype(float).mean(0)
            rows.append((np.log(np.exp(row).sum()) - row[model.tokenizer.id(word)], pooled))
    assert loss[1, 2] == pytest.approx(np.mean([b[0] - a[0] for a, b in zip(before, after, strict=True)]), abs=1e-5)
    lengths = [np.linalg.norm(b[1] - a[1]) / np.linalg.norm(a[1]) for a, b in zip(before, after, strict=True)]
    assert moved[1, 2] == pytest.approx(np.mean(lengths), abs=1e-5)
    readable(tmp_path / "number", "Bert", "ForSequenceClassification", num_labels=1)
    model = hs.open(tmp_path / "number")
    found = model.effects(TEXTS, labels=np.arange(6.0), metric="loss")
    squares = [
        [(float(model.trace(text, **options).outputs["logits"][0]) - at) ** 2 for at, text in enumerate(TEXTS)]
        for options in ({}, {"ablate": {(0, 3)}})
    ]
    assert found[0, 3] == pytest.approx(np.mean(squares[1]) - np.mean(squares[0]), abs=1e-5)


def test_the_order_by_rank_is_chosen_on_one_half_and_reported_on_the_other(classifier: Any) -> None:
    model, module = classifier
    curve = model.removal(TEXTS, LABELS, metric="loss", random=2)
    before = by_hand("loss", logits(module, model))
    costs = {head: (by_hand("loss", logits(module, model, [head])) - before)[::2].mean() for head in ALL}
    assert list(curve.order) == sorted(ALL, key=lambda head: costs[head])
    for step in (1, 5, 12):
        after = by_hand("loss", logits(module, model, curve.order[:step]))
        np.testing.assert_allclose(curve.each[step - 1], after[1::2], rtol=0, atol=1e-5)
    np.testing.assert_allclose(curve.base, before[1::2], rtol=0, atol=1e-5)
    assert curve.chosen_on == 3
    np.testing.assert_allclose(curve.random[:, -1], curve.score[-1], rtol=0, atol=1e-5)  # all heads are gone
    rows = curve.to_pandas()
    assert " ".join(rows) == "step layer head loss low high change random random_low random_high"
    assert rows["change"][4] == pytest.approx(curve.score[4] - curve.base.mean())
    assert "3 texts, in an order chosen on 3 others" in repr(curve)


def test_the_greedy_order_takes_the_cheapest_head_next(classifier: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, module = classifier
    monkeypatch.setattr(scored, "CANDIDATES", 12)
    curve = model.removal(TEXTS, LABELS, metric=margin, order="greedy", random=0, steps=3)
    gone: list[tuple[int, int]] = []
    for head in curve.order:
        scores = {
            one: by_hand(margin, logits(module, model, [*gone, one]))[::2].mean() for one in ALL if one not in gone
        }
        assert scores[head] == pytest.approx(max(scores.values()), abs=1e-5)
        gone.append(head)
    np.testing.assert_allclose(curve.each[2], by_hand(margin, logits(module, model, gone))[1::2], rtol=0, atol=1e-5)


def test_live_models_give_the_same(classifier: Any) -> None:
    model, module = classifier
    ids = [torch.tensor([list(model.tokenizer.encode(text).ids)]) for text in TEXTS]

    def loss() -> list[torch.Tensor]:
        rows = [module(one).logits for one in ids]
        return [
            torch.nn.functional.cross_entropy(row, torch.tensor([at])) for row, at in zip(rows, NUMBERS, strict=True)
        ]

    found, opened = hs.effects(module, loss), model.effects(TEXTS, labels=LABELS, metric="loss")
    np.testing.assert_allclose(found, opened, rtol=0, atol=1e-5)
    assert (found.name, found.over) == ("loss", "texts")
    for other in (
        loss,
        lambda: pd.Series([float(one) for one in loss()], index=[5, 3, 4, 1, 0, 2]),
        lambda: [one + torch.rand(()) for one in loss()],  # the same numbers in each run
    ):
        some = hs.effects(module, other, heads=[(2, 1), (0, 3)])
        for head in ((2, 1), (0, 3)):
            assert some[head] == pytest.approx(found[head], abs=1e-6)
        assert np.isnan(some).sum() == 10
    one = hs.effects(module, loss, heads=[(0, 1)])
    assert (one.shape, one[0, 1]) == ((3, 4), pytest.approx(found[0, 1], abs=1e-6))
    assert np.isnan(one).sum() == 11
    mean = hs.effects(module, loss, heads=[(0, 0)], method="mean")
    assert mean[0, 0] == pytest.approx(
        model.effects(TEXTS, labels=LABELS, metric="loss", method="mean")[0, 0], abs=1e-5
    )
    given: dict[str, Any] = {"order": [(1, 1), (0, 2), (1, 0)], "random": 3}
    curves = hs.removal(module, loss, **given), model.removal(TEXTS, LABELS, metric="loss", **given)
    np.testing.assert_allclose(curves[0].each, curves[1].each, rtol=0, atol=1e-5)
    np.testing.assert_allclose(curves[0].random, curves[1].random, rtol=0, atol=1e-5)
    assert curves[0].each.shape == (3, 6)  # nothing was chosen, so all texts are reported


def test_random_orders_take_as_many_heads_of_each_layer() -> None:
    asked: list[frozenset[tuple[int, int]]] = []

    def scores(sets: Sequence[frozenset[tuple[int, int]]], tell: Any) -> np.ndarray:
        asked.extend(sets)
        return np.array([[float(len(heads)), float(len(heads))] for heads in sets])

    order = [(2, 0), (0, 1), (2, 3), (1, 1)]
    drawn = scored.random_orders(scores, order, ALL, 3, slice(None), lambda done, total: None)
    np.testing.assert_array_equal(drawn, [[1, 2, 3, 4]] * 3)
    for at, heads in enumerate(asked):
        step = at % 4 + 1
        assert sorted(layer for layer, _ in heads) == sorted(layer for layer, _ in order[:step])
    assert len({asked[at] for at in (3, 7, 11)}) > 1


def test_a_curve_is_drawn(classifier: Any) -> None:
    mpl.use("agg")
    model, _ = classifier
    curve = model.removal(TEXTS, LABELS, metric="loss", random=2)
    axes = curve.plot()
    drawn, mine = axes.get_lines()
    np.testing.assert_allclose(mine.get_ydata(), [curve.base.mean(), *curve.score])
    np.testing.assert_allclose(drawn.get_ydata()[1:], np.nanmean(curve.random, 0))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("heads silenced", "loss")
    mpl.pyplot.close("all")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"texts": "the cat", "labels": [1]}, InputError, "a list of texts"),
        ({"labels": [1]}, InputError, "6 texts and 1 in labels"),
        ({"metric": "f1", "labels": LABELS}, InputError, "no metric 'f1'"),
        ({"metric": ["loss"], "labels": LABELS}, InputError, r"no metric \['loss'\]"),
        ({"metric": "", "labels": LABELS}, InputError, "no metric ''"),
        ({"labels": pd.Series([1, None] * 3, dtype="Int64")}, InputError, "label 1 is missing"),
        ({"labels": [[1, [2]], *LABELS[1:]]}, InputError, "label 0 is an array"),
        ({"metric": "vector", "labels": LABELS}, InputError, "needs no labels"),
        ({"labels": ["dreadful"] * 6}, InputError, "no class 'dreadful'"),
        ({"labels": LABELS, "method": "halve"}, InputError, "can't be changed by 'halve'"),
        ({"labels": LABELS, "order": "alphabetical"}, InputError, "no order 'alphabetical'"),
        ({"labels": LABELS, "order": [(0, 0), (0, 0)]}, InputError, "or twice"),
        ({"labels": LABELS, "order": [(7, 0)]}, InputError, "is not there"),
        ({"labels": LABELS, "order": (3, 1)}, InputError, "expected heads as .*got 3"),
        ({"labels": LABELS, "steps": 13}, InputError, "steps is 13"),
        ({"texts": TEXTS[:3], "labels": LABELS[:3]}, InputError, "there are 3"),
        ({"metric": lambda row, label: float("nan")}, InputError, "not all of them finite"),
    ],
)
def test_what_has_no_score_is_refused(
    classifier: Any, options: dict[str, Any], error: type[HeadscopeError], message: str
) -> None:
    with pytest.raises(error, match=message):
        classifier[0].removal(options.pop("texts", TEXTS), options.pop("labels", None), random=0, **options)


def test_models_and_functions_without_a_score_are_refused(tmp_path: Path, classifier: Any) -> None:
    readable(tmp_path / "none", "Bert", "Model")
    with pytest.raises(UnsupportedError, match="neither classes nor a word"):
        hs.open(tmp_path / "none").effects(TEXTS, metric="accuracy")
    readable(tmp_path / "several", "Bert", "ForSequenceClassification", problem_type="multi_label_classification")
    several = hs.open(tmp_path / "several")
    with pytest.raises(UnsupportedError, match="don't exclude each other"):
        several.effects(TEXTS, labels=LABELS)
    assert several.effects(TEXTS, labels=LABELS, metric=margin).shape == (3, 4)
    readable(tmp_path / "number", "Bert", "ForSequenceClassification", num_labels=1)
    with pytest.raises(InputError, match="one number, no classes"):
        hs.open(tmp_path / "number").effects(TEXTS, labels=[1.0] * 6)
    with pytest.raises(InputError, match="with a number for each text"):
        hs.open(tmp_path / "number").effects(TEXTS, labels=["1.0"] * 6, metric="loss")
    with pytest.raises(InputError, match="with a number for each text"):
        hs.open(tmp_path / "number").effects(TEXTS, labels=[{}] * 6, metric="loss")
    exact, plain = (
        hs.open(tmp_path / "number").effects(TEXTS, labels=[kind("0.5")] * 6, metric="loss")
        for kind in (Decimal, float)
    )
    np.testing.assert_array_equal(exact, plain)
    model, module = classifier
    with pytest.raises(InputError, match="beside a target"):
        model.effects(TEXTS, "good", labels=LABELS)
    for live, score, options, message in (
        (module, 1.0, {}, "of shape"),
        (module, [1.0], {"heads": [(0, 9)]}, "no head 9"),
        (module, [1.0], {"heads": []}, "no head is named"),
        (module, [1.0], {"heads": (0, 1)}, "expected heads as .*got 0"),
        (module, [1.0], {"heads": [(1.5, 0)]}, r"expected heads as .*got \(1.5, 0\)"),
        (module, None, {}, "the score is None"),
        (module, ["good"], {}, "isn't one number for each text"),
        (module, [torch.ones(2)], {}, "isn't one number for each text"),
        (module, torch.ones(2).to_sparse(), {}, "isn't one number for each text"),
        (copy.deepcopy(module).train(), [1.0], {}, "training mode"),
        (model, [1.0], {}, r"call its trace\(text\) or effects\(text\)"),
    ):
        with pytest.raises(InputError, match=message):
            hs.effects(live, lambda score=score: score, **options)
    with pytest.raises(InputError, match=r"the score is Tensor, not a function[\s\S]*effects\(text\)"):
        hs.effects(module, torch.ones(6))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the metric is None, not a number"):
        model.effects(TEXTS, labels=LABELS, metric=lambda row, label: None)


def test_heads_may_be_numbers_of_numpy(classifier: Any) -> None:
    model, module = classifier
    heads = np.argwhere(np.eye(3, 4) > 0)[:2]
    found = hs.effects(module, lambda: [1.0], heads=heads)
    assert [tuple(place) for place in np.argwhere(np.isfinite(found.array))] == [(0, 0), (1, 1)]
    with hs.ablate(module, heads):
        trace = captured_trace(module, [5, 6, 7])
    assert trace.ablated == model.trace("the cat", ablate=heads).ablated == {(0, 0), (1, 1)}


def test_a_label_that_is_none_is_named_by_its_place(classifier: tuple[hs.Model, Any]) -> None:
    """Columns of pandas have numbers with a point where one of them is missing."""
    model, _ = classifier
    for labels, where in (
        (["good", "great"], r"there is no class 'great'\nwhere: labels\[1\]"),
        (pd.Series(["good", None]), r"label 1 is missing\nwhere: labels\[1\]"),
        (pyarrow.array(["good", None]), r"label 1 is missing\nwhere: labels\[1\]"),
        (pd.Series([1, None]), r"label 1 is missing\nwhere: labels\[1\]"),
        (pd.Series([1, 2.0]), r"1.0 names no target\nwhere: labels\[0\]\nwhat to do: help\("),
    ):
        with pytest.raises(InputError, match=where):
            model.effects(TEXTS[:2], labels=labels)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="where: target"):
        model.effects(TEXTS[:2], "great")


def test_an_empty_word_is_no_target(bundled: hs.Model) -> None:
    for word in ("", " "):
        with pytest.raises(InputError, match="names no word\nwhere: target"):
            bundled.effects("she took off her [MASK].", word)
