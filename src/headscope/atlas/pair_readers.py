"""Pairs of texts to be matched: a .jsonl or .csv file, or a folder with queries, a corpus, and judgements or a run.

A pair is a document of the survey's kind (headscope.atlas.documents), whose text is JSON: the query, the document, and
a label, 1 for a pair that belongs together, 0 for one that doesn't, null where nobody says.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from headscope.atlas.documents import Document, Refused, checked
from headscope.atlas.settings import MAX_DOCUMENT
from headscope.checkpoint.json_text import JsonError, brief, parse_object
from headscope.errors import InputError

FORMS = (
    "pass a .jsonl or .csv file with the fields query, document and, if you have it, label (0 or 1); or a folder with "
    "queries.jsonl, corpus.jsonl, and qrels/*.tsv, *.qrels or a run (*.run, *.trec)"
)
LONGEST_LINE = 1 << 24
"""Characters of a line."""


class Pair(NamedTuple):
    """A query and a document, and whether they belong together (1, 0, or None)."""

    query: str
    document: str
    label: int | None


def pair_of(document: Document) -> Pair:
    """The pair that a document holds."""
    return Pair(*json.loads(document.text))


def read_pairs(path: Path) -> Iterator[Document]:
    """Yield the pairs of a file or a folder, in order.

    Raises:
        InputError: there is no such file, a line isn't a pair, or a query or document is missing; by file and line.
    """
    if path.is_dir():
        yield from _folder(path)
    elif path.suffix.lower() in (".jsonl", ".csv") and path.is_file():
        for place, record in (_json_lines if path.suffix.lower() == ".jsonl" else _csv_rows)(path):
            query, document = (_text(record, name, place) for name in ("query", "document"))
            yield _document(place, query, document, _label(record.get("label"), place))
    else:
        problem = "it is not a file of pairs" if path.exists() else "there is no such file or folder"
        raise InputError(problem, where=str(path), advice=FORMS)


def _document(name: str, query: str, document: str, label: int | None) -> Document:
    return Document(name, json.dumps([query, document, label], ensure_ascii=False))


def _folder(folder: Path) -> Iterator[Document]:
    """Pairs of a run, or without one of the judgements; a document of a run that nobody judged has label 0."""
    judged = {(query, document): grade for query, document, grade in _judgements(folder)}
    runs = sorted((*folder.glob("*.run"), *folder.glob("*.trec")))
    wanted = [pair for path in runs for pair in _run(path)] or list(judged)
    if not wanted:
        raise InputError("there are neither judgements nor a run", where=str(folder), advice=FORMS)
    queries = _texts(folder / "queries.jsonl", {query for query, _ in wanted})
    documents = _texts(folder / "corpus.jsonl", {document for _, document in wanted})
    for query, document in dict.fromkeys(sorted(wanted, key=lambda pair: pair[0])):  # a query's documents together
        for name, texts, of in ((query, queries, "queries"), (document, documents, "corpus")):
            if name not in texts:
                raise InputError(
                    f"there is no text for {name!r:.40}",
                    where=str(folder / f"{of}.jsonl"),
                    advice="add a line with this _id, or leave the pair out",
                )
        label = None if not judged else int(judged.get((query, document), 0) > 0)
        yield _document(f"{query} {document}", queries[query], documents[document], label)


def _judgements(folder: Path) -> Iterator[tuple[str, str, int]]:
    """Query, document and grade: BEIR's tables (query, document, grade) and TREC's (query, 0, document, grade)."""
    for path in (*sorted(folder.glob("qrels/*.tsv")), *sorted(folder.glob("*.qrels"))):
        for place, fields in _columns(path):
            if len(fields) not in (3, 4) or not fields[-1].lstrip("-").isdecimal():
                if place.endswith("#1"):  # a heading
                    continue
                raise InputError(f"expected a judgement, got {fields!r:.60}", where=place, advice=FORMS)
            yield fields[0], fields[-2], int(fields[-1])


def _run(path: Path) -> Iterator[tuple[str, str]]:
    """Query and document of each line of TREC's form: query, Q0, document, rank, score, name."""
    for place, fields in _columns(path):
        if len(fields) != 6:
            raise InputError(f"expected six fields of a run, got {len(fields)}", where=place, advice=FORMS)
        yield fields[0], fields[2]


def _columns(path: Path) -> Iterator[tuple[str, list[str]]]:
    for place, line in _lines(path):
        if line.strip():
            yield place, line.split()


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line with its place; a byte order mark is left out."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), ""), 1):
                if len(line) > LONGEST_LINE:
                    raise InputError(
                        f"the line has more than {LONGEST_LINE:,} characters",
                        where=f"{path}#{number}",
                        advice="split the text",
                    )
                yield f"{path.name}#{number}", line
    except OSError as error:
        raise InputError(f"it can't be read: {error.strerror or error}", where=str(path), advice=FORMS) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"it is not UTF-8: {error.reason}", where=str(path), advice="save the file as UTF-8"
        ) from error


def _json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, line in _lines(path):
        if line.strip():
            try:
                yield place, parse_object(line, unique=False)
            except JsonError as error:
                raise InputError(str(error), where=place, advice=FORMS) from error


def _csv_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    rows = csv.DictReader((line for _, line in _lines(path)), strict=True)
    try:
        for row in rows:
            yield f"{path.name}#{rows.line_num}", row
    except csv.Error as error:
        raise InputError(str(error), where=f"{path.name}#{rows.reader.line_num}", advice=FORMS) from error


def _texts(path: Path, wanted: set[str]) -> dict[str, str]:
    """The wanted texts of a file of BEIR's form: _id, text, and perhaps a title that goes before it."""
    texts = {}
    for place, record in _json_lines(path):
        if str(record.get("_id")) in wanted:
            title = record.get("title")
            text = _text(record, "text", place)
            texts[str(record["_id"])] = f"{title} {text}" if isinstance(title, str) and title.strip() else text
    return texts


def _text(record: dict[str, Any], name: str, place: str) -> str:
    text, problem = record.get(name), ""
    if text is None:
        problem = f"there is no {name}"
    elif not isinstance(text, str):
        problem = f"expected the {name} to be a text, got {brief(text)}"
    elif isinstance(checked(place, text, 0.0, MAX_DOCUMENT), Refused):
        problem = f"the {name} is empty, too long, or can't be encoded in UTF-8"
    if problem:
        raise InputError(problem, where=place, advice=FORMS)
    return str(text)


def _label(value: object, place: str) -> int | None:
    known = {"": None, "none": None, "0": 0, "1": 1, "true": 1, "false": 0}
    if str(value).strip().lower() not in known:
        raise InputError(f"the label is {value!r:.40}", where=place, advice="use 1, 0, true, false, or nothing")
    return known[str(value).strip().lower()]
