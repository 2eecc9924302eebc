"""Documents that match a query: each score as a sum over words, the ranking, and why one stands above another."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from typing import Annotated as Of

import numpy as np

from headscope.errors import InputError, UnsupportedError
from headscope.late import late
from headscope.results.row_tables import Rows
from headscope.results.score_parts import CHECKED, Part, kappa_of, parts_of, strongest
from headscope.results.tokens import TokenAxis
from headscope.settings import whole

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.results.explained import Pooling
    from headscope.results.table import HeadTable


SIDES = ("query", "document")
LONG = 100
"""Tokens of a text from which on its sentences come first."""


@dataclass(frozen=True)
class Scoring:
    """The scoring of a query and a document, as a model's files say.

    Attributes:
        kind: `bi` (a cosine of two vectors), `late` (MaxSim), `sparse` (SPLADE) or `cross` (one pass over both texts).
        measure: the score: `cosine`, `dot`, `maxsim` or `logit`.
        pooling: of a bi-encoder.
        prompts: what is put before the query and before the document.
        lengths: the tokens to which query and document are cut; None where the window is the limit.
        lowercase: True if texts are lower-cased first.
        dense: folders of the Linears after the model, in their order.
        normalized: True if vectors are divided by their lengths.
        skipped: tokens that don't count in documents, or in texts of the sides in `skipped_in`.
        skipped_in: these sides.
        expansion: tokens to which a query is filled up with mask tokens; None for no expansion.
        strategy: how a sparse model pools its tokens: `max` or `sum`.
        twice: True if a sparse model takes the logarithm twice.
        active: the number of a sparse vector's largest weights that count (max_active_dims); None for all.
        stated: False if nothing says how the model scores, so that it is taken for a bi-encoder with the mean.
    """

    kind: str
    measure: str
    pooling: Pooling | None = None
    prompts: tuple[str, str] = ("", "")
    lengths: tuple[int | None, int | None] = (None, None)
    lowercase: bool = False
    dense: tuple[str, ...] = ()
    normalized: bool = False
    skipped: tuple[str, ...] = ()
    skipped_in: tuple[str, ...] = ("document",)
    expansion: int | None = None
    strategy: str = "max"
    twice: bool = False
    active: int | None = None
    stated: bool = True


@dataclass(frozen=True, eq=False)
class MatchedText:
    """One side of a score: a text, its tokens, and what each of them adds to the score.

    Attributes:
        side: `query` or `document`.
        text: the text, with the prompt before it.
        axis: its tokens; of a cross-encoder, those of both texts.
        shares: (tokens,), what each token adds; 0 for tokens of the other text.
        rest: what no token adds: the biases' row. Shares and rest add up to the score.
        prompt: characters of the text that are the model's prompt.
        pair: the second text of a cross-encoder.
        inside: the tokens that are this side's, the special ones included.
    """

    side: str
    text: str
    axis: TokenAxis
    shares: Float[np.ndarray, " tokens"]
    rest: float
    prompt: int = 0
    pair: str | None = None
    inside: tuple[int, ...] = ()

    def parts(self, by: str = "word") -> list[Part]:
        """The part of each word, sentence or token in the score; words of the prompt count as special."""
        inside = set(self.inside)
        return [
            replace(part, special=part.special or self._in_prompt(part), side=self.side)
            for part in parts_of(self.shares, self.axis, by, self.text, self.pair)
            if part.tokens[0] in inside
        ]

    def _in_prompt(self, part: Part) -> bool:
        spans = [self.axis.spans[at] for at in part.tokens]
        return all(span is not None and span[1] <= self.prompt for span in spans)


@dataclass(frozen=True)
class Link:
    """A word of the query and one of the document, which add to the score together.

    Attributes:
        query: the query's word.
        document: the document's word.
        share: the sum of their cells: bookkeeping, for single cells follow real masking badly. Of a cross-encoder, the
            weight of the query's word on the document's in `head`, the greatest of their tokens.
        together: what the score has from the two words only together: the score, less the scores without either word,
            plus the score without both. Of a cross-encoder, what the logit loses when the head can't see that edge.
        head: (layer, head), of a cross-encoder.
    """

    query: Part
    document: Part
    share: float
    together: float
    head: tuple[int, int] | None = None


@dataclass(frozen=True)
class Found:
    """The token that one token of a query found in a document, in late interaction."""

    query: Of[int, "position of the query's token."]
    document: Of[int, "position of the document's token with the highest similarity."]
    similarity: Of[float, "of the two."]
    margin: Of[float | None, "less that of the runner-up; None if the document has one token."]
    expansion: Of[bool, "True if the query's token is one that the model filled up with."]


@dataclass(frozen=True)
class Dimension:
    """A word of the vocabulary that both texts have, in a sparse model."""

    word: Of[str, "the word."]
    query: Of[int, "position of the query's token that it comes from, the strongest where several are added up."]
    document: Of[int, "the same of the document."]
    share: Of[float, "the product of both weights; the sum over words is the score."]


@dataclass(frozen=True, eq=False)
class Match(Rows):
    """The score of a query and a document, taken apart.

    Attributes:
        scoring: how the model scores.
        score: the number that the parts add up to: a cosine, a dot product, MaxSim, or a cross-encoder's logit.
        returned: what the model's own `predict` gives: sigmoid(score) for a cross-encoder that says so.
        query: the query's side, which adds up to the score; for a cross-encoder, both sides together do.
        document: the document's side.
        level: `input` (words as they enter the model) or `output` (the vectors that are compared).
        found: in late interaction, what each of the query's tokens found.
        dimensions: of a sparse model, the strongest first.
        notes: what a reader should know: a prompt that was added, a text that was cut.
        checks: the strongest words of both sides, each masked for real; empty if nobody asked.
        unchecked: why nothing was masked.
    """

    scoring: Scoring
    score: float
    returned: float
    query: MatchedText
    document: MatchedText
    level: str
    found: tuple[Found, ...] = ()
    dimensions: tuple[Dimension, ...] = ()
    notes: tuple[str, ...] = ()
    checks: tuple[Part, ...] = ()
    unchecked: str = ""
    pairs: Callable[[], Float[np.ndarray, "queries documents"]] | None = field(default=None, repr=False)
    linked: Callable[[Match, int], list[Link]] | None = field(default=None, repr=False)

    @cached_property
    def table(self) -> Float[np.ndarray, "queries documents"]:
        """(query tokens and biases, document tokens and biases): what every pair adds; the sum is the score.

        Computed when it is first read, by as many backward passes as the shorter text has tokens. The last row and the
        last column are the biases'.

        Raises:
            UnsupportedError: a cross-encoder, whose score is no sum over pairs.
        """
        if self.pairs is None:
            found = "a cross-encoder's score is no sum over pairs of words"
            advice = "read result[i].query.parts() and result[i].document.parts(), which add up to the logit"
            raise UnsupportedError(found, where="cells", advice=advice)
        return self.pairs()

    @property
    def cells(self) -> Float[np.ndarray, "query_tokens document_tokens"]:
        """(query tokens, document tokens): what every pair of tokens adds, without the biases. See `table`."""
        return self.table[:-1, :-1]

    @property
    def rest(self) -> float:
        """The part that no pair of tokens adds: the cells' sum and this are the score."""
        if self.pairs is None:
            return self.query.rest
        return float(self.table[-1].sum() + self.table[:-1, -1].sum())

    @property
    def kappa(self) -> float:
        """(sum of |shares| + |rest|) / |score|, of the side where more cancels; above KAPPA, only ranks mean much."""
        if self.scoring.kind == "cross":
            shares = np.concatenate([self.query.shares, self.document.shares])
            return kappa_of(shares, self.query.rest, self.score)
        return max(kappa_of(side.shares, side.rest, self.score) for side in (self.query, self.document))

    def parts(self, side: str = "document", by: str = "word") -> list[Part]:
        """The part of each word, sentence or token of one side in the score.

        Args:
            side: `query` or `document`.
            by: `token`, `word` or `sentence`.

        Raises:
            InputError: another name.
        """
        if side not in SIDES:
            raise InputError(f"there is no side {side!r:.40}", where="side", advice=f"use {' or '.join(SIDES)}")
        return getattr(self, side).parts(by)

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each word of both sides: side, word, share, special."""
        words = (part for side in SIDES for part in self.parts(side))
        return [{"side": word.side, "word": word.label, "share": word.share, "special": word.special} for word in words]

    def unit(self, side: str) -> str:
        """`sentence` for a side of more than LONG tokens with at least two sentences, which reads as these first."""
        long = len(getattr(self, side).inside) > LONG
        return "sentence" if long and sum(not part.special for part in self.parts(side, "sentence")) > 1 else "word"

    @late("headscope.screens.match_sheet:plot_match")
    def plot(
        self, *, by: str | None = None, ax: Any = None, width: float = 3.35, save: str | os.PathLike[str] | None = None
    ) -> Any:
        """Draw both texts with ink and the strongest links between them.

        Returns the axes of matplotlib. See headscope.screens.match_sheet.
        """

    def strongest(self, count: int = CHECKED) -> list[Part]:
        """The words of both sides that add most in either direction, the greatest first."""
        return strongest([part for side in SIDES for part in self.parts(side)], count)

    def links(self, count: int = CHECKED) -> list[Link]:
        """Of the strongest pairs of the strongest words, those that need each other as their cells say.

        Of a cross-encoder, the greatest weights of the query's words on the document's, each of another head, with what
        cutting that edge does.
        """
        return self.linked(self, whole(count, "count", 0)) if self.linked is not None else []

    def __repr__(self) -> str:
        best = "; ".join(f"{part.side} {part}" for part in self.strongest())
        return f"{self.scoring.measure} {self.score:.4f} ({self.scoring.kind}, kappa {self.kappa:.2f}): {best}"


@dataclass(frozen=True, eq=False)
class Above:
    """One document above another: the difference of their scores, by words.

    Attributes:
        first: the first document's number.
        second: the second's.
        difference: the first score less the second.
        query: words of the query, each with what it adds to the first less what it adds to the second.
        rest: what no word of the query adds to the difference: special tokens and biases, and of a cross-encoder the
            documents' words. Words and rest add up to it.
    """

    first: int
    second: int
    difference: float
    query: tuple[Part, ...]
    rest: float

    def __repr__(self) -> str:
        best = "; ".join(map(str, strongest(self.query)))
        return (
            f"document {self.first} less document {self.second}: {self.difference:+.4f}; by the query's words: {best}"
        )


@dataclass(frozen=True, eq=False)
class Matches(Rows):
    """The scores of a query with several documents.

    Attributes:
        model: the model's name.
        matches: one for each document, in the order in which they were passed.
        masked: gives a document's strongest words of both sides, each masked for real.
        between: gives the heads of a cross-encoder; None for other kinds.
    """

    model: str
    matches: tuple[Match, ...]
    masked: Callable[[int, int], tuple[Part, ...]] = field(repr=False)
    between: Callable[[Sequence[Match]], HeadTable] | None = field(default=None, repr=False)

    @property
    def scores(self) -> Float[np.ndarray, " documents"]:
        """(documents,): the scores; a cross-encoder's are logits."""
        return np.array([match.score for match in self.matches])

    @property
    def returned(self) -> Float[np.ndarray, " documents"]:
        """(documents,): what the model's own `predict` or `similarity` returns."""
        return np.array([match.returned for match in self.matches])

    def ranking(self) -> list[int]:
        """The documents' numbers, the highest score first."""
        return [int(at) for at in np.argsort(-self.scores, kind="stable")]

    def check(self, document: int, count: int = CHECKED) -> tuple[Part, ...]:
        """The document's strongest words, and the query's, each masked for real: `change` beside `share`.

        Raises:
            InputError: no such document.
            UnsupportedError: the tokenizer has no mask token.
        """
        return self.masked(self._number(document), whole(count, "count", 0))

    def heads(self) -> HeadTable:
        """The heads of a cross-encoder, by whether they look from the query at the word that decides in a document.

        That word is the one whose masking lowers the logit most. All numbers are means over the documents: `share`, the
        part of the weight of the query's words on the document's that lies on it; `found`, the share of the documents
        where no other word gets more; `effect`, what the logit loses when the head can't see the strongest edge from
        the query to it.

        Found on these documents alone: pass several, and try the first head on others before you believe in it. The
        cost for a document: a pass for each of its words, and half of one for each head.

        Raises:
            UnsupportedError: another kind of model, which reads each text alone; no mask token.
        """
        if self.between is None:
            found = "no head looks from the query at a document: the model reads each text alone"
            raise UnsupportedError(found, where=self.model, advice="read result[i].links(), or pass a cross-encoder")
        return self.between(self.matches)

    def above(self, first: int, second: int) -> Above:
        """Return the exact difference between the scores of two documents, by words.

        Raises:
            InputError: no such document, or twice the same.
        """
        first, second = self._number(first), self._number(second)
        if first == second:
            found = f"document {first} can't stand above itself"
            raise InputError(found, where="above", advice="name two different documents")
        one, other = self.matches[first], self.matches[second]
        shares: dict[tuple[str, tuple[int, ...]], float] = {}
        for sign, match in ((1, one), (-1, other)):
            for part in (part for part in match.query.parts() if not part.special):
                shares[part.label, part.tokens] = shares.get((part.label, part.tokens), 0.0) + sign * part.share
        query = tuple(Part(label, tokens, share) for (label, tokens), share in shares.items())
        difference = one.score - other.score
        return Above(first, second, difference, query, difference - sum(part.share for part in query))

    def plot(
        self,
        document: int | None = None,
        *,
        by: str | None = None,
        ax: Any = None,
        width: float = 3.35,
        save: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Draw one document with the query, by default the highest; the other arguments are those of `Match.plot`."""
        return self[self.ranking()[0] if document is None else document].plot(by=by, ax=ax, width=width, save=save)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each document: its number, score, kappa, and its strongest words."""
        return [
            {
                "document": at,
                "score": match.score,
                "returned": match.returned,
                "kappa": match.kappa,
                "words": [part.label for part in match.strongest()],
            }
            for at, match in enumerate(self.matches)
        ]

    def _number(self, document: int) -> int:
        count = len(self.matches)
        if isinstance(document, bool) or not isinstance(document, (int, np.integer)) or not 0 <= document < count:
            found = f"there is no document {document!r:.40}"
            raise InputError(found, where="document", advice=f"they run from 0 to {count - 1}")
        return int(document)

    def __len__(self) -> int:
        return len(self.matches)

    def __getitem__(self, document: int) -> Match:
        return self.matches[self._number(document)]

    def __iter__(self) -> Iterator[Match]:
        return iter(self.matches)

    def __repr__(self) -> str:
        lines = [f"{at}: {self.matches[at]!r}" for at in self.ranking()]
        return "\n".join([f"{len(self)} document{'s' * (len(self) != 1)} by {self.model}", *lines])
