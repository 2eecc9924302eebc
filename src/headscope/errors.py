"""Every error headscope raises on purpose. `hs.HeadscopeError` is what to catch.

Each says what was found, where, and what to do.

    HeadscopeError
    ├── NotFoundError        a name that leads to no checkpoint: no such folder, file or hub id, or offline
    ├── CheckpointError      a checkpoint that can't be read: truncated, contradictory, a shard missing
    │   └── UnsafeError      a pickle that asks for code to be run
    ├── ConfigError          a config without the fields, or with values that can't be true
    ├── UnsupportedError     a family, tokenizer or format that headscope can't read correctly, refused by name
    ├── InputError           what a person passed: an empty text, an id beyond the vocabulary, a head that isn't there
    ├── MissingExtraError    something that an extra of the package would bring
    └── TraceError           a trace file that is not one, or that lacks what was asked of it
"""

from __future__ import annotations


class HeadscopeError(Exception):
    """What was found, where, and what to do about it.

    Attributes:
        found: what was found and what was expected, with the values.
        where: the file, tensor, layer, head or argument it was found in.
        advice: what the reader can do.
    """

    def __init__(self, found: str, *, where: str | None = None, advice: str | None = None) -> None:
        super().__init__(found)
        self.found = found
        self.where = where
        self.advice = advice

    def __str__(self) -> str:
        lines = [self.found]
        if self.where:
            lines.append(f"where: {self.where}")
        if self.advice:
            lines.append(f"what to do: {self.advice}")
        return "\n".join(lines)


class NotFoundError(HeadscopeError):
    """A name that leads to no checkpoint."""


class CheckpointError(HeadscopeError):
    """A checkpoint whose files can't be read as they claim to be."""


class UnsafeError(CheckpointError):
    """A pickle that asks for code to be run: refused, nothing of it was run."""


class ConfigError(HeadscopeError):
    """A config that lacks a field, or holds a value that can't be true."""


class UnsupportedError(HeadscopeError):
    """Something that headscope can't read correctly, and so refuses by name."""


class InputError(HeadscopeError):
    """A text, id, layer, head or option that can't be used."""


class MissingExtraError(HeadscopeError):
    """Something that an optional part of the package would bring."""


class TraceError(HeadscopeError):
    """A trace file that is not one, or that lacks what was asked of it."""


def first_line(error: Exception) -> str:
    """Of what another library's error says; its name where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
