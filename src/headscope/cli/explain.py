"""The commands that explain: what heads and tokens do to what the model says, and why two texts are alike."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headscope.cli.app import app, opened, said_saved, show
from headscope.cli.options import ModelName, Revision, number
from headscope.cli.progress import layers_shown
from headscope.cli.request import LONGEST, Form, TextRequest, as_typed, pasted, takes_options
from headscope.errors import InputError

if TYPE_CHECKING:
    from headscope.explain.target import Wanted
    from headscope.model import Model
    from headscope.view.terminal import Sheet

EXPLAIN = "Why it says what it says"

TargetName = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="NAME",
        help=r"A word at the first \[MASK], or a class by name or number. By default the best word, or the predicted "
        "class, or the text's vector.",
    ),
]
At = Annotated[
    int | None,
    typer.Option("--at", parser=number, metavar="TOKEN", help="With --target: the token whose word or label is meant."),
]
Like = Annotated[
    str | None, typer.Option("--like", metavar="TEXT", help="Explain the cosine with this text's vector instead.")
]
Vector = Annotated[bool, typer.Option("--vector", help="Explain the text's vector instead.")]
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write the screen as one offline HTML file.")
]
Top = Annotated[int, typer.Option("--top", parser=number, metavar="N", help="How many to list.")]


def wanted(model: Model, target: str | None, at: int | None, like: str | None, vector: bool) -> Wanted:
    """The target that the options name.

    Raises:
        InputError: several were given, or --at without --target.
    """
    from headscope.view.typed import whole_number

    given = [
        name for name, on in (("--target", target), ("--like", like), ("--vector", vector or None)) if on is not None
    ]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} name two targets", where=given[1], advice="give one of them")
    if at is not None and target is None:
        raise InputError("--at says where a target is, and there is none", where="--at", advice="give --target too")
    if like is not None:
        return ("similarity", as_typed(like))
    if vector:
        return ("embedding",)
    if target is None:
        return None
    name = as_typed(target)
    named = whole_number(name)
    label = name if named is None else named
    if at is None:
        return label
    return ("token", at, label) if "token" in model.anatomy.tasks else ("word", label, at)


def check_top(top: int) -> None:
    """Raise InputError for a number of lines below 1."""
    if top < 1:
        raise InputError(f"--top {top} leaves nothing to list", where="--top", advice="give a number from 1")


def finish(sheet: Sheet, form: Form, step: str, html: Path | None) -> None:
    """Print an answer, and write its screen as HTML where that was asked for."""
    if html is not None:
        from headscope.view.screen_html import write_screen

        said_saved(html, write_screen(sheet.drawings, html, title="headscope"))
    show(sheet, form.name, step=step)


@app.command(rich_help_panel=EXPLAIN)
@takes_options
def effects(
    request: TextRequest,
    form: Form,
    target: TargetName = None,
    at: At = None,
    like: Like = None,
    vector: Vector = False,
    method: Annotated[
        str, typer.Option("--method", metavar="zero|mean|gradient", help="What is done to each head.")
    ] = "zero",
    patch_from: Annotated[
        str | None,
        typer.Option("--patch-from", metavar="TEXT", help="Take each head's context from this text's run instead."),
    ] = None,
    top: Top = 10,
    html: Html = None,
) -> None:
    """Silence each head and see what changes in one output."""
    from headscope.view.explain_sheets import effects_sheet

    check_top(top)
    text = request.given_text()
    model = opened(request.model, request.revision)
    goal = wanted(model, target, at, like, vector)
    with layers_shown(sys.stderr) as progress:
        result = model.effects(
            text,
            goal,
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
    target: TargetName = None,
    at: At = None,
    like: Like = None,
    vector: Vector = False,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAME",
            help="decompx, alti, attention_gradient or integrated_gradients; the last two need the extra torch.",
        ),
    ] = "decompx",
    top: Top = 10,
    html: Html = None,
) -> None:
    """Show what each token adds to one output, with ink behind the words."""
    from headscope.view.explain_sheets import attribution_sheet

    check_top(top)
    text = request.given_text()
    model = opened(request.model, request.revision)
    goal = wanted(model, target, at, like, vector)
    result = model.attribute(text, goal, method=method, pair=request.second, max_length=request.max_length)
    finish(attribution_sheet(model.name, result, top), form, request.step("effects", text), html)


@app.command(rich_help_panel=EXPLAIN)
@takes_options
def similarity(
    model: ModelName,
    form: Form,
    a: Annotated[str, typer.Argument(metavar="A", show_default=False, help="The first text.")],
    b: Annotated[str, typer.Argument(metavar="B", show_default=False, help="The second text.")],
    rerun: Annotated[bool, typer.Option("--rerun", help="Also run the model without each token; in --json.")] = False,
    top: Top = 10,
    html: Html = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", parser=number, metavar="N", help="Cut longer texts to N tokens.")
    ] = None,
    revision: Revision = None,
) -> None:
    """Show which tokens make two texts alike: the parts of a cosine."""
    from headscope.view.explain_sheets import similarity_sheet

    check_top(top)
    result = opened(model, revision).token_similarity(as_typed(a), as_typed(b), rerun=rerun, max_length=max_length)
    step = pasted("attribute", model, a, "--like", b) if len(a) + len(b) < LONGEST else pasted("summary", model)
    finish(similarity_sheet(model, result, top), form, step, html)
