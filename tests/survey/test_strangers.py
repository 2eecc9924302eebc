"""Corpora that a stranger may bring: another language, one document, text that the tokenizer changes or drops."""

from __future__ import annotations

from pathlib import Path

import pytest
from surveying import OPTIONS, screen_of

import headscope as hs
from headscope.errors import InputError

ATLAS = {
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
    survey = hs.survey("-", tmp_path / "ja.conllu", **ATLAS)
    counts = survey.manifest["counts"]
    assert counts["unknown"] > 0.3 * counts["tokens"]
    assert f"the tokenizer doesn't know {counts['unknown'] / counts['tokens']:.0%} of the tokens" in screen_of(survey)


def test_text_that_the_tokenizer_changes(tmp_path: Path) -> None:
    """Accents are folded, zero-width characters vanish: such words have no tokens and take part in no pair."""
    words = ["Cafe\u0301", "\u200b", "isn't", "\u00ad", "[MASK]", "."]
    sentence = tree(words, [3, 3, 0, 3, 3, 3], ["nsubj", "dep", "root", "dep", "obj", "punct"])
    (tmp_path / "odd.conllu").write_text("\n\n".join(["# newdoc\n" + sentence] * 10) + "\n\n", encoding="utf-8")
    survey = hs.survey("-", tmp_path / "odd.conllu", **ATLAS)
    assert survey.manifest["counts"]["documents"] == 10
    seen = {
        word for of in survey.examples.values() for example in of for word in (example.query_word, example.key_word)
    }
    assert seen <= {"Cafe\u0301", "isn't", "[MASK]", "."}
    assert "the tokenizer doesn't know" not in screen_of(survey)


def test_one_document_and_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("A cat sat on the mat, and the dog slept. " * 20, encoding="utf-8")
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    survey = hs.survey("-", tmp_path, **ATLAS)
    assert set(survey.labels["note"].to_pylist()) == {"fewer than 4 documents in a half"}
    assert "16 heads without a label: fewer than 4 documents in a half" in screen_of(survey)
    assert "--set pieces=20" in screen_of(survey)
    assert survey.removal["cost_held_out"].null_count == len(survey.removal)
    assert "where they were chosen" in screen_of(survey)
    (tmp_path / "empty.conllu").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="it has no sentence") as error:
        hs.survey("-", tmp_path / "empty.conllu", **ATLAS)
    assert "treebank" in str(error.value)
