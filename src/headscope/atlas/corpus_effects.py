"""Effects over a corpus: what silencing each head changes, and in which order heads can be removed at what cost.

Windows of documents with even numbers choose the order of removal; those with odd numbers report what it costs. At each
step the CANDIDATES heads that cost least when they were last measured are measured again, with all removed heads gone,
and the cheapest goes. (Measuring all of them again would take the square of the number of heads.)

The windows are the first of the sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from headscope.atlas.job import Batch, Job
from headscope.atlas.store import array_and_record
from headscope.atlas.survey_data import Files
from headscope.files import make_folder
from headscope.heads.intervals import Resampled
from headscope.results.schemas import EffectRow, RemovalRow, table_of
from headscope.runs.texts import batches
from headscope.runs.window_readouts import Readout

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.atlas.result import Survey
    from headscope.atlas.sample import Sample
    from headscope.heads.windows import Window
    from headscope.results.head_values import Head

CANDIDATES = 8
"""Heads that are measured again before one of them is removed."""


def changes_in(survey: Survey) -> tuple[list[dict[str, Any]], Float[np.ndarray, "windows heads_total"]] | None:
    """Read the windows of a finished survey, as its sample has them, and what silencing each head changes in each.

    None if the first round, which has the numbers, was removed.

    Raises:
        InputError: a file is damaged.
    """
    folder, name = survey.folder, _round_name(0)
    if not (folder / name).exists():
        return None
    rows = survey.read("sample").to_pylist()
    numbers, _ = array_and_record(Files.of(folder, survey.manifest).read(name))
    rows = [row for row in rows if row["rank"] < len(numbers)]
    rows.sort(key=lambda row: (row["number"] % 2, row["rank"]))
    return rows, numbers[:, 1:] - numbers[:, :1]


def _round_name(number: int) -> str:
    return f"effects/round-{number:05}.npy"


def cost(
    readout: Readout, numbers: Float[np.ndarray, "*steps windows"], base: Float[np.ndarray, " windows"]
) -> Float[np.ndarray, "*steps windows"]:
    """The cost of the numbers of some windows: how far they moved; for a loss or distance, how far up."""
    return np.abs(numbers - base) if readout.kind in ("class", "embedding") else numbers - base


def measure(job: Job, sample: Sample) -> Iterator[tuple[str, pyarrow.Table]]:
    """Measure all heads over the first windows, then remove them one by one; yield each table under its name.

    Every round is a file of the folder; one that is on disk is not measured again.
    """
    make_folder(job.folder.path / "effects")
    heads, output = job.heads, job.workers.described.model["effects"]
    readout = Readout(output["kind"], output["label"], output["index"])
    windows = sample.windows[: job.settings.effects]
    ordered = sorted(windows, key=lambda window: window.document % 2)  # those that choose come first
    choosing = sum(window.document % 2 == 0 for window in ordered)
    if not 0 < choosing < len(ordered):
        choosing = len(ordered)
    halves = (ordered[:choosing], ordered[choosing:])
    parts = [tuple(part) for half in halves for part in batches(half, len, job.settings.batch_tokens)]
    starts = np.cumsum([0, *(len(part) for part in parts)])
    chooses = (starts[:-1] < choosing).tolist()

    def round_of(
        number: int, silenced: Sequence[Head], chosen: Sequence[Head], held_out: Sequence[Head] | None
    ) -> Float[np.ndarray, "windows heads_and_one"]:
        """The numbers of one round, NaN where nothing is to be measured; `held_out` None leaves those windows out."""
        name = _round_name(number)
        record = {"silenced": silenced, "heads": chosen}
        values = job.folder.array(name, record)
        if values is not None:
            return values
        job.progress(f"effects: round {number + 1} of {len(heads) + 1}")
        values = np.full((len(ordered), 1 + max(len(chosen), len(held_out or ()))), np.nan)
        todo = [
            Batch(at, part, tuple(chosen if half else held_out or ()))
            for at, (part, half) in enumerate(zip(parts, chooses, strict=True))
            if (half and chosen) or (not half and held_out is not None)
        ]
        for batch, numbers in job.workers.each("effects", todo, frozenset(silenced)):
            values[starts[batch.at] : starts[batch.at + 1], : numbers.shape[1]] = numbers
        job.folder.write_array(name, values, record)
        return values

    first = round_of(0, (), heads, heads)
    yield "effects", _effects_table(job, readout, ordered, first)
    base, numbers = first[:, 0], first[:, 1:]
    latest = dict(zip(heads, cost(readout, numbers[:choosing].T, base[:choosing]).mean(-1).tolist(), strict=True))
    order: list[Head] = []
    chosen, held_out = [], []
    for step in range(len(heads)):
        candidates = sorted(sorted(latest), key=lambda head: latest[head])[:CANDIDATES]
        if step:
            values = round_of(step, order, candidates, ())
            held_out.append(values[choosing:, 0])
            here = dict(zip(candidates, values[:choosing, 1:].T, strict=True))
        else:
            here = {head: numbers[:choosing, heads.index(head)] for head in candidates}
        latest |= {head: float(cost(readout, here[head], base[:choosing]).mean()) for head in candidates}
        cheapest = min(candidates, key=lambda head: latest[head])
        del latest[cheapest]
        order.append(cheapest)
        chosen.append(here[cheapest])
    held_out.append(round_of(len(heads), order, (), ())[choosing:, 0])
    costs = cost(readout, np.stack(chosen), base[:choosing]).mean(-1)
    of_others = cost(readout, np.stack(held_out), base[choosing:])
    documents = [window.document for window in ordered[choosing:]]
    yield "removal", _removal_table(order, costs, choosing, of_others, documents)


def _effects_table(
    job: Job, readout: Readout, windows: Sequence[Window], first: Float[np.ndarray, "windows heads_and_one"]
) -> pyarrow.Table:
    """`survey.effects`: the mean change of each head over all windows, with its interval over documents.

    `first` has the number as it is, then with each head silenced.
    """
    documents, method = [window.document for window in windows], job.workers.described.model["effects"]["method"]
    means, low, high = Resampled(documents).means(first[:, 1:] - first[:, :1])
    output, base, count = str(readout), float(first[:, 0].mean()), len(documents)
    rows = [
        EffectRow(*head, output, readout.unit, method, base, *numbers, count, len(set(documents)))
        for head, numbers in zip(job.heads, zip(means, low, high, strict=True), strict=True)
    ]
    return table_of(EffectRow, rows)


def _removal_table(
    order: Sequence[Head],
    costs: Float[np.ndarray, " steps"],
    count: int,
    held_out: Float[np.ndarray, "steps held_out"],
    documents: Sequence[int],
) -> pyarrow.Table:
    """`survey.removal`: the order of removal and its cost, where it was chosen, on `count` windows, and held out."""
    bounds = (
        zip(*Resampled(documents).means(held_out.T), strict=True) if documents else [(None, None, None)] * len(costs)
    )
    rows = [
        RemovalRow(step, *head, float(price), *bound, count, len(documents))
        for step, (head, price, bound) in enumerate(zip(order, costs, bounds, strict=True), 1)
    ]
    return table_of(RemovalRow, rows)
