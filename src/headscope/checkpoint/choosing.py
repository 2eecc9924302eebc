"""The weight file of a folder or repository, and the error if there is none."""

from __future__ import annotations

import re

from headscope.checkpoint.formats import PACKED_SUFFIXES, PICKLE_SUFFIXES, PREFERENCE, foreign_kind
from headscope.checkpoint.json_text import JsonError, few, read_object, shown
from headscope.checkpoint.place import Folder, Place
from headscope.errors import HeadscopeError, NotFoundError, UnsupportedError

ADAPTERS = ("adapter_model.", "pytorch_adapter.", "pytorch_model_head.")
"""Prefixes of weight files for the top of another model: peft's, and adapters'."""

NO_WEIGHTS = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state|random_states|sampler)\w*\.\w+$")
"""Files that training saves beside the weights, with the same suffixes."""

SHARD = re.compile(r"-\d+-of-\d+\.\w+$")
ADAPTER_CONFIG_LIMIT = 1_000_000
MOST_NAMES = 6
"""Maximum number of files and folders in a message."""


def choose_weights(place: Place) -> str:
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


def _several(place: Place, weights: list[str]) -> HeadscopeError:
    advice = "pass one of the files"
    if all(SHARD.search(name) for name in weights):
        advice = "download the index.json of these shards and put it beside them"
    return NotFoundError(
        f"{len(weights)} weight files but no index: {few(weights, MOST_NAMES)}",
        where=place.where,
        advice=advice,
    )


def _adapter(place: Place, adapter: str) -> HeadscopeError:
    base = _base_of_adapter(place)
    return UnsupportedError(
        f"{adapter} contains an adapter (fine-tuned additions to a model), not a model's weights",
        where=place.where,
        advice=f"open the base model{f' ({base})' if base else ''}, or merge the adapter into it and save the result",
    )


def _base_of_adapter(place: Place) -> str | None:
    """Return the base model that adapter_config.json names, or None."""
    path = place.path("adapter_config.json")
    try:
        if path is None:
            return None
        config = read_object(path, unique=False, most=ADAPTER_CONFIG_LIMIT)
    except JsonError:
        return None
    base = config.get("base_model_name_or_path") or config.get("model_name")
    return shown(base) if isinstance(base, str) else None


def _nothing(place: Place, names: list[str]) -> HeadscopeError:
    """Return the error for a place without weights: they are in a subfolder, in another format, packed, or nowhere."""
    below = place.below()
    inner = sorted({name.rpartition("/")[0] for name in below if name.rpartition("/")[2] in PREFERENCE})
    if inner:
        local = isinstance(place, Folder)
        return NotFoundError(
            f"no weights here, but in {few(inner, MOST_NAMES)}",
            where=place.where,
            advice=f"pass their folder, such as {place.where}/{inner[0]}"
            if local
            else "download the model and pass the subfolder with the weights",
        )
    cached = [name for name in names if name.startswith("models--")]
    if cached:
        return NotFoundError(
            "no weights: this is the hub's cache",
            where=place.where,
            advice=f"pass a model's id, such as {cached[0].strip('/').removeprefix('models--').replace('--', '/')}",
        )
    foreign = [(name, kind) for name in (*names, *below) if (kind := foreign_kind(name)) is not None]
    if foreign:
        return UnsupportedError(
            f"the only weights are {foreign[0][0]} ({foreign[0][1]}), which headscope can't read",
            where=place.where,
            advice="load them with the library that wrote them and save them as model.safetensors",
        )
    packed = [name for name in names if name.endswith(PACKED_SUFFIXES)]
    return NotFoundError(
        f"no weights: {f'it holds {few(names, MOST_NAMES)}' if names else 'it is empty'}",
        where=place.where,
        advice=f"unpack {packed[0]} and pass the unpacked folder"
        if packed
        else "a checkpoint contains model.safetensors or pytorch_model.bin (or their index.json and shards)",
    )
