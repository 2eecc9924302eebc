"""A survey's numbers as text: rounding, counts, and sentences about its tables."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from headscope.atlas.labels.names import NONE

if TYPE_CHECKING:
    import pyarrow

NAMED = 3
"""Heads that a sentence names."""

KINDS = {
    "position": "word order",
    "nearest": "nearest of a kind",
    "same": "same word elsewhere",
    "syntax": "syntax",
    "meaning": "related meaning",
    "pair": "pairs of marks or words",
    "punctuation": "punctuation",
    "class": "a class of words",
    "learned": "words such as …",
}
"""Kind of a label -> its name."""


def rounded(value: float) -> str:
    """A number as the report rounds it: three decimals below 10, fewer above; a dash for NaN."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    return f"{value:.{3 if size < 10 else 2 if size < 100 else 1 if size < 1000 else 0}f}"


def counted(number: int, thing: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def syntax_sentences(table: pyarrow.Table) -> list[str]:
    """A sentence for each of the relations with the largest held-out margin above the best fixed offset."""
    rows = [row for row in table.to_pylist() if row["accuracy_held_out"] is not None]
    if not rows:
        return ["syntax: no accuracy can be held out; that takes relations in two documents or more"]
    rows.sort(key=lambda row: (row["offset_accuracy"] - row["accuracy_held_out"], row["relation"], row["direction"]))
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        best.setdefault(row["relation"], row)
    return [_syntax_sentence(row) for row in list(best.values())[:NAMED]]


def _syntax_sentence(row: dict[str, Any]) -> str:
    interval = "" if row["low"] is None else f" (95% interval {row['low']:.0%} to {row['high']:.0%})"
    share = f"{row['accuracy_held_out']:.0%}"
    act = (
        f"a dependent's strongest word is its head in {share} of cases"
        if row["direction"] == "dependent->head"
        else f"the word that looks at a dependent most is its head in {share} of cases"
    )
    return (
        f"{row['relation']}: in head {row['layer']}.{row['head']}, {act}{interval}, held out; "
        f"the best fixed offset, {row['offset']:+d}, gives {row['offset_accuracy']:.0%}"
    )


def labels_sentences(labels: pyarrow.Table) -> list[str]:
    """The heads whose label explains most, by kind, and why heads have none."""
    rows = labels.to_pylist()
    sentences = []
    for kind, name in KINDS.items():
        some = sorted((row for row in rows if row["kind"] == kind), key=lambda row: -row["score"])
        said = [f"{row['layer']}.{row['head']} “{row['label']}” {row['score']:.0%}" for row in some[:NAMED]]
        more = [f"and {len(some) - NAMED} more"] if some[NAMED:] else []
        if some:
            sentences.append(f"{name}: {', '.join([*said, *more])}")
    lacking = [row for row in rows if row["label"] == NONE]
    reasons = Counter(row["note"] for row in lacking)
    sentences += [f"{counted(count, 'head')} without a label: {note}" for note, count in reasons.items()]
    if any("documents" in row["reason"] for row in lacking):
        sentences.append("a book or another long text has labels in pieces: --set pieces=20")
    return sentences


def effects_sentences(effects: pyarrow.Table, removal: pyarrow.Table) -> list[str]:
    """The head that is felt most, and what it costs to remove the quarter and the half of the heads that cost least."""
    rows = effects.to_pylist()
    first = max(rows, key=lambda row: abs(row["change"]))
    output, unit = first["output"], first["unit"]
    moved = f"is {rounded(first['change'])}{_bounds(first)}"
    if unit != "1 - cosine":
        way, amount = "rises" if first["change"] > 0 else "falls", rounded(abs(first["change"]))
        moved = f"{way} by {amount} {_plain_unit(unit)}{_bounds(first)}, from {first['base']:.3f}"
    sentences = [f"head {first['layer']}.{first['head']} is felt most: without it the {output} {moved}"]
    for part in (4, 2):
        step = len(rows) // part
        if not step:
            continue
        row = removal.slice(step - 1, 1).to_pylist()[0]
        held_out = row["cost_held_out"] is not None
        price = row["cost_held_out"] if held_out else row["cost"]
        sentences.append(
            f"{step} of {len(rows)} heads can be removed at a cost of {rounded(price)} {_plain_unit(unit)}"
            f"{_bounds(row)}{', held out' if held_out else ', where they were chosen'}"
        )
    return sentences


def writes_sentences(writes: pyarrow.Table) -> list[str]:
    """The heads that surely write their tokens, those that gain most first."""
    rows = writes.to_pylist()
    sure = sorted((row for row in rows if row["sure"]), key=lambda row: (-row["bits"], row["layer"], row["head"]))
    if not sure:
        windows = counted(rows[0]["windows"] if rows else 0, "window")
        return [f"no head's tokens predict masked ones better than their frequency does, over {windows} held out"]
    named = [
        f"head {row['layer']}.{row['head']} raises {' '.join(row['tokens'][:5])}{' …' if row['tokens'][5:] else ''}: "
        f"+{rounded(row['bits'])} bits per masked token{_bounds(row)}, held out"
        for row in sure[:NAMED]
    ]
    return named if len(sure) <= NAMED else [*named, f"{len(sure)} of {len(rows)} heads write such tokens"]


def _plain_unit(unit: str) -> str:
    return {"logit": "in the logit", "1 - cosine": "(1 - cosine)"}.get(unit, unit)


def _bounds(row: dict[str, Any]) -> str:
    return "" if row["low"] is None else f" (95% interval {rounded(row['low'])} to {rounded(row['high'])})"
