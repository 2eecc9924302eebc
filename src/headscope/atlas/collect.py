"""From finished parts to the rest of a survey's folder: aggregates, labels, distances of heads, and the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow

from headscope.atlas import writes
from headscope.atlas.aggregates import aggregate, aggregates_record, aggregates_table
from headscope.atlas.corpus import Corpus
from headscope.atlas.corpus_effects import measure
from headscope.atlas.documents import CorpusPart, parts
from headscope.atlas.examples import chosen_pairs, lines_table
from headscope.atlas.folder import MOST_REFUSED, Folder
from headscope.atlas.labels.evidence import pairs_of
from headscope.atlas.labels.verdicts import labels_of
from headscope.atlas.observe import Observed, observe
from headscope.atlas.sample import Drawing, Sample, sample_of
from headscope.atlas.shapes import REACH, Totals
from headscope.atlas.store import array_and_record, part_record
from headscope.atlas.survey_data import FORMAT
from headscope.atlas.survey_settings import Settings
from headscope.atlas.syntax import relations_in, relations_table, syntax_table
from headscope.errors import InputError
from headscope.files import make_folder
from headscope.results.schemas import DistributionRow, Example, table_of

if TYPE_CHECKING:
    from headscope.atlas.replica import Workers

COUNTS = ("documents", "refused", "windows", "tokens", "unknown")
"""Counted for each part and over all; `documents` are those that could be read, `unknown` the tokens that stand for
text that the tokenizer doesn't know."""


class Job(NamedTuple):
    """A survey that is being made.

    Attributes:
        folder: what it is written to.
        corpus: what is read.
        settings: what its numbers depend on.
        workers: what runs the model.
        drawing: draws the sample; None if nothing is measured over one.
    """

    folder: Folder
    corpus: Corpus
    settings: Settings
    workers: Workers
    drawing: Drawing | None

    @classmethod
    def of(cls, folder: Folder, corpus: Corpus, settings: Settings, workers: Workers) -> Job:
        """A job, with a drawing if the settings or a treebank want one."""
        wanted = settings.choices or settings.windows or corpus.kind == "conllu"
        words = max(settings.sample, settings.windows * workers.described.length)
        return cls(folder, corpus, settings, workers, Drawing(words) if wanted else None)

    def parts(self) -> Iterator[CorpusPart]:
        """Read the corpus part by part, and draw from it."""
        settings = self.settings
        documents = self.corpus.documents(settings.field, settings.max_document, settings.pieces)
        every = parts(documents, settings.part_size)
        return every if self.drawing is None else self.drawing.passing(every)


def gather(job: Job, identity: dict[str, Any], count: int, progress: Callable[[str], None]) -> None:
    """Write all but the parts, from the first `count` of them: aggregates, effects, labels, …, the complete manifest.

    Raises:
        InputError: no document of the corpus could be read, or a part is missing.
    """
    folder, corpus, description = job.folder, job.corpus, job.workers.described
    paths = [folder.part_path(index) for index in range(count)]
    contents = part_contents(folder, paths)
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
        progress("the sample")
        sample = sample_of(job.drawing.documents(), job.workers.each, job.settings)
        for name, table in _tables(job, sample, progress):
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


def part_contents(folder: Folder, paths: Sequence[Path]) -> dict[str, Any]:
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
            raise InputError(
                "a finished part is missing or damaged",
                where=str(path),
                advice="run the same command again: it makes that part again",
            )
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


def _tables(job: Job, sample: Sample, progress: Callable[[str], None]) -> Iterator[tuple[str, pyarrow.Table]]:
    """Name and rows of the sample, and of each table that is measured over it."""
    folder, _, settings, workers, _ = job
    heads, batch_tokens = workers.described.heads, settings.batch_tokens
    yield "sample", sample.table()
    if settings.effects:
        make_folder(folder.path / "effects")
        windows = sample.windows[: settings.effects]
        output = workers.described.model["effects"]
        yield from measure(folder, windows, heads, output, workers.each, batch_tokens, progress)
    if settings.writes:
        make_folder(folder.path / writes.PLACE)
        windows, unknown = sample.windows[: settings.writes], workers.described.model["writes"]["unknown"]
        yield "writes", writes.measure(folder, windows, heads, unknown, workers.each, batch_tokens, progress)
    if settings.choices or job.corpus.kind == "conllu":
        observed = observe(sample, workers.each, len(heads), batch_tokens, progress, choices=settings.choices)
        yield from _of_words(job, observed, progress)
    if settings.head_distances:
        progress("distances between heads")
        yield "similarity", _similarity(job, sample)


def _of_words(job: Job, observed: Observed, progress: Callable[[str], None]) -> Iterator[tuple[str, pyarrow.Table]]:
    """Name and table of all that is told of words."""
    settings, workers, heads = job.settings, job.workers, job.workers.described.heads
    if job.corpus.kind == "conllu":
        relations = relations_in(observed.windows, observed.arcs)
        yield "syntax", syntax_table(relations, heads)
        yield "relations", relations_table(relations, heads)
    if not settings.choices:
        return
    progress("labels and examples")
    yield "distributions", _distributions(observed.totals, heads)
    pairs = pairs_of(observed)
    labels, explained = labels_of(observed, heads, pairs, partial(workers.once, "vectors"))
    if settings.labels:
        yield "labels", labels
    if settings.examples:
        chosen = chosen_pairs(observed, heads, pairs, explained.tolist(), settings.examples)
        yield "examples", table_of(Example, [example for example, _ in chosen])
        yield "lines", lines_table(observed, heads, chosen, partial(workers.each, "read"))


def _distributions(totals: Totals, heads: Sequence[tuple[int, int]]) -> pyarrow.Table:
    rows = []
    for cell, place in enumerate(heads):
        for at, distance in enumerate(range(-REACH, REACH + 1)):
            pairs = int(totals.pairs[cell, at])
            mean = totals.weight[cell, at] / pairs if pairs else None
            rows.append(DistributionRow(*place, distance, mean, pairs))
    return table_of(DistributionRow, rows)


def _similarity(job: Job, sample: Sample) -> pyarrow.Table:
    """The mean distances, a row for each ordered pair of heads. Each window's matrix is a file, and measured once."""
    folder, heads = job.folder, job.workers.described.heads
    make_folder(folder.path / "similarity")
    total = np.zeros((len(heads), len(heads)))
    todo = list(enumerate(sample.windows[: job.settings.head_distances]))
    names = [f"similarity/window-{at:05}.npy" for at, _ in todo]
    missing = [(at, of) for at, of in todo if folder.array(names[at], {}) is None]
    for (at, _), matrix in job.workers.each("compare", missing):
        folder.write_array(names[at], matrix.astype(np.float32), {})
    for name in names:
        total += array_and_record((folder.path / name).read_bytes())[0]
    places, count = np.array(heads, dtype=np.int16), len(heads)
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
