"""Data of a survey's site: what stands out, labels, examples, distributions and syntax, as JSON.

Everything is read from the survey's tables. Heads are numbered by their cells of the grid: row * columns + column.
The types `Label`, `Line`, … of web/src/report/data.ts have the same names. Untrusted text is made printable.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.atlas.labels.names import CLASSES, ends_of, reservations, sentence, shortest
from headscope.atlas.labels.search import Clause
from headscope.atlas.wording import NAMED
from headscope.heads import CATALOG
from headscope.pages import all_printable, printable
from headscope.results.head_values import LANGUAGES

if TYPE_CHECKING:
    from headscope.atlas.result import Survey

LABEL_NUMBERS = (
    "score", "low", "high", "baseline", "bits", "offset_bits", "accuracy", "accuracy_chance",
    "looks_share", "looks_chance", "special", "first", "sep", "stop", "inner", "entropy",
)  # fmt: skip

RELATIONS = 12
"""Relations that a head's page lists: those with the largest gain over the best fixed offset."""


@cache
def spelled(name: str) -> str:
    """A column's name as TypeScript spells it."""
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


class Tables:
    """The survey's tables, each read once; None for those that it lacks."""

    def __init__(self, survey: Survey) -> None:
        self.survey, self.width = survey, len(survey.across)
        self.cells = {head: row * self.width + column for head, (row, column) in survey.positions().items()}
        self._tables: dict[str, list[dict[str, Any]] | None] = {}

    def rows(self, name: str) -> list[dict[str, Any]] | None:
        """A table's rows."""
        if name not in self._tables:
            has = self.survey.has(name)
            self._tables[name] = self.survey.read(name).to_pylist() if has else None
        return self._tables[name]

    def cell(self, row: dict[str, Any]) -> int:
        """The cell of a row's head."""
        return self.cells[row["layer"], row["head"]]

    def by_cell(self, name: str) -> list[list[dict[str, Any]]] | None:
        """A table's rows for each cell."""
        rows = self.rows(name)
        if rows is None:
            return None
        lists: list[list[dict[str, Any]]] = [[] for _ in range(self.width * len(self.survey.layers))]
        for row in rows:
            lists[self.cell(row)].append(row)
        return lists

    @cached_property
    def distances(self) -> list[list[float | None]] | None:
        """By cell: the mean weight on the word at each distance."""
        rows = self.by_cell("distributions")
        return None if rows is None else [[_shown(row["value"]) for row in of] for of in rows]


@dataclass(frozen=True)
class Extreme:
    """The heads at one end of a statistic's range.

    Attributes:
        says: a predicate for the first of them.
        heads: (layer, head, mean), the most extreme first.
        low, high: the 25% and 75% quantiles of the first head over windows.
        middle: the median of the heads' means.
    """

    says: str
    heads: tuple[tuple[int, int, float], ...]
    low: float
    high: float
    middle: float


def extremes(survey: Survey, statistic: str) -> list[Extreme]:
    """The heads that stand out in a statistic, at each end that means something. Empty for a single head."""
    means = survey.measure(statistic, "mean").array
    places = np.argwhere(np.isfinite(means))
    if len(places) < 2:
        return []
    values = means[tuple(places.T)]
    sentences = []
    for says, sign in ((CATALOG[statistic].most, -1.0), (CATALOG[statistic].least, 1.0)):
        if not says:
            continue
        order = np.argsort(sign * values, kind="stable")[:NAMED]
        if CATALOG[statistic].signed:  # "ahead" is said of heads that look ahead
            order = order[sign * values[order] < 0]
            if not len(order):
                continue
        first = tuple(places[order[0]])
        heads = tuple(
            (survey.layers[int(places[at][0])], survey.across[int(places[at][1])], float(values[at])) for at in order
        )
        low, high = (float(survey.measure(statistic, field)[first]) for field in ("q25", "q75"))
        sentences.append(Extreme(says[0], heads, low, high, float(np.median(values))))
    return sentences


def labels_data(tables: Tables) -> list[dict[str, Any] | None] | None:
    """By cell: the head's label with its evidence."""
    rows = tables.by_cell("labels")
    return None if rows is None else [label_data(of[0]) if of else None for of in rows]


def label_data(row: dict[str, Any]) -> dict[str, Any]:
    """A head's label, its sentence made anew from its clauses."""
    said = [Clause(*parts) for parts in zip(*(row[name] for name in Clause._fields), strict=True)]
    such = all_printable(row["such"])
    reasons = dict(zip(row["reason"], row["reason_count"], strict=True))
    return {
        **_told(row, "count", "coverage", "stable", *LABEL_NUMBERS, "kind", "label", "part"),
        "says": sentence(said, such, part=row["part"], looks=row["looks"]),
        "short": shortest(said, such),
        "looks": dict(zip(LANGUAGES, CLASSES[row["looks"]][1:], strict=True)) if row["looks"] else None,
        "clauses": len(said),
        **_told(row, "alone", "alone_chance"),
        "note": reservations(reasons) if reasons else None,
    }


def syntax_data(tables: Tables) -> list[dict[str, Any]] | None:
    """For each relation the head that finds it, the largest gain over the best fixed offset first."""
    rows = tables.rows("syntax")
    if rows is None:
        return None
    rows = sorted(
        rows,
        key=lambda row: (
            row["offset_accuracy"]
            - (row["accuracy"] if row["accuracy_held_out"] is None else row["accuracy_held_out"]),
            row["relation"],
            row["direction"],
        ),
    )
    return [
        {
            **_told(row, "relation"),
            "ends": ends_of(printable(row["relation"])),
            "down": row["direction"] != "dependent->head",
            "cell": tables.cell(row),
            "accuracy": _shown(row["accuracy"]),
            "heldOut": _shown(row["accuracy_held_out"]),
            **_told(row, "low", "high", "count", "offset", "offset_accuracy"),
        }
        for row in rows
    ]


def special_data(tables: Tables) -> dict[str, str | None]:
    """The names of the first token and of [SEP], where a window has them; BERT's without lines."""
    rows = tables.rows("lines")
    if not rows:
        return {"first": "[CLS]", "sep": "[SEP]"}
    names = {of: next((row[f"{of}_token"] for row in rows if row[f"{of}_token"]), None) for of in ("first", "sep")}
    return _told(names, *names)


def middle_data(tables: Tables) -> list[float | None] | None:
    """The median over heads of the mean weight at each distance."""
    if tables.distances is None:
        return None
    distances = zip(*filter(None, tables.distances), strict=True)
    kept = [[value for value in values if value is not None] for values in distances]
    return [_shown(float(np.median(values))) if values else None for values in kept]


def effects_data(tables: Tables) -> dict[str, Any] | None:
    """Effects of silencing each head, and the heads in the order in which they can be removed."""
    rows, removal = tables.by_cell("effects"), tables.rows("removal")
    if rows is None or not any(rows):
        return None
    first = next(of[0] for of in rows if of)
    return {
        **_told(first, "output", "unit", "method", "windows", "documents", "base"),
        **{name: [_shown(of[0][name]) if of else None for of in rows] for name in ("change", "low", "high")},
        "removal": [
            {"cell": tables.cell(row), **_told(row, "cost", "cost_held_out", "low", "high")} for row in removal or []
        ],
    }


def heads_data(tables: Tables) -> list[dict[str, Any]]:
    """By cell: what a head's page alone shows."""
    lines, examples = tables.by_cell("lines"), tables.by_cell("examples")
    model = str(tables.survey.manifest["model"]["name"])
    relations, written = _relations(tables), tables.by_cell("writes")
    return [
        {
            "cell": cell,
            "distances": None if tables.distances is None else tables.distances[cell],
            "lines": None
            if lines is None or examples is None
            else [_line(model, *pair) for pair in zip(examples[cell], lines[cell], strict=True)],
            "relations": None if relations is None else relations[cell],
            "writes": None if written is None or not written[cell] else _written(written[cell][0]),
        }
        for cell in range(tables.width * len(tables.survey.layers))
    ]


def _written(row: dict[str, Any]) -> dict[str, Any]:
    """The tokens that a head writes, none unless it surely does, and what they gain."""
    return {
        "tokens": all_printable(row["tokens"]) if row["sure"] else [],
        **_told(row, "bits", "low", "high", "masked", "windows", "documents", "over"),
    }


def _line(model: str, example: dict[str, Any], line: dict[str, Any]) -> dict[str, Any]:
    numbers: list[int] = line["numbers"]
    gaps = [at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1]
    return {
        "best": example["kind"] == "best",
        "other": example["kind"] == "other",
        **_told(example, "weight"),
        **_told(line, "first", "sep"),
        "query": numbers.index(example["query"]),
        "key": numbers.index(example["key"]),
        **_told(line, "words"),
        "ink": [round(1000 * max(weight, 0)) for weight in line["weights"]],
        "gap": [gaps[0], numbers[gaps[0]] - numbers[gaps[0] - 1] - 1] if gaps else None,
        **_told(example, "document", "window", "up", "down"),
        "command": command_of(model, line),
    }


def command_of(model: str, line: dict[str, Any]) -> str:
    """A command that opens the page on the line's window, with its pair pinned."""
    state = "&".join(f"{name}={line[of]}" for name, of in (("l", "layer"), ("h", "head")))
    state += f"&q={line['query_token']}&k={line['key_token']}"
    text = line["text"]
    if text is None or text.startswith("-") or printable(text) != text:
        words = ["view", model, " ".join(map(str, line["ids"])), "--set", "ids=true"]
    else:
        words = ["view", model, text]
    return printable(" ".join(["headscope", *map(shlex.quote, words), "--open", shlex.quote(state)]))


def _relations(tables: Tables) -> list[list[dict[str, Any]]] | None:
    """By cell: the relations that the head finds best, against the fixed offset, and who finds each of them best."""
    rows = tables.rows("relations")
    if rows is None:
        return None
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["relation"], row["way"])
        if key not in best or row["score"] > best[key]["score"]:
            best[key] = row
    lists = tables.by_cell("relations") or []
    for of in lists:
        of.sort(key=lambda row: (row["baseline"] - row["score"], row["relation"], row["way"]))
    return [
        [
            {
                **_told(row, "way", "count", "offset", "relation"),
                "ends": ends_of(printable(row["relation"])),
                **_told(row, "score", "low", "high", "baseline"),
                "bestCell": tables.cell(best[row["relation"], row["way"]]),
                "bestScore": _shown(best[row["relation"], row["way"]]["score"]),
            }
            for row in of[:RELATIONS]
        ]
        for of in lists
    ]


def _told(row: dict[str, Any], *names: str) -> dict[str, Any]:
    """Some columns of a row, under their names in TypeScript."""
    return {spelled(name): _shown(row[name]) for name in names}


def _shown(value: Any) -> Any:
    """A cell for the site: text made printable, and of a number with decimals six digits, more than the site shows."""
    if isinstance(value, list):
        return [_shown(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return printable(value) if isinstance(value, str) else value
