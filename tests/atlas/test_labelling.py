"""Labels over surveys: heads built to do known things, models that learned nothing, corpora of strangers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pyarrow import parquet
from surveying import OPTIONS, contents, screen_of
from transformers import AutoTokenizer, BertConfig, BertModel

import headscope as hs
from headscope.errors import InputError
from headscope.results.schemas import LabelRow, columns
from known_heads import HEADS, VOCABULARY, known_heads, known_treebank

SEEDS = (314159, 265358, 979323)
ATLAS = {**OPTIONS, "statistics": "entropy", "labels": True, "examples": 5, "part_size": 20_000}


@pytest.fixture(scope="module")
def survey(known_survey: Path) -> hs.Survey:
    return hs.Survey(known_survey)


def test_known_heads(survey: hs.Survey) -> None:
    """Heads made to do something are labelled with it, or with nothing; of heads of noise little is said.

    Noise of this model is a table of positions and of eighteen words, so that some of it is what a label says: over
    treebanks from sixteen seeds, of none to two of its heads, 1.25 on average, however the sample is drawn.
    tests/atlas/test_describe.py has noise that is none.
    """
    rows = {(row["layer"], row["head"]): row for row in survey.labels.to_pylist()}
    labels = [rows[0, head]["label"] for head in range(HEADS)]
    assert labels[:3] == ["the previous word", "the next word", "the word 2 ahead"]
    assert labels[3].startswith("the same word elsewhere")
    assert labels[4] == "punctuation"
    assert labels[5:9] == ["none"] * 4  # the first token, [SEP], an even spread, the rest of the word
    assert labels[11] == "none"
    noise = [rows[1, head] for head in range(HEADS)]
    said = [row for row in noise if row["label"] != "none"]
    assert len(said) <= 2
    assert all(row["label"].startswith("in part") and row["low"] > row["baseline"] for row in said)


@pytest.mark.slow
def test_models_that_learned_nothing(tmp_path: Path) -> None:
    """Random weights, sharp and flat, over sentences with real trees: nothing may be said of any head."""
    tokenizer = known_heads(tmp_path)  # for its vocabulary
    treebank = known_treebank(tmp_path / "t.conllu", seed=SEEDS[0])
    for seed in SEEDS:
        torch.manual_seed(seed)
        scale = (0.02, 0.2, 0.6)[seed % 3]
        sizes = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 64}
        model = BertModel(BertConfig(vocab_size=len(VOCABULARY), initializer_range=scale, **sizes)).eval()
        survey = hs.survey(
            model, treebank, tokenizer=AutoTokenizer.from_pretrained(tokenizer), **{**ATLAS, "examples": 0}
        )
        assert set(survey.labels["label"].to_pylist()) == {"none"}


def test_columns(survey: hs.Survey) -> None:
    labels = survey.labels
    assert [(field.name, field.type) for field in labels.schema] == list(columns(LabelRow))
    for row in labels.to_pylist():
        clauses = len(row["query"])
        assert {len(row[name]) for name in ("key", "relation", "side")} == {clauses}
        assert (row["label"] == "none") == (row["score"] is None) == (clauses == 0)
        assert len(row["alone"]) == clauses
        if clauses:
            # a clause explains no more than all, and all no more than the sum of each
            assert 0 < min(row["alone"]) <= max(row["alone"]) <= row["score"] + 1e-12 <= sum(row["alone"]) + 2e-12
            assert row["low"] <= row["score"] + 1e-12 <= row["high"] + 2e-12
            assert row["coverage"] == round(100 * row["score"])
            assert row["baseline"] < row["score"]
            assert 0 <= row["stable"] <= clauses
    first, sep = labels.to_pylist()[5], labels.to_pylist()[6]
    assert first["first"] > 0.9 > 0.1 > first["sep"]
    assert sep["special"] == pytest.approx(sep["sep"], abs=0.01)
    assert sep["sep"] > 0.9
    assert labels.to_pylist()[8]["inner"] > 0.7
    assert {"labels.parquet", "examples.parquet"} <= set(survey.manifest["files"])


def test_without_a_treebank(tmp_path: Path) -> None:
    """Plain texts: the same rules but syntax; words as the tokenizer cuts them."""
    folder = tmp_path / "model"
    folder.mkdir()
    known_heads(folder)
    treebank = known_treebank(tmp_path / "t.conllu", documents=20)
    texts: list[str] = []
    for line in treebank.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            texts.append("")
        elif line:
            texts[-1] += line.split("\t")[1] + " "
    survey = hs.survey(folder, texts, out=tmp_path / "out", **ATLAS)
    labels = survey.labels["label"].to_pylist()
    assert labels[:3] == ["the previous word", "the next word", "the word 2 ahead"]
    assert labels[5:9] == ["none"] * 4
    with pytest.raises(InputError, match="the survey has no syntax"):
        _ = survey.syntax
    book = hs.survey(
        folder, ["\n\n".join(texts)], out=tmp_path / "book", pieces=20, **{**ATLAS, "max_document": 100_000}
    )
    assert book.manifest["counts"]["documents"] == 20
    assert book.manifest["settings"]["pieces"] == 20
    assert "pieces" not in survey.manifest["settings"]
    assert book.labels["label"].to_pylist()[:3] == labels[:3]


def test_nothing_changes_without_them(tmp_path: Path) -> None:
    """The statistics' files are the same with labels and without; without them there is no trace of them."""
    texts = ["Alice was beginning to get very tired.", "The cat sat on the mat."] * 5
    plain = hs.survey("-", texts, out=tmp_path / "plain", **OPTIONS)
    full = hs.survey("-", texts, out=tmp_path / "full", **{**OPTIONS, "labels": True, "examples": 2})
    of_both = [parquet.read_table(of.folder / "aggregates.parquet") for of in (plain, full)]
    assert of_both[0].replace_schema_metadata() == of_both[1].replace_schema_metadata()  # which says whose it is
    assert plain.windows().equals(full.windows())
    assert not [name for name in contents(plain.folder) if name.startswith(("sample", "labels", "examples", "lines"))]
    assert not {"labels", "examples"} & set(plain.manifest["settings"])
    with pytest.raises(InputError, match="the survey has no labels"):
        _ = plain.labels
    with pytest.raises(InputError, match="the survey has no examples"):
        _ = plain.examples


EVERYTHING = {
    **OPTIONS,
    "statistics": "entropy",
    "labels": True,
    "examples": 2,
    "effects": 3,
    "writes": 3,
    "part_size": 10**6,
}


def tree(words: list[str], heads: list[int], relations: list[str]) -> str:
    """A sentence of a treebank."""
    rows = zip(words, heads, relations, strict=True)
    return "\n".join(f"{at}\t{word}\t_\tNOUN\t_\t_\t{head}\t{of}\t_\t_" for at, (word, head, of) in enumerate(rows, 1))


def test_another_language(tmp_path: Path) -> None:
    """Surveyed, because the numbers are right; the screen asks whether that is what was meant."""
    sentence = tree(
        ["猫", "は", "魚", "を", "食べる", "。"], [5, 1, 5, 3, 0, 5], ["nsubj", "case", "obj", "case", "root", "punct"]
    )
    text = "\n\n".join(["# newdoc\n" + sentence, sentence] * 6) + "\n\n"
    (tmp_path / "ja.conllu").write_text(text, encoding="utf-8")
    survey = hs.survey("-", tmp_path / "ja.conllu", **EVERYTHING)
    counts = survey.manifest["counts"]
    assert counts["unknown"] > 0.3 * counts["tokens"]
    assert f"the tokenizer doesn't know {counts['unknown'] / counts['tokens']:.0%} of the tokens" in screen_of(survey)


def test_text_that_the_tokenizer_changes(tmp_path: Path) -> None:
    """Accents are folded, zero-width characters vanish: such words have no tokens and take part in no pair."""
    words = ["Cafe\u0301", "\u200b", "isn't", "\u00ad", "[MASK]", "."]
    sentence = tree(words, [3, 3, 0, 3, 3, 3], ["nsubj", "dep", "root", "dep", "obj", "punct"])
    (tmp_path / "odd.conllu").write_text("\n\n".join(["# newdoc\n" + sentence] * 10) + "\n\n", encoding="utf-8")
    survey = hs.survey("-", tmp_path / "odd.conllu", **EVERYTHING)
    assert survey.manifest["counts"]["documents"] == 10
    seen = {
        word for of in survey.examples.values() for example in of for word in (example.query_word, example.key_word)
    }
    assert seen <= {"Cafe\u0301", "isn't", "[MASK]", "."}
    assert "the tokenizer doesn't know" not in screen_of(survey)


def test_one_document_and_an_empty_one(tmp_path: Path) -> None:
    """From one document nothing is held out, so nothing is said."""
    (tmp_path / "one.txt").write_text("A cat sat on the mat, and the dog slept. " * 20, encoding="utf-8")
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    survey = hs.survey("-", tmp_path, **EVERYTHING)
    assert set(survey.labels["label"].to_pylist()) == {"none"}
    assert set(survey.labels["note"].to_pylist()) == {"fewer than 4 documents in a half"}
    assert "16 heads without a label: fewer than 4 documents in a half" in screen_of(survey)
    assert "--set pieces=20" in screen_of(survey)
    assert survey.removal["cost_held_out"].null_count == len(survey.removal)
    assert "where they were chosen" in screen_of(survey)
    (tmp_path / "empty.conllu").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="it has no sentence") as error:
        hs.survey("-", tmp_path / "empty.conllu", **EVERYTHING)
    assert "treebank" in str(error.value)
