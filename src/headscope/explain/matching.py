"""The reasons that a query and its documents match: every score as a sum over input words, checked by masking.

Of two texts, a score is a product of features of each side (headscope.explain.scorers), and these are linear in the
shares of input tokens (headscope.explain.propagation). So each side's tokens and its biases' row add up to the score,

    share of token k of the query = F_d . P_q(x_{<-k}),    and the same for the document,

by one backward pass each, and so do the cells of all pairs of tokens, biases included. A cross-encoder reads both texts
at once: its logit is the sum over the tokens of both, and no sum over pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headscope.checkpoint.sentence import KINDS, read_scoring, unapplied_prompts
from headscope.checkpoint.tokenizer import Prepared
from headscope.errors import InputError
from headscope.explain.cross_pairs import CrossPairs
from headscope.explain.propagation import Held, hold
from headscope.explain.scorers import Scorer
from headscope.explain.steps import Chain, back_together
from headscope.model import Model, open_model
from headscope.results.explained import Pooling
from headscope.results.match_record import SIDES, Link, Match, MatchedText, Matches, Scoring
from headscope.results.score_parts import CHECKED, Part, strongest
from headscope.results.tokens import TokenAxis
from headscope.runs.masking import mask_of, maskable, masked_states, with_masking
from headscope.runs.targets import lacks
from headscope.runs.texts import BATCH_TOKENS, as_input, last_states, prepared, texts_of
from headscope.settings import named

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.explain.scorers import Read

LEVELS = ("input", "output")
SLOPES = "ratio"
"""The slopes at which activations are held: of a cosine's words, these follow real masking best (docs/explain.md)."""
LINKED = 6
"""Strongest words of each side among which links are looked for."""


@named
def match(
    model: Any,
    query: str,
    documents: str | Sequence[str],
    *,
    level: str = "input",
    kind: str | None = None,
    check: bool = True,
) -> Matches:
    """Take the scores of a query with some documents apart: which words make them match?

    Args:
        model: a model that hs.open returned, the name of a checkpoint, or an object of sentence-transformers, which is
            saved to a temporary folder: SentenceTransformer, CrossEncoder, MultiVectorEncoder or SparseEncoder.
        query: the query.
        documents: a document, or several.
        level: `input`: words as they enter the model; `output`: the vectors that are compared, whose words have already
            read each other.
        kind: `bi`, `late`, `sparse` or `cross`; by default as the files say. A plain checkpoint is a cross-encoder if
            it has a sequence classifier on top, and otherwise a bi-encoder with the mean.
        check: also mask the three strongest words of each match for real.

    Raises:
        InputError: an empty text, no documents, an unknown level or kind.
        UnsupportedError: a model that scores in a way that headscope doesn't compute, by its name.
        CheckpointError: a vector is 0 or not made of numbers.
    """
    model = open_model(model)
    texts = [documents] if isinstance(documents, str) else texts_of(documents, "documents")
    model.anatomy.computable()
    _check(query, texts, level, kind)
    scoring = read_scoring(model.checkpoint, classifies="sequence" in model.anatomy.tasks, kind=kind)
    engine = (CrossPairs if scoring.kind == "cross" else Pairs)(model, scoring, query, tuple(texts), level)
    matches = _taken_apart(engine, len(texts), check)
    return Matches(model.name, tuple(matches), partial(_masked, engine, matches), engine.heads)


def _taken_apart(engine: Pairs | CrossPairs, documents: int, check: bool) -> list[Match]:
    """The match of each document, with what masking its strongest words changes."""
    model = engine.model
    left_out = unapplied_prompts(model.checkpoint, engine.scoring)
    unapplied = tuple(f"sentence-transformers leaves out the prompt {name}" for name in left_out)
    matches = []
    for at in range(documents):
        one = engine.match(at)
        one = replace(one, notes=(*one.notes, *unapplied))
        if check:
            checks, unchecked = _checked(engine, at, one)
            one = replace(one, checks=checks, unchecked=unchecked)
        matches.append(one)
    return matches


def _checked(engine: Pairs | CrossPairs, at: int, match: Match, count: int = CHECKED) -> tuple[tuple[Part, ...], str]:
    """The strongest words of both sides of a match, each masked for real; or none, and why."""
    ids = {side: getattr(match, side).axis.ids for side in SIDES}
    words = maskable(engine.model, [part for side in SIDES for part in match.parts(side)], ids, count)
    return with_masking(engine.model, words, partial(engine.changes, at, match.score))


def _masked(engine: Pairs | CrossPairs, matches: Sequence[Match], at: int, count: int) -> tuple[Part, ...]:
    """The strongest words of both sides of a match, each masked for real."""
    mask_of(engine.model)
    return _checked(engine, at, matches[at], count)[0]


def _check(query: str, documents: Sequence[str], level: str, kind: str | None) -> None:
    if level not in LEVELS:
        raise InputError(f"there is no level {level!r:.40}", where="level", advice=f"use {' or '.join(LEVELS)}")
    if kind is not None and kind not in KINDS:
        raise InputError(f"there is no kind {kind!r:.40}", where="kind", advice=f"use one of {', '.join(KINDS)}")
    if not documents:
        raise InputError("there are no documents", where="documents", advice="pass at least one document")
    for name, text in (("the query", query), *((f"document {at}", text) for at, text in enumerate(documents))):
        if not isinstance(text, str):
            found = f"{name} is {text!r:.40}, not a text"
            raise InputError(found, where=name, advice="pass one query, and a text or a list of texts for it")
        if not text.strip():
            raise InputError(f"{name} is empty", where=name, advice="pass a text with at least one word")


class Side(NamedTuple):
    """A text as the model reads it, and its pass, held; of the output alone at level output."""

    text: Prepared
    held: Held

    @property
    def read(self) -> Read:
        """The last hidden states and the tokens."""
        return self.held.last, self.text.encoded


def _read(model: Model, scoring: Scoring, text: str, at: int, name: str) -> Prepared:
    """A query (0) or a document (1) as sentence-transformers reads it."""
    expansion = scoring.expansion if at == 0 else None
    limits = [one for one in (scoring.lengths[at], expansion) if one is not None]
    rule = Pooling(
        prompt=scoring.prompts[at],
        lowercase=scoring.lowercase,
        max_length=min(limits, default=None),
        include_prompt=scoring.pooling is None or scoring.pooling.include_prompt,
    )
    found = prepared(model, text, rule=rule, name=name)
    more = (expansion or 0) - len(found.encoded)
    if expansion is None or more <= 0:
        return found
    note = f"the query was filled up with {more} mask tokens"
    return replace(found, encoded=_expanded(model, found.encoded, expansion), notes=(*found.notes, note))


def _expanded(model: Model, encoded: TokenAxis, length: int) -> TokenAxis:
    """A query filled up with mask tokens, which count as special."""
    mask, more = mask_of(model), length - len(encoded)
    return TokenAxis(
        (*encoded.tokens, *[model.tokenizer.token(mask)] * more),
        (*encoded.ids, *[mask] * more),
        (*encoded.segments, *[0] * more),
        (*encoded.special, *[True] * more),
        (*encoded.words, *[None] * more),
        (*encoded.spans, *[None] * more),
    )


class Pairs:
    """A query and documents, each read alone."""

    def __init__(self, model: Model, scoring: Scoring, query: str, documents: tuple[str, ...], level: str) -> None:
        if scoring.kind == "sparse" and "masked_lm" not in model.anatomy.tasks:
            raise lacks(model, "masked-LM head, whose logits a sparse vector holds", "ForMaskedLM", instead="")
        self.model, self.scoring, self.level, self.documents = model, scoring, level, documents
        self.scorer = Scorer(model, scoring)
        self.query = self._side(query, 0, "the query")
        self._kept: dict[int, Side] = {}

    def _side(self, text: str, at: int, name: str) -> Side:
        found = _read(self.model, self.scoring, text, at, name)
        held = hold(self.model.encoder, as_input(found.encoded), slopes=SLOPES)
        if self.level == "output":
            held = Held((), None, held.last, held.last)
        return Side(found, held)

    def side(self, document: int) -> Side:
        """A document; the last one is kept."""
        if document not in self._kept:
            name = "the document" if len(self.documents) == 1 else f"document {document}"
            self._kept = {document: self._side(self.documents[document], 1, name)}
        return self._kept[document]

    def match(self, at: int) -> Match:
        """The score of a document, taken apart."""
        query, document = self.query, self.side(at)
        features = self.scorer.features(query.read, document.read)
        of_query = features.query.into(query.held.last, affine=True)
        of_document = features.document.into(document.held.last, affine=True)
        gradients, on_top = zip(features.query.back(of_document), features.document.back(of_query), strict=True)
        passes = [Chain(tuple(side.held.steps())) for side in (query, document)]
        at_embeddings, below = back_together(passes, [np.asarray(g, np.float32) for g in gradients])
        sides = []
        for number, (name, side) in enumerate(zip(SIDES, (query, document), strict=True)):
            shares = np.einsum("ij,ij->i", at_embeddings[number], side.held.embedded, dtype=np.float64)
            rest = float(on_top[number]) + float(below[number])
            text, inside = side.text, tuple(range(len(side.text.encoded)))
            sides.append(MatchedText(name, text.text, text.encoded, shares, rest, text.prompt, inside=inside))
        return Match(
            self.scoring,
            features.score,
            features.score,
            sides[0],
            sides[1],
            self.level,
            features.found,
            features.dimensions,
            (*query.text.notes, *document.text.notes),
            pairs=partial(self.table, at),
            linked=partial(self.links, at),
        )

    def table(self, at: int) -> Float[np.ndarray, "queries documents"]:
        """The parts of every pair of tokens and biases: shares of the shorter text forward, the longer one backward."""
        turned = len(self.query.text.encoded) > len(self.side(at).text.encoded)
        table = self.rows(at, "document" if turned else "query")
        return table.T if turned else table

    def rows(
        self, at: int, side: str, groups: Sequence[Sequence[int]] | None = None
    ) -> Float[np.ndarray, "groups others"]:
        """The parts of groups of one side's tokens with every token of the other side, and last with its biases.

        Args:
            at: the document.
            side: of the groups.
            groups: positions of tokens; by default each token alone, and last the biases.
        """
        query, document = self.query, self.side(at)
        features = self.scorer.features(query.read, document.read)
        of, other = (query, features.query), (document, features.document)
        (mine, first), (theirs, second) = (of, other) if side == "query" else (other, of)
        shares = mine.held.shares(groups=groups, top=first)[: None if groups is None else len(groups)]
        table = np.empty((len(shares), len(theirs.text.encoded) + 1))
        step = max(1, BATCH_TOKENS // len(theirs.text.encoded))
        for start in range(0, len(shares), step):
            part = slice(start, start + step)
            g, on_top = second.back(shares[part])
            g, below = theirs.held.back(g)
            table[part, :-1] = np.einsum("sij,ij->si", g, theirs.held.embedded, dtype=np.float64)
            table[part, -1] = np.asarray(on_top) + below
        return table

    def changes(self, at: int, score: float, parts: Sequence[Part]) -> list[float]:
        """The score less the score with each word masked."""
        texts = [(self._of(at, part), part.tokens) for part in parts]
        states = masked_states(self.model, texts)
        reads = [(state, text) for state, (text, _) in zip(states, texts, strict=True)]
        return [score - self._with(at, part, read) for part, read in zip(parts, reads, strict=True)]

    def _with(self, at: int, part: Part, read: Read) -> float:
        """The score with a word's text read otherwise."""
        query, document = self.query.read, self.side(at).read
        return self.scorer.features(*((read, document) if part.side == "query" else (query, read))).score

    def links(self, at: int, match: Match, count: int) -> list[Link]:
        """Pairs of the strongest words of both sides that need each other, as their cells say, at most count.

        The words are left out of their texts, not masked: two texts that both hold a mask are alike for that alone.
        Only the LINKED strongest words of each side are looked at, which costs that many passes, not one per token.
        """
        words = [
            strongest([part for part in match.parts(side) if self._leaves_words(at, part)], LINKED) for side in SIDES
        ]
        cells = self.rows(at, "query", [part.tokens for part in words[0]])
        pairs = [
            (float(cells[row, list(other.tokens)].sum()), one, other)
            for row, one in enumerate(words[0])
            for other in words[1]
        ]
        pairs = sorted(pairs, key=lambda pair: -abs(pair[0]))[:count]
        parts = list(dict.fromkeys(part for _, *both in pairs for part in both))
        left = self._without(at, parts)
        alone = {part: self._with(at, part, left[part]) for part in parts}
        links = []
        for share, one, other in pairs:
            together = match.score - alone[one] - alone[other] + self.scorer.features(left[one], left[other]).score
            if together * share > 0:
                links.append(Link(one, other, share, together))
        return links

    def _of(self, at: int, part: Part) -> TokenAxis:
        """The text that a word stands in."""
        return (self.query if part.side == "query" else self.side(at)).text.encoded

    def _leaves_words(self, at: int, part: Part) -> bool:
        """True if the text has other words, too."""
        encoded, gone = self._of(at, part), set(part.tokens)
        return any(not special for token, special in enumerate(encoded.special) if token not in gone)

    def _without(self, at: int, parts: Sequence[Part]) -> dict[Part, Read]:
        """Each word's text without it: the last hidden states, and the tokens."""
        texts = [self._of(at, part).without(part.tokens) for part in parts]
        states = last_states(self.model, [(text.ids, text.segments) for text in texts])
        return dict(zip(parts, zip(states, texts, strict=True), strict=True))

    heads = None
    """Texts that are read apart have no heads between them."""
