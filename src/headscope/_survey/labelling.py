"""What each head is for, by the rules of rules.py: chosen on half of the documents, reported on the other half.

A label describes the choice among words: a word's strongest other word, or how its weight is spread over words. What
special tokens hold is reported beside it. A rule applies where the lower bound of its score's 95% interval, over the
documents with even numbers, is above the rule's threshold and far enough above its baseline. Of those that apply, the
first group of the table wins; within a group the largest (score - baseline) / (1 - baseline). The label is given if the
documents with odd numbers confirm it: the score itself is above the threshold, and the lower bound above the baseline.
If they don't, the head has none.

A head that finds several relations of a family is labelled with the family. Whether a head is hardly felt is measured
over the windows in which its label has something to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow

from headscope._survey.claims import Claim, Pooled, claims_of, family_of, pooled
from headscope._survey.halves import Halves
from headscope._survey.intervals import Moments, Resampled
from headscope._survey.pairs import ALL, FLAGS, KEPT, PIECES, RANKS
from headscope._survey.rules import (
    ALIKE,
    BESIDE_THE_POINT,
    FELT,
    FELT_SHARE,
    FELT_WINDOWS,
    LEAST_DOCUMENTS,
    MEMBER_GAIN,
    MEMBER_Z,
    MEMBERS,
    NONE,
    NOT_THE_WHOLE,
    RULES,
    SINKS,
    STRONG,
    SYNTAX_COUNT,
    SYNTAX_GAIN,
    SYNTAX_LEAST,
    SYNTAX_SOURCE,
    SYNTAX_Z,
    Rule,
)
from headscope._survey.sums import OFFSETS

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

COLUMNS = (
    ("layer", pyarrow.int16()),
    ("head", pyarrow.int16()),
    ("kind", pyarrow.string()),
    ("label", pyarrow.string()),
    ("score", pyarrow.float64()),
    ("low", pyarrow.float64()),
    ("high", pyarrow.float64()),
    ("count", pyarrow.int64()),
    ("baseline", pyarrow.float64()),
    ("rule", pyarrow.string()),
    ("rule_score", pyarrow.float64()),
    ("coverage", pyarrow.int32()),
    ("note", pyarrow.string()),
    ("also", pyarrow.list_(pyarrow.string())),
    ("relations", pyarrow.list_(pyarrow.string())),
    ("source", pyarrow.string()),
    ("special", pyarrow.float64()),
    ("first", pyarrow.float64()),
    ("sep", pyarrow.float64()),
)


@dataclass(frozen=True)
class Candidate:
    """A rule that applies to a head on the half that chooses.

    Attributes:
        kind, label, group, source: the rule's.
        gain: (score - baseline) / (1 - baseline) there.
        score: over the other half.
        count: occurrences there.
        baseline: there too; None where a rule has none.
        confirmed: whether it holds there.
        rule: the simplest rule that does as well; for syntax alone.
        rule_score: how often that is right.
        explains: which of the strongest pairs it explains.
        pieces: whether these are pairs of tokens.
        acts: what a window must have for the head to have something to do; None for any.
    """

    kind: str
    label: str
    group: int
    source: str
    gain: float
    score: Moments
    count: int
    baseline: float | None
    confirmed: bool
    explains: Callable[[pyarrow.Table], np.ndarray]
    rule: str | None = None
    rule_score: float | None = None
    pieces: bool = False
    acts: frozenset[str] | None = None


@dataclass(frozen=True, eq=False)
class Felt:
    """What silencing heads changes, window by window.

    Attributes:
        changes: (windows, heads_total).
        acts: of each window, as in EffectWindow.acts.
        documents: of each window.
        whole: the mean change of the number with all heads removed.
    """

    changes: Float[np.ndarray, "windows heads_total"]
    acts: tuple[frozenset[str], ...]
    documents: tuple[int, ...]
    whole: float

    def hardly(self, cell: int, acts: frozenset[str] | None) -> int:
        """Over how many windows a head is hardly felt, of those with something of `acts` or of all; 0 if it is felt."""
        some = [at for at, present in enumerate(self.acts) if acts is None or present & acts]
        if len(some) < FELT_WINDOWS:
            return 0
        _, low, high = Resampled([self.documents[at] for at in some]).means(self.changes[some, cell : cell + 1])
        return len(some) if max(abs(low[0]), abs(high[0])) < FELT_SHARE * abs(self.whole) else 0


def labels_table(
    folder: Path,
    documents: Sequence[int],
    heads: Sequence[tuple[int, int]],
    pairs: pyarrow.Table,
    *,
    syntax: bool,
    felt: Felt | None = None,
) -> pyarrow.Table:
    """`survey.labels`, from the files beside the parts.

    Args:
        folder: the survey's.
        documents: how many documents each part has.
        heads: (layer, head) of every head.
        pairs: the strongest of all parts, merged.
        syntax: whether the corpus is a treebank.
        felt: what silencing the heads changes; None if it wasn't measured.
    """
    halves = Halves(folder, documents, len(heads), [rule.score for rule in RULES])
    claims = claims_of(folder, documents, len(heads)) if syntax else []
    strongest = {kind: pairs.filter(pyarrow.array(pairs["list"].to_numpy() == kind)) for kind in (ALL, PIECES)}
    finds = {cell: [claim for claim in claims if _applies_to(claim, cell)] for cell in range(len(heads))}
    members = {cell: [claim for claim in claims if _belongs(claim, cell)] for cell in range(len(heads))}
    families = {cell: family for cell, of in members.items() if (family := family_of(of, MEMBERS)) is not None}
    pools = pooled(folder, documents, len(heads), families) if families else {}
    pools = {cell: pool for cell, pool in pools.items() if _finds(pool.moments(0), pool.baselines[0])}
    rows = []
    for cell, (layer, head) in enumerate(heads):
        best = {
            kind: table.filter(pyarrow.array(table["cell"].to_numpy() == cell)).slice(0, KEPT)
            for kind, table in strongest.items()
        }
        candidates = [candidate for rule in RULES if (candidate := _candidate(rule, halves, cell)) is not None]
        singles = [_syntactic(claim, cell) for claim in finds[cell]]
        if cell in pools:
            candidates.append(whole := _familiar(pools[cell]))
            behind = tuple(claim.label for claim in pools[cell].claims)
            singles = [_behind(single, whole) if single.label.startswith(behind) else single for single in singles]
        candidates += singles
        if min(halves.documents) < LEAST_DOCUMENTS:
            candidates = []
        candidates.sort(key=lambda candidate: (candidate.group, -candidate.gain))  # stable: a family before its own
        beside = tuple(halves.share(1, cell, name, "words") for name in ("special", "first", "sep"))
        hardly = _never if felt is None else partial(felt.hardly, cell)
        row = _row(candidates, best, min(halves.documents), hardly)
        rows.append((layer, head, *row, *map(_number, beside)))
    columns = zip(*rows, strict=True)
    return pyarrow.table(
        {name: pyarrow.array(values, kind) for (name, kind), values in zip(COLUMNS, columns, strict=True)}
    )


def _behind(single: Candidate, whole: Candidate) -> Candidate:
    """A relation of a family that the head finds: it comes behind the family."""
    return replace(single, group=whole.group, gain=min(single.gain, whole.gain))


def _never(acts: frozenset[str] | None) -> int:
    """Felt.hardly where effects weren't measured."""
    return 0


def _row(
    candidates: list[Candidate],
    pairs: dict[int, pyarrow.Table],
    documents: int,
    hardly: Callable[[frozenset[str] | None], int],
) -> tuple[object, ...]:
    """The columns from `kind` to `source`."""
    notes = [] if documents >= LEAST_DOCUMENTS else [f"fewer than {LEAST_DOCUMENTS} documents in a half"]
    for at, candidate in enumerate(candidates):
        if not candidate.confirmed:
            notes.append(f"not confirmed on the other half: {candidate.label}")
            break
        coverage = int(candidate.explains(pairs[PIECES if candidate.pieces else ALL]).sum())
        if candidate.group < SINKS and coverage < BESIDE_THE_POINT:
            continue
        if coverage < NOT_THE_WHOLE:
            notes.append("true, but not the whole")
        also = [other.label for other in candidates[at + 1 :] if other.confirmed]
        if windows := hardly(candidate.acts):
            also.append(FELT)
            notes.append(f"{FELT} over {windows} windows{'' if candidate.acts is None else ' where the label applies'}")
        numbers = (candidate.score.share, *candidate.score.interval())
        kept = (
            candidate.count,
            candidate.baseline,
            candidate.rule,
            candidate.rule_score,
            coverage,
            "; ".join(notes),
            also,
            sorted(candidate.acts or ()) if candidate.kind == "syntax" else [],
            candidate.source,
        )
        return (candidate.kind, candidate.label, *map(_number, numbers), *kept)
    also = []
    if windows := hardly(None):
        also.append(FELT)
        notes.append(f"{FELT} over {windows} windows")
    return (NONE, NONE, None, None, None, None, None, None, None, None, "; ".join(notes), also, [], None)


def _candidate(rule: Rule, halves: Halves, cell: int) -> Candidate | None:
    """A rule, where it applies to a head on the half that chooses."""
    chosen = halves.moments(0, cell, rule.score)
    if not _applies(rule, halves, cell, 0, chosen):
        return None
    held_out = halves.moments(1, cell, rule.score)
    base = _baseline(rule, halves, cell, 0)
    held_out_base = None if rule.baseline is None else _baseline(rule, halves, cell, 1)
    return Candidate(
        kind="position" if rule.offset is not None else rule.label,
        label=rule.label,
        group=rule.group,
        source=rule.source,
        gain=(chosen.share - base) / (1 - base),
        score=held_out,
        count=int(halves.total(1, cell, rule.words)),
        baseline=held_out_base,
        confirmed=_holds(held_out, 0.0 if held_out_base is None else held_out_base, _least(rule, halves, cell, 1)),
        explains=partial(explained, rule),
        pieces=rule.covers == "pieces",
        acts=None if rule.act is None else frozenset([rule.act]),
    )


def _baseline(rule: Rule, halves: Halves, cell: int, half: int) -> float:
    if rule.baseline is None:
        return 0.0
    columns = [rule.baseline] + ([f"{rule.offsets}{offset:+d}" for offset in OFFSETS] if rule.offsets else [])
    return max(halves.share(half, cell, column, rule.score[1]) for column in columns)


def _applies(rule: Rule, halves: Halves, cell: int, half: int, score: Moments) -> bool:
    """Return True if a rule applies over the half that chooses."""
    if halves.total(half, cell, rule.words) < rule.count or score.documents < 2:
        return False
    if not score.interval()[0] >= _least(rule, halves, cell, half):
        return False
    return rule.weight is None or halves.share(half, cell, rule.weight[0], rule.words) >= rule.weight[1]


def _least(rule: Rule, halves: Halves, cell: int, half: int) -> float:
    """What the score must reach over a half."""
    base = _baseline(rule, halves, cell, half)
    return max(rule.least, base + rule.gain, base * rule.times)


def _holds(score: Moments, base: float, least: float) -> bool:
    """Return True if the half that didn't choose confirms a rule: its score is high enough, and surely above chance."""
    return score.documents >= 2 and score.share >= least and score.interval()[0] > base


def _applies_to(claim: Claim, cell: int) -> bool:
    """Return True if a head finds a relation on the half that chooses."""
    return _finds(claim.moments(0, cell), claim.baselines[0])


def _belongs(claim: Claim, cell: int) -> bool:
    """Return True if a head finds a relation clearly enough, on the half that chooses, to count for its family."""
    score, base = claim.moments(0, cell), claim.baselines[0]
    if score.sums[1] < SYNTAX_COUNT or score.documents < 2 or score.share - base < MEMBER_GAIN:
        return False
    return score.share - base >= MEMBER_Z * score.error


def _syntactic(claim: Claim, cell: int) -> Candidate:
    """A relation that a head finds on the half that chooses."""
    return _found(
        claim.label,
        (claim.moments(0, cell), claim.moments(1, cell)),
        claim.baselines,
        claim.rule,
        claim.explains,
        [claim.relation],
    )


def _familiar(pool: Pooled) -> Candidate:
    """A family of which a head finds several relations on the half that chooses."""
    return _found(
        pool.label,
        (pool.moments(0), pool.moments(1)),
        pool.baselines,
        ("nearest of the right kind", pool.rule_score),
        pool.explains,
        [claim.relation for claim in pool.claims],
    )


def _found(
    label: str,
    moments: tuple[Moments, Moments],
    baselines: tuple[float, float],
    rule: tuple[str | None, float],
    explains: Callable[[pyarrow.Table], np.ndarray],
    relations: Sequence[str],
) -> Candidate:
    """A label about syntax, from the half that chooses and the other."""
    chosen, held_out = moments
    gain = (chosen.share - baselines[0]) / (1 - baselines[0])
    name, rule_score = rule
    as_good = name is not None and rule_score >= held_out.interval()[0]
    return Candidate(
        kind="syntax",
        label=label + (f", or just the {name}" if as_good else ""),
        group=0 if gain >= STRONG else 1,
        source=SYNTAX_SOURCE,
        gain=gain,
        score=held_out,
        count=int(held_out.sums[1]),
        baseline=baselines[1],
        confirmed=_holds(held_out, baselines[1], SYNTAX_LEAST),
        explains=explains,
        rule=name,
        rule_score=_number(rule_score),
        acts=frozenset(relations),
    )


def _finds(score: Moments, base: float) -> bool:
    if score.sums[1] < SYNTAX_COUNT or score.documents < 2 or score.share < max(SYNTAX_LEAST, base + SYNTAX_GAIN):
        return False
    return score.share - base >= SYNTAX_Z * score.error if score.error > 0 else True


def explained(rule: Rule, pairs: pyarrow.Table) -> Bool[np.ndarray, " pairs"]:
    """Which of a head's strongest pairs a rule explains."""
    query, key = pairs["query"].to_numpy(), pairs["key"].to_numpy()
    if rule.covers == "offset":
        return np.asarray(key - query == rule.offset)
    if rule.covers == "pieces":
        return np.asarray(key == query)
    if rule.covers == "rank":
        return np.asarray(pairs["rank"].to_numpy() >= ALIKE * RANKS)
    if rule.covers in FLAGS:
        return np.asarray(pairs["flags"].to_numpy() >> FLAGS.index(rule.covers) & 1, dtype=bool)
    return np.asarray(pairs[rule.covers].to_numpy(zero_copy_only=False), dtype=bool)


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
