"""A survey from start to finish: read the corpus, hand out its parts, write them, gather. It resumes if interrupted."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
import time
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from headscope.atlas.corpus import Corpus, open_corpus
from headscope.atlas.documents import CorpusPart
from headscope.atlas.survey_settings import Settings, SurveySettings
from headscope.errors import InputError, require
from headscope.files import unwritable
from headscope.progress_bar import Work, clock, progress_bar
from headscope.settings import takes

if TYPE_CHECKING:
    from headscope.atlas.folder import Folder
    from headscope.atlas.job import Workers
    from headscope.atlas.loading import ModelSource
    from headscope.atlas.result import Survey
    from headscope.model import Model

VERSIONS = ("torch", "transformers", "tokenizers", "numpy", "pyarrow")
"""Packages whose versions the numbers or the bytes may depend on."""


@dataclass
class Tally:
    """Progress of a survey.

    Attributes:
        total: bytes of the corpus; None if unknown.
        weight: bytes processed so far; `kept`: those that an earlier run had processed.
        documents, windows, tokens: processed by this run.
        stage: what is being done once all parts are finished; empty before.
        parts, kept_parts: finished parts; those that an earlier run had finished.
    """

    total: float | None
    weight: float = 0.0
    kept: float = 0.0
    documents: int = 0
    windows: int = 0
    tokens: int = 0
    parts: int = 0
    kept_parts: int = 0
    stage: str = ""


@takes(SurveySettings)
def survey(
    model: str | os.PathLike[str] | Model | Any,
    documents: str | os.PathLike[str] | Iterable[str | Mapping[str, Any]],
    settings: SurveySettings,
) -> Survey:
    """The statistics of every head over a corpus. See docs/survey.md.

    Args:
        model: a hub id, a folder, `-` for the bundled model, a model from `hs.open`, or a live model of transformers,
            alone with `tokenizer` or in its pipeline.
        documents: a file, a folder, a pattern, a dataset's folder, a treebank, `-` for standard input; or an
            iterable of texts, or of records with one, as a dataset of Hugging Face has them.
        settings: the fields of headscope.atlas.survey_settings.SurveySettings, each as a keyword: `labels=True`.

    Raises:
        InputError: an invalid option, a corpus without a readable document, a treebank with an invalid line, or a
            folder that holds something else.
        HeadscopeError: the model can't be loaded, or its attention can't be read.
        MissingExtraError: PyTorch, pyarrow or Ray is needed and not installed.
    """
    needed = {"torch": "torch", "transformers": "torch", "pyarrow": "survey"} | ({"ray": "ray"} if settings.ray else {})
    for package, extra in needed.items():
        require(package, "torch", "survey", extra, where="survey")
    from headscope.atlas.folder import Folder
    from headscope.atlas.result import Survey

    corpus = open_corpus(documents)  # what is wrong with its name is said before PyTorch is imported
    source, defaults = source_of(model, settings.tokenizer, settings.revision)
    chosen = settings.resolved(*defaults)
    _check_corpus(corpus, chosen, live=source.live is not None)
    with _place(settings.out) as path:
        folder = Folder(path)
        with (
            folder.locked(),
            nullcontext(settings.progress) if settings.progress else _shown() as progress,
            workers_for(source, chosen, settings.threads, settings.ray, settings.workers) as crew,
        ):
            _fill(folder, corpus, chosen, crew, progress)
        if settings.report:
            from headscope.atlas.site import write_site

            write_site(path, parts=False)
        return Survey(path, keep=settings.out is not None, parts=False)


@contextmanager
def _shown() -> Iterator[Callable[[Tally], None]]:
    """The progress of a survey from Python: a bar in notebooks, and lines of the log."""
    with progress_bar("survey") as work:
        yield tally_shown(work)


@contextmanager
def progress_on(stream: TextIO, folder: Path) -> Iterator[Callable[[Tally], None]]:
    """Yield the callback for a survey's progress. When interrupted, say what is finished and how to resume."""
    try:
        with progress_bar("survey", stream) as work, _damage_as_lines(work.line):
            yield tally_shown(work)
    except KeyboardInterrupt:
        done = len(list(folder.glob("parts/part-*.parquet")))
        if not done:
            raise
        stream.write(f"stopped: {done:,} finished parts are kept in {folder}; run the same command to resume\n")
        raise


def tally_shown(work: Work) -> Callable[[Tally], None]:
    """The callback that shows a survey's tally; seconds count from its first call, when the model is loaded."""
    work.text = "loading the model"
    started: list[float] = []

    def show(tally: Tally) -> None:
        if not started:
            started.append(time.monotonic())
        work(tally.weight, tally.total, described(tally, time.monotonic() - started[0]))

    return show


@contextmanager
def _damage_as_lines(print_line: Callable[[str], None]) -> Iterator[None]:
    """Print each DamageWarning as a line of its own instead of in Python's format."""
    from headscope.atlas.survey_data import DamageWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", DamageWarning)
        show_other = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, DamageWarning):
                print_line(f"damaged: {message}")
            else:
                show_other(message, category, *place, **more)

        warnings.showwarning = show
        yield


def described(tally: Tally, seconds: float) -> str:
    """Documents, tokens a second and time left, after `seconds` of this run."""
    if tally.stage:
        return tally.stage
    words = [f"{tally.documents:,} documents"]
    if tally.kept_parts:
        words.append(f"{tally.kept_parts:,} parts kept")
    done = tally.weight - tally.kept
    if tally.tokens and seconds > 0:
        words.append(f"{tally.tokens / seconds:,.0f} tokens/s")
        if tally.total is not None and done > 0:
            words.append(f"{clock((tally.total - tally.weight) * seconds / done)} left")
    return " · ".join(words)


def _check_corpus(corpus: Corpus, chosen: Settings, *, live: bool) -> None:
    """Check that a corpus can be surveyed with these settings, before a model is loaded.

    A treebank is read to its end, so that an invalid line doesn't stop a survey half-way.

    Raises:
        InputError: effects or writes of a live model, or an invalid line of a treebank.
    """
    from_disk = next((name for name in ("effects", "writes") if getattr(chosen, name)), None)
    if from_disk and live:
        found = f"{from_disk} run the model from its checkpoint, and a live model was passed"
        advice = "save the model and its tokenizer with save_pretrained, and pass the folder's name"
        raise InputError(found, where=from_disk, advice=advice)
    if corpus.kind == "conllu":
        for _ in corpus.documents(chosen.field, chosen.max_document, chosen.pieces):
            pass


@contextmanager
def _place(out: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The folder to write to; a temporary one is removed if the survey fails."""
    if out is not None:
        yield Path(out)
        return
    try:
        path = Path(tempfile.mkdtemp(prefix="headscope-survey-"))
    except OSError as error:
        raise unwritable(Path("out"), error, "a temporary folder can't be made") from error
    try:
        yield path
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def source_of(model: Any, tokenizer: Any, revision: str | None) -> tuple[ModelSource, tuple[str, str]]:
    """The model's source, and its default device and dtype."""
    from headscope.atlas.loading import ModelSource, device_and_dtype
    from headscope.checkpoint.models_in_memory import kind_of, to_open, unpacked
    from headscope.live.captured import name_of
    from headscope.model import Model

    if kind_of(model) == "sentence-transformers":
        raise to_open(model, "pass hs.open(model)")
    model, tokenizer = unpacked(model, tokenizer)
    given: dict[str, Any] = {}
    if isinstance(model, Model):
        given = {"tokenizer": model.tokenizer_from, "segments": model.segments}
        if revision is None and model.checkpoint.origin == "hub":
            revision = model.checkpoint.where.rpartition("@")[2]  # the commit that it was opened at
        held = model.checkpoint.held
        given |= {"called": model.name} if held else {}
        model = model.checkpoint.where if held else model.name
    if isinstance(model, (str, os.PathLike)):
        if tokenizer is not None:
            advice = "omit it: a named model's tokenizer is loaded with it"
            raise InputError("a tokenizer is only needed with a live model", where="tokenizer", advice=advice)
        return ModelSource(os.fspath(model), revision, **given), ("cpu", "fp32")
    if tokenizer is None or not hasattr(model, "parameters"):
        raise InputError(
            f"a live {type(model).__name__} was passed without a tokenizer"
            if hasattr(model, "parameters")
            else f"expected a model, got {type(model).__name__}",
            where="model",
            advice="pass a name, or a model of transformers with tokenizer=AutoTokenizer.from_pretrained(…)",
        )
    name = name_of(model)
    return ModelSource(ModelSource(name).public_name, None, (model, tokenizer)), device_and_dtype(model)


def workers_for(
    source: ModelSource, chosen: Settings, threads: int | None, ray: bool | str, workers: int | None
) -> Workers:
    if ray:
        from headscope.atlas.on_ray import RayWorkers

        return RayWorkers(
            source, chosen, threads=threads, workers=workers, address=ray if isinstance(ray, str) else None
        )
    if workers is not None:
        raise InputError(
            "workers requires Ray", where="workers", advice="add --ray (in Python ray=True), or omit workers"
        )
    from headscope.atlas.replica import LocalWorkers

    return LocalWorkers(source, chosen, threads=threads)


def _fill(
    folder: Folder, corpus: Corpus, chosen: Settings, workers: Workers, report_progress: Callable[[Tally], None]
) -> None:
    """Write everything but the report."""
    from headscope.atlas.collect import gather
    from headscope.atlas.job import Job
    from headscope.atlas.store import part_name

    model = workers.described
    identity = {
        "model": model.model,
        "settings": {**chosen.record(), "length": model.length, "statistics": list(model.statistics)},
        "versions": versions(),
        "corpus": corpus.record(),
        "statistics": list(model.statistics),
        "left_out": model.left_out,
    }
    folder.begin(identity)
    tally = Tally(corpus.weight)

    def report_stage(stage: str) -> None:
        tally.stage = stage
        report_progress(tally)

    job = Job(folder, corpus, chosen, workers, report_stage)
    todo = unfinished(folder, job.parts(), tally, report_progress)
    report_progress(tally)
    for part, (data, record) in workers.each("run", todo, folder.owner):
        folder.write(part_name(part.index), data)
        tally.parts += 1
        tally.weight += part.weight
        tally.documents += record["documents"]
        tally.windows += record["windows"]
        tally.tokens += record["tokens"]
        report_progress(tally)
    folder.check_no_more(tally.parts)
    if tally.parts == tally.kept_parts == folder.parts:
        return  # nothing is new, and all that is made from the parts is there

    gather(job, identity, tally.parts)


def unfinished(
    folder: Folder, every: Iterable[CorpusPart], tally: Tally, report_progress: Callable[[Tally], None]
) -> Iterator[CorpusPart]:
    """Yield the parts that are not finished. The whole corpus is read and compared with the parts that are.

    Raises:
        InputError: a finished part was made from other texts.
    """
    for part in every:
        record = folder.finished(part.index)
        if record is None:
            yield part
            continue
        if record["texts"] != part.texts:
            found = f"the corpus has changed since this survey began: part {part.index} was made from other texts"
            raise InputError(found, where=str(folder.part_path(part.index)), advice="name another folder with --out")
        tally.parts += 1
        tally.kept_parts += 1
        tally.weight += part.weight
        tally.kept += part.weight
        report_progress(tally)


def versions() -> dict[str, str]:
    from headscope import __version__

    versions = {name: importlib.metadata.version(name) for name in VERSIONS}
    return {"headscope": __version__, **versions, "unicode": unicodedata.unidata_version}
