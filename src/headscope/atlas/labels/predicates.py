"""Relations between two words: their distance, grammar, pairing, likeness."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headscope.atlas.labels.passages import Passage, clauses_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

Classes = dict[str, np.ndarray]
Matrix = np.ndarray
"""(words, words) of bool, query by key."""

OFFSETS = (-4, -3, -2, -1, 1, 2, 3, 4)
"""Key minus query, in words."""

SIDES: dict[str, tuple[int, int]] = {
    "near2": (-2, 2),
    "near3": (-3, 3),
    "ahead": (1, 1 << 30),
    "behind": (-(1 << 30), -1),
    **{f"ahead{n}": (1, n) for n in (2, 3, 6)},
    **{f"behind{n}": (-n, -1) for n in (2, 3, 6)},
}
"""Side -> the least and the greatest offset."""

UP = (
    "nsubj", "obj", "iobj", "obl", "nmod", "amod", "det", "case", "advmod", "compound", "conj", "cc", "mark", "aux",
    "cop", "advcl", "xcomp", "ccomp", "acl", "nummod", "flat", "appos", "nsubj:pass", "nmod:poss", "acl:relcl",
    "compound:prt",
)  # fmt: skip
"""Relations of a treebank that may be followed from the dependent to its head, `up:…`, or back, `dn:…`."""

FAMILIES = {
    "function": ("det", "case", "aux", "cop", "mark", "cc", "clf"),
    "modifier": ("det", "amod", "compound", "nummod", "nmod:poss", "flat"),
    "phrase": ("nsubj", "obj", "iobj", "obl", "nmod", "acl", "advcl", "ccomp", "xcomp", "csubj", "appos"),
    "name": ("flat", "compound"),
}
"""Relations that are one act."""

NEAREST = (
    "NOUN", "noun head", "VERB", "VERB|AUX", "predicate", "content", "PUNCT", "comma", "PROPN", "PRON", "CCONJ",
    "clause start", "opener", "subject",
)  # fmt: skip
"""Classes of which the next and the previous word may be looked for."""

BRACKETS = {"(": ")", "[": "]", "{": "}"}

PAIRED = (
    "either or", "neither nor", "both and", "whether or", "more than", "less than", "rather than", "better than",
    "as as", "so that", "such as", "from to", "between and", "not but", "only but", "if then", "not only", "too to",
    "the more", "same as", "other than", "since now",
)  # fmt: skip
"""Words of English of which the first opens what the second closes."""

STEM = 5
"""Letters that words of one stem share."""

PLURAL = re.compile(r"(?<=..)(?<![suis])s$")
"""The s of a plural, or of a verb's third person."""

HIGH, MIDDLE = 0.02, 0.10
"""Shares of the pairs of content words that count as of related meaning."""


def sides_of(gaps: Int[np.ndarray, " cells"]) -> dict[str, Bool[np.ndarray, " cells"]]:
    """Side -> True where the offset lies on it."""
    return {name: (gaps >= low) & (gaps <= high) for name, (low, high) in SIDES.items()}


def _cells(count: int, queries: Sequence[int] | np.ndarray, keys: Sequence[int] | np.ndarray) -> Matrix:
    """The matrix of some pairs of words."""
    matrix = np.zeros((count, count), dtype=bool)
    matrix[queries, keys] = True
    return matrix


def relations_of(
    passage: Passage, classes: Classes, cosines: tuple[float, float] | None, *, english: bool
) -> Iterator[tuple[str, Bool[np.ndarray, "words words"]]]:
    """Each relation with its pairs, query by key; in a fixed order for a corpus.

    Args:
        cosines: the bounds of HIGH and MIDDLE over the corpus; None without vectors.
    """
    at = np.arange(len(passage))
    gaps = at - at[:, None]
    for offset in OFFSETS:
        yield f"offset{offset:+d}", gaps == offset
    yield from _nearest(passage, classes)
    yield from _lexical(passage, classes, cosines, english=english)
    yield from _pairing(passage, classes, english=english)
    if passage.heads:
        yield from _grammar(passage, classes)


def _nearest(passage: Passage, classes: Classes) -> Iterator[tuple[str, Matrix]]:
    count = len(passage)
    at = np.arange(count)
    for name in NEAREST:
        if name == "noun head":
            if not passage.tags:
                continue
            parts = [relation.partition(":")[0] in ("compound", "flat") for relation in passage.relations]
            flags = classes["NOUN|PROPN"] & ~np.array(parts, dtype=bool)
        elif name in classes:
            flags = classes[name]
        else:
            continue
        flags = flags & (passage.sizes > 0)
        places = np.flatnonzero(flags)
        after = np.searchsorted(places, at, side="right")
        before = np.searchsorted(places, at, side="left") - 1
        for way, which in (("next", after), ("previous", before)):
            rows = np.flatnonzero((which >= 0) & (which < len(places)))
            yield f"{way} {name}", _cells(count, rows, places[which[rows]])


def _stem(name: str, *, english: bool) -> str:
    """The letters that the forms of a word share."""
    if english:
        name = PLURAL.sub("", re.sub(r"(?<=..)ies$", "y", name))
    return name[:STEM]


def _lexical(
    passage: Passage, classes: Classes, cosines: tuple[float, float] | None, *, english: bool
) -> Iterator[tuple[str, Matrix]]:
    count = len(passage)
    names = np.unique(passage.names, return_inverse=True)[1] if count else np.zeros(0, dtype=int)
    different = ~np.eye(count, dtype=bool)
    lettered = ~classes["PUNCT"]
    same = (names[:, None] == names) & different & lettered
    yield "same word", same
    stems = [_stem(name, english=english) for name in passage.names]
    stem = np.unique(stems, return_inverse=True)[1] if count else names
    yield "stem", (stem[:, None] == stem) & different & lettered
    if passage.tags:
        tags = np.unique(passage.tags, return_inverse=True)[1]
        yield "same tag", (tags[:, None] == tags) & different
        kind = classes["content"].astype(int) + 2 * classes["PUNCT"]
        yield "same kind", (kind[:, None] == kind) & different
    if cosines is not None:
        content = classes.get("content", lettered)
        both = content[:, None] & content & different
        likeness = np.where(both & (names[:, None] != names), passage.vectors @ passage.vectors.T, -2.0)
        best = likeness.argmax(1) if count else names
        rows = np.flatnonzero(likeness.max(1, initial=-2.0) > -2)
        yield "most related", _cells(count, rows, best[rows])
        yield "closely related", (likeness >= cosines[0]) | (same & both)
        yield "related", (likeness >= cosines[1]) | (same & both)


def _pairing(passage: Passage, classes: Classes, *, english: bool) -> Iterator[tuple[str, Matrix]]:
    count, names = len(passage), passage.names
    quotes, inside = (np.zeros((count, count), dtype=bool) for _ in range(2))
    places = np.flatnonzero(classes["quote"]).tolist()
    for opening, closing in zip(places[::2], places[1::2], strict=False):
        quotes[opening, closing] = quotes[closing, opening] = True
        inside[opening + 1 : closing, opening] = True
    yield "quote's partner", quotes
    yield "opening quote", inside
    brackets = np.zeros((count, count), dtype=bool)
    waiting: list[int] = []
    for at, name in enumerate(names):
        if name in BRACKETS:
            waiting.append(at)
        elif waiting and BRACKETS[names[waiting[-1]]] == name:
            opening = waiting.pop()
            brackets[opening, at] = brackets[at, opening] = True
    yield "bracket's partner", brackets
    if english:
        paired = _paired_words(names) | _introductions(names)
        yield "paired word", paired
        yield "opens or closes", paired | quotes | brackets | inside


def _paired_words(names: list[str]) -> Matrix:
    matrix = np.zeros((len(names), len(names)), dtype=bool)
    for pair in PAIRED:
        first, second = pair.split()
        for opening in (at for at, name in enumerate(names) if name == first):
            closing = next((at for at in range(opening + 1, len(names)) if names[at] == second), None)
            if closing is not None:
                matrix[opening, closing] = matrix[closing, opening] = True
    return matrix


def _introductions(names: list[str]) -> Matrix:
    """The word that opens an introductory phrase and the comma that closes it: If ..., When ..., In ...,"""
    matrix = np.zeros((len(names), len(names)), dtype=bool)
    opens = "if when while although though because since as after before in on at by for despite with once until"
    if names and names[0] in opens.split() and "," in names:
        closing = names.index(",")
        matrix[0, closing] = matrix[closing, 0] = True
        matrix[closing + 1 : closing + 2, 0] = True
    return matrix


def _grammar(passage: Passage, classes: Classes) -> Iterator[tuple[str, Matrix]]:
    count = len(passage)
    heads = np.array(passage.heads)
    bases = [relation.partition(":")[0] for relation in passage.relations]

    def arcs(names: tuple[str, ...]) -> Matrix:
        chosen = [
            at for at in range(count) if heads[at] >= 0 and (passage.relations[at] in names or bases[at] in names)
        ]
        return _cells(count, chosen, heads[chosen])

    for name, members in {**{name: (name,) for name in UP}, **FAMILIES}.items():
        up = arcs(members)
        yield f"up:{name}", up
        yield f"dn:{name}", up.T
    inner = np.flatnonzero(heads >= 0)
    governor = _cells(count, inner, heads[inner])
    grand = _product(governor, governor)
    case = _product(arcs(("case",)), governor)
    yield "up:case>head", case
    yield "dn:case>head", case.T
    yield "governor", governor
    yield "dependent", governor.T
    yield "governor or dependent", governor | governor.T
    yield "governor or its own", governor | grand
    above = governor
    for _ in range(count.bit_length()):
        above = above | _product(above, above)
    yield "above", above
    clauses = clauses_of(passage)
    same = clauses[:, None] == clauses
    different = ~np.eye(count, dtype=bool)
    subject = classes["subject"]
    yield "its clause's subject", same & subject & different
    yield "its clause's predicate", (clauses[:, None] == np.arange(count)) & different
    yield "its clause's first word", same & classes["clause start"] & different
    conjuncts = arcs(("conj",))
    yield "conjunct", conjuncts | conjuncts.T | (_product(conjuncts.T, conjuncts) & different)
    yield "relative's noun", _relatives(passage, heads)


def _product(a: Matrix, b: Matrix) -> Matrix:
    return np.asarray(a.astype(np.float32) @ b.astype(np.float32) > 0)


def _relatives(passage: Passage, heads: np.ndarray) -> Matrix:
    """From a relative pronoun to the noun that its clause is about."""
    pronouns = [
        at
        for at, name in enumerate(passage.names)
        if name in ("who", "whom", "which", "that") and passage.tags[at] == "PRON" and heads[at] >= 0
    ]
    chosen = [at for at in pronouns if passage.relations[heads[at]] == "acl:relcl"]
    return _cells(len(passage), chosen, heads[heads[chosen]])
