"""CORPUS: a file, a folder, a pattern, a Hugging Face dataset, standard input, or texts in memory."""

from __future__ import annotations

import glob
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from headscope.atlas.documents import Document, Refused, checked, in_pieces, in_record, read_conllu, spelled
from headscope.atlas.readers import read_arrow, read_csv, read_json_lines, read_parquet, read_stream, read_text
from headscope.checkpoint.json_text import JsonError, parse_object
from headscope.errors import InputError

Reader = Callable[..., Iterator[Document | Refused]]

KINDS: dict[str, tuple[str, Reader]] = {
    ".jsonl": ("jsonl", read_json_lines),
    ".ndjson": ("jsonl", read_json_lines),
    ".csv": ("csv", read_csv),
    ".tsv": ("csv", read_csv),
    ".parquet": ("parquet", read_parquet),
    ".arrow": ("hf", read_arrow),
    ".conllu": ("conllu", read_conllu),
}
"""Suffix -> kind of file and its reader. Every other file is read as text."""


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order.

    Attributes:
        name: the last part of the path; `-` for standard input, `texts` for texts in memory.
        kind: text, jsonl, csv, parquet, hf, conllu, stdin, texts, or mixed.
        files: (path, name relative to the corpus, bytes) of each file, sorted by name.
        source: standard input, or texts in memory.
    """

    name: str
    kind: str
    files: tuple[tuple[Path, str, int], ...] = ()
    source: Any = field(default=None, repr=False)

    @property
    def weight(self) -> int | None:
        """Bytes of all files; None if unknown."""
        return sum(size for _, _, size in self.files) if self.files else None

    def record(self) -> dict[str, Any]:
        """The corpus as the manifest records it."""
        files = [{"name": name, "bytes": size} for _, name, size in self.files]
        return {"name": self.name, "kind": self.kind, "files": files}

    def documents(self, field: str, max_document: int, pieces: int = 1) -> Iterator[Document | Refused]:
        """Yield every document in order, reading one at a time, cut into so many pieces."""
        for document in self._whole(field, max_document):
            if pieces == 1 or isinstance(document, Refused):
                yield document
            else:
                yield from in_pieces(document, pieces)

    def _whole(self, field: str, max_document: int) -> Iterator[Document | Refused]:
        if self.kind == "stdin":
            yield read_stream(self.source, "-", 0.0, max_document)
            return
        if self.kind == "texts":
            for number, entry in enumerate(self.source):
                if isinstance(entry, Mapping):
                    yield in_record(str(number), entry, 0.0, field, max_document)
                else:
                    yield checked(str(number), entry, 0.0, max_document)
            return
        for path, name, size in self.files:
            _, reader = _kind_of(path)
            try:
                yield from reader(path, name, field=field, max_document=max_document)
            except OSError as error:
                yield Refused(name, "unreadable", error.strerror or str(error), size)


def open_corpus(
    documents: str | os.PathLike[str] | Iterable[str | Mapping[str, Any]], stdin: BinaryIO | None = None
) -> Corpus:
    """Open a corpus. Only names and sizes of files are read.

    Args:
        documents: a file, a folder, a pattern such as `texts/*.txt`, `-` for standard input, or texts or records.
        stdin: the stream that `-` reads; by default the process's standard input.

    Raises:
        InputError: no file matches, the folder holds several datasets, or `documents` is of another type.
    """
    if not isinstance(documents, (str, os.PathLike)):
        table = hasattr(documents, "columns")  # its iterator has their names
        if table or isinstance(documents, (Mapping, bytes)) or not isinstance(documents, Iterable):
            raise InputError(
                f"expected a corpus, got {type(documents).__name__}",
                where="documents",
                advice="pass a path, a list of texts, or one column of a table: frame['text']",
            )
        return Corpus("texts", "texts", source=documents.to_pylist() if hasattr(documents, "to_pylist") else documents)
    name = os.fspath(documents)
    if name == "-":
        if stdin is None and sys.stdin is None:
            raise InputError("standard input is closed", where="-", advice="pipe a text in, or name a file")
        return Corpus("-", "stdin", source=sys.stdin.buffer if stdin is None else stdin)
    if "\0" in name:
        raise InputError("a path can't contain a NUL character", where=repr(name), advice="name a file or folder")
    path = Path(name)
    try:
        exists = path.exists()
    except OSError as error:  # a text, perhaps, which is too long for a name
        advice = "name a file or folder that can be read; texts are passed as a list: [text]"
        raise InputError(f"it can't be opened: {error.strerror}", where=f"{name:.80}", advice=advice) from error
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return _of_files(path.name, path.parent, [path])
    if exists:
        found = "it is not a regular file, and a pipe or a device can be read only once"
        raise InputError(found, where=name, advice="pipe it in and pass - for standard input")
    if _is_pattern(name):
        files = [match for match in map(Path, glob.glob(name, recursive=True)) if match.is_file()]
        if files:
            fixed = takewhile(lambda part: not _is_pattern(part), path.parts)
            return _of_files(path.name, Path(*fixed), files)
    if "\n" in name:
        raise InputError("a text is not a corpus", where=f"{name:.80}", advice="pass a list of texts: [text]")
    raise InputError(
        "no file matches this pattern" if _is_pattern(name) else "there is no such file or folder",
        where=name,
        advice="name a folder or a pattern of text files, a .jsonl, .csv or .parquet file, a dataset saved with "
        "save_to_disk, or - for standard input; in Python also a list of texts",
    )


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _folder(folder: Path) -> Corpus:
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(split.name for split in folder.iterdir() if (split / "state.json").is_file())
        found = f"this dataset has the splits {', '.join(splits) or '(none)'}"
        advice = f"name one of them: {folder / (splits[0] if splits else 'train')}"
        raise InputError(found, where=str(folder), advice=advice)
    if (folder / "state.json").is_file():
        return _of_files(folder.name, folder, _arrow_files(folder), kind="hf")
    files = list(_files_in(folder))
    # A treebank's folder also has a README, a licence and its plain text.
    files = [file for file in files if _kind_of(file)[0] == "conllu"] or files
    if not files:
        raise InputError("the folder has no files", where=str(folder), advice="name a folder with texts in it")
    return _of_files(folder.resolve().name, folder, files)


def _files_in(root: Path) -> Iterator[Path]:
    """Yield every regular file, in subfolders too, except hidden ones.

    Raises:
        InputError: a folder can't be listed. Skipping it would make another corpus.
    """

    def stop(error: OSError) -> None:
        found = f"the folder can't be listed: {error.strerror or error}"
        advice = "change its permissions, move it elsewhere, or name the files with a pattern"
        raise InputError(found, where=str(error.filename), advice=advice) from error

    for place, folders, names in os.walk(root, onerror=stop):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        for name in names:
            path = Path(place, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _arrow_files(folder: Path) -> list[Path]:
    """The files listed in a dataset's state.json."""
    where = folder / "state.json"
    try:
        state = parse_object(where.read_bytes(), unique=False)
    except JsonError as error:
        raise InputError(str(error), where=str(where), advice="save the dataset again with save_to_disk") from error
    listed = state.get("_data_files")
    names = [entry.get("filename") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    files = [folder / name for name in names if isinstance(name, str) and Path(name).name == name]
    missing = [file.name for file in files if not file.is_file()]
    if not files or missing or len(files) != len(names):
        found = f"state.json lists missing files: {', '.join(missing)}" if missing else "state.json lists no files"
        raise InputError(found, where=str(where), advice="save the dataset again with save_to_disk")
    if state.get("_indices_data_files"):
        found = "the dataset's rows are selected or shuffled by an index in a separate file"
        raise InputError(found, where=str(where), advice="call flatten_indices() before save_to_disk()")
    return files


def _of_files(name: str, root: Path, files: Iterable[Path], kind: str | None = None) -> Corpus:
    """A corpus of files sorted by their names relative to a folder; a dataset keeps its order."""
    rows = []
    for path in files:
        relative = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
        rows.append((path, spelled(relative.as_posix()), path.stat().st_size))
    duplicates = [name for name, count in Counter(name for _, name, _ in rows).items() if count > 1]
    if duplicates:
        raise InputError(
            f"{len(duplicates)} file names are the same once escaped to valid UTF-8, the first of them {duplicates[0]}",
            where=str(root),
            advice="rename one of the files",
        )
    if kind is None:
        rows.sort(key=lambda row: row[1])
        kinds = {_kind_of(path)[0] for path, _, _ in rows}
        if "conllu" in kinds and len(kinds) > 1:
            advice = "name the treebanks alone: 'texts/*.conllu'"
            raise InputError("some files are treebanks (.conllu), others are not", where=name, advice=advice)
        kind = kinds.pop() if len(kinds) == 1 else "mixed"
    return Corpus(spelled(name), kind, tuple(rows))


def _kind_of(path: Path) -> tuple[str, Reader]:
    return KINDS.get(path.suffix.lower(), ("text", read_text))
