"""Documents, refused documents, and the parts that they are grouped into; treebanks in the CoNLL-U format.

Treebanks are read as documents of sentences, each word with its head and relation. The format is that of Universal
Dependencies (https://universaldependencies.org/format.html), in any language. Multi-word tokens (`3-4`) and empty nodes
(`5.1`) are left out: heads and relations are of words.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from headscope.errors import InputError

APART = 10_000
"""Most characters that a piece of a document may be longer for the sake of a whole paragraph."""
DOCUMENT_COST = 100
"""Characters added to each document's size, so that a part of many short documents ends, too."""


@dataclass(frozen=True)
class Document:
    """A readable text.

    Attributes:
        name: the file relative to the corpus; `file#number` for a row of a table.
        text: its text.
        weight: its share of the corpus, in bytes.
        sentences: its trees, in a treebank; `text` is then the lines that they were read from.
    """

    name: str
    text: str
    weight: float = 0.0
    sentences: tuple[Sentence, ...] = ()

    @cached_property
    def digest(self) -> str:
        """The text's sha256. What is drawn by lot is drawn by this, so the names of files don't matter."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Refused:
    """A document that can't be used.

    Attributes:
        name: as in Document.
        reason: one or two words, for counting: `empty`, `not UTF-8`, `too long`, ….
        detail: a clause that says what is wrong.
        weight: as in Document.
    """

    name: str
    reason: str
    detail: str
    weight: float = 0.0

    def record(self) -> dict[str, Any]:
        """The refusal as the manifest records it."""
        return {"document": self.name, "reason": self.reason, "detail": self.detail}


def not_utf8(name: str, data: bytes, error: UnicodeDecodeError, weight: float) -> Refused:
    """The refusal of bytes that are not UTF-8."""
    return Refused(name, "not UTF-8", f"byte {error.start} is {data[error.start]:#04x}: {error.reason}", weight)


@dataclass(frozen=True)
class CorpusPart:
    """Neighbouring documents, from which one file of the survey is made.

    Attributes:
        index: counted from 0.
        documents: those that could be read.
        refused: those that could not.
        texts: sha256 of names, texts and refusals, which tells whether a part on disk was made from the same texts.
        weight: its bytes of the corpus.
    """

    index: int
    documents: tuple[Document, ...]
    refused: tuple[Refused, ...]
    texts: str
    weight: float


def checked(name: str, text: Any, weight: float, max_document: int) -> Document | Refused:
    """Return a document, or the reason why the text can't be used."""
    if not isinstance(text, str):
        return Refused(name, "no text", f"expected a text, got {type(text).__name__}", weight)
    if len(text) > max_document:
        return Refused(name, "too long", f"it has {len(text):,} characters; the limit is {max_document:,}", weight)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return Refused(name, "not UTF-8", f"character {error.start} can't be encoded in UTF-8", weight)
    if not text.strip():
        return Refused(name, "empty", "it has only whitespace" if text else "it has no characters", weight)
    return Document(name, text, weight)


def in_record(name: str, record: Mapping[str, Any], weight: float, field: str, max_document: int) -> Document | Refused:
    """The text in a field of a record, as of JSON; or the reason why there is none."""
    if field not in record:
        return Refused(name, "no field", no_field(field, record), weight)
    return checked(name, record[field], weight, max_document)


def in_pieces(document: Document, count: int) -> Iterator[Document]:
    """A text in so many pieces of about the same length, whole paragraphs, or else lines or words, where it has them.

    Raises:
        InputError: it is a treebank's.
    """
    if document.sentences:
        advice = "leave it out: in a treebank without `# newdoc`, each sentence is a document"
        raise InputError("a treebank's documents are not cut into pieces", where="pieces", advice=advice)
    text, begin = document.text, 0
    count = min(count, max(1, len(text)))
    for number in range(1, count + 1):
        near = len(text) * number // count
        ends = (text.find(mark, near) + len(mark) for mark in ("\n\n", "\n", " ") if mark in text[near : near + APART])
        end = len(text) if number == count else max(begin, next(ends, near))
        if text[begin:end].strip():
            yield replace(
                document, name=f"{document.name}:{number}", text=text[begin:end], weight=document.weight / count
            )
        begin = end


def spelled(name: str) -> str:
    """A name that is valid UTF-8: other bytes of a file's name are escaped, as in \\xe9."""
    bytes_as_surrogates = re.sub("[\udc80-\udcff]", lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", name)
    return bytes_as_surrogates.encode("utf-8", "backslashreplace").decode()


def no_field(field: str, fields: Iterable[str]) -> str:
    """The message that a table lacks a field, with the fields it has."""
    names = [spelled(str(name)) for name in fields]
    listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"no field {field!r}; the fields are {listed or '(none)'}; choose one: --field NAME, in Python field=NAME"


def parts(documents: Iterable[Document | Refused], part_size: int) -> Iterator[CorpusPart]:
    """Group documents in their order into parts of about `part_size` characters. One part is in memory at a time."""
    index = 0
    size = 0
    read: list[Document] = []
    refused: list[Refused] = []
    digest = hashlib.sha256()

    def finished() -> CorpusPart:
        weight = sum(document.weight for document in read) + sum(document.weight for document in refused)
        return CorpusPart(index, tuple(read), tuple(refused), digest.hexdigest(), weight)

    for document in documents:
        if isinstance(document, Document):
            read.append(document)
            size += len(document.text)
            hashed = (document.name, document.text)
        else:
            refused.append(document)
            hashed = (document.name, document.reason)
        for string in hashed:
            data = string.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        size += DOCUMENT_COST
        if size >= part_size:
            yield finished()
            index, size, read, refused, digest = index + 1, 0, [], [], hashlib.sha256()
    if read or refused:
        yield finished()


COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")

NUMBER = re.compile(r"0|[1-9][0-9]{0,5}")
NO_WORD = re.compile(r"[1-9][0-9]{0,5}-[1-9][0-9]{0,5}|(0|[1-9][0-9]{0,5})\.[1-9][0-9]{0,5}")
"""IDs of multi-word tokens and of empty nodes."""
NEW_DOCUMENT = re.compile(r"#\s*newdoc(\s|$)")

ADVICE = "correct the file; tools/validate.py of Universal Dependencies lists all of a file's errors"


@dataclass(frozen=True)
class Sentence:
    """A tree.

    Attributes:
        line: the file's line with its first word, from 1.
        words: the forms, as the treebank splits them.
        tags: each word's universal part of speech; `_` where the treebank has none.
        heads: each word's head, from 0; -1 for a root.
        relations: each word's relation to its head, with its subtype: `nsubj`, `nsubj:pass`.
    """

    line: int
    words: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]


def read_conllu(path: Path, name: str, *, field: str, max_document: int) -> Iterator[Document | Refused]:
    """The documents of a treebank, named `file#number`, from 1.

    A document begins where a comment says `# newdoc`. A sentence before the first such comment is a document of its
    own: treebanks without such comments are usually collections of single sentences.

    Raises:
        InputError: a line that breaks the format, naming file and line. What a tree needs is checked, the order of
            multi-word tokens and empty nodes isn't.
    """
    number, marked = 0, False
    block: list[tuple[list[str], Sentence]] = []

    def whole() -> Document | Refused:
        nonlocal block, number
        number += 1
        size = sum(len(line.encode()) + 1 for lines, _ in block for line in lines)
        place, kept = f"{name}#{number}", [line for lines, _ in block for line in (*lines, "")]
        document: Document | Refused = Document(place, "\n".join(kept), float(size), tuple(tree for _, tree in block))
        if size > max_document:
            detail = f"it has {size:,} bytes; {max_document:,} are the most"
            document = Refused(place, "too long", detail, float(size))
        block = []
        return document

    for first, lines in _blocks(path, name):
        starts = any(NEW_DOCUMENT.match(line) for line in lines)
        if block and (starts or not marked):
            yield whole()
        marked = marked or starts
        block.append((lines, _sentence(lines, first, name)))
    if block:
        yield whole()
    elif not number:
        yield Refused(name, "empty", "it has no sentence", 0.0)


def _blocks(path: Path, name: str) -> Iterator[tuple[int, list[str]]]:
    """The lines of each sentence, with the number of the first; comments without a sentence are left out."""
    block: list[str] = []
    with path.open("rb") as file:
        for number, data in enumerate(chain(file, [b""]), 1):
            try:
                line = data.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise _error(f"byte {error.start} is {data[error.start]:#04x}, not UTF-8", number, name) from error
            if line:
                block.append(line)
                continue
            if not all(known.startswith("#") for known in block):
                yield number - len(block), block
            block = []


def _sentence(block: list[str], first: int, name: str) -> Sentence:
    """A block's words, checked to be a tree."""
    rows: list[list[str]] = []
    numbers: list[int] = []
    for number, line in enumerate(block, first):
        if line.startswith("#"):
            continue
        fields = line.split("\t")
        if len(fields) != len(COLUMNS):
            raise _error(f"the line has {len(fields)} columns; expected 10, separated by tabs", number, name)
        if NO_WORD.fullmatch(fields[0]):
            continue
        if fields[0] != str(len(rows) + 1):
            raise _error(f"the column ID is {fields[0]!r:.40}; expected {len(rows) + 1}", number, name)
        if not NUMBER.fullmatch(fields[6]):
            raise _error(f"the column HEAD is {fields[6]!r:.40}; expected the number of a word, or 0", number, name)
        if not fields[1].strip() or not fields[7].strip("_"):
            found = f"FORM is {fields[1]!r:.40}, the column DEPREL is {fields[7]!r:.40}"
            raise _error(f"the column {found}; expected a word and its relation", number, name)
        rows.append(fields)
        numbers.append(number)
    if not rows:
        raise _error("the sentence has no words", first, name)
    heads = [int(row[6]) - 1 for row in rows]
    _check_tree(heads, numbers, name)
    columns = [tuple(row[at] for row in rows) for at in (1, 3, 7)]
    return Sentence(numbers[0], columns[0], columns[1], tuple(heads), columns[2])


def _check_tree(heads: list[int], numbers: list[int], name: str) -> None:
    """Check that every word leads to a root."""
    for word, head in enumerate(heads):
        if head >= len(heads):
            raise _error(f"the column HEAD is {head + 1}; there are {len(heads)} words", numbers[word], name)
    rooted = [head < 0 for head in heads]
    for word in range(len(heads)):
        path: dict[int, None] = {}
        here = word
        while not rooted[here]:
            if here in path:
                raise _error(f"word {here + 1} is above itself: following HEAD leads back to it", numbers[here], name)
            path[here] = None
            here = heads[here]
        for passed in path:
            rooted[passed] = True


def _error(problem: str, number: int, name: str) -> InputError:
    return InputError(f"line {number}: {problem}", where=f"{name}, line {number}", advice=ADVICE)
