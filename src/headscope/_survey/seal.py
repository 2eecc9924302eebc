"""A hash that a file carries inside, so that damage is recognised wherever the file ends up.

The file is made with 64 zeros instead of the hash; the SHA-256 of those bytes then replaces the zeros.
"""

from __future__ import annotations

import hashlib

MARK = b"headscope-sha256:"
"""The mark before the hash. The last one in a file counts, because names of documents may contain it, too."""

BLANK = MARK + b"0" * 64
"""Mark and zeros, before a file is sealed."""


class DamageWarning(UserWarning):
    """A file of a survey was damaged; it has been set aside and is made again."""


def sealed(data: bytes) -> bytes:
    """A file's bytes, with their hash instead of the last BLANK."""
    at = data.rindex(BLANK)
    return data[:at] + MARK + hashlib.sha256(data).hexdigest().encode() + data[at + len(BLANK) :]


def fault(data: bytes) -> str | None:
    """A clause that says what is wrong with a sealed file's bytes, or None."""
    if not data:
        return "it is empty"
    at = data.rfind(MARK)
    if at < 0:
        return "the hash written with it is missing"
    blank = data[:at] + BLANK + data[at + len(BLANK) :]
    if len(blank) == len(data) and sealed(blank) == data:
        return None
    return "its bytes do not match the hash written with them"
