"""Relations of a treebank, and what every head finds of each.

Both directions are of the word that looks: `up`, a dependent's strongest word is its head; `down`, a head's strongest
word is such a dependent of it. (Clark's second direction, who looks at a word most, counts scraps of weight too.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow

from headscope.atlas.store import read_beside
from headscope.atlas.syntax import LEAST, RelationCounts
from headscope.heads.intervals import Moments, moments_of
from headscope.results.schemas import RelationRow, Way, table_of

if TYPE_CHECKING:
    from jaxtyping import Float

UP: Way = "up"
DOWN: Way = "down"
"""From a dependent to its head, and from a head to such a dependent of it."""

LEFT_OUT = ("punct",)
"""Relations that are conventions of the treebank rather than syntax."""


@dataclass(eq=False)
class Claim:
    """A relation in one direction.

    Attributes:
        relation: its name.
        way: UP or DOWN.
        sums: of each half (even, odd), (sums, heads_total): what intervals need, and documents.
        offsets: of each half, key minus query -> how often that offset is right.
    """

    relation: str
    way: Way
    sums: tuple[Float[np.ndarray, "sums heads"], Float[np.ndarray, "sums heads"]]
    offsets: tuple[Counter[int], Counter[int]] = field(default_factory=lambda: (Counter(), Counter()))


def claims_of(folder: Path, documents: Sequence[int], cells: int) -> list[Claim]:
    """Every relation both ways, from the files beside the parts."""
    claims: dict[tuple[str, Way], Claim] = {}
    before = 0
    for table, count in zip(read_beside(folder, "syntax", len(documents)), documents, strict=True):
        part = RelationCounts(table, before, cells)
        for row, relation in enumerate(part.relations):
            if relation.partition(":")[0] in LEFT_OUT:
                continue
            half = int(part.documents[row] % 2)
            for way, name, counts in ((UP, "to_head", part.counts), (DOWN, "from_head", part.with_dependents)):
                if (relation, way) not in claims:
                    claims[relation, way] = Claim(relation, way, (np.zeros((6, cells)), np.zeros((6, cells))))
                claim = claims[relation, way]
                claim.sums[half][:] += moments_of(part.hits[name][row], counts[row])
                sign = 1 if way == UP else -1
                claim.offsets[half].update(sign * offset for offset in part.offsets[row])
        before += count
    return list(claims.values())


def relations_table(folder: Path, documents: Sequence[int], heads: Sequence[tuple[int, int]]) -> pyarrow.Table:
    """`survey.relations`: a row for each relation, way and head, over all documents.

    `way` is of the word that looks, as in labels: `up`, a dependent's strongest word is its head; `down`, a head's
    strongest word is such a dependent. Nothing is chosen here, so nothing is held out.

    Args:
        folder: the survey's.
        documents: how many documents each part has.
        heads: (layer, head) of every head.
    """
    rows = []
    claims = sorted(claims_of(folder, documents, len(heads)), key=lambda claim: (claim.relation, claim.way != "up"))
    for claim in claims:
        count = int(sum(half[1, 0] for half in claim.sums))
        if count < LEAST:
            continue
        offset, baseline = _offset(claim, count)
        for cell, place in enumerate(heads):
            moments = Moments(claim.sums[0][:, cell] + claim.sums[1][:, cell])
            low, high = moments.interval()
            rows.append(
                RelationRow(claim.relation, claim.way, *place, moments.share, low, high, count, offset, baseline)
            )
    return table_of(RelationRow, rows)


def _offset(claim: Claim, count: int) -> tuple[int, float]:
    """The fixed offset from the word that looks that is right most often, the shortest of equals, and how often."""
    total = claim.offsets[0] + claim.offsets[1]
    offset, right = min(total.items(), key=lambda item: (-item[1], abs(item[0]), item[0]))
    return offset, right / count
