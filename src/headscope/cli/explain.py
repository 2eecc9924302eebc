"""The commands that explain an output: the effects of heads, the contributions of tokens, the similarity of texts."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headscope.cli.app import app, opened, show, tell_saved
from headscope.cli.options import ModelName, Revision, number
from headscope.cli.progress import layer_progress
from headscope.cli.request import LONGEST, Form, TextRequest, as_typed, pasted, takes_options
from headscope.errors import InputError

if TYPE_CHECKING:
    from headscope.explain.target import Wanted
    from headscope.model import Model
    from headscope.view.terminal import Sheet

EXPLAIN = "Explain an output"

Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write the screen as one offline HTML file.")
]
Top = Annotated[int, typer.Option("--top", parser=number, metavar="N", help="List the top N.")]


@dataclass(frozen=True)
class TargetOptions:
    """The output to explain, as typed."""

    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="NAME",
            help=r"Output to explain: a word at the first \[MASK], or a class by name or number. By default the "
            "likeliest word, the predicted class, or the text's vector, depending on the model.",
        ),
    ] = None
    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            parser=number,
            metavar="TOKEN",
            help="With --target: the position of the word or of the labelled token.",
        ),
    ] = None
    like: Annotated[
        str | None, typer.Option("--like", metavar="TEXT", help="Explain the cosine similarity to this text instead.")
    ] = None
    vector: Annotated[bool, typer.Option("--vector", help="Explain the text's vector instead.")] = False

    def wanted(self, model: Model) -> Wanted:
        """Return the target that the options name.

        Raises:
            InputError: the options name several targets, or --at is given without --target.
        """
        from headscope.view.typed import whole_number

        given = {"--target": self.target is not None, "--like": self.like is not None, "--vector": self.vector}
        options = [name for name, on in given.items() if on]
        if len(options) > 1:
            raise InputError(f"{' and '.join(options)} exclude each other", where=options[1], advice="use one of them")
        if self.at is not None and self.target is None:
            raise InputError("--at requires --target", where="--at", advice="add --target")
        if self.like is not None:
            return ("similarity", as_typed(self.like))
        if self.vector:
            return ("embedding",)
        if self.target is None:
            return None
        name = as_typed(self.target)
        index = whole_number(name)
        label = name if index is None else index
        if self.at is None:
            return label
        return ("token", self.at, label) if "token" in model.anatomy.tasks else ("word", label, self.at)


def check_top(top: int) -> None:
    """Raise InputError if `top` is below 1."""
    if top < 1:
        raise InputError(f"--top {top} leaves nothing to list", where="--top", advice="use a number of at least 1")


def finish(sheet: Sheet, form: Form, step: str, html: Path | None) -> None:
    """Print an answer, and write its screen as HTML where that was asked for."""
    if html is not None:
        from headscope.view.screen_html import write_screen

        tell_saved(html, write_screen(sheet.drawings, html, title="headscope"))
    show(sheet, form.name, step=step)


@app.command(rich_help_panel=EXPLAIN)
@takes_options
def effects(
    request: TextRequest,
    form: Form,
    goal: TargetOptions,
    method: Annotated[
        str,
        typer.Option("--method", metavar="zero|mean|gradient", help="How to silence a head, or estimate the effect."),
    ] = "zero",
    patch_from: Annotated[
        str | None,
        typer.Option(
            "--patch-from", metavar="TEXT", help="Replace each head's context with that from this text's run."
        ),
    ] = None,
    top: Top = 10,
    html: Html = None,
) -> None:
    """Measure how silencing each head changes one output."""
    from headscope.view.explain_sheets import effects_sheet

    check_top(top)
    text = request.given_text()
    model = opened(request.model, request.revision)
    with layer_progress(sys.stderr) as progress:
        result = model.effects(
            text,
            goal.wanted(model),
            pair=request.second,
            method=method,
            patch_from=None if patch_from is None else as_typed(patch_from),
            max_length=request.max_length,
            progress=progress,
        )
    layer, head = result.strongest(1)[0]
    step = request.step("attend", text, "-L", str(layer), "-H", str(head))
    finish(effects_sheet(model.name, result, top), form, step, html)


@app.command(rich_help_panel=EXPLAIN)
@takes_options
def attribute(
    request: TextRequest,
    form: Form,
    goal: TargetOptions,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAME",
            help="decompx, alti, attention_gradient or integrated_gradients. The last two require the extra `torch`.",
        ),
    ] = "decompx",
    top: Top = 10,
    html: Html = None,
) -> None:
    """Show how much each token adds to one output, as shaded text."""
    from headscope.view.explain_sheets import attribution_sheet

    check_top(top)
    text = request.given_text()
    model = opened(request.model, request.revision)
    target = goal.wanted(model)
    result = model.attribute(text, target, method=method, pair=request.second, max_length=request.max_length)
    finish(attribution_sheet(model.name, result, top), form, request.step("effects", text), html)


@app.command(rich_help_panel=EXPLAIN)
@takes_options
def similarity(
    model: ModelName,
    form: Form,
    a: Annotated[str, typer.Argument(metavar="A", show_default=False, help="The first text.")],
    b: Annotated[str, typer.Argument(metavar="B", show_default=False, help="The second text.")],
    rerun: Annotated[
        bool, typer.Option("--rerun", help="Also rerun the model without each token; shown in --json.")
    ] = False,
    top: Top = 10,
    html: Html = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", parser=number, metavar="N", help="Truncate texts to N tokens.")
    ] = None,
    revision: Revision = None,
) -> None:
    """Show which tokens make two texts similar: the parts of their cosine."""
    from headscope.view.explain_sheets import similarity_sheet

    check_top(top)
    result = opened(model, revision).token_similarity(as_typed(a), as_typed(b), rerun=rerun, max_length=max_length)
    step = pasted("attribute", model, a, "--like", b) if len(a) + len(b) < LONGEST else pasted("summary", model)
    finish(similarity_sheet(model, result, top), form, step, html)
