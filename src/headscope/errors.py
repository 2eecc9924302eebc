"""Every error headscope raises on purpose, and its warnings. Catch `hs.HeadscopeError` to catch them all.

Each message says what was found, where, and what to do.

    HeadscopeError
    ├── NotFoundError        no checkpoint of this name: no such folder, file or hub id, or offline
    ├── CheckpointError      a checkpoint that can't be read: truncated, contradictory, a shard missing
    │   └── UnsafeError      a pickle that would run code when it is loaded
    ├── ConfigError          a config that lacks required fields or holds impossible values
    ├── UnsupportedError     a family, tokenizer or format that headscope can't read correctly
    ├── InputError           a bad argument: an empty text, an id beyond the vocabulary, a head that doesn't exist
    ├── MissingExtraError    an optional dependency that is not installed
    └── TraceError           a file that is not a trace, or a trace without the requested data

`warnings.simplefilter("ignore", hs.HeadscopeWarning)` silences the warnings.
"""

from __future__ import annotations

import sys
import warnings


def install(*extras: str) -> str:
    """Return the command that installs optional dependencies of this headscope, from where it was itself installed.

    Args:
        extras: names of extras, such as "torch"; each is named once.
    """
    import json
    import os
    import shlex
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    wanted = f"[{','.join(dict.fromkeys(extras))}]"
    try:
        origin = json.loads(distribution("headscope").read_text("direct_url.json") or "{}")
        url = str(origin.get("url", ""))
        path = url2pathname(urlsplit(url).path) if url.startswith("file:") else ""
        editable = bool(origin.get("dir_info", {}).get("editable"))
    except (PackageNotFoundError, OSError, ValueError, AttributeError):
        path, editable = "", False
    if path and os.path.exists(path):
        return f"pip install {'-e ' * editable}{shlex.quote(path + wanted)}"
    return f"pip install 'headscope{wanted}'"


class HeadscopeError(Exception):
    """Base class of headscope's errors: what was found, where, and what to do about it.

    Attributes:
        found: what was found and what was expected, with the values.
        where: the file, tensor, layer, head or argument at fault.
        advice: what the reader can do about it.
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
    """No checkpoint has this name."""


class CheckpointError(HeadscopeError):
    """A checkpoint whose files are damaged or contradict each other."""


class UnsafeError(CheckpointError):
    """A pickle that would run code when it is loaded. None of it was run."""


class ConfigError(HeadscopeError):
    """A config that lacks a required field or holds an impossible value."""


class UnsupportedError(HeadscopeError):
    """Something that headscope can't read correctly; the message names it."""


class InputError(HeadscopeError):
    """A text, id, layer, head or option that can't be used."""


class MissingExtraError(HeadscopeError):
    """An optional dependency that is not installed."""


class TraceError(HeadscopeError):
    """A file that is not a trace, or a trace without the requested data."""


def not_a_number(found: str, where: str) -> CheckpointError:
    """The error for a result that is NaN or infinite."""
    return CheckpointError(found, where=where, advice="`headscope verify` says where NaN or infinity comes from")


class HeadscopeWarning(UserWarning):
    """Base class of headscope's warnings."""


class NoteWarning(HeadscopeWarning):
    """A note of a trace or an answer that a reader must not miss: its numbers are of less, or of more, than meant."""


def require(package: str, *extras: str, where: str, otherwise: str = "") -> None:
    """Raise MissingExtraError unless a package is installed.

    Args:
        package: its name, as it is imported.
        extras: those of headscope that bring it.
        where: the call or option that needs it.
        otherwise: what can be done without it.
    """
    from importlib.util import find_spec

    if find_spec(package) is None:
        ways = [install(*extras)] if extras else [f"pip install {package}"]
        advice = ", or ".join([*ways, *([otherwise] if otherwise else [])])
        raise MissingExtraError(f"{package} is not installed", where=where, advice=advice)


def warn(message: str, category: type[HeadscopeWarning] = NoteWarning) -> None:
    """Warn at the line that called headscope, or the model in which it listens."""
    level, frame = 2, sys._getframe(1)
    inside = ("headscope", "torch", "transformers")
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in inside:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def first_line(error: Exception) -> str:
    """Return the first line of another library's error message, or the error's class name if it is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
