"""The commands that check a model: is it sound, and do two sides compute the same?"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headscope.cli.app import DOUBTFUL, app, layer_progress, named, opened, tell_saved
from headscope.cli.explain import finish
from headscope.cli.options import MODEL, Form, Html, MaxLength, ModelName, Parquet, Top, check_top, takes_options
from headscope.cli.request import pasted
from headscope.errors import InputError
from headscope.files import parquet_bytes, write_atomically
from headscope.settings import COSINE, TIMEOUT, TOLERANCE, Declared, Setting

if TYPE_CHECKING:
    from headscope.model import Model
    from headscope.results.quantising import QuantisePlan

CHECK = "Check a model"
MOST_CHARACTERS = 1_000_000
"""Characters of a text: far beyond any window."""

Texts = Annotated[
    str | None,
    typer.Argument(
        metavar="TEXTS",
        show_default=False,
        help="Texts to read, as for `headscope survey`; by default twenty of mixed lengths.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ParitySettings(Declared):
    """The comparison of two sides."""

    tolerance: Annotated[
        float,
        Setting("The largest relative difference of a token's vector that is accepted.", "X", option="--tolerance"),
    ] = TOLERANCE
    max_length: MaxLength = None
    served: Annotated[
        str | None, Setting("Name of the model at an endpoint; by default that of A.", metavar="NAME")
    ] = None
    timeout: Annotated[int, Setting("Seconds to wait for an endpoint's answer.", metavar="N", least=1)] = TIMEOUT
    tokenizer: Annotated[
        str | None, Setting("A checkpoint whose tokenizer an ONNX file reads with.", metavar="NAME")
    ] = None


@dataclass(frozen=True, kw_only=True)
class QuantiseSettings(Declared):
    """A plan for int8, instead of a comparison."""

    quantise: Annotated[
        str | None,
        Setting(
            "Rank the matrices of an ONNX file by what int8 costs in each, and list those to keep.",
            "plan",
            choices=("plan",),
            option="--quantise",
        ),
    ] = None
    cosine: Annotated[float, Setting("The mean cosine that a plan has to reach.", metavar="X")] = COSINE
    per_channel: Annotated[bool, Setting("Plan with a scale for every channel.")] = True


def read_texts(corpus: str | None) -> list[str] | None:
    """The texts of a corpus; None without one.

    Raises:
        InputError: the corpus can't be read, or a document of it can't.
    """
    from headscope.atlas.corpus import open_corpus
    from headscope.atlas.documents import Refused

    if corpus is None:
        return None
    texts = []
    for document in open_corpus(corpus).documents("text", MOST_CHARACTERS):
        if isinstance(document, Refused):
            raise InputError(document.detail, where=document.name, advice="correct or remove this document")
        texts.append(document.text)
    return texts


def side(name: str) -> str | Model:
    """A side as typed: a name, or the opened model of NAME@REVISION."""
    return opened(name) if named(name)[1] is not None else name


@app.command(rich_help_panel=CHECK)
@takes_options
def parity(
    form: Form,
    a: Annotated[str, typer.Argument(metavar="A", show_default=False, help=f"The side that is right. {MODEL}")],
    b: Annotated[
        str | None,
        typer.Argument(
            metavar="B",
            show_default=False,
            help="The side that should compute the same: also an .onnx file, vectors (.npy), or an endpoint's address.",
        ),
    ] = None,
    texts: Texts = None,
    *,
    settings: ParitySettings,
    plan: QuantiseSettings,
    parquet: Parquet = None,
    top: Top = None,
    html: Html = None,
) -> None:
    """Show where two sides part: step, head, token, and what it costs; exit with 0 only if they agree."""
    from headscope.screens.parity_sheet import parity_sheet, quantise_sheet
    from headscope.verify.parity import parity as compare

    check_top(top)
    if plan.quantise is not None:
        result = planned([name for name in (a, b, texts) if name], settings, plan)
        finish(quantise_sheet(result, top), form, pasted("parity", a, "int8.onnx"), html)
        raise typer.Exit(0 if result.reached else DOUBTFUL)
    if b is None:
        raise InputError("B is missing", where="B", advice="name the side to compare with A, or pass --quantise plan")
    compared = compare(side(a), side(b), read_texts(texts), **vars(settings))
    if parquet is not None:
        write_atomically(parquet, parquet_bytes(compared.arrow()))
        tell_saved(parquet, "every token's difference at every step")
    sheet = parity_sheet(compared, top)
    step = pasted("compare", a, b) if sheet.look_at is not None else pasted("summary", a)
    finish(sheet, form, step, html)
    raise typer.Exit(0 if compared.agrees else DOUBTFUL)


def planned(names: list[str], settings: ParitySettings, plan: QuantiseSettings) -> QuantisePlan:
    """The plan for int8 of what was typed: a checkpoint, its export, or both; then texts.

    Raises:
        InputError: a file without the checkpoint that it was exported from, or more than one corpus.
    """
    from headscope.verify.quantising import quantise_plan

    file = next((name for name in names[:2] if name.endswith(".onnx")), None)
    others = [name for name in names if name != file]
    model, *texts = [settings.tokenizer, *others] if names[0] == file else others
    if model is None:
        advice = "name the checkpoint that it was exported from: --set tokenizer=NAME"
        raise InputError("an ONNX file has no tokenizer", where=names[0], advice=advice)
    if len(texts) > 1:
        raise InputError("a plan reads one corpus", where=texts[1], advice="headscope parity MODEL model.onnx TEXTS")
    with layer_progress(sys.stderr) as progress:
        return quantise_plan(
            opened(model),
            file,
            read_texts(texts[0] if texts else None),
            cosine=plan.cosine,
            per_channel=plan.per_channel,
            max_length=settings.max_length,
            progress=progress,
        )


@app.command(rich_help_panel=CHECK)
@takes_options
def doctor(
    model: ModelName,
    form: Form,
    texts: Texts = None,
    earlier: Annotated[
        Path | None,
        typer.Option("--earlier", metavar="FILE", help="What --json printed for an earlier run, to stand beside."),
    ] = None,
    html: Html = None,
) -> None:
    """Check that a model is sound: files, numbers, heads, precisions; exit with 0 only if nothing is wrong."""
    from headscope.screens.doctor_sheet import doctor_sheet
    from headscope.verify.doctor import doctor as examine

    report = examine(opened(model), read_texts(texts), earlier=earlier)
    finish(doctor_sheet(report), form, pasted("summary", model), html)
    raise typer.Exit(0 if report.agrees else DOUBTFUL)
