"""The commands that read a corpus: a survey of one model, and two models held against each other."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headscope.atlas.survey_settings import Field, PairSettings, SurveySettings
from headscope.cli.app import app, named, opened, show, tell_saved
from headscope.cli.explain import EXPLAIN, finish
from headscope.cli.one_text import RUN
from headscope.cli.options import (
    MODEL,
    OUT,
    AsJson,
    Form,
    Html,
    MaxLength,
    ModelName,
    Parquet,
    Top,
    argument,
    takes_options,
)
from headscope.cli.request import pasted
from headscope.progress_bar import progress_bar
from headscope.settings import Declared, Statistics


@app.command(rich_help_panel=RUN)
@takes_options
def survey(
    model: ModelName,
    corpus: Annotated[
        str,
        argument(
            "CORPUS",
            "A folder or a pattern of text files; a .jsonl, .csv or .parquet file; a treebank (.conllu); a "
            "dataset saved with save_to_disk; or - for standard input, as one document.",
        ),
    ],
    out: Annotated[Path, OUT],
    settings: SurveySettings,
    as_json: AsJson = False,
) -> None:
    """Measure every head over a corpus: a table, aggregates, a site of pages. Can be interrupted and resumed."""
    from headscope.atlas.run import progress_on
    from headscope.atlas.run import survey as run
    from headscope.screens.labels import printable
    from headscope.screens.survey_sheet import survey_sheet

    name, revision = named(model)
    with progress_on(sys.stderr, Path(printable(str(out)))) as progress:
        result = run(name, corpus, **{**vars(settings), "out": out, "revision": revision, "progress": progress})
    step = f"python -c {shlex.quote(f'import headscope; print(headscope.Survey({str(out)!r}))')}"
    show(survey_sheet(result), "--json" if as_json else None, step=step)


@dataclass(frozen=True, kw_only=True)
class CompareSettings(Declared):
    """Settings of a comparison; the same settings as a survey's."""

    statistics: Statistics = None
    field: Field = "text"
    max_length: MaxLength = None


@app.command(rich_help_panel=EXPLAIN)
@takes_options
def compare(
    form: Form,
    a: Annotated[str, argument("A", f"{MODEL} Or the folder of a survey.")],
    b: Annotated[str, argument("B", "Another of the same shape.")],
    corpus: Annotated[
        str | None, argument("CORPUS", "Texts that both read, as for `headscope survey`; weights only without.")
    ] = None,
    *,
    settings: CompareSettings,
    parquet: Parquet = None,
    top: Top = None,
    html: Html = None,
) -> None:
    """Show what differs between two models of one shape, head by head."""
    from headscope.atlas.comparing import compare as compare_models
    from headscope.screens.compare_sheet import compare_sheet

    model_a, model_b = (opened(one) if named(one)[1] is not None else one for one in (a, b))
    result = compare_models(model_a, model_b, corpus, **vars(settings))
    if parquet is not None:
        result.to_parquet(parquet)
        tell_saved(parquet, "every head with everything that was compared")
    sheet = compare_sheet(result, top)
    if sheet.look_at is None or not result.weights:
        step = pasted("compare", a, b, options=["--csv"]) if not result.weights else pasted("summary", b)
    else:
        step = pasted("head", b, "{}.{}".format(*sheet.look_at))
    finish(sheet, form, step, html)


@app.command(rich_help_panel=EXPLAIN)
@takes_options
def pairs(
    model: ModelName,
    file: Annotated[
        str,
        argument(
            "PAIRS",
            'A .jsonl file of {"words": […], "pairs": [[0, 1]]}, a treebank (.conllu), a .pdb file or a folder of '
            "them.",
        ),
    ],
    form: Form,
    top: Top = None,
    *,
    settings: PairSettings,
) -> None:
    """Find the heads that see pairs of words that somebody has marked: arcs, coreference, contacts of residues."""
    from headscope.atlas.pair_heads import PairHeads, pair_heads
    from headscope.screens.survey_sheet import pair_rows_sheet, pairs_sheet

    with progress_bar("documents", sys.stderr) as progress:
        found = pair_heads(opened(model), file, **{**vars(settings), "progress": progress})
    sheet = pairs_sheet(found, top) if isinstance(found, PairHeads) else pair_rows_sheet(found, top)
    show(sheet, form.name, step=pasted("head", model, "{}.{}".format(*found.heads[0])))
