"""The tables behind a head's page, against loops over transformers' eager weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from surveying import ALICE, SENTENCES, TREEBANK
from transformers import AutoModel, AutoTokenizer

import headscope as hs
from headscope.atlas.lines import AROUND
from headscope.atlas.shapes import REACH
from headscope.checkpoint.resolve import BUNDLED


@pytest.fixture(scope="module")
def survey(treebank_survey: hs.Survey) -> hs.Survey:
    return treebank_survey


class Naive:
    """Every sentence's words, tree and word-to-word weights."""

    def __init__(self) -> None:
        self.model = AutoModel.from_pretrained(BUNDLED, attn_implementation="eager").eval()
        self.tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
        self.sentences: list[dict[str, Any]] = []
        document, number = 0, 0
        for block in TREEBANK.read_text(encoding="utf-8").strip().split("\n\n"):
            if "# newdoc" in block:
                document, number = document + 1, 0
            rows = [line.split("\t") for line in block.splitlines() if not line.startswith("#")]
            rows = [row for row in rows if row[0].isdigit()]
            words = [row[1] for row in rows]
            encoded = self.tokenizer(words, is_split_into_words=True, return_tensors="pt")
            with torch.no_grad():
                tokens = [
                    attention[0].double().numpy()
                    for attention in self.model(**encoded, output_attentions=True).attentions
                ]
            of = [[token for token, word in enumerate(encoded.word_ids()) if word == at] for at in range(len(words))]
            self.sentences.append(
                {
                    "document": f"{TREEBANK.name}#{document}",
                    "number": number,
                    "words": words,
                    "of": of,
                    "ids": encoded["input_ids"][0].tolist(),
                    "tokens": tokens,
                    "maps": [[word_map(head, of) for head in layer] for layer in tokens],
                    "heads": [int(row[6]) - 1 for row in rows],
                    "relations": [row[7] for row in rows],
                }
            )
            number += 1


def word_map(weights: np.ndarray, of: list[list[int]]) -> np.ndarray:
    """From word to word: the sum over the key's tokens, the mean over the query's."""
    return np.array([[np.mean([sum(weights[i, j] for j in key) for i in query]) for key in of] for query in of])


@pytest.fixture(scope="module")
def naive() -> Naive:
    return Naive()


def test_a_line_has_the_weights_of_the_word_that_looks(survey: hs.Survey, naive: Naive) -> None:
    sentences = {(sentence["document"], sentence["number"]): sentence for sentence in naive.sentences}
    examples, lines = survey.examples.table.to_pylist(), survey.lines.to_pylist()
    assert [[row[name] for name in ("layer", "head", "kind", "rank")] for row in lines] == [
        [row[name] for name in ("layer", "head", "kind", "rank")] for row in examples
    ]
    for example, line in zip(examples, lines, strict=True):
        sentence = sentences[example["document"], example["window"]]
        query, key = example["query"], example["key"]
        row = sentence["maps"][line["layer"]][line["head"]][query]
        shown = [at for at in range(len(row)) if min(abs(at - query), abs(at - key)) <= AROUND]
        assert line["numbers"] == shown
        assert line["words"] == [sentence["words"][at] for at in shown]
        np.testing.assert_allclose(line["weights"], row[shown], atol=2e-6)
        assert line["weights"][shown.index(key)] == pytest.approx(example["weight"], abs=2e-6)
        tokens = sentence["tokens"][line["layer"]][line["head"]][sentence["of"][query]].mean(0)
        assert line["first"] == pytest.approx(tokens[0], abs=2e-6)
        assert line["sep"] == pytest.approx(tokens[-1], abs=2e-6)
        assert line["special"] == pytest.approx(tokens[0] + tokens[-1], abs=2e-6)
        assert line["ids"] == sentence["ids"]
        assert (line["first_token"], line["sep_token"]) == ("[CLS]", "[SEP]")
        assert (line["query_token"], line["key_token"]) == (sentence["of"][query][0], sentence["of"][key][0])
        assert line["text"] is None or naive.tokenizer(line["text"])["input_ids"] == line["ids"]
    assert any(line["text"] is not None for line in lines)


def test_distributions_are_those_of_loops(survey: hs.Survey, naive: Naive) -> None:
    found = {
        (row["layer"], row["head"], row["distance"]): (row["value"], row["count"])
        for row in survey.distributions.to_pylist()
    }
    for layer in range(len(naive.sentences[0]["maps"])):
        for head in range(len(naive.sentences[0]["maps"][layer])):
            by_distance: dict[int, list[float]] = {distance: [] for distance in range(-REACH, REACH + 1)}
            for sentence in naive.sentences:
                weights = sentence["maps"][layer][head]
                n = len(weights)
                for distance, values in by_distance.items():
                    values += [weights[i, i + distance] for i in range(n) if 0 <= i + distance < n]
            for distance, values in by_distance.items():
                value, count = found[layer, head, distance]
                assert count == len(values)
                assert value == pytest.approx(np.mean(values), abs=2e-6)


def test_every_head_s_relations_are_those_of_loops(survey: hs.Survey, naive: Naive) -> None:
    rows = survey.relations.to_pylist()
    assert {row["way"] for row in rows} == {"up", "down"}
    for row in rows:
        hits = count = 0
        for sentence in naive.sentences:
            weights = sentence["maps"][row["layer"]][row["head"]].copy()
            np.fill_diagonal(weights, -1)
            to = weights.argmax(-1)
            pairs = [
                (word, head)
                for word, (head, relation) in enumerate(zip(sentence["heads"], sentence["relations"], strict=True))
                if relation == row["relation"] and head >= 0
            ]
            if row["way"] == "up":
                count += len(pairs)
                hits += sum(to[word] == head for word, head in pairs)
            else:
                looking = {head for _, head in pairs}
                count += len(looking)
                hits += sum((to[head], head) in pairs for head in looking)
        assert row["count"] == count
        assert row["score"] == pytest.approx(hits / count)
        assert row["low"] <= row["score"] <= row["high"]


def test_text_has_lines_too_and_the_bytes_repeat(tmp_path: Path) -> None:
    """Windows of running text, whose words are as the tokenizer cuts them."""
    surveys = [hs.survey("-", [ALICE[:1500], ALICE[3000:4000]], out=tmp_path / str(at), **SENTENCES) for at in (0, 1)]
    for name in ("lines", "distributions"):
        first, second = ((survey.folder / f"{name}.parquet").read_bytes() for survey in surveys)
        assert first == second
    for example, line in zip(surveys[0].examples.table.to_pylist(), surveys[0].lines.to_pylist(), strict=True):
        assert line["words"][line["numbers"].index(example["key"])] == example["key_word"]
        assert line["weights"][line["numbers"].index(example["key"])] == pytest.approx(example["weight"], abs=2e-6)
