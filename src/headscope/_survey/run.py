"""A survey from start to finish: read the corpus, hand out its parts, write them, gather. It resumes if interrupted."""

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
from typing import TYPE_CHECKING, Any

from headscope._survey.corpus import Corpus, open_corpus
from headscope._survey.documents import Part, parts
from headscope._survey.settings import Settings, check_number, settings
from headscope.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from headscope._survey.folder import Folder
    from headscope._survey.loading import Source
    from headscope._survey.result import Survey
    from headscope._survey.workers import Workers
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
    effects: int = 0,
    effects_output: str | None = None,
    effects_method: str = "zero",
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
    single: bool = False,
    plots: bool = False,
    progress: Callable[[Tally], None] | None = None,
) -> Survey:
    """The statistics of every head over a corpus. See docs/survey.md.

    Args:
        model: a hub id, a folder, `-` for the bundled model, a model from `hs.open`, or a live model of transformers.
        documents: a file, a folder, a pattern, a dataset's folder, a treebank, `-` for standard input; or an
            iterable of texts.
        out: the folder to write to; the same call resumes an interrupted survey. By default a temporary folder, removed
            together with the result.
        tokenizer: required with a live model.
        revision: a branch, tag or commit of a hub id.
        length: tokens per window, special tokens included; by default 512, or the model's limit if that is lower.
        statistics: names of statistics; by default all that the model supports.
        head_distances: number of windows over which all pairs of heads are compared; the time is quadratic in heads
            and tokens.
        labels: label every head: its behaviour among words, with score, interval and baselines.
        examples: number of each head's most telling pairs of words to keep, with their text.
        effects: number of windows over which the effect of silencing each head is measured, and heads are removed one
            by one. The model must be a named one that headscope runs itself.
        effects_output: the number that effects change: `loss` (masked-LM), `class` (the predicted one), `embedding`, or
            the name or number of a class. By default the first of these that the model has.
        effects_method: `zero` silences a head as removing it does; `mean` gives every token the mean of the head's
            contexts in the window.
        device: `cpu`, `cuda`, …; a live model stays on its device.
        dtype: fp32, fp16 or bf16; a live model keeps its dtype.
        field: the field or column that holds the text, in tables.
        batch_tokens: most tokens per batch.
        part_size: characters per part, each saved when it is finished.
        max_document: most characters per document; longer ones are refused.
        threads: torch threads per replica; by default torch's choice, on Ray 1.
        ray: True to run on Ray; a string is the address of a cluster.
        workers: replicas on Ray; by default one per GPU, or per `threads` CPUs.
        report: write the site at the end: the folder site/, whose home page is index.html.
        single: write the site as a single file instead, report.html.
        plots: write plots/ at the end.
        progress: called after each part.

    Raises:
        InputError: an invalid option, a corpus without a readable document, a treebank with an invalid line, or a
            folder that holds something else.
        HeadscopeError: the model can't be loaded, or its attention can't be read.
        MissingExtraError: PyTorch, pyarrow, Ray or matplotlib is needed and not installed.
    """
    _check_extras(ray=bool(ray), plots=plots)
    from headscope._survey.folder import Folder
    from headscope._survey.result import Survey

    check_number("threads", threads)
    check_number("workers", workers)
    source, (default_device, default_dtype) = _source(model, tokenizer, revision)
    options = {"batch_tokens": batch_tokens, "part_size": part_size, "max_document": max_document}
    chosen = settings(
        length=length,
        statistics=statistics,
        head_distances=head_distances,
        labels=labels,
        examples=examples,
        effects=effects,
        effects_output=effects_output,
        effects_method=effects_method,
        device=default_device if device is None else device,
        dtype=default_dtype if dtype is None else dtype,
        field=field,
        **{name: value for name, value in options.items() if value is not None},
    )
    corpus = open_corpus(documents)
    again = "head_distances" if head_distances else "effects" if effects else None
    if again and not corpus.again:
        raise InputError(
            f"{again} reads the texts twice, and this iterator can be read only once",
            where=again,
            advice="pass a list of texts, or a corpus on disk",
        )
    if effects and source.live is not None:
        raise InputError(
            "effects run the model from its checkpoint, and a live model was passed",
            where="effects",
            advice="save the model and its tokenizer with save_pretrained, and pass the folder's name",
        )
    if corpus.kind == "conllu":
        _check_treebank(corpus, chosen)
    with _place(out) as path:
        folder = Folder(path)
        with folder.locked(), _workers(source, chosen, threads, ray, workers) as crew:
            _fill(folder, corpus, chosen, crew, progress)
        if report:
            from headscope._survey.report import write_report, write_site

            (write_report if single else write_site)(path, parts=False)
        if plots:
            from headscope._survey.plots import write_plots

            write_plots(path, parts=False)
        return Survey(path, keep=out is not None, parts=False)


def _check_treebank(corpus: Corpus, chosen: Settings) -> None:
    """Read a treebank to its end before the model is loaded, so that an invalid line doesn't stop a survey half-way.

    Raises:
        InputError: a line is invalid.
    """
    for _ in corpus.documents(chosen.field, chosen.max_document):
        pass


@contextmanager
def _place(out: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The folder to write to; a temporary one is removed if the survey fails."""
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
    """The model's source, and its default device and dtype."""
    from headscope._capture.captured import name_of
    from headscope._survey.loading import Source, device_and_dtype
    from headscope.model import Model

    if isinstance(model, Model):
        if revision is None and model.checkpoint.origin == "hub":
            revision = model.checkpoint.where.rpartition("@")[2]  # the commit that it was opened at
        model = model.name
    if isinstance(model, (str, os.PathLike)):
        if tokenizer is not None:
            raise InputError(
                "a tokenizer is only needed with a live model",
                where="tokenizer",
                advice="omit it: a named model's tokenizer is loaded with it",
            )
        return Source(os.fspath(model), revision), ("cpu", "fp32")
    if tokenizer is None or not hasattr(model, "parameters"):
        raise InputError(
            f"a live {type(model).__name__} was passed without a tokenizer"
            if hasattr(model, "parameters")
            else f"expected a model, got {type(model).__name__}",
            where="model",
            advice="pass a name, or a model of transformers with tokenizer=AutoTokenizer.from_pretrained(…)",
        )
    name = name_of(model)
    return Source(Source(name).public_name, None, (model, tokenizer)), device_and_dtype(model)


def _check_extras(*, ray: bool, plots: bool) -> None:
    """Raise MissingExtraError, before anything is read, if a package that the survey needs is not installed."""
    needed = {"torch": "torch", "transformers": "torch", "pyarrow": "survey"}
    needed |= {"ray": "ray"} if ray else {}
    needed |= {"matplotlib": "plot"} if plots else {}
    for package, extra in needed.items():
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(
                f"{package} is not installed",
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
        raise InputError(
            "workers requires Ray", where="workers", advice="add --ray (in Python ray=True), or omit workers"
        )
    from headscope._survey.workers import LocalWorkers

    return LocalWorkers(source, chosen, threads=threads)


def _fill(
    folder: Folder, corpus: Corpus, chosen: Settings, workers: Workers, progress: Callable[[Tally], None] | None
) -> None:
    """Write everything but the report and the plots."""
    from headscope._survey.atlas import kinds_of
    from headscope._survey.beside import PLACE, all_beside, beside_name
    from headscope._survey.durable import make_folder
    from headscope._survey.gathering import gather

    model = workers.described
    identity = {
        "model": model.model,
        "settings": {**chosen.record(), "length": model.length, "statistics": list(model.statistics)},
        "versions": _versions(),
        "corpus": corpus.record(),
        "statistics": list(model.statistics),
        "left_out": model.left_out,
    }
    folder.begin(identity)
    kinds = kinds_of(corpus, chosen)
    if kinds:
        make_folder(folder.path / PLACE)
    tally = Tally(corpus.weight)
    report_progress = progress or (lambda tally: None)
    count = 0

    def todo() -> Iterator[Part]:
        """Parts that are not finished. The whole corpus is read and compared with the parts that are."""
        nonlocal count
        for part in parts(corpus.documents(chosen.field, chosen.max_document), chosen.part_size):
            count += 1
            record = folder.finished(part.index)
            if record is None or not all_beside(folder, part.index, kinds):
                yield part
                continue
            if record["texts"] != part.texts:
                raise InputError(
                    f"the corpus has changed since this survey began: part {part.index} was made from other texts",
                    where=str(folder.part_path(part.index)),
                    advice="name another folder with --out",
                )
            tally.parts += 1
            tally.kept_parts += 1
            tally.weight += part.weight
            tally.kept += part.weight
            report_progress(tally)

    report_progress(tally)
    for part, data, record, files in workers.run(todo(), folder.stamp):
        for kind, beside in files.items():  # before the part: a part on disk is finished
            folder.write(beside_name(kind, part.index), beside)
        folder.write(f"parts/{folder.part_path(part.index).name}", data)
        tally.parts += 1
        tally.weight += part.weight
        tally.documents += record["documents"]
        tally.windows += record["windows"]
        tally.tokens += record["tokens"]
        report_progress(tally)
    folder.check_no_more(count)

    def report_stage(stage: str) -> None:
        tally.stage = stage
        report_progress(tally)

    gather(folder, corpus, chosen, workers, identity, count, report_stage)


def _versions() -> dict[str, str]:
    from headscope import __version__

    versions = {name: importlib.metadata.version(name) for name in VERSIONS}
    return {"headscope": __version__, **versions, "unicode": unicodedata.unidata_version}
