"""Words of a window as labels see them, and what may be said of each: its class, its place, its form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope.results.tokens import is_punctuation

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

CONTENT = frozenset({"NOUN", "PROPN", "VERB", "ADJ", "ADV", "NUM"})
"""Tags of words that say something."""

TAGS = (
    "NOUN", "PROPN", "VERB", "AUX", "ADJ", "ADV", "PRON", "DET", "ADP", "NUM", "CCONJ", "SCONJ", "PART",
)  # fmt: skip

UNIONS = ("NOUN|PROPN", "NOUN|PROPN|PRON", "VERB|AUX", "VERB|ADP", "ADJ|ADV", "PROPN|NUM", "NOUN|VERB|ADJ")

LISTS = {
    "article": "a an the",
    "demonstrative": "this that these those",
    "possessive": "my your his her its our their whose",
    "personal": "i you he she it we they me him us them myself himself herself itself themselves",
    "relative": "who whom whose which that what where when why how",
    "opener": "that which who whom whose when where while if because although though since unless until whether as "
    "before after and but or nor",
    "negation": "not n't no never none nothing nobody nor neither without cannot",
    "limiting": "only hardly barely few little less least just even merely",
    "saying": "said says say told tells tell asked asks ask replied added explained argued wrote claimed announced "
    "reported stated called cried answered",
    "time": "now then today yesterday tomorrow ago later soon already still yet always often again year years month "
    "months week weeks day days hour hours minute minutes decade decades century centuries time once tonight monday "
    "tuesday wednesday thursday friday saturday sunday january february march april june july august september october "
    "november december",
    "comparative": "more most less least than better best worse worst larger smaller higher lower greater older as",
    "modal": "can could may might must shall should will would 'll 'd",
    "be": "be is are was were been being am 's 're 'm",
    "connective": "but however although though yet still nevertheless instead rather then afterwards moreover "
    "furthermore therefore thus hence meanwhile otherwise unfortunately",
    "preposition": "of in to for with on at by from about into over after under between through during against "
    "without within among toward towards across behind before upon",
}
"""Closed classes of English, by name."""

OTHER_FUNCTION = (
    "there here so too very also both either such each every any some all own same do does did has have had having "
    "if because although while since unless until whether though s t"
)
FUNCTION = frozenset(" ".join([*LISTS.values(), OTHER_FUNCTION]).split()) - frozenset(
    " ".join(
        [LISTS["saying"], LISTS["time"], "better best worse worst larger smaller higher lower greater older"]
    ).split()
)
"""Words of English that are no content words, where there are no tags."""

ENGLISH = 0.25
"""Share of FUNCTION among the words of a corpus from which its lists are used."""

MARKS = {
    "comma": ",",
    "hyphen": "- – —",
    "closing mark": ". ? ! 。 ？ ！",
    "colon": ": ;",
    "quote": "\" “ ” ‘ ’ '' `` « » 「 」",
    "opening bracket": "( [ {",
    "closing bracket": ") ] }",
}
"""Punctuation, by form."""

CLITIC = re.compile(r"['’][^\W\d_]+|n['’]t")
"""Forms that are cut off the word before."""

_SETS = {name: frozenset(words.split()) for name, words in LISTS.items()}
_SIGNS = {name: frozenset(signs.split()) for name, signs in MARKS.items()}

PLACES = ("first", "start", "last", "clause start", "first verb")

QUERIES = (
    *TAGS, *UNIONS, "content", "function", "PUNCT", "function|PUNCT", *LISTS, "comma", "quote", "closing mark",
    "clitic", "pieces",
)  # fmt: skip
"""Classes that may stand for the words that look."""

CLAUSES = frozenset({"advcl", "acl", "ccomp", "csubj", "root", "parataxis"})


@dataclass(frozen=True, eq=False)
class Passage:
    """The words of a window.

    Attributes:
        forms: as they stand in the text.
        sizes: (words,), how many tokens each has.
        vectors: (words, d), of length 1, or of width 0 where the model has no input embeddings.
        tags, heads, relations: as in Sentence; empty without a tree.
    """

    forms: tuple[str, ...]
    sizes: Int[np.ndarray, " words"]
    vectors: Float[np.ndarray, "words d"]
    tags: tuple[str, ...] = ()
    heads: tuple[int, ...] = ()
    relations: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.forms)

    @property
    def names(self) -> list[str]:
        """The forms, whatever their case."""
        return [name_of(form) for form in self.forms]


def name_of(form: str) -> str:
    """A form whatever its case, with a typewriter's apostrophe."""
    return form.casefold().replace("’", "'") if len(form) > 1 else form.casefold()


def is_english(forms: Iterable[str]) -> bool:
    """Return True if enough words of a corpus are English function words."""
    names = [name_of(form) for form in forms if any(sign.isalpha() for sign in form)]
    return bool(names) and sum(name in FUNCTION for name in names) >= ENGLISH * len(names)


def classes_of(passage: Passage, *, english: bool) -> dict[str, Bool[np.ndarray, " words"]]:
    """Class -> (words,), True for the words of that class; in a fixed order for a corpus."""
    names = passage.names
    marks = np.array([is_punctuation(form) for form in passage.forms], dtype=bool)
    classes: dict[str, np.ndarray] = {}
    if passage.tags:
        classes |= {name: _among(passage.tags, frozenset(name.split("|"))) for name in (*TAGS, *UNIONS)}
        classes["content"] = _among(passage.tags, CONTENT)
        classes["function"] = ~classes["content"] & ~marks
        classes |= _roles(passage)
    elif english:
        worded = np.array([any(sign.isalnum() for sign in name) for name in names], dtype=bool)
        classes["function"] = worded & _among(names, FUNCTION)
        classes["content"] = worded & ~classes["function"]
    classes["number"] = np.array([any(sign.isdigit() for sign in name) for name in names], dtype=bool)
    if english:
        classes |= {name: _among(names, words) for name, words in _SETS.items()}
        classes["negation|limiting"] = classes["negation"] | classes["limiting"]
        classes["time|number"] = classes["time"] | classes["number"]
    classes["clitic"] = np.array([bool(CLITIC.fullmatch(name)) for name in names], dtype=bool)
    classes["PUNCT"] = marks
    if "function" in classes:
        classes["function|PUNCT"] = classes["function"] | marks
    classes |= {name: _among(names, signs) for name, signs in _SIGNS.items()}
    classes |= _places(passage, classes)
    classes["pieces"] = passage.sizes > 1
    return classes


def _among(words: Sequence[str], some: frozenset[str]) -> Bool[np.ndarray, " words"]:
    return np.array([word in some for word in words], dtype=bool)


def _places(passage: Passage, classes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """First and last words, of the window or of its kind."""
    at = np.arange(len(passage))
    words = ~classes["PUNCT"] & (passage.sizes > 0)
    ends = np.flatnonzero(words)
    first, last = (int(ends[0]), int(ends[-1])) if len(ends) else (-1, -1)
    places = {"first": at == first, "start": (at >= first) & (at <= first + 1), "last": at == last}
    if passage.tags:
        places["clause start"] = clause_starts(passage)
        places["first verb"] = classes["VERB|AUX"] & (np.cumsum(classes["VERB|AUX"]) == 1)
    return places


def _roles(passage: Passage) -> dict[str, np.ndarray]:
    """Subjects, objects, predicates."""
    base = [relation.partition(":")[0] for relation in passage.relations]
    heads = np.array(passage.heads)
    root = heads < 0
    main = root[heads] & ~root
    subject = _among(base, frozenset({"nsubj", "csubj"}))
    predicate = _among(base, CLAUSES) | root
    predicate |= np.isin(np.arange(len(base)), heads[subject])
    return {
        "subject": subject,
        "main subject": subject & main,
        "object": _among(base, frozenset({"obj"})),
        "predicate": predicate,
        "main predicate": root,
        "main predicate or auxiliary": root | (main & _among(base, frozenset({"aux", "cop"}))),
    }


def clauses_of(passage: Passage) -> Int[np.ndarray, " words"]:
    """(words,), the predicate of the clause that each word is in: the nearest one above it, or itself."""
    predicate = _roles(passage)["predicate"]
    result = np.zeros(len(passage), dtype=np.int64)
    for word in range(len(passage)):
        at = word
        while not predicate[at] and passage.heads[at] >= 0:
            at = passage.heads[at]
        result[word] = at
    return result


def clause_starts(passage: Passage) -> Bool[np.ndarray, " words"]:
    """(words,), True for the first word of a clause that isn't punctuation."""
    clauses = clauses_of(passage)
    starts = np.zeros(len(passage), dtype=bool)
    for clause in np.unique(clauses):
        words = [at for at in np.flatnonzero(clauses == clause) if not is_punctuation(passage.forms[at])]
        starts[words[:1]] = True
    return starts
