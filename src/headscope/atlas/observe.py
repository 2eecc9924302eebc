"""Observation of every head over the words of the sample. A replica observes a batch, layer by layer; all are joined.

Rows of weights are not kept: of each word that looks there stays its choice, with its strength and weight.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from headscope.atlas.job import Batch, Job
from headscope.atlas.sample import Sample, lot
from headscope.atlas.shapes import SUMS, Choices, Strongest, Totals, WordFlags
from headscope.atlas.syntax import Arcs
from headscope.atlas.words import tiles
from headscope.heads.windows import Window, batches
from headscope.live.calls import Call, Consumer, Forward

if TYPE_CHECKING:
    from jaxtyping import Float, Int

DRAWN = 6
"""Queries that are drawn by lot, the same for every head."""

WAYS = ("behind", "ahead")
"""Names of how far back and ahead any word sees."""


@dataclass(eq=False)
class Observed:
    """Behaviour of the heads over the sample, or over a batch of it, without the names and windows.

    Attributes:
        names: the documents'.
        windows: by lot; a window's place among them is its name here.
        keys, strength, weight: of each window (heads, words that look): see `Choices`.
        sums: name -> (heads,): SUMS, how many words of `even` and `odd` documents have a choice, and WAYS; of a batch
            WAYS alone.
        drawn: (window, query) of those drawn by lot -> (heads,) of its strongest word, -1 for none, and of its weight.
        totals: sums by distance.
        arcs: of each window of a treebank.
    """

    names: Sequence[str]
    windows: Sequence[Window]
    keys: Sequence[Int[np.ndarray, "heads looks"]]
    strength: Sequence[Float[np.ndarray, "heads looks"]]
    weight: Sequence[Float[np.ndarray, "heads looks"]]
    sums: dict[str, np.ndarray]
    drawn: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    totals: Totals = field(default_factory=lambda: Totals(0))
    arcs: Sequence[Arcs] = ()


class Observer(Consumer):
    """Reads the layers of a batch word by word.

    Args:
        heads: (layer, head) of all heads.
        batch: what runs, with the queries drawn by lot of each window.
        choices: whether choices and totals are wanted, for labels and examples.

    Attributes:
        seen: what was read.
    """

    def __init__(self, heads: Sequence[tuple[int, int]], batch: Batch, *, choices: bool) -> None:
        layers, cells = np.array([layer for layer, _ in heads]), len(heads)
        self._cells = {
            int(layer): slice(*(np.flatnonzero(layers == layer)[[0, -1]] + (0, 1)).tolist())
            for layer in np.unique(layers)
        }
        self._batch, self._choices = batch, choices
        self._flags = [WordFlags(window) for window in batch.windows]
        sizes = [(cells, int(flags.looks.sum())) for flags in self._flags]
        self.seen = Observed(
            (),
            (),
            [np.zeros(size, dtype=np.int32) for size in sizes],
            [np.zeros(size, dtype=np.float32) for size in sizes],
            [np.zeros(size, dtype=np.float32) for size in sizes],
            {way: np.zeros(cells, dtype=np.int64) for way in WAYS},
            {
                (row, query): (np.full(cells, -1), np.zeros(cells))
                for row, queries in enumerate(batch.queries)
                for query in queries
            },
            Totals(cells),
            [Arcs(of.words.sentence, of.words, cells) for of in batch.windows if of.words.sentence is not None],
        )

    def take(self, forward: Forward, call: Call) -> None:
        """Read one layer of the batch."""
        cells = self._cells[call.layer]
        for row, window in enumerate(self._batch.windows):
            arcs = self.seen.arcs[row] if self.seen.arcs else None
            of, drawn = (window.words, call.q.shape[1], call.q), self._batch.queries[row]
            strongest = None if arcs is None and not drawn else Strongest(*of, seen=arcs is not None)
            choices = Choices(*of) if self._choices else None
            for tile in tiles(call, row, window.words):
                if choices is not None:
                    self.seen.totals.take(tile, self._flags[row], window.words, cells)
                    choices.take(tile)
                if strongest is not None:
                    strongest.take(tile)  # last: it overwrites the tile
            if choices is not None:
                self._keep(row, choices, cells)
            if strongest is not None:
                strongest.done()
                for query in drawn:
                    keys, weights = self.seen.drawn[row, query]
                    keys[cells], weights[cells] = strongest.looks_at[:, query], strongest.weight[:, query]
                if arcs is not None:
                    arcs.take(strongest, cells)

    def _keep(self, row: int, choices: Choices, cells: slice) -> None:
        looks = self._flags[row].looks
        self.seen.keys[row][cells] = choices.looks_at[:, looks]
        self.seen.strength[row][cells] = choices.strength[:, looks]
        self.seen.weight[row][cells] = choices.weight[:, looks]
        for at, way in enumerate(WAYS):
            far = self.seen.sums[way][cells]
            np.maximum(far, choices.reach[:, at], out=far)


def observe(job: Job, sample: Sample) -> Observed:
    """Run the windows of the sample once."""
    windows, cells = sample.windows[: sample.worded], len(job.heads)
    queries = _queries(windows) if job.settings.choices else {}
    groups = list(batches(windows, job.settings.batch_tokens))
    todo = [
        Batch(at, tuple(windows[place] for place in group), queries=tuple(queries.get(place, ()) for place in group))
        for at, group in enumerate(groups)
    ]
    found: dict[int, Observed] = {}
    for batch, seen in job.workers.each("observe", todo):
        found[batch.at] = seen
        job.progress(f"the sample: batch {len(found)} of {len(todo)}")
    parts = [found[at] for at in range(len(todo))]
    totals = Totals(cells)
    for seen in parts:  # in one order, for sums depend on it
        totals.add(seen.totals)
    place = {window: (at, row) for at, group in enumerate(groups) for row, window in enumerate(group)}
    where = [place[window] for window in range(len(windows))]
    keys, strength, weight = (
        [getattr(parts[at], name)[row] for at, row in where] for name in ("keys", "strength", "weight")
    )
    nothing = np.zeros(cells, dtype=np.int64)
    sums = dict(zip(SUMS, totals.sums.T, strict=True))
    sums |= {way: np.max([nothing, *(seen.sums[way] for seen in parts)], axis=0) for way in WAYS}
    for half, name in enumerate(("even", "odd")):
        some = [of for of, window in zip(strength, windows, strict=True) if window.document % 2 == half]
        sums[name] = np.sum([nothing, *((of > 0).sum(1) for of in some)], axis=0)
    return Observed(
        sample.names,
        windows,
        keys,
        strength,
        weight,
        sums,
        {
            (window, query): parts[at].drawn[row, query]
            for window, (at, row) in enumerate(where)
            for query in queries.get(window, ())
        },
        totals,
        [parts[at].arcs[row] for at, row in where if parts[at].arcs],
    )


def _queries(windows: Sequence[Window]) -> dict[int, tuple[int, ...]]:
    """Window -> those of its words that are drawn by lot."""
    orders = (
        (lot(place, query), place, query)
        for place, window in enumerate(windows)
        for query in (np.flatnonzero(window.words.looks).tolist() if (window.words.sizes > 0).sum() > 1 else ())
    )
    drawn: dict[int, tuple[int, ...]] = {}
    for _, place, query in heapq.nsmallest(DRAWN, orders):
        drawn[place] = (*drawn.get(place, ()), query)
    return drawn
