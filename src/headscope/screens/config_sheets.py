"""Screens of a model's config, with every field explained, and of its tree of modules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headscope.checkpoint import called
from headscope.screens.anatomy_sheets import problems
from headscope.screens.labels import fold, printable, width
from headscope.screens.tables import Column, Table, answer, shape_text
from headscope.screens.terminal import Drawing, Line, Paper, Sheet, blank, notes, prose, title

if TYPE_CHECKING:
    from headscope.anatomy.glossary import Field
    from headscope.anatomy.tree import Node
    from headscope.model import Model


def config_sheet(model: Model) -> Sheet:
    """Every field of the config: its value, meaning and implications."""
    rows = [
        (field.name, _config_value(field.value), field.meaning, field.implies, field.source)
        for field in model.config.fields
    ]
    columns = (
        Column("name", "field", kind="code"),
        Column("value", kind="code"),
        Column("meaning", kind="prose"),
        Column("implies", kind="prose"),
        Column("source"),
    )
    return Sheet(
        record=answer("config", model.config, model=model.name, problems=model.anatomy.problems),
        table=lambda: Table(columns, tuple(rows)),
        drawings=(
            title(
                called(model.name), f"config of {model.anatomy.base_class or 'an unknown family'}, {len(rows)} fields"
            ),
            *problems(model.anatomy),
            *(
                drawing
                for source, heading in SOURCES.items()
                for drawing in _fields(model.config.fields, source, heading)
            ),
        ),
    )


SOURCES = {
    "config.json": "in config.json",
    "default": "not in config.json: defaults of the class",
    "implied": "what follows",
}


def _fields(fields: Sequence[Field], source: str, heading: str) -> list[Drawing]:
    """The fields from one source: name and value, with meaning and implications below."""
    chosen = [field for field in fields if field.source == source]
    drawings: list[Drawing] = [blank, title(heading)] if chosen else []
    for field in chosen:
        drawings.append(_pair(field.name, _config_value(field.value)))
        drawings.append(prose(field.meaning, mark="    "))
        if field.implies:
            drawings.append(_implied(field.implies))
    return drawings


def _pair(name: str, value: str) -> Drawing:
    """A name and its value; a long value is folded and indented."""

    def draw(paper: Paper) -> Iterable[Line]:
        start = f"{printable(name)} = "
        lines = fold(printable(value), max(paper.width - width(start), 20)) if paper.folds else [printable(value)]
        yield ((start[:-3], "bold"), (" = ", "dim"), (lines[0], "cyan"))
        yield from (((" " * width(start), ""), (line, "cyan")) for line in lines[1:])

    return draw


def _implied(text: str) -> Drawing:
    """The implication of a field, after an arrow."""
    return lambda paper: prose(paper.times(text), "dim", mark=f"    {paper.sign('→', '->')} ")(paper)


def _config_value(value: object) -> str:
    """A config's value as text: strings unchanged, everything else as JSON."""
    if isinstance(value, str):
        return value
    import json

    return json.dumps(value, ensure_ascii=False, default=str)


def tree_sheet(model: Model) -> Sheet:
    """The module tree, with repeated modules collapsed."""
    above = (title(called(model.name), repr(model.anatomy)), *problems(model.anatomy))
    return _of_tree(model, model.tree(), above)


def modules_sheet(model: Model) -> Sheet:
    """Every module of the checkpoint's class, as transformers builds it on the meta device, without weights."""
    from headscope.live import modules_of_checkpoint

    modules = modules_of_checkpoint(dict(model.checkpoint.config))
    root = replace(modules.tree, name=modules.name, label="")
    tied = "; ".join(" = ".join(names) for names in modules.tied)
    above = title(called(model.name), f"{modules.name}, {modules.total:,} parameters")
    return _of_tree(model, root, (above,), f"; tied: {tied}" if tied else "; nothing is tied")


def _of_tree(model: Model, root: Node, above: Sequence[Drawing], more: str = "") -> Sheet:
    """The sheet of a tree, below some drawings; `more` ends the note on its counts."""
    note = notes([f"counts of repeated modules are for one of them{more}"])
    record = answer("tree", model=model.name, tree=root)
    return Sheet(record, None, (*above, blank, _tree_lines(root), note), schema="tree")


def _tree_lines(root: Node) -> Drawing:
    """The tree of modules, each with its class and number of parameters."""

    def draw(paper: Paper) -> Iterable[Line]:
        rows = list(_tree_rows(root, "", "", paper))
        counts = [f"{node.count:,}" if node.count else "" for _, node in rows]
        edge = max(map(len, counts))
        texts = [_tree_text(node, paper) for _, node in rows]
        room = min(
            max(width(before + text) for (before, _), text in zip(rows, texts, strict=True)), paper.width - edge - 2
        )
        for (before, node), text, count in zip(rows, texts, counts, strict=True):
            lines = fold(text, max(room - width(before), 12)) if paper.folds else [text]
            gap = " " * (room - width(before) - width(lines[0]) + 2)
            style = "bold" if node.shape is None and node.children else ""
            yield ((before, "dim"), (lines[0], style), (gap + f"{count:>{edge}}", "dim"))
            for rest in lines[1:]:
                yield ((" " * width(before), ""), (rest, style))

    return draw


def _tree_text(node: Node, paper: Paper) -> str:
    shape = shape_text(node.shape) if node.shape is not None else ""
    return printable("  ".join(filter(None, (node.name, shape, paper.times(node.label)))))


def _tree_rows(node: Node, mark: str, below: str, paper: Paper) -> Iterable[tuple[str, Node]]:
    yield mark, node
    for at, child in enumerate(node.children):
        last = at == len(node.children) - 1
        child_mark = paper.sign("└─ ", "`- ") if last else paper.sign("├─ ", "|- ")
        rest = "   " if last else paper.sign("│  ", "|  ")
        yield from _tree_rows(child, below + child_mark, below + rest, paper)
