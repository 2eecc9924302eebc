"""Questions of cause and effect as the page sends them: a change, and the output to read. Every field is checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from headscope.errors import HeadscopeError, InputError

if TYPE_CHECKING:
    from headscope.results.effect_records import Wanted

MOST_ITEMS = 100_000
LONGEST_TEXT = 100_000
"""Most characters of a text to patch from, or of a word or text that names a target."""
HEAD_METHODS = ("zero", "mean", "patch", "edge")
"""Changes of each head in turn."""
KINDS = {"change": ("",), "edge": ("",), "heads": HEAD_METHODS, "groups": ("",), "tokens": ("decompx",)}
"""Kinds of questions, and the methods of each."""

MOST = 2**53
"""Whole numbers of requests are below this: exact in JavaScript, and 64 bits hold them."""


@dataclass(frozen=True)
class Question:
    """A change of a text's forward pass, and the output that it is measured on.

    Attributes:
        kind: `change` (heads silenced, tokens masked or replaced), `edge` (one edge of one head cut), `heads` (each
            head in turn), `groups` (of heads, silenced), `tokens` (an attribution; nothing is changed).
        method: of `heads`, one of HEAD_METHODS; of `tokens`, decompx.
        wanted: the output, as in headscope.runs.targets.
        ablate: heads to silence, (layer, head).
        mask: positions of tokens to mask.
        replace: positions of tokens to replace, each with a token's text.
        edge: (layer, head, query, key), or (query, key) where each head is changed in turn.
        patch_from: the text that the heads' contexts come from.
    """

    kind: str
    method: str = ""
    wanted: Wanted = None
    ablate: tuple[tuple[int, int], ...] = ()
    mask: tuple[int, ...] = ()
    replace: tuple[tuple[int, str], ...] = ()
    edge: tuple[int, ...] | None = None
    patch_from: str | None = None

    def plain(self) -> dict[str, Any]:
        """The question as the page sends it."""
        wanted = list(self.wanted) if isinstance(self.wanted, tuple) else None
        return {
            "kind": self.kind,
            "method": self.method,
            "target": wanted,
            "ablate": [list(head) for head in self.ablate],
            "mask": list(self.mask),
            "replace": [list(pair) for pair in self.replace],
            "edge": None if self.edge is None else list(self.edge),
            "patch_from": self.patch_from,
        }

    def places(self) -> list[int]:
        """The positions of the tokens that it speaks of."""
        edge = [] if self.edge is None else self.edge[-2:]
        return sorted({*self.mask, *(at for at, _ in self.replace), *edge})


def question_of(query: dict[str, Any]) -> Question:
    """The question in a request.

    Raises:
        InputError: a field is missing, or is not of its type.
    """
    kind, method = query.get("kind", "change"), query.get("method", "")
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"there is no question {kind!r:.40}", where="kind", advice=f"use {', '.join(KINDS)}")
    if not isinstance(method, str) or method not in KINDS[kind]:
        raise InputError(
            f"there is no method {method!r:.40}", where="method", advice=f"use {', '.join(KINDS[kind]) or 'none'}"
        )
    heads = [whole_numbers(item, 2, "ablate") for item in listed(query.get("ablate"), "ablate")]
    edges = {"edge": 4, "heads": 2 if method == "edge" else 0}.get(kind, 0)
    return Question(
        kind,
        method,
        wanted_of(query.get("target")),
        tuple((layer, head) for layer, head in heads),
        tuple(whole_numbers(listed(query.get("mask"), "mask"), None, "mask")),
        tuple(_replacement(item) for item in listed(query.get("replace"), "replace")),
        tuple(whole_numbers(query.get("edge"), edges, "edge")) if edges else None,
        short_text(query.get("patch_from"), "patch_from") if method == "patch" else None,
    )


def listed(value: Any, where: str) -> list[Any]:
    """A list of a request; none stands for an empty one.

    Raises:
        InputError: it is not a list, or too long.
    """
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MOST_ITEMS:
        raise InputError(f"{where} is not a list", where=where, advice=f"send {where} as a list")
    return value


def short_text(value: Any, where: str) -> str:
    """A text of a request.

    Raises:
        InputError: it is not a text, empty, or too long.
    """
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_TEXT:
        raise InputError(f"{where} is not a text", where=where, advice=f"send 1 to {LONGEST_TEXT:,} characters")
    return value


def wanted_of(value: Any) -> Wanted:
    """The output that a request names: null for the default, else [kind, …].

    Raises:
        InputError: it is something else.
    """
    if value is None:
        return None
    if not isinstance(value, list) or not 1 <= len(value) <= 3:
        raise InputError(
            f"{value!r:.60} names no output", where="target", advice='send null, or a list such as ["word", "cat"]'
        )
    return cast("Wanted", tuple(item if type(item) is int else short_text(item, "target") for item in value))


def _replacement(value: Any) -> tuple[int, str]:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(
            f"{value!r:.60} is not a replacement", where="replace", advice="send [position, text of the token]"
        )
    return whole_number(value[0], "replace"), short_text(value[1], "replace")


def whole_number(value: Any, where: str) -> int:
    """Return a whole number of a request.

    Raises:
        InputError: it is none, or negative.
    """
    if not _is_natural(value):
        raise InputError(
            f"{str(value)[:80]!r} is not a whole number from 0", where=where, advice=f"send {where} as a number"
        )
    return int(value)


def whole_numbers(value: Any, size: int | None, where: str) -> list[int]:
    """Return a list of whole numbers of a request.

    Args:
        value: the list.
        size: its length; None for any.
        where: its name.

    Raises:
        InputError: it is not such a list.
    """
    if not isinstance(value, list) or not all(map(_is_natural, value)) or size not in (None, len(value)):
        raise InputError(
            f"{str(value)[:80]!r} is not a list of {'' if size is None else f'{size} '}whole numbers from 0",
            where=where,
            advice="send heads as [layer, head], tokens by their positions, edges as [layer, head, query, key]",
        )
    return value


def _is_natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


def in_the_page(error: HeadscopeError) -> str:
    """An error of a run that the page asked for; advice names nothing that only a command line or a call has."""
    advice = None if error.advice is None else error.advice.split(", or pass ")[0]
    return str(HeadscopeError(error.found, where=error.where, advice=advice))
