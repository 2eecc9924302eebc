"""The commands that show the contents of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli.app import DOUBTFUL, app, opened, show, tell, tell_saved
from headscope.cli.options import AsJson, ModelName, Revision, number
from headscope.cli.request import Form, pasted, takes_options

LOOK = "Look into a checkpoint"


def _step(command: str, model: str, revision: str | None, *more: str) -> str:
    """A command to paste for the same model."""
    return pasted(command, model, *more, *(() if revision is None else ("--revision", revision)))


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
    revision: Revision = None,
) -> None:
    """List every parameter: name, shape, dtype, count, component."""
    from headscope.view.anatomy_sheets import shapes_sheet

    show(shapes_sheet(opened(model, revision), every=every), form.name, step=_step("summary", model, revision))


@app.command(rich_help_panel=LOOK)
@takes_options
def summary(
    model: ModelName,
    form: Form,
    revision: Revision = None,
) -> None:
    """Summarise the model: components and their shares, layers, heads, memory."""
    from headscope.view.anatomy_sheets import summary_sheet

    show(summary_sheet(opened(model, revision)), form.name, step=_step("head", model, revision, "0", "0"))


@app.command(rich_help_panel=LOOK)
@takes_options
def config(
    model: ModelName,
    form: Form,
    revision: Revision = None,
) -> None:
    """Explain every field of the config."""
    from headscope.view.config_sheets import config_sheet

    show(config_sheet(opened(model, revision)), form.name, step=_step("tree", model, revision))


@app.command(rich_help_panel=LOOK)
def tree(
    model: ModelName,
    revision: Revision = None,
    modules: Annotated[
        bool,
        typer.Option(
            "--modules", help="Every module of the class, as transformers builds it. Requires the extra `torch`."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the module tree, with repeated modules collapsed."""
    from headscope.view.config_sheets import modules_sheet, tree_sheet

    sheet = (modules_sheet if modules else tree_sheet)(opened(model, revision))
    show(sheet, "--json" if as_json else None, step=_step("shapes", model, revision, "--all"))


@app.command(rich_help_panel=LOOK)
@takes_options
def fit(
    model: ModelName,
    class_name: Annotated[
        str,
        typer.Argument(
            metavar="CLASS",
            show_default=False,
            help="A class of transformers, such as BertForSequenceClassification.",
            autocompletion=class_names,
        ),
    ],
    form: Form,
    revision: Revision = None,
) -> None:
    """Show which weights CLASS would initialise at random, and which of the checkpoint's it would ignore."""
    from headscope.view.report_sheets import fit_sheet

    show(fit_sheet(opened(model, revision), class_name), form.name, step=_step("shapes", model, revision))


@app.command(rich_help_panel=LOOK)
@takes_options
def head(
    model: ModelName,
    layer: Annotated[
        int, typer.Argument(parser=number, metavar="L", show_default=False, help="The layer, counted from 0.")
    ],
    index: Annotated[
        int, typer.Argument(parser=number, metavar="H", show_default=False, help="The head, counted from 0.")
    ],
    form: Form,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE.npz", help="Write the complete slices to a file.")
    ] = None,
    revision: Revision = None,
) -> None:
    """Show one head's slices of W_Q, W_K, W_V and W_O."""
    from headscope.view.report_sheets import broken_slices, head_sheet, save_head

    opened_model = opened(model, revision)
    sheet = head_sheet(opened_model, layer, index)
    if save is not None:
        tell_saved(save, save_head(opened_model.layers[layer].heads[index], save))
    line = broken_slices(opened_model.layers[layer].heads[index])
    if line is not None:
        tell(f"! {line}")
    text = "The cat sat on the mat."
    step = _step("attend", model, revision, text, "-L", str(layer), "-H", str(index))
    show(sheet, form.name, step=step)
    raise typer.Exit(DOUBTFUL if line is not None else 0)
