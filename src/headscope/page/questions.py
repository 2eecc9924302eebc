"""Questions of cause and effect as the page sends them: a change, and the output to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headscope.errors import HeadscopeError, InputError

if TYPE_CHECKING:
    from headscope.results.effect_records import Wanted

HEAD_METHODS = ("zero", "mean", "patch", "edge")
"""Changes of each head in turn."""
KINDS = {"change": ("",), "edge": ("",), "heads": HEAD_METHODS, "groups": ("",), "tokens": ("decompx",)}
"""Kinds of questions, and the methods of each."""


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
        InputError: there is no such question, or it names heads and tokens otherwise than by numbers.
    """
    kind, method, wanted = query.get("kind", "change"), query.get("method", ""), query.get("target")
    if method not in KINDS.get(kind, ()):
        raise InputError(f"the page has no question {kind!r}, {method!r}", where="kind", advice="reload the page")
    edges = {"edge": 4, "heads": 2 if method == "edge" else 0}.get(kind, 0)
    return Question(
        kind,
        method,
        None if wanted is None else tuple(wanted),
        tuple((layer, head) for layer, head in (_places(head, 2) for head in query.get("ablate") or ())),
        _places(query.get("mask") or ()),
        tuple((_places([place])[0], text) for place, text in query.get("replace") or ()),
        _places(query.get("edge"), edges) if edges else None,
        query["patch_from"] if method == "patch" else None,
    )


def _places(value: Any, size: int | None = None) -> tuple[int, ...]:
    """Layers, heads and positions, counted from 0; so many, if `size` says so.

    Raises:
        InputError: they are something else.
    """
    if any(type(place) is not int or place < 0 for place in value) or size not in (None, len(value)):
        raise InputError(f"{value!r:.80} names no heads or tokens", where="request", advice="count them from 0")
    return tuple(value)


def in_the_page(error: HeadscopeError) -> str:
    """An error of a run that the page asked for; advice names nothing that only a command line or a call has."""
    advice = None if error.advice is None else error.advice.split(", or pass ")[0]
    return str(HeadscopeError(error.found, where=error.where, advice=advice))
