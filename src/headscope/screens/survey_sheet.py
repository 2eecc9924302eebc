"""The screen at the end of a survey: the heads that stand out in each statistic, refused documents, and files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.atlas.site_data import extremes
from headscope.atlas.wording import (
    counted,
    effects_sentences,
    labels_sentences,
    rounded,
    syntax_sentences,
    writes_sentences,
)
from headscope.checkpoint import called
from headscope.screens.tables import PLACE, Column, Table
from headscope.screens.terminal import Drawing, Sheet, blank, notes, prose, table, title

if TYPE_CHECKING:
    from pathlib import Path

    from headscope.atlas.pair_heads import PairHeads
    from headscope.atlas.pair_rows import PairRows
    from headscope.atlas.result import Survey

COLUMNS = (
    Column("statistic", kind="code"),
    Column("head"),
    Column("mean", align="right"),
    Column("says", "this head", kind="prose"),
    Column("next", "then"),
)
SHOWN_REFUSED = 3

UNKNOWN = 0.05
"""Share of unknown tokens above which the screen asks whether the corpus is in the model's language."""


def survey_sheet(survey: Survey) -> Sheet:
    """The sheet of a finished survey."""
    manifest = survey.manifest
    rows = []
    for name in survey:
        for extreme in extremes(survey, name):
            layer, head, mean = extreme.heads[0]
            then = ", ".join(f"{layer}.{head} ({rounded(value)})" for layer, head, value in extreme.heads[1:])
            rows.append((name, f"{layer}.{head}", rounded(mean), extreme.says, then))
    counts = manifest["counts"]
    drawings: list[Drawing] = [
        title(
            f"{called(manifest['model']['name'])} over {manifest['corpus']['name']}",
            ", ".join(counted(counts[f"{thing}s"], thing) for thing in ("document", "window", "token")),
        ),
        blank,
        table(Table(COLUMNS, tuple(rows))),
        blank,
        notes(["heads are layer.head, counted from 0; numbers are means over all windows"]),
    ]
    empty = [name for name in survey if not np.isfinite(survey[name].array).any()]
    if empty:
        drawings.append(notes([f"nothing to measure in this corpus: {', '.join(empty)}"]))
    drawings += [notes([f"without {name}: {why}"]) for name, why in manifest["left_out"].items()]
    if (unknown := counts["unknown"]) > UNKNOWN * counts["tokens"]:
        drawings += [
            blank,
            prose(
                f"the tokenizer doesn't know {unknown / counts['tokens']:.0%} of the tokens: is the corpus in the "
                "model's language and script? What follows is mostly about tokens that all look alike."
            ),
        ]
    if counts["refused"]:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in manifest["refused"]["reasons"].items())
        were = "was" if counts["refused"] == 1 else "were"
        drawings += [blank, prose(f"{counted(counts['refused'], 'document')} {were} refused: {reasons}")]
        refused = manifest["refused"]["documents"][:SHOWN_REFUSED]
        drawings += _listed(f"{document['document']}: {document['detail']}" for document in refused)
        if counts["refused"] > SHOWN_REFUSED:
            drawings.append(notes(["the others are in manifest.json"]))
    if survey.has("syntax"):
        drawings += [blank, *_listed(syntax_sentences(survey.syntax))]
    if survey.has("labels"):
        drawings += [
            blank,
            prose("labels, with the share of a head's strongest pairs that each explains:"),
            *_listed(labels_sentences(survey.labels)),
        ]
    if survey.has("effects"):
        drawings += [blank, *_listed(effects_sentences(survey.effects, survey.removal))]
    if survey.has("writes"):
        drawings += [blank, *_listed(writes_sentences(survey.writes))]
    drawings += [blank, *(prose(f"{what}: {survey.folder / name}") for what, name in _files(survey.folder))]
    return Sheet(record=lambda: survey.aggregates, table=lambda: Table(COLUMNS, tuple(rows)), drawings=tuple(drawings))


def _listed(sentences: Iterable[str]) -> list[Drawing]:
    return [prose(sentence, mark="- ") for sentence in sentences]


def _files(folder: Path) -> list[tuple[str, str]]:
    """The kind and the name of each of these files that the folder has."""
    files = [("site", "site/index.html"), ("rows", "parts"), ("aggregates", "aggregates.json")]
    files += [(name, f"{name}.parquet") for name in ("syntax", "labels", "examples", "effects", "removal", "writes")]
    return [(what, name) for what, name in files if (folder / name).exists()]


PAIR_COLUMNS = (
    *PLACE,
    Column("precision", align="right", form=".3f"),
    Column("precision_low", "95 %", align="right", form=".3f"),
    Column("precision_high", "to", align="right", form=".3f"),
)
TOP_HEADS = 10
NEAREST = ("the nearest word", "nearest")


def pairs_sheet(found: PairHeads, top: int | None = None) -> Sheet:
    """The heads that see marked pairs, and how well on documents that had no say in the choice.

    Args:
        found: by headscope.atlas.pair_heads.
        top: most heads on the screen; None for TOP_HEADS.
    """
    rows = [tuple(row.values()) for row in found.table.rows(by="precision")]
    names = ", ".join(f"{layer}.{head}" for layer, head in found.heads)
    distance = f"{found.distance:+d}" if found.directed else f"{found.distance}"
    rules = (
        (f"the scores of {names}", found.precision, *found.intervals["precision"]),
        ("the best single head", found.single, *found.intervals["single"]),
        (f"the distance {distance}", found.offset, *found.intervals["offset"]),
        ("by chance", found.chance, None, None),
    )
    drawings = (
        title(f"{counted(found.pairs, 'marked pair')} in {counted(found.documents, 'document')}", ""),
        prose(
            f"{'Heads' if len(found.heads) > 1 else 'Head'} {names}: {found.precision:.0%} of their strongest "
            f"pairs are marked, in documents that had no say in the choice. By chance {found.chance:.0%} would be.",
            "bold",
        ),
        blank,
        table(Table((Column("rule", "predicted by"), *PAIR_COLUMNS[2:]), rules)),
    )
    return _with_heads(drawings, found, PAIR_COLUMNS, rows, top, "pairs")


def pair_rows_sheet(found: PairRows, top: int | None = None) -> Sheet:
    """The heads that look most at a marked word's partner, in both directions, beside simple rules.

    Args:
        found: by headscope.atlas.pair_rows.
        top: most heads on the screen; None for TOP_HEADS.
    """
    bounds = (("", ""), ("_low", "95 %"), ("_high", "to"))
    shares = [Column(f"{name}{end}", title, "right", ".3f") for name in found.directions for end, title in bounds]
    columns = (*PLACE, *shares)
    rows = [tuple(row.values()) for row in found.table.rows(by=next(iter(found.directions)))]
    rules: list[tuple[Any, ...]] = []
    sentences = []
    for name, probe in found.directions.items():
        head = "{}.{}".format(*probe.head)
        for rule, field in ((f"head {head}", "accuracy"), (f"offset {probe.distance:+d}", "offset"), NEAREST):
            rules.append((name, rule, getattr(probe, field), *probe.intervals[field]))
        rules.append((name, "by chance", probe.chance, None, None))
        sentences.append(
            f"{name}: from {counted(probe.queries, 'word')}, head {head} looks most at the partner in "
            f"{probe.accuracy:.0%}, in documents that had no say in the choice."
        )
    of_rules = (Column("direction"), Column("rule", "predicted by"), Column("accuracy", "", "right", ".3f"))
    drawings = (
        title(f"marked pairs in {counted(found.documents, 'document')}", "forward: the first word looks"),
        prose(" ".join(sentences), "bold"),
        blank,
        table(Table((*of_rules, *PAIR_COLUMNS[3:]), tuple(rules))),
    )
    return _with_heads(drawings, found, columns, rows, top, "pairs-row")


def _with_heads(
    drawings: tuple[Drawing, ...],
    found: PairHeads | PairRows,
    columns: tuple[Column, ...],
    rows: Sequence[tuple[Any, ...]],
    top: int | None,
    schema: str,
) -> Sheet:
    """The sheet of what was found: these drawings, then each head alone; its record has this schema."""
    left_out = [f"{counted(found.left_out, 'pair')} left out: a word without a token"] if found.left_out else []
    alone = table(Table(columns, tuple(rows[: TOP_HEADS if top is None else top])))
    said = notes(["each head alone, on the documents that heads were chosen on", *left_out])
    return Sheet(
        record=found.json,
        schema=schema,
        table=lambda: Table(columns, tuple(rows)),
        drawings=(*drawings, blank, alone, said),
        look_at=found.heads[0],
    )
