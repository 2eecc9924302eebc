"""A survey from its beginning to its end: read, hand out, write, gather. What was begun and killed goes on here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headscope._survey.corpus import Corpus, open_corpus
from headscope._survey.documents import Document, Done, Part, parts
from headscope._survey.settings import Settings, check_number, settings
from headscope.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np

    from headscope._survey.folder import Folder
    from headscope._survey.likeness import Chosen
    from headscope._survey.loading import Source
    from headscope._survey.replica import Described
    from headscope._survey.result import Survey
    from headscope.model import Model

VERSIONS = ("torch", "transformers", "tokenizers", "numpy", "pyarrow")
"""Software that numbers or bytes may depend on."""


@dataclass
class Tally:
    """How far a survey is.

    Attributes:
        total: bytes of the corpus; None where that isn't known.
        weight: bytes that are done; `kept` those of them that an earlier run had done.
        documents, windows, tokens: done by this run.
        parts, kept_parts: parts that are done; those of them that were there already.
    """

    total: float | None
    weight: float = 0.0
    kept: float = 0.0
    documents: int = 0
    windows: int = 0
    tokens: int = 0
    parts: int = 0
    kept_parts: int = 0


class Workers(Protocol):
    """Who does the work: one replica here, or several on Ray."""

    @property
    def described(self) -> Described:
        """What they know of the model."""

    def run(self, todo: Iterator[Part], stamp: dict[str, Any]) -> Iterator[Done]:
        """Each part with its file, its record and the files beside it, in whatever order they are done."""

    def compare(self, todo: Iterator[tuple[Chosen, Document]]) -> Iterator[tuple[Chosen, np.ndarray]]:
        """Each window with the distances between heads, in whatever order."""


def survey(
    model: str | os.PathLike[str] | Model | Any,
    documents: str | os.PathLike[str] | Iterable[str],
    *,
    out: str | os.PathLike[str] | None = None,
    tokenizer: Any = None,
    revision: str | None = None,
    length: int | None = None,
    statistics: str | Iterable[str] | None = None,
    head_distances: int = 0,
    labels: bool = False,
    examples: int = 0,
    device: str | None = None,
    dtype: str | None = None,
    field: str = "text",
    batch_tokens: int | None = None,
    part_size: int | None = None,
    max_document: int | None = None,
    threads: int | None = None,
    ray: bool | str = False,
    workers: int | None = None,
    report: bool = True,
    plots: bool = False,
    progress: Callable[[Tally], None] | None = None,
) -> Survey:
    """The statistics of every head over a corpus. See docs/survey.md.

    Args:
        model: a hub id, a folder, `-` for the bundled model, what `hs.open` returned, or a live model of transformers.
        documents: a file, a folder, a pattern, a dataset's folder, a treebank, `-` for standard input; or texts.
        out: the folder to write to. The same call goes on where an earlier one was stopped. None: a folder that goes
            when the result goes.
        tokenizer: goes with a live model.
        revision: a branch, tag or commit of a hub id.
        length: tokens of a window, special ones included; 512, or what the model takes.
        statistics: which; all that the model can give.
        head_distances: number of windows over which all pairs of heads are compared; the time is quadratic in heads
            and tokens.
        labels: whether every head gets a label: what it does among words, with score, interval and baselines.
        examples: how many of each head's most telling pairs of words are kept, with their text.
        device: `cpu`, `cuda`, …; a live model keeps its own.
        dtype: fp32, fp16 or bf16; a live model keeps its own.
        field: the field or column of tables that holds the text.
        batch_tokens: tokens that go through the model together.
        part_size: characters between one saved part and the next.
        max_document: most characters of a document; longer ones are refused.
        threads: threads of torch in each replica; torch's own choice, on Ray 1.
        ray: whether to work on Ray; an address to use that cluster.
        workers: replicas on Ray; as many as there are GPUs, or CPUs.
        report: whether report.html is written at the end.
        plots: whether plots/ is.
        progress: called after each part.

    Raises:
        InputError: an option that can't be; a corpus in which nothing can be read; a line of a treebank that breaks the
            format; a folder that holds something else.
        HeadscopeError: the model can't be loaded, or its attention can't be read.
        MissingExtraError: PyTorch, pyarrow, Ray or matplotlib is needed and not installed.
    """
    _check_extras(ray=bool(ray), plots=plots)
    from headscope._survey.folder import Folder
    from headscope._survey.result import Survey

    check_number("threads", threads)
    check_number("workers", workers)
    source, own = _source(model, tokenizer, revision)
    options = {"batch_tokens": batch_tokens, "part_size": part_size, "max_document": max_document}
    chosen = settings(
        length=length,
        statistics=statistics,
        head_distances=head_distances,
        labels=labels,
        examples=examples,
        device=own[0] if device is None else device,
        dtype=own[1] if dtype is None else dtype,
        field=field,
        **{name: value for name, value in options.items() if value is not None},
    )
    corpus = open_corpus(documents)
    if head_distances and not corpus.again:
        raise InputError(
            "heads are compared in a second reading, and these texts can be read once only",
            where="head_distances",
            advice="pass a list of texts, or a corpus on disk",
        )
    if corpus.kind == "conllu":
        _check_treebank(corpus, chosen)
    with _place(out) as path:
        folder = Folder(path)
        with folder.held(), _workers(source, chosen, threads, ray, workers) as crew:
            _fill(folder, corpus, chosen, crew, progress)
        if report:
            from headscope._survey.report import write_report

            write_report(path, parts=False)
        if plots:
            from headscope._survey.plots import write_plots

            write_plots(path, parts=False)
        return Survey(path, keep=out is not None, parts=False)


def _check_treebank(corpus: Corpus, chosen: Settings) -> None:
    """Read a treebank once before anything is done: a line that breaks the format must not end a survey half-way.

    Raises:
        InputError: there is such a line.
    """
    for _ in corpus.documents(chosen.field, chosen.max_document):
        pass


@contextmanager
def _place(out: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The folder to write to; one that nobody named goes again if nothing comes of it."""
    if out is not None:
        yield Path(out)
        return
    path = Path(tempfile.mkdtemp(prefix="headscope-survey-"))
    try:
        yield path
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _source(model: Any, tokenizer: Any, revision: str | None) -> tuple[Source, tuple[str, str]]:
    """Where the model comes from, and the device and precision that are its own."""
    from headscope._capture.captured import name_of
    from headscope._survey.loading import Source, own_place
    from headscope.model import Model

    if isinstance(model, Model):
        model = model.name
    if isinstance(model, (str, os.PathLike)):
        if tokenizer is not None:
            raise InputError(
                "a tokenizer goes with a live model", where="tokenizer", advice="leave it out: the name has its own"
            )
        return Source(os.fspath(model), revision), ("cpu", "fp32")
    if tokenizer is None or not hasattr(model, "parameters"):
        raise InputError(
            f"{type(model).__name__} without a tokenizer can't read texts"
            if hasattr(model, "parameters")
            else f"{type(model).__name__} is no model",
            where="model",
            advice="pass a name, or a model of transformers and tokenizer=AutoTokenizer.from_pretrained(…)",
        )
    name = name_of(model)
    return Source(Source(name).said, None, (model, tokenizer)), own_place(model)


def _check_extras(*, ray: bool, plots: bool) -> None:
    """That what is needed is installed, said before anything is read."""
    needed = {"torch": "torch", "transformers": "torch", "pyarrow": "survey"}
    needed |= {"ray": "ray"} if ray else {}
    needed |= {"matplotlib": "plot"} if plots else {}
    for package, extra in needed.items():
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(
                f"this survey needs {package}, which is not installed",
                where="survey",
                advice=f"pip install 'headscope[{','.join(dict.fromkeys(('torch', 'survey', extra)))}]'",
            )


def _workers(
    source: Source, chosen: Settings, threads: int | None, ray: bool | str, workers: int | None
) -> AbstractContextManager[Workers]:
    if ray:
        from headscope._survey.on_ray import RayWorkers

        return RayWorkers(
            source, chosen, threads=threads, workers=workers, address=ray if isinstance(ray, str) else None
        )
    if workers is not None:
        raise InputError("there is one worker without Ray", where="workers", advice="ask for Ray too")
    from headscope._survey.local import LocalWorkers

    return LocalWorkers(source, chosen, threads=threads)


def _fill(
    folder: Folder, corpus: Corpus, chosen: Settings, crew: Workers, progress: Callable[[Tally], None] | None
) -> None:
    """Everything that is in the folder at the end but report and plots."""
    from headscope._survey.atlas import kinds_of
    from headscope._survey.beside import PLACE, all_beside, beside_name
    from headscope._survey.durable import make_folder

    about = crew.described
    kept = {**chosen.record(), "length": about.length, "statistics": list(about.statistics)}
    identity = {
        "model": about.model,
        "settings": kept,
        "versions": _versions(),
        "corpus": corpus.record(),
        "statistics": list(about.statistics),
        "left_out": about.left_out,
    }
    folder.begin(identity)
    kinds = kinds_of(corpus, chosen)
    if kinds:
        make_folder(folder.path / PLACE)
    tally = Tally(corpus.weight)
    said = progress or (lambda tally: None)
    count = 0

    def todo() -> Iterator[Part]:
        """Parts that are not done yet. All of the corpus is read, and held against the parts that are."""
        nonlocal count
        for part in parts(corpus.documents(chosen.field, chosen.max_document), chosen.part_size):
            count += 1
            record = folder.finished(part.index)
            if record is None or not all_beside(folder, part.index, kinds):
                yield part
                continue
            if record["texts"] != part.texts:
                raise InputError(
                    "the corpus has changed since this survey was begun: part "
                    f"{part.index} was made from other texts than are there now",
                    where=str(folder.part_path(part.index)),
                    advice="name another folder with --out",
                )
            tally.parts += 1
            tally.kept_parts += 1
            tally.weight += part.weight
            tally.kept += part.weight
            said(tally)

    said(tally)
    for part, data, record, files in crew.run(todo(), folder.stamp):
        for kind, more in files.items():  # before the part: a part that is there is done
            folder.write(beside_name(kind, part.index), more)
        folder.write(f"parts/{folder.part_path(part.index).name}", data)
        tally.parts += 1
        tally.weight += part.weight
        tally.documents += record["documents"]
        tally.windows += record["windows"]
        tally.tokens += record["tokens"]
        said(tally)
    folder.check_no_more(count)
    _gather(folder, corpus, chosen, crew, identity, count)


def _gather(
    folder: Folder, corpus: Corpus, chosen: Settings, crew: Workers, identity: dict[str, Any], count: int
) -> None:
    """Aggregates, similarity and the manifest, from the parts."""
    from headscope._survey.aggregates import aggregate, aggregates_parquet, aggregates_record
    from headscope._survey.atlas import write_atlas
    from headscope._survey.findings import FORMAT
    from headscope._survey.gathering import gathered

    about = crew.described
    paths = [folder.part_path(index) for index in range(count)]
    said = gathered(folder, paths)
    counts, refused = said["counts"], said["refused"]
    if not counts["windows"]:
        folder.clear()
        first = next(iter(refused["documents"]), None)
        raise InputError(
            "the corpus has no document that could be read"
            + (f"; refused: {counts['refused']:,}, the first, {first['document']}: {first['detail']}" if first else ""),
            where=corpus.name,
            advice="name the field or column of the text with --field, or another corpus",
        )
    found = aggregate(paths, about.statistics, len(about.heads))
    folder.write("aggregates.parquet", aggregates_parquet(found, about.heads))
    folder.write_json("aggregates.json", aggregates_record(found, about.heads, counts["windows"]))
    files = ["aggregates.parquet", "aggregates.json"]
    files += write_atlas(folder, corpus, chosen, about.heads, said["parts"])
    more: dict[str, Any] = {}
    if chosen.head_distances:
        texts = [one["texts"] for one in said["parts"]]
        more["similarity"] = _compare(folder, corpus, chosen, crew, paths, texts)
        files.append("similarity.parquet")
    folder.write_json(
        "manifest.json",
        {
            "format": FORMAT,
            "complete": True,
            **identity,
            "counts": counts,
            "refused": refused,
            **more,
            "parts": said["parts"],
            "files": {name: folder.file_record(name) for name in files},
        },
    )


def _compare(
    folder: Folder, corpus: Corpus, chosen: Settings, crew: Workers, paths: list[Path], texts: list[str]
) -> dict[str, Any]:
    """similarity.parquet; which windows it is of."""
    from headscope._survey.durable import make_folder
    from headscope._survey.likeness import choose, matrix_bytes, matrix_is_of, similarity_parquet, tasks

    heads = crew.described.heads
    windows = choose(paths, len(heads), chosen.head_distances)
    make_folder(folder.path / "similarity")
    names = [f"similarity/window-{one.rank:05}.npy" for one in windows]
    lacking = []
    for one, name in zip(windows, names, strict=True):
        data = folder.read(name)
        if data is not None and not matrix_is_of(data, one, folder.stamp):
            folder.set_aside(name, "it is of another window, or of another survey")
            data = None
        if data is None:
            lacking.append(one)
    again = parts(corpus.documents(chosen.field, chosen.max_document), chosen.part_size)
    for one, matrix in crew.compare(tasks(lacking, again, texts)):
        folder.write(names[one.rank], matrix_bytes(matrix, one, folder.stamp))
    folder.write("similarity.parquet", similarity_parquet([folder.path / name for name in names], heads))
    return {"windows": [{"document": one.document, "window": one.window} for one in windows]}


def _versions() -> dict[str, str]:
    from headscope import __version__

    versions = {name: importlib.metadata.version(name) for name in VERSIONS}
    return {"headscope": __version__, **versions, "unicode": unicodedata.unidata_version}
