"""What kind of label a label is, from its text: for colours, and for sentences in the reader's language."""

from __future__ import annotations

import re
from typing import Any

from headscope._survey.rules import CLAIMS, FAMILIES, FELT, NONE, RULES

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

ACTS = (*(family.label for family in FAMILIES), *(f"{relation}: {claim}" for (relation, _), claim in CLAIMS.items()))
"""How labels begin that are about syntax and name no relation of the treebank: families, and derived claims."""

NEAREST = ", or just the "

SYNTAX = re.compile(
    r"(?P<relation>[^ ]+): from the (?P<way>dependent to its head|head down)(?P<nearest>, or just the .*)?"
)


def claim_of(label: str) -> dict[str, Any]:
    """A label as the site reads it: `label`, `kind`, and its `offset`, or its `relation` and `way`.

    The kinds are those of KINDS, `position`, `syntax`, `nearest` (a relation that a simple rule finds as well) and
    `other`.
    """
    claim: dict[str, Any] = {"label": label, "kind": KINDS.get(label, "other")}
    claim |= {"offset": OFFSETS.get(label), "relation": None, "way": None}
    if label in OFFSETS:
        claim["kind"] = "position"
    elif label.startswith(ACTS):
        claim["kind"] = "nearest" if NEAREST in label else "syntax"
    elif match := SYNTAX.fullmatch(label):
        claim["kind"] = "nearest" if match["nearest"] else "syntax"
        claim |= {"relation": match["relation"], "way": "down" if match["way"] == "head down" else "up"}
    return claim
