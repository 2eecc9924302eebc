"""The rows of a survey's tables: columns, tables of the guide and types of the site come from one declaration."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest

from finished_survey import finished
from golden.keeping import page_data
from headscope.atlas.labels.search import Clause
from headscope.atlas.site import write_site
from headscope.atlas.site_data import spelled
from headscope.results.schemas import (
    DistributionRow,
    EffectRow,
    Example,
    LabelRow,
    LineRow,
    RelationRow,
    RemovalRow,
    SampleRow,
    SyntaxRow,
    WriteRow,
    column_types,
    columns,
)
from json_schemas import meanings

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "reference" / "survey-files.md"
TYPES = ROOT / "web" / "src" / "report"

TABLES: dict[type, str] = {
    SampleRow: "sample",
    SyntaxRow: "syntax",
    RelationRow: "relations",
    LabelRow: "labels",
    Example: "examples",
    LineRow: "lines",
    DistributionRow: "distributions",
    EffectRow: "effects",
    RemovalRow: "removal",
    WriteRow: "writes",
}
"""Row -> its table, in the order of the guide."""

SITE: dict[type, tuple[str, ...]] = {
    LabelRow: ("layer", "head", "note", "reason", "reason_count", *Clause._fields, "such", "looks"),
    SyntaxRow: ("layer", "head", "direction", "accuracy_held_out"),
    RelationRow: ("layer", "head"),
    WriteRow: ("layer", "head", "gains", "sure"),
    RemovalRow: ("layer", "head", "step", "windows", "windows_held_out"),
}
"""Row, whose name a type of the site has -> the columns that it lacks or has in another form."""


def guide_table(row: type) -> str:
    """A row's columns as a table of docs/reference/survey-files.md."""
    means = meanings(row)
    cells = [
        (f"`{name}`", f"{kind}{' or null' * optional} | {means[name].removesuffix('.')}")
        for name, (kind, optional, _) in column_types(row).items()
    ]
    alike = [(said, [name for name, _ in group]) for said, group in groupby(cells, key=itemgetter(1))]
    lines = [f"| {', '.join(names)} | {said} |" for said, names in alike]
    return "\n".join([f"| column of `{TABLES[row]}.parquet` | type | |", "|---|---|---|", *lines])


def typescript() -> str:
    """web/src/report/rows.ts."""
    title = "// Rows of the survey's tables as the site has them, written from src/headscope/results/schemas.py by\n"
    return title + "// `pytest tests/atlas/test_schemas.py --refresh-screens`.\n" + "".join(map(_interface, SITE))


def _interface(row: type) -> str:
    means = meanings(row)
    lines = ["", f"/** {inspect.cleandoc(row.__doc__ or '').splitlines()[0]} */", f"export interface {row.__name__} {{"]
    for column, (kind, optional, choices) in column_types(row).items():
        if column in SITE[row]:
            continue
        spelt = {"string": "string", "bool": "boolean"}.get(kind.removesuffix("[]"), "number")
        spelt = " | ".join(f'"{choice}"' for choice in choices) or spelt
        spelt += "[]" * kind.endswith("[]") + " | null" * optional
        lines += [f"  /** {means[column][0].upper()}{means[column][1:]} */", f"  {spelled(column)}: {spelt};"]
    return "\n".join([*lines, "}", ""])


def test_every_column_has_its_meaning() -> None:
    for row in TABLES:
        assert list(meanings(row)) == [field.name for field in fields(row)], row


def test_annotations_and_columns() -> None:
    """Spelled out by hand for one row: types, what may be null, and where a meaning takes two lines."""
    assert [f"{name} {kind}" for name, kind in columns(Example)][3:6] == [
        "rank int32",
        "weight float",
        "document string",
    ]
    table = guide_table(Example)
    assert "| `weight` | float32 | from the word to the other, 0 to 1 |" in table
    assert "| `up` | string or null | the relation of the word that looks, where the other is its head; of a" in table


def test_the_guide_shows_them(request: pytest.FixtureRequest) -> None:
    """`pytest --refresh-screens` writes the tables of docs/reference/survey-files.md."""
    for row in TABLES:
        text = GUIDE.read_text(encoding="utf-8")
        (kept,) = re.findall(rf"(\| column of `{TABLES[row]}\.parquet` \|.*?)\n\n", text, re.DOTALL)
        if request.config.getoption("--refresh-screens"):
            GUIDE.write_text(text.replace(kept, guide_table(row)), encoding="utf-8")
        else:
            assert kept == guide_table(row)


def test_the_types_of_the_site_are_current(request: pytest.FixtureRequest) -> None:
    path = TYPES / "rows.ts"
    if request.config.getoption("--refresh-screens"):
        path.write_text(typescript(), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == typescript()


def interface(name: str) -> set[str]:
    """The fields of a type of the site, inherited ones too."""
    text = "".join((TYPES / file).read_text(encoding="utf-8") for file in ("rows.ts", "data.ts"))
    (found,) = re.findall(
        rf"^(?:export )?interface {name} (?:extends (\w+) )?\{{\n(.*?)^\}}", text, re.MULTILINE | re.DOTALL
    )
    return set(re.findall(r"^  (\w+): ", found[1], re.MULTILINE)) | (interface(found[0]) if found[0] else set())


def test_the_site_has_the_fields_of_its_types(known_survey: Path, tmp_path: Path) -> None:
    survey = page_data(known_survey / "site" / "index.html")["hs-survey"]
    (head,) = page_data(known_survey / "site" / "head-0-0.html")["hs-heads"]
    plain = page_data(write_site(finished(tmp_path)))["hs-survey"]
    assert (plain["labels"], plain["syntax"], plain["effects"]) == (None,) * 3
    passed = {
        "Survey": plain,
        "Statistic": plain["statistics"][0],
        "Standing": plain["standing"][0],
        "LayerFigure": plain["figures"][0],
        "Plane": plain["plane"],
        "Label": next(label for label in survey["labels"] if label is not None),
        "Syntax": survey["syntax"][0],
        "Relation": head["relations"][0],
        "Line": head["lines"][0],
    }
    assert {name: set(value) for name, value in passed.items()} == {name: interface(name) for name in passed}
