"""Texts, labels, words and ids in whatever holds them: columns of pandas with any index, arrays, tensors, tuples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import headscope as hs
from headscope.errors import InputError

TEXTS = ["The cat [MASK] on the mat.", "A dog ran [MASK].", "She [MASK] reads."]
LABELS = ["sat", "home", "often"]
ORDER = [2, 0, 1]
HOLDERS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "array": np.array,
    "objects": lambda texts: np.array(texts, dtype=object),
    "column": pd.Series,
    "column of a shuffled table": lambda texts: pd.Series(texts, index=ORDER),  # after a split into train and test
    "generator": lambda texts: (text for text in texts),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_texts_are_read_in_their_order(holder: str, bundled: hs.Model) -> None:
    held = HOLDERS[holder]
    assert [trace.text for trace in bundled.trace(held(TEXTS))] == TEXTS
    assert [trace.pair for trace in bundled.trace(held(TEXTS), held(TEXTS[::-1]))] == TEXTS[::-1]
    expected = bundled.effects(TEXTS)
    np.testing.assert_array_equal(bundled.effects(held(TEXTS)), expected)
    matches = hs.match(bundled, "cat", held(TEXTS), check=False)
    assert [match.score for match in matches.matches] == [
        match.score for match in hs.match(bundled, "cat", TEXTS, check=False).matches
    ]


@pytest.mark.parametrize("holder", [holder for holder in HOLDERS if holder != "generator"])
def test_each_label_is_its_text_s(holder: str, bundled: hs.Model) -> None:
    """A column's index says nothing: by it, the first text of a shuffled table had another's label."""
    held = HOLDERS[holder]
    expected = bundled.effects(TEXTS, labels=LABELS, metric="loss")
    np.testing.assert_array_equal(bundled.effects(held(TEXTS), labels=held(LABELS), metric="loss"), expected)
    given = {"metric": "loss", "order": [(0, 0), (3, 2)], "random": 0}
    found = bundled.removal(held(TEXTS), held(LABELS), **given)
    np.testing.assert_array_equal(found.score, bundled.removal(TEXTS, LABELS, **given).score)


def test_a_label_that_is_missing_or_no_class_is_named(bundled: hs.Model) -> None:
    """A missing one had the model's own prediction in its place."""
    for labels, says in (
        (["sat", None, "often"], "label 1 is missing"),
        (np.eye(3), "label 0 is an array"),
        (dict(enumerate(LABELS)), "expected a list, got dict"),
        (pd.DataFrame({"label": LABELS}), "expected a list, got DataFrame"),
    ):
        with pytest.raises(InputError, match=says):
            bundled.effects(TEXTS, labels=labels, metric="loss")
    effects = bundled.effects(TEXTS, labels=LABELS, metric="loss")
    assert repr(effects).startswith("changes of loss of 16 heads on 3 texts")


def test_heads_of_arrays_and_pairs_of_tables(bundled: hs.Model) -> None:
    order = np.array([[0, 1], [1, 2]])
    found = bundled.removal(TEXTS, LABELS, metric="loss", order=order, random=0)
    assert list(found.order) == [(0, 1), (1, 2)]
    frame = pd.DataFrame({"words": [["The", "cat", "sat", "down"]] * 4, "pairs": [[(0, 1)]] * 4})
    with pytest.raises(InputError, match="expected documents, got DataFrame") as caught:
        hs.pair_heads(bundled, frame)
    assert "frame.to_dict('records')" in str(caught.value)
    assert hs.pair_heads(bundled, frame.to_dict("records")).documents == 4


def test_ids_and_words_of_arrays_and_tensors(bundled: hs.Model) -> None:
    """As tokenizers return them: also a batch of one row."""
    encoded = bundled.tokenizer.encode("the cat", "a dog")
    ids, segments = encoded.ids, encoded.segments
    expected = bundled.trace(ids=list(ids), segments=list(segments))
    for held in (np.array, torch.tensor, pd.Series, lambda numbers: torch.tensor([numbers])):
        found = bundled.trace(ids=held(list(ids)), segments=held(list(segments)))
        assert found.queries == expected.queries
        np.testing.assert_array_equal(found[3, 1].weights[...], expected[3, 1].weights[...])
    with pytest.raises(InputError, match=r"ids\[0\] is \[5, 6\]"):
        bundled.trace(ids=torch.tensor([[5, 6], [7, 8]]))
    words = pd.Series(["the", "cat"], index=[7, 3])
    assert bundled.trace(words=words).queries == bundled.trace(words=["the", "cat"]).queries


@pytest.mark.parametrize(
    "ask",
    [
        lambda model, texts: model.trace(texts),
        lambda model, texts: model.effects(texts),
        lambda model, texts: model.effects(texts, labels=["a", "b"], metric="loss"),
        lambda model, texts: model.removal(texts, metric="vector"),
        lambda model, texts: hs.match(model, "cat", texts),
    ],
)
@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["The cat sat.", float("nan")], "entry 1 is nan, not a text"),
        (pd.Series([None, "The cat sat."], index=[4, 2]), "entry 0 is .*, not a text"),
        ([("a text", "and its pair")], "entry 0 is .'a text', 'and its pair'., not a text"),
        (pd.DataFrame({"text": ["The cat sat."]}), "expected a list, got DataFrame"),
        ({"text": "The cat sat."}, "expected a list, got dict"),
    ],
)
def test_what_is_no_text_is_named(ask: Callable[[Any, Any], Any], texts: Any, says: str, bundled: hs.Model) -> None:
    with pytest.raises(InputError, match=says):
        ask(bundled, texts)


def test_a_table_is_no_corpus(bundled: hs.Model) -> None:
    """Its iterator has the names of its columns: they were surveyed."""
    frame = pd.DataFrame({"text": ["The cat sat."], "stars": [3]})
    for ask in (hs.survey, lambda model, texts: hs.compare(model, model, texts)):
        with pytest.raises(InputError, match="expected a corpus, got DataFrame") as caught:
            ask(bundled, frame)
        assert "frame['text']" in str(caught.value)
    assert hs.survey(bundled, frame["text"], report=False).manifest["counts"]["documents"] == 1
