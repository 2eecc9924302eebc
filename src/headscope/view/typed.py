"""What a person types on the command line, read into values: ids, words, head names, a scale."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headscope.errors import InputError

if TYPE_CHECKING:
    from headscope.view.matrix import Scale


def number_list(text: str, *, noun: str, option: str, example: str) -> list[int]:
    """Whole numbers between spaces or commas.

    Args:
        noun: what they number: token id, layer, head.
        option: how they were given.
        example: how they may be.

    Raises:
        InputError: something that is no whole number.
    """
    parts = text.replace(",", " ").split()
    wrong = next((part for part in parts if not (part.isascii() and part.removeprefix("-").isdecimal())), None)
    if wrong is not None or not parts:
        raise InputError(
            f"{wrong!r} is no {noun}" if wrong is not None else f"there are no {noun}s",
            where=option,
            advice=f"give whole numbers between spaces or commas: {option} {example}",
        )
    return [int(part) for part in parts]


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
        layer, dot, head = name.partition(".")
        if not (dot and layer.isascii() and layer.isdecimal() and head.isascii() and head.isdecimal()):
            raise InputError(
                f"{name!r} names no head", where="--ablate", advice="layer, dot, head, counted from 0: --ablate 3.5"
            )
        found.add((int(layer), int(head)))
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
