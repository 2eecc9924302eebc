"""From finished parts to the rest of a survey's folder: aggregates, labels, distances of heads, and the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from headscope.atlas import corpus_effects, writes
from headscope.atlas.aggregates import aggregate, aggregates_record, aggregates_table
from headscope.atlas.examples import examples_of
from headscope.atlas.folder import MOST_REFUSED, Folder
from headscope.atlas.job import Batch, Job
from headscope.atlas.labels.evidence import pairs_of
from headscope.atlas.labels.verdicts import labels_of
from headscope.atlas.observe import Observed, observe
from headscope.atlas.sample import Sample, sample_of
from headscope.atlas.shapes import REACH
from headscope.atlas.store import part_record
from headscope.atlas.survey_data import FORMAT
from headscope.atlas.syntax import relations_in, relations_table, syntax_table
from headscope.errors import InputError
from headscope.files import make_folder
from headscope.results.schemas import DistributionRow, table_of

COUNTS = ("documents", "refused", "windows", "tokens", "unknown")
"""Counted for each part and over all; `documents` are those that could be read, `unknown` the tokens that stand for
text that the tokenizer doesn't know."""


def gather(job: Job, identity: dict[str, Any], count: int) -> None:
    """Write all but the parts, from the first `count` of them: aggregates, effects, labels, …, the complete manifest.

    Raises:
        InputError: no document of the corpus could be read, or a part is missing.
    """
    folder, corpus, description = job.folder, job.corpus, job.workers.described
    paths = [folder.part_path(index) for index in range(count)]
    contents = _part_contents(folder, paths)
    counts, refused = contents["counts"], contents["refused"]
    if not counts["windows"]:
        folder.clear()
        first = next(iter(refused["documents"]), None)
        raise InputError(
            "no document of the corpus could be read"
            + (f"; refused: {counts['refused']:,}, the first, {first['document']}: {first['detail']}" if first else ""),
            where=corpus.name,
            advice="name a treebank that has sentences"
            if corpus.kind == "conllu"
            else "name the field or column of the text (--field NAME, in Python field=NAME), or another corpus",
        )
    folder.begin_tables(contents["parts"])
    aggregates = aggregate(paths, description.statistics, len(description.heads))
    folder.write_table("aggregates.parquet", aggregates_table(aggregates, description.heads))
    folder.write_json("aggregates.json", aggregates_record(aggregates, description.heads, counts["windows"]))
    files = ["aggregates.parquet", "aggregates.json"]
    similarity = {}
    if job.drawing is not None:
        job.progress("the sample")
        sample = sample_of(job.drawing.documents(), job.workers.each, job.settings)
        for name, table in _tables(job, sample):
            folder.write_table(f"{name}.parquet", table)
            files.append(f"{name}.parquet")
        compared = sample.windows[: job.settings.head_distances]
        places = [{"document": sample.names[of.document], "window": of.number} for of in compared]
        similarity = {"similarity": {"windows": places}} if places else {}
    folder.write_json(
        "manifest.json",
        {
            "format": FORMAT,
            "complete": True,
            **identity,
            "counts": counts,
            "refused": refused,
            **similarity,
            "parts": contents["parts"],
            "files": folder.sizes(files),
            **({"arrays": folder.sizes(sorted(folder.arrays))} if folder.arrays else {}),
        },
    )


def _part_contents(folder: Folder, paths: Sequence[Path]) -> dict[str, Any]:
    """The manifest's `counts` over all parts, `refused` documents by reason and by name, and the list of `parts`.

    Raises:
        InputError: a part is missing.
    """
    counts = dict.fromkeys(COUNTS, 0)
    reasons: Counter[str] = Counter()
    documents: list[dict[str, Any]] = []
    rows = []
    for path in paths:
        name = f"parts/{path.name}"
        data = folder.read(name)
        if data is None:
            advice = "run the same command again: it makes that part again"
            raise InputError("a finished part is missing or damaged", where=str(path), advice=advice)
        record = part_record(data)
        refused = record["refused"]
        part_counts = {what: len(refused) if what == "refused" else record[what] for what in COUNTS}
        for what, number in part_counts.items():
            counts[what] += number
        reasons.update(document["reason"] for document in refused)
        documents += refused[: MOST_REFUSED - len(documents)]
        rows.append({"name": name, "bytes": len(data), **part_counts, "texts": record["texts"]})
    return {
        "counts": counts,
        "refused": {"reasons": dict(sorted(reasons.items())), "documents": documents},
        "parts": rows,
    }


def _tables(job: Job, sample: Sample) -> Iterator[tuple[str, pyarrow.Table]]:
    """Name and rows of the sample, and of each table that is measured over it."""
    settings, trees = job.settings, job.corpus.kind == "conllu"
    yield "sample", sample.table()
    if settings.effects:
        yield from corpus_effects.measure(job, sample)
    if settings.writes:
        yield "writes", writes.measure(job, sample)
    if settings.choices or trees:
        observed = observe(job, sample)
        if trees:
            relations = relations_in(observed.windows, observed.arcs)
            yield "syntax", syntax_table(relations, job.heads)
            yield "relations", relations_table(relations, job.heads)
        if settings.choices:
            yield from _of_words(job, observed)
    if settings.head_distances:
        job.progress("distances between heads")
        yield "similarity", _similarity(job, sample)


def _of_words(job: Job, observed: Observed) -> Iterator[tuple[str, pyarrow.Table]]:
    """Name and table of all that is told of words' choices."""
    job.progress("labels and examples")
    yield "distributions", _distributions(job, observed)
    pairs = pairs_of(observed)
    labels, explained = labels_of(observed, job.heads, pairs, partial(job.workers.once, "vectors"))
    if job.settings.labels:
        yield "labels", labels
    if job.settings.examples:
        yield from examples_of(job, observed, pairs, explained.tolist())


def _distributions(job: Job, observed: Observed) -> pyarrow.Table:
    rows = []
    for place, weights, counts in zip(job.heads, observed.totals.weight, observed.totals.pairs, strict=True):
        for distance, weight, count in zip(range(-REACH, REACH + 1), weights, counts.tolist(), strict=True):
            rows.append(DistributionRow(*place, distance, weight / count if count else None, count))
    return table_of(DistributionRow, rows)


def _similarity(job: Job, sample: Sample) -> pyarrow.Table:
    """The mean distances, a row for each ordered pair of heads. Each window's matrix is a file, and measured once."""
    make_folder(job.folder.path / "similarity")
    todo = [Batch(at, (window,)) for at, window in enumerate(sample.windows[: job.settings.head_distances])]
    count = len(job.heads)
    total = sum(job.arrays("compare", todo, "similarity/window", {}), np.zeros((count, count)))
    places = np.array(job.heads, dtype=np.int16)
    first, second = places.repeat(count, axis=0), np.tile(places, (count, 1))
    return pyarrow.table(
        {
            "layer_a": first[:, 0],
            "head_a": first[:, 1],
            "layer_b": second[:, 0],
            "head_b": second[:, 1],
            "distance": (total / max(len(todo), 1)).reshape(-1),
            "windows": np.full(count * count, len(todo), dtype=np.int32),
        }
    )
