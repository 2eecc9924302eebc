"""What kind of label a label is, from its text: for colours, and for sentences in the reader's language."""

from __future__ import annotations

import re
from typing import Any

from headscope._survey.rules import CLAIMS, DOWN, FAMILIES, FELT, NONE, RULES, UP

KINDS = {
    "same word elsewhere": "same",
    "rest of the word": "inner",
    "similar meaning": "meaning",
    FELT: "felt",
    "punctuation": "punctuation",
    "the same words for all": "key",
    "the first token": "first",
    "[SEP]": "sep",
    "broad": "broad",
    NONE: "none",
}
"""Label -> kind, but for positions and syntax."""

OFFSETS = {rule.label: rule.offset for rule in RULES if rule.offset is not None}

ACTS = {
    family.label: name
    for family, name in zip(FAMILIES, ("serves", "served", "modifier", "modified", "governor", "governed"), strict=True)
}
"""Label of a family of relations -> the name under which the site has words for it."""

DERIVED = {f"{relation}: {claim}": (relation, way) for (relation, way), claim in CLAIMS.items()}
"""Label of a derived claim -> what stands for its relation, and its way."""

NEAREST = ", or just the "

SYNTAX = re.compile(r"(?P<relation>[^ ]+): from the (?P<way>dependent to its head|head down)")


def claim_of(label: str) -> dict[str, Any]:
    """A label as the site reads it: `label`, `kind`, and its `offset`, its `relation` and `way`, or its `act`.

    The kinds are those of KINDS, `position`, `syntax`, `nearest` (a relation that a simple rule finds as well) and
    `other`.
    """
    claim: dict[str, Any] = {"label": label, "kind": KINDS.get(label, "other")}
    bare = label.partition(NEAREST)[0]
    relation, way = DERIVED.get(bare, (None, None))
    if match := SYNTAX.fullmatch(bare):
        relation, way = match["relation"], DOWN if match["way"] == "head down" else UP
    claim |= {"offset": OFFSETS.get(label), "relation": relation, "way": way, "act": ACTS.get(bare)}
    if label in OFFSETS:
        claim["kind"] = "position"
    elif relation is not None or bare in ACTS:
        claim["kind"] = "syntax" if bare == label else "nearest"
    return claim
