"""Resolving a checkpoint's name: "-", a folder, a file, or a hub id."""

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
    """Return a model's name for use in a sentence: the name itself, or "the bundled model" for "-"."""
    return "the bundled model" if name == "-" else name


@dataclass(frozen=True)
class Location:
    """The location that a name resolves to.

    Attributes:
        origin: "folder", "file", "hub" or "bundled".
        place: the folder or the repository on the hub.
        file: the weight file or index, if the name specifies one; None to choose one from the place.
    """

    origin: str
    place: Place
    file: str | None = None


def resolve(name: str | os.PathLike[str], revision: str | None) -> Location:
    """Resolve a name: an existing path first, then a hub id.

    Raises:
        NotFoundError: there is no such path or model.
        InputError: it can't be a name, or a revision was given for a path.
    """
    text = os.fspath(name) if isinstance(name, (str, bytes, os.PathLike)) else name
    if not isinstance(text, str) or not text.strip() or "\0" in text or not text.isprintable():
        raise InputError(
            f"{text!r} can't be the name of a checkpoint",
            where="the model's name",
            advice='pass a hub id, a folder, a file, or "-"',
        )
    location = _on_disk(text) if text != "-" else _bundled()
    if location is None:
        path = Path(text).expanduser()
        if isinstance(name, os.PathLike) or _looks_like_path(text):
            raise NotFoundError(f"there is no {text}", where=str(path.absolute().parent), advice=_path_advice(path))
        if not HUB_ID.fullmatch(text) or ".." in text or "--" in text:
            raise NotFoundError(
                f"{text!r} is neither an existing path nor a hub id",
                where="the model's name",
                advice=_id_advice(text),
            )
        from headscope.checkpoint.hub import Repository

        return Location("hub", Repository(text, revision))
    if revision is not None:
        raise InputError(
            f"revision {revision} was given, but {text} is on this machine",
            where=location.place.where,
            advice="leave the revision out, or pass a hub id",
        )
    return location


def _bundled() -> Location:
    if not BUNDLED.is_dir():
        raise NotFoundError(
            "the bundled model is not part of this installation",
            where=str(BUNDLED),
            advice="reinstall headscope, or pass a hub id, a folder or a file",
        )
    return Location("bundled", Folder(BUNDLED))


def _on_disk(text: str) -> Location | None:
    try:
        path = Path(text).expanduser()
        if path.is_dir():
            return Location("folder", Folder(path.resolve()))
        if not path.exists():
            return None
    except (OSError, RuntimeError) as error:
        raise NotFoundError(f"{text} can't be accessed: {error}", where=text, advice="check the path") from error
    if path.name == "config.json":
        raise InputError(
            "config.json contains no weights",
            where=str(path.absolute()),
            advice=f"pass its folder: {path.parent}",
        )
    # Links are not resolved: in the hub's cache the file is a link to a blob, and config.json is beside the link.
    return Location("file", Folder(path.absolute().parent), path.name)


def _looks_like_path(text: str) -> bool:
    return (
        text.startswith((".", "/", "~", "\\"))
        or text.endswith(("/", "\\", *FILE_SUFFIXES))
        or "\\" in text
        or (text.count("/") > 1 and "://" not in text)
        or re.match(r"[A-Za-z]:", text) is not None
    )


def _path_advice(path: Path) -> str:
    parent = path.absolute().parent
    if not parent.is_dir():
        return f"the folder {parent} does not exist either: check the path"
    try:
        close = get_close_matches(path.name, [entry.name for entry in parent.iterdir()], 1, 0.6)
    except OSError:
        close = []
    return f"did you mean {parent / close[0]}?" if close else "check the path, or pass a hub id such as owner/name"


def _id_advice(text: str) -> str:
    if "://" in text:
        parts = [part for part in text.split("://", 1)[1].split("?")[0].split("/") if part][1:3]
        return f"pass only the id: {'/'.join(parts)}" if parts else "pass only the id, as owner/name"
    if "@" in text:
        identity, revision = text.split("@", 1)
        return f"pass the revision separately: {identity} with revision {revision}"
    return "a hub id is owner/name, of letters, digits and . _ -"
