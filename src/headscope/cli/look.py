"""The commands that say what is in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscope.cli.app import DOUBTFUL, app, opened, said_saved, show, tell
from headscope.cli.options import AsCsv, AsJson, AsMarkdown, ModelName, Revision, number

LOOK = "What is in a checkpoint"


def class_names(incomplete: str) -> list[str]:
    """Names of classes that begin so, for the shell's completion."""
    from headscope.anatomy.families import FAMILIES
    from headscope.anatomy.fit import classes_of

    names = (name for family in FAMILIES for stem in family.model_types.values() for name in classes_of(family, stem))
    return [name for name in names if name.startswith(incomplete)]


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
        bool, typer.Option("--modules", help="Every module, as transformers builds the class; needs the extra torch.")
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
    layer: Annotated[
        int, typer.Argument(parser=number, metavar="L", show_default=False, help="The layer, counted from 0.")
    ],
    index: Annotated[
        int, typer.Argument(parser=number, metavar="H", show_default=False, help="The head, counted from 0.")
    ],
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE.npz", help="Write the slices to a file, all numbers.")
    ] = None,
    revision: Revision = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
) -> None:
    """One head's slices of W_Q, W_K, W_V and W_O."""
    from headscope.view.report_sheets import broken_slices, head_sheet, save_head

    one = opened(model, revision)
    sheet = head_sheet(one, layer, index)
    if save is not None:
        said_saved(save, save_head(one.layers[layer].heads[index], save))
    line = broken_slices(one.layers[layer].heads[index])
    if line is not None:
        tell(f"! {line}")
    show(sheet, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    raise typer.Exit(DOUBTFUL if line is not None else 0)
