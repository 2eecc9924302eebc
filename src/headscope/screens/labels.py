"""Text from files and vocabularies, prepared for a terminal: escaped, measured, clipped, never interpreted."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

LEFT_TO_RIGHT = "\u200e"
JOINERS = "\u200c\u200d"
"""Zero-width non-joiner and joiner: Persian words and emoji are spelled with them."""
DOTTED_CIRCLE = "\u25cc"
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}


def printable(text: str) -> str:
    """The text with everything that would act on a terminal escaped: \\x1b, \\u202e, \\n.

    Control characters, bidirectional overrides, lone surrogates, invisible and unassigned characters become escapes;
    letters of any script, combining marks and joiners inside a word stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(text, index) for index in range(len(text)))


def printable_lines(text: str) -> str:
    """Apply `printable` line by line."""
    return "\n".join(map(printable, text.split("\n")))


def _visible(text: str, index: int) -> str:
    character = text[index]
    kind = unicodedata.category(character)
    if character in JOINERS and 0 < index < len(text) - 1:
        return character
    if kind in HIDDEN or (kind == "Zs" and character != " "):
        code = ord(character)
        short = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
        return NAMED.get(character, short)
    if kind[0] == "M" and index == 0:
        return DOTTED_CIRCLE + character
    return character


def encodable(text: str, encoding: str | None) -> str:
    """The text with characters that the encoding lacks escaped."""
    encoding = encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def width(text: str) -> int:
    """Number of a terminal's columns that the text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return sum(cell_len(cluster) for cluster in clusters(text))


def clusters(text: str) -> list[str]:
    """Characters as a reader sees them: a letter with its marks, an emoji with its parts, a flag."""
    if text.isascii():
        return list(text)
    found, cluster = [], ""
    for character in text:
        joined = cluster.endswith("\u200d") or character in JOINERS or unicodedata.category(character)[0] == "M"
        toned = "\U0001f3fb" <= character <= "\U0001f3ff"
        flag = _regional(character) and len(cluster) == 1 and _regional(cluster)
        if cluster and not (joined or toned or flag):
            found.append(cluster)
            cluster = ""
        cluster += character
    return [*found, cluster] if cluster else found


def _regional(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def clip(text: str, size: int, ellipsis: str = "…") -> str:
    """The text cut to at most `size` columns, with an ellipsis; clusters are never split."""
    if width(text) <= size:
        return text
    start, used, room = "", 0, size - width(ellipsis)
    for cluster in clusters(text):
        used += width(cluster)
        if used > room:
            break
        start += cluster
    return (start + ellipsis) if room >= 0 else ""


def pad(text: str, size: int, align: str = "left") -> str:
    """The text padded with spaces to `size` columns; right-to-left text keeps its place in the line."""
    spaces = " " * max(0, size - width(text))
    held_text = hold_direction(text)
    return spaces + held_text if align == "right" else held_text + spaces


def fitted(text: str, size: int, ellipsis: str = "…") -> str:
    """The text in exactly `size` columns: clipped or padded."""
    return pad(clip(text, size, ellipsis), size)


def in_cells(signs: Iterable[str], size: int) -> str:
    """Characters side by side, each in the middle of `size` columns."""
    before = ((" " * max(0, size - size // 2 - width(sign)), sign) for sign in signs)
    return "".join(space + pad(sign, size - len(space)) for space, sign in before)


def hold_direction(text: str) -> str:
    """Right-to-left text between left-to-right marks, so that a terminal doesn't reverse the rest of the line."""
    if text.isascii() or not any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in text):
        return text
    return LEFT_TO_RIGHT + text + LEFT_TO_RIGHT


def fold(text: str, size: int) -> list[str]:
    """The text in lines of at most `size` columns, broken wherever a line is full."""
    lines, line, used = [], "", 0
    for cluster in clusters(text):
        wide = width(cluster)
        if line and used + wide > size:
            lines.append(line)
            line, used = "", 0
        line += cluster
        used += wide
    return [*lines, line]


def wrap(text: str, size: int) -> list[str]:
    """Sentences in lines of at most `size` columns, broken between words; a longer word is folded."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if width(longer) <= size:
            line = longer
            continue
        if line:
            lines.append(line)
        *full, line = fold(word, size) if word else [""]
        lines.extend(full)
    return [*lines, line]
