"""The rules of labels, as data: what a head must do, how often, against which baseline, and who says so.

docs/survey.md shows these tables; `pytest tests/survey/test_rules.py --refresh-screens` writes them there.
"""

from __future__ import annotations

from dataclasses import dataclass

from headscope._survey.sums import EVEN, OFFSETS

UP, DOWN = "up", "down"
"""From a dependent to its head, and from a head to such a dependent of it."""

NONE = "none"

FELT = "hardly felt"
"""Never the first label: how little a head changes says nothing of what it does."""

FELT_SHARE = 0.001
"""Share of what removing all heads costs, which the interval of a head's change must stay below on both sides."""

FELT_WINDOWS = 10
"""Windows in which the head's label has something to do, without which nothing is said about how it is felt."""

NOT_THE_WHOLE = 25
"""Of a head's KEPT strongest pairs, how many a label explains that is no more than a part of what the head does."""

BESIDE_THE_POINT = 5
"""How many a label must explain to be given, unless it is of group SINKS or later."""

SINKS = 3
"""The first group of labels that are about what words don't get, so that the strongest pairs are their exceptions."""

LEAST_DOCUMENTS = 4
"""Documents of each half without which no head is labelled."""

ALIKE = 0.8
"""The rank by meaning from which a pair counts as explained by “similar meaning”; by chance a fifth of all."""


@dataclass(frozen=True)
class Rule:
    """How a label is earned.

    Attributes:
        label: what the head does, in words.
        group: rules of the first group with one that applies win.
        score: two columns of SUMS: what is counted, and out of what.
        words: the column of how many words or tokens it was counted over.
        baseline: the column of what `score` would be by chance; of text, not of the head.
        offsets: the columns of what the best fixed offset would reach begin so; the larger baseline counts.
        least: what the lower bound of the score must reach.
        gain: how far above its baseline the score must be.
        times: how many times its baseline.
        offset: of a rule about position.
        count: fewest words that it was counted over, in each half.
        weight: a column of weights, and their fewest mean.
        covers: how a pair is known to be explained: `offset`, a column of pairs, `rank`, `pieces`, or one of FLAGS.
        act: what a window must have for the head to have something to do, as in EffectWindow.acts; None for any.
        measure, against, explains: the score, its baselines, and the pairs that it explains, in words.
        source: where the rule comes from.
    """

    label: str
    group: int
    score: tuple[str, str]
    words: str
    baseline: str | None
    least: float
    covers: str
    measure: str
    against: str
    explains: str
    source: str
    offsets: str | None = None
    gain: float = 0.0
    times: float = 0.0
    offset: int | None = None
    count: int = 60
    weight: tuple[str, float] | None = None
    act: str | None = None

    @property
    def threshold(self) -> str:
        """The thresholds, in words."""
        words = [f"{self.least:.2f}"]
        words += [f"{self.gain:.2f} above"] if self.gain else []
        words += [f"{self.times:.0f} times"] if self.times else []
        if self.weight is not None:
            words.append(f"{'K' if self.weight[0] == 'key' else 'mean weight'} {self.weight[1]:.2f}")
        return ", ".join([*words, f"{self.count} words"])


def _position(offset: int) -> Rule:
    side = "left" if offset < 0 else "right"
    return Rule(
        {-1: "previous word", 1: "next word"}.get(offset, f"{abs(offset)} words to the {side}"),
        1,
        (f"at{offset:+d}", "words"),
        "words",
        "chance",
        0.5,
        "offset",
        "share of words whose strongest word stands there",
        "any other word",
        "the key stands there",
        "Clark et al. 2019, 3.1",
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
        "same_words",
        "same_chance",
        0.5,
        "same",
        "content words that occur again, not as neighbours: share whose strongest word is such an occurrence",
        "occurrences among other words; the best fixed offset",
        "the key is such an occurrence",
        "duplicate-token heads, Wang et al. 2022",
        offsets="same_chance",
        gain=0.2,
        count=30,
        act="same_words",
    ),
    Rule(
        "similar meaning",
        1,
        ("similar", "similar_weight"),
        "similar_words",
        "similar_chance",
        0.65,
        "rank",
        "content words whose strongest word is another content word, not a neighbour: its rank by cosine of centred "
        "input embeddings, among such words of its own part of speech, weighted by the attention that it gets",
        "the mean rank of the same key for all words of the window",
        f"the key's rank is {ALIKE} or more",
        "ours",
        gain=0.1,
        weight=("similar_weight", 0.05),
    ),
    Rule(
        "rest of the word",
        1,
        ("inner_weight", "inner"),
        "inner",
        "outer_weight",
        0.1,
        "pieces",
        "tokens with a neighbour in the same word: weight on that neighbour",
        "weight on neighbours in other words",
        "of the strongest pairs of tokens whose query's word has several, key and query are of one word",
        "ours",
        gain=0.1,
        act="inner",
    ),
    Rule(
        "punctuation",
        1,
        ("punctuation", "text_words"),
        "text_words",
        "punctuation_chance",
        0.3,
        "punctuation",
        "words: weight on punctuation",
        "its share of words; the best fixed offset",
        "the key is punctuation",
        "Clark et al. 2019, 3.2",
        offsets="punctuation_chance",
        times=3,
        act="text_words",
    ),
    Rule(
        "the same words for all",
        2,
        ("key", "key_and_query"),
        "spread_words",
        None,
        0.7,
        "popular",
        "K / (K + Q): how much of what sets the rows apart from an even spread is the same in all of them",
        "",
        "the key is one of the three words of the window that get most in all",
        "ours: log n minus the mean entropy is n times K + Q",
        weight=("key", 0.1),
    ),
    Rule(
        "the first token",
        3,
        ("first", "words"),
        "words",
        "first_chance",
        0.45,
        "first",
        "mean weight of words",
        "its share of tokens",
        "the query gives the first token more than the key",
        "Clark et al. 2019, 3.2; Xiao et al. 2024",
        times=3,
    ),
    Rule(
        "[SEP]",
        3,
        ("sep", "words"),
        "words",
        "sep_chance",
        0.45,
        "sep",
        "mean weight of words",
        "its share of tokens",
        "the query gives [SEP] more than the key",
        "Clark et al. 2019, 3.2",
        times=3,
    ),
    Rule(
        "broad",
        4,
        ("entropy", "spread_words"),
        "spread_words",
        None,
        EVEN,
        "even",
        "entropy over log n, of the weights among words",
        "",
        "the query's own entropy is as high",
        "Clark et al. 2019, 3.3",
    ),
)
"""All rules but those of syntax, which are of group 1, and of group 0 where they are STRONG. Thresholds were tuned on
all-MiniLM-L6-v2; docs/survey.md says what follows from that."""

SYNTAX_SOURCE = "Clark et al. 2019, 4.2"
SYNTAX_LEAST, SYNTAX_GAIN, SYNTAX_Z, SYNTAX_COUNT = 0.4, 0.1, 4.3, 30
"""Mean score, gain over the best fixed offset, its standard errors (Bonferroni over the claims that are tried), and
occurrences in each half."""

STRONG = 0.4
"""(score - baseline) / (1 - baseline) from which syntax comes first."""

LEFT_OUT = ("punct",)
"""Relations that are conventions of the treebank rather than syntax; labels have a rule about punctuation itself."""

BEYOND = {"case": "case>head"}
"""Relations that Universal Dependencies hangs on the word they serve -> a claim that we derive from them: from the
preposition to what its phrase depends on, the head of its head."""

DERIVED = frozenset(BEYOND.values())

CLAIMS = {
    ("case>head", UP): "from a preposition to what its phrase depends on",
    ("case>head", DOWN): "down to the preposition of a phrase that depends on it",
}
"""Derived claims in words."""


@dataclass(frozen=True)
class Family:
    """Relations that are one act, so that a head that finds several of them has a single label.

    Attributes:
        label: the act, in words.
        way: UP or DOWN.
        members: relations; a member's subtypes are members.
        source: where it comes from.
    """

    label: str
    way: str
    members: tuple[str, ...]
    source: str = "ours"

    def has(self, relation: str) -> bool:
        """Return True if a relation is a member."""
        return relation in self.members or relation.partition(":")[0] in self.members


MEMBERS, MEMBER_GAIN, MEMBER_Z = 3, 0.05, 3.0
"""Members that a head must find, each with so much gain and so many standard errors, to be labelled with their family;
all of them together must then be found as a single relation must."""

FAMILIES = (
    Family("a function word looks at the word it serves", UP, ("det", "case", "aux", "cop", "mark", "cc", "clf")),
    Family("a word looks at its function words", DOWN, ("det", "case", "aux", "cop", "mark", "cc", "clf")),
    Family(
        "a modifier looks at the head of its phrase", UP, ("det", "amod", "compound", "nummod", "nmod:poss", "flat")
    ),
    Family("the head of a phrase looks at its modifiers", DOWN, ("amod", "compound", "nummod", "nmod:poss", "flat")),
    Family(
        "a word looks at what governs its phrase",
        UP,
        ("nsubj", "obj", "iobj", "obl", "nmod", "acl", "advcl", "ccomp", "xcomp", "csubj", "appos", "case>head"),
    ),
    Family(
        "a word looks at the phrases that it governs",
        DOWN,
        ("nsubj", "obj", "iobj", "obl", "nmod", "acl", "advcl", "ccomp", "xcomp", "csubj", "appos"),
    ),
)
"""The first with most members wins. Each member keeps its own best offset as its baseline."""

NEIGHBOURS = frozenset(rule.label for rule in RULES if rule.offset in (-1, 1))
"""The labels of heads whose examples are neighbours."""


def rules_table() -> str:
    """The rules as the table of docs/survey.md."""
    rows = ["| label | score | baseline | threshold | of the strongest pairs it explains those where | source |"]
    rows.append("|---|---|---|---|---|---|")
    positions = [rule for rule in RULES if rule.offset is not None]
    for rule in RULES:
        if rule in positions[1:]:
            continue
        label = rule.label
        if rule.offset is not None:
            label = f"previous word, next word, 2 to {max(OFFSETS)} words to the left, to the right"
        against = rule.against or "none"
        cells = (label, rule.measure, against, rule.threshold, rule.explains, rule.source)
        rows.append(f"| {' | '.join(cells)} |")
        if rule.label == "punctuation":
            syntax = (
                "a relation, from the dependent to its head or from the head down; or a family",
                "words that have such a head, or dependent: share whose strongest word is right",
                "best fixed offset of each half; beside it the best simple rule",
                f"{SYNTAX_LEAST:.2f}, {SYNTAX_GAIN:.2f} above, {SYNTAX_Z} standard errors, {SYNTAX_COUNT} words",
                "key and query are so related",
                SYNTAX_SOURCE,
            )
            rows.append(f"| {' | '.join(syntax)} |")
    return "\n".join(rows)


def families_table() -> str:
    """The families as the table of docs/survey.md."""
    rows = ["| family | relations |", "|---|---|"]
    rows += [f"| {family.label} | {', '.join(f'`{member}`' for member in family.members)} |" for family in FAMILIES]
    return "\n".join(rows)
