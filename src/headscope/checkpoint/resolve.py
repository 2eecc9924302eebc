"""What a checkpoint's name means: "-", a folder, a file, or a hub id."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from headscope.checkpoint.formats import PICKLE_SUFFIXES
from headscope.checkpoint.place import Folder, Place
from headscope.errors import InputError, NotFoundError

BUNDLED = Path(__file__).parent.parent / "models" / "tiny"
HUB_ID = re.compile(r"(?:[A-Za-z0-9_][\w.-]{0,95}/)?[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
FILE_SUFFIXES = (".safetensors", *PICKLE_SUFFIXES, ".json", ".h5", ".msgpack", ".onnx", ".gguf")


def called(name: str) -> str:
    """A model's name in a text: what was typed, but for the bundled one's dash."""
    return "the bundled model" if name == "-" else name


@dataclass(frozen=True)
class Found:
    """Where a name leads.

    Attributes:
        origin: "folder", "file", "hub" or "bundled".
        place: the folder or the hub's repository.
        file: the weight file or index that was named; None where the place decides.
    """

    origin: str
    place: Place
    file: str | None = None


def resolve(name: str | os.PathLike[str], revision: str | None) -> Found:
    """The place that a name means: a path that exists first, then a hub id.

    Raises:
        NotFoundError: it leads nowhere.
        InputError: it can't be a name, or a revision was given for something that has none.
    """
    text = os.fspath(name) if isinstance(name, (str, bytes, os.PathLike)) else name
    if not isinstance(text, str) or not text.strip() or "\0" in text or not text.isprintable():
        raise InputError(
            f"{text!r} can't be the name of a checkpoint",
            where="the model's name",
            advice='give a hub id, a folder, a file, or "-"',
        )
    found = _on_disk(text) if text != "-" else _bundled()
    if found is None:
        path = Path(text).expanduser()
        if isinstance(name, os.PathLike) or _looks_like_path(text):
            raise NotFoundError(f"there is no {text}", where=str(path.absolute().parent), advice=_near(path))
        if not HUB_ID.fullmatch(text) or ".." in text or "--" in text:
            raise NotFoundError(
                f"{text!r} is neither a path that exists nor a hub id",
                where="the model's name",
                advice=_correct_id(text),
            )
        from headscope.checkpoint.hub import Repository

        return Found("hub", Repository(text, revision))
    if revision is not None:
        raise InputError(
            f"a revision ({revision}) was given, but {text} is on this machine",
            where=found.place.where,
            advice="leave the revision out, or give a hub id",
        )
    return found


def _bundled() -> Found:
    if not BUNDLED.is_dir():
        raise NotFoundError(
            "the bundled model is not part of this installation",
            where=str(BUNDLED),
            advice="install headscope again, or give a hub id, a folder or a file",
        )
    return Found("bundled", Folder(BUNDLED))


def _on_disk(text: str) -> Found | None:
    try:
        path = Path(text).expanduser()
        if path.is_dir():
            return Found("folder", Folder(path.resolve()))
        if not path.exists():
            return None
    except (OSError, RuntimeError) as error:
        raise NotFoundError(f"{text} can't be looked at: {error}", where=text, advice="check the path") from error
    if path.name == "config.json":
        raise InputError(
            "config.json was given, which holds no weights",
            where=str(path.absolute()),
            advice=f"give the folder: {path.parent}",
        )
    # Not resolved: in the hub's cache the file is a link to a blob, and config.json lies beside the link.
    return Found("file", Folder(path.absolute().parent), path.name)


def _looks_like_path(text: str) -> bool:
    return (
        text.startswith((".", "/", "~", "\\"))
        or text.endswith(("/", "\\", *FILE_SUFFIXES))
        or "\\" in text
        or (text.count("/") > 1 and "://" not in text)
        or re.match(r"[A-Za-z]:", text) is not None
    )


def _near(path: Path) -> str:
    parent = path.absolute().parent
    if not parent.is_dir():
        return f"the folder {parent} does not exist either: check the path"
    try:
        close = get_close_matches(path.name, [entry.name for entry in parent.iterdir()], 1, 0.6)
    except OSError:
        close = []
    return f"did you mean {parent / close[0]}?" if close else "check the path, or give a hub id such as owner/name"


def _correct_id(text: str) -> str:
    if "://" in text:
        parts = [part for part in text.split("://", 1)[1].split("?")[0].split("/") if part][1:3]
        return f"give the id alone: {'/'.join(parts)}" if parts else "give the id alone, as owner/name"
    if "@" in text:
        identity, revision = text.split("@", 1)
        return f"give the revision apart: {identity} with revision {revision}"
    return "a hub id is owner/name, of letters, digits and . _ -"
