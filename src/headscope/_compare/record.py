"""The record that `hs.compare` returns: what differs between two models, head by head."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope._compare.changes import Change, EffectChange, LabelChange, per_head
from headscope._compare.sentences import effects_sentence, labels_sentence
from headscope._compare.weights import MEASURES
from headscope._trace import Named
from headscope.checkpoint import called
from headscope.errors import InputError, MissingExtraError
from headscope.explain.effects import strongest
from headscope.statistics import CATALOG
from headscope.writing import write_atomically

if TYPE_CHECKING:
    import pyarrow
    from jaxtyping import Float

    Heads = Float[np.ndarray, "layers heads"]


@dataclass(frozen=True, eq=False)
class Comparison:
    """What differs between two models of one shape, a and b. Changes are those from a to b.

    Attributes:
        a: the first model's name.
        b: the second's.
        layers: the numbers of the layers.
        heads: the numbers of the heads across; a layer that lacks one has NaN there.
        weights: name -> (layers, heads), relative changes and angles in degrees; headscope._compare.weights.MEASURES
            has their meanings. Empty between two surveys.
        parts: attention, feed_forward, norms -> (layers,), the relative change of all parameters of that part.
        outside: embeddings.word, pooler, … -> the relative change.
        left_out: parameters that could not be compared -> the reason.
        statistics: name -> Change; empty without a corpus.
        labels: a pair of labels for each head; empty unless both sides were surveyed with labels.
        effects: what silencing each head changes; None unless both sides were surveyed with effects.
        documents: how many documents the statistics are from; 0 between two surveys, whose changes have no intervals.
        notes: what a reader must know: texts that were cut, tokenizers that differ.
    """

    a: str
    b: str
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    weights: Mapping[str, Named]
    parts: Mapping[str, Named]
    outside: Mapping[str, float]
    left_out: Mapping[str, str]
    statistics: Mapping[str, Change]
    documents: int = 0
    notes: tuple[str, ...] = ()
    labels: tuple[LabelChange, ...] = ()
    effects: EffectChange | None = None

    @property
    def qk(self) -> Named:
        """(layers, heads): the relative change of W_Q W_K^T.

        Raises:
            InputError: two surveys were compared, which have no weights.
        """
        return self._weight("qk")

    @property
    def ov(self) -> Named:
        """(layers, heads): the relative change of W_V W_O.

        Raises:
            InputError: two surveys were compared, which have no weights.
        """
        return self._weight("ov")

    @property
    def change(self) -> Named:
        """(layers, heads): the measure that heads are ranked by.

        The larger of `qk` and `ov`. Between surveys, the largest change of a statistic, in standard deviations of that
        statistic over all heads of both models.
        """
        if self.weights:
            return per_head("change", np.fmax(self.qk.array, self.ov.array))
        far = np.stack([np.abs(far_of(change)) for change in self.statistics.values()])
        return per_head("change", np.fmax.reduce(far, axis=0))

    @property
    def differs(self) -> bool:
        """Return True if anything that was compared differs, or if something could not be compared."""
        arrays = [named.array for named in (*self.weights.values(), *self.parts.values())]
        arrays += [np.array(value) for value in self.outside.values()]
        for change in self.statistics.values():
            arrays += [np.nan_to_num(change.change.array), np.isnan(change.a.array) ^ np.isnan(change.b.array)]
        if self.effects is not None:
            arrays.append(np.nan_to_num(self.effects.change.array))
        if self.left_out or any(label.a != label.b for label in self.labels):
            return True
        return any(bool((array != 0).any()) for array in arrays)

    def strongest(self, count: int = 10) -> list[tuple[int, int]]:
        """The heads (layer, head) that changed most by `change`, the greatest first."""
        seen = np.where(np.isnan(self.change.array), -1.0, self.change.array)
        places = [(row, column) for row, column in strongest(seen, seen.size) if seen[row, column] >= 0]
        return [(self.layers[row], self.heads[column]) for row, column in places[:count]]

    def strongest_statistic(self) -> tuple[str, int, int] | None:
        """The statistic, layer and head with the greatest change that is sure; None where none is.

        Statistics have different units: each change is divided by the standard deviation over heads.
        """
        best, place = 0.0, None
        for name, change in self.statistics.items():
            far = np.where(change.sure(), np.nan_to_num(np.abs(far_of(change))), 0.0)
            row, column = (int(at) for at in np.unravel_index(far.argmax(), far.shape))
            if far[row, column] > best:
                best, place = float(far[row, column]), (name, self.layers[row], self.heads[column])
        return place

    def statistic_of(self, layer: int, head: int) -> str | None:
        """The statistic of one head that changed most, as `strongest_statistic` measures it; None where none did."""
        at = (self.layers.index(layer), self.heads.index(head))
        far = {name: abs(float(np.nan_to_num(far_of(change)[at]))) for name, change in self.statistics.items()}
        name = max(far, key=far.__getitem__, default=None)
        return name if name is not None and far[name] else None

    def rows(self) -> list[dict[str, Any]]:
        """One row for each head: `pandas.DataFrame(comparison.rows())`.

        Columns: layer, head, `change`, the names of `weights`, and of each statistic NAME_a, NAME_b, NAME_change,
        NAME_low, NAME_high. With labels: label_changed, then label, label_kind, label_score, label_low, label_high,
        label_baseline, label_coverage and label_note, each for _a and _b. With effects: effect_a, effect_a_low,
        effect_a_high, the same for b, effect_change, effect_low, effect_high.
        """
        columns = {name: named.array for name, named in self.weights.items()}
        for name, change in self.statistics.items():
            columns |= {f"{name}_{of}": getattr(change, of).array for of in ("a", "b", "change", "low", "high")}
        effects = {} if self.effects is None else {f"effect_{name}": of.array for name, of in self.effects.arrays()}
        labels = {(label.layer, label.head): label.row() for label in self.labels}
        rank = self.change.array
        return [
            {
                "layer": layer,
                "head": head,
                "change": float(rank[at, place]),
                **{name: float(array[at, place]) for name, array in columns.items()},
                **labels.get((layer, head), {}),
                **{name: float(array[at, place]) for name, array in effects.items()},
            }
            for at, layer in enumerate(self.layers)
            for place, head in enumerate(self.heads)
            if not np.isnan(rank[at, place])
        ]

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write `rows` as a Parquet file.

        Raises:
            InputError: the file can't be written.
            MissingExtraError: pyarrow is not installed.
        """
        table = self.table()
        from headscope._survey.table import parquet_bytes

        write_atomically(Path(path), parquet_bytes(table))

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
            lines.append(labels_sentence(self.labels))
        if self.effects is not None:
            lines.append(effects_sentence(self.effects, self.layers, self.heads))
        return tuple(lines)

    def table(self) -> pyarrow.Table:
        """`rows` as a table of pyarrow; missing numbers are null.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        try:
            import pyarrow
        except ImportError as error:
            raise MissingExtraError(
                "pyarrow is not installed", where="Comparison.table", advice="pip install 'headscope[survey]'"
            ) from error
        rows = self.rows()
        names = list(rows[0]) if rows else []
        return pyarrow.table({name: pyarrow.array([row[name] for row in rows], from_pandas=True) for name in names})

    def _weight(self, name: str) -> Named:
        if name not in self.weights:
            raise InputError(
                f"two surveys have no weights, and so no {name}",
                where=f"{self.a} and {self.b}",
                advice="compare the checkpoints: hs.compare(model_a, model_b)",
            )
        return self.weights[name]

    def _compared(self) -> str:
        if not self.weights:
            more = (", labels" if self.labels else "") + (", effects" if self.effects is not None else "")
            return f"{len(self.statistics)} statistics{more} of {self.change.size} heads"
        words = "embeddings, heads, feed-forward networks and norms"
        return f"{words}, and {len(self.statistics)} statistics," if self.statistics else words

    def _weights_sentence(self) -> str:
        if not (np.nan_to_num(self.change.array, posinf=1) != 0).any():
            return "No head's QK or OV changed; " + self._elsewhere()
        layer, head = self.strongest(1)[0]
        at, place = self.layers.index(layer), self.heads.index(head)
        median = float(np.nanmedian(self.change.array))
        return (
            f"What changed most: layer {layer}, head {head}, its QK by {percent(self.qk[at, place])} and its OV by "
            f"{percent(self.ov[at, place])}; the median head by {percent(median)}."
        )

    def _elsewhere(self) -> str:
        """The parameters that changed where no head did."""
        changed = [name for name, value in self.outside.items() if value]
        changed += [name.replace("_", "-") for name, named in self.parts.items() if named.array.any()]
        return f"what changed: {', '.join(changed)}." if changed else "what could not be compared may have."

    def _statistics_sentence(self) -> str:
        on = f"on {self.documents} documents" if self.documents else "in the surveys"
        place = self.strongest_statistic()
        if place is None:
            return f"No statistic of any head changed {on} by more than its 95 % interval."
        name, layer, head = place
        change, at = self.statistics[name], (self.layers.index(layer), self.heads.index(head))
        low, high = change.low[at], change.high[at]
        interval = "" if np.isnan(low) else f", 95 % interval {low:+.3g} to {high:+.3g}"
        return (
            f"What a head does changed most {on} in layer {layer}, head {head}: {CATALOG[name].described}, from "
            f"{change.a[at]:.3g} to {change.b[at]:.3g} ({change.change[at]:+.3g}{interval})."
        )

    def __repr__(self) -> str:
        return "\n".join([f"{called(self.a)} and {called(self.b)}:", *self.sentences(), *self.notes])


def far_of(change: Change) -> Heads:
    """A change in standard deviations of its statistic over all heads of both models; 0 where nothing varies."""
    values = np.stack([change.a.array, change.b.array])
    seen = values[np.isfinite(values)]
    spread = float(seen.std()) if len(seen) else 0.0
    return change.change.array / spread if spread else np.zeros_like(change.change.array)


def percent(value: float) -> str:
    """A relative change as people read it: 12.3%, 0.0041%."""
    return f"{100 * value:.3g}%" if np.isfinite(value) else "more than any number, from nothing"


__all__ = ["MEASURES", "Change", "Comparison", "EffectChange", "LabelChange"]
