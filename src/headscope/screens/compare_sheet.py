"""A comparison of two models: the screen, JSON and the table of heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.checkpoint import called
from headscope.heads import CATALOG
from headscope.heads.comparison import changed_first
from headscope.heads.weight_changes import MEASURES
from headscope.results.answers import CompareAnswer, filled
from headscope.screens.inked import heat_map
from headscope.screens.tables import PLACE, Column, Table, shown
from headscope.screens.terminal import Drawing, Sheet, blank, notes, prose, table, title

if TYPE_CHECKING:
    from headscope.heads.comparison import Comparison
    from headscope.results.head_values import HeadValues

TOP = 10
BOTH = ("a", "b", "change", "low", "high")


def compare_sheet(result: Comparison, top: int | None = None) -> Sheet:
    """Sheet of a comparison: findings, a map, the heads that changed most, labels, effects, the parts of layers.

    Args:
        result: the comparison.
        top: most heads in the table, and in each of the screen's; None for all, on the screen TOP.
    """
    output = None if result.effects is None else result.effects.measure
    return Sheet(
        record=lambda: filled(
            CompareAnswer,
            result,
            findings=result.sentences(),
            layers=_layers(result).records(),
            effects=None if output is None else {"output": output.meaning, "unit": output.unit},
            heads=_heads(result).records(),
        ),
        table=lambda: _heads(result, top),
        drawings=tuple(_drawings(result, top or TOP)),
        look_at=result.strongest(1)[0] if result.differs else None,
    )


def _heads(result: Comparison, top: int | None = None) -> Table:
    """Every head with everything that was compared; of the heads that changed most, `top`."""
    rows = result.rows()
    if top is not None:
        named = {(row["layer"], row["head"]): row for row in rows}
        rows = [named[place] for place in result.strongest(top)]
    keys = list(rows[0])[2:]
    columns = (*PLACE, *(Column(key, align="right", form=_form(key)) for key in keys))
    return Table(columns, tuple((row["layer"], row["head"], *(shown(row[key]) for key in keys)) for row in rows))


def _layers(result: Comparison) -> Table:
    """The parts of each layer, one number each."""
    columns = (PLACE[0], *(Column(name, name.replace("_", "-"), "right", ".2%") for name in result.parts))
    rows = [(layer, *(float(named[at]) for named in result.parts.values())) for at, layer in enumerate(result.layers)]
    return Table(columns, tuple(rows) if result.parts else ())


def _drawings(result: Comparison, top: int) -> list[Drawing]:
    drawings: list[Drawing] = [title("what differs", f"from {called(result.a)} to {called(result.b)}")]
    drawings += [prose(sentence) for sentence in result.sentences()]
    if result.differs:
        unit = "the larger of QK's and OV's" if result.weights else "standard deviations over heads"
        ranked = np.nan_to_num(result.change.array, posinf=np.finfo(np.float64).max)
        if ranked.any():
            noun = "relative change" if result.weights else "change"
            drawings += [blank, heat_map(ranked, unit, noun=noun, layers=result.layers, heads=result.heads)]
            drawings += [blank, table(_strongest(result, top))]
        if changed_first(result.labels):
            drawings += [blank, table(_labels(result, top))]
        if result.effects is not None and np.nan_to_num(result.effects.array).any():
            drawings += [blank, table(_effects(result.effects, result, top))]
        if result.parts:
            drawings += [blank, table(_layers(result))]
        drawings.append(notes(_legend(result)))
    drawings.append(notes(result.notes))
    return drawings


def _strongest(result: Comparison, top: int) -> Table:
    """The heads that changed most, each with the statistic that changed most there."""
    columns = list(PLACE)
    if result.weights:
        columns += [Column("qk", "QK", "right", ".2%"), Column("ov", "OV", "right", ".2%")]
    if result.statistics:
        columns += [Column("statistic", kind="code"), *(Column(key, align="right", form=".3f") for key in ("a", "b"))]
        columns += [Column("change", align="right", form="+.3f")]
    rows = []
    for layer, head in result.strongest(top):
        at = result.changes.positions()[layer, head]
        row: list[Any] = [layer, head]
        if result.weights:
            row += [float(result.qk[at]), float(result.ov[at])]
        if result.statistics:
            name = result.statistic_of(layer, head)
            change = result.statistics[name] if name is not None else None
            row += [name, *([None] * 3 if change is None else (float(of[at]) for of in (*change.sides, change)))]
        rows.append(tuple(row))
    return Table(tuple(columns), tuple(rows))


def _labels(result: Comparison, top: int) -> Table:
    """The heads that are labelled otherwise, the clearest labels first."""
    columns = (*PLACE, Column("a", "label in a", kind="prose"), Column("b", "label in b", kind="prose"))
    changed = changed_first(result.labels)
    rows = tuple((row["layer"], row["head"], _labelled(row, "a"), _labelled(row, "b")) for row in changed[:top])
    return Table(columns, rows, title=f"other labels: {len(changed)} of {len(result.labels)} heads")


def _labelled(row: dict[str, Any], side: str) -> str:
    label, score, low, high = (row[f"label{of}_{side}"] for of in ("", "_score", "_low", "_high"))
    if score is None:
        return str(label)
    return f"{label}, {score:.2f}" + ("" if low is None or high is None else f" ({low:.2f} to {high:.2f})")


def _effects(effects: HeadValues, result: Comparison, top: int) -> Table:
    """The heads whose effect changed most."""
    columns = (*PLACE, *(Column(name, align="right") for name in ("a", "b", "change")))
    rows = [
        (
            result.layers[at[0]],
            result.heads[at[1]],
            *(
                _bounded(float(of[at]), *(np.nan if bound is None else float(bound[at]) for bound in (of.low, of.high)))
                for of in (*effects.sides, effects)
            ),
        )
        for at in effects.strongest(top)
        if effects[at]
    ]
    title = f"effects of silencing a head on the {effects.measure.meaning}, in {effects.measure.unit}"
    return Table(columns, tuple(rows), title=f"{title}, with 95 % intervals")


def _bounded(value: float, low: float, high: float) -> str:
    return f"{value:+.3g}" + ("" if np.isnan(low) else f" ({low:+.3g} to {high:+.3g})")


def _legend(result: Comparison) -> list[str]:
    if not result.weights:
        return []
    lines = ["relative changes are |b - a| / |a| in the Frobenius norm; QK is W_Q W_K^T, OV is W_V W_O"]
    outside = [f"{name} {value:.2%}" for name, value in result.outside.items()]
    return [*lines, f"outside the layers: {', '.join(outside)}"] if outside else lines


def _form(key: str) -> str:
    if key in MEASURES:
        return ".3g"
    name, _, of = key.rpartition("_")
    if key.startswith("effect_"):
        return "+.4g"
    return "+.4g" if name in CATALOG and of not in BOTH[:2] else ".4g"
