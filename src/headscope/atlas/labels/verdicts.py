"""Labels: descriptions that the half of the documents that didn't choose bears out, with their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from headscope.atlas.labels.evidence import Own, Vectors
from headscope.atlas.labels.labelling import REPORTED, RESAMPLES, SURE, TARGETS, Labeller, margins
from headscope.atlas.labels.names import kind_of, looker, reservations, sentence
from headscope.atlas.labels.predicates import OFFSETS
from headscope.atlas.labels.search import CLAUSES, FORM, LEARNED, Clause, gain_of
from headscope.results.schemas import LabelRow, table_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from headscope.atlas.observe import Observed

Reservations = dict[str, int]
"""Reason -> count, as in `LabelRow`."""

ROUNDS = 4
"""Times that clauses are sought, the last ones instead of those that weren't borne out."""
LEAST_DOCUMENTS = 4
"""Documents of each half without which no head is labelled."""
LEAST_WORDS = 100
"""Words of each half that have a choice, without which a head spreads evenly over the words."""
LEAST_PAIRS = 20
"""Pairs that report, without which nothing is said."""
WHOLE, PART = (0.45, 0.10), (0.20, 0.05)
"""Share explained, and least margin above chance, of a description, and of one that holds in part."""
TASTE = 0.50
"""Share that a description of nothing but forms must explain: heads that learned nothing have a taste for some, too."""
SUCH, SUCH_KIND = 6, 0.8
"""Words that a learned class names, and the share of a kind in both halves from which it is named by it."""
SUCH_KINDS = ("PROPN", "number", "NOUN", "NOUN|PROPN", "VERB", "VERB|AUX", "ADJ", "PRON", "content")
"""Kinds that it may be named by, the first that fits."""

LOOK_SHARE, LOOK_BITS = 0.5, 0.2
"""Share of the pairs, and what it gains beside chance, from which a class of the words that look is named."""

NUMBERS = (
    "score", "low", "high", "count", "baseline", "coverage", "bits", "offset_bits", "accuracy",
    "accuracy_chance", "stable",
)  # fmt: skip


def labels_of(
    observed: Observed, heads: Sequence[tuple[int, int]], pairs: pyarrow.Table, vectors: Vectors
) -> tuple[pyarrow.Table, Int[np.ndarray, " pairs"]]:
    """The labels of all heads: `survey.labels`; and of each pair the number of the clause that explains it, 0 for none.

    Args:
        observed: what they do over the sample.
        heads: (layer, head) of every head.
        pairs: see `pairs_of`.
        vectors: gives the input embeddings of tokens.
    """
    labeller = Labeller(observed, pairs, vectors)
    few = len({window.document for window in observed.windows}) // 2 < LEAST_DOCUMENTS
    lacking = [_too_little(labeller, cell, few) for cell in range(len(heads))]
    chosen = {cell: ([], {}) if lacks else labeller.describe(cell, 0) for cell, lacks in enumerate(lacking)}
    verdicts: dict[int, _Verdict] = {}
    failed: dict[int, list[Clause]] = {cell: [] for cell in chosen}
    for _ in range(ROUNDS):
        found = {
            cell: _Verdict(labeller, cell, *chosen[cell], *held, lacking[cell])
            for cell, held in labeller.reported(chosen).items()
        }
        verdicts |= found
        chosen = {}
        for cell, verdict in found.items():
            failed[cell] += verdict.failed
            if verdict.failed and 0 < len(verdict.clauses) < CLAUSES:  # a label may say more; no label comes from this
                clauses, own = labeller.describe(cell, 0, verdict.clauses, failed[cell])
                if len(clauses) > len(verdict.clauses):
                    chosen[cell] = clauses, own
    explained = np.zeros(pairs.num_rows, dtype=np.int8)
    rows = []
    for cell, verdict in verdicts.items():
        rows.append(LabelRow(*heads[cell], **verdict.row()))
        for half in (0, 1):
            at = labeller.rows(cell, half, pairs.num_rows)
            explained[at] = verdict.explains(at)
    return table_of(LabelRow, rows), explained


def _too_little(labeller: Labeller, cell: int, few: bool) -> Reservations:
    """Too few of something for a label of this head: its name, and how many are needed."""
    if few:
        return {"documents": LEAST_DOCUMENTS}
    if min(labeller.sums["even"][cell], labeller.sums["odd"][cell]) < LEAST_WORDS:
        return {"words": LEAST_WORDS}
    if min(len(labeller.rows(cell, half, REPORTED)) for half in (0, 1)) < LEAST_PAIRS:
        return {"pairs": LEAST_PAIRS}
    return {}


class _Verdict:
    """One head: what is kept of its description, and the columns of its row.

    Args:
        labeller, cell: the head's.
        clauses, own: of the description: see `Labeller.describe`.
        hits, shares: what they hold, and would by chance: see `Labeller.reported`.
        lacks: why there is no label.

    Attributes:
        clauses: of the label; empty if there is none.
        failed: those that the other half doesn't bear out.
    """

    def __init__(
        self,
        labeller: Labeller,
        cell: int,
        clauses: list[Clause],
        own: dict[str, Own],
        hits: Bool[np.ndarray, "pairs sets"],
        shares: Float[np.ndarray, "pairs sets"],
        lacks: Reservations,
    ) -> None:
        self._labeller, self._cell, self._own, self._lacks = labeller, cell, own, lacks
        self.clauses = clauses
        self._rows = labeller.rows(cell, 1, REPORTED)
        self._documents = labeller.documents[self._rows]
        self._draws = np.zeros(RESAMPLES)
        self._part = False
        self._alone: list[float] = []
        self._alone_chance: list[float] = []
        self.failed: list[Clause] = []
        self._hits, self._shares = hits[:, 0], shares[:, 0]
        if clauses and len(self._rows):
            self._keep(hits, shares)

    def _keep(self, hits: Bool[np.ndarray, "pairs sets"], shares: Float[np.ndarray, "pairs sets"]) -> None:
        """Keep the clauses that the other half bears out, and the description if they are enough."""
        every, least = self.clauses, int(SURE * RESAMPLES)
        kept: list[int] = []
        some = 0
        for at, clause in enumerate(every):
            more = some | 1 << at
            new, share = hits[:, more] & ~hits[:, some], shares[:, more] - shares[:, some]
            if len(kept) < CLAUSES and self._labeller.borne_out(clause, self._rows, new, share):
                kept.append(at)
                some = more
        self.failed = [clause for at, clause in enumerate(every) if at not in kept]
        self._hits, self._shares = hits[:, some], shares[:, some]
        self._draws = margins(self._hits, self._shares, self._documents)
        score, low = float(self._hits.mean()), self._draws[least]
        taste = all(every[at].key[:1] == FORM for at in kept)
        whole, part = (score >= max(share, TASTE * taste) and low > margin for share, margin in (WHOLE, PART))
        self._part = bool(part and not whole)
        kept = kept if whole or part else []
        self._alone = [float(hits[:, 1 << at].mean()) for at in kept]
        self._alone_chance = [float(shares[:, 1 << at].mean()) for at in kept]
        self.clauses = [every[at] for at in kept]

    def explains(self, rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Number of the clause that explains each of some pairs; 0 for none."""
        facts = self._labeller.known(rows, self._own)
        result = np.zeros(len(rows), dtype=np.int8)
        for at, clause in reversed(list(enumerate(self.clauses, 1))):
            result[clause.mask(facts)] = at
        return result

    def row(self) -> dict[str, Any]:
        """The columns of a row of labels, but for layer and head."""
        clauses, such = self.clauses, self._such()
        looks = self._looks() if clauses else ("", None, None)
        reasons = self._lacks or ({} if clauses else {"prediction": 0})
        return {
            **(self._numbers() if clauses else dict.fromkeys(NUMBERS)),
            "kind": kind_of(clauses),
            "label": sentence(clauses, such, part=self._part, looks=looks[0])["en"],
            "part": self._part,
            **{slot: [getattr(clause, slot) for clause in clauses] for slot in Clause._fields},
            "alone": self._alone,
            "alone_chance": self._alone_chance,
            "such": such,
            **dict(zip(("looks", "looks_share", "looks_chance"), looks, strict=True)),
            "note": reservations(reasons)["en"],
            "reason": [*reasons],
            "reason_count": [*reasons.values()],
            **self._labeller.rests(self._cell),
        }

    def _numbers(self) -> dict[str, Any]:
        score, chance = float(self._hits.mean()), float(self._shares.mean())
        low, high = (float(np.quantile(self._draws, at)) + chance for at in (0.025, 0.975))
        counted = score, max(low, 0.0), min(high, 1.0), len(self._rows), chance, round(100 * score)
        bits = self._bits(self.clauses), self._offset_bits()
        swapped, _ = self._labeller.describe(self._cell, 1)
        stable = sum(clause in swapped for clause in self.clauses)
        return dict(zip(NUMBERS, (*counted, *bits, *self._accuracy(), stable), strict=True))

    def _bits(self, clauses: Sequence[Clause]) -> float:
        """The gain of some clauses on the pairs that report, without a cost of atoms."""
        facts = self._labeller.known(self._rows, self._own)
        held = np.logical_or.reduce([clause.mask(facts) for clause in clauses])
        ground, _, possible = self._labeller.possible(self._cell, 1, clauses, self._own)
        even = float(ground.even[possible].sum()) / max(ground.rows, 1)
        return gain_of(float(held.mean()), min(even, 1.0), 1.0, 1.0, 0)

    def _offset_bits(self) -> float:
        """The gain of the offset that the half that chooses has most often."""
        facts = self._labeller.known(self._labeller.rows(self._cell, 0, TARGETS), {})
        names = [f"offset{offset:+d}" for offset in OFFSETS]
        best = max(names, key=lambda name: int(facts.of("relation", name).sum()))
        return self._bits([Clause(relation=best)])

    def _accuracy(self) -> tuple[float | None, float | None]:
        """Over the words drawn that have a possible case: how often the choice is one, and how often by chance."""
        ground, _, held = self._labeller.possible(self._cell, 1, self.clauses, self._own)
        choice = self._labeller.choices(self._cell)
        chances = np.bincount(ground.row, ground.even * held, len(choice))
        possible = (chances > 0) & (choice >= 0)
        if not possible.any():
            return None, None
        return float(held[choice[possible]].mean()), float(chances[possible].mean())

    def _looks(self) -> tuple[str, float | None, float | None]:
        """The class of most words that look, if no clause says it and it stands out in both halves; and its shares."""
        if any(looker(clause) for clause in self.clauses):
            return "", None, None
        found: dict[str, list[tuple[float, float, float]]] = {}
        for half, most in ((0, TARGETS), (1, REPORTED)):
            facts = self._labeller.known(self._labeller.rows(self._cell, half, most), self._own)
            held = np.logical_or.reduce([clause.mask(facts) for clause in self.clauses])
            ground, drawn, possible = self._labeller.possible(self._cell, half, self.clauses, self._own)
            even = ground.even[possible]
            for name, flags in drawn.tables["query"].items() if even.sum() > 0 else ():
                chance = float(even[flags[possible]].sum() / even.sum())
                share = float(facts.of("query", name)[held].mean()) if held.any() else 0.0
                if share >= LOOK_SHARE and (bits := gain_of(share, chance, 1.0, 1.0, 0)) >= LOOK_BITS:
                    found.setdefault(name, []).append((bits, share, chance))
        both = {name: numbers for name, numbers in found.items() if len(numbers) == 2}
        if not both:
            return "", None, None
        name = max(both, key=lambda name: both[name][0])
        return name, *both[name][1][1:]

    def _such(self) -> list[str]:
        """Of a learned class of keys: its kind, and the words that are named."""
        learned = next((clause for clause in self.clauses if clause.key[:1] == LEARNED), None)
        if learned is None:
            return []
        found = []
        for half, most in ((0, 2 * TARGETS), (1, REPORTED)):
            rows = self._labeller.rows(self._cell, half, most)
            facts = self._labeller.known(rows, self._own)
            found.append((rows, facts, learned.mask(facts)))
        kinds = (
            kind
            for kind in SUCH_KINDS
            if all(held.any() and facts.of("key", kind)[held].mean() >= SUCH_KIND for _, facts, held in found)
        )
        kind = next(kinds, "")
        rows, facts, held = found[0]
        rows = rows[held & facts.of("key", kind) if kind else held]
        return [kind, *self._typical(rows)]

    def _typical(self, rows: Int[np.ndarray, " n"]) -> list[str]:
        """The forms of some keys that stand for all of them: each adds most to the likeness of every form to its like,
        weighted by documents."""
        documents: dict[str, set[int]] = {}
        for row in rows.tolist():
            documents.setdefault(self._labeller.names[row], set()).add(self._labeller.documents[row])
        names, first = np.unique(self._labeller.names[rows].astype(str), return_index=True)
        vectors = self._labeller.vectors[rows[first]]
        alike, weight = vectors @ vectors.T, np.array([len(documents[name]) for name in names.tolist()], dtype=float)
        found: list[str] = []
        reached = np.zeros(len(names))
        for _ in range(min(SUCH, len(names))):
            gains = np.where(np.isin(names, found), -1.0, np.maximum(alike, reached) @ weight)
            at = int(gains.argmax())
            found.append(str(names[at]))
            reached = np.maximum(reached, alike[at])
        return found
