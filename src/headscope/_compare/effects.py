"""Effects of silencing heads in two surveys, joined by head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope._compare.changes import EffectChange, per_head
from headscope._compare.sentences import lacking
from headscope._survey.effects import changes_in
from headscope._survey.intervals import Resampled

if TYPE_CHECKING:
    from headscope._survey.result import Survey


def effect_changes(a: Survey, b: Survey) -> tuple[EffectChange | None, tuple[str, ...]]:
    """The effects of both surveys, and notes; None unless both measured the same output in the same way."""
    having = [survey.has("effects") for survey in (a, b)]
    if not all(having):
        return None, lacking("effects", "--effects N", having)
    tables = [survey.effects.to_pylist() for survey in (a, b)]
    measured = [(rows[0]["output"], rows[0]["method"]) for rows in tables]
    if measured[0] != measured[1]:
        (output, method), (other, other_method) = measured
        return None, (
            f"effects are not compared: one is of the {output} ({method}), the other of the {other} ({other_method})",
        )
    places = [(row["layer"], row["head"]) for row in tables[0]]
    sides = [_sides(places, {(row["layer"], row["head"]): row for row in rows}) for rows in tables]
    apart = sides[1]["change"] - sides[0]["change"]
    low, high, notes = _paired(a, b, places)
    arrays = {"a": sides[0]["change"], "b": sides[1]["change"], "change": apart, "low": low, "high": high}
    arrays |= {f"{side}_{of}": sides[at][of] for at, side in enumerate("ab") for of in ("low", "high")}
    named = {name: per_head("effect", array) for name, array in arrays.items()}
    return EffectChange(**named, output=tables[0][0]["output"], unit=tables[0][0]["unit"]), notes


def _sides(
    places: list[tuple[int, int]], rows: dict[tuple[int, int], dict[str, float | None]]
) -> dict[str, np.ndarray]:
    """One survey's effects and their bounds as (layers, heads)."""
    values = {
        name: np.array([rows[place][name] for place in places], dtype=np.float64) for name in ("change", "low", "high")
    }
    return {name: _across(places, of) for name, of in values.items()}


def _across(places: list[tuple[int, int]], values: np.ndarray) -> np.ndarray:
    """(layers, heads) from a value for each head; NaN where a layer lacks a head."""
    layers, heads = (sorted({place[at] for place in places}) for at in (0, 1))
    array = np.full((len(layers), len(heads)), np.nan)
    for (layer, head), value in zip(places, values, strict=True):
        array[layers.index(layer), heads.index(head)] = value
    return array


def _paired(a: Survey, b: Survey, places: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """The bounds of the change's interval, from what silencing changes in each window of both surveys."""
    nothing = _across(places, np.full(len(places), np.nan))
    first, other = (changes_in(survey.folder) for survey in (a, b))
    if first is None or other is None:
        missing = a if first is None else b
        return nothing, nothing, (f"changes of effects have no intervals: {missing.folder}/effects is missing",)
    if first.windows != other.windows:
        return nothing, nothing, ("changes of effects have no intervals: the surveys silenced heads in other windows",)
    _, low, high = Resampled(first.documents).means(other.changes - first.changes)
    notes = ("one document gives no interval of effects",) if len(set(first.documents)) < 2 else ()
    return _across(places, low), _across(places, high), notes
