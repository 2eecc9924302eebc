"""Screens of one head's slices, of the fit between a checkpoint and a class, and of a verification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.anatomy.heads import HEAD_SLICES
from headscope.checkpoint import called
from headscope.screens.anatomy_sheets import expansion_rates
from headscope.screens.tables import PLACE, Column, Table, answer
from headscope.screens.terminal import Drawing, Sheet, blank, notes, prose, table, title
from headscope.traces import BROKEN

if TYPE_CHECKING:
    from pathlib import Path

    from headscope.anatomy import Head
    from headscope.model import Model
    from headscope.verify import Report

SLICE_COLUMNS = (
    Column("name", "slice", kind="code"),
    Column("shape"),
    Column("tensor", "lies in", kind="code"),
    Column("cut", "cut as"),
    Column("norm", align="right", form=".4f"),
    Column("first", "first numbers"),
)
FIRST = 3


def head_sheet(model: Model, layer: int, head: int) -> Sheet:
    """One head's slices of W_Q, W_K, W_V, W_O and its biases: their places, norms and first numbers."""
    selected = model.layers[layer].heads[head]
    sizes = model.anatomy.known()
    arrays = head_arrays(selected)
    rows = []
    slices = []
    for name, role, axis in HEAD_SLICES:
        array = arrays[name]
        if model.anatomy.goes_without(role, selected.layer):
            continue
        parameter = model.anatomy.parameter(role, selected.layer)
        tensor, first_row = parameter.stored, parameter.rows[0] if parameter.rows else 0
        of_head = selected.range_of(role)
        norm = float(np.linalg.norm(array.astype(np.float64)))
        first = [float(number) for number in array.ravel()[:FIRST]]
        start, stop = of_head.start + first_row, of_head.stop + first_row
        cut = f"[{start}:{stop}]" if axis == "rows" else f"[:, {start}:{stop}]"
        rows.append((name, array.shape, tensor, cut, norm, " ".join(f"{number:+.4f}" for number in first)))
        place = {"tensor": tensor, "axis": axis, "start": start, "stop": stop}
        slices.append({"name": name, "shape": array.shape, **place, "norm": norm, "first": first})
    rates = expansion_rates(model, [selected.layer])
    rate = rates[0] if rates else None
    shared = _shared_start([str(row[2]) for row in rows])
    screen_columns = (*SLICE_COLUMNS[:2], Column("place", "lies in", kind="code"), *SLICE_COLUMNS[4:])
    screen_rows = [(*row[:2], row[2].removeprefix(shared) + row[3], *row[4:]) for row in rows]
    rotates = not model.anatomy.refusals and model.anatomy.rotation_bases[selected.layer] is not None
    terms = " + D" if model.anatomy.adds_distances else ""
    before = " after a norm" if model.anatomy.has("layer.attention_input_norm.weight", selected.layer) else ""
    bias = "" if model.anatomy.goes_without("layer.query.bias", selected.layer) else " + b_Q"
    words = (
        f"Q = X W_Q{bias}, with X (S, {sizes.d_model}) the layer's input{before}; K and V likewise, "
        f"(S, {sizes.d_head}) each. "
        + ("Queries and keys are then rotated by their positions. " if rotates else "")
        + f"The head writes softmax(Q K^T / sqrt({model.anatomy.products * sizes.d_head}){terms}) V W_O, "
        + f"(S, {sizes.d_model})."
        + (" D depends on the distance of two tokens." if terms else "")
    )
    expansion = (
        f"The expansion rate of layer {selected.layer} is {rate or 0:.3f}: the factor by which W_V W_O of all heads "
        "together multiplies the length of a random vector, biases included."
    )
    return Sheet(
        record=answer("head", selected, model=model.name, head=selected.index, expansion_rate=rate, slices=slices),
        table=lambda: Table(SLICE_COLUMNS, tuple(rows)),
        drawings=(
            title(
                f"layer {selected.layer}, head {selected.index} (counted from 0)",
                f"{called(model.name)}, d_model {sizes.d_model}, d_head {sizes.d_head}",
            ),
            blank,
            prose(words),
            *([] if rate is None else [prose(expansion)]),
            blank,
            table(Table(screen_columns, tuple(screen_rows))),
            blank,
            notes(
                [
                    f"names begin with {shared}" if shared else "",
                    "shapes are the paper's, (in, out); the file has (out, in), so W_Q, W_K and W_V are rows of its "
                    "tensors, transposed, and W_O is columns, transposed",
                ]
            ),
        ),
    )


def _shared_start(names: list[str]) -> str:
    """The common prefix of the names, up to a dot."""
    parts = [name.split(".") for name in names]
    same = 0
    while all(len(part) > same + 1 and part[same] == parts[0][same] for part in parts):
        same += 1
    return "".join(f"{part}." for part in parts[0][:same])


def head_arrays(head: Head) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """The head's slices by the paper's names."""
    return {name: np.asarray(getattr(head, name)) for name, _, _ in HEAD_SLICES}


def broken_slices(head: Head) -> str | None:
    """A line that names the slices with NaN or infinity, or None if all numbers are finite."""
    names = [name for name, array in head_arrays(head).items() if not np.isfinite(array).all()]
    return f"{BROKEN} in {', '.join(names)} of layer {head.layer}, head {head.index}" if names else None


def save_head(head: Head, path: Path) -> str:
    """Write the head's slices as one .npz; return a description."""
    from headscope.screens.saving import save_arrays

    arrays = head_arrays(head)
    save_arrays(path, arrays)
    return f"{', '.join(arrays)} of layer {head.layer}, head {head.index}"


def fit_sheet(model: Model, class_name: str) -> Sheet:
    """The parameters that a class would newly initialise, and those of the checkpoint that it would ignore."""
    fit = model.fit(class_name)
    columns = (
        Column("name", "parameter", kind="code"),
        Column("what", group=True),
        Column("shape"),
        Column("stored", "stored as"),
    )
    rows: list[tuple[Any, ...]] = [(name, "newly initialised", shape, None) for name, shape in fit.initialised]
    rows += [(name, "mismatched", wanted, stored) for name, stored, wanted in fit.mismatched]
    rows += [(row.name, "ignored", None, row.shape) for row in fit.ignored]
    drawings: list[Drawing] = [title(f"{called(model.name)} in {fit.class_name}"), blank]
    lines = [f"{fit.loaded} parameters are loaded from the checkpoint."]
    for found, are in (
        (fit.initialised, "are not in it and would be initialised at random: train before use."),
        (fit.mismatched, "have a shape other than the class expects and can't be loaded."),
        (fit.ignored, "are in the checkpoint but not in the class and would be ignored."),
    ):
        lines += [f"{len(found)} {are}"] if found else []
    if not rows:
        lines.append("Nothing is missing, and nothing would be ignored.")
    drawings += [prose(line) for line in lines]
    if rows:
        drawings += [blank, table(Table(columns, tuple(rows)))]
    if fit.tied:
        pairs = ", ".join(f"{name} = {source}" for name, source in fit.tied.items())
        drawings += [blank, notes([f"tied: {pairs}"])]
    drawings += [prose(line, "yellow", mark="! ") for line in fit.notes]
    record = answer(
        "fit",
        fit,
        **{"model": model.name, "class": fit.class_name},
        initialised=[{"name": name, "shape": shape} for name, shape in fit.initialised],
        mismatched=[{"name": name, "stored": stored, "wanted": wanted} for name, stored, wanted in fit.mismatched],
    )
    return Sheet(record, lambda: Table(columns, tuple(rows)), tuple(drawings))


CHECK_COLUMNS = (
    Column("name", "computed twice", kind="code"),
    Column("agrees"),
    Column("worst", "worst difference", align="right", form=".1e"),
    Column("tolerance", align="right", form=".1e"),
    *PLACE,
    Column("query", align="right"),
    Column("key", align="right"),
    Column("compared", kind="prose"),
    Column("reason", "why this tolerance", kind="prose"),
)


def verify_sheet(report: Report) -> Sheet:
    """The independent computations that were compared, their worst differences, and where those are."""
    rows = tuple(tuple(getattr(check, column.key) for column in CHECK_COLUMNS) for check in report.checks)
    screen_columns = (*CHECK_COLUMNS[:4], Column("where", "worst at", kind="prose"))
    screen_rows = tuple(
        (check.name, "yes" if check.agrees else "NO", float(check.worst), check.tolerance, check.place)
        for check in report.checks
    )
    drawings: list[Drawing] = [
        title(f"{called(report.model)}: {verdict(report)}"),
        blank,
        table(Table(screen_columns, screen_rows)),
        notes(["layers, heads, queries and keys count from 0"]),
        blank,
        title("what was compared"),
        *(prose(f"{check.name}: {check.compared}", "dim", mark="- ") for check in report.checks),
        *(prose(f"not compared with {name}: {why}", mark="- ") for name, why in report.skipped),
        *(prose(f"tolerance: {reason}", "dim", mark="- ") for reason in {check.reason: 0 for check in report.checks}),
        blank,
        title("does the model look properly loaded?"),
        *(prose(line, "yellow", mark="! ") for line in report.notes),
    ]
    if not report.notes:
        drawings.append(prose("yes: no tensor is missing or unexpected, no NaN, no head that looks untrained"))
    return Sheet(report.to_dict, lambda: Table(CHECK_COLUMNS, rows), tuple(drawings))


def verdict(report: Report) -> str:
    """The report in one line."""
    good = sum(check.agrees for check in report.checks)
    if report.agrees:
        return f"all {good} comparisons agree"
    return f"{len(report.checks) - good} of {len(report.checks)} comparisons do not agree"
