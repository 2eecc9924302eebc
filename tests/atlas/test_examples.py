"""Examples and the lines of a head's page: exact however the corpus is cut, with their text, the same when resumed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from surveying import SENTENCES, TREEBANK, Naive, bundled_eager, numbers_of, observed

import headscope as hs
from headscope.atlas.examples import BESIDE
from headscope.atlas.labels.evidence import STRONGEST, TWICE, capped, pairs_of
from headscope.atlas.observe import DRAWN
from headscope.atlas.shapes import REACH
from headscope.errors import InputError


def naive_pairs(naive: Naive) -> dict[tuple[int, int], list[tuple[float, str, int, int, int]]]:
    """Each head's words with their choice: strength, document, window, query, key; the strongest first."""
    found: dict[tuple[int, int], list[tuple[float, str, int, int, int]]] = {}
    for (name, number), (_, looks) in naive.items():
        sizes = np.array([len(tokens) for tokens in looks.of])
        for layer, head, query in np.ndindex(len(looks.words), len(looks.words[0]), len(sizes)):
            to = looks.words[layer][head, query]
            others = np.delete(np.arange(len(sizes)), query)
            even = to[others].sum() * sizes[others] / sizes[others].sum()
            best = int(np.argmax(to[others] - even))
            strength = to[others[best]] - even[best] if to[others[best]] >= 2 * even[best] else 0.0
            row = (strength, name, number, query, int(others[best]))
            found.setdefault((layer, head), []).append(row)
    return {place: sorted(rows, key=lambda row: (-row[0], row[1:])) for place, rows in found.items()}


def test_the_strongest_pairs(treebank_survey: hs.Survey, naive: Naive) -> None:
    """The lists hold the strongest pairs of each half of the documents, as loops over eager weights find them."""
    assert len(treebank_survey.manifest["parts"]) > 3
    heads = [(layer, head) for layer, row in enumerate(treebank_survey.manifest["model"]["heads"]) for head in row]
    rows = pairs_of(observed("-", TREEBANK, **SENTENCES)).to_pylist()
    pairs, numbers = naive_pairs(naive), numbers_of(treebank_survey)
    for cell, place in enumerate(heads):
        for half in (0, 1):
            expected = [row for row in pairs[place] if numbers[row[1]] % 2 == half and row[0] > 1e-6]
            forms = [tuple(naive[row[1], row[2]][0][0][at].casefold() for at in row[3:]) for row in expected]
            expected = [expected[at] for at in capped(forms)][:STRONGEST]
            own = [row for row in rows if row["list"] == half and row["cell"] == cell and row["strength"] > 1e-6]
            assert len(own) == pytest.approx(len(expected), abs=2)  # of words at just twice the even share
            count = min(len(own), len(expected))
            strengths = [row["strength"] for row in own]
            assert np.allclose(strengths[:count], [row[0] for row in expected[:count]], atol=2e-4)


def test_examples_are_varied_and_have_their_text(treebank_survey: hs.Survey, naive: Naive) -> None:
    survey = treebank_survey
    assert len(survey.examples) == sum(len(row) for row in survey.manifest["model"]["heads"])
    drawn = set()
    for place, examples in survey.examples.items():
        best = [example for example in examples if example.kind == "best"]
        random = [example for example in examples if example.kind == "random"]
        assert len(best) <= 4
        assert len(random) == DRAWN
        drawn.add(tuple((example.document, example.window, example.query) for example in random))
        assert [example.rank for example in best] == list(range(len(best)))
        assert len({(example.document, example.window) for example in best}) == len(best)
        pairs = Counter((example.query_word.casefold(), example.key_word.casefold()) for example in best)
        assert max(pairs.values(), default=0) <= TWICE
        for example in examples:
            assert (example.layer, example.head) == place
            of = naive[example.document, example.window][0][0]
            assert (of[example.query], of[example.key]) == (example.query_word, example.key_word)
            first, second = sorted((example.query, example.key))
            assert example.before.split() == " ".join(of[max(0, first - 8) : first]).split()
            assert example.after.split() == " ".join(of[second + 1 : second + 9]).split()
            if "…" not in example.between:
                assert example.between.split() == " ".join(of[first + 1 : second]).split()
            assert example.key_word in str(example)
    assert len(drawn) == 1  # the same for every head
    with pytest.raises(InputError, match=r"no examples of \(99, 0\)"):
        _ = survey.examples[99, 0]
    assert (99, 0) not in survey.examples


def test_parts_do_not_matter(treebank_survey: hs.Survey, tmp_path: Path) -> None:
    """Cut into other parts, the examples are the same."""
    other = hs.survey("-", TREEBANK, out=tmp_path / "out", **{**SENTENCES, "part_size": 10**6, "batch_tokens": 200})
    assert len(other.manifest["parts"]) == 1
    ours, theirs = treebank_survey.read("examples").to_pylist(), other.read("examples").to_pylist()
    for one, two in zip(ours, theirs, strict=True):
        assert one.pop("weight") == pytest.approx(two.pop("weight"), abs=1e-6)
    same = [one == two for one, two in zip(ours, theirs, strict=True)]
    assert np.mean(same) > 0.99  # weights that are as good as equal may change places


def test_a_line_has_the_weights_of_the_word_that_looks(treebank_survey: hs.Survey, naive: Naive) -> None:
    tokenizer = bundled_eager()[1]
    examples, lines = treebank_survey.read("examples").to_pylist(), treebank_survey.lines.to_pylist()
    assert [[row[name] for name in ("layer", "head", "kind", "rank")] for row in lines] == [
        [row[name] for name in ("layer", "head", "kind", "rank")] for row in examples
    ]
    for example, line in zip(examples, lines, strict=True):
        (words, _, _), looks = naive[example["document"], example["window"]]
        query, key = example["query"], example["key"]
        row = looks.words[line["layer"]][line["head"], query]
        shown = [at for at in range(len(row)) if min(abs(at - query), abs(at - key)) <= BESIDE]
        assert line["numbers"] == shown
        assert line["words"] == [words[at] for at in shown]
        np.testing.assert_allclose(line["weights"], row[shown], atol=2e-6)
        assert line["weights"][shown.index(key)] == pytest.approx(example["weight"], abs=2e-6)
        tokens = looks.tokens[line["layer"]][line["head"], looks.of[query]].mean(0)
        assert line["first"] == pytest.approx(tokens[0], abs=2e-6)
        assert line["sep"] == pytest.approx(tokens[-1], abs=2e-6)
        assert line["special"] == pytest.approx(tokens[0] + tokens[-1], abs=2e-6)
        assert line["ids"] == looks.ids
        assert (line["first_token"], line["sep_token"]) == ("[CLS]", "[SEP]")
        assert (line["query_token"], line["key_token"]) == (looks.of[query][0], looks.of[key][0])
        assert line["text"] is None or tokenizer(line["text"])["input_ids"] == line["ids"]
    assert any(line["text"] is not None for line in lines)


def test_distributions_are_those_of_loops(treebank_survey: hs.Survey, naive: Naive) -> None:
    found = {
        (row["layer"], row["head"], row["distance"]): (row["value"], row["count"])
        for row in treebank_survey.distributions.to_pylist()
    }
    for (layer, head, distance), (value, count) in found.items():
        values = [np.diagonal(looks.words[layer][head], distance) for _, looks in naive.values()]
        assert count == sum(map(len, values))
        assert value == pytest.approx(np.concatenate(values).mean(), abs=2e-6)
    assert set(found) == {(*at, distance) for at in np.ndindex(4, 4) for distance in range(-REACH, REACH + 1)}


def test_every_head_s_relations_are_those_of_loops(treebank_survey: hs.Survey, naive: Naive) -> None:
    rows = treebank_survey.relations.to_pylist()
    assert {row["way"] for row in rows} == {"up", "down"}
    for row in rows:
        hits = count = 0
        for (_, heads, relations), looks in naive.values():
            weights = looks.words[row["layer"]][row["head"]].copy()
            np.fill_diagonal(weights, -1)
            to = weights.argmax(-1)
            pairs = [
                (word, head - 1)
                for word, (head, relation) in enumerate(zip(heads, relations, strict=True))
                if relation == row["relation"] and head
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
