"""From a name to an open `Checkpoint`: what the name means, its config, its tensors, and how they are read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from headscope.checkpoint.choosing import choose_weights
from headscope.checkpoint.entry import TensorEntry
from headscope.checkpoint.json_text import JsonError, read_object, shown
from headscope.checkpoint.place import Place
from headscope.checkpoint.resolve import resolve
from headscope.checkpoint.weights import Weights, find_shared, read_header, read_weights
from headscope.errors import CheckpointError, ConfigError, InputError

if TYPE_CHECKING:
    import numpy as np

CONFIG_LIMIT, CONFIG_ITEMS = 16_000_000, 500_000
"""Most bytes and items of a config: id2label of 100,000 classes, with label2id, has 400,000 items."""


def open_checkpoint(name: str | os.PathLike[str], *, revision: str | None = None) -> Checkpoint:
    """Open a checkpoint: its config and its header are read, its weights are not.

    Args:
        name: a hub id, a folder, a weight file, or "-" for the bundled model.
        revision: a branch, tag or commit, of a hub id only.

    Raises:
        NotFoundError: the name leads to no checkpoint.
        CheckpointError: its files are damaged or contradict each other; UnsafeError where a pickle asks to run code.
        ConfigError: config.json is not a JSON object.
        UnsupportedError: a format that headscope does not read.
    """
    found = resolve(name, revision)
    weights = read_weights(found.place, found.file or choose_weights(found.place))
    return Checkpoint(
        name=os.fspath(name), origin=found.origin, place=found.place, weights=weights, config=read_config(found.place)
    )


class Checkpoint:
    """What is on disk (or on the hub): a config, files beside it, and a header that names every tensor.

    Attributes:
        name: what was typed.
        origin: "folder", "file", "hub" or "bundled".
        where: the absolute path of the folder, or the hub id and its commit.
        has_config: whether there is a config.json.
        config: config.json as read; empty where there is none.
    """

    def __init__(
        self, *, name: str, origin: str, place: Place, weights: Weights, config: Mapping[str, Any] | None
    ) -> None:
        self.name = name
        self.origin = origin
        self.where = place.where
        self.has_config = config is not None
        self.config: Mapping[str, Any] = MappingProxyType(dict(config or {}))
        self._place = place
        self._weights = weights

    def __repr__(self) -> str:
        return f"<Checkpoint {self.where}: {len(self.tensors)} tensors in {', '.join(self.files)}>"

    @property
    def format(self) -> str:
        """ "safetensors" or "pickle"."""
        return self._weights.format

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the weight files."""
        return tuple(self._weights.sources)

    @property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """Every tensor of the header by name, in file order."""
        return MappingProxyType(self._weights.tensors)

    @property
    def shared(self) -> Mapping[str, str]:
        """A tensor's name, and the earlier name that has exactly the same bytes (tied weights of a pickle)."""
        return MappingProxyType(self._weights.shared)

    @property
    def local(self) -> bool:
        """Whether all weight files are on this machine; if not, each read is a range request."""
        return not any(source.remote for source in self._weights.sources.values())

    def read(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> np.ndarray[Any, np.dtype[Any]]:
        """One tensor, or a slice of its axes 0 (rows) and 1 (columns), as a read-only array.

        Only those rows' bytes are read: mapped from the disk, or fetched by one range request from the hub.
        BF16 and F8 come back as float32, every other dtype as it is stored.

        Raises:
            InputError: no such tensor, or a slice beyond its shape.
            UnsupportedError: a dtype that NumPy has no exact array for.
        """
        from headscope.checkpoint.reading import read_tensor

        entry = self._weights.tensors.get(name)
        if entry is None:
            from difflib import get_close_matches

            close = get_close_matches(name, self._weights.tensors, 1)
            raise InputError(
                f"there is no tensor {shown(name)}",
                where=self.where,
                advice=f"did you mean {close[0]}?" if close else "`headscope shapes` lists them all",
            )
        return read_tensor(self._weights.sources[entry.file], entry, rows, columns)

    def file(self, filename: str) -> Path | None:
        """The local path of a file beside the weights (from the hub: by way of its cache), or None if there is none."""
        return self._place.path(filename)

    def fetch(self) -> None:
        """Bring the weight files onto this machine (the hub's own cache), so that reads are maps of them.

        Does nothing for a checkpoint that is on this machine already.
        """
        if self.local:
            return
        sources = {file: self._place.fetch(file) for file in self.files}
        tensors = {name: entry for source in sources.values() for name, entry in read_header(source).items()}
        if tensors != self._weights.tensors:
            raise CheckpointError(
                "the downloaded files have another header than the one read before",
                where=self.where,
                advice="open the checkpoint again",
            )
        self._weights = Weights(self.format, sources, tensors, find_shared(tensors))

    def fingerprint(self) -> str:
        """SHA-256, in hex, of the config and of every tensor's name, dtype and shape; no weights are read."""
        import hashlib

        header = sorted((entry.name, entry.dtype, entry.shape) for entry in self.tensors.values())
        text = json.dumps([dict(self.config), header], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def read_config(place: Place) -> dict[str, Any] | None:
    """config.json of a place; None where there is none.

    Raises:
        ConfigError: it is not a JSON object in UTF-8.
    """
    path = place.path("config.json")
    if path is None:
        return None
    advice = "download or copy config.json again, and check that you may read it; it is a JSON object in UTF-8"
    try:
        return read_object(path, unique=False, most=CONFIG_LIMIT, items=CONFIG_ITEMS)
    except JsonError as error:
        raise ConfigError(f"config.json can't be read: {error}", where=str(path), advice=advice) from error
