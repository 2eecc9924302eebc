"""The rules of labels as a table: the guide shows it, every rule has a source, and pairs are explained as it says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch

from headscope._survey.labelling import Felt, explained
from headscope._survey.meaning import LEAST, ranks
from headscope._survey.pairs import FLAGS
from headscope._survey.rules import FAMILIES, FELT_WINDOWS, RULES, families_table, rules_table
from headscope._survey.sums import SUMS

GUIDE = Path(__file__).parents[2] / "docs" / "survey.md"


@pytest.mark.parametrize(
    ("start", "table"), [(r"\| label \| score \|", rules_table()), (r"\| family \| relations \|", families_table())]
)
def test_the_guide_shows_them(request: pytest.FixtureRequest, start: str, table: str) -> None:
    """The tables of docs/survey.md are written by `pytest --refresh-screens`."""
    text = GUIDE.read_text(encoding="utf-8")
    (kept,) = re.findall(rf"({start}.*?)\n\n", text, re.DOTALL)
    if request.config.getoption("--refresh-screens"):
        GUIDE.write_text(text.replace(kept, table), encoding="utf-8")
    else:
        assert kept == table


def test_every_rule_is_whole() -> None:
    assert len({rule.label for rule in RULES}) == len(RULES)
    assert len({family.label for family in FAMILIES}) == len(FAMILIES)
    for rule in RULES:
        assert rule.source
        assert 0 < rule.least < 1
        columns = [rule.words, *(column for column in rule.score if column != "key_and_query")]
        assert set(columns + ([rule.baseline] if rule.baseline else [])) <= set(SUMS)
    assert FAMILIES[2].has("nmod:poss")
    assert not FAMILIES[2].has("nmod")
    assert FAMILIES[0].has("aux:pass")


def test_which_pairs_are_explained() -> None:
    """Every kind of label explains some pairs and not others."""
    flags = [1 << at for at in range(len(FLAGS))]
    pairs = pyarrow.table(
        {
            "query": [5, 5, 5, 5],
            "key": [4, 6, 5, 3],
            "same": [True, False, False, False],
            "punctuation": [False, True, False, False],
            "rank": pyarrow.array([800, 799, -1, 1000], pyarrow.int32()),
            "flags": pyarrow.array(flags, pyarrow.int32()),
        }
    )
    found = {rule.label: explained(rule, pairs).tolist() for rule in RULES}
    first = [True, False, False, False]
    assert found["previous word"] == found["same word elsewhere"] == found["the first token"] == first
    assert found["next word"] == found["punctuation"] == found["[SEP]"] == [False, True, False, False]
    assert found["rest of the word"] == found["the same words for all"] == [False, False, True, False]
    assert found["2 words to the left"] == found["broad"] == [False, False, False, True]
    assert found["similar meaning"] == [True, False, False, True]


def test_ranks_are_those_of_loops() -> None:
    generator = torch.Generator().manual_seed(4)
    vectors = torch.nn.functional.normalize(torch.randn(14, 6, generator=generator), dim=-1)
    classes = np.array([0, 1, 0, -1, 1, 0, 0, 1, 2, 0, 1, 0, 0, 1])
    names = np.array([0, 1, 2, 3, 4, 5, 0, 7, 8, 9, 10, 2, 12, 13])
    looks = np.arange(14) != 5
    table = ranks(vectors, classes, names, looks)
    for query in range(14):
        for key in range(14):
            kind = [other for other in range(14) if classes[other] == classes[key]]
            others = [at for at in kind if abs(at - query) > 1 and names[at] != names[query]]
            counts = classes[query] >= 0 and classes[key] >= 0 and looks[query] and key in others
            if not counts or min(len(kind), len(others)) < LEAST:
                assert np.isnan(table[query, key])
                continue
            alike = [float(vectors[query] @ vectors[other]) for other in others]
            less = sum(cosine < float(vectors[query] @ vectors[key]) for cosine in alike)
            assert table[query, key] == pytest.approx((less + 0.5) / len(others))


def test_hardly_felt_is_measured_where_the_label_applies() -> None:
    """Over all windows a head seems to do nothing; where a word recurs, it is felt."""
    windows = 60
    acts = tuple(frozenset(["same_words"] if at % 4 == 0 else []) for at in range(windows))
    changes = np.where([bool(act) for act in acts], 0.01, 1e-6)[:, None]
    felt = Felt(np.concatenate([changes, changes * 0], 1), acts, tuple(range(windows)), whole=4.0)
    assert felt.hardly(0, frozenset(["same_words"])) == 0
    assert felt.hardly(0, None) == windows  # 0.0025 on average, below 0.004
    assert felt.hardly(1, frozenset(["same_words"])) == windows // 4
    assert felt.hardly(1, frozenset(["inner"])) == 0  # in no window
    few = Felt(changes[:8] * 0, acts[:8], tuple(range(8)), whole=4.0)
    assert FELT_WINDOWS > 8
    assert few.hardly(0, None) == 0
    moved = np.random.default_rng(0).normal(scale=1.0, size=(windows, 1))
    assert Felt(moved, acts, tuple(range(windows)), whole=4.0).hardly(0, None) == 0
