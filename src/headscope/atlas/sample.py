"""The sample: windows that everything too dear for every word is measured over, from labels to distances of heads.

While the corpus is read, the documents whose content has the smallest hashes are kept, until they have enough words:
as good as drawn by lot, whatever files are called, in any order, and however the corpus is cut into parts. Of their
windows the same hashes draw the first. Documents are numbered in that order; those with even numbers choose, those with
odd ones report.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from headscope.atlas.documents import CorpusPart, Document, parts
from headscope.results.schemas import SampleRow, table_of

if TYPE_CHECKING:
    from headscope.atlas.survey_settings import Settings
    from headscope.heads.windows import Window

DOCUMENTS = 20
"""Fewest documents of a sample, however long they are: intervals are over documents."""

LONGEST = 6
"""Characters for which a text has a word at least, for languages that have no spaces."""

Cut = list[tuple[int, "Window"]]
"""Windows by lot, each with its number."""

Each = Callable[..., Iterator[tuple[Any, Any]]]
"""Workers.each."""


def lot(*name: object) -> int:
    """A number as good as drawn by lot."""
    return int.from_bytes(hashlib.sha256("\0".join(map(str, name)).encode()).digest()[:8], "big") >> 1


class Drawing:
    """The documents of the sample, of those that were read so far.

    Args:
        words: how many are enough.
    """

    def __init__(self, words: int) -> None:
        self._enough = words
        self._words = self._read = 0
        self._kept: list[tuple[int, int, int, Document]] = []
        """A heap: the largest hash first, of equal ones the last document; words."""

    def passing(self, every: Iterable[CorpusPart]) -> Iterator[CorpusPart]:
        """Yield parts as they are, and draw from them."""
        for part in every:
            for document in part.documents:
                self._add(document)
            yield part

    def _add(self, document: Document) -> None:
        words = _words_in(document)
        heapq.heappush(self._kept, (-int(document.digest, 16), -self._read, words, document))
        self._read += 1
        self._words += words
        while len(self._kept) > DOCUMENTS and self._words - self._kept[0][2] >= self._enough:
            self._words -= heapq.heappop(self._kept)[2]

    def documents(self) -> list[Document]:
        """The documents, the smallest hash first."""
        return [document for *_, document in sorted(self._kept, reverse=True)]


def _words_in(document: Document) -> int:
    """About how many words a document has, before the tokenizer is asked; those of a treebank exactly."""
    if document.sentences:
        return sum(len(sentence.words) for sentence in document.sentences)
    return max(len(document.text.split()), len(document.text) // LONGEST)


def by_lot(windows: Iterable[tuple[int, Window]], settings: Settings) -> Cut:
    """The windows with the smallest numbers that have as many words, and are as many, as a survey needs."""
    kept: Cut = []
    words = 0
    for number, window in sorted(windows, key=lambda row: (row[0], row[1].document, row[1].number)):
        if words >= settings.sample and len(kept) >= settings.windows:
            break
        kept.append((number, window))
        words += len(window.words)
    return kept


@dataclass(frozen=True, eq=False)
class Sample:
    """The sample.

    Attributes:
        names: the documents'.
        windows: by lot, with their words; `document` is a number of `names`.
        worded: how many of them labels, examples and relations are measured over; the others, if any, are for effects,
            writes and distances alone.
    """

    names: tuple[str, ...]
    windows: tuple[Window, ...]
    worded: int

    def table(self) -> pyarrow.Table:
        """`sample.parquet`: a row for each window, by lot."""
        rows = []
        for rank, window in enumerate(self.windows):
            words, tree = window.words, window.words.sentence
            rows.append(
                SampleRow(
                    rank,
                    self.names[window.document],
                    window.number,
                    window.document,
                    rank < self.worded,
                    window.ids.tolist(),
                    window.segments.tolist(),
                    window.roles.special.tolist(),
                    words.of_token.tolist(),
                    list(words.forms),
                    [] if tree is None else list(tree.tags),
                    [] if tree is None else list(tree.heads),
                    [] if tree is None else list(tree.relations),
                )
            )
        return table_of(SampleRow, rows)


def sample_of(documents: list[Document], each: Each, settings: Settings) -> Sample:
    """Cut the documents into windows, and draw of these; `each` runs a method of a replica."""
    cut: Cut = []
    before = 0
    found = each("cut", parts(documents, settings.part_size))
    for part, windows in sorted(found, key=lambda pair: pair[0].index):
        cut += [(number, replace(window, document=before + window.document)) for number, window in windows]
        before += len(part.documents)
    windows = [window for _, window in by_lot(cut, settings)]
    kept = sorted({window.document for window in windows})
    numbers = {document: number for number, document in enumerate(kept)}
    words = np.cumsum([0, *(len(window.words) for window in windows)])
    return Sample(
        tuple(documents[document].name for document in kept),
        tuple(replace(window, document=numbers[window.document]) for window in windows),
        int((words[:-1] < settings.sample).sum()),
    )
