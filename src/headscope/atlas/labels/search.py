"""The search for a head's description: which words it looks from, at which, by which relation, on which side.

A clause is at most one class of queries, one class of keys, one relation and one side. Of the targets, the pairs of a
half that are strongest, it holds a share h; of all words' even shares, B. What it gains, in bits per pair, is

    G = h log2(h/B) + (h' - h) log2((h' - h)/(B' - B)) - h' log2(h'/B') - COST atoms

where h' and B' are the shares that no clause before it explains. A description is at most three clauses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

COST = 0.12
"""Bits that an atom must gain."""
LEAST_SHARE, LATER_SHARE, LEAST_LIFT = 0.12, 0.06, 1.7
"""Share of the targets that a clause must hold, that a later one must add, and how many times its even share."""
BEAM, DEPTH = 12, 3
"""Clauses that are extended, and most atoms of one."""
CLAUSES, CHOSEN = 3, 5
"""Most clauses of a label, and most that are held against the other half for it."""
TRIES = 12
"""Most clauses that are found for a description, with those that are refused."""
NEAR = 0.08
"""Of clauses whose gain is within this share of the best, the one with the fewest atoms wins."""
FLOOR = 1e-3
"""Least even share: below it a sample says nothing."""
NAMED = 0.8
"""A learned class of keys is used only if no named clause has this share of its gain."""
NESTED = 0.9
"""A clause of whose even share another has this much is part of it."""
WIDER = 0.7
"""It gives way to it if that alone has this share of its gain."""
LEARNED = "~"
FORM = "="
"""First characters of the names of a head's own classes of keys: learned, and of a few forms (=but|not)."""
SLOTS = ("query", "key", "relation", "side")

Atoms = frozenset[tuple[str, str]]
"""Slots and names: of several clauses, what holds where all of them do."""


class Clause(NamedTuple):
    """A class of queries, a class of keys, a relation and a side, by name; empty where it says nothing of one."""

    query: str = ""
    key: str = ""
    relation: str = ""
    side: str = ""

    @property
    def atoms(self) -> int:
        """Number of things it says, each form that is named being one."""
        return sum(map(bool, self)) + (self.key.count("|") if self.key[:1] == FORM else 0)

    def said(self) -> Atoms:
        """The slots that it says something of, and what."""
        return frozenset((slot, name) for slot, name in zip(SLOTS, self, strict=True) if name)

    def extends(self, other: Clause) -> bool:
        """Return True if it says all that another says, or more."""
        return all(theirs in ("", own) for own, theirs in zip(self, other, strict=True))

    def mask(self, facts: Facts) -> Bool[np.ndarray, " n"]:
        """(n,), True for the pairs that it holds."""
        mask = np.ones(len(facts), dtype=bool)
        for slot, name in self.said():
            mask &= facts.of(slot, name)
        return mask


class Facts:
    """Things that hold of some pairs: slot -> name -> (n,) of bool."""

    def __init__(self, tables: Mapping[str, Mapping[str, Bool[np.ndarray, " n"]]], count: int) -> None:
        self.tables = {slot: dict(tables.get(slot, {})) for slot in SLOTS}
        self._count = count

    def __len__(self) -> int:
        return self._count

    def of(self, slot: str, name: str) -> Bool[np.ndarray, " n"]:
        """(n,); nothing holds that isn't known."""
        table = self.tables[slot]
        return table[name] if name in table else np.zeros(self._count, dtype=bool)

    def at(self, places: Int[np.ndarray, " k"] | Bool[np.ndarray, " n"]) -> Facts:
        """Some of the pairs."""
        tables = {slot: {name: flags[places] for name, flags in table.items()} for slot, table in self.tables.items()}
        return Facts(tables, int(np.zeros(self._count)[places].size))

    def with_keys(self, more: Mapping[str, Bool[np.ndarray, " n"]]) -> Facts:
        """With more classes of keys."""
        return Facts({**self.tables, "key": {**self.tables["key"], **more}}, self._count)


@dataclass(eq=False)
class Ground:
    """All pairs of the words drawn from one half, with the even share of each: what chance would explain.

    Attributes:
        facts: of the pairs, those of a word next to each other.
        even: (n,), b_ij; 1 in all for each word that looks.
        row: (n,), the number of the word that looks.
        rows: how many there are.
    """

    facts: Facts
    even: Float[np.ndarray, " n"]
    row: Int[np.ndarray, " n"]
    rows: int
    shares: dict[Atoms, float] = field(default_factory=dict)
    """B of the pairs of which all of some things are true, as far as it was asked for."""

    def share(self, atoms: Atoms, own: Mapping[str, Bool[np.ndarray, " n"]]) -> float:
        """B of the pairs of which all of these atoms are true, some of them a head's own classes of keys."""
        mask = np.ones(len(self.even), dtype=bool)
        for slot, name in atoms:
            mask &= own[name] if name in own else self.facts.of(slot, name)
        return float(self.even[mask].sum()) / max(self.rows, 1)

    def seen(self, gaps: Int[np.ndarray, " n"], behind: int, ahead: int) -> Ground:
        """The ground of heads that see so far back and ahead only."""
        near = (gaps >= -behind) & (gaps <= ahead)
        if near.all():
            return self
        even = self.even * near
        total = np.bincount(self.row, even, self.rows)[self.row]
        return Ground(self.facts, np.where(total > 0, even / np.where(total > 0, total, 1), 0), self.row, self.rows)


def gain_of(h: float, b: float, whole_h: float, whole_b: float, atoms: int) -> float:
    """G: see the head of the file."""
    rest_h, rest_b = max(whole_h - h, 0.0), max(whole_b - b, FLOOR)
    bits = h * math.log2(h / max(b, FLOOR)) if h > 0 else 0.0
    bits += rest_h * math.log2(rest_h / rest_b) if rest_h > 0 else 0.0
    return bits - whole_h * math.log2(whole_h / max(whole_b, FLOOR)) - COST * atoms


class Found(NamedTuple):
    """A clause with its gain in bits."""

    clause: Clause
    gain: float


class _State(NamedTuple):
    """The rest that clauses before leave.

    Attributes:
        free: (targets,), True for those that none of them holds.
        h, b: h' and B'.
        sets: of each set of these clauses, the sign with which its even share counts, and what all of them say.
    """

    free: np.ndarray
    h: float
    b: float
    sets: tuple[tuple[int, Atoms], ...]


class Search:
    """The search over one head's targets.

    Args:
        targets: what holds of them.
        ground: the choosing half's.
        own: key classes of the head itself, (ground's pairs,) of bool.
        refuses: tells of a clause that it must not be used.

    Attributes:
        refused: clauses that must not be found.
    """

    def __init__(
        self,
        targets: Facts,
        ground: Ground,
        own: Mapping[str, Bool[np.ndarray, " n"]],
        *,
        refuses: Callable[[Clause], bool] = lambda _: False,
    ) -> None:
        self._targets, self._ground = targets, ground
        self._weights = np.full(len(targets), 1 / max(len(targets), 1))
        self._own = own
        self._owned = frozenset(("key", name) for name in own)
        self._shares: dict[Atoms, float] = {}
        self._found: dict[tuple[Clause, ...], list[Found]] = {}
        self.refused: set[Clause] = set()
        self._refuses = refuses
        self._tables = {}
        for slot, table in targets.tables.items():
            names = [name for name in table if name[:1] != LEARNED]
            rows = [table[name] for name in names] or [np.zeros(len(targets), dtype=bool)]
            self._tables[slot] = names, np.stack(rows).astype(np.float64)

    def _even(self, atoms: Atoms) -> float:
        """B of the pairs of which all of this is true; kept for all heads, unless it has a class of this one."""
        kept = self._ground.shares if self._owned.isdisjoint(atoms) else self._shares
        if atoms not in kept:
            kept[atoms] = self._ground.share(atoms, self._own)
        return kept[atoms]

    def description(self, kept: Sequence[Clause] = ()) -> list[Found]:
        """At most CHOSEN clauses, with those before them, of which none holds what another does."""
        result: list[Found] = []
        for _ in range(TRIES):
            clauses = [*kept, *(one.clause for one in result)]
            found = self.best(clauses, learned=all(clause.key[:1] != LEARNED for clause in clauses))
            if found is None:
                break
            clause = found.clause
            if self._refuses(clause):
                self.refused.add(clause)
                continue
            said = clause.said()
            parts = (self._even(one.said() | said) >= NESTED * self._even(one.said()) for one in clauses)
            at = next((at for at, part in enumerate(parts) if part), len(clauses))
            if at < len(clauses):  # it holds all that this one did, and more
                state = self._state(clauses[:at])
                h, b = self._beyond(clause, state)
                found = Found(clause, gain_of(h, b, state.h, state.b, clause.atoms))
                if at < len(kept) or found.gain < WIDER * result[at - len(kept)].gain:
                    self.refused.add(clause)
                    continue
            result[at - len(kept) :] = [found]
            if len(kept) + len(result) == CHOSEN:
                break
        return result

    def _state(self, before: Sequence[Clause]) -> _State:
        free = np.ones(len(self._targets), dtype=bool)
        for clause in before:
            free &= ~clause.mask(self._targets)
        some = (one for count in range(len(before) + 1) for one in combinations(before, count))
        sets = tuple(((-1) ** len(one), frozenset().union(*(clause.said() for clause in one))) for one in some)
        b = sum(sign * (self._even(said) if said else 1.0) for sign, said in sets)
        return _State(free, float(self._weights[free].sum()), max(b, FLOOR), sets)

    def _beyond(self, clause: Clause, state: _State) -> tuple[float, float]:
        """The shares h and B of a clause that none before it holds."""
        new = clause.mask(self._targets) & state.free
        said = clause.said()
        return float(self._weights[new].sum()), sum(sign * self._even(said | others) for sign, others in state.sets)

    def best(self, before: Sequence[Clause] = (), *, learned: bool = False) -> Found | None:
        """The clause that gains most beyond those before it, or a simpler one that gains nearly as much.

        Args:
            before: clauses that explain something already.
            learned: whether learned classes of keys may be used, each alone.
        """
        state = self._state(before)
        if state.h <= 0:
            return None
        special: list[Found] = []
        for name in self._targets.tables["key"] if learned else ():
            clause = Clause(key=name)
            if name[:1] != LEARNED or clause in self.refused:
                continue
            if (found := self._measured(clause, state)) is not None:
                special.append(found)
        if tuple(before) not in self._found:
            self._found[tuple(before)] = self._named(state)
        named = [found for found in self._found[tuple(before)] if found.clause not in self.refused]
        return self._simplest(named, special)

    def _named(self, state: _State) -> list[Found]:
        """The clauses with a key or a relation that were found, however they came about."""
        beam = self._extended([Clause()], state, first=True)
        seen = list(beam)
        for _ in range(DEPTH - 1):
            beam = sorted(beam, key=lambda found: (-found.gain, found.clause))[:BEAM]
            beam = self._extended([found.clause for found in beam], state)
            seen += beam
        return [found for found in seen if found.clause.key or found.clause.relation]

    def _simplest(self, named: list[Found], special: list[Found]) -> Found | None:
        best = max((found.gain for found in named), default=-math.inf)
        most = max((found.gain for found in special), default=-math.inf)
        if most > 0 and best < NAMED * most:
            return max(special, key=lambda found: (found.gain, found.clause))
        if best <= 0:
            return None
        near = [found for found in named if found.gain >= (1 - NEAR) * best]
        return min(
            near,
            key=lambda found: (found.clause.atoms, -round(found.gain, 6), bool(found.clause.relation), found.clause),
        )

    def _extended(self, clauses: list[Clause], state: _State, *, first: bool = False) -> list[Found]:
        """Every clause with one thing more that is worth keeping."""
        result: dict[Clause, Found | None] = {}
        for clause in clauses:
            held = self._weights * (clause.mask(self._targets) & state.free)
            for at, slot in enumerate(SLOTS):
                if clause[at] or (first and slot == "query"):
                    continue
                names, matrix = self._tables[slot]
                shares = np.einsum("nt,t->n", matrix, held)  # too small for several threads
                for which in np.flatnonzero(shares >= self._enough(state)).tolist():
                    longer = Clause(*(names[which] if place == at else old for place, old in enumerate(clause)))
                    if longer not in result:
                        result[longer] = self._measured(longer, state)
        return [found for found in result.values() if found is not None]

    def _enough(self, state: _State) -> float:
        return LATER_SHARE if len(state.sets) > 1 else LEAST_SHARE

    def _measured(self, clause: Clause, state: _State) -> Found | None:
        """A clause and its gain; None if it holds too little, or hardly more than chance."""
        h, b = self._beyond(clause, state)
        if h < self._enough(state) or h < LEAST_LIFT * b:
            return None
        return Found(clause, gain_of(h, b, state.h, state.b, clause.atoms))
