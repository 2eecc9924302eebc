"""A hash that a file carries within itself, so that a damaged file is recognised wherever it turns up.

The file is made with 64 zeros in the hash's place; the SHA-256 of these bytes then replaces the zeros.
"""

from __future__ import annotations

import hashlib

MARK = b"headscope-sha256:"
"""What the hash stands behind. The last one in a file counts: names of documents may spell it too, further up."""

BLANK = MARK + b"0" * 64
"""What stands in a file before it is sealed."""


class DamageWarning(UserWarning):
    """A file of a survey was damaged. It was set aside, and is made again."""


def sealed(data: bytes) -> bytes:
    """A file's bytes with their hash in the place of the last BLANK."""
    at = data.rindex(BLANK)
    return data[:at] + MARK + hashlib.sha256(data).hexdigest().encode() + data[at + len(BLANK) :]


def fault(data: bytes) -> str | None:
    """What is wrong with a sealed file's bytes, in words; None if nothing is."""
    if not data:
        return "it is empty"
    at = data.rfind(MARK)
    if at < 0:
        return "the hash written with it is missing"
    blank = data[:at] + BLANK + data[at + len(BLANK) :]
    if len(blank) == len(data) and sealed(blank) == data:
        return None
    return "its bytes do not match the hash written with them"
