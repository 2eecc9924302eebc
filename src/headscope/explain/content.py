"""The tokens of a text that carry content: function words, pronouns, words put together from their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope.results.tokens import bare, names, sources, whole_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Bool, Int

    from headscope.heads import Roles
    from headscope.results.tokens import TokenAxis
    from headscope.traces import Trace

UNKNOWN = frozenset({"[UNK]", "<unk>"})
"""Stand for words that the vocabulary lacks: nobody can say what they link."""


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


FUNCTION_WORDS = _words("""
    a about above across after again against all along am amid among an and any are around as at be because been before
    behind being below beneath beside besides between beyond both but by can could did do does doing despite down during
    each few for from had has have he her here hers him his how i if in into is it its just may me might more most must
    my no nor not now of off on once one only or other our ours out over own said same shall she should so some such
    than that the their them then there these they this those through throughout to too toward towards under until up
    upon us very via was we were what when where which while who whom whose why will with within without would you your
    yours s t d ll m re ve don n
""")
"""English words of the closed classes: they carry grammar. Words of other languages all count as content."""

HYPHENS = frozenset("-\u2010\u2011")
"""They put words together: those on both sides are neighbours."""

THIRD_PERSON = _words("he him his himself she her hers herself it its itself they them their theirs themselves")
PRONOUNS = THIRD_PERSON | _words(
    "i me my mine myself we us our ours ourselves you your yours yourself this these those who whom whose"
)
"""English words that stand for others: they may look, though they are no content words."""


@dataclass(frozen=True, eq=False)
class Content:
    """The tokens of a text by what they can be found for.

    Attributes:
        words: each token's word as it stands in the text; the token without its marker where there is no text, and the
            token's own letters where a script has no spaces (results.tokens.names).
        content: (tokens,), words with a letter or digit that are no function words, nor special or unknown tokens.
        looking: (tokens,), content words with a letter, and pronouns.
        referring: (tokens,), pronouns of the third person.
        group: (tokens,), tokens of equal spelling share a number; -1 for special tokens and punctuation.
        place: (tokens,), the number of the word that a token belongs to, counted over both texts of a pair; special
            tokens count as words of their own.
        step: (tokens,), the same without counting hyphens: the words on both sides of one are neighbours.
        text: (tokens,), 0 for tokens of the first text, 1 for those of the second.
    """

    words: tuple[str, ...]
    content: Bool[np.ndarray, " tokens"]
    looking: Bool[np.ndarray, " tokens"]
    referring: Bool[np.ndarray, " tokens"]
    group: Int[np.ndarray, " tokens"]
    place: Int[np.ndarray, " tokens"]
    step: Int[np.ndarray, " tokens"]
    text: Int[np.ndarray, " tokens"]


def content_of(trace: Trace, axis: TokenAxis, roles: Roles) -> Content:
    """The tokens of one axis of a trace."""
    texts = (trace.text, trace.pair) if axis is trace.queries else (None, None)
    place, _ = whole_words(axis, *texts)
    words = tuple(names(axis, *texts))
    special, punctuation = np.array(axis.special, dtype=bool), roles.punctuation
    letters = np.array([any(letter.isalnum() for letter in word) for word in words], dtype=bool)
    unknown = special | np.array([token in UNKNOWN for token in axis.tokens], dtype=bool)
    closed = _among(words, FUNCTION_WORDS)
    content = letters & ~unknown & ~closed
    named = content & np.array([any(letter.isalpha() for letter in word) for word in words], dtype=bool)
    numbers: dict[tuple[str, ...], int] = {}
    keys = [(word.casefold(), token.casefold()) for word, token in zip(words, map(bare, axis.tokens), strict=True)]
    group = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    nameless = special | ~letters | (punctuation if len(punctuation) == len(special) else False)
    looking = (named | _among(words, PRONOUNS)) & ~unknown
    hyphens = np.cumsum(_among(words, HYPHENS))
    steps = np.array(place) - hyphens
    group = np.where(nameless, -1, group)
    text = [0 if of is None else of[0] for of in sources(axis, *texts)] if texts[1] is not None else axis.segments
    return Content(words, content, looking, _among(words, THIRD_PERSON), group, np.array(place), steps, np.array(text))


def _among(words: Sequence[str], listed: frozenset[str]) -> Bool[np.ndarray, " tokens"]:
    return np.array([word.casefold() in listed for word in words], dtype=bool)
