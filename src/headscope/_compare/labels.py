"""Labels of two surveys, joined by head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscope._compare.changes import LABEL_FIELDS, HeadLabel, LabelChange
from headscope._compare.sentences import lacking

if TYPE_CHECKING:
    from headscope._survey.result import Survey


def label_changes(a: Survey, b: Survey) -> tuple[tuple[LabelChange, ...], tuple[str, ...]]:
    """A pair for each head, the first layer's first, and notes; none unless both surveys have labels."""
    having = [survey.has("labels") for survey in (a, b)]
    if not all(having):
        return (), lacking("labels", "--labels", having)
    first, other = (
        {
            (row["layer"], row["head"]): HeadLabel(*(row[name] for name in LABEL_FIELDS))
            for row in survey.labels.to_pylist()
        }
        for survey in (a, b)
    )
    return tuple(LabelChange(*place, first[place], other[place]) for place in sorted(first)), ()
