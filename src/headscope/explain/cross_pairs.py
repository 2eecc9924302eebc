"""Matches of a cross-encoder, which reads both texts at once: words of its logit, and the heads where the texts meet.

Its logit is the sum over the tokens of both texts, and no sum over pairs. Pairs are edges of heads instead: the weight
that a word of the query puts on a word of the document, and the logit lost when that head can't see that edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headscope.attention.activations import sigmoid
from headscope.checkpoint.sentence import activation_of
from headscope.errors import InputError, UnsupportedError
from headscope.explain.attribution import top_gradient
from headscope.explain.propagation import hold
from headscope.results.effect_records import Target
from headscope.results.explained import Pooling
from headscope.results.head_values import HeadValues, Measure
from headscope.results.match_record import SIDES, Link, Match, MatchedText, Scoring
from headscope.results.score_parts import Part
from headscope.results.table import HeadTable
from headscope.results.tokens import TokenAxis
from headscope.runs.engine import Edit, NumpyRunner
from headscope.runs.masking import masked_changes
from headscope.runs.targets import choose, class_count, read
from headscope.runs.texts import as_input, prepared

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.model import Model

MEASURES = (
    Measure("share", meaning="part of the query's weight on the document that lies on the word that decides"),
    Measure("found", meaning="share of the documents where no other word gets more of it", unit="share, 0 to 1"),
    Measure(
        "effect", meaning="what the logit loses without the strongest edge to it", unit="logit", low=None, high=None
    ),
)


class Edge(NamedTuple):
    """A head's weight of a query's token on a document's token."""

    weight: float
    layer: int
    head: int
    query: int
    document: int


class CrossPairs:
    """A query with each document, read together."""

    def __init__(self, model: Model, scoring: Scoring, query: str, documents: tuple[str, ...], level: str) -> None:
        if level == "output":
            raise InputError(
                "a cross-encoder compares no vectors, so it has no output level", where="level", advice="use 'input'"
            )
        if "sequence" not in model.anatomy.tasks or class_count(model) != 1:
            raise UnsupportedError(
                "a reranker's score is the only output of a sequence classifier, and this model has another head",
                where=model.checkpoint.where,
                advice="use hs.open(…).attribute(query, target, pair=document) for one of several classes",
            )
        self.model, self.scoring, self.query, self.documents = model, scoring, query, documents
        self.activation = activation_of(model.checkpoint)
        self._read: dict[int, tuple[TokenAxis, Target]] = {}

    def match(self, at: int) -> Match:
        """The score of a document, taken apart."""
        scoring = self.scoring
        found = prepared(
            self.model,
            self.query,
            self.documents[at],
            rule=Pooling(prompt=scoring.prompts[0], lowercase=scoring.lowercase, max_length=scoring.lengths[0]),
            name=f"the query with document {at}",
        )
        query, document, encoded, notes = found.text, found.pair, found.encoded, found.notes
        assert document is not None
        held = hold(self.model.encoder, as_input(encoded))
        target = choose(self.model, encoded, held.last, ("class", 0))
        g, on_top = top_gradient(self.model, target, held.last)
        shares, below = held.parts(g)
        score = float(read(self.model, target, target.rows_of(held.last)[None]).values[0])
        self._read[at] = encoded, target
        border = _second_text(encoded)
        sides = []
        halves = ((range(border), len(self.scoring.prompts[0])), (range(border, len(encoded)), 0))
        for name, (inside, prompt) in zip(SIDES, halves, strict=True):
            of_side = np.zeros_like(shares)
            of_side[list(inside)] = shares[list(inside)]
            sides.append(MatchedText(name, query, encoded, of_side, on_top + below, prompt, document, tuple(inside)))
        returned = sigmoid(np.array([score])).item() if self.activation == "sigmoid" else score
        return Match(
            self.scoring,
            score,
            float(returned),
            sides[0],
            sides[1],
            "input",
            notes=tuple(notes),
            linked=partial(self.links, at),
        )

    def changes(self, at: int, score: float, parts: Sequence[Part]) -> list[float]:
        """The logit less the logit with each word masked."""
        encoded, target = self._read[at]
        return masked_changes(self.model, encoded, target, score, parts)

    def links(self, at: int, match: Match, count: int) -> list[Link]:
        """The greatest weights of the query's words on the document's, one of each head, and what cutting each does."""
        queries, documents = _words(match)
        words = {token: part for part in (*queries, *documents) for token in part.tokens}
        edges = sorted(_greatest(self._weights(at), queries, documents), key=lambda edge: -edge.weight)[:count]
        return [
            Link(words[edge.query], words[edge.document], edge.weight, effect, (edge.layer, edge.head))
            for edge, effect in zip(edges, self.cut(at, match.score, edges), strict=True)
        ]

    def cut(self, at: int, score: float, edges: Sequence[Edge]) -> list[float]:
        """The logit less the logit when one head can't see one edge, for each of them."""
        encoded, target = self._read[at]
        runner = NumpyRunner(self.model)
        runs = [frozenset({Edit(edge.layer, edge.head, "edge", edge=(edge.query, edge.document))}) for edge in edges]
        readings = runner.run(runner.base([as_input(encoded)]), runs, [target]).values[:, 0]
        return [score - float(value) for value in readings]

    def heads(self, matches: Sequence[Match]) -> HeadTable:
        """Every head, by the part of its weight from query to document on the word that masking shows to decide."""
        shares, found, effects = [], [], []
        for at, match in enumerate(matches):
            queries, documents = _words(match)
            changes = self.changes(at, match.score, documents)
            best = int(np.argmax(changes))
            rows, layers = [token for part in queries for token in part.tokens], self._weights(at)
            of_heads = np.concatenate([weights[:, rows] for weights in layers])
            put = np.stack([of_heads[:, :, list(part.tokens)].sum((1, 2)) for part in documents], axis=1)
            table = put / put.sum(axis=1, keepdims=True)
            shares.append(table[:, best])
            found.append(table.argmax(axis=1) == best)
            effects.append(self.cut(at, match.score, _greatest(layers, queries, [documents[best]])))
        sizes = self.model.anatomy.known()
        columns = {
            measure.name: HeadValues.of(measure, np.array(numbers).mean(0).reshape(sizes.layers, sizes.heads))
            for measure, numbers in zip(MEASURES, (shares, found, effects), strict=True)
        }
        heads = (tuple(range(sizes.heads)),) * sizes.layers
        return HeadTable(columns, tuple(range(sizes.layers)), heads, source="heads from query to document")

    def _weights(self, at: int) -> list[Float[np.ndarray, "heads queries keys"]]:
        """The weights of all heads, layer by layer."""
        encoded, _ = self._read[at]
        trace = self.model.trace(ids=list(encoded.ids), segments=list(encoded.segments))
        return [np.asarray(trace[layer].weights[:]) for layer in range(len(trace.layers))]


def _greatest(
    layers: Sequence[Float[np.ndarray, "heads queries keys"]], queries: Sequence[Part], documents: Sequence[Part]
) -> list[Edge]:
    """Each head's greatest weight of these words of the query on these of the document."""
    rows, columns = ([token for part in side for token in part.tokens] for side in (queries, documents))
    edges = []
    for layer, weights in enumerate(layers):
        for head, cells in enumerate(weights[:, rows][:, :, columns]):
            row, column = np.unravel_index(cells.argmax(), cells.shape)
            edges.append(Edge(float(cells[row, column]), layer, head, rows[row], columns[column]))
    return edges


def _words(match: Match) -> tuple[list[Part], list[Part]]:
    """The words of both sides, without special ones.

    Raises:
        InputError: a side has none, since the text was cut before it.
    """
    sides = [[part for part in match.parts(side) if not part.special] for side in SIDES]
    for side, words in zip(SIDES, sides, strict=True):
        if not words:
            raise InputError(
                f"no word of the {side} is left, so no edge leads to one",
                where=side,
                advice="pass a shorter query, or leave out links and heads",
            )
    return sides[0], sides[1]


def _second_text(encoded: TokenAxis) -> int:
    """The position of the first token of the second text: its first content token after special ones."""
    content_seen = False
    for at, special in enumerate(encoded.special):
        if special and content_seen:
            return at + 1 if at + 1 < len(encoded) and not encoded.special[at + 1] else at + 2
        content_seen = content_seen or not special
    return len(encoded)
