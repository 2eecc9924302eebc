"""From a name ("-", a folder, a file, or a hub id) to a weight file, and the error if there is none."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from headscope.checkpoint.formats import CONVERT, PACKED_SUFFIXES, PICKLE_SUFFIXES, PREFERENCE, foreign_kind
from headscope.checkpoint.json_text import JsonError, brief, few, read_object, shown
from headscope.checkpoint.raw_files import FileTree, Folder
from headscope.errors import HeadscopeError, InputError, NotFoundError, UnsupportedError

BUNDLED = Path(__file__).parent.parent / "models" / "tiny"
HUB_ID = re.compile(r"(?:[A-Za-z0-9_][\w.-]{0,95}/)?[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
PLAIN_FOLDER = re.compile(
    r"(pytorch_|onnx_|final_|best_)?model|models|output|outputs|(best|last|final|checkpoint|epoch|step)([-_]?\w*\d)?",
    re.IGNORECASE,
)
"""Names that many folders of models share."""
FILE_SUFFIXES = (".safetensors", *PICKLE_SUFFIXES, ".json", ".h5", ".msgpack", ".onnx", ".gguf")


def called(name: str) -> str:
    """Return a model's name for use in a sentence: the name itself, or "the bundled model" for "-"."""
    return "the bundled model" if name == "-" else name


def model_name(model: str) -> str:
    """A model's name as people say it: a folder's last part, the bundled model's own name; a hub id stays whole.

    A folder that is called like any other (model, checkpoint-500) says its parent's name as well; a snapshot in the
    hub's cache is called by its hub id.
    """
    if model == "-":
        card = (BUNDLED / "README.md").read_text(encoding="utf-8")
        return next(line[2:].strip() for line in card.splitlines() if line.startswith("# "))
    if not (Path(model).is_absolute() or model.startswith(".") or os.path.isdir(model)):
        return model
    path = Path(model).resolve() if Path(model).name in ("", "..") else Path(model)
    for part in path.parts:
        if part.startswith("models--") and path.parent.name == "snapshots":
            return part.removeprefix("models--").replace("--", "/")
    return f"{path.parent.name}/{path.name}" if PLAIN_FOLDER.fullmatch(path.name) and path.parent.name else path.name


Location = tuple[str, FileTree, str | None]
"""The place of a name: "folder", "file", "hub" or "bundled"; the folder or repository; the file, if it is one."""


def resolve(name: str | os.PathLike[str], revision: str | None) -> Location:
    """Resolve a name: an existing path first, then a hub id.

    Raises:
        NotFoundError: there is no such path or model.
        InputError: it can't be a name, or a revision was given for a path.
    """
    text = os.fspath(name) if isinstance(name, (str, bytes, os.PathLike)) else name
    if not isinstance(text, str) or not text.strip() or "\0" in text or not text.isprintable():
        raise InputError(
            f"{brief(text)} can't be the name of a checkpoint",
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
                f"{text!r} is neither an existing path nor a hub id", where="the model's name", advice=_id_advice(text)
            )
        from headscope.checkpoint.hub import Repository

        return "hub", Repository(text, None if revision is None else str(revision)), None
    if revision is not None:
        raise InputError(
            f"revision {revision} was given, but {text} is on this machine",
            where=location[1].where,
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
    return "bundled", Folder(BUNDLED), None


def _on_disk(text: str) -> Location | None:
    try:
        path = Path(text).expanduser()
        if path.is_dir():
            return "folder", Folder(path.resolve()), None
        if path.is_symlink() and not path.exists():
            raise NotFoundError(
                f"{text} is a link to {shown(os.readlink(path))}, which leads nowhere",
                where=str(path.absolute().parent),
                advice="pass the folder or file itself, or copy it again with what its links lead to (cp -rL)",
            )
        if not path.exists():
            return None
    except (OSError, RuntimeError) as error:
        raise NotFoundError(f"{text} can't be accessed: {error}", where=text, advice="check the path") from error
    if path.name == "config.json":
        raise InputError(
            "config.json contains no weights", where=str(path.absolute()), advice=f"pass its folder: {path.parent}"
        )
    # Links are not resolved: in the hub's cache the file is a link to a blob, and config.json is beside the link.
    return "file", Folder(path.absolute().parent), path.name


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


ADAPTERS = ("adapter_model.", "pytorch_adapter.", "pytorch_model_head.")
"""Prefixes of weight files for the top of another model: peft's, and adapters'."""

NO_WEIGHTS = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state|random_states|sampler)\w*\.\w+$")
"""Files that training saves beside the weights, with the same suffixes."""

SHARD = re.compile(r"-\d+-of-\d+\.\w+$")
ADAPTER_CONFIG_LIMIT = 1_000_000
MOST_NAMES = 6
"""Maximum number of files and folders in a message."""


def choose_weights(place: FileTree) -> str:
    """Return the name of the weight file, or of the index of the shards.

    The usual names come first, then the only safetensors file, then the only pickle that may contain weights.

    Raises:
        NotFoundError: there is none, or several without an index.
        UnsupportedError: the only weights are an adapter or in a format that headscope doesn't read.
    """
    for name in PREFERENCE:
        # An index is read whole, weights by span: on the hub, these are different requests.
        if (place.path(name) if name.endswith(".json") else place.source(name)) is not None:
            return name
    names = [name for name in place.names() if "/" not in name.removesuffix("/")]
    adapters = [name for name in names if name.startswith(ADAPTERS)]
    weights = [name for name in names if name.endswith(".safetensors") and name not in adapters]
    if not weights and not adapters:
        weights = [
            name
            for name in names
            if name.endswith(PICKLE_SUFFIXES) and not NO_WEIGHTS.match(name) and foreign_kind(name) is None
        ]
    if len(weights) == 1:
        return weights[0]
    raise _several(place, weights) if weights else _adapter(place, adapters[0]) if adapters else _nothing(place, names)


def _several(place: FileTree, weights: list[str]) -> HeadscopeError:
    advice = "pass one of the files"
    if all(SHARD.search(name) for name in weights):
        advice = "download the index.json of these shards and put it beside them"
    return NotFoundError(
        f"{len(weights)} weight files but no index: {few(weights, MOST_NAMES)}", where=place.where, advice=advice
    )


def _adapter(place: FileTree, adapter: str) -> HeadscopeError:
    """Return the error for an adapter, with the base model if adapter_config.json names it."""
    base, path = None, place.path("adapter_config.json")
    with suppress(JsonError):
        config = {} if path is None else read_object(path, unique=False, most=ADAPTER_CONFIG_LIMIT)
        base = config.get("base_model_name_or_path") or config.get("model_name")
    base = shown(base) if isinstance(base, str) else None
    return UnsupportedError(
        f"{adapter} contains an adapter (fine-tuned additions to a model), not a model's weights",
        where=place.where,
        advice=f"open the base model{f' ({base})' if base else ''}, or merge the adapter into it and save the result",
    )


def _nothing(place: FileTree, names: list[str]) -> HeadscopeError:
    """Return the error for a place without weights: they are in a subfolder, in another format, packed, or nowhere."""
    below = place.below()
    inner = sorted({name.rpartition("/")[0] for name in below if name.rpartition("/")[2] in PREFERENCE})
    cached = [name for name in names if name.startswith("models--")]
    foreign = [(name, kind) for name in (*names, *below) if (kind := foreign_kind(name)) is not None]
    packed = [name for name in names if name.endswith(PACKED_SUFFIXES)]
    if inner:
        found = f"no weights here, but in {few(inner, MOST_NAMES)}"
        advice = "download the model and pass the subfolder with the weights"
        if isinstance(place, Folder):
            advice = f"pass their folder, such as {place.where}/{inner[0]}"
    elif cached:
        found = "no weights: this is the hub's cache"
        advice = f"pass a model's id, such as {cached[0].strip('/').removeprefix('models--').replace('--', '/')}"
    elif foreign:
        found = f"the only weights are {foreign[0][0]} ({foreign[0][1]}), which headscope can't read"
        save = "load them with the library that wrote them and save them as model.safetensors"
        advice = next((advice for suffix, advice in CONVERT.items() if suffix in foreign[0][0]), save)
        return UnsupportedError(found, where=place.where, advice=advice)
    else:
        found = f"no weights: {f'it holds {few(names, MOST_NAMES)}' if names else 'it is empty'}"
        advice = "a checkpoint contains model.safetensors or pytorch_model.bin (or their index.json and shards)"
        advice = f"unpack {packed[0]} and pass the unpacked folder" if packed else advice
    return NotFoundError(found, where=place.where, advice=advice)
