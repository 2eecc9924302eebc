"""Syntactic relations and the heads that find them, over a treebank: the method of Clark et al. 2019, section 4.2.

Each word's strongest other word, of its row and of its column, is held against the tree. For a relation there are two
directions, which both predict the head of a dependent:

- `dependent->head`: the share of dependents that look at no other word more than at their head;
- `head->dependent`: the share of dependents that no other word looks at more than their head does.

The best of many heads scores too high by chance, so it is chosen on the documents with even numbers and reported on
those with odd ones. The baseline is the best fixed offset: “the head is the word k to the right”.

What every head finds of each relation is kept as well, with both directions of the word that looks: `up`, a dependent's
strongest word is its head; `down`, a head's strongest word is such a dependent of it. (Clark's second direction, who
looks at a word most, counts scraps of weight too.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from headscope.atlas.store import read_beside, sealed_parquet
from headscope.heads.intervals import Moments, moments_of
from headscope.results.schemas import RelationRow, SyntaxRow, Way, table_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.atlas.documents import Sentence
    from headscope.atlas.shapes import Strongest
    from headscope.atlas.words import Words


DIRECTIONS = ("dependent->head", "head->dependent")

HITS = ("to_head", "to_dependent", "from_head")
"""Counts of every relation, for every head of the model: the two directions, and the words that
have such dependents and whose strongest word is one of them."""

LEAST = 20
"""Occurrences of a relation below which it is left out."""


class Pairs:
    """A sentence's pairs of dependent and head that have tokens, by relation.

    Attributes:
        relations: the names of those that occur.
        dependents, heads: (pairs,), words.
        relation: (pairs,), which of `relations`.
        with_dependents: (relations,), how many words have such dependents.
    """

    def __init__(self, sentence: Sentence, words: Words) -> None:
        rows = [
            (relation, word, head)
            for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True))
            if head >= 0 and words.sizes[word] and words.sizes[head]
        ]
        self.relations = sorted({relation for relation, _, _ in rows})
        number = {relation: at for at, relation in enumerate(self.relations)}
        self.dependents = np.array([word for _, word, _ in rows], dtype=np.int64)
        self.heads = np.array([head for _, _, head in rows], dtype=np.int64)
        self.relation = np.array([number[relation] for relation, _, _ in rows], dtype=np.int64)
        self.with_dependents = np.zeros(len(self.relations), dtype=np.int64)
        for which, _ in {(number[relation], head) for relation, _, head in rows}:
            self.with_dependents[which] += 1
        self.sums = (np.arange(len(self.relations))[:, None] == self.relation).astype(np.float32)
        """(relations, pairs), 1 where the pair is of the relation."""


class SyntaxCounts:
    """Counts over the documents of a part: how often each head is right, by document and relation."""

    def __init__(self, cells: int) -> None:
        self._cells = cells
        self._rows: dict[tuple[int, str], int] = {}
        self._counts: list[int] = []
        self._offsets: list[list[int]] = []
        self._with: list[int] = []
        self._hits: list[np.ndarray] = []

    def begin(self, document: int, pairs: Pairs) -> Int[np.ndarray, " relations"]:
        """Count a sentence's pairs; the rows that its relations have."""
        rows = []
        for which, relation in enumerate(pairs.relations):
            row = self._rows.setdefault((document, relation), len(self._rows))
            if row == len(self._counts):
                self._counts.append(0)
                self._with.append(0)
                self._offsets.append([])
                self._hits.append(np.zeros((len(HITS), self._cells), dtype=np.int32))
            of = pairs.relation == which
            self._counts[row] += int(of.sum())
            self._with[row] += int(pairs.with_dependents[which])
            self._offsets[row] += (pairs.heads[of] - pairs.dependents[of]).tolist()
            rows.append(row)
        return np.array(rows, dtype=np.int64)

    def take(self, rows: Int[np.ndarray, " relations"], pairs: Pairs, strongest: Strongest, cells: slice) -> None:
        """Count one layer's hits; `cells`: the layer's heads among all heads."""
        if not len(rows):
            return
        d, h = pairs.dependents, pairs.heads
        for kind, hits in enumerate(
            (strongest.looks_at[:, d] == h, strongest.seen_by[:, d] == h, strongest.looks_at[:, h] == d)
        ):
            sums = (pairs.sums @ hits.T.astype(np.float32)).astype(np.int32)
            for row, counts in zip(rows, sums, strict=True):
                self._hits[row][kind, cells] += counts

    def file(self, record: dict[str, Any], renumbered: dict[int, int]) -> bytes:
        """The counts as a file beside the part. `renumbered`: documents as the part counts them."""
        keys = list(self._rows)
        hits = np.stack(self._hits) if self._hits else np.zeros((0, len(HITS), self._cells), dtype=np.int32)
        columns: dict[str, Any] = {
            "document": pyarrow.array([renumbered[document] for document, _ in keys], pyarrow.int32()),
            "relation": pyarrow.array([relation for _, relation in keys], pyarrow.string()).dictionary_encode(),
            "count": pyarrow.array(self._counts, pyarrow.int32()),
            "with_dependents": pyarrow.array(self._with, pyarrow.int32()),
            "offsets": pyarrow.array(self._offsets, pyarrow.list_(pyarrow.int32())),
        }
        for kind, name in enumerate(HITS):
            flat = pyarrow.array(np.ascontiguousarray(hits[:, kind]).reshape(-1), pyarrow.int32())
            columns[name] = pyarrow.FixedSizeListArray.from_arrays(flat, self._cells)
        return sealed_parquet(pyarrow.table(columns), record)


class RelationCounts:
    """The counts of one part, read back.

    Attributes:
        documents: (rows,), numbered over the whole corpus.
        relations: each row's.
        counts, with_dependents: (rows,).
        offsets: each row's pairs, head minus dependent.
        hits: name of HITS -> (rows, heads_total).
    """

    def __init__(self, table: pyarrow.Table, before: int, cells: int) -> None:
        self.documents = table["document"].to_numpy().astype(np.int64) + before
        self.relations: list[str] = table["relation"].cast(pyarrow.string()).to_pylist()
        self.counts = table["count"].to_numpy()
        self.with_dependents = table["with_dependents"].to_numpy()
        self.offsets: list[list[int]] = table["offsets"].to_pylist()
        self.hits = {
            name: table[name].combine_chunks().flatten().to_numpy().reshape(len(self.counts), cells) for name in HITS
        }


def syntax_table(folder: Path, documents: Sequence[int], heads: Sequence[tuple[int, int]]) -> pyarrow.Table:
    """`survey.syntax`, from the files beside the parts.

    Args:
        folder: the survey's.
        documents: how many documents each part has.
        heads: (layer, head) of every head, layer 0's first.
    """
    before = np.concatenate([[0], np.cumsum(documents)])

    def parts() -> Iterator[RelationCounts]:
        for at, table in enumerate(read_beside(folder, "syntax", len(documents))):
            yield RelationCounts(table, int(before[at]), len(heads))

    totals: dict[str, Total] = {}
    for part in parts():
        for row, relation in enumerate(part.relations):
            totals.setdefault(relation, Total(len(heads))).add(part, row)
    claims = {
        (relation, way): total.best(way)
        for relation, total in sorted(totals.items())
        for way in range(len(DIRECTIONS))
        if total.counts.sum() >= LEAST
    }
    moments = {claim: Moments() for claim in claims}
    for part in parts():
        held_out = part.documents % 2 == 1
        relations = np.array(part.relations, dtype=object)
        for (relation, way), shares in moments.items():
            rows = np.flatnonzero(held_out & (relations == relation))
            shares.add(part.hits[HITS[way]][rows, claims[relation, way]], part.counts[rows])
    return _table(claims, totals, moments, heads)


class Total:
    """One relation over the whole treebank.

    Attributes:
        counts: (2,), occurrences in documents with even and with odd numbers.
        hits: (2, directions, heads_total), likewise.
        offsets: head minus dependent -> how often.
    """

    def __init__(self, heads: int) -> None:
        self.counts = np.zeros(2, dtype=np.int64)
        self.hits = np.zeros((2, len(DIRECTIONS), heads), dtype=np.int64)
        self.offsets: Counter[int] = Counter()

    def add(self, part: RelationCounts, row: int) -> None:
        """Add one document's counts."""
        half = int(part.documents[row] % 2)
        self.counts[half] += part.counts[row]
        self.offsets.update(part.offsets[row])
        for way in range(len(DIRECTIONS)):
            self.hits[half, way] += part.hits[HITS[way]][row]

    def best(self, way: int) -> int:
        """The head that is right most often in the first half; in the other where only that has the relation."""
        return int(self.hits[0 if self.counts[0] else 1, way].argmax())

    def offset(self) -> tuple[int, int]:
        """The offset that is right most often, the shortest of equals, and how often."""
        return min(self.offsets.items(), key=lambda item: (-item[1], abs(item[0]), item[0]))


def _table(
    claims: dict[tuple[str, int], int],
    totals: dict[str, Total],
    moments: dict[tuple[str, int], Moments],
    heads: Sequence[tuple[int, int]],
) -> pyarrow.Table:
    rows = []
    for (relation, way), best in claims.items():
        total = totals[relation]
        count = int(total.counts.sum())
        offset, right = total.offset()
        held_out = moments[relation, way] if total.counts[0] else Moments()
        rows.append(
            SyntaxRow(
                relation,
                DIRECTIONS[way],
                *heads[best],
                int(total.hits[:, way, best].sum()) / count,
                held_out.share,
                *held_out.interval(),
                count,
                offset,
                right / count,
            )
        )
    return table_of(SyntaxRow, rows)


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
