"""How the site reads labels: every label that rules can give has a kind, and syntax its relation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headscope._survey.claims import Claim
from headscope._survey.label_kinds import ACTS, claim_of
from headscope._survey.rules import CLAIMS, FAMILIES, FELT, NONE, RULES

WORDS = Path(__file__).parents[2] / "web" / "src" / "report" / "words" / "en.ts"


@pytest.mark.parametrize("label", [*(rule.label for rule in RULES), *(family.label for family in FAMILIES), FELT, NONE])
def test_every_label_has_a_kind(label: str) -> None:
    assert claim_of(label)["kind"] != "other"
    assert claim_of(label)["label"] == label


def test_positions_have_their_distance() -> None:
    for rule in RULES:
        assert claim_of(rule.label)["offset"] == rule.offset


@pytest.mark.parametrize("relation", ["obj", "nsubj:pass", "aux:pass"])
@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("rule", ["", ", or just the nearest VERB before"])
def test_syntax_has_its_relation(relation: str, way: str, rule: str) -> None:
    label = Claim(relation, way, (None, None)).label + rule  # type: ignore[arg-type]
    claim = claim_of(label)
    assert (claim["relation"], claim["way"], claim["act"]) == (relation, way, None)
    assert claim["kind"] == ("nearest" if rule else "syntax")


def test_derived_claims_and_families() -> None:
    for (relation, way), says in CLAIMS.items():
        claim = claim_of(f"{relation}: {says}, or just the nearest NOUN after")
        assert (claim["kind"], claim["relation"], claim["way"]) == ("nearest", relation, way)
    for family in FAMILIES:
        assert claim_of(family.label)["kind"] == "syntax"
        assert claim_of(f"{family.label}, or just the nearest NOUN after")["kind"] == "nearest"
    assert claim_of("something new") == {
        "label": "something new", "kind": "other", "offset": None, "relation": None, "way": None, "act": None,
    }  # fmt: skip


def test_the_site_has_words_for_every_family() -> None:
    words = WORDS.read_text(encoding="utf-8")
    assert set(re.findall(r"title_act_(\w+):", words)) == set(ACTS.values())
