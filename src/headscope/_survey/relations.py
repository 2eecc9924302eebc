"""What every head finds of every relation of a treebank; `survey.syntax` names the best head alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from headscope._survey.claims import Claim, claims_of
from headscope._survey.intervals import Moments
from headscope._survey.rules import DERIVED
from headscope._survey.syntax import LEAST

COLUMNS = (
    ("relation", pyarrow.string()),
    ("way", pyarrow.string()),
    ("layer", pyarrow.int16()),
    ("head", pyarrow.int16()),
    ("score", pyarrow.float64()),
    ("low", pyarrow.float64()),
    ("high", pyarrow.float64()),
    ("count", pyarrow.int64()),
    ("offset", pyarrow.int32()),
    ("baseline", pyarrow.float64()),
    ("rule", pyarrow.string()),
    ("rule_score", pyarrow.float64()),
)


def relations_table(folder: Path, documents: Sequence[int], heads: Sequence[tuple[int, int]]) -> pyarrow.Table:
    """`survey.relations`: a row for each relation, way and head, over all documents.

    `way` is of the word that looks, as in labels: `up`, a dependent's strongest word is its head; `down`, a head's
    strongest word is such a dependent. Nothing is chosen here, so nothing is held out.

    Args:
        folder: the survey's.
        documents: how many documents each part has.
        heads: (layer, head) of every head.
    """
    columns: dict[str, list[Any]] = {name: [] for name, _ in COLUMNS}
    claims = sorted(claims_of(folder, documents, len(heads)), key=lambda claim: (claim.relation, claim.way != "up"))
    for claim in claims:
        count = int(sum(half[1, 0] for half in claim.sums))
        if count < LEAST or claim.relation in DERIVED:
            continue
        offset, baseline = _offset(claim, count)
        rule, rule_score = claim.rule
        for cell, (layer, head) in enumerate(heads):
            moments = Moments()
            *sums, present = claim.sums[0][:, cell] + claim.sums[1][:, cell]
            moments.sums, moments.documents = np.array(sums), int(present)
            low, high = (None if np.isnan(bound) else bound for bound in moments.interval())
            row = (claim.relation, claim.way, layer, head, moments.share, low, high, count, offset, baseline)
            for (name, _), value in zip(COLUMNS, (*row, rule, rule_score), strict=True):
                columns[name].append(value)
    return pyarrow.table({name: pyarrow.array(columns[name], kind) for name, kind in COLUMNS})


def _offset(claim: Claim, count: int) -> tuple[int, float]:
    """The fixed offset from the word that looks that is right most often, the shortest of equals, and how often."""
    total = claim.offsets[0] + claim.offsets[1]
    offset, right = min(total.items(), key=lambda item: (-item[1], abs(item[0]), item[0]))
    return offset, right / count
