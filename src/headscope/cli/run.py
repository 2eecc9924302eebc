"""The commands that run a model: over one text, or over a corpus."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headscope.cli import survey_options as options
from headscope.cli.app import DOUBTFUL, app, show, tell, tell_saved
from headscope.cli.options import AsJson, ModelName, Revision, number
from headscope.cli.progress import layer_progress
from headscope.cli.request import Form, Request, exit_code, takes_options
from headscope.errors import InputError
from headscope.view.labels import printable

if TYPE_CHECKING:
    from headscope.model import Model

RUN = "Run a model on a text or a corpus"


@app.command(rich_help_panel=RUN)
@takes_options
def attend(
    request: Request,
    form: Form,
    layer: Annotated[
        int | None, typer.Option("--layer", "-L", parser=number, metavar="L", help="A layer, counted from 0.")
    ] = None,
    head: Annotated[
        int | None, typer.Option("--head", "-H", parser=number, metavar="H", help="A head, counted from 0.")
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            "--query", "-q", metavar="TOKEN", help="Show the keys of one token only, given by its position or its text."
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option("--top", parser=number, metavar="N", help="Show at most N keys for each query.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold",
            metavar="SHARE",
            help="Show only as many keys as hold this share (0 to 1) of each query's weight.",
        ),
    ] = None,
    start: Annotated[
        int,
        typer.Option("--from", parser=number, metavar="TOKEN", help="The first token to draw if not all of them fit."),
    ] = 0,
    scale: Annotated[
        str, typer.Option("--scale", metavar="sqrt|linear", help="Scale from weights to shades.")
    ] = "sqrt",
    heads: Annotated[
        str | None,
        typer.Option("--heads", metavar="STATISTIC", help="One statistic of every head, such as entropy or previous."),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Write weights as .npz or .csv, or the trace as .safetensors."),
    ] = None,
) -> None:
    """Show attention weights: of all heads at a glance, of one head, or of one token.

    Without TEXT, MODEL may also be a saved trace.
    """
    from headscope.view.attention_sheets import attend_sheet
    from headscope.view.saving import check_kind, save_attention
    from headscope.view.typed import scale_name

    if save is not None:
        check_kind(save)
    shade_scale = scale_name(scale)

    def check(model: Model) -> None:
        if layer is not None:
            model.layers[layer].heads[head or 0]  # raises before any weight is read

    _, trace = request.load_or_trace(check=check)
    if heads is not None:
        if layer is not None or head is not None or query is not None:
            raise InputError("--heads shows all heads", where="--heads", advice="leave out --layer, --head and --query")
        from headscope.view.statistic_sheet import statistic_sheet

        sheet = statistic_sheet(trace, heads)
    else:
        sheet = attend_sheet(
            trace, layer=layer, head=head, query=query, top=top, threshold=threshold, start=start, scale=shade_scale
        )
    if save is not None:
        tell_saved(save, save_attention(trace, save, layer=layer, head=head))
    code = exit_code(trace)
    if sheet.look_at is not None:
        step = request.step("attend", trace.text, "-L", str(sheet.look_at[0]), "-H", str(sheet.look_at[1]))
    else:
        step = request.step("view", trace.text)
    show(sheet, form.name, step=step)
    raise typer.Exit(code)


@app.command(rich_help_panel=RUN)
@takes_options
def verify(request: Request, form: Form) -> None:
    """Compute the forward pass in independent ways; exit with 0 only if all agree."""
    from headscope.view.report_sheets import verify_sheet

    _, trace = request.load_or_trace(doubts=False)
    report = trace.verify()
    code = exit_code(trace)
    show(verify_sheet(report), form.name, step=request.step("attend", trace.text))
    raise typer.Exit(code if report.agrees else DOUBTFUL)


@app.command(rich_help_panel=RUN)
@takes_options
def fill(
    request: Request,
    form: Form,
    top: Annotated[int, typer.Option("--top", parser=number, metavar="N", help="List N tokens for each mask.")] = 5,
) -> None:
    r"""Show the likeliest tokens for each \[MASK] in TEXT, with their probabilities."""
    from headscope.filling import check_masks, fill_trace
    from headscope.view.filling_sheet import fill_sheet

    model, trace = request.trace(check=check_masks)
    show(fill_sheet(trace, fill_trace(model, trace, top=top)), form.name, step=request.step("attend", trace.text))


@app.command(rich_help_panel=RUN)
@takes_options
def view(
    request: Request,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write the page to one offline file instead of serving it."),
    ] = None,
    layers: Annotated[
        str | None, typer.Option("--layers", metavar="L,L…", help="With --html: include only these layers.")
    ] = None,
    heads: Annotated[
        str | None, typer.Option("--heads", metavar="H,H…", help="With --html: include only these heads.")
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="fp16|fp32", help="With --html: precision of Q, K and V.")
    ] = "fp16",
    values: Annotated[
        bool | None,
        typer.Option("--values/--no-values", help="With --html: include V. By default only for short texts."),
    ] = None,
    runs: Annotated[
        bool | None,
        typer.Option(
            "--runs/--no-runs",
            help="With --html: include the effect of silencing each head. By default only where it takes a second.",
        ),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Don't open the page in a browser.")] = False,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 0,
    at: Annotated[
        str,
        typer.Option("--at", metavar="STATE", help="What the page shows first: the part after # of a page's address."),
    ] = "",
) -> None:
    """Explore every head in the browser, served on this machine or as one offline file.

    Without TEXT, MODEL may also be a saved trace.
    """
    if html is not None and at:
        raise InputError("--at is for the served page", where="--at", advice="omit it: add #… to the file's address")
    for_files = {"--layers": layers, "--heads": heads, "--values": values, "--runs": runs}
    if html is None and (unused := [name for name, value in for_files.items() if value is not None]):
        raise InputError(
            f"{unused[0]} requires --html; the served page has everything",
            where=unused[0],
            advice=f"add --html FILE, or omit {unused[0]}",
        )
    model, trace = request.load_or_trace()
    code = exit_code(trace)
    if html is None:
        from headscope.view.server import serve
        from headscope.view.typed import checked_state

        serve(trace, model, open_browser=not no_open, port=port, at=checked_state(at), announce=typer.echo)
        raise typer.Exit(code)
    from headscope.view.html import write_page
    from headscope.view.typed import number_list

    with layer_progress(sys.stderr) as progress:
        path, note = write_page(
            trace,
            html,
            dtype=dtype,
            values=values,
            layers=None if layers is None else number_list(layers, noun="layer", option="--layers", example="0,3"),
            heads=None if heads is None else number_list(heads, noun="head", option="--heads", example="0,3"),
            runs=runs,
            progress=progress,
            notify=tell,
        )
    tell_saved(path, note)
    tell(f"next: {request.step('attend', trace.text)}")
    raise typer.Exit(code)


@app.command(rich_help_panel=RUN)
def survey(
    model: ModelName,
    corpus: options.CorpusName,
    out: options.Out,
    field: options.Field = "text",
    length: options.Length = None,
    statistics: options.StatisticNames = None,
    head_distances: options.HeadDistances = 0,
    labels: options.Labels = False,
    examples: options.Examples = 0,
    effects: options.Effects = 0,
    effects_output: options.EffectsOutput = None,
    effects_method: options.EffectsMethod = "zero",
    plots: options.Plots = False,
    no_report: options.NoReport = False,
    single: options.Single = False,
    device: options.Device = "cpu",
    dtype: options.DType = "fp32",
    batch_tokens: options.BatchTokens = None,
    part_size: options.PartSize = None,
    max_document: options.MaxDocument = None,
    threads: options.Threads = None,
    ray: options.OnRay = False,
    address: options.Address = None,
    workers: options.Workers = None,
    revision: Revision = None,
    as_json: AsJson = False,
) -> None:
    """Measure every head over a corpus: a table, aggregates, a site of pages. Can be interrupted and resumed."""
    from headscope._survey.progress import progress_on
    from headscope._survey.run import survey as run
    from headscope.view.survey_sheet import survey_sheet

    with progress_on(sys.stderr, Path(printable(str(out)))) as progress:
        result = run(
            model,
            corpus,
            out=out,
            revision=revision,
            field=field,
            length=length,
            statistics=None if statistics is None else [name.strip() for name in statistics.split(",")],
            head_distances=head_distances,
            labels=labels,
            examples=examples,
            effects=effects,
            effects_output=effects_output,
            effects_method=effects_method,
            plots=plots,
            report=not no_report,
            single=single,
            device=device,
            dtype=dtype,
            batch_tokens=batch_tokens,
            part_size=part_size,
            max_document=max_document,
            threads=threads,
            ray=address or ray,
            workers=workers,
            progress=progress,
        )
    show(
        survey_sheet(result),
        "--json" if as_json else None,
        step=f"python -c {shlex.quote(f'import headscope; print(headscope.Survey({str(out)!r}))')}",
    )
