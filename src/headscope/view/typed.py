"""Parsing of values typed on the command line: ids, words, head names, a scale."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headscope.errors import InputError

if TYPE_CHECKING:
    from headscope.view.matrix import Scale


STATE = re.compile(r"[\w=&.%-]*", re.ASCII)
"""The part of a page's address after `#`."""

MOST_DIGITS = 18
"""Most digits of a number; longer ones exceed every count here, and 64 bits."""
LONGEST = 40


def whole_number(text: str) -> int | None:
    """The whole number in a text, or None if it isn't one or has more than MOST_DIGITS digits."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(digits) <= MOST_DIGITS else None


def shortened(text: str) -> str:
    """A typed text as a message quotes it."""
    return repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}… ({len(text):,} characters)"


def number_list(text: str, *, noun: str, option: str, example: str) -> list[int]:
    """Whole numbers separated by spaces or commas.

    Args:
        text: as typed.
        noun: the thing numbered: token id, layer, head.
        option: the option that `text` was typed for.
        example: of a valid text.

    Raises:
        InputError: something else than a whole number, or no number at all.
    """
    numbers = []
    for part in text.replace(",", " ").split():
        number = whole_number(part)
        if number is None:
            break
        numbers.append(number)
    else:
        if numbers:
            return numbers
        part = ""
    raise InputError(
        f"{shortened(part)} is not a {noun}" if part else f"no {noun} was given",
        where=option,
        advice=f"use whole numbers separated by spaces or commas: {option} {example}",
    )


def checked_state(text: str) -> str:
    """The part of a page's address after `#`, with or without it.

    Raises:
        InputError: it has a character that no such address has.
    """
    state = text.removeprefix("#")
    if STATE.fullmatch(state) is None:
        raise InputError(
            f"{shortened(text)} is not the end of a page's address",
            where="--at",
            advice="copy the part after # from a page: --at 'l=2&h=0'",
        )
    return state


def word_list(text: str) -> list[str]:
    """Words separated by spaces.

    Raises:
        InputError: the text has no words.
    """
    if words := text.split():
        return words
    raise InputError("no word was given", where="--words", advice="separate words with spaces")


def head_names(names: Iterable[str]) -> set[tuple[int, int]]:
    """Heads named like 3.5, for layer 3, head 5.

    Raises:
        InputError: a name of another form.
    """
    heads = set()
    for name in names:
        layer, head = map(whole_number, name.partition(".")[::2])
        if layer is None or head is None or "-" in name:
            raise InputError(
                f"{shortened(name)} is not a head",
                where="--ablate",
                advice="write layer.head, both counted from 0: --ablate 3.5",
            )
        heads.add((layer, head))
    return heads


def scale_name(name: str) -> Scale:
    """A scale by its name.

    Raises:
        InputError: there is no scale of that name.
    """
    if name == "linear":
        return "linear"
    if name == "sqrt":
        return "sqrt"
    raise InputError(f"unknown scale {name!r}", where="--scale", advice="use sqrt or linear")
