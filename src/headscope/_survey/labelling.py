"""What each head is for, by one table of rules: chosen on half of the documents, reported on the other half.

A label describes the choice among words: a word's strongest other word, or how its weight is spread over words. What
special tokens hold is reported beside it. A rule applies where the lower bound of its score's 95% interval, over the
documents with even numbers, is above the rule's threshold and far enough above its baseline. Of those that apply, the
first group of the table wins; within a group the largest (score - baseline) / (1 - baseline). The label is given if the
documents with odd numbers confirm it: the score itself is above the threshold, and the lower bound above the baseline.
If they don't, the head has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow

from headscope._survey.claims import Claim, claims_of
from headscope._survey.halves import Halves
from headscope._survey.intervals import Moments
from headscope._survey.pairs import ALL, KEPT
from headscope._survey.sums import OFFSETS

NONE = "none"

NOT_THE_WHOLE = 25
"""Of a head's KEPT strongest pairs, how many a label explains that is no more than a part of what the head does."""

BESIDE_THE_POINT = 5
"""How many a label must explain to be given."""

LEAST_DOCUMENTS = 4
"""Documents of each half without which no head is labelled."""


@dataclass(frozen=True)
class Rule:
    """How a label is earned.

    Attributes:
        label: what the head does, in words.
        group: rules of the first group with one that applies win.
        score: two columns of SUMS: what is counted, and out of what.
        baseline: the column of what `score` would be by chance; of text, not of the head.
        least: what the lower bound of the score must reach.
        gain: how far above its baseline the score must be.
        times: how many times its baseline.
        offset: of a rule about position.
        count: fewest words that it was counted over, in each half.
        weight: a column of weights, and their fewest mean.
        source: where the rule comes from.
    """

    label: str
    group: int
    score: tuple[str, str]
    baseline: str | None
    least: float
    source: str
    gain: float = 0.0
    times: float = 0.0
    offset: int | None = None
    count: int = 60
    weight: tuple[str, float] | None = None


def _position(offset: int) -> Rule:
    side = "left" if offset < 0 else "right"
    label = {-1: "previous word", 1: "next word"}.get(offset, f"{abs(offset)} words to the {side}")
    return Rule(
        label,
        1,
        (f"at{offset:+d}", "words"),
        "chance",
        0.5,
        "Clark et al. 2019, section 3.1",
        gain=0.2,
        offset=offset,
        weight=(f"weight{offset:+d}", 0.1),
    )


RULES = (
    *map(_position, OFFSETS),
    Rule(
        "same word elsewhere",
        1,
        ("same", "same_words"),
        "same_chance",
        0.5,
        "duplicate-token heads: Wang et al. 2022",
        gain=0.2,
        count=30,
    ),
    Rule("rest of the word", 1, ("inner_weight", "inner"), "outer_weight", 0.1, "ours", gain=0.1),
    Rule(
        "punctuation",
        1,
        ("punctuation", "text_words"),
        "punctuation_chance",
        0.3,
        "Clark et al. 2019, section 3.2",
        times=3,
    ),
    Rule(
        "the same words for all",
        2,
        ("key", "key_and_query"),
        None,
        0.7,
        "ours: log n minus the mean entropy is the part of the key plus the part of the query",
        weight=("key", 0.1),
    ),
    Rule(
        "the first token", 3, ("first", "words"), "first_chance", 0.45, "Clark et al. 2019; Xiao et al. 2024", times=3
    ),
    Rule("[SEP]", 3, ("sep", "words"), "sep_chance", 0.45, "Clark et al. 2019, section 3.2", times=3),
    Rule("broad", 4, ("entropy", "spread_words"), None, 0.82, "Clark et al. 2019, section 3.3"),
)
"""All rules but those of syntax, which claims.py makes of the treebank's relations: they are of group 1, and of group 0
where they are STRONG. Thresholds were tuned on all-MiniLM-L6-v2; docs/survey.md says what follows from that."""

SYNTAX_SOURCE = "Clark et al. 2019, section 4.2"
SYNTAX_LEAST, SYNTAX_GAIN, SYNTAX_Z, SYNTAX_COUNT = 0.4, 0.1, 4.3, 30
"""Mean score, gain over the best fixed offset, its standard errors (Bonferroni over the claims that are tried), and
occurrences in each half."""

STRONG = 0.4
"""(score - baseline) / (1 - baseline) from which syntax comes first."""

NEIGHBOURS = frozenset(rule.label for rule in RULES if rule.offset in (-1, 1))
"""The labels of heads whose examples are neighbours."""

COLUMNS = (
    ("layer", pyarrow.int16()),
    ("head", pyarrow.int16()),
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
    ("source", pyarrow.string()),
    ("special", pyarrow.float64()),
    ("first", pyarrow.float64()),
    ("sep", pyarrow.float64()),
)


@dataclass(frozen=True)
class Candidate:
    """A rule that applies to a head on the half that chooses.

    Attributes:
        label, group, source: the rule's.
        gain: (score - baseline) / (1 - baseline) there.
        score: over the other half.
        count: occurrences there.
        baseline: there too; None where a rule has none.
        confirmed: whether it holds there.
        rule: the simplest rule that does as well; for syntax alone.
        rule_score: how often that is right.
        explains: which of the pairs it explains; None for labels that are not about pairs.
    """

    label: str
    group: int
    source: str
    gain: float
    score: Moments
    count: int
    baseline: float | None
    confirmed: bool
    rule: str | None = None
    rule_score: float | None = None
    explains: Callable[[pyarrow.Table], np.ndarray] | None = None


def labels_table(
    folder: Path,
    documents: Sequence[int],
    heads: Sequence[tuple[int, int]],
    pairs: pyarrow.Table,
    *,
    syntax: bool,
) -> pyarrow.Table:
    """`survey.labels`, from the files beside the parts.

    Args:
        folder: the survey's.
        documents: how many documents each part has.
        heads: (layer, head) of every head.
        pairs: the strongest of all parts, merged.
        syntax: whether the corpus is a treebank.
    """
    halves = Halves(folder, documents, len(heads), [rule.score for rule in RULES])
    claims = claims_of(folder, documents, len(heads)) if syntax else []
    strongest = pairs.filter(pyarrow.array(pairs["list"].to_numpy() == ALL))
    cell_of = strongest["cell"].to_numpy()
    rows = []
    for cell, (layer, head) in enumerate(heads):
        best = strongest.filter(pyarrow.array(cell_of == cell)).slice(0, KEPT)
        candidates = [candidate for rule in RULES if (candidate := _candidate(rule, halves, cell)) is not None]
        candidates += [candidate for claim in claims if (candidate := _syntactic(claim, cell)) is not None]
        if min(halves.documents) < LEAST_DOCUMENTS:
            candidates = []
        candidates.sort(key=lambda candidate: (candidate.group, -candidate.gain, candidate.label))
        beside = tuple(halves.share(1, cell, name, "words") for name in ("special", "first", "sep"))
        rows.append((layer, head, *_row(candidates, best, min(halves.documents)), *map(_number, beside)))
    columns = zip(*rows, strict=True)
    return pyarrow.table(
        {name: pyarrow.array(values, kind) for (name, kind), values in zip(COLUMNS, columns, strict=True)}
    )


def _row(candidates: list[Candidate], pairs: pyarrow.Table, documents: int) -> tuple[object, ...]:
    """The columns from `label` to `source`."""
    note = "" if documents >= LEAST_DOCUMENTS else f"fewer than {LEAST_DOCUMENTS} documents in a half"
    for at, candidate in enumerate(candidates):
        if not candidate.confirmed:
            note = f"not confirmed on the other half: {candidate.label}"
            break
        coverage = None if candidate.explains is None else int(candidate.explains(pairs).sum())
        if coverage is not None and coverage < BESIDE_THE_POINT:
            continue
        if coverage is not None and coverage < NOT_THE_WHOLE:
            note = "true, but not the whole"
        also = [other.label for other in candidates[at + 1 :] if other.confirmed]
        numbers = (candidate.score.share, *candidate.score.interval())
        kept = (
            candidate.count,
            candidate.baseline,
            candidate.rule,
            candidate.rule_score,
            coverage,
            note,
            also,
            candidate.source,
        )
        return (candidate.label, *map(_number, numbers), *kept)
    return (NONE, None, None, None, None, None, None, None, None, note, [], None)


def _candidate(rule: Rule, halves: Halves, cell: int) -> Candidate | None:
    """A rule, where it applies to a head on the half that chooses."""
    chosen = halves.moments(0, cell, rule.score)
    if not _applies(rule, halves, cell, 0, chosen):
        return None
    held_out = halves.moments(1, cell, rule.score)
    base = _baseline(rule, halves, cell, 0)
    held_out_base = None if rule.baseline is None else _baseline(rule, halves, cell, 1)
    return Candidate(
        label=rule.label,
        group=rule.group,
        source=rule.source,
        gain=(chosen.share - base) / (1 - base),
        score=held_out,
        count=int(halves.total(1, cell, _words_of(rule))),
        baseline=held_out_base,
        confirmed=_holds(held_out, 0.0 if held_out_base is None else held_out_base, _least(rule, halves, cell, 1)),
        explains=_explains(rule),
    )


def _baseline(rule: Rule, halves: Halves, cell: int, half: int) -> float:
    return 0.0 if rule.baseline is None else halves.share(half, cell, rule.baseline, rule.score[1])


def _applies(rule: Rule, halves: Halves, cell: int, half: int, score: Moments) -> bool:
    """Return True if a rule applies over the half that chooses."""
    if halves.total(half, cell, _words_of(rule)) < rule.count or score.documents < 2:
        return False
    if not score.interval()[0] >= _least(rule, halves, cell, half):
        return False
    return rule.weight is None or halves.share(half, cell, rule.weight[0], _words_of(rule)) >= rule.weight[1]


def _least(rule: Rule, halves: Halves, cell: int, half: int) -> float:
    """What the score must reach over a half."""
    base = _baseline(rule, halves, cell, half)
    return max(rule.least, base + rule.gain, base * rule.times)


def _holds(score: Moments, base: float, least: float) -> bool:
    """Return True if the half that didn't choose confirms a rule: its score is high enough, and surely above chance."""
    return score.documents >= 2 and score.share >= least and score.interval()[0] > base


def _words_of(rule: Rule) -> str:
    """The column of how many words a rule was counted over."""
    return "spread_words" if rule.score[1] == "key_and_query" else rule.score[1]


def _syntactic(claim: Claim, cell: int) -> Candidate | None:
    """A relation that a head finds, where it does on the half that chooses."""
    chosen, held_out = claim.moments(0, cell), claim.moments(1, cell)
    if not _finds(chosen, claim.baselines[0]):
        return None
    base, gain = claim.baselines[1], (chosen.share - claim.baselines[0]) / (1 - claim.baselines[0])
    rule, rule_score = claim.rule
    as_good = rule is not None and rule_score >= held_out.interval()[0]
    return Candidate(
        label=claim.label + (f", or just the {rule}" if as_good else ""),
        group=0 if gain >= STRONG else 1,
        source=SYNTAX_SOURCE,
        gain=gain,
        score=held_out,
        count=int(held_out.sums[1]),
        baseline=base,
        confirmed=_holds(held_out, base, SYNTAX_LEAST),
        rule=rule,
        rule_score=_number(rule_score),
        explains=claim.explains,
    )


def _finds(score: Moments, base: float) -> bool:
    if score.sums[1] < SYNTAX_COUNT or score.documents < 2 or score.share < max(SYNTAX_LEAST, base + SYNTAX_GAIN):
        return False
    return score.share - base >= SYNTAX_Z * score.error if score.error > 0 else True


def _explains(rule: Rule) -> Callable[[pyarrow.Table], np.ndarray] | None:
    """Which pairs a rule explains; None for rules that are not about pairs."""
    if rule.offset is not None:
        return lambda pairs: pairs["key"].to_numpy() - pairs["query"].to_numpy() == rule.offset
    if rule.label in ("same word elsewhere", "punctuation"):
        column = "same" if rule.label.startswith("same") else "punctuation"
        return lambda pairs: pairs[column].to_numpy(zero_copy_only=False)
    return None


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
