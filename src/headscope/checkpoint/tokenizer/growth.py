"""A bound on what a tokenizer's rules may make of one character: repeated rules can double a text each."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from headscope.errors import UnsupportedError

MOST = 256
"""The most characters that rules may make of one. NFKC makes 18 of one, bytes as letters 4."""
ZERO_WIDTH = re.compile(r"[*?^$|]|\\[bBAZzGK]|\{0|\{,")
"""Signs of a pattern that may match between two characters."""


def check_growth(where: str, *components: Mapping[str, Any] | None) -> None:
    """Check the normaliser and the pre-tokenizer, as tokenizer.json has them.

    Raises:
        UnsupportedError: they may make more than MOST characters of one.
    """
    factors = [_factor(rule) for component in components for rule in _rules(component)]
    if prod(factors) > MOST:
        raise UnsupportedError(
            f"rules that make a text longer may make more than {MOST} characters of one",
            where=where,
            advice="remove these rules from the file, or pass ids= (token ids)",
        )


def _rules(component: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(component, Mapping):
        yield component
        for name in ("normalizers", "pretokenizers"):
            inner = component.get(name)
            for part in inner if isinstance(inner, list) else ():
                yield from _rules(part)


def _factor(rule: Mapping[str, Any]) -> float:
    """The most characters that a rule makes of one."""
    if rule.get("type") == "ByteLevel":
        return 2
    if rule.get("type") == "Precompiled":
        try:
            table = base64.b64decode(str(rule.get("precompiled_charsmap")))
        except binascii.Error:
            return 1  # the library refuses it
        texts = table[4 + int.from_bytes(table[:4], "little") :]
        return max((len(text) for text in texts.split(b"\0")), default=1)
    if rule.get("type") != "Replace":
        return 1
    content, pattern = len(str(rule.get("content"))), rule.get("pattern")
    literal, regex = (pattern.get(name) if isinstance(pattern, Mapping) else None for name in ("String", "Regex"))
    if isinstance(literal, str) and literal:
        return max(1, content / len(literal))
    return max(1, content + bool(not isinstance(regex, str) or ZERO_WIDTH.search(regex)))
