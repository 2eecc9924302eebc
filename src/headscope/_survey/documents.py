"""Documents, refused documents, and the parts that they are grouped into."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from headscope._survey.conllu import Sentence

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


@dataclass(frozen=True)
class Part:
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


Done: TypeAlias = tuple[Part, bytes, dict[str, Any], dict[str, bytes]]
"""A finished part, its file, its record, and the files beside it by kind."""


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


def spelled(name: str) -> str:
    """A name that is valid UTF-8: other bytes of a file's name are escaped, as in \\xe9."""
    bytes_as_surrogates = re.sub("[\udc80-\udcff]", lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", name)
    return bytes_as_surrogates.encode("utf-8", "backslashreplace").decode()


def no_field(field: str, fields: Iterable[str]) -> str:
    """The message that a table lacks a field, with the fields it has."""
    names = [spelled(name) for name in fields]
    listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"no field {field!r}; the fields are {listed or '(none)'}; choose one with --field"


def parts(documents: Iterable[Document | Refused], part_size: int) -> Iterator[Part]:
    """Group documents in their order into parts of about `part_size` characters. One part is in memory at a time."""
    index = 0
    size = 0
    read: list[Document] = []
    refused: list[Refused] = []
    digest = hashlib.sha256()

    def finished() -> Part:
        weight = sum(document.weight for document in read) + sum(document.weight for document in refused)
        return Part(index, tuple(read), tuple(refused), digest.hexdigest(), weight)

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
