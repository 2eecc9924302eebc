"""Tables as machines and people read them."""

from __future__ import annotations

import csv
import io
import json

import pytest

from headscope.screens.tables import Column, Table, json_text, shape_text

COLUMNS = (
    Column("name", "parameter", kind="code"),
    Column("shape"),
    Column("count", "numbers", align="right"),
    Column("share", align="right", form=".1%"),
)
TABLE = Table(COLUMNS, (("a|b", (3, 4), 1200, 0.25), ("c`d", (7,), 7, None), ("e", (), 1, float("nan"))))


def test_records_hold_values_as_json_can():
    assert TABLE.records() == [
        {"name": "a|b", "shape": [3, 4], "count": 1200, "share": 0.25},
        {"name": "c`d", "shape": [7], "count": 7, "share": None},
        {"name": "e", "shape": [], "count": 1, "share": None},
    ]


def test_csv_reads_back():
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows == [
        ["name", "shape", "count", "share"],
        ["a|b", "3x4", "1200", "0.25"],
        ["c`d", "7", "7", ""],
        ["e", "", "1", "nan"],
    ]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ('a,"b"', 'a,"b"'),
        ("line\nbreak", "line\\nbreak"),
        ("=1+1", "'=1+1"),
        ("שלום", "שלום"),
        ("\x1b[31m", "\\x1b[31m"),
    ],
)
def test_csv_keeps_any_text_that_nothing_acts_on(text, cell):
    rows = list(csv.reader(io.StringIO(Table((Column("token"),), ((text,),)).csv(), newline="")))
    assert rows[1] == [cell]


def test_markdown_is_for_people_and_keeps_its_columns():
    lines = TABLE.markdown().splitlines()
    assert lines[0] == "| parameter | shape | numbers | share |"
    assert lines[1] == "|---|---|---:|---:|"
    assert lines[2] == "| `a\\|b` | (3, 4) | 1,200 | 25.0% |"
    assert lines[3] == "| ``c`d`` | (7,) | 7 |  |"


@pytest.mark.parametrize(
    ("text", "cell"), [("<s>", "\\<s>"), ("*x*", "\\*x\\*"), ("a\x1b[2J", "a\\\\x1b\\[2J"), ("[red]", "\\[red\\]")]
)
def test_markdown_disarms_signs(text, cell):
    assert Table((Column("token"),), ((text,),)).markdown().splitlines()[2] == f"| {cell} |"


@pytest.mark.parametrize(("shape", "text"), [((), "()"), ((5,), "(5,)"), ((2, 3), "(2, 3)")])
def test_shapes_are_written_as_numpy_does(shape, text):
    assert shape_text(shape) == text == str(shape)


def test_json_is_ascii_and_strict():
    record = {"tokens": ["猫", "\x9b31m", "\u202e"], "worst": float("inf"), "weights": [[0.5, 0.25], [1.0, 0.0]]}
    text = json_text(record)
    assert text.isascii()
    assert json.loads(text) == {**record, "worst": None}
    assert "    [0.5, 0.25],\n" in text


def test_json_nests():
    record = {"a": {"b": {"c": [{"d": [1, [2]]}]}}, "e": [], "f": {}}
    assert json.loads(json_text(record)) == record


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="1 values under 2 columns"):
        Table((Column("a"), Column("b")), ((1,),))
