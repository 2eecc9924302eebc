"""A plan for int8: the screen, JSON, and the table of all matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscope.screens.tables import Column, Table
from headscope.screens.terminal import Sheet, blank, notes, prose, table

if TYPE_CHECKING:
    from headscope.results.quantising import QuantisePlan

TOP = 10
COLUMNS = (
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


def quantise_sheet(plan: QuantisePlan, top: int | None = None) -> Sheet:
    """The list to keep in fp32, what each recipe gives, and the matrices that lose most.

    Args:
        plan: the plan.
        top: most matrices on the screen; None for TOP, and for those of the plan.
    """
    rows = tuple((one.loss, one.kept, one.operator, "x".join(map(str, one.shape)), one.node) for one in plan.matrices)
    shown = rows[: max(TOP, len(plan.nodes_to_exclude)) if top is None else top]
    recipes = [("fp32", 1.0, 1.0, plan.size), *((one.name, one.cosine, one.worst, one.size) for one in plan.recipes)]
    names = [prose(f"{name!r},", "bold", mark="  ") for name in plan.nodes_to_exclude]
    listed = [prose("nodes_to_exclude=["), *names, prose("]"), blank] if names else []
    return Sheet(
        record=plan.to_dict,
        schema="plan",
        table=lambda: Table(COLUMNS, rows),
        drawings=(
            prose(plan.sentence(), "bold"),
            prose(f"{plan.file}, {plan.texts} texts", "dim"),
            blank,
            table(Table(RECIPE_COLUMNS, tuple((*recipe[:3], recipe[3] / 1e6) for recipe in recipes))),
            blank,
            *listed,
            table(Table(COLUMNS, shown)),
            notes([*_advice(plan), "a loss is of that matrix alone in int8, with all others in fp32"]),
        ),
    )


def _advice(plan: QuantisePlan) -> list[str]:
    """The recipe to try first, and the processor that the numbers hold for."""
    tensor, channel = plan.recipes[:2]
    first = f"per_channel=True first: mean cosine {channel.cosine:.4f} instead of {tensor.cosine:.4f} at the same size"
    lines = [first] if channel.cosine > tensor.cosine else []
    known = {True: "with VNNI", False: "without VNNI", None: "VNNI unknown"}[plan.vnni]
    lines.append(f"measured on {plan.processor}, {known}; int8 products are rounded otherwise elsewhere")
    if plan.vnni is False:
        lines.append("without VNNI sums of int8 products may saturate on x86: try reduce_range=True")
    return lines
