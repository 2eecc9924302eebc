"""Text from files in a terminal: escaped, measured, clipped; tokens as people's words, and which one a person means."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscope.errors import InputError
from headscope.results.arrays import TokenAxis
from headscope.screens.labels import clip, clusters, encodable, fold, hold_direction, pad, printable, width, wrap
from headscope.screens.matrix import (
    SHADES,
    colour_of,
    inked,
    matrix,
    shade_of,
    strongest,
    style_of,
)
from headscope.screens.pieces import find_token, labels
from headscope.screens.terminal import Paper, plain_text

FAMILY = "👨‍👩‍👧"


@pytest.mark.parametrize(
    ("text", "displayed"),
    [
        ("cat", "cat"),
        ("[red]", "[red]"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b31m", "\\x9b31m"),
        ("a\nb\tc\r\0", "a\\nb\\tc\\r\\0"),
        ("\u202eevil", "\\u202eevil"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("\u200b", "\\u200b"),
        ("\u00a0", "\\xa0"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("e\u0301", "e\u0301"),
        ("\u0301", "\u25cc\u0301"),
        ("\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e"),
        ("\u200d", "\\u200d"),
        (FAMILY, FAMILY),
        ("שלום", "שלום"),
    ],
)
def test_printable(text, displayed):
    assert printable(text) == displayed


@given(st.text())
def test_nothing_printable_acts_on_a_terminal(text):
    displayed = printable(text)
    for character in displayed.replace("\u200c", "").replace("\u200d", ""):
        assert unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    displayed.encode()


@pytest.mark.parametrize(("text", "columns"), [("cat", 3), ("猫", 2), ("e\u0301", 1), ("🙂", 2), ("שלום", 4), ("", 0)])
def test_width(text, columns):
    assert width(text) == columns


def test_clusters_are_what_a_reader_calls_characters():
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
    assert width(hold_direction("שלום")) == 4
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


def test_word_pieces_are_joined():
    result = labels(
        axis(("[CLS]", None, None), ("em", 0, (0, 2)), ("##bed", 0, (2, 5)), ("[SEP]", None, None)), "embed"
    )
    assert result == ("[CLS]", "em", "·bed", "[SEP]")


def test_byte_level_pieces_are_read_back():
    result = labels(
        axis(
            ("<s>", None, None),
            ("Hi", 0, (0, 2)),
            ("Ġthere", 1, (3, 8)),
            ("ä½ł", 2, (9, 10)),
            ("åħ", 2, (10, 11)),
            ("»", 2, (10, 11)),
            ("</s>", None, None),
        ),
        "Hi there 你养",
    )
    assert result == ("<s>", "Hi", "there", "你", "·\\xe5\\x85", "·\\xbb", "</s>")


def test_sentence_pieces_lose_their_mark():
    assert labels(axis(("▁Hi", 0, (0, 2)), ("you", 0, (2, 5))), "Hiyou") == ("Hi", "·you")


@pytest.mark.parametrize(("token", "text"), [("é", "É"), ("Ġ", "Ġ"), ("##", "##"), ("ä", "ä"), ("ĠX", "ĠX")])
def test_letters_that_look_like_marks_stay(token, text):
    assert labels(axis((token, 0, (0, len(text)))), text) == (token,)


def test_the_second_text_is_read_from_the_second_text():
    result = labels(
        axis(
            ("<s>", None, None),
            ("Ġa", 0, (0, 1)),
            ("</s>", None, None),
            ("</s>", None, None),
            ("ä½ł", 1, (0, 1)),
        ),
        "a",
        "你",
    )
    assert result[-1] == "你"


def test_hostile_pieces_are_escaped():
    assert labels(axis(("\x1b[31m", 0, None), ("\u202e", 1, None))) == ("\\x1b[31m", "\\u202e")


TOKENS = ("[CLS]", "the", "cat", "##s", "The", "the", "2", "[SEP]")
SHOWN = ("[CLS]", "the", "cat", "·s", "The", "the", "2", "[SEP]")


@pytest.mark.parametrize(
    ("wanted", "place"), [("0", 0), ("7", 7), ("-1", 7), ("cat", 2), ("##s", 3), ("s", 3), ("CAT", 2), ("The", 4)]
)
def test_a_token_is_found(wanted, place):
    assert find_token(wanted, TOKENS, SHOWN) == place


@pytest.mark.parametrize(
    ("wanted", "message"),
    [("the", "occurs 2 times: at 1, 5"), ("dog", "no token 'dog'"), ("8", "no token 8"), ("-9", "no token -9")],
)
def test_or_refused_with_what_there_is(wanted, message):
    with pytest.raises(InputError, match=message):
        find_token(wanted, TOKENS, SHOWN)


# Weights as shades and bars: every number is where it belongs, at any width, in colour and without.


WEIGHTS = np.array([[0.9, 0.1, 0.0], [0.25, 0.75, 0.0], [0.01, 0.0, 0.99]], np.float32)
NAMES = ("[CLS]", "cat", "猫")


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
