"""Screens of an anatomy: every parameter, and the summary. Weights are read only for the expansion rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from headscope.anatomy.families import named_architectures
from headscope.checkpoint import called
from headscope.checkpoint.json_text import few
from headscope.screens.labels import printable
from headscope.screens.tables import Column, Table, answer
from headscope.screens.terminal import Bar, Drawing, Line, Paper, Sheet, bar, bars, blank, notes, prose, table, title

if TYPE_CHECKING:
    from headscope.anatomy import Anatomy, Component, Parameter
    from headscope.model import Model

PARAMETER_COLUMNS = (
    Column("name", "tensor", kind="code"),
    Column("shape", kind="text"),
    Column("dtype"),
    Column("count", "parameters", align="right"),
    Column("component", group=True),
)
COMPONENT_COLUMNS = (
    Column("component", kind="code"),
    Column("count", "parameters", align="right"),
    Column("share", align="right", form=".1%"),
    Column("parameters", "tensors", align="right"),
    Column("meaning", "what it does", kind="prose"),
)
PART = Column("part")
MEGABYTE = 1_000_000


def shapes_sheet(model: Model, *, every: bool = False) -> Sheet:
    """Every parameter: name, shape, dtype, count, component; the base model's, then those of the layers on top.

    Args:
        model: to show.
        every: True to show each layer on a terminal even if layers are alike. A pipe always gets all of them.
    """
    anatomy = model.anatomy
    base, extra = (
        [(row.name, row.shape, row.dtype, row.count, row.component) for row in rows]
        for rows in (model.parameters, model.extra)
    )
    body = Table(PARAMETER_COLUMNS, tuple(base), summed="count")
    top = Table(PARAMETER_COLUMNS, tuple(extra), summed="count")
    drawings: list[Drawing] = [title(called(model.name), repr(anatomy)), *problems(anatomy), blank]
    total = f"{len(model.parameters)} tensors, {model.parameters.total:,} parameters"
    drawings += [table(body) if every else _brief(body, model.parameters), blank, title(total)]
    if extra:
        aside = f"not part of {anatomy.base_class}" if anatomy.base_class else ""
        drawings += [blank, title(_on_top(anatomy), aside), table(top), blank, title(_with_top(anatomy))]
    return Sheet(
        record=answer(
            "shapes", model, model=model.name, total=model.parameters.total, total_with_extra=model.all_parameters.total
        ),
        table=lambda: Table(
            (*PARAMETER_COLUMNS, PART), (*((*row, "base") for row in base), *((*row, "extra") for row in extra))
        ),
        drawings=(*drawings, *_not_counted(anatomy)),
    )


def _brief(whole: Table, rows: Iterable[Parameter]) -> Drawing:
    """The table with like layers merged on a terminal, and whole in a pipe, which may be searched."""
    brief, alike = _layers_in_one(list(rows))
    if not alike:
        return table(whole)
    note = notes([f"{alike}; counts are totals of all of them. Each layer: --all, in Python model.parameters"])

    def draw(paper: Paper) -> Iterable[Line]:
        yield from (table(brief)(paper) if paper.folds else table(whole)(paper))
        if paper.folds:
            yield from note(paper)

    return draw


def _layers_in_one(rows: Sequence[Parameter]) -> tuple[Table, str]:
    """A table in which neighbouring layers with the same names and shapes are merged, and a note on which they are."""
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.layer)]
    runs: list[list[list[Parameter]]] = []
    for group in groups:
        if runs and group[0].layer is not None and _signature(runs[-1][0]) == _signature(group):
            runs[-1].append(group)
        else:
            runs.append([group])
    brief: list[tuple[Any, ...]] = []
    alike = []
    for run in runs:
        first, last = run[0][0].layer, run[-1][0].layer
        if len(run) > 1:
            alike.append(f"layers {first} to {last} are alike")
        for row in run[0]:
            name = row.name if len(run) == 1 else row.name.replace(f".{first}.", f".{first}-{last}.", 1)
            each = row.count if len(run) > 1 else None
            brief.append((name, row.shape, row.dtype, each, row.count * len(run), row.component))
    columns = (*PARAMETER_COLUMNS[:3], Column("each", "in each", align="right"), *PARAMETER_COLUMNS[3:])
    return Table(columns, tuple(brief), summed="count"), "; ".join(alike)


def _signature(group: Sequence[Parameter]) -> list[tuple[Any, ...]]:
    """A key that like layers share; empty outside of layers."""
    if group[0].layer is None:
        return []
    return [(row.name.replace(f".{row.layer}.", "..", 1), row.shape, row.dtype, row.component) for row in group]


def _on_top(anatomy: Anatomy) -> str:
    count = len(anatomy.extra)
    return f"on top: {count} tensor{'s' * (count > 1)}, {anatomy.extra.total:,} parameters"


def _with_top(anatomy: Anatomy) -> str:
    rows = anatomy.all_parameters
    return f"with what is on top: {len(rows)} tensors, {rows.total:,} parameters"


def problems(anatomy: Anatomy, more: Sequence[str] = ()) -> list[Drawing]:
    """Warnings about problems and missing weights."""
    lines = [*anatomy.problems, *more]
    if anatomy.missing:
        lines.append(f"missing from the checkpoint: {few(anatomy.missing, 3)}")
    return [prose(line, "yellow", mark="! ") for line in lines]


def _not_counted(anatomy: Anatomy) -> list[Drawing]:
    """Notes on stored tensors that are not separate parameters."""
    lines = []
    if anatomy.tied:
        pairs = ", ".join(f"{name} = {source}" for name, source in anatomy.tied.items())
        lines.append(f"tied, not counted twice: {pairs}")
    if anatomy.buffers:
        lines.append(f"buffers, not parameters: {', '.join(anatomy.buffers)}")
    return [blank, notes(lines)] if lines else []


def summary_sheet(model: Model) -> Sheet:
    """Components and their shares, layers, heads, sizes, memory, expansion rates; what is wrong stands first."""
    from headscope.verify.health import unsound  # NumPy, which `shapes` does without

    anatomy, checkpoint = model.anatomy, model.checkpoint
    wrong = unsound(model)
    rates = expansion_rates(model)
    memory = model.memory()
    components = [_component_row(part) for part in anatomy.components]
    extra = [_component_row(part) for part in anatomy.extra_components]
    drawings: list[Drawing] = [title(called(model.name), repr(anatomy)), *problems(anatomy, wrong), blank]
    drawings += [_facts([*_sizes(model), *_expansion(rates)]), blank, _shares(anatomy.components), blank]
    if extra:
        drawings += [
            title(_on_top(anatomy), "shares are of what is on top"),
            _shares(anatomy.extra_components),
            blank,
            title(_with_top(anatomy)),
            blank,
        ]
    columns = (
        Column("precision", "weights held as"),
        Column("base", "the model", align="right"),
        Column("whole", "with what is on top", align="right"),
    )
    rows = [(name, size_text(base), size_text(whole)) for name, (base, whole) in memory.items()]
    drawings += [table(Table(columns, tuple(rows))), *_not_counted(anatomy)]
    record = answer(
        "summary",
        anatomy,
        model=model.name,
        **{name: getattr(checkpoint, name) for name in ("where", "format", "files")},
        **{"class": anatomy.base_class or None},
        family=anatomy.family.name if anatomy.family else None,
        total=model.parameters.total,
        total_with_extra=model.all_parameters.total,
        dtypes=model.parameters.dtypes,
        expansion_rates=rates,
        components=Table(COMPONENT_COLUMNS, tuple(components)).records(),
        extra=Table(COMPONENT_COLUMNS, tuple(extra)).records(),
        memory=[
            {"precision": name, "base_bytes": base, "whole_bytes": whole} for name, (base, whole) in memory.items()
        ],
        problems=[*anatomy.problems, *wrong],
    )
    both = (*((*row, "base") for row in components), *((*row, "extra") for row in extra))
    return Sheet(record, lambda: Table((*COMPONENT_COLUMNS, PART), both), tuple(drawings))


def _component_row(part: Component) -> tuple[Any, ...]:
    return part.name, part.count, part.share, part.parameters, part.meaning


def size_text(size: int) -> str:
    """A size in MB (10^6 bytes), or in kB (10^3 bytes) below 1 MB."""
    return f"{size / 1e6:,.1f} MB" if size >= MEGABYTE else f"{size / 1e3:,.1f} kB"


def _sizes(model: Model) -> list[tuple[str, str]]:
    anatomy, checkpoint = model.anatomy, model.checkpoint
    classes = ", ".join(named_architectures(anatomy.config))
    facts = [("class", f"{anatomy.base_class or 'unknown'}{f' (saved as {classes})' if classes else ''}")]
    sizes = anatomy.dimensions
    if sizes is None:
        facts.append(("heads", "unknown for this model; its parameters are listed nevertheless"))
    else:
        facts += [
            ("layers", f"{sizes.layers}, counted from 0 to {sizes.layers - 1}"),
            (
                "heads",
                f"{sizes.heads} in each layer, counted from 0 to {sizes.heads - 1}; {sizes.all_heads} in all",
            ),
            ("widths", f"d_model {sizes.d_model}, d_head {sizes.d_head}, feed-forward {sizes.d_ffn:,}"),
            (
                "tables",
                f"{sizes.vocab:,} tokens"
                + (f", {sizes.positions:,} positions" if sizes.positions else "")
                + (f", {sizes.types} segment{'s' * (sizes.types > 1)}" if sizes.types else ""),
            ),
        ]
    size = sum(entry.nbytes for entry in checkpoint.tensors.values())
    return [*facts, ("stored in", f"{', '.join(checkpoint.files)} ({checkpoint.format}, {size_text(size)})")]


def expansion_rates(model: Model, layers: Sequence[int] | None = None) -> list[float | None] | None:
    """The expansion rates of these layers, or of all; None for a rate that is not finite.

    None instead of a list if the heads are unknown, or the weights are not on this machine or all 0.
    """
    anatomy = model.anatomy
    sizes = anatomy.dimensions
    unknown = any(refusal.heads for refusal in anatomy.refusals) or anatomy.missing
    if sizes is None or unknown or not model.checkpoint.local:
        return None
    rates = [model.layers[layer].expansion_rate for layer in (range(sizes.layers) if layers is None else layers)]
    if all(math.isclose(rate, (sizes.d_model + 1) ** -0.5) for rate in rates):
        return None
    return [rate if math.isfinite(rate) else None for rate in rates]


def _expansion(rates: Sequence[float | None] | None) -> list[tuple[str, str]]:
    """The expansion rates as a fact, if they are known."""
    if rates is None:
        return []
    numbers = " ".join("-" if rate is None else f"{rate:.3f}" for rate in rates)
    return [("expansion", f"{numbers}: the factor by which each layer's W_V W_O lengthens a vector")]


def _facts(rows: Sequence[tuple[str, str]]) -> Drawing:
    """Names and facts, in two columns."""

    def draw(paper: Paper) -> Iterable[Line]:
        margin = max(len(name) for name, _ in rows) + 2
        for name, fact in rows:
            for at, line in enumerate(prose(fact)(Paper(max(paper.width - margin, 20), paper.unicode))):
                yield ((f"{name if at == 0 else '':<{margin}}", "dim"), *line)

    return draw


def _shares(components: Sequence[Component]) -> Drawing:
    """The components with bars of their shares, and below them their meanings."""

    def draw(paper: Paper) -> Iterable[Line]:
        bars = [bar(part.share, 20, paper) for part in components]
        columns = (*(COMPONENT_COLUMNS[at] for at in (0, 3, 1, 2)), Column("bar", "of the whole"))
        rows = [
            (part.name, part.parameters, part.count, part.share, drawn)
            for part, drawn in zip(components, bars, strict=True)
        ]
        yield from table(Table(columns, tuple(rows)))(paper)
        for part in components:
            if part.meaning:
                yield from prose(f"{part.name}: {part.meaning}", "dim")(paper)

    return draw


def share_bars(components: Sequence[Component]) -> Drawing:
    """A line per component, with a bar of its share of the parameters."""
    rows = [Bar(printable(part.name), f"{part.count:>11,} {part.share:>6.1%}", part.share) for part in components]
    return bars(rows, part=1, room=(8, 50))
