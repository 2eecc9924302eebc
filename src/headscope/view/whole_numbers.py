"""Whole numbers in a page's requests."""

from __future__ import annotations

from typing import Any

from headscope.errors import InputError


def whole_number(value: Any, where: str) -> int:
    """Return a whole number of a request.

    Raises:
        InputError: it is none.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{str(value)[:80]!r} is not a whole number", where=where, advice=f"send {where} as a number")
    return value


def whole_numbers(value: Any, size: int | None, where: str) -> list[int]:
    """Return a list of whole numbers of a request.

    Args:
        value: the list.
        size: its length; None for any.
        where: its name.

    Raises:
        InputError: it is not such a list.
    """
    if not isinstance(value, list) or not all(type(item) is int for item in value) or size not in (None, len(value)):
        raise InputError(
            f"{str(value)[:80]!r} is not a list of {'' if size is None else f'{size} '}whole numbers",
            where=where,
            advice="send heads as [layer, head], tokens by their positions, edges as [layer, head, query, key]",
        )
    return value
