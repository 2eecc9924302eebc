"""The search for every head's label: which clauses half of the documents choose, and what the other half says of them.

`search` has the search and its formula, `shapes` what strength is, `passages` and `predicates` what may be said,
`verdicts` what is kept of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from headscope.atlas.labels.evidence import RANDOM, STRONGEST, Own, Texts, Vectors, drawn_windows, half_of, joined
from headscope.atlas.labels.passages import CONTENT, LISTS, MARKS, PLACES, TAGS, name_of
from headscope.atlas.labels.search import FORM, LEARNED, Clause, Facts, Ground, Search
from headscope.results.tokens import is_punctuation

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from headscope.atlas.observe import Observed

TARGETS, REPORTED = 150, 100
"""Strongest pairs that choose, and that report."""
FORMS, FORM_SHARE = 3, 0.03
"""Most forms of keys that are named together; documents in which each must be one, as a share of the targets."""
DOMINANT = 0.5
"""A clause about keys alone of which one form has more than this share must name it."""
FEW, FEW_HELD = 4, 3
"""Unless its class has no more forms, and it holds so many of them."""
SOME, SOME_LIFT = 5, 2.0
"""It must also be named if so many forms have that share, and by chance had less than half of it."""
NAMING = frozenset({*MARKS, *PLACES, "PUNCT"})
"""Classes of keys that say as much as a form."""
NEW_HITS, LIFT = 0.06, 1.4
"""New hits of a clause, of the pairs, and how many times chance."""
RESAMPLES, SURE = 400, 0.01
"""Draws of documents, and the quantile of the margin that counts."""
MARKED = frozenset({*MARKS, "quote's partner", "opening quote", "bracket's partner", "next comma", "previous comma"})
"""Classes of keys and relations that hold marks of a form or two, and so name them."""
CLOSED = frozenset({*LISTS, *TAGS, "clitic", "negation|limiting"}) - frozenset(CONTENT) - {"PRON"}
"""Classes of keys that have few forms."""
AS_USUAL, ENOUGH = 0.4, 0.4
"""Share of what such a class holds that must have its forms as often as by chance; of the pairs, if punctuation."""
FOLDS = 4
"""Parts of a half's documents; what a learned class gains in one is that of what is learned from the others."""
LEARNED_SHARES = (0.05, 0.10)
"""Of all words, those most like the keys of a head that count as “words such as”."""


def _is_form(forms: str, names: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    return np.isin(names.astype(str), forms.split("|"))


def _is_like(direction: np.ndarray, bound: float, names: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    words = np.array([not is_punctuation(name) for name in names], dtype=bool)
    return np.asarray(words & (np.einsum("wd,d->w", vectors, direction) >= bound))


def margins(
    hits: Bool[np.ndarray, " pairs"], shares: Float[np.ndarray, " pairs"], groups: Sequence[int] | np.ndarray
) -> Float[np.ndarray, " draws"]:
    """Hits less chance, a share of the pairs, over draws of their groups, such as documents; in order."""
    names, place = np.unique(groups, return_inverse=True)
    sums = np.bincount(place, hits - shares, len(names))
    counts = np.bincount(place, minlength=len(names))
    drawn = _draws(len(names))
    return np.sort(drawn @ sums / np.maximum(drawn @ counts, 1))


@lru_cache(REPORTED)
def _draws(groups: int) -> Float[np.ndarray, "draws groups"]:
    """The number of times that each group is drawn."""
    drawn = np.random.default_rng(groups).multinomial(groups, [1 / groups] * groups, RESAMPLES)
    return drawn.astype(np.float64)


def unions(masks: Sequence[Bool[np.ndarray, " n"]], count: int) -> Bool[np.ndarray, "n sets"]:
    """(count, 2 ** masks), what any of some masks holds: a column for each set of them, mask k being its bit k."""
    held = np.zeros((count, 1 << len(masks)), dtype=bool)
    for at, mask in enumerate(masks):
        held[:, 1 << at : 2 << at] = held[:, : 1 << at] | mask[:, None]
    return held


class Labeller:
    """Everything that the heads of a survey are described from.

    Args:
        observed: what the heads do over the sample.
        pairs: see `pairs_of`.
        vectors: gives the input embeddings of tokens.
    """

    def __init__(self, observed: Observed, pairs: pyarrow.Table, vectors: Vectors) -> None:
        self._lists, self._cell = pairs["list"].to_numpy(), pairs["cell"].to_numpy()
        self.queries, self._key = pairs["query"].to_numpy(), pairs["key"].to_numpy()
        self.places = pairs["window"].to_numpy().astype(np.int64)
        self.documents = np.array([window.document for window in observed.windows], dtype=np.int64)[self.places]
        self._folds = self.documents // 2 % FOLDS
        self.names = np.array([name_of(word) for word in pairs["key_word"].to_pylist()], dtype=object)
        drawn = [drawn_windows(observed, half) for half in (0, 1)]
        self.texts = Texts(observed.windows, vectors, [*drawn[0], *drawn[1]])
        self.sums = observed.sums
        self._halves = [half_of(observed, places, self.texts) for places in drawn]
        self._grounds: dict[tuple[int, int, int], Ground] = {}
        self._owns: dict[tuple[int, int], dict[str, Own]] = {}
        self._flags: dict[tuple[int, Own], np.ndarray] = {}
        self._facts, self.vectors = self._of_pairs()

    def _of_pairs(self) -> tuple[Facts, Float[np.ndarray, "pairs d"]]:
        """Return what holds of the pairs, and the vectors of their keys."""
        by_place: dict[int, list[int]] = {}
        for at, place in enumerate(self.places.tolist()):
            if self._lists[at] != RANDOM:
                by_place.setdefault(place, []).append(at)
        parts, order, vectors = [], [], []
        for place, rows in by_place.items():
            known = self.texts.facts(place)
            parts.append(known.of(self.queries[rows], self._key[rows]))
            vectors.append(known.passage.vectors[self._key[rows]])
            order += rows
        facts = joined(parts)
        back = np.zeros(len(self.places), dtype=np.int64)
        back[order] = np.arange(len(order))
        return facts.at(back) if order else facts, np.concatenate(vectors)[back] if order else np.zeros((0, 0))

    def rows(self, cell: int, half: int, most: int) -> Int[np.ndarray, " n"]:
        """A head's strongest pairs of a half, rows of the table of pairs."""
        return np.flatnonzero((self._cell == cell) & (self._lists == half))[:most]

    def ground(self, cell: int, half: int) -> Ground:
        """The even shares of a half, as far as a head sees."""
        reach = int(self.sums["behind"][cell]), int(self.sums["ahead"][cell])
        place = (half, *reach)
        if place not in self._grounds:
            of = self._halves[half]
            self._grounds[place] = of.ground.seen(of.gaps, *reach)
        return self._grounds[place]

    def describe(
        self, cell: int, half: int, kept: Sequence[Clause] = (), failed: Sequence[Clause] = ()
    ) -> tuple[list[Clause], dict[str, Own]]:
        """The clauses that a half chooses for a head, and the head's own classes of keys.

        Args:
            cell: the head.
            half: 0 or 1.
            kept: clauses that the other half bears out; the result begins with them.
            failed: clauses that it doesn't; they, and what says more than they do, are left out.
        """
        rows = self.rows(cell, half, TARGETS)
        if (cell, half) not in self._owns:
            self._owns[cell, half] = self._own(cell, half)
        own = self._owns[cell, half]
        search = Search(
            self.known(rows, own).with_keys(self._crossed(cell, rows, half)),
            self.ground(cell, half),
            self._on_ground(half, own),
            refuses=lambda clause: any(clause.extends(one) for one in failed) or self._dominated(clause, rows, half),
        )
        return [*kept, *(found.clause for found in search.description(kept))], own

    def known(self, rows: Int[np.ndarray, " n"], own: Mapping[str, Own]) -> Facts:
        more = {name: test(self.names[rows], self.vectors[rows]) for name, test in own.items()}
        return self._facts.at(rows).with_keys(more)

    def _on_ground(self, half: int, own: Mapping[str, Own]) -> dict[str, Bool[np.ndarray, " n"]]:
        of = self._halves[half]
        for test in own.values():
            if (half, test) not in self._flags:
                self._flags[half, test] = test(of.names, of.vectors)
        return {name: self._flags[half, test][of.word] for name, test in own.items()}

    def _own(self, cell: int, half: int) -> dict[str, Own]:
        """Forms that are often its keys, and words like them."""
        rows = self.rows(cell, half, TARGETS)
        own: dict[str, Own] = {FORM + forms: partial(_is_form, forms) for forms in self._forms(rows, half)}
        return own | self._like(self.rows(cell, half, STRONGEST), half)

    def _like(self, rows: Int[np.ndarray, " n"], half: int) -> dict[str, Own]:
        """The words of a half that are most like the keys of some pairs."""
        of = self._halves[half]
        if not len(rows) or not of.vectors.shape[1] or not of.content.any():
            return {}
        direction = self.vectors[rows].mean(0) - of.vectors[of.content].mean(0)
        bounds = np.quantile(np.einsum("wd,d->w", of.vectors, direction), [1 - share for share in LEARNED_SHARES])
        return {
            f"{LEARNED}{round(100 * share)}": partial(_is_like, direction, bound)
            for share, bound in zip(LEARNED_SHARES, bounds.tolist(), strict=True)
        }

    def _crossed(self, cell: int, rows: Int[np.ndarray, " n"], half: int) -> dict[str, Bool[np.ndarray, " n"]]:
        """Learned classes of some pairs' keys, each learned from other documents of their half."""
        strongest = self.rows(cell, half, STRONGEST)
        flags = {f"{LEARNED}{round(100 * share)}": np.zeros(len(rows), dtype=bool) for share in LEARNED_SHARES}
        for part in range(FOLDS):
            some = self._folds[rows] == part
            for name, test in self._like(strongest[self._folds[strongest] != part], half).items():
                flags[name][some] = test(self.names[rows[some]], self.vectors[rows[some]])
        return flags

    def _forms(self, rows: Int[np.ndarray, " n"], half: int) -> list[str]:
        """Forms of keys that are farthest above chance, alone and together."""
        usual = Counter(self._halves[half].names.tolist())
        names = [name for name, _ in {(self.names[row], self.documents[row]) for row in rows.tolist()}]
        gains = {
            name: count * np.log2(count / len(rows) / (usual[name] + 1) * usual.total())
            for name, count in Counter(names).items()
            if count >= FORM_SHARE * len(rows) and not is_punctuation(name) and "|" not in name
        }
        best = sorted((name for name, gain in gains.items() if gain > 0), key=lambda name: (-gains[name], name))
        return ["|".join(sorted(best[:most])) for most in range(1, min(len(best), FORMS) + 1)]

    def _dominated(self, clause: Clause, rows: Int[np.ndarray, " n"], half: int) -> bool:
        """Return True if what a clause about keys alone holds is a few forms that it doesn't name."""
        if not clause.key or clause.relation or clause.key in NAMING or clause.key[:1] in (FORM, LEARNED):
            return False
        counts = Counter(self.names[rows][clause.mask(self._facts.at(rows))].tolist())
        some = counts.most_common(SOME)
        whole = max(sum(counts.values()), 1)
        of = self._halves[half]
        held = np.flatnonzero(clause.mask(of.ground.facts))
        even, names = of.ground.even[held], of.names[of.word[held]].astype(str)
        few = len(np.unique(names)) <= FEW and len(counts) >= FEW_HELD
        if some and some[0][1] > DOMINANT * whole and not few:
            return True
        among = np.isin(names, [name for name, _ in some])
        share = sum(count for _, count in some) / whole
        return bool(share > DOMINANT and share * even.sum() > SOME_LIFT * even[among].sum())

    def borne_out(
        self, clause: Clause, rows: Int[np.ndarray, " n"], new: Bool[np.ndarray, " n"], shares: Float[np.ndarray, " n"]
    ) -> bool:
        """Return True if what a clause adds in the half that reports is no accident.

        It must hold over draws of documents, of places in the window, and of the keys' forms unless it names them:
        a head that likes some words, whatever they are, likes more nouns than chance if these few are nouns.
        """
        if new.sum() < max(NEW_HITS * len(new), LIFT * shares.sum()):
            return False
        groups: list[Any] = [self.documents[rows], self.queries[rows]]
        named = clause.key[:1] in (LEARNED, FORM) or not MARKED.isdisjoint(clause[1:])
        named |= clause.key == "PUNCT" and bool(new.mean() >= ENOUGH)
        if not named and not (clause.key in CLOSED and self._usual(clause, rows[new]) >= AS_USUAL):
            groups.append(self.names[rows].astype(str))
        return all(margins(new, shares, one)[int(SURE * RESAMPLES)] > 0 for one in groups)

    def _usual(self, clause: Clause, rows: Int[np.ndarray, " n"]) -> float:
        """The share of some pairs whose keys have their forms as often as by chance, of all that a clause holds."""
        of = self._halves[1]
        held = np.flatnonzero(clause.mask(of.ground.facts))
        names, place = np.unique(of.names[of.word[held]].astype(str), return_inverse=True)
        chances = dict(zip(names.tolist(), np.bincount(place, of.ground.even[held]).tolist(), strict=True))
        whole, count = max(sum(chances.values()), 1e-9), max(len(rows), 1)
        counts = Counter(self.names[rows].tolist())
        return sum(min(number / count, chances.get(name, 0) / whole) for name, number in counts.items())

    def reported(
        self, chosen: Mapping[int, tuple[list[Clause], dict[str, Own]]]
    ) -> dict[int, tuple[Bool[np.ndarray, "pairs sets"], Float[np.ndarray, "pairs sets"]]]:
        """Hold each head's clauses against its pairs of the other half: what sets of them hold, and would by chance.

        The sets are those of `unions`.
        """
        by_place: dict[int, list[tuple[int, int, int]]] = {}
        found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for cell, (clauses, own) in chosen.items():
            rows = self.rows(cell, 1, REPORTED)
            for at, row in enumerate(rows.tolist()):
                by_place.setdefault(int(self.places[row]), []).append((cell, at, row))
            facts = self.known(rows, own)
            hits = unions([clause.mask(facts) for clause in clauses], len(rows))
            found[cell] = hits, np.zeros(hits.shape)
        for place, wanted in by_place.items():
            known = self.texts.facts(place)
            for cell, at, row in wanted:
                query, (clauses, own) = int(self.queries[row]), chosen[cell]
                even = known.even(query, int(self.sums["behind"][cell]), int(self.sums["ahead"][cell]))
                masks = [known.row(clause, query, own) for clause in clauses]
                found[cell][1][at] = even @ unions(masks, len(known.passage))
        return found

    def rests(self, cell: int) -> dict[str, float | None]:
        """The mean weights on special tokens, the closing mark, a word's own tokens; and the mean entropy."""
        out_of = {"stop": "stop_words", "inner": "inner_words"}
        sums = {name: numbers[cell] for name, numbers in self.sums.items()}
        return {
            name: float(sums[name] / sums[of]) if sums[of := out_of.get(name, "words")] else None
            for name in ("special", "first", "sep", "stop", "inner", "entropy")
        }

    def possible(
        self, cell: int, half: int, clauses: Sequence[Clause], own: Mapping[str, Own]
    ) -> tuple[Ground, Facts, Bool[np.ndarray, " n"]]:
        """The pairs of the words drawn from a half, and whether any of these clauses holds each."""
        ground = self.ground(cell, half)
        facts = ground.facts.with_keys(self._on_ground(half, own))
        return ground, facts, np.logical_or.reduce([clause.mask(facts) for clause in clauses])

    def choices(self, cell: int) -> Int[np.ndarray, " rows"]:
        """Of each word drawn from the half that reports, the pair that a head chooses; -1 for none."""
        half = self._halves[1]
        return np.where(half.keys[cell] >= 0, half.starts + half.keys[cell], -1)
