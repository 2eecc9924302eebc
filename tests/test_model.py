"""`hs.open` as a person uses it: texts, labels, words and ids in whatever holds them, masks filled; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import save_file

import headscope as hs
from headscope.errors import InputError, UnsupportedError
from headscope.runs.texts import BATCH_TOKENS, batches
from small_bert import small_bert

TEXT = "A cat sat on the [MASK]."


def test_a_text_becomes_tokens_as_the_model_has_them(model: hs.Model) -> None:
    trace = model.trace("The tired cat.")
    assert trace.tokens == ("[CLS]", "the", "tir", "##ed", "cat", ".", "[SEP]")
    assert trace.special.tolist() == [True, False, False, False, False, False, True]
    assert trace.words == (None, 0, 1, 1, 2, 3, None)
    assert trace.text == "The tired cat."
    assert trace.model == str(model.name)


def test_a_batch_is_what_each_text_is_by_itself(model: hs.Model) -> None:
    texts, pairs = ["the cat sat", "dogs", "the mat."], ["on the mat", "sat", "the dog"]
    for trace, text, pair in zip(model.trace(texts, pairs), texts, pairs, strict=True):
        alone = model.trace(text, pair)
        assert trace.tokens == alone.tokens
        for layer in range(3):
            np.testing.assert_allclose(trace[layer, 1].weights, alone[layer, 1].weights, atol=1e-6)
        np.testing.assert_allclose(trace.outputs["logits"], alone.outputs["logits"], atol=2e-5)
    assert model.trace([]) == []


def test_batches_go_through_in_bounded_parts() -> None:
    for sizes, expected in (([], []), ([BATCH_TOKENS, 1, 1], [1, 2]), ([9 * BATCH_TOKENS, 1], [1, 1])):
        assert [len(batch) for batch in batches(sizes, int)] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "got none"),
        ({"text": "the", "ids": [5]}, "got text and ids"),
        ({"text": ["the"], "ids": [5]}, "list of texts"),
        ({"text": ["the", "cat"], "pair": "sat"}, "2 texts and one text"),
        ({"text": ["the", "cat"], "pair": ["sat"]}, "2 texts and 1 in pair"),
        ({"text": "the", "pair": ["sat"]}, "`pair` is a list of 1 texts"),
        ({"ids": [5, 6, 7], "max_length": -1}, "max_length is -1"),
        ({"text": "the", "segments": [0]}, "segments goes with ids"),
        ({"words": ["the"], "pair": "cat"}, "pair goes with text"),
    ],
)
def test_what_can_not_be_a_text_is_refused_in_words(model: hs.Model, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        model.trace(**arguments)
    assert refused.value.advice


def test_ids_are_cut_with_their_segments(model: hs.Model) -> None:
    trace = model.trace(ids=[5, 6, 7], segments=[0, 1, 1], max_length=2)
    assert (trace.ids, trace.segments.tolist()) == ((5, 6), [0, 1])


def test_the_bundled_model_has_a_name() -> None:
    bert = hs.open()
    assert repr(bert).startswith("the bundled model: BertModel")
    assert repr(bert.trace("hat")).startswith("trace of the bundled model: ")


def test_probabilities_are_transformers_own(small):
    from transformers import BertForMaskedLM

    model = hs.open(small)
    trace = model.trace("the [MASK] sat on [MASK]")
    theirs = BertForMaskedLM.from_pretrained(small).eval()
    with torch.inference_mode():
        chances = torch.softmax(theirs(input_ids=torch.tensor([trace.ids])).logits[0].double(), -1).numpy()
    found = model.fill("the [MASK] sat on [MASK]", top=4)
    assert [one.position for one in found] == [2, 5]
    for one in found:
        row = chances[one.position]
        assert list(one.ids) == list(np.argsort(-row)[:4])
        np.testing.assert_allclose(one.probabilities, row[list(one.ids)], atol=2e-6)
        assert one.tokens == tuple(model.tokenizer.token(index) for index in one.ids)


def test_all_pieces_together_have_probability_1(small):
    (one,) = hs.open(small).fill("the cat", "[MASK] sat", top=10_000)
    assert one.position == 4
    assert sum(one.probabilities) == pytest.approx(1)


def test_models_that_fill_no_masks(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    save_file({"head.weight": np.zeros((2, 2), "f4")}, other / "model.safetensors")
    (other / "config.json").write_text('{"model_type": "flaubert", "architectures": ["FlaubertWithLMHeadModel"]}')
    with pytest.raises(UnsupportedError, match=r"model_type 'flaubert'\n.*\n.*hs.capture"):
        hs.open(other).fill("the [MASK]")
    with pytest.raises(UnsupportedError, match="no masked-LM head; on top of BertModel it has nothing"):
        hs.open(small_bert(tmp_path, masked_lm=False)).fill("the [MASK]")


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


def test_labels_that_are_no_list_are_named(bundled: hs.Model) -> None:
    for labels, says in (
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


def test_a_head_is_the_slice_that_a_notebook_takes(minilm: hs.Model) -> None:
    """Compared in torch, which warns of arrays that nobody may write; what is written stays with the reader."""
    stored = torch.tensor(minilm.checkpoint.read("encoder.layer.0.attention.self.query.weight"))
    head = minilm.layers[0].heads[1]
    assert torch.equal(stored.T[:, 32:64], torch.from_numpy(head.W_Q))
    for part in (head.W_Q, head.W_K, head.W_V, head.W_O, head.b_Q):
        part[:] = 0
    assert torch.equal(stored.T[:, 32:64], torch.from_numpy(head.W_Q))


def test_a_number_is_no_text(minilm: hs.Model) -> None:
    """Of a model of sentence-transformers, whose prompt is put before each text."""
    for ask in (minilm.trace, minilm.effects, minilm.verify):
        with pytest.raises(InputError, match=r"got int|has type int"):
            ask(3)  # type: ignore[call-overload]


def test_a_table_is_no_corpus(bundled: hs.Model) -> None:
    """Its iterator has the names of its columns: they were surveyed."""
    frame = pd.DataFrame({"text": ["The cat sat."], "stars": [3]})
    for ask in (hs.survey, lambda model, texts: hs.compare(model, model, texts)):
        with pytest.raises(InputError, match="expected a corpus, got DataFrame") as caught:
            ask(bundled, frame)
        assert "frame['text']" in str(caught.value)
    assert hs.survey(bundled, frame["text"], report=False).manifest["counts"]["documents"] == 1


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda model: model.trace(TEXT).findings(most=2.5), "most is 2.5"),
        (lambda model: model.trace(TEXT).statistics(3), "unknown statistic 3"),
        (lambda model: model.trace(TEXT).head_distances().clusters("two"), "count is 'two'"),
        (lambda model: model.trace(TEXT, max_length=True), "max_length is True"),
        (lambda model: model.fill(TEXT, top=2.5), "top is 2.5"),
        (lambda model: model.fill(TEXT, top="2"), "top is '2'"),
        (lambda model: model.removal([TEXT] * 4, steps=0.5), "steps is 0.5"),
        (lambda model: model.effects(TEXT, target=("word", 2.5)), "2.5 names no word"),
        (lambda model: model.fit(dict), "pass it as text: 'dict'"),
        (lambda model: model.fill([TEXT]), "expected one text, got list"),
        (lambda model: model.verify([TEXT]), "expected a text or a trace, got list"),
        (lambda model: model.verify(model.trace(TEXT), "a pair"), "a trace has its own texts"),
        (lambda model: model.trace(TEXT, ablate=(0, 0)), "expected heads as (layer, head), got 0"),
        (lambda model: model.trace(TEXT, ablate=(0, 0)), "name heads as {(3, 5)}"),
    ],
)
def test_an_argument_of_another_type_is_named(ask: Callable[[Any], Any], says: str, bundled: hs.Model) -> None:
    with pytest.raises(InputError) as caught:
        ask(bundled)
    assert says in str(caught.value)


def test_whole_numbers_are_numpy_s_too(bundled: hs.Model) -> None:
    trace = bundled.trace(TEXT, max_length=np.int64(12))
    assert trace.findings(most=np.int32(1)) == trace.findings(most=1)
    assert bundled.fill(TEXT, top=np.int64(2)) == bundled.fill(TEXT, top=2)
    assert trace.head_distances().clusters(np.int64(2)) == trace.head_distances().clusters(2)


def test_a_page_takes_its_layers_and_heads_from_whatever_holds_them(bundled: hs.Model, tmp_path: Path) -> None:
    trace = bundled.trace(TEXT)
    expected = trace.to_html(tmp_path / "list.html", layers=[1], heads=[0, 2], runs=False).read_bytes()
    for number, (layers, heads) in enumerate([(1, (0, 2)), (iter([1]), np.array([2, 0])), (range(1, 2), {0, 2})]):
        page = trace.to_html(tmp_path / f"{number}.html", layers=layers, heads=heads, runs=False)
        assert page.read_bytes() == expected


def test_a_method_that_is_called_on_the_class_says_so() -> None:
    cat: Any = "a cat"
    for call in (lambda: hs.Model.trace(cat), lambda: hs.Trace.statistics(cat), lambda: hs.Model.effects(cat, "hat")):
        with pytest.raises(TypeError, match="call it on an object, not on its class with a str"):
            call()


def test_one_layer_may_stand_for_a_list_of_one_counted_from_either_end(bundled: hs.Model, tmp_path: Path) -> None:
    trace = bundled.trace("She took off her hat, and sat down.")
    assert trace.findings(layers=2) == trace.findings(layers=np.int64(-2)) == trace.findings(layers=[2])  # type: ignore
    pages = [trace.to_html(tmp_path / f"{at}.html", layers=at, runs=False) for at in (3, -1, [3], np.array([-1, 3]))]  # type: ignore
    assert len({page.read_bytes() for page in pages}) == 1
    for wrong in ("3", 1.5, 9):
        with pytest.raises(InputError, match="there is no layer"):
            trace.to_html(tmp_path / "wrong.html", layers=wrong, runs=False)  # type: ignore
    with pytest.raises(InputError, match="there is no head 9: a layer has 4 heads"):
        trace.to_html(tmp_path / "wrong.html", heads=[9], runs=False)
