"""From finished parts to the rest of a survey's folder: aggregates, labels, distances of heads, and the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headscope.atlas import writes
from headscope.atlas.aggregates import aggregate, aggregates_parquet, aggregates_record
from headscope.atlas.corpus import Corpus
from headscope.atlas.corpus_effects import (
    WINDOWS,
    EffectWindow,
    effects_table,
    kept_windows,
    measure,
    removal_table,
    windows_bytes,
)
from headscope.atlas.documents import CorpusPart, parts
from headscope.atlas.examples import examples_table
from headscope.atlas.folder import MOST_REFUSED, Folder
from headscope.atlas.head_distance_windows import by_document, choose, record_of, similarity_parquet, tasks
from headscope.atlas.labels.choices import merged
from headscope.atlas.labels.verdicts import labels_of
from headscope.atlas.lines import lines_table
from headscope.atlas.shapes import distributions_table
from headscope.atlas.store import array_bytes, beside_name, kept_array, part_record, read_beside
from headscope.atlas.survey_data import FORMAT
from headscope.atlas.survey_settings import Settings
from headscope.atlas.syntax import relations_table, syntax_table
from headscope.errors import InputError
from headscope.files import make_folder, parquet_bytes

if TYPE_CHECKING:
    from headscope.atlas.workers import Workers

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
    """

    folder: Folder
    corpus: Corpus
    settings: Settings
    workers: Workers

    def parts(self) -> Iterator[CorpusPart]:
        """Read the corpus part by part."""
        settings = self.settings
        return parts(self.corpus.documents(settings.field, settings.max_document, settings.pieces), settings.part_size)


def gather(job: Job, identity: dict[str, Any], count: int, progress: Callable[[str], None]) -> None:
    """Write all but the parts, from the first `count` of them: aggregates, effects, labels, …, the complete manifest.

    Raises:
        InputError: no document of the corpus could be read, or a part is missing.
    """
    folder, corpus, settings, workers = job
    description = workers.described
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
            else "name the field or column of the text with --field, or another corpus",
        )
    aggregates = aggregate(paths, description.statistics, len(description.heads))
    folder.write("aggregates.parquet", aggregates_parquet(aggregates, description.heads))
    folder.write_json("aggregates.json", aggregates_record(aggregates, description.heads, counts["windows"]))
    files = ["aggregates.parquet", "aggregates.json"]
    texts = [part["texts"] for part in contents["parts"]]
    if settings.effects:
        windows = _drawn(job, paths, texts, settings.effects, WINDOWS)
        measured = measure(folder, windows, description.heads, workers, settings.batch_tokens, progress)
        folder.write("effects.parquet", parquet_bytes(effects_table(measured, description.heads)))
        folder.write("removal.parquet", parquet_bytes(removal_table(measured)))
        files += ["effects.parquet", "removal.parquet"]
    if settings.writes:
        windows = _drawn(job, paths, texts, settings.writes, writes.WINDOWS)
        table = writes.measure(folder, windows, description.heads, workers, settings.batch_tokens, progress)
        folder.write("writes.parquet", parquet_bytes(table))
        files.append("writes.parquet")
    if settings.choices:
        progress("labels and examples")
    files += write_atlas(job, contents["parts"])
    similarity: dict[str, Any] = {}
    if settings.head_distances:
        progress("distances between heads")
        similarity = {"similarity": _compare_heads(job, paths, texts)}
        files.append("similarity.parquet")
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
            "files": {name: folder.file_record(name) for name in files},
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
        digest = sha256(data).hexdigest()
        rows.append({"name": name, "bytes": len(data), "sha256": digest, **part_counts, "texts": record["texts"]})
    return {
        "counts": counts,
        "refused": {"reasons": dict(sorted(reasons.items())), "documents": documents},
        "parts": rows,
    }


def _drawn(job: Job, paths: list[Path], texts: list[str], count: int, name: str) -> list[EffectWindow]:
    """Draw so many windows and keep them in a file; what is in the folder is not made again."""
    folder, workers = job.folder, job.workers
    places = choose(paths, len(workers.described.heads), count)
    make_folder((folder.path / name).parent)
    windows = kept_windows(folder, name, places)
    if windows is None:
        cut = workers.each("cut", by_document(tasks(places, job.parts(), texts)))
        windows = [window for _, some in cut for window in some]
        folder.write(name, windows_bytes(windows, folder.stamp))
    return windows


def _compare_heads(job: Job, paths: list[Path], texts: list[str]) -> dict[str, Any]:
    """Write similarity.parquet; return the windows that heads were compared over, for the manifest."""
    folder, heads = job.folder, job.workers.described.heads
    windows = choose(paths, len(heads), job.settings.head_distances)
    make_folder(folder.path / "similarity")
    names = [f"similarity/window-{window.rank:05}.npy" for window in windows]
    missing = []
    for window, name in zip(windows, names, strict=True):
        if kept_array(folder, name, record_of(window, folder.stamp)) is None:
            missing.append(window)
    for (window, _), matrix in job.workers.each("compare", tasks(missing, job.parts(), texts)):
        folder.write(names[window.rank], array_bytes(matrix.astype(np.float32), record_of(window, folder.stamp)))
    folder.write("similarity.parquet", similarity_parquet([folder.path / name for name in names], heads))
    return {"windows": [{"document": window.document, "window": window.window} for window in windows]}


def kinds_of(job: Job) -> tuple[str, ...]:
    """The kinds of files that each part has beside it."""
    syntax = ("syntax",) if job.corpus.kind == "conllu" else ()
    return (*syntax, "choices", "distances", "heads", "pairs", "texts") if job.settings.choices else syntax


def write_atlas(job: Job, parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write the tables of the whole survey; the names of all files that the manifest is to list."""
    folder, _, chosen, workers = job
    heads, kinds = workers.described.heads, kinds_of(job)
    files = [beside_name(kind, part) for part in range(len(parts)) for kind in kinds]
    documents = [int(part["documents"]) for part in parts]
    if "syntax" in kinds:
        folder.write("syntax.parquet", parquet_bytes(syntax_table(folder.path, documents, heads)))
        folder.write("relations.parquet", parquet_bytes(relations_table(folder.path, documents, heads)))
        files += ["syntax.parquet", "relations.parquet"]
    if not chosen.choices:
        return files
    distributions = distributions_table(read_beside(folder.path, "distances", len(parts)), heads)
    folder.write("distributions.parquet", parquet_bytes(distributions))
    files.append("distributions.parquet")
    pairs = merged(read_beside(folder.path, "pairs", len(parts)), documents)
    labels = labels_of(folder.path, documents, heads, pairs, partial(workers.once, "vectors"))
    if chosen.labels:
        folder.write("labels.parquet", parquet_bytes(labels.table))
        files.append("labels.parquet")
    if chosen.examples:
        examples = examples_table(heads, pairs, labels, chosen.examples)
        folder.write("examples.parquet", parquet_bytes(examples))
        lines = lines_table(folder.path, documents, heads, examples, partial(workers.each, "read"))
        folder.write("lines.parquet", parquet_bytes(lines))
        files += ["examples.parquet", "lines.parquet"]
    return files
