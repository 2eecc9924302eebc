"""What a head may do with a relation of the treebank, as a claim with two baselines, for labels.

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

from headscope._survey.beside import read_beside
from headscope._survey.intervals import Moments
from headscope._survey.rules import CLAIMS, DOWN, FAMILIES, LEFT_OUT, UP, Family
from headscope._survey.syntax import Counted

if TYPE_CHECKING:
    import pyarrow
    from jaxtyping import Bool, Float


@dataclass(eq=False)
class Claim:
    """A relation in one direction.

    Attributes:
        relation: its name.
        way: UP or DOWN.
        sums: of each half (even, odd), (sums, heads_total): what intervals need, and documents.
        offsets: of each half, key minus query -> how often that offset is right.
        nearest: over all documents, a simple rule -> how often it is right.
    """

    relation: str
    way: str
    sums: tuple[Float[np.ndarray, "sums heads"], Float[np.ndarray, "sums heads"]]
    offsets: tuple[Counter[int], Counter[int]] = field(default_factory=lambda: (Counter(), Counter()))
    nearest: Counter[str] = field(default_factory=Counter)

    @property
    def label(self) -> str:
        """In words."""
        plain = "from the dependent to its head" if self.way == UP else "from the head down"
        return f"{self.relation}: {CLAIMS.get((self.relation, self.way), plain)}"

    def moments(self, half: int, cell: int) -> Moments:
        """A head's score over a half's documents."""
        moments = Moments()
        *sums, documents = self.sums[half][:, cell]
        moments.sums, moments.documents = np.array(sums), int(documents)
        return moments

    @property
    def baselines(self) -> tuple[float, float]:
        """How often the best fixed offset is right: the best of each half itself, so as to give it its due."""
        shares = []
        for half in (0, 1):
            count = self.sums[half][1, 0]
            shares.append(max(self.offsets[half].values(), default=0) / count if count else 0.0)
        return shares[0], shares[1]

    @property
    def rule(self) -> tuple[str | None, float]:
        """The best rule of the form “the nearest word of this tag, on this side”, and how often it is right."""
        count = self.sums[0][1, 0] + self.sums[1][1, 0]
        if not self.nearest or not count:
            return None, 0.0
        rule, right = min(self.nearest.items(), key=lambda item: (-item[1], item[0]))
        return f"nearest {rule[:-1]} {'before' if rule.endswith('<') else 'after'}", right / float(count)

    def explains(self, pairs: pyarrow.Table) -> Bool[np.ndarray, " pairs"]:
        """Which pairs are of this relation, this way."""
        return np.array([relation == self.relation for relation in pairs[self.way].to_pylist()], dtype=bool)


def claims_of(folder: Path, documents: Sequence[int], cells: int) -> list[Claim]:
    """Every relation both ways, from the files beside the parts."""
    claims: dict[tuple[str, str], Claim] = {}
    before = 0
    for table, count in zip(read_beside(folder, "syntax", len(documents)), documents, strict=True):
        part = Counted(table, before, cells)
        for row, relation in enumerate(part.relations):
            if relation.partition(":")[0] in LEFT_OUT:
                continue
            half = int(part.documents[row] % 2)
            for way, name, counts in ((UP, "to_head", part.counts), (DOWN, "from_head", part.with_dependents)):
                if (relation, way) not in claims:
                    claims[relation, way] = Claim(relation, way, (np.zeros((6, cells)), np.zeros((6, cells))))
                claim = claims[relation, way]
                hits, out_of = part.hits[name][row].astype(np.float64), float(counts[row])
                if out_of:
                    same = np.ones(cells)
                    claim.sums[half][:] += [
                        hits,
                        out_of * same,
                        hits * hits,
                        hits * out_of,
                        out_of * out_of * same,
                        same,
                    ]
                sign = 1 if way == UP else -1
                claim.offsets[half].update(sign * offset for offset in part.offsets[row])
                claim.nearest.update(part.nearest["nearest_up" if way == UP else "nearest_down"][row])
        before += count
    return list(claims.values())


@dataclass(eq=False)
class Pooled:
    """Relations of one family that a head finds, taken together.

    Attributes:
        family: the family.
        claims: those that it finds one by one.
        sums: of each half, what intervals need, and documents; for this head.
    """

    family: Family
    claims: list[Claim]
    sums: Float[np.ndarray, "halves sums"]

    @property
    def label(self) -> str:
        """In words."""
        return self.family.label

    def moments(self, half: int) -> Moments:
        """The head's score over a half's documents."""
        moments = Moments()
        *sums, documents = self.sums[half]
        moments.sums, moments.documents = np.array(sums), int(documents)
        return moments

    @property
    def baselines(self) -> tuple[float, float]:
        """The best fixed offset of each relation and half, weighted by how often they occur."""
        shares = []
        for half in (0, 1):
            counts = [float(claim.sums[half][1, 0]) for claim in self.claims]
            right = [count * claim.baselines[half] for count, claim in zip(counts, self.claims, strict=True)]
            shares.append(sum(right) / sum(counts) if sum(counts) else 0.0)
        return shares[0], shares[1]

    @property
    def rule_score(self) -> float:
        """How often the best rule of each relation is right."""
        counts = [float(claim.sums[0][1, 0] + claim.sums[1][1, 0]) for claim in self.claims]
        return sum(count * claim.rule[1] for count, claim in zip(counts, self.claims, strict=True)) / sum(counts)

    def explains(self, pairs: pyarrow.Table) -> Bool[np.ndarray, " pairs"]:
        """Which pairs are of one of these relations, this way."""
        return np.logical_or.reduce([claim.explains(pairs) for claim in self.claims])


def pooled(
    folder: Path, documents: Sequence[int], cells: int, members: dict[int, tuple[Family, list[Claim]]]
) -> dict[int, Pooled]:
    """Families over the documents, from the files beside the parts.

    Args:
        folder: the survey's.
        documents: how many documents each part has.
        cells: how many heads.
        members: head -> the family and its relations that it finds.
    """
    result = {cell: Pooled(family, claims, np.zeros((2, 6))) for cell, (family, claims) in members.items()}
    before = 0
    for table, count in zip(read_beside(folder, "syntax", len(documents)), documents, strict=True):
        part = Counted(table, before, cells)
        before += count
        relations = np.array(part.relations, dtype=object)
        for cell, pool in result.items():
            name = "to_head" if pool.family.way == UP else "from_head"
            counts = part.counts if pool.family.way == UP else part.with_dependents
            rows = np.isin(relations, [claim.relation for claim in pool.claims])
            for document in np.unique(part.documents[rows]).tolist():
                here = rows & (part.documents == document)
                hits, out_of = float(part.hits[name][here, cell].sum()), float(counts[here].sum())
                if out_of:
                    numbers = [hits, out_of, hits * hits, hits * out_of, out_of * out_of, 1.0]
                    pool.sums[document % 2] += numbers
    return result


def family_of(claims: Sequence[Claim], least: int) -> tuple[Family, list[Claim]] | None:
    """The family with most of these claims, and those; None if no family has so many."""
    members = [
        [claim for claim in claims if claim.way == family.way and family.has(claim.relation)] for family in FAMILIES
    ]
    best = max(range(len(FAMILIES)), key=lambda at: (len(members[at]), -at))
    return (FAMILIES[best], members[best]) if len(members[best]) >= least else None
