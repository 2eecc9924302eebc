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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow

from headscope.heads.intervals import Moments, moments_of
from headscope.results.schemas import RelationRow, SyntaxRow, Way, table_of

if TYPE_CHECKING:
    from jaxtyping import Int

    from headscope.atlas.documents import Sentence
    from headscope.atlas.shapes import Strongest
    from headscope.atlas.words import Words
    from headscope.heads.windows import Window


DIRECTIONS = ("dependent->head", "head->dependent")

HITS = ("to_head", "to_dependent", "from_head")
"""Counts of every relation, for every head of the model: the two directions, and the words that
have such dependents and whose strongest word is one of them."""

LEAST = 20
"""Occurrences of a relation below which it is left out."""

LEFT_OUT = ("punct",)
"""Relations that are conventions of the treebank rather than syntax."""


class Arcs:
    """A sentence's pairs of dependent and head that have tokens, by relation, and how often each head is right.

    Args:
        sentence, words: the sentence, and its words.
        cells: heads of the model.

    Attributes:
        relations: the names of those that occur.
        dependents, heads: (pairs,), words.
        relation: (pairs,), which of `relations`.
        with_dependents: (relations,), how many words have such dependents.
        hits: (HITS, relations, heads of the model).
    """

    def __init__(self, sentence: Sentence, words: Words, cells: int) -> None:
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
        self.hits = np.zeros((len(HITS), len(self.relations), cells), dtype=np.int32)

    def take(self, strongest: Strongest, cells: slice) -> None:
        """Count one layer's hits; `cells`: the layer's heads among all heads."""
        d, h = self.dependents, self.heads
        of = (np.arange(len(self.relations))[:, None] == self.relation).astype(np.float32)
        right = (strongest.looks_at[:, d] == h, strongest.seen_by[:, d] == h, strongest.looks_at[:, h] == d)
        for kind, hits in enumerate(right):
            self.hits[kind, :, cells] = of @ hits.T.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Relation:
    """One relation over the sample.

    Attributes:
        name: as in the treebank.
        counts, lookers: (documents,), of those that have it: its occurrences, and the words that have such dependents.
        hits: (HITS, documents, heads of the model).
        odd: (documents,), True for those that report.
        offsets: head minus dependent -> how often.
    """

    name: str
    counts: Int[np.ndarray, " documents"]
    lookers: Int[np.ndarray, " documents"]
    hits: Int[np.ndarray, "kinds documents cells"]
    odd: np.ndarray
    offsets: Counter[int]

    @property
    def count(self) -> int:
        """Occurrences over all documents."""
        return int(self.counts.sum())

    def best(self, way: int) -> int:
        """The head that is right most often in the even documents; in the odd ones if only those have the relation."""
        return int(self.hits[way, ~self.odd if not self.odd.all() else self.odd].sum(0).argmax())

    def offset(self, sign: int = 1) -> tuple[int, int]:
        """The offset from a dependent to its head that is right most often, the shortest of equals, and how often.

        Args:
            sign: -1 for those from a head to its dependent.
        """
        found = ((sign * offset, count) for offset, count in self.offsets.items())
        return min(found, key=lambda item: (-item[1], abs(item[0]), item[0]))


def relations_in(windows: Sequence[Window], every: Sequence[Arcs]) -> list[Relation]:
    """Every relation of the sample's windows, by name."""
    counts: dict[str, dict[int, np.ndarray]] = {}
    hits: dict[tuple[str, int], np.ndarray] = {}
    offsets: dict[str, Counter[int]] = {}
    for window, arcs in zip(windows, every, strict=True):
        for which, name in enumerate(arcs.relations):
            of = arcs.relation == which
            some = counts.setdefault(name, {}).setdefault(window.document, np.zeros(2, dtype=np.int64))
            some += (of.sum(), arcs.with_dependents[which])
            place = (name, window.document)
            hits[place] = hits[place] + arcs.hits[:, which] if place in hits else arcs.hits[:, which]
            offsets.setdefault(name, Counter()).update((arcs.heads[of] - arcs.dependents[of]).tolist())
    found = []
    for name, of_documents in sorted(counts.items()):
        documents = sorted(of_documents)
        both = np.stack([of_documents[document] for document in documents], 1)
        of_heads = np.stack([hits[name, document] for document in documents], 1)
        found.append(Relation(name, both[0], both[1], of_heads, np.array(documents) % 2 == 1, offsets[name]))
    return found


def syntax_table(relations: Sequence[Relation], heads: Sequence[tuple[int, int]]) -> pyarrow.Table:
    """`survey.syntax`: the best head for each relation and direction.

    Args:
        relations: see relations_in.
        heads: (layer, head) of every head, layer 0's first.
    """
    rows = []
    for relation in relations:
        if relation.count < LEAST:
            continue
        for way, direction in enumerate(DIRECTIONS):
            best, held_out = relation.best(way), Moments()
            if not relation.odd.all():
                held_out.add(relation.hits[way, relation.odd, best], relation.counts[relation.odd])
            offset, right = relation.offset()
            row = SyntaxRow(
                relation.name,
                direction,
                *heads[best],
                int(relation.hits[way, :, best].sum()) / relation.count,
                held_out.share,
                *held_out.interval(),
                relation.count,
                offset,
                right / relation.count,
            )
            rows.append(row)
    return table_of(SyntaxRow, rows)


UP: Way = "up"
DOWN: Way = "down"
"""From a dependent to its head, and from a head to such a dependent of it."""


def relations_table(relations: Sequence[Relation], heads: Sequence[tuple[int, int]]) -> pyarrow.Table:
    """`survey.relations`: a row for each relation, way and head, over all documents.

    `way` is of the word that looks, as in labels: `up`, a dependent's strongest word is its head; `down`, a head's
    strongest word is such a dependent. Nothing is chosen here, so nothing is held out.

    Args:
        relations: see relations_in.
        heads: (layer, head) of every head.
    """
    rows = []
    for relation in relations:
        if relation.name.partition(":")[0] in LEFT_OUT:
            continue
        for way, kind, counts, sign in ((UP, 0, relation.counts, 1), (DOWN, 2, relation.lookers, -1)):
            count = int(counts.sum())
            if count < LEAST:
                continue
            offset, right = relation.offset(sign)
            sums = moments_of(relation.hits[kind], counts[:, None]).sum(1)
            for cell, place in enumerate(heads):
                moments = Moments(sums[:, cell])
                bounds = moments.interval()
                rows.append(
                    RelationRow(relation.name, way, *place, moments.share, *bounds, count, offset, right / count)
                )
    return table_of(RelationRow, rows)
