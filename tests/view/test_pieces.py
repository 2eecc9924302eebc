"""Tokens as people's words, and the other way round: which token a person means."""

from __future__ import annotations

import pytest

from headscope.errors import InputError
from headscope.results.arrays import TokenAxis
from headscope.screens.pieces import find_token, labels


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
