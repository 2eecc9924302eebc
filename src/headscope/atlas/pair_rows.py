"""Heads for a pair task, row by row: which heads look, from a marked word, most at its partner.

A query is a word that has partners: the first words of pairs look at their second words (`forward`), the second words
at their first ones (`back`). Of the words that a query may look at, a head names the one with the most weight A_ij, the
sum over the tokens of j and the mean over those of i (Clark et al. 2019, section 4.1). The accuracy is the share of
queries for which that is a partner, as in section 4.2 there. Words with equal weights count in part.

The head of a direction is chosen by its accuracy on some documents and reported on others, as in
headscope.atlas.pair_heads. So is the best fixed offset, “the word k to the right”; “the nearest word” needs no choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.atlas.pair_files import Marked, WordTokens, folds_of, heads_of, read_words, word_weights
from headscope.heads.intervals import Moments
from headscope.results.answers import PairRowsAnswer, RowProbe, filled
from headscope.results.head_values import Head, HeadValues, Measure
from headscope.results.row_tables import Rows
from headscope.results.table import HeadTable, placed

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped

    from headscope.model import Model
    from headscope.traces import Trace

MEASURES = {
    "forward": Measure("forward", meaning="share of first words that look most at a partner"),
    "back": Measure("back", meaning="share of second words that look most at a partner"),
}
"""The directions: from the first word of a pair to the second, and from the second to the first."""

RULES = ("accuracy", "offset", "nearest")
"""Shares that are reported of a direction, fields of `RowProbe`."""


@dataclass(frozen=True, repr=False)
class PairRows(Rows):
    """Heads that look from marked words at their partners, and how often, beside simple rules.

    Attributes:
        directions: `forward`, from the first word of a pair to the second, and `back`.
        table: each head's accuracy in both over the documents that heads were chosen on, with intervals.
        documents: how many were used.
        left_out: pairs of words without a token: they count nowhere.
        apart: the fewest words from a query to what it may look at.
    """

    directions: Mapping[str, RowProbe]
    table: HeadTable
    documents: int
    left_out: int
    apart: int

    @property
    def heads(self) -> tuple[Head, ...]:
        """The best head of each direction."""
        return tuple(probe.head for probe in self.directions.values())

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each head: the rows of `table`."""
        return self.table.rows()

    def json(self) -> dict[str, Any]:
        """Everything as a record for JSON."""
        directions = {name: asdict(probe) for name, probe in self.directions.items()}
        return filled(PairRowsAnswer, self, by="row", directions=directions, table=self.rows())

    def __repr__(self) -> str:
        return "\n".join(
            f"{name}: head {probe.head[0]}.{probe.head[1]} looks most at the partner from {probe.accuracy:.1%} of "
            f"{probe.queries} words ({probe.intervals['accuracy'][0]:.1%} to {probe.intervals['accuracy'][1]:.1%}); "
            f"offset {probe.distance:+d} {probe.offset:.1%}, nearest word {probe.nearest:.1%}, chance "
            f"{probe.chance:.1%}"
            for name, probe in self.directions.items()
        )


def pair_rows(
    model: Model, marked: Sequence[Marked], chosen_on: int | None, apart: int, tell: Callable[[int, int], None]
) -> PairRows:
    """Find the heads that look from marked words at their partners: see `headscope.atlas.pair_heads.pair_heads`.

    Args:
        model: the model.
        marked: documents with pairs.
        chosen_on: number of documents that heads are chosen on; None for five folds.
        apart: the fewest words from a query to what it may look at.
        tell: called with the number of documents that are done and of all.

    Raises:
        InputError: a text that is too long, or without a pair that counts.
    """
    longest, left_out = max(len(one.words) for one in marked), 0
    found, sums, heads = [], [], []
    for at, one in enumerate(marked):
        trace, words, ranks, others = read_words(model, one, apart)
        rules, totals = _counted(trace, words, ranks, apart, longest)
        found.append(rules)
        sums.append(totals)
        left_out, heads = left_out + others, heads_of(trace)
        tell(at + 1, len(marked))
    hits, (queries, chances) = np.stack(found), np.moveaxis(np.stack(sums), 1, 0)
    folds, chosen = folds_of(len(marked), chosen_on)
    parts = [np.arange(len(heads)), np.arange(len(heads), hits.shape[2] - 1), np.array([hits.shape[2] - 1])]
    probes, columns = {}, {}
    for at, (name, measure) in enumerate(MEASURES.items()):
        counts, of_rules = queries[:, at], hits[:, at]
        held_out = np.full((3, len(marked)), np.nan)
        for held in folds:
            for rule, best in enumerate(_best(of_rules[~held], parts)):
                held_out[rule, held] = of_rules[held, best]
        reported = ~np.isnan(held_out[-1])
        shares = [_share(rule[reported], counts[reported]) for rule in held_out]
        head, offset, _ = _best(of_rules[chosen], parts)
        probes[name] = RowProbe(
            head=heads[head],
            **{rule: share for rule, (share, _, _) in zip(RULES, shares, strict=True)},
            intervals={rule: (low, high) for rule, (_, low, high) in zip(RULES, shares, strict=True)},
            distance=int(offset - len(heads) - longest + 1),
            chance=float(chances[:, at].sum() / counts.sum()),
            queries=int(counts.sum()),
        )
        columns[measure] = np.array([_share(of_rules[chosen, head], counts[chosen]) for head in parts[0]]).T
    return PairRows(probes, table_of_heads(columns, heads), len(marked), left_out, apart)


def _counted(
    trace: Trace, words: WordTokens, ranks: set[tuple[int, int]], apart: int, longest: int
) -> tuple[Float[np.ndarray, "directions rules"], Float[np.ndarray, "2 directions"]]:
    """A document's hits in both directions: of each head, each offset, the nearest word; and queries, chance's hits.

    A broken head has NaN.
    """
    away = words.kept - words.kept[:, None]
    allowed, marked = abs(away) >= apart, np.zeros(away.shape, dtype=bool)
    marked[tuple(np.array(sorted(ranks)).T)] = True
    hits: list[list[float]] = [[], []]
    for record in trace.layers:
        for weights in word_weights(record, words):
            for of, partners in zip(hits, (marked, marked.T), strict=True):
                queries = partners.any(1)
                of.append(_hits(partners[queries], np.where(allowed, weights, -np.inf)[queries]))
    totals = []
    for of, partners in zip(hits, (marked, marked.T), strict=True):
        queries = partners.any(1)
        of += np.bincount(away[partners] + longest - 1, minlength=2 * longest - 1).tolist()
        of.append(_hits(partners[queries], np.where(allowed, -abs(away), -longest)[queries]))
        totals.append((queries.sum(), (partners.sum(1) / np.maximum(allowed.sum(1), 1)).sum()))
    return np.array(hits), np.array(totals, dtype=np.float64).T


def _hits(partners: Bool[np.ndarray, "queries words"], weights: Shaped[np.ndarray, "queries words"]) -> float:
    """The queries whose strongest word is a partner; words that are equally strong share one."""
    if np.isnan(weights).any():
        return np.nan
    strongest = weights == weights.max(1, keepdims=True)
    return float(((partners & strongest).sum(1) / strongest.sum(1)).sum())


def _best(hits: Float[np.ndarray, "documents rules"], parts: Sequence[Int[np.ndarray, " some"]]) -> list[int]:
    """The rule with the most hits of each kind, the first of equals."""
    total = np.nan_to_num(hits.sum(0), nan=-1)
    return [int(part[total[part].argmax()]) for part in parts]


def _share(
    hits: Float[np.ndarray, " documents"], counts: Float[np.ndarray, " documents"]
) -> tuple[float, float, float]:
    """Hits over counts, and its interval over documents."""
    moments = Moments()
    moments.add(hits, counts)
    return moments.share, *moments.interval()


def table_of_heads(columns: Mapping[Measure, Float[np.ndarray, "3 heads"]], heads: Sequence[Head]) -> HeadTable:
    """Each head's numbers with their intervals: value, low and high of each measure."""
    layers = tuple(dict.fromkeys(layer for layer, _ in heads))
    numbers = [tuple(head for at, head in heads if at == layer) for layer in layers]
    values = {}
    for measure, parts in columns.items():
        share, low, high = (placed(part, numbers) for part in parts)
        values[measure.name] = HeadValues.of(measure, share, low=low, high=high)
    return HeadTable(values, layers=layers, heads=tuple(numbers), source="pair_heads")
