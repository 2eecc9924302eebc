"""The record that `hs.compare` returns: what differs between two models, head by head, and in words.

Texts and surveys need a corpus: `headscope.atlas.comparing` reads those and makes this. The guide is docs/compare.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headscope.checkpoint import called
from headscope.errors import InputError
from headscope.files import parquet_bytes, write_atomically
from headscope.heads.weight_changes import MEASURES
from headscope.results.arrays import Named
from headscope.results.head_values import Head, HeadValues
from headscope.results.row_tables import Rows, rows_of
from headscope.results.table import HeadTable


@dataclass(frozen=True, eq=False)
class Comparison(Rows):
    """Differences between two models of one shape, a and b. Changes are those from a to b.

    Attributes:
        a: the first model's name.
        b: the second's.
        changes: the table of heads: `change`, the measure that heads are ranked by, then relative changes of weights
            (see heads.weight_changes.MEASURES), or nothing of these between two surveys; then
            the statistics, each with both sides, or none without a corpus. Its facts are the labels of both sides.
        parts: attention, feed_forward, norms -> (layers,), the relative change of all parameters of that part.
        outside: embeddings.word, pooler, … -> the relative change.
        left_out: parameters that could not be compared -> the reason.
        effects: the change of what silencing each head changes, as surveys have it; its measure names the output. None
            unless both sides were surveyed with effects.
        documents: how many documents the statistics are from; 0 between two surveys, whose changes have no intervals.
        notes: what a reader must know: texts that were cut, tokenizers that differ.
    """

    a: str
    b: str
    changes: HeadTable
    parts: Mapping[str, Named]
    outside: Mapping[str, float]
    left_out: Mapping[str, str]
    effects: HeadValues | None = None
    documents: int = 0
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        """The numbers of the layers."""
        return self.changes.layers

    @property
    def heads(self) -> tuple[int, ...]:
        """The numbers of the heads across; a layer that lacks one has NaN there."""
        return self.changes.across

    @property
    def weights(self) -> dict[str, HeadValues]:
        """Name of MEASURES -> (layers, heads); empty between two surveys."""
        return {name: values for name, values in self.changes.items() if name in MEASURES}

    @property
    def statistics(self) -> dict[str, HeadValues]:
        """Name -> the change with both sides; empty without a corpus."""
        return {name: values for name, values in self.changes.items() if values.sides}

    @property
    def labels(self) -> list[dict[str, Any]]:
        """For each head layer, head and what `rows` says of its labels; empty unless both sides have labels."""
        return rows_of(replace(self.changes, columns={}).cells()) if self.changes.facts else []

    @property
    def qk(self) -> HeadValues:
        """(layers, heads): the relative change of W_Q W_K^T.

        Raises:
            InputError: two surveys were compared, which have no weights.
        """
        return self._weight("qk")

    @property
    def ov(self) -> HeadValues:
        """(layers, heads): the relative change of W_V W_O.

        Raises:
            InputError: two surveys were compared, which have no weights.
        """
        return self._weight("ov")

    @property
    def change(self) -> HeadValues:
        """(layers, heads): the measure that heads are ranked by.

        The larger of `qk` and `ov`. Between surveys, the largest change of a statistic, in standard deviations of that
        statistic over all heads of both models.
        """
        return self.changes["change"]

    @property
    def differs(self) -> bool:
        """Return True if anything that was compared differs, or if something could not be compared."""
        arrays = [named.array for named in (*self.weights.values(), *self.parts.values())]
        arrays += [np.array(value) for value in self.outside.values()]
        for change in self.statistics.values():
            arrays += [np.nan_to_num(change.array), np.isnan(change.a.array) ^ np.isnan(change.b.array)]
        if self.effects is not None:
            arrays.append(np.nan_to_num(self.effects.array))
        sides = [[facts for name, facts in self.changes.facts.items() if name.endswith(end)] for end in ("_a", "_b")]
        return bool(self.left_out) or sides[0] != sides[1] or any(bool((array != 0).any()) for array in arrays)

    def strongest(self, count: int = 10) -> list[Head]:
        """The heads (layer, head) that changed most by `change`, the greatest first."""
        return self.changes.strongest("change", count)

    def strongest_statistic(self) -> tuple[str, int, int] | None:
        """The statistic, layer and head with the greatest change that is sure; None where none is.

        Statistics have different units: each change is divided by the standard deviation over heads.
        """
        best, place = 0.0, None
        for name, change in self.statistics.items():
            far = np.where(change.sure(), np.nan_to_num(np.abs(change.far())), 0.0)
            row, column = (int(at) for at in np.unravel_index(far.argmax(), far.shape))
            if far[row, column] > best:
                best, place = float(far[row, column]), (name, self.layers[row], self.heads[column])
        return place

    def statistic_of(self, layer: int, head: int) -> str | None:
        """The statistic of one head that changed most, as `strongest_statistic` measures it; None where none did."""
        at = self.changes.positions()[layer, head]
        far = {name: abs(float(np.nan_to_num(change.far()[at]))) for name, change in self.statistics.items()}
        name = max(far, key=far.__getitem__, default=None)
        return name if name is not None and far[name] else None

    def rows(self) -> list[dict[str, Any]]:
        """One row for each head: `pandas.DataFrame(comparison.rows())`.

        Columns: layer, head, `change`, the names of `weights`, and of each statistic NAME_a, NAME_b, NAME_change,
        NAME_low, NAME_high. With labels: label_changed, then label, label_kind, label_score, label_low, label_high,
        label_baseline, label_coverage and label_note, each for _a and _b. With effects: effect_a, effect_a_low,
        effect_a_high, the same for b, effect_change, effect_low, effect_high.
        """
        return rows_of(self._cells())

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write `rows` as a Parquet file.

        Raises:
            InputError: the file can't be written.
            MissingExtraError: pyarrow is not installed.
        """
        write_atomically(Path(path), parquet_bytes(self.arrow()))

    def sentences(self) -> tuple[str, ...]:
        """The findings in words, the most important first."""
        if not self.differs:
            return (f"Nothing differs: {self._compared()} are the same in both.",)
        lines = []
        if self.weights:
            lines.append(self._weights_sentence())
        if self.statistics:
            lines.append(self._statistics_sentence())
        if self.labels:
            lines.append(_labels_sentence(self.labels))
        if self.effects is not None:
            lines.append(self._effects_sentence(self.effects))
        return tuple(lines)

    def _cells(self) -> dict[str, list[Any]]:
        effects = {} if self.effects is None else {"effect": self.effects}
        return self.changes.cells() | replace(self.changes, columns=effects, facts={}).cells()

    def _weight(self, name: str) -> HeadValues:
        if name not in self.changes:
            raise InputError(
                f"two surveys have no weights, and so no {name}",
                where=f"{self.a} and {self.b}",
                advice="compare the checkpoints: hs.compare(model_a, model_b)",
            )
        return self.changes[name]

    def _compared(self) -> str:
        if not self.weights:
            more = (", labels" if self.labels else "") + (", effects" if self.effects is not None else "")
            return f"{len(self.statistics)} statistics{more} of {self.change.size} heads"
        words = "embeddings, heads, feed-forward networks and norms"
        return f"{words}, and {len(self.statistics)} statistics," if self.statistics else words

    def _weights_sentence(self) -> str:
        if not self.change.sure().any():
            return "No head's QK or OV changed; " + self._elsewhere()
        ((layer, head),) = self.strongest(1)
        at = self.changes.positions()[layer, head]
        median = float(np.nanmedian(self.change.array))
        return (
            f"What changed most: layer {layer}, head {head}, its QK by {percent(self.qk[at])} and its OV by "
            f"{percent(self.ov[at])}; the median head by {percent(median)}."
        )

    def _elsewhere(self) -> str:
        """The parameters that changed where no head did."""
        changed = [name for name, value in self.outside.items() if value]
        changed += [name.replace("_", "-") for name, named in self.parts.items() if named.array.any()]
        return f"what changed: {', '.join(changed)}." if changed else "what could not be compared may have."

    def _statistics_sentence(self) -> str:
        on = f"on {self.documents} document{'s' * (self.documents != 1)}" if self.documents else "in the surveys"
        place = self.strongest_statistic()
        if place is None:
            return f"No statistic of any head changed {on} by more than its 95 % interval."
        name, layer, head = place
        change, at = self.statistics[name], self.changes.positions()[layer, head]
        return (
            f"What a head does changed most {on} in layer {layer}, head {head}: {change.measure.described}, from "
            f"{change.a[at]:.3g} to {change.b[at]:.3g} ({change[at]:+.3g}{_interval(change, at)})."
        )

    def _effects_sentence(self, effects: HeadValues) -> str:
        """The head whose effect changed most, of those whose interval excludes 0."""
        output = effects.measure.meaning
        places = [place for place in effects.strongest(1, sure=True) if effects[place]]
        if not places:
            return f"No effect of silencing a head on the {output} surely changed: every interval contains 0."
        (at,) = places
        return (
            f"The effect of silencing a head changed most in layer {self.layers[at[0]]}, head {self.heads[at[1]]}: on "
            f"the {output}, in {effects.measure.unit}, from {effects.a[at]:+.3g} to {effects.b[at]:+.3g} "
            f"({effects[at]:+.3g}{_interval(effects, at)})."
        )

    def __repr__(self) -> str:
        return "\n".join([f"{called(self.a)} and {called(self.b)}:", *self.sentences(), *self.notes])


def changed_first(labels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The heads with another label; first those whose label, on either side, stood highest above its baseline."""
    changed = [row for row in labels if row["label_changed"]]
    return sorted(changed, key=lambda row: (-max(_margin(row, "a"), _margin(row, "b")), row["layer"], row["head"]))


def percent(value: float) -> str:
    """A relative change as people read it: 12.3%, 0.0041%."""
    return f"{100 * value:.3g}%" if np.isfinite(value) else "more than any number, from nothing"


def _interval(change: HeadValues, at: tuple[int, int]) -> str:
    if change.low is None or change.high is None or np.isnan(change.low[at]):
        return ""
    return f", 95 % interval {change.low[at]:+.3g} to {change.high[at]:+.3g}"


def _margin(row: dict[str, Any], side: str) -> float:
    score = row[f"label_score_{side}"]
    return 0.0 if score is None else float(score - (row[f"label_baseline_{side}"] or 0.0))


def _labels_sentence(labels: Sequence[dict[str, Any]]) -> str:
    """Describe how many heads are labelled otherwise, and the one with the clearest label that it lost or got."""
    changed = changed_first(labels)
    if not changed:
        return f"No label changed: all {len(labels)} heads are labelled as before."
    first = changed[0]
    sides = [
        "no label"
        if first[f"label_score_{side}"] is None
        else f"“{first[f'label_{side}']}” ({first[f'label_score_{side}']:.2f})"
        for side in ("a", "b")
    ]
    return (
        f"{len(changed)} of {len(labels)} heads have another label, first layer {first['layer']}, head "
        f"{first['head']}: from {sides[0]} to {sides[1]}."
    )
