"""Effects of changes: of heads, over texts, and sets of changes as the engine runs them, against passes in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscope as hs
import headscope.encoder.attending
from explain.tops import TEXT, contexts_in_torch, edited_pass, in_torch, readable
from headscope.encoder import Encoder
from headscope.errors import HeadscopeError, InputError, UnsupportedError
from headscope.heads.intervals import t_975
from headscope.results.effect_records import Target
from headscope.runs import engine
from headscope.runs.effects import effects_of
from headscope.runs.engine import Base, Edit, NumpyRunner, base_readings
from headscope.runs.groups import DRAWS, silenced_groups
from headscope.runs.targets import choose
from headscope.runs.texts import as_input, of_trace
from naive_layers import minilm as naive_minilm
from random_models import FAMILIES, Made

LIMIT = 1e-5


def number(model: hs.Model, target: Target, trace: hs.Trace, length: float) -> float:
    """A target's number from a trace's outputs, written out."""
    if target.direction is not None:
        vector = trace.outputs["last_hidden_state"].array.astype(float).mean(0)
        along = float(vector @ target.direction)
        if target.kind == "embedding_distance":
            return 1 - along / float(np.linalg.norm(vector))
        return along / (length if target.kind == "embedding" else float(np.linalg.norm(vector)))
    logits = trace.outputs["logits"].array
    return float(logits[target.index] if target.kind in ("class", "score") else logits[target.row, target.index])


CASES = [
    ("Bert", "ForMaskedLM", None),
    ("Bert", "ForMaskedLM", ("embedding",)),
    ("Bert", "ForMaskedLM", ("embedding_distance",)),
    ("Bert", "ForMaskedLM", ("similarity", "the dog took off her hat")),
    ("Bert", "ForSequenceClassification", None),
    ("Bert", "ForSequenceClassification", "bad"),
    ("Bert", "ForTokenClassification", ("token", 4, "good")),
    ("DistilBert", "ForSequenceClassification", 2),
    ("DistilBert", "ForMaskedLM", "mat"),
    ("Electra", "ForMaskedLM", None),
    ("Electra", "ForSequenceClassification", None),
    *((stem, "Model", None) for stem in FAMILIES),
]


@pytest.mark.parametrize(("stem", "suffix", "wanted"), CASES)
def test_effects_are_those_of_naive_runs(tmp_path: Path, stem: str, suffix: str, wanted: Any) -> None:
    readable(tmp_path, stem, suffix)
    model = hs.open(tmp_path)
    result = model.effects(TEXT, wanted)
    plain = model.trace(TEXT)
    length = result.target.length
    before = number(model, result.target, plain, length)
    assert result.base == pytest.approx(before, abs=LIMIT)
    assert result.change.shape == (len(plain.layers), 4)
    for head in np.ndindex(result.change.shape):
        after = number(model, result.target, model.trace(TEXT, ablate={head}), length)
        assert result.change[head] == pytest.approx(after - before, abs=LIMIT)
    assert np.abs(result.change).max() > 1e-3


def test_probabilities_and_cosines_go_with_the_numbers(model: hs.Model) -> None:
    result = model.effects(TEXT)
    row = model.trace(TEXT, ablate={(1, 2)}).outputs["logits"].array[result.target.row].astype(float)
    assert result.aside[1, 2] == pytest.approx(np.exp(row[result.target.index]) / np.exp(row).sum(), abs=LIMIT)
    vector = model.effects(TEXT, ("embedding",))
    assert (vector.base, vector.base_aside) == (pytest.approx(1), pytest.approx(1))
    passes = model.trace(TEXT), model.trace(TEXT, ablate={(1, 2)})
    a, b = (trace.outputs["last_hidden_state"].array.astype(float).mean(0) for trace in passes)
    assert vector.aside[1, 2] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=LIMIT)


@pytest.mark.parametrize("wanted", [None, ("embedding",)])
@pytest.mark.parametrize("way", ["mean", "patch", "edge"])
def test_other_changes_are_those_of_hooks_in_torch(words: Made, model: hs.Model, way: str, wanted: Any) -> None:
    module = words.module
    other = "the dog [MASK] off the hat and sat down !"
    given: dict[str, Any] = {"mean": {"method": way}, "patch": {"patch_from": other}, "edge": {"edge": (3, 2)}}[way]
    result = model.effects(TEXT, wanted, **given)
    assert (result.method, result.edge) == (way, given.get("edge"))
    ids, source = (list(model.trace(text).ids) for text in (TEXT, other))
    contexts = contexts_in_torch(module, source)
    for layer, head in np.ndindex(3, 4):
        last = in_torch(module, ids, frozenset({Edit(layer, head, way, edge=given.get("edge"))}), contexts)
        if wanted is None:
            with torch.inference_mode():
                after = float(module.cls(torch.from_numpy(last))[result.target.row, result.target.index])
        else:
            after = float(last.astype(float).mean(0) @ result.target.direction) / result.target.length
        close = LIMIT if way == "edge" else 2 * LIMIT
        assert result.change[layer, head] == pytest.approx(after - result.base, abs=close)
    assert np.abs(result.change).max() > 1e-4


class Counted(np.ndarray):
    """An array whose products count their multiplications and additions."""

    flops = 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        plain = [item.view(np.ndarray) if isinstance(item, Counted) else item for item in inputs]
        if out:
            options["out"] = tuple(item.view(np.ndarray) if isinstance(item, Counted) else item for item in out)
        result = getattr(ufunc, method)(*plain, **options)
        if ufunc is np.matmul:
            Counted.flops += 2 * result.size * plain[0].shape[-1]
        return out[0] if out else result.view(Counted) if isinstance(result, np.ndarray) else result


@pytest.mark.parametrize(("wanted", "most"), [(None, 70), (("embedding",), 78)])
def test_the_products_of_all_heads_are_those_of_70_or_78_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Any, most: int
) -> None:
    """BERT-base at 128 tokens, an eighth as large in every direction: 16 tokens, d_model 96, 12 x 12 heads."""
    sizes = {"hidden_size": 96, "intermediate_size": 384, "num_hidden_layers": 12, "num_attention_heads": 12}
    readable(tmp_path, "Bert", "ForMaskedLM", **sizes, vocab_size=30522 // 8)
    model = hs.open(tmp_path)
    read = Encoder.read
    monkeypatch.setattr(Encoder, "read", lambda *given: read(*given).view(Counted))
    attend = headscope.encoder.attending.attend_everywhere

    def counting(q: Any, k: Any, v: Any, **options: Any) -> Any:
        Counted.flops += 2 * 2 * q.size * k.shape[1]
        return attend(q, k, v, **options)

    monkeypatch.setattr("headscope.encoder.forward.attend_everywhere", counting)
    text = " ".join(["the cat [MASK] on", *["word30"] * 10])
    Counted.flops = 0
    assert len(model.trace(text)) == 16
    forward, Counted.flops = Counted.flops, 0
    products = 12 * 2 * (16 * 96 * (4 * 96 + 2 * 384) + 2 * 16 * 16 * 96)
    assert products <= forward < 1.002 * products  # norms sum by products with ones
    result = model.effects(text, wanted)
    assert result.change.shape == (12, 12)
    assert 60 < Counted.flops / forward < most


def test_over_texts(model: hs.Model) -> None:
    texts = [TEXT, "the [MASK] sat", "she took off [MASK] hat ."]
    result = model.effects(texts)
    each = np.stack([model.effects(text).change for text in texts])
    half = 4.303 * each.std(0, ddof=1) / np.sqrt(3)
    assert np.max(result) == result.array.max()  # no attribute of the record has the name of a method of arrays
    assert result.mean() == result.array.mean()
    for values, apart in ((result, 0), (result.low, -half), (result.high, half)):
        np.testing.assert_allclose(values, each.mean(0) + apart, rtol=0, atol=1e-5)
    assert result.strongest(1)[0] == np.unravel_index(np.abs(result).argmax(), (3, 4))
    alone = model.effects([TEXT])
    assert np.isnan(alone.low).all()
    assert repr(alone).startswith("effects of 12 heads on 1 text; most: ")
    assert "interval" not in repr(alone)
    for options in ({"pair": ["a"]}, {"patch_from": TEXT}):
        with pytest.raises(InputError, match="3 texts and one text"):
            model.effects(texts, **options) if "patch_from" in options else model.effects(texts, pair="the")
    with pytest.raises(InputError, match="no texts"):
        model.effects([])


def test_intervals_are_students() -> None:
    """Percentiles from the tables in any textbook."""
    for freedom, percentile in ((1, 12.706), (10, 2.228), (40, 2.0211), (60, 2.0003), (120, 1.9799)):
        assert t_975(freedom) == pytest.approx(percentile, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": "halve"}, InputError, "can't be changed by 'halve'"),
        ({"patch_from": "the cat"}, InputError, "has 12 tokens and the one to patch from 4"),
        ({"patch_from": TEXT, "method": "mean"}, InputError, "in one way"),
        ({"patch_from": TEXT, "pair": "the"}, InputError, "can't be patched from a single one"),
        ({"edge": (0, 99)}, InputError, "99"),
        ({"edge": 3}, InputError, r"expected \(query, key\), got 3"),
        ({"edge": (0, 1), "method": "mean"}, InputError, "mean and edge"),
        ({"edge": (0, 1), "patch_from": TEXT}, InputError, "patch_from and edge"),
        ({"target": 60}, InputError, "60"),
        ({"target": Target("word", "cat", 6, 30)}, InputError, "reads token 30, and the text has 12"),
        ({"target": Target("word", "dog", 6, 6)}, InputError, "'dog' at token 6, which here is .* '(?!dog)"),
        ({"target": Target("class", "0", 0, None)}, UnsupportedError, "no sequence classifier"),
        ({"target": Target("token", "0", 0, 1)}, UnsupportedError, "no token classifier"),
        ({"target": Target("embedding", "", None, None, np.ones(3))}, InputError, "3 numbers, and the vectors have 32"),
        ({"target": ("word", True)}, InputError, "names no target"),
        ({"target": ("word", "cat", True), "text": "[MASK] cat"}, InputError, "names no target"),
        ({"target": ("embedding",), "max_length": 0}, InputError, "max_length is 0"),
        ({"target": ("embedding",), "max_length": "5"}, InputError, "max_length is '5'"),
        ({"method": ["zero"]}, InputError, "can't be changed by"),
        ({"target": ("class", 0)}, UnsupportedError, "no sequence classifier; on top of BertModel it has masked_lm"),
        ({"target": ("token", 0, 0)}, UnsupportedError, "no token classifier"),
        ({"target": "catsatmat"}, InputError, "'catsatmat' is not in the vocabulary"),
        ({"target": ("word", "cat", 0)}, InputError, "token 0 is no"),
        ({"target": ("what", 1)}, InputError, "names no target"),
        ({"target": 2.5}, InputError, "names no target"),
        ({"text": "the cat"}, None, ""),
        ({"text": "the cat", "target": "mat"}, InputError, r"the text has no \[MASK\]"),
        ({"text": "[MASK] " + "cat " * 70}, InputError, "73 tokens, the model takes 64"),
        ({"text": ""}, InputError, "empty"),
        ({"text": [TEXT], "edge": (0, 1)}, InputError, "an edge is of one text"),
        ({"pair": ["b"]}, InputError, "one text and a list of 1"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    model: hs.Model, options: dict[str, Any], error: type[HeadscopeError] | None, message: str
) -> None:
    text = options.pop("text", TEXT)
    if error is None:
        assert model.effects(text, **options).target.kind == "embedding"
        return
    with pytest.raises(error, match=message):
        model.effects(text, **options)


def test_a_word_s_target_is_refused_by_a_model_without_a_masked_lm_head(model: hs.Model, classes: Made) -> None:
    """Its word embeddings alone would give a number."""
    other, target = hs.open(classes.folder), model.effects(TEXT, ("cat", "dog")).target
    assert model.effects(TEXT, target).base == model.effects(TEXT, ("cat", "dog")).base
    for ask in (other.effects, other.attribute):
        with pytest.raises(UnsupportedError, match="no masked-LM head"):
            ask(TEXT, target)


def test_tokens_of_a_target_count_from_either_end(tmp_path: Path) -> None:
    model = hs.open(readable(tmp_path, "Bert", "ForTokenClassification").folder)
    last, named = (model.effects("the cat", ("token", place, "good")) for place in (-1, 3))
    assert last.target.row == 3
    np.testing.assert_array_equal(last, named)
    with pytest.raises(InputError, match="no token 4: the text has 4 tokens"):
        model.attribute("the cat", ("token", 4, "good"))


def test_labels_by_name_and_number(classes: Made) -> None:
    model = hs.open(classes.folder)
    for wanted in ("good", "GOOD", 2, ("class", "good"), ("class", 2)):
        target = model.effects("the cat", wanted).target
        assert (target.kind, target.label, target.index, target.row, target.chosen) == ("class", "good", 2, 0, False)
    best = int(np.argmax(model.trace("the cat").outputs["logits"]))
    target = model.effects("the cat").target
    assert (target.index, target.chosen) == (best, True)
    assert str(target).endswith("(the default)")
    for wanted in ("dreadful", 3, -1):
        with pytest.raises(InputError, match="there is no class"):
            model.effects("the cat", wanted)


def test_a_rerankers_score(tmp_path: Path) -> None:
    readable(tmp_path, "Bert", "ForSequenceClassification", num_labels=1)
    model = hs.open(tmp_path)
    result = model.effects("the cat", pair="the mat")
    assert (result.target.kind, str(result.target)) == ("score", "the score (the default)")
    score = float(model.trace("the cat", "the mat").outputs["logits"][0])
    assert result.base == pytest.approx(score, abs=LIMIT)
    assert result.base_aside == pytest.approx(1 / (1 + np.exp(-score)))


def test_the_default_word_is_no_punctuation_and_no_continuation(tmp_path: Path) -> None:
    checkpoint = readable(tmp_path, "Bert", "ForMaskedLM")
    with torch.no_grad():
        for at, index in enumerate((3, 10, 19, 23, 9)):  # [SEP], ".", "##ed", "!", "mat"
            checkpoint.module.cls.predictions.bias[index] += 100 - at
    checkpoint.module.save_pretrained(tmp_path)
    target = hs.open(tmp_path).effects(TEXT).target
    assert (target.kind, target.label, target.row, target.chosen) == ("word", "mat", 3, True)


def test_layers_arrive_from_the_last_to_the_first(model: hs.Model) -> None:
    arrived: dict[int, np.ndarray] = {}
    steps: list[tuple[int, int]] = []
    told: Any = {"progress": lambda done, of: steps.append((done, of)), "layer_read": arrived.__setitem__}
    (result,) = effects_of(model, [of_trace(model.trace(TEXT))], None, [None], **told)
    assert (list(arrived), steps) == ([2, 1, 0], [(0, 3), (1, 3), (2, 3), (3, 3)])
    np.testing.assert_array_equal(np.stack([arrived[layer] for layer in range(3)]), result.change)
    np.testing.assert_allclose(result.change, model.effects(TEXT).change, rtol=0, atol=1e-5)


TEXTS = (TEXT, "the dog sat on the mat")
OTHERS = ("the dog [MASK] off the hat and sat down !", "the cat took off her hat")


def sets(source: Base) -> list[frozenset[Edit]]:
    """Each way alone, in the first and the last layer, and sets of several ways in several layers."""
    options: dict[str, Any] = {"zero": {}, "mean": {}, "patch": {"source": source}, "edge": {"edge": (3, 2)}}
    alone = [frozenset({Edit(layer, 1, way, **given)}) for way, given in options.items() for layer in (0, 2)]
    first = Edit(0, 3, "mean")
    return [
        *alone,
        *(frozenset({first, Edit(2, 1, way, **given)}) for way, given in options.items()),
        frozenset({Edit(0, head, way, **given) for head, (way, given) in enumerate([*options.items()][:4])}),
        frozenset({first, Edit(1, 0), Edit(1, 2, "mean"), Edit(2, 2, "edge", edge=(0, 1))}),
    ]


@pytest.mark.parametrize("contexts", [True, False])
def test_sets_of_changes_are_those_of_hooks(
    words: Made, model: hs.Model, monkeypatch: pytest.MonkeyPatch, contexts: bool
) -> None:
    """Whole states, and targets that read some rows; side by side, and one run after the other."""
    module, runner = words.module, NumpyRunner(model)
    encoded = [model.tokenizer.encode(text) for text in TEXTS]
    others = [model.tokenizer.encode(text) for text in OTHERS]
    source = runner.base([as_input(text) for text in others])
    there = [contexts_in_torch(module, list(text.ids)) for text in others]
    base = runner.base([as_input(text) for text in encoded], contexts=contexts)
    edits = sets(source)
    expected = [
        [in_torch(module, list(text.ids), changes, other) for text, other in zip(encoded, there, strict=True)]
        for changes in edits
    ]
    places = [np.array([2, 3]), np.array([7])]
    for which, changes in enumerate(edits):  # the last layer computes these rows alone, where no change needs others
        ((_, hidden),) = runner.states(base, [changes], places)
        for states, whole, at in zip(hidden, expected[which], places, strict=True):
            np.testing.assert_allclose(states[0], whole[at], atol=2e-5)
    wanted = [("word", "mat"), ("embedding_distance",)]
    targets = [
        choose(model, text, base.last[rows], name) for text, rows, name in zip(encoded, base.rows, wanted, strict=True)
    ]
    for most in (4096, 3 * len(base.last), 1):
        monkeypatch.setattr(engine, "BATCH_TOKENS", most)
        seen = set()
        for runs, hidden in runner.states(base, edits):
            seen |= set(runs)
            for at, which in enumerate(runs):
                for text, states in enumerate(hidden):
                    np.testing.assert_allclose(states[at], expected[which][text], atol=2e-5)
        assert seen == set(range(len(edits)))
        for asked in ([targets[0], targets[0]], targets):
            for which, numbers in enumerate(runner.run(base, edits, asked).values):
                for text, (number, target) in enumerate(zip(numbers, asked, strict=True)):
                    last = expected[which][text]
                    vector = last.astype(float).mean(0)
                    if target.kind == "word":
                        truth = float(model.tops.masked_lm(last[target.row : target.row + 1])[0, target.index])
                    else:
                        truth = 1 - float(vector @ target.direction) / float(np.linalg.norm(vector))
                    assert number == pytest.approx(truth, abs=2e-5)


def test_a_pass_with_edits_is_a_base_itself(words: Made, model: hs.Model) -> None:
    """What is changed in the base stays changed in its runs, also in the layer that they start in and in later ones."""
    runner, encoded = NumpyRunner(model), model.tokenizer.encode(TEXT)
    gone = frozenset({Edit(0, 1), Edit(1, 2, "mean"), Edit(2, 0, "edge", edge=(0, 1))})
    for contexts in (True, False):
        base = runner.base([as_input(encoded)], edits=gone, contexts=contexts)
        whole = in_torch(words.module, list(encoded.ids), gone, [])
        np.testing.assert_allclose(base.last, whole, atol=2e-5)
        target = choose(model, encoded, base.last, ("embedding",))
        assert base_readings(model, base, [target]).values == pytest.approx(1)
        for more in (Edit(0, 0), Edit(1, 1), Edit(2, 3, "edge", edge=(3, 0))):
            ((_, (states,)),) = runner.states(base, [frozenset({more})])
            np.testing.assert_allclose(
                states[0], in_torch(words.module, list(encoded.ids), gone | {more}, []), atol=2e-5
            )


@pytest.mark.parametrize("contexts", [True, False])
@pytest.mark.parametrize("other", [(), (0, 3), (1, 0), (2, 0)])
def test_a_pass_like_another_is_the_same_to_the_bit(model: hs.Model, contexts: bool, other: tuple[int, ...]) -> None:
    """It takes over the layers before the first change, of which there may be none, and leaves the other as it is."""
    runner, texts = NumpyRunner(model), [as_input(model.tokenizer.encode(text)) for text in TEXTS]
    gone = frozenset({Edit(1, 2)})
    whole = runner.base(texts, edits=gone, contexts=contexts)
    before = whole.last.copy()
    edits = gone | ({Edit(*other)} if other else set())
    here = runner.base(texts, edits=edits, contexts=contexts, like=whole)
    alone = runner.base(texts, edits=edits, contexts=contexts)
    np.testing.assert_array_equal(here.last, alone.last)
    for one, another in zip(here.layers, alone.layers, strict=True):
        np.testing.assert_array_equal(one.into, another.into)
        assert (one.summed is None) == (another.summed is None) == (not contexts)
    same = other[0] if other else 2
    assert all(one is another for one, another in zip(here.layers[:same], whole.layers, strict=False))
    np.testing.assert_array_equal(whole.last, before)


def test_refusals(model: hs.Model) -> None:
    runner = NumpyRunner(model)
    text, shorter = (as_input(model.tokenizer.encode(words)) for words in (TEXT, "the cat"))
    base, other, bare = runner.base([text]), runner.base([shorter]), runner.base([text], contexts=False)
    for edits, message in (
        ({Edit(0, 1), Edit(0, 1, "mean")}, "in two ways"),
        ({Edit(3, 0)}, "no layer 3"),
        ({Edit(0, 4)}, "no head 4"),
        ({Edit(-1, 0)}, "counts from 0"),
        ({Edit(0, -1)}, "counts from 0"),
        ({Edit(0, 0, "edge", edge=(-1, 2))}, "counts from 0"),
        ({Edit(0, 0, "halve")}, "can't be changed by 'halve'"),
        ({Edit(0, 0, "patch")}, "without what it needs"),
        ({Edit(0, 0, "edge")}, "without what it needs"),
        ({Edit(0, 0, "edge", edge=(0, 99))}, "no token 99"),
        ({Edit(0, 0, "patch", source=other)}, "of other texts"),
        ({Edit(0, 0, "patch", source=bare)}, "without contexts"),
        (set(), "no head"),
    ):
        with pytest.raises(InputError, match=message):
            [*runner.states(base, [frozenset(edits)])]
    with pytest.raises(InputError, match="counts from 0"):
        runner.base([text], edits=frozenset({Edit(-1, 0)}))


# Groups of heads, silenced, beside draws: against passes of the library's own model.


TIRED = "The animal did not cross the street because it was too tired."
HEADS = 4


@pytest.fixture(scope="module")
def without() -> Callable[[list[int], Iterable[int]], np.ndarray]:
    """The last hidden state of all-MiniLM-L6-v2 in transformers and fp64, with these heads silenced."""
    module = naive_minilm()
    return lambda ids, heads: in_torch(module, ids, [Edit(*divmod(n, 12)) for n in heads], [])


def cosine(a: np.ndarray, b: np.ndarray) -> Any:
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def test_groups_of_a_sentence_are_those_of_the_library(
    minilm: hs.Model, without: Callable[[list[int], Iterable[int]], np.ndarray]
) -> None:
    trace = minilm.trace(TIRED)
    ids, told = list(trace.ids), []
    found = silenced_groups(minilm, trace, draws=5, progress=lambda done, of: told.append((done, of)))
    weights = np.array([np.asarray(trace[n // 12, n % 12].weights)[:, 0].mean() for n in range(72)])
    first, *layers = found.groups
    assert (first.group.name, sorted(first.group.heads)) == ("[CLS]", np.flatnonzero(weights > 0.5).tolist())
    assert [sorted(one.group.heads) for one in layers] == [[*range(n, n + 12)] for n in range(0, 72, 12)]
    assert (first.value, layers[5].value) == pytest.approx((0.928, 0.807), abs=1e-3)
    old = without(ids, [])
    for one in (first, layers[1], layers[5]):
        new = without(ids, one.group.heads)
        assert one.value == pytest.approx(cosine(new.mean(0), old.mean(0)), abs=1e-5)
        np.testing.assert_allclose(one.turn, 1 - cosine(new, old), atol=1e-5)
    length = np.linalg.norm(old.mean(0))
    moves = [without(ids, [n]).mean(0) - old.mean(0) for n in range(12, 24)]
    assert layers[1].summed == pytest.approx(np.linalg.norm(sum(moves)) / length, abs=1e-5)
    together = without(ids, range(12, 24)).mean(0) - old.mean(0)
    assert layers[1].together == pytest.approx(np.linalg.norm(together) / length, abs=1e-5)
    assert found.alone[5, 11] == pytest.approx(cosine(without(ids, [71]).mean(0), old.mean(0)), abs=1e-5)
    order = np.argsort(-weights, kind="stable")
    assert found.order == order.tolist()
    for count in (2, 40, 72):
        assert found.curve[count] == pytest.approx(cosine(without(ids, order[:count]).mean(0), old.mean(0)), abs=1e-5)
    assert set(found.at_random[72]) == {found.curve[72]}
    done, of = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert {done[-1]} == {*of}


def test_draws_have_as_many_heads_of_each_layer(tmp_path: Path) -> None:
    """Every probability beside a group is that of one of the sets it may be drawn from, by naive hooks."""
    made = readable(tmp_path, "Bert", "ForMaskedLM")
    model = hs.open(made.folder)
    trace = model.trace(TEXT)
    found = silenced_groups(model, trace, labels=[("both", [(0, 1), (2, 3)])])
    ids = list(trace.ids)
    at = ids.index(4)

    def share(heads: Iterable[int]) -> float:
        logits = edited_pass(made.module, ids, [Edit(*divmod(n, HEADS)) for n in heads]).logits[0, at]
        return float(logits.double().softmax(-1)[found.target.index])

    def among(drawn: np.ndarray, sets: Iterable[tuple[int, ...]]) -> int:
        """Each draw is one of these; how many of them were drawn."""
        values = np.array([share(one) for one in sets])
        near = np.abs(drawn[:, None] - values).argmin(1)
        np.testing.assert_allclose(drawn, values[near], atol=1e-6)
        return len({*near.tolist()})

    both = found.groups[-1]
    assert both.value == pytest.approx(share((1, 11)), abs=1e-6)
    assert found.base == pytest.approx(share(()), abs=1e-6)
    assert both.matched.shape == both.drawn.shape == (DRAWS,)
    assert among(both.matched, product(range(4), range(8, 12))) > 12
    assert among(both.drawn, combinations(range(12), 2)) > 40
    layers = [one for one in found.groups if one.group.kind == "layer"]
    assert [one.matched for one in layers] == [None] * 3
    assert len(layers[0].drawn) == DRAWS
