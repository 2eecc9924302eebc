"""Comparisons of two models: changes of heads, statistics, surveys; the command, JSON, CSV, Markdown and a page."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from safetensors.numpy import load_file

import commands
import headscope as hs
from commands import answer, imported
from finished_survey import finished
from headscope.atlas.result import Survey
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import CheckpointError, InputError
from headscope.heads.head_distances import relative
from headscope.heads.weight_changes import product_change
from headscope.screens.labels import width
from known_heads import known_heads, known_treebank, noise_scores, wanted_scores
from making import write_safetensors
from random_models import made
from small_bert import small_bert

TEXTS = ["She took off her hat.", "He sat down on the mat, and slept.", "The cat looked at the dog!"]
QUERY = "encoder.layer.1.attention.self.query.weight"
KEY = "encoder.layer.1.attention.self.key.weight"


Edit = Callable[[np.ndarray], np.ndarray]


def edited(folder: Path, edits: Mapping[str, Edit], source: Path = BUNDLED) -> Path:
    """A copy of a checkpoint in which each tensor whose name ends so is what its function makes of it."""
    shutil.copytree(source, folder)
    tensors = {name: np.array(array) for name, array in load_file(folder / "model.safetensors").items()}
    for ending, edit in edits.items():
        names = [name for name in tensors if name.endswith(ending)]
        assert len(names) == 1, (ending, names)
        tensors[names[0]] = edit(tensors[names[0]].copy())
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    return folder


def scaled(rows: slice, factor: float) -> Edit:
    """Some rows multiplied."""

    def edit(array: np.ndarray) -> np.ndarray:
        array[rows] *= np.asarray(factor, array.dtype)
        return array

    return edit


OF_A_HEAD: dict[str, Callable[[Any], np.ndarray]] = {
    "qk": lambda head: head.W_Q.astype(np.float64) @ head.W_K.T.astype(np.float64),
    "ov": lambda head: head.W_V.astype(np.float64) @ head.W_O.astype(np.float64),
    "qk_bias": lambda head: head.W_K.astype(np.float64) @ head.b_Q,
    "ov_bias": lambda head: head.b_V.astype(np.float64) @ head.W_O,
}
"""Whole products, of d_model x d_model numbers."""


def moved(module: Any, folder: Path) -> hs.Comparison:
    """The comparison of folder/a, the module's checkpoint, with one whose every number has changed a little."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.03)
    module.save_pretrained(folder / "b")
    return hs.compare(folder / "a", folder / "b")


def test_changes_are_those_of_full_matrices_in_every_head(tmp_path: Path) -> None:
    result = moved(made(tmp_path / "a", "Bert").module, tmp_path)
    models = [hs.open(tmp_path / name) for name in "ab"]
    for layer, head in np.ndindex(3, 4):
        for name, product in OF_A_HEAD.items():
            old, new = (product(model.layers[layer].heads[head]) for model in models)
            wanted = np.linalg.norm(new - old) / np.linalg.norm(old)
            close = 1e-6 if "bias" in name else 1e-9
            assert result.weights[name][layer, head] == pytest.approx(wanted, rel=close), (name, layer, head)


def test_parts_and_embeddings_are_norms_over_all_their_parameters(tmp_path: Path) -> None:
    module = made(tmp_path / "a", "Bert").module
    before = {name: tensor.double().clone() for name, tensor in module.state_dict().items()}
    result = moved(module, tmp_path)

    def change(*parts: str) -> float:
        names = [name for name in before if any(part in name for part in parts)]
        assert names
        new = torch.cat([module.state_dict()[name].double().ravel() for name in names])
        old = torch.cat([before[name].ravel() for name in names])
        return float((new - old).norm() / old.norm())

    for layer in range(3):
        stem = f"encoder.layer.{layer}."
        feed_forward = (stem + "intermediate.dense", stem + "output.dense")
        norms = (stem + "attention.output.LayerNorm", stem + "output.LayerNorm")
        attention = (stem + "attention.self", stem + "attention.output.dense")
        for name, parts in (("feed_forward", feed_forward), ("norms", norms), ("attention", attention)):
            assert result.parts[name][layer] == pytest.approx(change(*parts), rel=1e-9)
    assert set(result.outside) == {
        *("embeddings.word", "embeddings.position", "embeddings.token_type", "embeddings.norm", "pooler")
    }
    assert result.outside["embeddings.word"] == pytest.approx(change("word_embeddings"), rel=1e-9)
    assert result.outside["pooler"] == pytest.approx(change("pooler"), rel=1e-9)


@pytest.mark.parametrize("stem", ["Roberta", "DistilBert", "Electra"])
def test_every_family_is_compared(tmp_path: Path, stem: str) -> None:
    made(tmp_path / "a", stem)
    result = hs.compare(tmp_path / "a", tmp_path / "a")
    assert not result.differs
    assert result.qk.shape == (3, 4)


def test_a_checkpoint_is_the_same_as_itself() -> None:
    result = hs.compare("-", hs.open(), TEXTS)
    assert not result.differs
    assert "Nothing differs" in repr(result)
    assert all((named.array == 0).all() for named in (*result.weights.values(), *result.parts.values()))
    assert set(result.outside.values()) == {0.0}
    assert all((np.nan_to_num(change.array) == 0).all() for change in result.statistics.values())
    assert result.strongest_statistic() is None


def test_a_planted_change_in_one_head_is_found(tmp_path: Path) -> None:
    d_head = hs.open().anatomy.known().d_head
    head = slice(2 * d_head, 3 * d_head)
    result = hs.compare("-", edited(tmp_path / "b", {QUERY: scaled(head, 1.5)}))
    assert result.strongest(1) == [(1, 2)]
    assert result.qk[1, 2] == pytest.approx(0.5, rel=1e-3)  # stored in half precision
    assert np.count_nonzero(result.qk) == 1
    assert np.count_nonzero(result.ov) == 0
    assert repr(result).splitlines()[1].startswith("What changed most: layer 1, head 2, its QK by 50")


def test_a_head_in_another_basis_is_the_same_head(tmp_path: Path) -> None:
    """W_Q M and W_K M^-T, biases too, for an invertible M: the weights differ, the head does not."""
    sizes = hs.open().anatomy.known()
    head = slice(sizes.d_head, 2 * sizes.d_head)
    basis = np.random.default_rng(0).normal(size=(sizes.d_head, sizes.d_head)) + 9 * np.eye(sizes.d_head)

    def turned(array: np.ndarray, by: np.ndarray) -> np.ndarray:
        array = array.astype(np.float64)
        array[head] = by @ array[head]
        return array

    turns = {"query": partial(turned, by=basis.T), "key": partial(turned, by=np.linalg.inv(basis))}
    names = {
        f"encoder.layer.1.attention.self.{part}.{kind}": turns[part] for part in turns for kind in ("weight", "bias")
    }
    result = hs.compare("-", edited(tmp_path / "b", names), TEXTS)
    assert result.parts["attention"][1] > 0.05  # parameter by parameter a good part of the layer moved
    assert result.qk.max() < 1e-6
    assert result.weights["qk_bias"].max() < 1e-6
    for change in result.statistics.values():
        assert (np.nan_to_num(np.abs(change.array)) < 1e-3).all()


def test_statistics_are_each_models_own_and_intervals_are_paired(tmp_path: Path) -> None:
    folder = edited(tmp_path / "b", {QUERY: scaled(slice(None), 1.3)})
    result = hs.compare("-", folder, TEXTS, statistics=["entropy", "previous", "other_sentence"])
    values = [
        np.stack([model.trace(text).statistics("entropy")["entropy"].array.astype(np.float64) for text in TEXTS])
        for model in (hs.open(), hs.open(folder))
    ]
    change = result.statistics["entropy"]
    np.testing.assert_allclose(change.a, values[0].mean(0), rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(change.b, values[1].mean(0), rtol=1e-4, atol=2e-6)
    apart = values[1] - values[0]
    np.testing.assert_allclose(change, apart.mean(0), rtol=1e-4, atol=2e-6)
    half = 4.303 * apart.std(0, ddof=1) / np.sqrt(3)  # Student's t, 2 degrees of freedom: a printed table
    np.testing.assert_allclose(change.high, apart.mean(0) + half, rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(change.low, apart.mean(0) - half, rtol=1e-4, atol=2e-6)
    assert np.isnan(result.statistics["other_sentence"]).all()
    assert not change.sure()[0].any()  # layer 0 comes before the change
    row = result.rows()[5]
    assert (row["layer"], row["head"], row["entropy_b"]) == (1, 1, change.b[1, 1])
    assert "entropy" in repr(change)


def test_documents_are_cut_and_one_gives_no_interval() -> None:
    result = hs.compare("-", "-", [" ".join(TEXTS)], max_length=8, statistics="entropy")
    assert any("cut at 8 tokens: 1 of 1" in note for note in result.notes)
    assert any("no interval" in note for note in result.notes)
    assert np.isnan(result.statistics["entropy"].low).all()


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"num_hidden_layers": 2}, ["layers 3 and 2"]),
        ({"num_attention_heads": 2}, ["heads 4 and 2"]),
        ({"hidden_size": 16, "intermediate_size": 20}, ["d_model 32 and 16", "d_ffn 48 and 20"]),
        ({"stem": "Roberta"}, ["family bert and roberta"]),
    ],
)
def test_another_shape_or_family_is_refused_by_what_differs(
    tmp_path: Path, config: dict[str, Any], names: list[str]
) -> None:
    made(tmp_path / "a", "Bert")
    made(tmp_path / "b", **{"stem": "Bert", **config})
    with pytest.raises(InputError) as error:
        hs.compare(tmp_path / "a", tmp_path / "b")
    assert all(name in error.value.found for name in names)


def test_a_vocabulary_that_grew_is_left_out_and_said(tmp_path: Path) -> None:
    made(tmp_path / "a", "Bert")
    made(tmp_path / "b", "Bert", vocab_size=63)
    result = hs.compare(tmp_path / "a", tmp_path / "b")
    assert result.left_out == {"embeddings.word": "shapes (60, 32) and (63, 32)"}
    assert "embeddings.word is not compared" in result.notes[0]
    assert result.differs


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Linear can't be opened"):
        hs.compare(torch.nn.Linear(2, 2), "-")
    with pytest.raises(InputError, match="statistics need texts"):
        hs.compare("-", "-", statistics="entropy")
    with pytest.raises(InputError, match=r"without texts there is nothing to cut(.|\n)*where: max_length"):
        hs.compare("-", "-", max_length=8)
    with pytest.raises(InputError, match="no document"):
        hs.compare("-", "-", [" "])
    with pytest.raises(InputError, match="a text is not a corpus"):
        hs.compare("-", "-", "one line\nand another")
    broken = edited(tmp_path / "nan", {KEY: scaled(slice(0, 1), np.nan)})
    with pytest.raises(CheckpointError, match="holds NaN"):
        hs.compare("-", broken)


def test_two_surveys_are_joined_by_head(tmp_path: Path) -> None:
    folder = edited(tmp_path / "b", {QUERY: scaled(slice(None), 1.5)})
    surveys = [
        hs.survey(model, TEXTS, out=tmp_path / f"survey-{at}", statistics=names, report=False)
        for at, (model, names) in enumerate((("-", ["entropy", "first"]), (str(folder), ["entropy", "previous"])))
    ]
    result = hs.compare(*surveys)
    assert list(result.statistics) == ["entropy"]
    for of_texts in ({"corpus": TEXTS}, {"statistics": "entropy"}, {"max_length": 8}):
        with pytest.raises(InputError, match="over their corpora already"):
            hs.compare(*surveys, **of_texts)
    change = result.statistics["entropy"]
    np.testing.assert_allclose(change, surveys[1]["entropy"] - surveys[0]["entropy"])
    assert (change[0] == 0).all()
    assert result.strongest(1)[0][0] > 0
    assert "in the surveys" in repr(result)
    assert {"only one survey has first", "only one survey has previous"} == set(result.notes)
    with pytest.raises(InputError, match="no weights"):
        result.qk
    same = hs.compare(tmp_path / "survey-0", surveys[0])
    assert not same.differs
    assert "Nothing differs" in repr(same)
    with pytest.raises(InputError, match="a survey can't be compared with a checkpoint"):
        hs.compare(surveys[0], "-")
    other = hs.survey(str(small_bert(tmp_path / "small")), TEXTS, statistics="entropy", report=False)
    with pytest.raises(InputError, match="4 layers of 4 heads and 2 layers of 2 heads"):
        hs.compare(surveys[0], other)


def test_weights_and_surveys_are_compared_without_torch(tmp_path: Path) -> None:
    names = [str(finished(tmp_path / name)) for name in ("a", "b")]
    code = f"import headscope as hs; hs.compare('-', '-', ['A cat.']); print(hs.compare(*map(hs.Survey, {names})))"
    assert imported(code, ["torch"]) == []


HEADS, D_HEAD, D_MODEL = 3, 5, 17


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(HEADS, D_HEAD, D_MODEL))


@pytest.mark.parametrize("step", [1.0, 1e-2, 1e-5, 1e-9])
def test_the_change_of_a_product_is_that_of_the_full_matrices(step: float) -> None:
    left, right = rows(0), rows(1)
    new_left, new_right = left + step * rows(2), right + step * rows(3)
    found = product_change(left, right, new_left, new_right)
    whole, new = (np.einsum("hdm,hdn->hmn", *pair) for pair in ((left, right), (new_left, new_right)))
    wanted = np.linalg.norm(new - whole, axis=(1, 2)) / np.linalg.norm(whole, axis=(1, 2))
    # The full matrices lose digits where the step is small: B - A is rounded at 1e-16 of A.
    np.testing.assert_allclose(found, wanted, rtol=1e-12 + 1e-15 / step)


def test_what_came_from_nothing_changed_without_bound() -> None:
    zero, some = np.zeros((1, D_HEAD, D_MODEL)), rows(0)[:1]
    assert product_change(zero, zero, some, some) == np.inf
    assert relative(np.zeros((2, 3)), np.array([[0.0, 0, 0], [0, 1, 0]])).tolist() == [0, np.inf]
    np.testing.assert_allclose(relative(np.array([[3.0, 4.0]]), np.array([[3.0, 5.0]])), [0.2])


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bundled model with layer 1, head 2 changed."""
    return str(edited(tmp_path_factory.mktemp("models") / "b", {QUERY: scaled(slice(96, 144), 1.5)}))


run = partial(commands.run, "compare")


def test_the_screen_fits_eighty_columns(other: str, tmp_path: Path) -> None:
    corpus = tmp_path / "texts.jsonl"
    corpus.write_text("".join(json.dumps({"body": line}) + "\n" for line in TEXTS), encoding="utf-8")
    lines = run("-", other, corpus, "--field", "body", "--top", "3").stdout.splitlines()
    assert max(width(line) for line in lines if not line.startswith("next")) <= 80


def test_tables_hold_what_python_has(other: str) -> None:
    rows = list(csv.DictReader(io.StringIO(run("-", other, "--csv").stdout)))
    assert len(rows) == 16
    assert [float(row["qk"]) for row in rows] == hs.compare("-", other).qk.ravel().tolist()
    assert "entropy_a" not in rows[0]
    (most,) = csv.DictReader(io.StringIO(run("-", other, "--csv", "--top", "1").stdout))
    assert (most["layer"], most["head"]) == ("1", "2")
    lines = run("-", other, "--markdown").stdout.splitlines()
    assert len(lines) == 2 + 16
    assert lines[0].startswith("| layer | head | change | qk | ov |")


def test_a_change_outside_of_heads_is_named(tmp_path: Path) -> None:
    edits = {
        "word_embeddings.weight": scaled(slice(None), 1.25),
        "encoder.layer.3.output.LayerNorm.bias": scaled(slice(None), 2.0),
    }
    folder = str(edited(tmp_path / "b", edits))
    text = " ".join(run("-", folder).stdout.split())
    assert "No head's QK or OV changed; what changed: embeddings.word, norms." in text
    assert "embeddings.word 25.00%" in text
    assert "layer 0 ·" not in text
    found = json.loads(run("-", folder, "--json").stdout)
    assert found["outside"]["embeddings.word"] == pytest.approx(0.25, rel=1e-3)
    assert [row["norms"] > 0 for row in found["layers"]] == [False, False, False, True]


def test_a_page_is_written(other: str, tmp_path: Path) -> None:
    page = tmp_path / "what.html"
    assert "wrote" in run("-", other, "--html", str(page)).stderr
    text = page.read_text(encoding="utf-8")
    assert "What changed most" in text
    assert "<script" not in text


# Two surveys joined by head: statistics, labels and effects, each against a join written out here.


SETTINGS: dict[str, Any] = {"length": 32, "threads": 1, "report": False, "statistics": ["entropy", "first"]}
SENTENCES = [
    f"The {noun} {verb} the {other}, and then the {noun} {verb} it again."
    for noun, verb, other in [
        *(("horse", "saw", "man"), ("child", "took", "box"), ("man", "left", "house"), ("girl", "had", "book")),
        *(("king", "knew", "horse"), ("boy", "found", "child"), ("dog", "heard", "girl"), ("book", "made", "king")),
    ]
]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Survey, Survey]:
    """Surveys of heads that do known things, and of those with two heads changed, with labels."""
    folder = tmp_path_factory.mktemp("known")
    corpus = known_treebank(folder / "known.conllu", documents=10)
    noise = noise_scores(1, 13)
    first = [*wanted_scores()[:-1], noise[0]]
    other = [noise[0], first[2], *first[2:]]  # head 0 no longer does anything, head 1 looks further right
    surveys = []
    for name, scores in (("a", [first, noise[1:]]), ("b", [other, noise[1:]])):
        (folder / name).mkdir()
        model = known_heads(folder / name, scores)
        surveys.append(hs.survey(str(model), corpus, out=folder / f"survey-{name}", labels=True, **SETTINGS))
    return surveys[0], surveys[1]


@pytest.fixture(scope="module")
def silenced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Survey, Survey]:
    """Surveys of the bundled model and of a changed one, with effects."""
    folder = tmp_path_factory.mktemp("silenced")
    other = edited(folder / "b", {"encoder.layer.1.attention.self.value.weight": scaled(slice(96, 144), 3.0)})
    return tuple(
        hs.survey(model, SENTENCES, out=folder / f"survey-{at}", effects=len(SENTENCES), **SETTINGS)
        for at, model in enumerate(("-", str(other)))
    )


def rows_of(survey: Survey, name: str) -> dict[tuple[int, int], dict[str, Any]]:
    rows = parquet.read_table(survey.folder / f"{name}.parquet").to_pylist()
    return {(row["layer"], row["head"]): row for row in rows}


def test_labels_are_joined_by_head(labelled: tuple[Survey, Survey]) -> None:
    result = hs.compare(*labelled)
    first, other = (rows_of(survey, "labels") for survey in labelled)
    assert [(row["layer"], row["head"]) for row in result.labels] == sorted(first)
    for row in result.rows():
        place = (row["layer"], row["head"])
        assert row["label_changed"] == (first[place]["label"] != other[place]["label"])
        for side, rows in (("a", first), ("b", other)):
            assert row[f"label_{side}"] == rows[place]["label"]
            for name in ("kind", "score", "low", "high", "baseline", "coverage", "note"):
                assert row[f"label_{name}_{side}"] == rows[place][name]
    rows = [row for row in result.labels if row["label_changed"]]
    changed = {(row["layer"], row["head"]): (row["label_a"], row["label_b"]) for row in rows}
    assert changed[0, 0] == ("the previous word", "none")
    assert changed[0, 1] == ("the next word", "the word 2 ahead")
    assert {place for place in changed if place[0] == 0} == {(0, 0), (0, 1)}
    assert f"{len(changed)} of 24 heads have another label" in repr(result)
    assert result.effects is None
    assert not any("not compared" in note for note in result.notes)


def test_labels_of_one_survey_alone_are_named(labelled: tuple[Survey, Survey], tmp_path: Path) -> None:
    corpus = known_treebank(tmp_path / "known.conllu", documents=2)
    (tmp_path / "model").mkdir()
    plain = hs.survey(str(known_heads(tmp_path / "model")), corpus, out=tmp_path / "plain", **SETTINGS)
    result = hs.compare(labelled[0], plain)
    assert result.labels == []
    assert "labels are not compared: the second survey has none (--labels)" in result.notes
    assert "labels are not compared: the first survey has none (--labels)" in hs.compare(plain, labelled[0]).notes
    assert "label_a" not in result.rows()[0]
    assert labelled[0].table().facts["label"][0, 0] == "the previous word"


def test_a_survey_and_itself_have_the_same_labels(labelled: tuple[Survey, Survey]) -> None:
    same = hs.compare(labelled[0], labelled[0])
    assert not same.differs
    assert "2 statistics, labels of 24 heads are the same in both" in repr(same)


def test_effects_are_joined_with_their_intervals(silenced: tuple[Survey, Survey]) -> None:
    result = hs.compare(*silenced)
    first, other = (rows_of(survey, "effects") for survey in silenced)
    for row in result.rows():
        place = (row["layer"], row["head"])
        for side, rows in (("a", first), ("b", other)):
            assert row[f"effect_{side}"] == rows[place]["change"]
            assert row[f"effect_{side}_low"] == rows[place]["low"]
            assert row[f"effect_{side}_high"] == rows[place]["high"]
        assert row["effect_change"] == pytest.approx(other[place]["change"] - first[place]["change"])
    assert (result.effects.measure.meaning, result.effects.measure.unit) == (
        first[0, 0]["output"],
        first[0, 0]["unit"],
    )
    assert result.effects[1, 2] != 0
    assert "The effect of silencing a head changed most in layer" in repr(result)


def test_a_change_of_effects_has_an_interval_paired_by_window(silenced: tuple[Survey, Survey]) -> None:
    """Every resample drawn in a loop."""
    effects = hs.compare(*silenced).effects
    rounds = [np.load(survey.folder / "effects/round-00000.npy") for survey in silenced]
    apart = (rounds[1][:, 1:] - rounds[1][:, :1]) - (rounds[0][:, 1:] - rounds[0][:, :1])
    draws = np.random.Generator(np.random.PCG64(0)).integers(0, len(SENTENCES), size=(2000, len(SENTENCES)))
    windows = parquet.read_table(silenced[0].folder / "sample.parquet").to_pylist()
    windows.sort(key=lambda window: (window["number"] % 2, window["rank"]))
    place = {window["number"]: at for at, window in enumerate(windows)}  # every document is one window
    means = np.array([np.mean([apart[place[document]] for document in draw], axis=0) for draw in draws])
    np.testing.assert_allclose(effects.low.ravel(), np.percentile(means, 2.5, axis=0), atol=1e-12)
    np.testing.assert_allclose(effects.high.ravel(), np.percentile(means, 97.5, axis=0), atol=1e-12)
    np.testing.assert_allclose(effects.array.ravel(), apart.mean(0), atol=1e-12)


def test_effects_that_cannot_be_paired_have_no_interval(silenced: tuple[Survey, Survey], tmp_path: Path) -> None:
    other = hs.survey("-", SENTENCES, out=tmp_path / "few", effects=3, **SETTINGS)
    result = hs.compare(silenced[0], other)
    assert result.effects.low is None
    assert np.isnan(result.rows()[0]["effect_low"])
    assert np.isfinite(result.effects.array).all()
    assert any("the surveys silenced heads in other windows" in note for note in result.notes)
    mean = hs.survey("-", SENTENCES, out=tmp_path / "mean", effects=3, effects_method="mean", **SETTINGS)
    result = hs.compare(other, mean)
    assert result.effects is None
    assert any("effects are not compared: one is of the" in note for note in result.notes)
    (other.folder / "effects/round-00000.npy").unlink()
    assert any("few/effects is missing" in note for note in hs.compare(other, silenced[0]).notes)
    damaged = other.folder / "sample.parquet"
    for name in ("effects/round-00000.npy", "sample.parquet"):
        (other.folder / name).write_bytes((mean.folder / name).read_bytes())
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"sample\.parquet: its bytes do not match"):
        hs.compare(other, silenced[0])


def test_screen_json_and_parquet_have_both(silenced: tuple[Survey, Survey], tmp_path: Path) -> None:
    table = tmp_path / "what.parquet"
    page = tmp_path / "what.html"
    folders = [str(survey.folder) for survey in silenced]
    done = commands.run("compare", *folders, "--parquet", table, "--html", page)
    assert "effects of silencing a head on the" in done.stdout
    assert "with 95 % intervals" in page.read_text(encoding="utf-8")
    result = hs.compare(*silenced)
    assert parquet.read_table(table).to_pylist() == [
        {name: None if isinstance(value, float) and np.isnan(value) else value for name, value in row.items()}
        for row in result.rows()
    ]
    found = answer("compare", *folders)
    first = rows_of(silenced[0], "effects")[0, 0]
    assert found["effects"] == {"output": first["output"], "unit": first["unit"]}
    assert found["heads"][6]["effect_a_low"] == result.rows()[6]["effect_a_low"]
