"""Two surveys joined by head: every statistic, label and effect that both have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope._compare.changes import Change, EffectChange, LabelChange, per_head
from headscope._compare.effects import effect_changes
from headscope._compare.labels import label_changes
from headscope._survey.findings import heads_across
from headscope.errors import InputError

if TYPE_CHECKING:
    import os

    from headscope._survey.result import Survey
    from headscope.model import Model


@dataclass(frozen=True, eq=False)
class SurveyChanges:
    """What differs between two surveys.

    Attributes:
        layers, heads: the numbers of the layers, and of the heads across.
        statistics: name -> the means over windows, without intervals.
        labels: a pair for each head; empty unless both surveys have labels.
        effects: None unless both surveys measured the same output.
        notes: what a reader must know.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    statistics: dict[str, Change]
    labels: tuple[LabelChange, ...]
    effects: EffectChange | None
    notes: tuple[str, ...]


def survey_changes(a: Survey, b: Survey) -> SurveyChanges:
    """Join two surveys by head.

    Raises:
        InputError: the models have other layers or heads, or the surveys share no statistic.
    """
    for what in ("layers", "heads"):
        if a.aggregates[what] != b.aggregates[what]:
            counts = [_counted(survey.aggregates) for survey in (a, b)]
            raise InputError(
                f"the surveys are of models with different heads: {counts[0]} and {counts[1]}",
                where="hs.compare(survey_a, survey_b)",
                advice="compare surveys of models of one shape",
            )
    names = [name for name in a if name in b]
    if not names:
        raise InputError(
            "the surveys share no statistic",
            where="hs.compare(survey_a, survey_b)",
            advice=f"the first has {', '.join(a)}; survey the second model with some of them",
        )
    changes = {}
    for name in names:
        first, other = (survey[name].array.astype(np.float64) for survey in (a, b))
        nothing = np.full(first.shape, np.nan)
        arrays = (first, other, other - first, nothing, nothing)
        changes[name] = Change(*(per_head(name, array) for array in arrays))
    notes = []
    if a.manifest["corpus"]["files"] != b.manifest["corpus"]["files"] or a.manifest["counts"] != b.manifest["counts"]:
        notes.append("the surveys are of different texts: a difference may come from the texts")
    notes += [f"only one survey has {name}" for name in sorted({*a} ^ {*b})]
    labels, label_notes = label_changes(a, b)
    effects, effect_notes = effect_changes(a, b)
    return SurveyChanges(
        layers=tuple(a.aggregates["layers"]),
        heads=heads_across(a.aggregates),
        statistics=changes,
        labels=labels,
        effects=effects,
        notes=(*notes, *label_notes, *effect_notes),
    )


def surveyed(
    a: Model,
    b: Model,
    corpus: str | os.PathLike[str] | Sequence[str],
    *,
    labels: bool,
    effects: int,
    max_length: int | None,
    field: str,
) -> SurveyChanges:
    """Survey both models over a corpus, for labels and effects, in temporary folders.

    Raises:
        InputError: the corpus can't be surveyed.
        MissingExtraError: PyTorch or pyarrow is not installed.
    """
    from headscope._survey.run import survey

    made = [
        survey(
            model,
            corpus,
            statistics=["entropy"],
            labels=labels,
            effects=effects,
            length=max_length,
            field=field,
            report=False,
        )
        for model in (a, b)
    ]
    return survey_changes(made[0], made[1])


def _counted(aggregates: dict[str, list[list[int]]]) -> str:
    return f"{len(aggregates['layers'])} layers of {max(map(len, aggregates['heads']), default=0)} heads"
