"""What a person types on the command line, read into values: ids, words, head names, a scale."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headscope.errors import InputError

if TYPE_CHECKING:
    from headscope.view.matrix import Scale


MOST_DIGITS = 18
"""Digits of a number that is read: what has more is beyond every count here, and beyond 64 bits."""
LONGEST = 40


def whole_number(text: str) -> int | None:
    """The whole number that a text spells; None where it spells none, or one of more than MOST_DIGITS digits."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(digits) <= MOST_DIGITS else None


def shortened(text: str) -> str:
    """What was typed, as a message quotes it."""
    return repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}… ({len(text):,} characters)"


def number_list(text: str, *, noun: str, option: str, example: str) -> list[int]:
    """Whole numbers between spaces or commas.

    Args:
        noun: what they number: token id, layer, head.
        option: how they were given.
        example: how they may be.

    Raises:
        InputError: something that is no whole number.
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
        f"{shortened(part)} is no {noun}" if part else f"there are no {noun}s",
        where=option,
        advice=f"give whole numbers between spaces or commas: {option} {example}",
    )


def word_list(text: str) -> list[str]:
    """Words between spaces.

    Raises:
        InputError: there are none.
    """
    if words := text.split():
        return words
    raise InputError("there are no words", where="--words", advice="give words between spaces")


def head_names(names: Iterable[str]) -> set[tuple[int, int]]:
    """Heads named as 3.5: layer 3, head 5.

    Raises:
        InputError: a name that isn't one.
    """
    found = set()
    for name in names:
        layer, head = map(whole_number, name.partition(".")[::2])
        if layer is None or head is None or "-" in name:
            raise InputError(
                f"{shortened(name)} names no head",
                where="--ablate",
                advice="layer, dot, head, counted from 0: --ablate 3.5",
            )
        found.add((layer, head))
    return found


def scale_name(name: str) -> Scale:
    """A scale by its name.

    Raises:
        InputError: there is none of that name.
    """
    if name == "linear":
        return "linear"
    if name == "sqrt":
        return "sqrt"
    raise InputError(f"there is no scale {name!r}", where="--scale", advice="give sqrt or linear")
