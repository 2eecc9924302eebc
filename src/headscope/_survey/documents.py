"""A document, one that was refused, and the parts that they are gathered into."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from headscope._survey.conllu import Sentence

DOCUMENT_COST = 100
"""Characters that a document counts beyond its own, so that a part of many short documents ends too."""


@dataclass(frozen=True)
class Document:
    """A text that was read.

    Attributes:
        name: the file relative to the corpus; `file#number` for a row of a table.
        text: what it says.
        weight: its share of the corpus, in bytes.
        sentences: its trees, where it is of a treebank; `text` is then the lines that they were read from.
    """

    name: str
    text: str
    weight: float = 0.0
    sentences: tuple[Sentence, ...] = ()


@dataclass(frozen=True)
class Refused:
    """A document that could not be used.

    Attributes:
        name: as in Document.
        reason: in one or two words, for counting: `empty`, `not UTF-8`, `too long`, ….
        detail: in a sentence.
        weight: as in Document.
    """

    name: str
    reason: str
    detail: str
    weight: float = 0.0

    def record(self) -> dict[str, Any]:
        """For the manifest."""
        return {"document": self.name, "reason": self.reason, "detail": self.detail}


@dataclass(frozen=True)
class Part:
    """Neighbouring documents: what one file of the survey is made from.

    Attributes:
        index: counted from 0.
        documents: those that could be read.
        refused: those that could not.
        texts: sha256 of names, texts and refusals: whether a part on disk was made from what is read here.
        weight: bytes of the corpus that it stands for.
    """

    index: int
    documents: tuple[Document, ...]
    refused: tuple[Refused, ...]
    texts: str
    weight: float


Done: TypeAlias = tuple[Part, bytes, dict[str, Any], dict[str, bytes]]
"""A part that is done: its file, its record, and the files beside it by their kind."""


def checked(name: str, text: Any, weight: float, max_document: int) -> Document | Refused:
    """A document, or why it is none."""
    if not isinstance(text, str):
        return Refused(name, "no text", f"it is {type(text).__name__}, not a text", weight)
    if len(text) > max_document:
        return Refused(name, "too long", f"it has {len(text):,} characters; {max_document:,} are the most", weight)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return Refused(name, "not UTF-8", f"character {error.start} can't be written in UTF-8", weight)
    if not text.strip():
        return Refused(name, "empty", "it has no characters but spaces" if text else "it has no characters", weight)
    return Document(name, text, weight)


def spelled(name: str) -> str:
    """A name as it can be written anywhere: what isn't UTF-8 in a file's name, as \\xe9."""
    bytes_as_surrogates = re.sub("[\udc80-\udcff]", lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", name)
    return bytes_as_surrogates.encode("utf-8", "backslashreplace").decode()


def no_field(field: str, there: Iterable[str]) -> str:
    """That a table lacks a field, and which it has."""
    names = [spelled(name) for name in there]
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"there is no field {field!r}; there are {shown or 'none'}; --field names another"


def parts(documents: Iterable[Document | Refused], part_size: int) -> Iterator[Part]:
    """Documents in their order, cut where a part has reached so many characters. One part is in memory at a time."""
    index = 0
    size = 0
    read: list[Document] = []
    refused: list[Refused] = []
    digest = hashlib.sha256()

    def whole() -> Part:
        weight = sum(one.weight for one in read) + sum(one.weight for one in refused)
        return Part(index, tuple(read), tuple(refused), digest.hexdigest(), weight)

    for one in documents:
        if isinstance(one, Document):
            read.append(one)
            size += len(one.text)
            said = (one.name, one.text)
        else:
            refused.append(one)
            said = (one.name, one.reason)
        for word in said:
            data = word.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        size += DOCUMENT_COST
        if size >= part_size:
            yield whole()
            index, size, read, refused, digest = index + 1, 0, [], [], hashlib.sha256()
    if read or refused:
        yield whole()
