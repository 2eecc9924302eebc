"""Documents that match a query: their scores, the ranking, and why one stands above another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError, UnsupportedError
from headscope.results.row_tables import Rows
from headscope.results.score_parts import CHECKED, Part, strongest

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.results.match_record import Match
    from headscope.results.table import HeadTable


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
        of_first: words of the first document, each with what it adds to its own score.
        of_second: the same of the second.
        rest_of_first: what the first document's words don't add.
        rest_of_second: the same of the second.
    """

    first: int
    second: int
    difference: float
    query: tuple[Part, ...]
    rest: float
    of_first: tuple[Part, ...]
    of_second: tuple[Part, ...]
    rest_of_first: float
    rest_of_second: float

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
            InputError: no such document; the tokenizer has no mask token.
        """
        return self.masked(self._number(document), count)

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
            raise UnsupportedError(
                "no head looks from the query at a document: the model reads each text alone",
                where=self.model,
                advice="read result[i].links(), or pass a cross-encoder",
            )
        return self.between(self.matches)

    def above(self, first: int, second: int) -> Above:
        """Return the exact difference between the scores of two documents, by words.

        Raises:
            InputError: no such document, or twice the same.
        """
        first, second = self._number(first), self._number(second)
        if first == second:
            raise InputError(
                f"document {first} can't stand above itself", where="above", advice="name two different documents"
            )
        one, other = self.matches[first], self.matches[second]
        shares: dict[tuple[str, tuple[int, ...]], float] = {}
        for sign, match in ((1, one), (-1, other)):
            for part in (part for part in match.query.parts() if not part.special):
                shares[part.label, part.tokens] = shares.get((part.label, part.tokens), 0.0) + sign * part.share
        query = tuple(Part(label, tokens, share) for (label, tokens), share in shares.items())
        difference = one.score - other.score
        of_first, of_second = (
            tuple(part for part in match.document.parts() if not part.special) for match in (one, other)
        )
        return Above(
            first,
            second,
            difference,
            query,
            difference - sum(part.share for part in query),
            of_first,
            of_second,
            one.score - sum(part.share for part in of_first),
            other.score - sum(part.share for part in of_second),
        )

    def plot(self, document: int | None = None, **form: Any) -> Any:
        """Draw one document with the query, by default the highest; the arguments are those of `Match.plot`."""
        return self[self.ranking()[0] if document is None else document].plot(**form)

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
        if isinstance(document, bool) or not isinstance(document, int) or not 0 <= document < count:
            raise InputError(
                f"there is no document {document!r:.40}", where="document", advice=f"they run from 0 to {count - 1}"
            )
        return document

    def __len__(self) -> int:
        return len(self.matches)

    def __getitem__(self, document: int) -> Match:
        return self.matches[self._number(document)]

    def __iter__(self) -> Iterator[Match]:
        return iter(self.matches)

    def __repr__(self) -> str:
        lines = [f"{at}: {self.matches[at]!r}" for at in self.ranking()]
        return "\n".join([f"{len(self)} documents by {self.model}", *lines])
