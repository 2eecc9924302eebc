"""Heads for a pair task: which heads see pairs of words that somebody has marked, such as arcs, coreference, contacts.

From word i to word j a head has the weight A_ij: the sum over the tokens of j, the mean over those of i. Where a pair
has no direction, a head's score is symmetrised, with the average product correction (Rao et al. 2021, section 3.2):

    M = A + A^T,    F_ij = M_ij - r_i r_j / t        r: the sums of M over words, t: the sum of r

Where it has one, the score is A_ij. The L pairs with the highest scores are predicted, L the number of marked pairs of
the document; the precision is the share of them that are marked. The heads are ranked by their mean precision over the
documents that they are chosen on; of the first K of the ranking the scores are added up, and K is the number that is
best there. What is reported comes from documents that had no say in it: of five folds, each in turn, or of the rest.

With `by="row"` the question is another: whether each marked word looks most at its partner (headscope.atlas.pair_rows).
Precisions rank the pairs of a whole document against each other, so that a head that gives all its weight to few pairs
is ahead; rows compare the words that one word may look at, which is what “from the pronoun to its antecedent” means.

A document is traced twice, and its scores are computed layer by layer: of each head only the L highest are kept, and
of the heads that are added up those of all pairs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.atlas.pair_files import (
    Marked,
    Pairs,
    WordTokens,
    folds_of,
    heads_of,
    read_marked,
    read_words,
    word_weights,
)
from headscope.atlas.pair_rows import PairRows, pair_rows, table_of_heads
from headscope.atlas.survey_settings import PairSettings
from headscope.errors import InputError
from headscope.heads.intervals import mean_interval
from headscope.model import Model, open_model
from headscope.progress_bar import told
from headscope.results.answers import PairsAnswer, filled
from headscope.results.head_values import Head, Measure
from headscope.results.row_tables import Rows
from headscope.results.table import HeadTable
from headscope.settings import takes, whole

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from headscope.traces import LayerRecord, Trace


def word_scores(record: LayerRecord, words: WordTokens, directed: bool) -> Float[np.ndarray, "heads words words"]:
    """The scores of all words with all words, in every head of a layer."""
    scores = []
    for a in word_weights(record, words):
        if not directed:
            m = a + a.T
            r = m.sum(-1)
            with np.errstate(invalid="ignore"):
                a = m - np.outer(r, r / r.sum())
        scores.append(a)
    return np.stack(scores)


def candidates(
    kept: Int[np.ndarray, " words"], apart: int, directed: bool
) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " pairs"]]:
    """The pairs that may be predicted, as places among these words.

    Args:
        kept: the words' numbers in the document.
        apart: the fewest words from one to the other.
        directed: False for pairs whose second word comes later.
    """
    offset = kept - kept[:, None]
    rows, columns = np.nonzero(abs(offset) >= apart if directed else offset >= apart)
    return rows, columns


def highest(
    scores: Float[np.ndarray, "rows n"], count: int
) -> tuple[Float[np.ndarray, "rows count"], Int[np.ndarray, "rows count"]]:
    """The highest scores of each row, the highest first, and where they stand; NaN is the lowest."""
    scores = np.nan_to_num(scores, nan=-np.inf)
    places = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    if scores.shape[1] > 2 * count:
        places = np.argpartition(-scores, count, axis=1)[:, :count]
    values = np.take_along_axis(scores, places, 1)
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(values, order, 1), np.take_along_axis(places, order, 1)


MOST = 10
"""Most heads whose scores are added up."""
PRECISIONS = ("precision", "single", "offset")
"""The means that are reported, fields of `PairHeads`: of the heads together, the best one, the best distance."""
PRECISION = Measure("precision", meaning="mean share of marked pairs among as many pairs with the highest scores")


@dataclass(frozen=True, repr=False)
class PairHeads(Rows):
    """Heads that see marked pairs, and how well, beside simple rules.

    Attributes:
        heads: (layer, head), the best first: the sum of their scores is the prediction.
        precision: of that sum, the mean over documents that had no say in the choice.
        single: of the best single head, likewise.
        offset: of the best distance, likewise: “the word k to the right”.
        intervals: the 95 % interval over these documents of each of the three, by name (NaN for one document).
        distance: that distance, from the first to the second word of a pair.
        chance: the share of marked pairs among all.
        table: each head's mean precision over the documents that heads were chosen on, with intervals.
        documents: how many were used.
        pairs: how many of theirs were marked.
        left_out: pairs of words without a token: they count nowhere.
        directed: True if pairs have a direction.
        apart: the fewest words from one to the other.
    """

    heads: tuple[Head, ...]
    precision: float
    single: float
    offset: float
    intervals: Mapping[str, tuple[float, float]]
    distance: int
    chance: float
    table: HeadTable
    documents: int
    pairs: int
    left_out: int
    directed: bool
    apart: int

    def predict(self, trace: Trace, *, top: int | None = None) -> list[tuple[int, int, float]]:
        """The pairs of another text's words with the highest scores: (first word, second word, score), best first.

        Args:
            trace: of the same model, from `model.trace(words=[...])`.
            top: how many; by default as many as there are words.

        Raises:
            InputError: the trace lacks one of the heads, or words of its own; or `top` is not a whole number from 0 on.
        """
        words = WordTokens(trace, 1 + max((word for word in trace.words if word is not None), default=-1))
        top = len(words.kept) if top is None else whole(top, "top", 0)
        missing = [head for head in self.heads if head not in heads_of(trace)]
        if missing or not len(words.kept):
            found = f"no head {missing[0][0]}.{missing[0][1]}" if missing else "no words"
            raise InputError(f"the trace has {found}", where="trace", advice="pass a whole trace of words, same model")
        rows, columns = candidates(words.kept, self.apart, self.directed)
        scores = np.zeros(len(rows))
        for layer, record in zip(trace.numbers, trace.layers, strict=True):
            if chosen := [trace.head_numbers(layer).index(head) for at, head in self.heads if at == layer]:
                scores += word_scores(record, words, self.directed)[chosen][:, rows, columns].sum(0)
        (values,), (places,) = highest(scores[None], top)
        return [
            (int(words.kept[rows[place]]), int(words.kept[columns[place]]), float(value))
            for value, place in zip(values, places, strict=True)
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each head: the rows of `table`."""
        return self.table.rows()

    def json(self) -> dict[str, Any]:
        """Everything as a record for JSON."""
        shares = {
            name: {"mean": getattr(self, name), "low": low, "high": high}
            for name, (low, high) in self.intervals.items()
        }
        return filled(PairsAnswer, self, **shares, heads=list(map(list, self.heads)), table=self.rows())

    def __repr__(self) -> str:
        names = ", ".join(f"{layer}.{head}" for layer, head in self.heads)
        precision, single, offset = (
            f"{getattr(self, name):.1%} ({low:.1%} to {high:.1%})" for name, (low, high) in self.intervals.items()
        )
        return (
            f"heads {names}: precision {precision} on documents that had no say in the choice; best single head "
            f"{single}, best distance {offset}, chance {self.chance:.1%}"
        )


@takes(PairSettings)
def pair_heads(
    model: str | os.PathLike[str] | Model, documents: str | os.PathLike[str] | Pairs, settings: PairSettings
) -> PairHeads | PairRows:
    """Find the heads that see pairs of words that somebody has marked, on few documents, and say how well.

    Args:
        model: a hub id or a folder, or a model from hs.open.
        documents: a .jsonl, .conllu or .pdb file, or a folder of .pdb files: see headscope.atlas.pair_files. Or a list
            of what a .jsonl file has in its lines, dicts of words (or text) and pairs. Or (words, pairs) of each
            document: a list of words, or a string of letters; pairs of positions in it.
        settings: as the command's. With `by="row"` the result is PairRows: both directions of a pair, each with the
            head that looks most at the partner. Otherwise PairHeads.

    Raises:
        InputError: a file that can't be read, a pair that isn't one, too few documents, or a text that is too long.
        UnsupportedError: headscope can't compute the model, or its queries and keys are different sequences.
    """
    opened = model if isinstance(model, Model) else open_model(os.fspath(model))
    marked = read_marked(documents, settings.relations)
    if len(marked) < 2 or (settings.chosen_on or 0) >= len(marked):
        found = f"{len(marked)} documents have pairs: none is left to report on"
        advice = "give at least 2 documents; with chosen_on, more than that"
        raise InputError(found, where="documents" if settings.chosen_on is None else "chosen_on", advice=advice)
    with told(settings.progress, "documents") as tell:
        if settings.by == "row":
            return pair_rows(opened, marked, settings.chosen_on, settings.apart, tell)
        return _reported(_Work(opened, marked, settings.directed, settings.apart, tell), settings.chosen_on)


def _reported(work: _Work, chosen_on: int | None) -> PairHeads:
    """Choose heads, and measure the choice where it had no say."""
    alone = work.every()
    count = len(work.marked)
    folds, chosen = folds_of(count, chosen_on)
    ranked = np.stack([alone[~held].mean(0) for held in [*folds, ~chosen]])  # -1 for a broken head
    orders = np.argsort(-ranked, axis=1, kind="stable")[:, :MOST]
    sums = work.every(orders).reshape(count, *orders.shape)
    offsets = np.stack([work.offsets(at) for at in range(count)])
    held_out = np.full((3, count), np.nan)
    for fold, held in enumerate(folds):
        held_out[0, held] = sums[held, fold, sums[~held, fold].mean(0).argmax()]
        held_out[1, held] = alone[held, orders[fold, 0]]
        held_out[2, held] = offsets[held, offsets[~held].mean(0).argmax()]
    means, low, high = (bound.tolist() for bound in mean_interval(held_out.T))
    known = np.where(alone[chosen] < 0, np.nan, alone[chosen])
    best = orders[-1, : 1 + int(sums[chosen, -1].mean(0).argmax())]
    return PairHeads(
        heads=tuple(work.heads[at] for at in best),
        **dict(zip(PRECISIONS, means, strict=True)),
        intervals=dict(zip(PRECISIONS, zip(low, high, strict=True), strict=True)),
        distance=int(work.distances[offsets[chosen].mean(0).argmax()]),
        chance=float(np.mean([hits.sum() / counts.sum() for hits, counts in work.by_distance])),
        table=table_of_heads({PRECISION: np.stack(mean_interval(known))}, work.heads),
        documents=count,
        pairs=int(sum(hits.sum() for hits, _ in work.by_distance)),
        left_out=work.left_out,
        directed=work.directed,
        apart=work.apart,
    )


def _share(
    scores: Float[np.ndarray, "rows pairs"], marked: Bool[np.ndarray, " pairs"], count: int
) -> Float[np.ndarray, " rows"]:
    """Of each row, the share of marked pairs among the `count` with the highest scores; a broken row's is -1."""
    values, places = highest(scores, count)
    hits = marked[places] & (values > -np.inf)
    return np.where((values > -np.inf).any(1), hits.sum(1) / count, -1.0)


class _Work:
    """The documents and what is counted over them."""

    def __init__(
        self, model: Model, marked: Sequence[Marked], directed: bool, apart: int, tell: Callable[[int, int], None]
    ) -> None:
        self.model, self.marked, self.directed, self.apart, self.tell = model, marked, directed, apart, tell
        longest = max(len(one.words) for one in marked)
        self.distances = np.arange(-longest + 1 if directed else 1, max(longest, 2))
        self.heads: list[Head] = []
        self.by_distance: list[tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]] = []
        """Of each document, the marked pairs and all pairs at each distance."""
        self.left_out = 0

    def every(self, orders: Int[np.ndarray, "orders most"] | None = None) -> Float[np.ndarray, "documents ..."]:
        """The precisions in every document."""
        found, count = [], len(self.marked)
        for at in range(count):
            found.append(self.precisions(at, orders))
            self.tell(at + 1 + (0 if orders is None else count), 2 * count)
        return np.stack(found)

    def precisions(self, at: int, orders: Int[np.ndarray, "orders most"] | None = None) -> Float[np.ndarray, "..."]:
        """Each head's precision in a document; or for every k, that of the first k heads of each order.

        A broken head's is -1. The first reading of a document, without orders, also counts its pairs.
        """
        trace, words, ranks = self._read(at, count=orders is None)
        rows, columns = candidates(words.kept, self.apart, self.directed)
        marked = np.isin(rows * len(words.kept) + columns, [i * len(words.kept) + j for i, j in ranks])
        added = {} if orders is None else {int(number): np.empty(0) for number in np.unique(orders)}
        found, first = [], 0
        for record in trace.layers:
            numbers = range(first, first + len(record.q))
            first = numbers.stop
            if orders is None:
                scores = word_scores(record, words, self.directed)[:, rows, columns]
                found.append(_share(scores, marked, len(ranks)))
            elif wanted := [number for number in numbers if number in added]:
                scores = word_scores(record, words, self.directed)[:, rows, columns]
                added |= {number: scores[number - numbers.start] for number in wanted}
        if orders is None:
            return np.concatenate(found)
        sums = (np.stack([added[int(number)] for number in order]).cumsum(0) for order in orders)
        return np.concatenate([_share(one, marked, len(ranks)) for one in sums])

    def _read(self, at: int, *, count: bool) -> tuple[Trace, WordTokens, set[tuple[int, int]]]:
        """A document's trace, its words, and its marked pairs, as places among the words that have tokens."""
        trace, words, ranks, left_out = read_words(self.model, self.marked[at], self.apart)
        if not self.directed:
            ranks = {(min(pair), max(pair)) for pair in ranks}
        if count:
            self.left_out += left_out
            self._count(words.kept, ranks)
            self.heads = self.heads or heads_of(trace)
        return trace, words, ranks

    def _count(self, kept: Int[np.ndarray, " words"], ranks: set[tuple[int, int]]) -> None:
        """Count a document's pairs by their distance in words of the document."""
        hits, counts = np.zeros((2, len(self.distances)))
        rows, columns = candidates(kept, self.apart, self.directed)
        counts += np.bincount(kept[columns] - kept[rows] - self.distances[0], minlength=len(counts))
        for i, j in ranks:
            hits[kept[j] - kept[i] - self.distances[0]] += 1
        self.by_distance.append((hits, counts))

    def offsets(self, at: int) -> Float[np.ndarray, " distances"]:
        """The precision in a document of “the pairs nearest to this distance”, for each; equals count in part."""
        hits, counts = self.by_distance[at]
        wanted = hits.sum()
        found = np.zeros(len(counts))
        for number in range(len(counts)):
            away = abs(np.arange(len(counts)) - number)
            n, h = np.bincount(away, weights=counts), np.bincount(away, weights=hits)
            taken = np.clip(wanted - (np.cumsum(n) - n), 0, n)
            found[number] = (taken * h / np.maximum(n, 1)).sum() / wanted
        return found
