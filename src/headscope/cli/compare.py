"""The command that holds two models against each other, head by head."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli.app import app, opened, tell_saved
from headscope.cli.explain import EXPLAIN, Html, Top, check_top, finish
from headscope.cli.options import number
from headscope.cli.request import Form, pasted, takes_options


@app.command(rich_help_panel=EXPLAIN)
@takes_options
def compare(
    form: Form,
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            show_default=False,
            help="A hub id, a folder, a file, or - for the bundled model; or the folder of a survey.",
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", show_default=False, help="Another of the same shape.")],
    corpus: Annotated[
        str | None,
        typer.Argument(
            metavar="CORPUS",
            show_default=False,
            help="Texts that both read, as for `headscope survey`; weights only without.",
        ),
    ] = None,
    statistics: Annotated[
        str | None, typer.Option("--statistics", metavar="A,B", help="With CORPUS: some of the statistics.")
    ] = None,
    labels: Annotated[bool, typer.Option("--labels", help="With CORPUS: label the heads of both models.")] = False,
    effects: Annotated[
        int,
        typer.Option(
            "--effects", parser=number, metavar="N", help="With CORPUS: silence each head of both over N windows."
        ),
    ] = 0,
    parquet: Annotated[
        Path | None,
        typer.Option("--parquet", metavar="FILE", help="Also write a row for each head, with everything, as Parquet."),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", parser=number, metavar="N", help="Cut documents at N tokens.")
    ] = None,
    field: Annotated[
        str, typer.Option("--field", metavar="NAME", help="The field or column of tables that holds the text.")
    ] = "text",
    top: Top = 10,
    html: Html = None,
    revision_a: Annotated[
        str | None, typer.Option("--revision-a", metavar="NAME", help="A branch, tag or commit of the hub id A.")
    ] = None,
    revision_b: Annotated[
        str | None, typer.Option("--revision-b", metavar="NAME", help="A branch, tag or commit of the hub id B.")
    ] = None,
) -> None:
    """Show what differs between two models of one shape, head by head."""
    from headscope._compare.run import compare as compare_models
    from headscope.view.compare_sheet import compare_sheet

    check_top(top)
    result = compare_models(
        a if revision_a is None else opened(a, revision_a),
        b if revision_b is None else opened(b, revision_b),
        corpus,
        statistics=None if statistics is None else [name.strip() for name in statistics.split(",")],
        labels=labels,
        effects=effects,
        max_length=max_length,
        field=field,
    )
    if parquet is not None:
        result.to_parquet(parquet)
        tell_saved(parquet, "every head with everything that was compared")
    sheet = compare_sheet(result, top)
    if sheet.look_at is None or not result.weights:
        step = pasted("compare", a, b, "--csv") if not result.weights else pasted("summary", b)
    else:
        step = pasted("head", b, *map(str, sheet.look_at))
    finish(sheet, form, step, html)
