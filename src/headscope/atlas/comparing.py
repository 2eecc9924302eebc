"""`hs.compare(a, b)`: two checkpoints of one shape, with or without a corpus, or two surveys, joined head by head."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from headscope.atlas import is_survey
from headscope.atlas.corpus import open_corpus
from headscope.atlas.documents import Document
from headscope.atlas.result import Survey
from headscope.atlas.survey_settings import MAX_DOCUMENT
from headscope.errors import InputError
from headscope.heads.catalog import CATALOG, chosen
from headscope.heads.comparison import Comparison
from headscope.heads.intervals import Resampled
from headscope.heads.weight_changes import check_shapes, weight_changes
from headscope.heads.windows import LENGTH
from headscope.model import Model, open_model
from headscope.results.head_values import HeadValues, Measure
from headscope.results.table import HeadTable, placed, stacked
from headscope.settings import named

Comparable = str | os.PathLike[str] | Model | Survey | Any

CHANGE = Measure(
    "change", meaning="what heads are ranked by", unit="relative change, or standard deviations", high=None
)
"""The larger of the changes of QK and OV; between surveys, the largest change of a statistic over heads."""

WINDOW = ("document", "window", "ids")
"""Columns of the sample by which two surveys' windows are the same."""

BATCH = 8
"""Documents whose traces are in memory together."""


@named
def compare(
    model_a: Comparable,
    model_b: Comparable,
    corpus: str | os.PathLike[str] | Iterable[str | Mapping[str, Any]] | None = None,
    *,
    statistics: str | Iterable[str] | None = None,
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
        max_length: cut documents to this many tokens; by default 512, or what the models take.
        field: the field or column of tables that holds the text.

    Raises:
        InputError: the models have different shapes (the message names the difference), or a survey is compared with a
            checkpoint, or the corpus can't be used.
        NotFoundError: a name leads to no checkpoint.
        UnsupportedError: headscope doesn't know the heads of one of them.
    """
    a, b = _opened(model_a), _opened(model_b)
    of_texts = {"corpus": corpus, "statistics": statistics, "max_length": max_length}
    given = [name for name, value in of_texts.items() if value is not None]
    if isinstance(a, Survey) and isinstance(b, Survey):
        if given:
            advice = f"leave {' and '.join(given)} out; their statistics, labels and effects are all compared"
            raise InputError("two surveys were made over their corpora already", where=given[0], advice=advice)
        return _of_surveys(a, b)
    if isinstance(a, Survey) or isinstance(b, Survey):
        found = "a survey can't be compared with a checkpoint"
        raise InputError(found, where="hs.compare", advice="compare two checkpoints with a corpus, or two surveys")
    check_shapes(a, b)
    if given and corpus is None:
        found = "statistics need texts" if statistics is not None else "without texts there is nothing to cut"
        raise InputError(found, where=given[0], advice="pass a corpus too")
    for model in (a, b):
        model.checkpoint.fetch()
    weights = weight_changes(a, b)
    rank = np.fmax(weights.heads["qk"].array, weights.heads["ov"].array)
    columns: dict[str, HeadValues] = {"change": HeadValues.of(CHANGE, rank), **weights.heads}
    documents = 0
    notes = tuple(f"{name} is not compared: {reason}" for name, reason in weights.left_out.items())
    if corpus is not None:
        names = chosen(statistics)
        texts, unread = _texts(corpus, field)
        table, more = _over_texts(a, b, texts, names, max_length)
        columns, documents = {**columns, **table}, len(texts)
        notes = (*unread, *more, *notes)
    sizes = a.anatomy.known()
    return Comparison(
        a.name,
        b.name,
        HeadTable(
            columns,
            layers=tuple(range(sizes.layers)),
            heads=(tuple(range(sizes.heads)),) * sizes.layers,
            source=f"{a.name} to {b.name}",
        ),
        weights.parts,
        weights.outside,
        weights.left_out,
        documents=documents,
        notes=notes,
    )


def _texts(
    corpus: str | os.PathLike[str] | Iterable[str | Mapping[str, Any]], field: str
) -> tuple[list[str], tuple[str, ...]]:
    """The documents of a corpus, and a note where some could not be read."""
    read = list(open_corpus(corpus).documents(field, MAX_DOCUMENT))
    texts = [document.text for document in read if isinstance(document, Document)]
    if not texts:
        raise InputError("the corpus has no document that can be read", where="corpus", advice="pass other texts")
    unread = len(read) - len(texts)
    return texts, (f"{unread} documents could not be read",) if unread else ()


def _over_texts(
    a: Model, b: Model, texts: Sequence[str], names: Sequence[str], max_length: int | None
) -> tuple[HeadTable, tuple[str, ...]]:
    """Run both models on the same documents: the paired changes of statistics with their intervals, and notes.

    Raises:
        UnsupportedError: headscope doesn't run this model.
    """
    a.anatomy.computable()
    b.anatomy.computable()
    most = min(limit for one in (a, b) for limit in (one.anatomy.longest_text, one.text_rule.limit) if limit)
    length = min(LENGTH, most) if max_length is None else max_length
    done: dict[str, None] = {}
    tables: tuple[list[HeadTable], list[HeadTable]] = ([], [])
    cut = differing = 0
    waiting = iter(texts)
    while batch := list(islice(waiting, BATCH)):
        traces = [model.trace(batch, max_length=length) for model in (a, b)]
        for first, other in zip(*traces, strict=True):
            cut += len(first) == length
            differing += first.tokens != other.tokens
            for trace, table in zip((first, other), tables, strict=True):
                done |= dict.fromkeys(f"{trace.model}: {note}" for note in trace.notes if " was cut " not in note)
                table.append(trace.statistics(names))
    notes = list(done)
    notes += [f"documents are cut at {length} tokens: {cut} of {len(texts)} reach that length"] if cut else []
    if differing:
        notes.append(f"the tokenizers differ on {differing} of {len(texts)} documents: means are over different tokens")
    if len(texts) < 2:
        notes.append("one document gives no interval")
    first_table, other_table = (stacked(table, "documents") for table in tables)
    return other_table.minus(first_table).over("documents"), tuple(notes)


def _of_surveys(a: Survey, b: Survey) -> Comparison:
    """Two surveys joined by head: every statistic, label and effect that both have.

    Raises:
        InputError: the models have other layers or heads, or the surveys share no statistic.
    """
    joined = b.table().minus(a.table())
    statistics = {name: values for name, values in joined.items() if values.sides and name in CATALOG}
    if not statistics:
        advice = f"the first has {', '.join(a)}; survey the second model with some of them"
        raise InputError("the surveys share no statistic", where="hs.compare(survey_a, survey_b)", advice=advice)
    far = np.stack([np.abs(change.far()) for change in statistics.values()])
    columns = {"change": HeadValues.of(CHANGE, np.fmax.reduce(far, axis=0)), **statistics}
    facts = dict(joined.facts)
    if "label_a" in facts:
        pairs = ((head, label != facts["label_b"][head]) for head, label in facts["label_a"].items())
        facts = {"label_changed": dict(pairs), **facts}
    notes = []
    if a.manifest["corpus"]["files"] != b.manifest["corpus"]["files"] or a.manifest["counts"] != b.manifest["counts"]:
        notes.append("the surveys are of different texts: a difference may come from the texts")
    notes += [f"only one survey has {name}" for name in sorted({*a} ^ {*b})]
    notes += [*_lacking(a, b, "labels", "--labels"), *_lacking(a, b, "writes", "--set writes=500")]
    effects, more = _effects(a, b, joined)
    return Comparison(
        str(a.manifest["model"]["name"]),
        str(b.manifest["model"]["name"]),
        replace(joined, columns=columns, facts=facts),
        parts={},
        outside={},
        left_out={},
        effects=effects,
        notes=(*notes, *more),
    )


def _lacking(a: Survey, b: Survey, what: str, option: str) -> list[str]:
    """A note that a table is not compared, where only one of two surveys has it."""
    having = [survey.has(what) for survey in (a, b)]
    if having[0] == having[1]:
        return []
    return [f"{what} are not compared: the {'first' if having[1] else 'second'} survey has none ({option})"]


def _effects(a: Survey, b: Survey, joined: HeadTable) -> tuple[HeadValues | None, list[str]]:
    """The effects of both surveys, and notes; None unless both measured the same output in the same way."""
    sides = [_effect_values(survey, joined) for survey in (a, b) if survey.has("effects")]
    if len(sides) < 2:
        return None, _lacking(a, b, "effects", "--effects N")
    ((first, method), (other, other_method)) = sides
    output, other_output = first.measure.meaning, other.measure.meaning
    if (output, method) != (other_output, other_method):
        found = f"one is of the {output} ({method}), the other of the {other_output} ({other_method})"
        return None, [f"effects are not compared: {found}"]
    bounds, notes = _paired(a, b, joined)
    return replace(other.minus(first), **bounds), notes


def _effect_values(survey: Survey, joined: HeadTable) -> tuple[HeadValues, str]:
    """A survey's effects with their intervals, and what was done to the heads."""
    rows = survey.effects.to_pylist()
    named = {(row["layer"], row["head"]): row for row in rows}
    change, low, high = (
        placed([named[head][name] for head in joined.positions()], joined.heads) for name in ("change", "low", "high")
    )
    measure = Measure("effect", meaning=rows[0]["output"], unit=rows[0]["unit"], low=None, high=None)
    values = HeadValues.of(measure, change, low=low, high=high, over="documents", interval="bootstrap")
    return values, rows[0]["method"]


def _paired(a: Survey, b: Survey, joined: HeadTable) -> tuple[dict[str, Any], list[str]]:
    """The interval of the change, from what silencing changes in each window of both surveys; empty without one."""
    from headscope.atlas.corpus_effects import changes_in

    first, other = (changes_in(survey) for survey in (a, b))
    if first is None or other is None:
        missing = a if first is None else b
        return {}, [f"changes of effects have no intervals: {missing.folder}/effects is missing"]
    (windows, changes), (others, of_other) = first, other
    if [[row[name] for name in WINDOW] for row in windows] != [[row[name] for name in WINDOW] for row in others]:
        return {}, ["changes of effects have no intervals: the surveys silenced heads in other windows"]
    documents = [row["number"] for row in windows]
    _, *bounds = Resampled(documents).means(of_other - changes)
    low, high = (placed(bound, joined.heads) for bound in bounds)
    notes = ["one document gives no interval of effects"] if len(set(documents)) < 2 else []
    return {"low": low, "high": high, "over": "documents", "interval": "bootstrap"}, notes


def _opened(model: Comparable) -> Model | Survey:
    if isinstance(model, (Model, Survey)):
        return model
    return Survey(model) if isinstance(model, (str, os.PathLike)) and is_survey(model) else open_model(model)
