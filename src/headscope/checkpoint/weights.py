"""The combined headers of a checkpoint's weight files: a single file, or shards with an index."""

from __future__ import annotations

from dataclasses import dataclass

from headscope.checkpoint.entry import TensorEntry
from headscope.checkpoint.formats import PACKED_SUFFIXES, PICKLE_SUFFIXES, foreign_kind
from headscope.checkpoint.json_text import JsonError, read_object, shown
from headscope.checkpoint.raw_files import FileTree, Source
from headscope.checkpoint.safetensors_header import read_safetensors_header
from headscope.errors import CheckpointError, NotFoundError, UnsupportedError


@dataclass(frozen=True)
class Weights:
    """The combined headers of a checkpoint's weight files.

    Attributes:
        format: "safetensors" or "pickle".
        sources: the weight files by name.
        tensors: every tensor by name, in file order.
        shared: name of a tensor -> the earlier name of exactly the same bytes.
    """

    format: str
    sources: dict[str, Source]
    tensors: dict[str, TensorEntry]
    shared: dict[str, str]


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
    kinds = {"safetensors" if file.endswith(".safetensors") else "pickle" for file in sources}
    if len(kinds) > 1:
        raise CheckpointError(
            "its shards have different formats", where=f"{place.where}/{name}", advice="save the checkpoint again"
        )
    return Weights(kinds.pop(), sources, tensors, find_shared(tensors))


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


def _read_shards(place: FileTree, index_name: str) -> tuple[dict[str, Source], dict[str, TensorEntry]]:
    where = f"{place.where}/{index_name}"
    weight_map = _read_index(place, index_name, where)
    sources: dict[str, Source] = {}
    tensors: dict[str, TensorEntry] = {}
    for file in dict.fromkeys(weight_map.values()):
        source = place.source(file)
        if source is None:
            count = sum(named == file for named in weight_map.values())
            raise CheckpointError(
                f"the shard {file} is missing; the index assigns {count} tensors to it",
                where=where,
                advice="download or copy the checkpoint again, with all its shards",
            )
        sources[file] = source
        for name, entry in read_header(source).items():
            if name in tensors:
                raise CheckpointError(
                    f"tensor {shown(name)} is in two shards, {tensors[name].file} and {file}",
                    where=where,
                    advice="save the checkpoint again",
                )
            if weight_map.get(name) != file:
                expected = f"the index assigns it to {weight_map[name]}" if name in weight_map else "the index lacks it"
                raise CheckpointError(
                    f"tensor {shown(name)} is in {file}, but {expected}",
                    where=where,
                    advice="save the checkpoint again",
                )
            tensors[name] = entry
    absent = [name for name in weight_map if name not in tensors]
    if absent:
        raise CheckpointError(
            f"the index lists {len(absent)} tensors that are in no shard, such as {shown(absent[0])} "
            f"in {weight_map[absent[0]]}",
            where=where,
            advice="index and shards are of different versions: download or copy all of them again",
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
            if (
                not file
                or file in (".", "..")
                or any(sign in file for sign in "/\\:\0")
                or not file.isprintable()
                or len(file) > 255
            ):
                raise JsonError(f"the shard of {shown(name)} is {shown(file)}, which is not a file beside the index")
    except JsonError as error:
        raise CheckpointError(
            f"the index can't be used: {error}", where=where, advice="download or copy the checkpoint again"
        ) from error
    return weight_map
