"""The commands that run a model over one text."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headscope.cli.app import DOUBTFUL, app, put_bytes, show, tell, tell_saved
from headscope.cli.options import Form, Heads, Html, Save, Top, takes_options
from headscope.cli.request import Request, exit_code
from headscope.errors import InputError, install
from headscope.files import write_atomically, write_temporary
from headscope.progress_bar import progress_bar
from headscope.settings import Declared, Setting, Statistics

if TYPE_CHECKING:
    from pathlib import Path

    from headscope.atlas.head_notes import HeadNotes
    from headscope.model import Model
    from headscope.traces import Trace

RUN = "Run a model on a text or a corpus"


@dataclass(frozen=True)
class AttendSettings(Declared):
    """Numbers to show instead of weights; or which cells of a head are drawn, and how dark."""

    statistics: Statistics = None
    threshold: Annotated[
        float | None,
        Setting("Show only as many keys as hold this share (0 to 1) of each query's weight.", metavar="SHARE"),
    ] = None
    start: Annotated[int, Setting("The first token to draw if not all of them fit.", metavar="TOKEN")] = 0
    scale: Annotated[
        Literal["sqrt", "linear"],
        Setting("Scale from weights to shades.", metavar="sqrt|linear", choices=("sqrt", "linear")),
    ] = "sqrt"


@app.command(rich_help_panel=RUN)
@takes_options
def attend(
    request: Request,
    form: Form,
    heads: Heads = None,
    query: Annotated[
        str | None,
        typer.Option(
            "--query", "-q", metavar="TOKEN", help="Show the keys of one token only, given by its position or its text."
        ),
    ] = None,
    top: Top = None,
    save: Save = None,
    *,
    settings: AttendSettings,
) -> None:
    """Show attention weights: of all heads at a glance, of one head, or of one token.

    Without TEXT, MODEL may also be a saved trace. Weights are saved as .npz or .csv, the trace as .safetensors.
    """
    from headscope.screens.attention_sheets import attend_sheets
    from headscope.screens.saving import check_kind, save_attention
    from headscope.screens.values import head_list

    chosen = [] if heads is None else head_list(heads, "--heads")
    names = [] if settings.statistics is None else list(settings.statistics)
    fewer = query is not None or top is not None or settings.threshold is not None
    if names and (chosen or fewer or len(names) > 1):
        raise InputError(
            "--statistic shows one statistic of all heads",
            where="--statistic",
            advice="name one, and leave out --heads, --query, --top and threshold",
        )
    if save is not None:
        check_kind(save)
        if len(chosen) > 1:
            raise InputError("--save writes one head, one layer, or all", where="--save", advice="select one of them")

    def check(model: Model) -> None:
        for layer, head in chosen:
            model.layers[layer].heads[head or 0]  # raises before any weight is read

    _, trace = request.load_or_trace(check=check)
    if names:
        from headscope.screens.overview_sheets import statistic_sheet

        sheet = statistic_sheet(trace, names[0])
    else:
        sheet = attend_sheets(
            trace,
            chosen,
            query=query,
            top=top,
            threshold=settings.threshold,
            start=settings.start,
            scale=settings.scale,
        )
    if save is not None:
        layer, head = chosen[0] if chosen else (None, None)
        tell_saved(save, save_attention(trace, save, layer=layer, head=head))
    code = exit_code(trace)
    if sheet.look_at is not None:
        step = request.step("attend", trace.text, "--heads", "{}.{}".format(*sheet.look_at))
    else:
        step = request.step("view", trace.text)
    show(sheet, form.name, step=step)
    raise typer.Exit(code)


@app.command(rich_help_panel=RUN)
@takes_options
def verify(request: Request, form: Form) -> None:
    """Compute the forward pass in independent ways; exit with 0 only if all agree."""
    from headscope.screens.report_sheets import verify_sheet

    _, trace = request.load_or_trace(doubts=False)
    report = trace.verify()
    code = exit_code(trace)
    show(verify_sheet(report), form.name, step=request.step("attend", trace.text))
    raise typer.Exit(code if report.agrees else DOUBTFUL)


@app.command(rich_help_panel=RUN)
@takes_options
def predict(request: Request, form: Form, top: Top = None) -> None:
    r"""Show predictions for TEXT: tokens for each \[MASK], or a classifier's classes, with probabilities."""
    from headscope.runs.predicting import check_predicts, fill_trace, fills, predict_trace
    from headscope.screens.explain_sheets import fill_sheet, prediction_sheet

    model, trace = request.trace(check=check_predicts)
    if fills(model, trace):
        sheet, step = fill_sheet(trace, fill_trace(model, trace, top=5 if top is None else top)), "attend"
    else:
        sheet, step = prediction_sheet(model.name, predict_trace(model, trace), top), "attribute"
    show(sheet, form.name, step=request.step(step, trace.text))


@dataclass(frozen=True)
class PageSettings(Declared):
    """The first state of a page, and the contents of a page in a file."""

    open: Annotated[
        str,
        Setting("What the page shows first: the part after # of a page's address.", metavar="STATE", option="--open"),
    ] = ""
    no_browser: Annotated[bool, Setting("Don't open the page in a browser.", option="--no-browser")] = False
    port: Annotated[int | None, Setting("Port to serve on; 0 takes a free one.", "N", least=0, most=65535)] = None
    dtype: Annotated[
        str, Setting("In a file: precision of Q, K and V.", metavar="fp16|fp32", choices=("fp16", "fp32"))
    ] = "fp16"
    values: Annotated[bool | None, Setting("In a file: include V. By default only for short texts.")] = None
    runs: Annotated[
        bool | None,
        Setting("In a file: include the effect of silencing each head. By default only where it takes a second."),
    ] = None
    atlas: Annotated[
        str | None,
        Setting("Show beside each head what a survey of this model says of it.", metavar="FOLDER", option="--atlas"),
    ] = None

    def check_unused(self, heads: str | None) -> None:
        """Raise InputError if something is set that only a file has."""
        given = [name for name in ("dtype", "values", "runs") if getattr(self, name) != getattr(PageSettings(), name)]
        if heads is not None:
            given.insert(0, "--heads")
        if given:
            raise InputError(
                f"{given[0]} requires --html; the served page has everything",
                where=given[0],
                advice=f"add --html FILE, or omit {given[0]}",
            )

    def page(self, trace: Trace, heads: str | None, folder: Path | None, atlas: HeadNotes | None) -> tuple[bytes, str]:
        """Make the page of a trace, or of these heads, for a folder; return it with a line that describes it."""
        from headscope.page.html import offline_page
        from headscope.screens.values import head_list

        layers, numbers = page_heads(trace, [] if heads is None else head_list(heads, "--heads"))
        with progress_bar("layers", sys.stderr) as progress:
            return offline_page(
                trace,
                dtype=self.dtype,
                values=self.values,
                layers=layers,
                heads=numbers,
                runs=self.runs,
                state=self.open,
                progress=progress,
                notify=tell,
                atlas=atlas,
                folder=folder,
            )


def page_heads(trace: Trace, chosen: list[tuple[int, int | None]]) -> tuple[list[int] | None, list[int] | None]:
    """The layers of a page, and the heads of each of them; None for all.

    Raises:
        InputError: different heads were chosen in different layers.
    """
    heads: dict[int, set[int]] = {}
    for layer, head in chosen:
        known = trace.head_numbers(layer) if layer in trace.numbers else ()
        heads.setdefault(layer, set()).update(known if head is None else [head])
    if len({frozenset(numbers) for numbers in heads.values()}) > 1:
        raise InputError(
            "a page has the same heads of each of its layers",
            where="--heads",
            advice="select whole layers, or the same heads of each: --heads 0.1,3.1",
        )
    whole = not any(head is not None for _, head in chosen)
    return sorted(heads) or None, None if whole else sorted(next(iter(heads.values())))


@app.command(rich_help_panel=RUN)
@takes_options
def view(request: Request, html: Html = None, heads: Heads = None, *, settings: PageSettings) -> None:
    """Explore every head in the browser: served on this machine, or as one offline file.

    Without TEXT, the page holds the model itself and answers on whatever is typed: one offline file, for models of
    BERT's form up to 60 MB in half precision. MODEL may also be a saved trace.

    With --html nothing is served, unless a port is set; --html - is standard output.

    Where the extra `view` is not installed, nothing is served: a temporary file is opened.
    """
    from headscope.page.html import notes_of
    from headscope.page.server import can_serve, check_extra, serve
    from headscope.screens.values import checked_state
    from headscope.traces import is_trace

    settings = replace(settings, open=checked_state(settings.open))
    to_stdout = html is not None and str(html) == "-"
    if to_stdout and sys.stdout.isatty():
        raise InputError(
            "standard output is a terminal, and the page is a large file",
            where="--html -",
            advice="redirect it: --html - > page.html, or name a file: --html page.html",
        )
    if request.text is None and not is_trace(request.model):
        put_typed(request, html, heads, settings)
        return
    port = settings.port
    if port is not None:
        check_extra("port")
    serves = port is not None or (html is None and can_serve())
    writes = html is not None or not serves
    if not writes:
        settings.check_unused(heads)
    model, trace = request.load_or_trace()
    code, atlas = exit_code(trace), notes_of(settings.atlas, trace, lambda notice: tell(f"note: {notice}"))
    if writes:
        content, note = settings.page(trace, heads, None if html is None or to_stdout else html.parent, atlas)
        put_page(content, note, html, opens=not settings.no_browser)
        if html is None:
            more = "runs other texts and changes of the model" if model is not None else "has long texts in full"
            tell(f"the page also {more} if it is served: {install('view')}")
    if serves:
        announce = tell if to_stdout else typer.echo
        opens = not settings.no_browser
        serve(trace, model, open_browser=opens, port=port or 0, at=settings.open, announce=announce, atlas=atlas)
    else:
        tell(f"next: {request.step('attend', trace.text)}")
    raise typer.Exit(code)


def put_typed(request: Request, html: Path | None, heads: str | None, settings: PageSettings) -> None:
    """Write the page that holds the model, and open it if it isn't given a name."""
    from headscope.page.typed import typed_page

    text_options = replace(request, tokenizer=None) != Request(request.model)
    if text_options or heads is not None or replace(settings, no_browser=False) != PageSettings():
        raise InputError(
            "these options are for the page of one text", where=f"view {request.model}", advice="add a TEXT"
        )
    content, note = typed_page(request.opened())
    put_page(content, note, html, opens=not settings.no_browser)
    if html is not None and str(html) != "-":
        tell(f"next: open {html} in a browser, and type")


def put_page(content: bytes, note: str, html: Path | None, *, opens: bool) -> None:
    """Write a page to a file, to standard output, or to a temporary file that is opened.

    Args:
        content: the page's.
        note: a line that describes it.
        html: the file; `-` for standard output, None for a temporary one.
        opens: True to open that in a browser.
    """
    from headscope.page.server import open_in_browser

    if html is not None and str(html) == "-":
        put_bytes(content)
        tell(f"wrote to standard output: {note}")
        return
    if html is not None:
        write_atomically(html, content)
    tell_saved(file := html or write_temporary(content, ".html"), note)
    if html is not None:
        return
    typer.echo(f"headscope is at {file.as_uri()}")
    if opens and not open_in_browser(file.as_uri()):
        tell("no browser was found: open this address in one")
    tell("the file is temporary: --html FILE writes another")
