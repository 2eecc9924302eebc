"""The commands that show the contents of a checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from headscope.cli.app import DOUBTFUL, app, opened, show, tell, tell_saved
from headscope.cli.options import Form, ModelName, Save, argument, takes_options
from headscope.cli.request import pasted
from headscope.errors import InputError

LOOK = "Look into a checkpoint"


def class_names(incomplete: str) -> list[str]:
    """Names of classes that begin with a text, for the shell's completion."""
    from headscope.anatomy.families import FAMILIES
    from headscope.anatomy.fit import classes_of

    names = (name for family in FAMILIES for stem in family.model_types.values() for name in classes_of(family, stem))
    return [name for name in names if name.startswith(incomplete)]


@app.command(rich_help_panel=LOOK)
@takes_options
def shapes(
    model: ModelName,
    form: Form,
    every: Annotated[bool, typer.Option("--all", help="List every layer, even if layers are alike.")] = False,
    tree: Annotated[
        bool, typer.Option("--tree", help="Show the module tree instead, with repeated modules collapsed.")
    ] = False,
    modules: Annotated[
        bool,
        typer.Option(
            "--modules",
            help="Show every module of the class instead, as transformers builds it. Requires the extra `torch`.",
        ),
    ] = False,
) -> None:
    """List every parameter: name, shape, dtype, count, component; or show the modules that hold them."""
    from headscope.screens.anatomy_sheets import shapes_sheet
    from headscope.screens.config_sheets import modules_sheet, tree_sheet

    if not (tree or modules):
        show(shapes_sheet(opened(model), every=every), form.name, step=pasted("summary", model))
        return
    if every or form.name in ("--csv", "--markdown") or (tree and modules):
        option = "--modules" if modules else "--tree"
        raise InputError(
            f"{option} shows a tree, not a table of parameters", where=option, advice="use it alone, or with --json"
        )
    sheet = (modules_sheet if modules else tree_sheet)(opened(model))
    show(sheet, form.name, step=pasted("shapes", model, options=["--all"]))


@app.command(rich_help_panel=LOOK)
@takes_options
def summary(
    model: ModelName,
    form: Form,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with 1 if weights are missing or not finite, or files contradict each other."
        ),
    ] = False,
) -> None:
    """Summarise the model: components and their shares, layers, heads, memory; what is wrong stands first."""
    from headscope.screens.anatomy_sheets import summary_sheet

    sheet = summary_sheet(opened(model))
    show(sheet, form.name, step=pasted("head", model, "0.0"))
    record = sheet.record()
    raise typer.Exit(DOUBTFUL if strict and (record["problems"] or record["missing"]) else 0)


@app.command(rich_help_panel=LOOK)
@takes_options
def config(model: ModelName, form: Form) -> None:
    """Explain every field of the config."""
    from headscope.screens.config_sheets import config_sheet

    show(config_sheet(opened(model)), form.name, step=pasted("shapes", model, options=["--tree"]))


@app.command(rich_help_panel=LOOK)
@takes_options
def fit(
    model: ModelName,
    class_name: Annotated[
        str, argument("CLASS", "A class of transformers, such as BertForSequenceClassification.", class_names)
    ],
    form: Form,
) -> None:
    """Show which weights CLASS would initialise at random, and which of the checkpoint's it would ignore."""
    from headscope.screens.report_sheets import fit_sheet

    show(fit_sheet(opened(model), class_name), form.name, step=pasted("shapes", model))


@app.command(rich_help_panel=LOOK)
@takes_options
def head(
    model: ModelName, head: Annotated[str, argument("L.H", "The head, such as 0.3.")], form: Form, save: Save = None
) -> None:
    """Show one head's slices of W_Q, W_K, W_V and W_O."""
    from headscope.screens.report_sheets import broken_slices, head_sheet, save_head
    from headscope.screens.values import head_list

    (layer, number), *others = head_list(head, "head")
    if number is None or others:
        raise InputError(f"{head} is not one head", where="head", advice=f"write layer.head: {layer}.0")
    opened_model = opened(model)
    sheet = head_sheet(opened_model, layer, number)
    if save is not None:
        tell_saved(save, save_head(opened_model.layers[layer].heads[number], save))
    line = broken_slices(opened_model.layers[layer].heads[number])
    if line is not None:
        tell(f"! {line}")
    step = pasted("attend", model, "The cat sat on the mat.", options=["--heads", f"{layer}.{number}"])
    show(sheet, form.name, step=step)
    raise typer.Exit(DOUBTFUL if line is not None else 0)
