"""From a name to an open `Checkpoint`: its location, its config, its weight files' headers, reading its tensors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from headscope.checkpoint.entry import TensorEntry, read_tensor
from headscope.checkpoint.formats import PACKED_SUFFIXES, PICKLE_SUFFIXES, foreign_kind
from headscope.checkpoint.json_text import JsonError, read_object, shown
from headscope.checkpoint.raw_files import FileTree, Source, is_plain
from headscope.checkpoint.resolve import choose_weights, resolve
from headscope.checkpoint.safetensors_header import read_safetensors_header
from headscope.errors import CheckpointError, ConfigError, InputError, NotFoundError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np


Weights = tuple[dict[str, Source], dict[str, TensorEntry]]
"""Weight files by name; and every tensor of their headers by name, in file order."""


def read_weights(place: FileTree, name: str) -> Weights:
    """Read the headers of one weight file, or of all shards of an index.

    Raises:
        CheckpointError: a file or the index is damaged, or they contradict each other.
        UnsupportedError: a format that headscope doesn't read.
    """
    if name.endswith(".index.json"):
        sources, tensors = _read_shards(place, name)
    else:
        source = place.source(name)
        if source is None:
            raise NotFoundError(f"there is no {name}", where=place.where, advice="check the name")
        sources, tensors = {name: source}, read_header(source)
    if len({file.endswith(".safetensors") for file in sources}) > 1:
        raise CheckpointError(
            "its shards have different formats", where=f"{place.where}/{name}", advice="save the checkpoint again"
        )
    return sources, tensors


def read_header(source: Source) -> dict[str, TensorEntry]:
    """Return the tensors of one weight file, in file order."""
    if source.name.endswith(".safetensors"):
        return read_safetensors_header(source)
    if source.name.endswith(PICKLE_SUFFIXES):
        from headscope.checkpoint.pickle_header import read_pickle_header

        return read_pickle_header(source)
    kind = foreign_kind(source.name)
    packed = source.name.endswith(PACKED_SUFFIXES)
    raise UnsupportedError(
        f"headscope can't read {'packed files' if packed else kind + ' files' if kind else 'files with this suffix'}",
        where=source.where,
        advice="unpack it and pass the unpacked folder"
        if packed
        else "pass a .safetensors file, a pytorch_model.bin, or a folder that contains one",
    )


def find_shared(tensors: dict[str, TensorEntry]) -> dict[str, str]:
    """Map the names of tied tensors to the earlier name of exactly the same bytes, dtype and layout."""
    first: dict[tuple[object, ...], str] = {}
    shared: dict[str, str] = {}
    for name, entry in tensors.items():
        if entry.start == entry.stop:
            continue
        earlier = first.setdefault((entry.file, entry.start, entry.stop, entry.dtype, entry.shape, entry.strides), name)
        if earlier != name:
            shared[name] = earlier
    return shared


def _read_shards(place: FileTree, index_name: str) -> Weights:
    where = f"{place.where}/{index_name}"
    weight_map = _read_index(place, index_name, where)
    sources: dict[str, Source] = {}
    tensors: dict[str, TensorEntry] = {}

    def contradiction(problem: str, advice: str = "save the checkpoint again") -> CheckpointError:
        return CheckpointError(problem, where=where, advice=advice)

    for file in dict.fromkeys(weight_map.values()):
        source = place.source(file)
        if source is None and place.unreachable is not None:
            raise place.unreachable
        if source is None:
            count = sum(named == file for named in weight_map.values())
            raise contradiction(
                f"the shard {file} is missing; the index assigns {count} tensors to it",
                "download or copy the checkpoint again, with all its shards",
            )
        sources[file] = source
        for name, entry in read_header(source).items():
            if name in tensors:
                raise contradiction(f"tensor {shown(name)} is in two shards, {tensors[name].file} and {file}")
            if weight_map.get(name) != file:
                expected = f"the index assigns it to {weight_map[name]}" if name in weight_map else "the index lacks it"
                raise contradiction(f"tensor {shown(name)} is in {file}, but {expected}")
            tensors[name] = entry
    absent = [name for name in weight_map if name not in tensors]
    if absent:
        raise contradiction(
            f"the index lists {len(absent)} tensors that are in no shard, such as {shown(absent[0])} "
            f"in {weight_map[absent[0]]}",
            "index and shards are of different versions: download or copy all of them again",
        )
    return sources, tensors


def _read_index(place: FileTree, index_name: str, where: str) -> dict[str, str]:
    path = place.path(index_name)
    if path is None:
        raise NotFoundError(f"there is no {index_name}", where=place.where, advice="check the name")
    try:
        weight_map = read_object(path, unique=True).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise JsonError("it has no weight_map from tensor names to shard files")
        for name, file in weight_map.items():
            if not isinstance(file, str):
                raise JsonError(f"the shard of {shown(name)} is not a file name")
            if not is_plain(file):
                raise JsonError(f"the shard of {shown(name)} is {shown(file)}, which is not a file beside the index")
    except JsonError as error:
        raise CheckpointError(
            f"the index can't be used: {error}", where=where, advice="download or copy the checkpoint again"
        ) from error
    return weight_map


CONFIG_LIMIT = 16_000_000
"""Maximum bytes and items of a config: id2label and label2id for 100,000 classes have 400,000 items."""


def open_checkpoint(name: str | os.PathLike[str], *, revision: str | None = None) -> Checkpoint:
    """Open a checkpoint: read its config and its header, but not its weights.

    Args:
        name: a hub id, a folder, a weight file, or "-" for the bundled model.
        revision: a branch, tag or commit; for hub ids only.

    Raises:
        NotFoundError: there is no such checkpoint.
        CheckpointError: its files are damaged or contradict each other; UnsafeError if a pickle would run code.
        ConfigError: config.json is not a JSON object.
        UnsupportedError: a format that headscope doesn't read.
    """
    origin, place, file = resolve(name, revision)
    weights = read_weights(place, file or choose_weights(place))
    return Checkpoint(name=os.fspath(name), origin=origin, place=place, weights=weights, config=read_config(place))


class Checkpoint:
    """A model's files on disk or on the hub: a config, the files beside it, and a header that names every tensor.

    Attributes:
        name: the name as the user gave it.
        origin: "folder", "file", "hub" or "bundled".
        where: the absolute path of the folder, or the hub id and its commit.
        held: the class of the model in memory that was saved there; empty for other checkpoints.
        own_code: name and class of a part of that model that runs code of its user; empty if none does.
        has_config: True if there is a config.json.
    """

    def __init__(
        self, *, name: str, origin: str, place: FileTree, weights: Weights, config: Mapping[str, Any] | None
    ) -> None:
        self.name = name
        self.origin = origin
        self.where = place.where
        self._sources, self._tensors = weights
        self._shared = find_shared(self._tensors)
        self.held = ""
        self.own_code = "", ""
        self.has_config = config is not None
        self._config = dict(config or {})
        self._place = place

    def __deepcopy__(self, memo: dict[int, Any]) -> Checkpoint:
        """Return the object itself: a checkpoint of a model in memory deletes its folder when it is deleted."""
        return self

    def __repr__(self) -> str:
        return f"<Checkpoint {self.where}: {len(self.tensors)} tensors in {', '.join(self.files)}>"

    @property
    def config(self) -> Mapping[str, Any]:
        """The content of config.json; empty if there is none."""
        return MappingProxyType(self._config)

    @property
    def format(self) -> str:
        """ "safetensors" or "pickle"."""
        return "safetensors" if self.files[0].endswith(".safetensors") else "pickle"

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the weight files."""
        return tuple(self._sources)

    @property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """Every tensor of the header by name, in file order."""
        return MappingProxyType(self._tensors)

    @property
    def shared(self) -> Mapping[str, str]:
        """Name of a tensor -> the earlier name of exactly the same bytes (tied weights of a pickle)."""
        return MappingProxyType(self._shared)

    @property
    def local(self) -> bool:
        """True if all weight files are on this machine; otherwise each read is a range request."""
        return not any(source.remote for source in self._sources.values())

    def read(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> np.ndarray[Any, np.dtype[Any]]:
        """Return a tensor, or a slice of its axes 0 (rows) and 1 (columns), as a read-only array.

        Only the bytes of those rows are read: mapped from disk, or fetched from the hub by one range request.
        BF16 and F8 are upcast to float32; every other dtype is returned as stored.

        Raises:
            InputError: no such tensor, or a slice beyond its shape.
            UnsupportedError: a dtype that NumPy can't represent exactly.
        """
        entry = self._tensors.get(name)
        if entry is None:
            from difflib import get_close_matches

            close = get_close_matches(str(name), self._tensors, 1)
            raise InputError(
                f"there is no tensor {shown(str(name))}",
                where=self.where,
                advice=f"did you mean {close[0]}?" if close else "`headscope shapes` lists them all",
            )
        return read_tensor(self._sources[entry.file], entry, rows, columns)

    def file(self, filename: str) -> Path | None:
        """Return the local path of a file beside the weights (for the hub, in its cache), or None if there is none."""
        return self._place.path(filename)

    def fetch(self) -> None:
        """Download the weight files into the hub's cache, so that reads are memory-mapped.

        Does nothing if the checkpoint is already on this machine.
        """
        if self.local:
            return
        sources = {file: self._place.fetch(file) for file in self.files}
        tensors = {name: entry for source in sources.values() for name, entry in read_header(source).items()}
        if tensors != self._tensors:
            raise CheckpointError(
                "the header of the downloaded files differs from the one read before",
                where=self.where,
                advice="open the checkpoint again",
            )
        self._sources = sources

    def fingerprint(self) -> str:
        """Return the SHA-256, in hex, of the config and of every tensor's name, dtype and shape; reads no weights."""
        import hashlib

        header = sorted((entry.name, entry.dtype, entry.shape) for entry in self.tensors.values())
        text = json.dumps([self._config, header], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def read_config(place: FileTree) -> dict[str, Any] | None:
    """Return the content of config.json; None if there is none.

    Raises:
        ConfigError: it is not a JSON object in UTF-8.
    """
    path = place.path("config.json")
    if path is None:
        return None
    advice = "download or copy config.json again, and check its permissions; it must be a JSON object in UTF-8"
    try:
        return read_object(path, unique=False, most=CONFIG_LIMIT)
    except JsonError as error:
        raise ConfigError(f"config.json can't be read: {error}", where=str(path), advice=advice) from error
