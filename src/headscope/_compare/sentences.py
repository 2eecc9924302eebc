"""What changed in labels and effects, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headscope._compare.changes import EffectChange, HeadLabel, LabelChange


def labels_sentence(labels: Sequence[LabelChange]) -> str:
    """How many heads are labelled otherwise, and the one with the clearest label that it lost or got."""
    changed = [label for label in labels if label.changed]
    if not changed:
        return f"No label changed: all {len(labels)} heads are labelled as before."
    first = changed_first(labels)[0]
    return (
        f"{len(changed)} of {len(labels)} heads have another label, first layer {first.layer}, head {first.head}: "
        f"from {labelled(first.a)} to {labelled(first.b)}."
    )


def changed_first(labels: Sequence[LabelChange]) -> list[LabelChange]:
    """The heads with another label; first those whose label, on either side, stood highest above its baseline."""
    changed = [label for label in labels if label.changed]
    return sorted(changed, key=lambda label: (-max(_margin(label.a), _margin(label.b)), label.layer, label.head))


def lacking(what: str, option: str, having: Sequence[bool]) -> tuple[str, ...]:
    """A note that a column is not compared, where only one of two surveys has it."""
    if all(having) or not any(having):
        return ()
    return (f"{what} are not compared: the {'first' if having[1] else 'second'} survey has none ({option})",)


def labelled(label: HeadLabel) -> str:
    """A label with its score: “previous word” (0.92)."""
    return "no label" if label.score is None else f"“{label.label}” ({label.score:.2f})"


def _margin(label: HeadLabel) -> float:
    return 0.0 if label.score is None else label.score - (label.baseline or 0.0)


def effects_sentence(effects: EffectChange, layers: Sequence[int], heads: Sequence[int]) -> str:
    """The head whose effect changed most, of those whose interval excludes 0."""
    sure = np.where(effects.sure(), np.nan_to_num(np.abs(effects.change.array)), 0.0)
    if not sure.any():
        return f"No effect of silencing a head on the {effects.output} surely changed: every interval contains 0."
    row, column = (int(at) for at in np.unravel_index(sure.argmax(), sure.shape))
    at = (row, column)
    low, high = effects.low[at], effects.high[at]
    interval = "" if np.isnan(low) else f", 95 % interval {low:+.3g} to {high:+.3g}"
    return (
        f"The effect of silencing a head changed most in layer {layers[row]}, head {heads[column]}: on the "
        f"{effects.output}, in {effects.unit}, from {effects.a[at]:+.3g} to {effects.b[at]:+.3g} "
        f"({effects.change[at]:+.3g}{interval})."
    )
