"""`hs.compare(a, b)`: two checkpoints of one shape, or two surveys, held against each other."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from headscope._compare.changes import Change
from headscope._compare.record import Comparison
from headscope._compare.texts import statistics_over
from headscope._compare.weights import check_shapes, weight_changes
from headscope._survey.result import Survey
from headscope.errors import InputError
from headscope.model import Model, open_model

if TYPE_CHECKING:
    from headscope._compare.surveys import SurveyChanges

Comparable = str | os.PathLike[str] | Model | Survey


def compare(
    model_a: Comparable,
    model_b: Comparable,
    corpus: str | os.PathLike[str] | Iterable[str] | None = None,
    *,
    statistics: str | Iterable[str] | None = None,
    labels: bool = False,
    effects: int = 0,
    max_length: int | None = None,
    field: str = "text",
) -> Comparison:
    """Compare two checkpoints of one shape, head by head: a model and what it was fine-tuned into, or two seeds.

    Without a corpus only weights are read, and torch is not needed. With one, both models also run on every document,
    and each statistic of each head comes with the 95 % interval of its change. See docs/compare.md.

    Args:
        model_a: a hub id, a folder, a file, `-` for the bundled model, or what `hs.open` returned. Or a survey: what
            `hs.survey` returned, or the folder of a finished one; then model_b is a survey too.
        model_b: the same; changes are those from a to b.
        corpus: texts, or a corpus on disk as in `hs.survey`; each document is cut at max_length.
        statistics: names of statistics; by default all.
        labels: with a corpus, label the heads of both models, by surveying both. Two surveys bring their labels along.
        effects: with a corpus, the number of windows over which silencing each head is measured in both models. Two
            surveys bring their effects along.
        max_length: cut documents to this many tokens; by default 512, or what the models take.
        field: the field or column of tables that holds the text.

    Raises:
        InputError: the models have different shapes (the message names the difference), or a survey is compared with a
            checkpoint, or the corpus can't be used.
        NotFoundError: a name leads to no checkpoint.
        UnsupportedError: headscope doesn't know the heads of one of them.
    """
    a, b = _opened(model_a, "model_a"), _opened(model_b, "model_b")
    if isinstance(a, Survey) and isinstance(b, Survey):
        if corpus is not None:
            raise InputError(
                "two surveys were made over their corpora already", where="corpus", advice="leave the corpus out"
            )
        if labels or effects:
            raise InputError(
                "two surveys have the labels and effects that they were made with",
                where="labels" if labels else "effects",
                advice="survey both models again with labels and effects",
            )
        from headscope._compare.surveys import survey_changes

        surveys = survey_changes(a, b)
        return Comparison(
            a=str(a.manifest["model"]["name"]),
            b=str(b.manifest["model"]["name"]),
            layers=surveys.layers,
            heads=surveys.heads,
            weights={},
            parts={},
            outside={},
            left_out={},
            statistics=surveys.statistics,
            labels=surveys.labels,
            effects=surveys.effects,
            notes=surveys.notes,
        )
    if isinstance(a, Survey) or isinstance(b, Survey):
        raise InputError(
            "a survey can't be compared with a checkpoint",
            where="hs.compare",
            advice="compare two checkpoints with a corpus, or two surveys",
        )
    check_shapes(a, b)
    for what, wanted in (("statistics", statistics), ("labels", labels), ("effects", effects)):
        if wanted and corpus is None:
            raise InputError(f"{what} need texts", where=what, advice="pass a corpus too")
    for model in (a, b):
        model.checkpoint.fetch()
    weights = weight_changes(a, b)
    changes: dict[str, Change] = {}
    documents, notes = 0, tuple[str, ...]()
    joined: SurveyChanges | None = None
    if corpus is not None:
        corpus = corpus if isinstance(corpus, (str, os.PathLike)) else list(corpus)
        if corpus == "-" and (labels or effects):
            raise InputError(
                "labels and effects read the texts several times, and standard input can be read only once",
                where="corpus",
                advice="name a file or a folder",
            )
        changes, documents, notes = statistics_over(
            a, b, corpus, statistics=statistics, max_length=max_length, field=field
        )
        if labels or effects:
            from headscope._compare.surveys import surveyed

            joined = surveyed(a, b, corpus, labels=labels, effects=effects, max_length=max_length, field=field)
    sizes = a.anatomy.known()
    return Comparison(
        a=a.name,
        b=b.name,
        layers=tuple(range(sizes.layers)),
        heads=tuple(range(sizes.heads)),
        weights=weights.heads,
        parts=weights.parts,
        outside=weights.outside,
        left_out=weights.left_out,
        statistics=changes,
        documents=documents,
        labels=() if joined is None else joined.labels,
        effects=None if joined is None else joined.effects,
        notes=(
            *notes,
            *(() if joined is None else joined.notes),
            *(f"{name} is not compared: {reason}" for name, reason in weights.left_out.items()),
        ),
    )


def _opened(model: Comparable, where: str) -> Model | Survey:
    if isinstance(model, (Model, Survey)):
        return model
    if not isinstance(model, (str, os.PathLike)):
        raise InputError(
            f"{type(model).__name__} can't be compared",
            where=where,
            advice="pass a name, what hs.open returned, or a survey; save a live model with save_pretrained first",
        )
    folder = Path(os.fspath(model))
    if (folder / "manifest.json").is_file() and not (folder / "config.json").is_file():
        return Survey(folder)
    return open_model(model)
