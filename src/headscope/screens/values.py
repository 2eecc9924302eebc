"""Parsing of values typed on the command line: ids, words, heads and layers."""

from __future__ import annotations

import re

from headscope.errors import InputError

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


def id_list(text: str) -> list[int]:
    """Token ids separated by spaces or commas.

    Raises:
        InputError: something else than a whole number, or no number at all.
    """
    typed = text.replace(",", " ").split()
    wrong = next((part for part in typed if whole_number(part) is None), None)
    if typed and wrong is None:
        return [int(part) for part in typed]
    found = "no token id was given" if wrong is None else f"{shortened(wrong)} is not a token id"
    advice = "use whole numbers separated by spaces or commas, such as '101 7592 102'"
    raise InputError(found, where="ids", advice=advice)


def checked_state(text: str) -> str:
    """The part of a page's address after `#`, with or without it.

    Raises:
        InputError: it has a character that no such address has.
    """
    state = text.removeprefix("#")
    if STATE.fullmatch(state) is None:
        advice = "copy the part after # from a page: --open 'l=2&h=0'"
        raise InputError(f"{shortened(text)} is not the end of a page's address", where="--open", advice=advice)
    return state


def word_list(text: str) -> list[str]:
    """Words separated by spaces.

    Raises:
        InputError: the text has no words.
    """
    if words := text.split():
        return words
    raise InputError("no word was given", where="words", advice="separate words with spaces")


def head_list(text: str, option: str) -> list[tuple[int, int | None]]:
    """Heads and layers, as in 3.1,4: head 1 of layer 3, and all heads (None) of layer 4.

    Raises:
        InputError: a name of another form, or none at all.
    """
    chosen: list[tuple[int, int | None]] = []
    for name in text.replace(",", " ").split():
        layer, dot, head = name.partition(".")
        numbers = whole_number(layer), whole_number(head) if dot else None
        if numbers[0] is None or (dot and numbers[1] is None) or "-" in name:
            break
        chosen.append((numbers[0], numbers[1]))
    else:
        if chosen:
            return list(dict.fromkeys(chosen))
        name = ""
    advice = f"write layer.head, both counted from 0, or a layer for all of its heads: {option} 3.1,4.0"
    raise InputError(f"{shortened(name)} is not a head" if name else "no head was given", where=option, advice=advice)
