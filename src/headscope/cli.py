"""The command line: parse, call, print. What is printed is made in view/, what is known is made above it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from headscope.errors import HeadscopeError, InputError
from headscope.survey import options

if TYPE_CHECKING:
    from headscope.model import Model
    from headscope.trace import Trace
    from headscope.view.terminal import Sheet

REFUSED = 2
DISAGREES = 1
INTERRUPTED = 130
PIPE_CLOSED = 141


class Commands(TyperGroup):
    """The commands, and the one place where errors become words and exit codes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """--debug is understood wherever it stands: it is added to a command that has just failed."""
        end = args.index("--") if "--" in args else len(args)
        if "--debug" in args[:end]:
            args = ["--debug", *(arg for arg in args[:end] if arg != "--debug"), *args[end:]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except HeadscopeError as error:
            if ctx.params.get("debug"):
                raise
            from headscope.view.failure import say

            say(error, sys.stderr)
            raise typer.Exit(REFUSED) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error
        except BrokenPipeError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(PIPE_CLOSED) from error
        return result


app = typer.Typer(
    name="headscope",
    cls=Commands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

LOOK = "What is in a checkpoint"
RUN = "What it does with a text"

ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", show_default=False, help="A hub id, a folder, a file, or - for the bundled model."),
]
Text = Annotated[str, typer.Argument(metavar="TEXT", show_default=False, help="The text to read.")]
Revision = Annotated[
    str | None, typer.Option("--revision", metavar="NAME", help="A branch, tag or commit of a hub id.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")]
Pair = Annotated[str | None, typer.Option("--pair", metavar="TEXT", help="A second text that goes with it.")]
MaxLength = Annotated[
    int | None, typer.Option("--max-length", metavar="N", help="Cut a longer text to so many tokens.")
]
Words = Annotated[bool, typer.Option("--words", help="TEXT is words that are split already, at its spaces.")]
Ids = Annotated[bool, typer.Option("--ids", help="TEXT is ready-made token ids, such as '101 7592 102'.")]
Ablate = Annotated[
    list[str] | None,
    typer.Option("--ablate", metavar="L.H", help="Silence head H of layer L; may be given several times."),
]


def show(sheet: Sheet, *, as_json: bool = False, as_csv: bool = False, as_markdown: bool = False) -> None:
    """Print a sheet in the form that was asked for."""
    from headscope.view.terminal import put, put_machine

    asked = [name for name, on in (("--json", as_json), ("--csv", as_csv), ("--markdown", as_markdown)) if on]
    if len(asked) > 1:
        raise InputError(
            f"{' and '.join(asked)} can't be printed at once", where=asked[1], advice="ask for one of them"
        )
    if asked:
        put_machine(sheet, asked[0], sys.stdout)
    else:
        put(sheet.drawings, sys.stdout)


def opened(name: str, revision: str | None) -> Model:
    """The model by its name: header and config read, no weights."""
    from headscope.model import open_model

    return open_model(name, revision=revision)


def traced(
    model: Model,
    text: str,
    pair: str | None,
    *,
    words: bool,
    ids: bool,
    max_length: int | None,
    ablate: list[str] | None,
) -> Trace:
    """One forward pass over what TEXT means."""
    from headscope.view.typed import head_names, id_list, word_list

    silenced = head_names(ablate or ())
    if words and ids:
        raise InputError("TEXT can't be both words and ids", where="--ids", advice="give one of --words and --ids")
    if (words or ids) and pair is not None:
        raise InputError(
            "a second text goes with a first text only", where="--pair", advice="leave out --words, --ids or --pair"
        )
    if ids:
        return model.trace(ids=id_list(text), max_length=max_length, ablate=silenced)
    if words:
        return model.trace(words=word_list(text), max_length=max_length, ablate=silenced)
    return model.trace(text, pair, max_length=max_length, ablate=silenced)


def class_names(incomplete: str) -> list[str]:
    """Names of classes that begin so, for the shell's completion."""
    from headscope.anatomy.families import FAMILIES
    from headscope.anatomy.fit import classes_of

    names = (name for family in FAMILIES for stem in family.model_types.values() for name in classes_of(family, stem))
    return [name for name in names if name.startswith(incomplete)]


def print_version(asked: bool) -> None:
    """Print the version, and no more."""
    if asked:
        from headscope import __version__

        typer.echo(f"headscope {__version__}")
        raise typer.Exit


@app.callback(no_args_is_help=False)
def headscope(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """See inside every attention head of BERT and its kin. Layers and heads count from 0.

    Without a command: a tour of the bundled model.
    """
    if ctx.invoked_subcommand is None:
        from headscope.tour import take_tour, tour_drawings
        from headscope.view.terminal import put

        put(tour_drawings(take_tour(opened("-", None))), sys.stdout)


@app.command(rich_help_panel=LOOK)
def shapes(
    model: ModelName,
    revision: Revision = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Every parameter: name, shape, dtype, count, component."""
    from headscope.view.anatomy_sheets import shapes_sheet

    show(shapes_sheet(opened(model, revision)), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


@app.command(rich_help_panel=LOOK)
def summary(
    model: ModelName,
    revision: Revision = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Components, shares, layers, heads, memory."""
    from headscope.view.anatomy_sheets import summary_sheet

    show(summary_sheet(opened(model, revision)), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


@app.command(rich_help_panel=LOOK)
def config(
    model: ModelName,
    revision: Revision = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Every field of the config, explained."""
    from headscope.view.config_sheets import config_sheet

    show(config_sheet(opened(model, revision)), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


@app.command(rich_help_panel=LOOK)
def tree(
    model: ModelName,
    revision: Revision = None,
    modules: Annotated[
        bool, typer.Option("--modules", help="Every module, as transformers builds the class; needs headscope[torch].")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The module tree, repeats collapsed."""
    from headscope.view.config_sheets import modules_sheet, tree_sheet

    show((modules_sheet if modules else tree_sheet)(opened(model, revision)), as_json=as_json)


@app.command(rich_help_panel=LOOK)
def fit(
    model: ModelName,
    class_name: Annotated[
        str,
        typer.Argument(
            metavar="CLASS",
            show_default=False,
            help="A class, such as BertForSequenceClassification.",
            autocompletion=class_names,
        ),
    ],
    revision: Revision = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """What a class would newly initialise, and what it would ignore."""
    from headscope.view.report_sheets import fit_sheet

    show(fit_sheet(opened(model, revision), class_name), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


@app.command(rich_help_panel=LOOK)
def head(
    model: ModelName,
    layer: Annotated[int, typer.Argument(metavar="L", show_default=False, help="The layer, counted from 0.")],
    index: Annotated[int, typer.Argument(metavar="H", show_default=False, help="The head, counted from 0.")],
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE.npz", help="Write the slices to a file, all numbers.")
    ] = None,
    revision: Revision = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """One head's slices of W_Q, W_K, W_V and W_O."""
    from headscope.view.report_sheets import head_sheet, save_head

    one = opened(model, revision)
    sheet = head_sheet(one, layer, index)
    if save is not None:
        said_saved(save, save_head(one.layers[layer].heads[index], save))
    show(sheet, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


@app.command(rich_help_panel=RUN)
def attend(
    model: ModelName,
    text: Text,
    pair: Pair = None,
    layer: Annotated[int | None, typer.Option("--layer", "-L", metavar="L", help="A layer, counted from 0.")] = None,
    head: Annotated[int | None, typer.Option("--head", "-H", metavar="H", help="A head, counted from 0.")] = None,
    query: Annotated[
        str | None,
        typer.Option("--query", "-q", metavar="TOKEN", help="Only what one token takes: its position or its piece."),
    ] = None,
    top: Annotated[int | None, typer.Option("--top", metavar="N", help="At most N keys for each query.")] = None,
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", metavar="SHARE", help="The fewest keys that hold this share of each query's mass."),
    ] = None,
    start: Annotated[
        int, typer.Option("--from", metavar="TOKEN", help="The first token drawn, where not all fit.")
    ] = 0,
    scale: Annotated[str, typer.Option("--scale", metavar="sqrt|linear", help="How weights become shades.")] = "sqrt",
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Write weights as .npz or .csv, or the trace as .safetensors."),
    ] = None,
    words: Words = False,
    ids: Ids = False,
    max_length: MaxLength = None,
    ablate: Ablate = None,
    revision: Revision = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Attention weights: every head at a glance, or one head, or one token."""
    from headscope.view.attention_sheets import attend_sheet
    from headscope.view.saving import check_kind, save_attention
    from headscope.view.typed import scale_name

    if save is not None:
        check_kind(save)
    drawn_on = scale_name(scale)
    one = opened(model, revision)
    if layer is not None:
        one.layers[layer].heads[head or 0]  # refused here, before any weight is read
    trace = traced(one, text, pair, words=words, ids=ids, max_length=max_length, ablate=ablate)
    sheet = attend_sheet(
        trace, layer=layer, head=head, query=query, top=top, threshold=threshold, start=start, scale=drawn_on
    )
    if save is not None:
        said_saved(save, save_attention(trace, save, layer=layer, head=head))
    show(sheet, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


@app.command(rich_help_panel=RUN)
def verify(
    model: ModelName,
    text: Text,
    pair: Pair = None,
    words: Words = False,
    ids: Ids = False,
    max_length: MaxLength = None,
    revision: Revision = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """Compute everything in independent ways; exit code 0 only if all agree."""
    from headscope.view.report_sheets import verify_sheet

    one = opened(model, revision)
    report = one.verify(traced(one, text, pair, words=words, ids=ids, max_length=max_length, ablate=None))
    show(verify_sheet(report), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    if not report.agrees:
        raise typer.Exit(DISAGREES)


@app.command(rich_help_panel=RUN)
def fill(
    model: ModelName,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", show_default=False, help=r"A text with \[MASK] where a piece is wanted.")
    ],
    pair: Pair = None,
    top: Annotated[int, typer.Option("--top", metavar="N", help="How many pieces for each mask.")] = 5,
    max_length: MaxLength = None,
    revision: Revision = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """The best pieces for each mask, with probabilities."""
    from headscope.filling import check_masks, fill_trace
    from headscope.view.filling_sheet import fill_sheet

    one = opened(model, revision)
    check_masks(one)
    trace = one.trace(text, pair, max_length=max_length)
    sheet = fill_sheet(trace, fill_trace(one, trace, top=top))
    show(sheet, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


@app.command(rich_help_panel=RUN)
def view(
    model: ModelName,
    text: Text,
    pair: Pair = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write the page as one offline file instead of serving it."),
    ] = None,
    layers: Annotated[
        str | None, typer.Option("--layers", metavar="L,L…", help="Only these layers in the file, counted from 0.")
    ] = None,
    heads: Annotated[
        str | None, typer.Option("--heads", metavar="H,H…", help="Only these heads in the file, counted from 0.")
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="fp16|fp32", help="Precision of the file's Q, K and V.")
    ] = "fp16",
    values: Annotated[
        bool | None,
        typer.Option("--values/--no-values", help="Whether V goes into the file; short texts only, unless told."),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Don't ask a browser to open the page.")] = False,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="Where to listen; 0 is a free port.")
    ] = 0,
    words: Words = False,
    ids: Ids = False,
    max_length: MaxLength = None,
    ablate: Ablate = None,
    revision: Revision = None,
) -> None:
    """The page: every head in the browser, served on this machine, or as one offline file."""
    one = opened(model, revision)
    trace = traced(one, text, pair, words=words, ids=ids, max_length=max_length, ablate=ablate)
    if html is None:
        from headscope.view.server import serve

        serve(trace, one, open_browser=not no_open, port=port, said=typer.echo)
        return
    from headscope.view.html import write_page
    from headscope.view.typed import id_list

    path, note = write_page(
        trace,
        html,
        dtype=dtype,
        values=values,
        layers=None if layers is None else id_list(layers.replace(",", " ")),
        heads=None if heads is None else id_list(heads.replace(",", " ")),
        said=lambda note: typer.echo(note, err=True),
    )
    said_saved(path, note)


@app.command(rich_help_panel=RUN)
def survey(
    model: ModelName,
    corpus: options.CorpusName,
    out: options.Out,
    field: options.Field = "text",
    length: options.Length = None,
    statistics: options.StatisticNames = None,
    similarity: options.Similarity = 0,
    plots: options.Plots = False,
    no_report: options.NoReport = False,
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
    """Statistics of every head over a corpus: a table, aggregates, a report. Can be stopped and gone on with."""
    from headscope.survey.progress import shown
    from headscope.survey.run import survey as run
    from headscope.view.survey_sheet import survey_sheet

    with shown(sys.stderr, out) as progress:
        found = run(
            model,
            corpus,
            out=out,
            revision=revision,
            field=field,
            length=length,
            statistics=None if statistics is None else [name.strip() for name in statistics.split(",")],
            similarity=similarity,
            plots=plots,
            report=not no_report,
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
    show(survey_sheet(found), as_json=as_json)


def said_saved(path: Path, what: str) -> None:
    """Say on stderr what was written, so that stdout stays what was asked for."""
    typer.echo(f"wrote {path}: {what}", err=True)


def main() -> None:
    """The entry point of the `headscope` command."""
    try:
        app(prog_name="headscope")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
