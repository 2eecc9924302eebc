"""Labels of tokens: the marks of a vocabulary (`##`, `Ġ`, `▁`, spelled bytes) turned back into text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from headscope.errors import InputError
from headscope.view.labels import printable
from headscope.view.typed import shortened, whole_number

if TYPE_CHECKING:
    from headscope._trace import TokenAxis

CONTINUED = "·"
"""Mark before a token that continues a word."""
WORD_START = "Ġ▁"
"""Marks that byte-level and SentencePiece vocabularies use for the space before a word."""


def labels(axis: TokenAxis, text: str | None = None, pair: str | None = None) -> tuple[str, ...]:
    """One printable label per token: `em ·bed ·ding ·s`, `[CLS]`, 你 even if the vocabulary spells bytes.

    Special and unknown tokens keep their names, because the model sees no more of them.
    """
    names: list[str] = []
    part, content_seen = text, False
    for at, token in enumerate(axis.tokens):
        if axis.special[at]:
            part = pair if content_seen else part
            names.append(printable(token))
            continue
        content_seen = True
        span = axis.spans[at]
        source = part[span[0] : span[1]] if part is not None and span is not None else None
        continued = at > 0 and axis.words[at] is not None and axis.words[at] == axis.words[at - 1]
        names.append((CONTINUED if continued else "") + _label(token, source, continued))
    return tuple(names)


def joined(axis: TokenAxis, most: int) -> str:
    """The first `most` tokens as people write them: the pieces of a word together, words apart."""
    text = ""
    for label in labels(axis)[:most]:
        continued = label.startswith(CONTINUED) and label != CONTINUED
        text += label.removeprefix(CONTINUED) if continued else f" {label}"
    return text.strip()


def _label(token: str, source: str | None, continued: bool) -> str:
    if continued and token.startswith("##") and len(token) > 2:
        token = token[2:]
    elif len(token) > 1 and token[0] in WORD_START and (source is None or token[0] not in source):
        token = token[1:]
    spelled = _spelled_bytes(token) if not token.isascii() else None
    if source is not None and spelled is not None and token not in source and spelled in source.encode():
        token = spelled.decode(errors="backslashreplace")
    return printable(token)


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 is itself, every other byte is a letter from U+0100 on."""
    unchanged = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in unchanged]
    return {chr(byte): byte for byte in unchanged} | {chr(0x100 + at): byte for at, byte in enumerate(rest)}


def _spelled_bytes(token: str) -> bytes | None:
    alphabet = _byte_alphabet()
    return bytes(alphabet[letter] for letter in token) if all(letter in alphabet for letter in token) else None


def find_token(wanted: str, tokens: Sequence[str], shown: Sequence[str]) -> int:
    """The position of a token named by its number, counted from 0, its text or its label.

    Raises:
        InputError: no such position or token, or a token that occurs more than once.
    """
    number = whole_number(wanted)
    if number is not None:
        if -len(tokens) <= number < len(tokens):
            return number % len(tokens)
        raise InputError(
            f"there is no token {wanted}: the text has {len(tokens)} tokens",
            where="--query",
            advice=f"tokens are numbered 0 to {len(tokens) - 1}",
        )
    for same in (str.__eq__, _same_letters):
        places = [
            at
            for at, pair in enumerate(zip(tokens, shown, strict=True))
            if any(same(form, wanted) for form in (*pair, pair[1].removeprefix(CONTINUED)))
        ]
        if len(places) == 1:
            return places[0]
        if places:
            raise InputError(
                f"{wanted!r} occurs {len(places)} times: at {', '.join(map(str, places))}",
                where="--query",
                advice="choose one by its number",
            )
    listed = " ".join(f"{at}:{label}" for at, label in enumerate(shown[:40]))
    raise InputError(
        f"there is no token {shortened(wanted)}",
        where="--query",
        advice=f"the tokens are {listed}{' …' if len(shown) > 40 else ''}",
    )


def _same_letters(token: str, other: str) -> bool:
    return token.casefold() == other.casefold()
