"""A parity comparison, and a plan for int8: the screens, JSON, and the tables of steps and matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.screens.inked import heat_map
from headscope.screens.tables import Column, Table
from headscope.screens.terminal import Drawing, Sheet, blank, notes, prose, table

if TYPE_CHECKING:
    from headscope.results.parity import Cost, Diagnosis, Parity
    from headscope.results.quantising import QuantisePlan

TOP = 5
STEP_COLUMNS = (
    Column("layer", align="right"),
    Column("name", "step", kind="code"),
    Column("agrees"),
    Column("worst", "difference", align="right", form=".1e"),
    Column("tolerance", align="right", form=".1e"),
    Column("text", align="right"),
    Column("query", "position", align="right"),
    Column("token", kind="code"),
)
HEAD_COLUMNS = (
    Column("layer", align="right"),
    Column("head", align="right"),
    *(
        Column(f"divergence{end}", title, "right", ".2g")
        for end, title in (("", "divergence"), ("_low", "95 %"), ("_high", "to"))
    ),
    Column("weight_change", "largest change of a weight", "right", ".3f"),
)
MATRICES = 10
MATRIX_COLUMNS = (
    Column("loss", "1 - cosine", align="right", form=".5f"),
    Column("kept", "keep in fp32"),
    Column("operator", kind="code"),
    Column("shape", kind="code"),
    Column("node", kind="code"),
)
RECIPE_COLUMNS = (
    Column("name", "recipe", kind="code"),
    Column("cosine", "mean cosine", align="right", form=".4f"),
    Column("worst", "worst", align="right", form=".4f"),
    Column("size", "MB", align="right", form=".1f"),
)


def parity_sheet(result: Parity, top: int | None = None) -> Sheet:
    """The place where two sides part, the heads that change, and what it costs.

    Args:
        result: the comparison.
        top: most heads in the screen's table; None for TOP.
    """
    head = (result.move.layer, result.move.head) if result.move is not None and not result.agrees else None
    return Sheet(
        record=result.to_dict,
        table=lambda: _steps(result),
        drawings=tuple(_drawings(result, TOP if top is None else top)),
        look_at=head,
    )


def _drawings(result: Parity, top: int) -> list[Drawing]:
    drawings: list[Drawing] = [
        prose(result.sentence(), "bold"),
        prose(f"from {result.a} to {result.b}", "dim"),
        *(prose(line) for line in ([] if result.cost is None else costs(result.cost))),
        blank,
        table(_steps(result, screen=True)),
    ]
    if result.diagnosis is not None and result.diagnosis.explanations:
        drawings += [blank, table(_explanations(result.diagnosis))]
    if result.heads is not None and not result.agrees:
        divergence = np.nan_to_num(result.heads["divergence"].array)
        if divergence.any():
            layers, heads = result.heads.layers, result.heads.across
            unit = "nats, mean over queries and texts"
            drawings += [
                blank,
                heat_map(divergence, unit, noun="Jensen-Shannon divergence", layers=layers, heads=heads),
            ]
            drawings += [blank, table(_heads(result, top))]
    lines = [
        f"a difference is |b - a| / |a| of a token's vector, accepted up to {result.checks[-1].tolerance:g}",
        "layers, heads, texts and positions count from 0",
        *(f"{name} not compared: {reason}" for name, reason in result.skipped),
    ]
    return [*drawings, notes([*lines, *result.notes])]


def costs(cost: Cost) -> list[str]:
    """The cost of the difference, in sentences."""
    count = len(cost.cosines)
    lines = [f"cosine of a text's vectors: worst {cost.cosines.min():.6f}, mean {cost.cosines.mean():.6f}."]
    if count > 2:
        changes = f"nearest other text: another one for {cost.top1_changes} of {count} texts."
        lines.append(f"order of all similarities: rank correlation {cost.rank_correlation:.6f}; {changes}")
    if cost.predictions:
        lines.append(f"predictions: {cost.flips} of {cost.predictions} flip.")
    return lines


def _steps(result: Parity, *, screen: bool = False) -> Table:
    """A row for each step; for the screen without the tolerance, which its legend has."""
    columns = tuple(column for column in STEP_COLUMNS if not (screen and column.key == "tolerance"))
    rows = []
    for check in result.checks:
        row: dict[str, Any] = {column.key: getattr(check, column.key, None) for column in STEP_COLUMNS}
        tokens = () if check.text is None or not result.tokens else result.tokens[check.text]
        if check.query is not None and check.query < len(tokens):
            row["token"] = tokens[check.query]
        if not check.worst:
            row |= dict.fromkeys(("text", "query", "token"))
        rows.append(tuple(row[column.key] for column in columns))
    return Table(columns, tuple(rows))


def _explanations(diagnosis: Diagnosis) -> Table:
    """The hypotheses that come closest."""
    columns = (Column("name", "what if the other side …", kind="prose"), Column("residual", "left", "right", ".1e"))
    rows = tuple((one.name, one.residual) for one in diagnosis.explanations)
    nothing = f"left: |v - b| / |b| over texts; {diagnosis.residual:.1e} if nothing is assumed, "
    return Table(columns, rows, notes=(nothing + f"{diagnosis.floor:.0e} by rounding",))


def _heads(result: Parity, top: int) -> Table:
    """The heads that changed most."""
    assert result.heads is not None
    named = {(row["layer"], row["head"]): row for row in result.rows()}
    rows = [named[head] for head in result.strongest(top)]
    columns = HEAD_COLUMNS if len(result.texts) > 1 else tuple(one for one in HEAD_COLUMNS if "_" not in one.key[-5:])
    return Table(columns, tuple(tuple(row[column.key] for column in columns) for row in rows))


def quantise_sheet(plan: QuantisePlan, top: int | None = None) -> Sheet:
    """The list to keep in fp32, what each recipe gives, and the matrices that lose most.

    Args:
        plan: the plan.
        top: most matrices on the screen; None for MATRICES, and for those of the plan.
    """
    rows = tuple((one.loss, one.kept, one.operator, "x".join(map(str, one.shape)), one.node) for one in plan.matrices)
    shown = rows[: max(MATRICES, len(plan.nodes_to_exclude)) if top is None else top]
    recipes = [("fp32", 1.0, 1.0, plan.size), *((one.name, one.cosine, one.worst, one.size) for one in plan.recipes)]
    names = [prose(f"{name!r},", "bold", mark="  ") for name in plan.nodes_to_exclude]
    listed = [prose("nodes_to_exclude=["), *names, prose("]"), blank] if names else []
    return Sheet(
        record=plan.to_dict,
        schema="plan",
        table=lambda: Table(MATRIX_COLUMNS, rows),
        drawings=(
            prose(plan.sentence(), "bold"),
            prose(f"{plan.file}, {plan.texts} texts", "dim"),
            blank,
            table(Table(RECIPE_COLUMNS, tuple((*recipe[:3], recipe[3] / 1e6) for recipe in recipes))),
            blank,
            *listed,
            table(Table(MATRIX_COLUMNS, shown)),
            notes([*_on_int8(plan), "a loss is of that matrix alone in int8, with all others in fp32"]),
        ),
    )


def _on_int8(plan: QuantisePlan) -> list[str]:
    """The recipe to try first, and the processor that the numbers hold for."""
    tensor, channel = plan.recipes[:2]
    first = f"per_channel=True first: mean cosine {channel.cosine:.4f} instead of {tensor.cosine:.4f} at the same size"
    lines = [first] if channel.cosine > tensor.cosine else []
    known = {True: "with VNNI", False: "without VNNI", None: "VNNI unknown"}[plan.vnni]
    lines.append(f"measured on {plan.processor}, {known}; int8 products are rounded otherwise elsewhere")
    if plan.vnni is False:
        lines.append("without VNNI sums of int8 products may saturate on x86: try reduce_range=True")
    return lines
