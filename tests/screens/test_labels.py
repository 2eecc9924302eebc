"""Text in a terminal: escaped, measured, clipped; tokens as words; tables and sentences on paper of any width."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import Terminal
from headscope.errors import InputError
from headscope.results.tokens import TokenAxis
from headscope.screens.labels import clip, clusters, encodable, fold, hold_direction, pad, printable, width, wrap
from headscope.screens.matrix import SHADES, colour_of, inked, matrix, shade_of, strongest, style_of
from headscope.screens.pieces import find_token, labels
from headscope.screens.tables import Column, Table, json_text, shape_text
from headscope.screens.terminal import Paper, Sheet, bar, plain_text, prose, put, put_machine, table, title

FAMILY = "👨‍👩‍👧"


KEPT = ("cat", "[red]", "e\u0301", "\u0645\u06cc\u200c\u062e", FAMILY, "שלום")
ESCAPED = (
    *("\x1b[31m", "\x9b31m", "a\nb\tc\r", "\u202eevil", "\u2066x\u2069"),
    *("\u200b", "\u00a0", "\ud800", "\U000e0041", "\u200d", "\u200dx"),
)


def test_printable():
    """What acts on a terminal is escaped as Python escapes it."""
    assert [printable(text) for text in KEPT] == list(KEPT)
    assert [printable(text) for text in ESCAPED] == [text.encode("unicode_escape").decode() for text in ESCAPED]
    assert [printable(text) for text in ("\0", "\u0301")] == ["\\0", "\u25cc\u0301"]


@given(st.text())
def test_nothing_printable_acts_on_a_terminal(text):
    displayed = printable(text)
    for character in displayed.replace("\u200c", "").replace("\u200d", ""):
        assert unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    displayed.encode()


def test_columns_and_clusters_are_those_of_a_reader():
    texts = {"cat": 3, "猫": 2, "e\u0301": 1, "🙂": 2, "שלום": 4, "": 0, hold_direction("שלום"): 4}
    assert {text: width(text) for text in texts} == texts
    assert list(clusters(f"ae\u0301{FAMILY}🇫🇷🇩🇪👍🏽b")) == ["a", "e\u0301", FAMILY, "🇫🇷", "🇩🇪", "👍🏽", "b"]


@given(st.text(max_size=30).map(printable), st.integers(1, 20))
def test_clip_and_pad_fill_their_columns(text, size):
    clipped = clip(text, size)
    assert width(clipped) <= size
    assert clipped == text or clipped.endswith("…")
    for align in ("left", "right"):
        assert width(pad(clipped, size, align)) == size


@given(st.text(max_size=60).map(printable), st.integers(2, 20))
def test_fold_loses_nothing(text, size):
    lines = fold(text, size)
    assert "".join(lines) == text
    assert all(width(line) <= size or len(list(clusters(line))) == 1 for line in lines)


@given(st.text(max_size=80).map(printable), st.integers(2, 30))
def test_wrap_loses_no_word(text, size):
    lines = wrap(text, size)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(width(line) <= size or len(list(clusters(line))) == 1 for line in lines)


def test_right_to_left_text_is_held_in_its_cell():
    assert hold_direction("שלום") == "\u200eשלום\u200e"
    assert hold_direction("cat é 猫") == "cat é 猫"


def test_what_a_stream_can_not_encode_is_escaped():
    assert encodable("猫…", "ascii") == "\\u732b\\u2026"
    assert encodable("é", "latin-1") == "é"
    assert encodable("é", None) == "\\xe9"


def axis(*rows):
    """(token, word or None for special, span) each."""
    tokens, words, spans = zip(*rows, strict=True)
    zeros = (0,) * len(rows)
    return TokenAxis(tokens, zeros, zeros, tuple(word is None for word in words), words, spans)


FIRST, LAST = ("<s>", None, None), ("</s>", None, None)
BYTES = [("Hi", 0, (0, 2)), ("Ġthere", 1, (3, 8)), ("ä½ł", 2, (9, 10)), ("åħ", 2, (10, 11)), ("»", 2, (10, 11))]
READ: dict[str, tuple[list[Any], tuple[str, ...], tuple[str, ...]]] = {
    "word pieces": ([("em", 0, (0, 2)), ("##bed", 0, (2, 5))], ("embed",), ("em", "·bed")),
    "bytes": (BYTES, ("Hi there 你养",), ("Hi", "there", "你", "·\\xe5\\x85", "·\\xbb")),
    "sentence pieces": ([("▁Hi", 0, (0, 2)), ("you", 0, (2, 5))], ("Hiyou",), ("Hi", "·you")),
    "two texts": ([("Ġa", 0, (0, 1)), LAST, FIRST, ("ä½ł", 1, (0, 1))], ("a", "你"), ("a", "</s>", "<s>", "你")),
    "hostile": ([("\x1b[31m", 0, None), ("\u202e", 1, None)], (), ("\\x1b[31m", "\\u202e")),
}
"""Tokens between special ones, with their texts, and the labels that they get."""


@pytest.mark.parametrize("kind", READ)
def test_tokens_are_read_back(kind):
    rows, texts, expected = READ[kind]
    assert labels(axis(FIRST, *rows, LAST), *texts) == ("<s>", *expected, "</s>")


def test_letters_that_look_like_marks_stay():
    for token, text in (("é", "É"), ("Ġ", "Ġ"), ("##", "##"), ("ä", "ä"), ("ĠX", "ĠX")):
        assert labels(axis((token, 0, (0, len(text)))), text) == (token,)


TOKENS = ("[CLS]", "the", "cat", "##s", "The", "the", "2", "[SEP]")
SHOWN = ("[CLS]", "the", "cat", "·s", "The", "the", "2", "[SEP]")


def test_a_token_is_found_or_refused_with_what_there_is():
    places = {"0": 0, "7": 7, "-1": 7, "cat": 2, "##s": 3, "s": 3, "CAT": 2, "The": 4}
    assert {wanted: find_token(wanted, TOKENS, SHOWN) for wanted in places} == places
    wrong = {"the": "occurs 2 times: at 1, 5", "dog": "no token 'dog'", "8": "no token 8", "-9": "no token -9"}
    for wanted, message in wrong.items():
        with pytest.raises(InputError, match=message):
            find_token(wanted, TOKENS, SHOWN)


# Weights as shades and bars: every number is where it belongs, at any width, in colour and without.


WEIGHTS = np.array([[0.9, 0.1, 0.0], [0.25, 0.75, 0.0], [0.01, 0.0, 0.99]], np.float32)


def rows(text):
    """The lines that draw a query: its number, its label, its cells."""
    return [line for line in text.splitlines() if re.match(r"\s*\d+ (\[CLS\]|cat|猫|t\d*)( |$)", line)]


def test_ascii_and_grey_keep_the_order_of_shades():
    for paper in (Paper(), Paper(unicode=False)):
        shades = [shade_of(inked(weight / 100, "sqrt"), paper) for weight in range(101)]
        assert shades[0] == " "
        assert shades[1] != " "
        assert [shade for at, shade in enumerate(shades) if at == 0 or shade != shades[at - 1]] == list(
            SHADES if paper.unicode else " .:-=+*#%@"
        )


def test_colours_grow_lighter_and_text_can_be_read():
    def lightness(red, green, blue):
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light = [lightness(*colour_of(ink / 20)) for ink in range(21)]
    assert light == sorted(light)
    for ink in range(21):
        before, behind = (
            lightness(*bytes.fromhex(part.strip().removeprefix("#"))) for part in style_of(ink / 20).split(" on ")
        )
        assert abs(before - behind) > 80


@pytest.mark.parametrize(("columns", "count"), [(80, 9), (80, 30), (80, 60), (120, 60), (40, 500)])
def test_a_window_says_what_it_leaves_out(columns, count):
    weights = np.eye(count, dtype=np.float32)
    names = [f"t{at}" for at in range(count)]
    text = plain_text([matrix(weights, names, names, start=3)], Paper(columns))
    assert max(map(width, text.splitlines())) <= columns
    left_out = "don't fit" in text
    assert left_out == (len(rows(text)) < count)
    if left_out:
        first, last = map(int, re.search(r"queries (\d+) to (\d+) and", text.replace("\n", " ")).groups())
        assert first == 3
        assert len(rows(text)) == last - first + 1


def test_the_rest_column_adds_up():
    count = 100
    weights = np.full((count, count), 1 / count, np.float32)
    text = plain_text([matrix(weights, ["t"] * count, ["t"] * count)], Paper(80))
    drawn = int(re.search(r"keys 0 to (\d+)", text.replace("\n", " ")).group(1)) + 1
    assert f"{100 - drawn:>3} %" in rows(text)[-1]


def test_the_window_stays_inside():
    weights = np.eye(100, dtype=np.float32)
    text = plain_text([matrix(weights, ["t"] * 100, ["t"] * 100, start=99)], Paper(80))
    assert "to 99 and keys" in text.replace("\n", " ")


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=20), st.floats(0.01, 1))
def test_the_fewest_keys_that_hold_a_share(numbers, threshold):
    row = np.array(numbers, np.float32)
    chosen = strongest(row, None, threshold)
    contents = float(row[chosen].astype(np.float64).sum())
    total = float(row.astype(np.float64).sum())
    assert contents >= threshold * total - 1e-5
    assert contents - float(row[chosen[-1]]) < threshold * total + 1e-5
    assert [float(row[key]) for key in chosen] == sorted((float(row[key]) for key in chosen), reverse=True)


def test_top_and_threshold_together():
    assert strongest(WEIGHTS[1], 1, 0.99) == [1]
    assert strongest(WEIGHTS[1], None, 0.7) == [1]
    assert strongest(WEIGHTS[1], None, 0.8) == [1, 0]
    assert strongest(WEIGHTS[1], None, None) == [1, 0, 2]


# Tables and sentences as machines and people read them, in pipes and on terminals.


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


def test_a_pipe_never_breaks_a_name_and_an_empty_table_says_so():
    displayed = lines(table(WIDE), Paper(40, folds=False))
    assert any(line.startswith(str(WIDE.rows[0][0])) for line in displayed)
    assert lines(table(Table((Column("a"),), ())), Paper(80)) == ["(none)"]


@given(st.text(max_size=200), st.integers(12, 100))
def test_prose_fits(text, columns):
    assert all(width(line) <= columns for line in lines(prose(text, mark="- "), Paper(columns)))


def test_bars():
    drawn = {0: "", 1: "████", 0.5: "██", 0.53125: "██▏", -1: "", 2: "████"}
    assert {share: bar(share, 4, Paper()) for share in drawn} == drawn


@pytest.mark.parametrize(
    ("stream", "term", "text"),
    [
        (io.StringIO, "xterm-256color", "[red]x\\x1b[2J[/red]:smile:   y\n"),
        (Terminal, "dumb", "[red]x\\x1b[2J[/red]:smile:   y\n"),
        (Terminal, "xterm-256color", "\x1b[1m[red]x\\x1b[2J[/red]:smile:\x1b[0m\x1b[2m   y\x1b[0m\n"),
    ],
    ids=["a pipe", "a dumb terminal", "a terminal"],
)
def test_only_a_terminal_gets_styles_and_never_the_texts_own(stream, term, text, monkeypatch):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "60")
    written = stream()
    put([title("[red]x\x1b[2J[/red]:smile:", "y")], written)
    assert written.getvalue() == text


def test_no_color_leaves_no_colour(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    put([lambda paper: [((f"colour {paper.colour}", "#ff0000 on #00ff00"),)]], stream)
    assert stream.getvalue().strip() == "colour False"


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


def test_markdown_is_for_people_and_keeps_its_columns():
    lines = SHARES.markdown().splitlines()
    assert lines[0] == "| parameter | shape | numbers | share |"
    assert lines[1] == "|---|---|---:|---:|"
    assert lines[2] == "| `a\\|b` | (3, 4) | 1,200 | 25.0% |"
    assert lines[3] == "| ``c`d`` | (7,) | 7 |  |"


CELLS = {
    'a,"b"': ('a,"b"', 'a,"b"'),
    "line\nbreak": ("line\\nbreak", "line\\\\nbreak"),
    "=1+1": ("'=1+1", "=1+1"),
    "שלום": ("שלום", "שלום"),
    "a\x1b[2J": ("a\\x1b[2J", "a\\\\x1b\\[2J"),
    "<s>": ("<s>", "\\<s>"),
    "*x*": ("*x*", "\\*x\\*"),
}
"""Text -> it in CSV and in Markdown, where nothing acts on it."""


def test_csv_and_markdown_keep_any_text_that_nothing_acts_on():
    found = Table((Column("token"),), tuple((text,) for text in CELLS))
    assert list(csv.reader(io.StringIO(found.csv(), newline="")))[1:] == [[cell] for cell, _ in CELLS.values()]
    assert found.markdown().splitlines()[2:] == [f"| {cell} |" for _, cell in CELLS.values()]


def test_shapes_are_written_as_numpy_does():
    for shape in ((), (5,), (2, 3)):
        assert shape_text(shape) == str(np.zeros(shape).shape)


def test_json_is_ascii_and_strict():
    record = {"tokens": ["猫", "\x9b31m", "\u202e"], "worst": float("inf"), "weights": [[0.5, 0.25], [1.0, 0.0]]}
    text = json_text(record)
    assert text.isascii()
    assert json.loads(text) == {**record, "worst": None}
    assert "    [0.5, 0.25],\n" in text
    nested = {"a": {"b": {"c": [{"d": [1, [2]]}]}}, "e": [], "f": {}}
    assert json.loads(json_text(nested)) == nested


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="1 values under 2 columns"):
        Table((Column("a"), Column("b")), ((1,),))
