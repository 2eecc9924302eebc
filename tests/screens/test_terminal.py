"""Tables and sentences as machines and people read them, on paper of any width, in pipes and on terminals."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import Terminal
from headscope.screens.labels import width
from headscope.screens.tables import Column, Table, json_text, shape_text
from headscope.screens.terminal import Paper, Sheet, bar, plain_text, prose, put, put_machine, table, title

WIDE = Table(
    (
        Column("name", kind="code"),
        Column("dtype"),
        Column("count", align="right"),
        Column("part", group=True),
        Column("meaning", kind="prose"),
    ),
    (
        ("encoder.layer.0.attention.self.query.weight", "F32", 1000, "encoder", "asks for what the head looks for"),
        ("encoder.layer.0.attention.self.key.weight", "F32", 234, "encoder", "is what a head is found by"),
        ("pooler.dense.weight", "F32", 17, "pooler", "one dense layer on the first token"),
    ),
    summed="count",
)


def lines(drawing, paper):
    return plain_text([drawing], paper).splitlines()


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 100, 150])
def test_a_table_fits_and_drops_nothing(columns):
    displayed = lines(table(WIDE), Paper(columns))
    assert max(map(width, displayed)) <= columns
    letters = "".join("".join(displayed).split())
    for row in WIDE.rows:
        assert f"{row[2]:,}" in letters
    if columns >= 80:
        for row in WIDE.rows:
            assert any(row[0] in line for line in displayed)


def test_a_pipe_never_breaks_a_name():
    displayed = lines(table(WIDE), Paper(40, folds=False))
    assert any(line.startswith(str(WIDE.rows[0][0])) for line in displayed)


def test_an_empty_table_says_so():
    assert lines(table(Table((Column("a"),), ())), Paper(80)) == ["(none)"]


@given(st.text(max_size=200), st.integers(12, 100))
def test_prose_fits(text, columns):
    assert all(width(line) <= columns for line in lines(prose(text, mark="- "), Paper(columns)))


@pytest.mark.parametrize(
    ("share", "drawn"), [(0, ""), (1, "████"), (0.5, "██"), (0.53125, "██▏"), (-1, ""), (2, "████")]
)
def test_bars(share, drawn):
    assert bar(share, 4, Paper()) == drawn


def test_a_pipe_gets_plain_text(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    stream = io.StringIO()
    put([title("[red]head[/red]", "\x1b[31m")], stream)
    assert stream.getvalue() == "[red]head[/red]   \\x1b[31m\n"


def test_a_terminal_gets_styles_and_never_the_texts_own(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    put([title("[red]x\x1b[2J[/red]:smile:", "y")], stream)
    assert stream.getvalue() == "\x1b[1m[red]x\\x1b[2J[/red]:smile:\x1b[0m\x1b[2m   y\x1b[0m\n"


def test_no_color_leaves_no_colour(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    put([lambda paper: [((f"colour {paper.colour}", "#ff0000 on #00ff00"),)]], stream)
    assert stream.getvalue().strip() == "colour False"


def test_a_dumb_terminal_gets_plain_text(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    put([title("head")], stream)
    assert "\x1b" not in stream.getvalue()


def test_machine_output_is_not_wrapped(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    long = "x" * 500
    sheet = Sheet(lambda: {"name": long}, lambda: Table((Column("name"),), ((long,),)), ())
    for form in ("--json", "--csv", "--markdown"):
        stream = Terminal()
        put_machine(sheet, form, stream)
        assert long in stream.getvalue()
        assert "\x1b" not in stream.getvalue()


SHARES = Table(
    (
        Column("name", "parameter", kind="code"),
        Column("shape"),
        Column("count", "numbers", align="right"),
        Column("share", align="right", form=".1%"),
    ),
    (("a|b", (3, 4), 1200, 0.25), ("c`d", (7,), 7, None), ("e", (), 1, float("nan"))),
)


def test_records_hold_values_as_json_can():
    assert SHARES.records() == [
        {"name": "a|b", "shape": [3, 4], "count": 1200, "share": 0.25},
        {"name": "c`d", "shape": [7], "count": 7, "share": None},
        {"name": "e", "shape": [], "count": 1, "share": None},
    ]


def test_csv_reads_back():
    rows = list(csv.reader(io.StringIO(SHARES.csv())))
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
    lines = SHARES.markdown().splitlines()
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
