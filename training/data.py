"""The training text: documents of sentences, held-out parts, and an endless stream of batches without padding."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizer import CLS, MAX_LENGTH, SEP
from tokenizers import Tokenizer

HELD_OUT = "carroll-alice.txt"  # seen neither by the tokenizer nor by the model
VALIDATION_SHARE = 0.02  # the end of every book, for choosing among checkpoints
BOOK = 50_000  # characters; a shorter document is trained on whole

Ids = NDArray[np.int64]

# The books come as Penn Treebank tokens with spaces between them: "`` I did n't , '' said Emma 's father ."
_QUOTES = re.compile(r"\s*``\s*|\s*''\s*")
_REJOIN = (
    (re.compile(r"_"), ""),  # Gutenberg's italics
    (re.compile(r"` ?(?=tis\b|twas\b|twill\b|twere\b|st\b|em\b)", re.IGNORECASE), "'"),
    (re.compile(r"` ?|(?:^|(?<=[^\w\s]) )'(?= |$)"), ' "'),
    # An apostrophe between spaces belongs to a plural: the sisters ' house.
    (re.compile(r"(?<=\w) '(?= |$)"), "'"),
    (re.compile(r" (n't|'(?:s|d|ll|ve|re|m|em)\b)", re.IGNORECASE), r"\1"),
    (re.compile(r"\bI' (?=m\b|ve\b|ll\b|d\b)"), "I'"),
    (re.compile(r" ([.,;:!?)\]])"), r"\1"),
    (re.compile(r"([(\[]) "), r"\1"),
)
_SENTENCE_END = re.compile(
    r"(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\b[A-Z]\.)"  # not after a title or an initial
    r"(?:(?<=[.!?])|(?<=[.!?][\"')\]]))\s+(?=[A-Z\"'(\[])"
)


def detokenise(line: str) -> str:
    """Put Treebank tokens back into ordinary English; a line that never was taken apart passes through.

    A closing quote hugs the word before it and an opening one the word after, so "`` Oh ! ''" becomes '"Oh!"'.
    """
    line = _QUOTES.sub(lambda match: ' "' if "``" in match[0] else '" ', line)
    for pattern, replacement in _REJOIN:
        line = pattern.sub(replacement, line)
    return " ".join(line.split())


def read_document(path: Path) -> list[str]:
    """The sentences of one file in order: books have one on a line, speeches a paragraph, which is split here."""
    sentences: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            sentences += _SENTENCE_END.split(detokenise(line))
    return sentences


@dataclass(frozen=True)
class Corpus:
    """Every document as a list of sentences, in three parts that never mix."""

    train: list[list[str]]
    validation: list[list[str]]
    held_out: list[str]


def read_corpus(folder: Path) -> Corpus:
    """Read all .txt files of `folder`; the last 2% of every book validate, `HELD_OUT` is set apart."""
    train, validation = [], []
    for path in sorted(folder.glob("*.txt")):
        if path.name == HELD_OUT:
            continue
        sentences = read_document(path)
        cut = round(len(sentences) * (1 - VALIDATION_SHARE)) if path.stat().st_size > BOOK else len(sentences)
        train.append(sentences[:cut])
        if cut < len(sentences):
            validation.append(sentences[cut:])
    return Corpus(train, validation, read_document(folder / HELD_OUT))


def encode(documents: list[list[str]], tokenizer: Tokenizer) -> list[list[list[int]]]:
    """Documents -> sentences -> token ids, without special tokens."""
    return [
        [encoding.ids for encoding in tokenizer.encode_batch(sentences, add_special_tokens=False)]
        for sentences in documents
    ]


@dataclass(frozen=True)
class Example:
    """One input sequence.

    Attributes:
        ids: (S,) piece ids, [CLS] first and [SEP] last.
        first: how many of them belong to the first text, its [SEP] included; the rest have token type 1.
    """

    ids: list[int]
    first: int


def frame(sentences: list[list[int]], split: int) -> Example:
    """[CLS] sentences [SEP], or, with 0 < split < len(sentences), a pair: [CLS] first ones [SEP] other ones [SEP]."""
    ids = [CLS]
    first = 0
    for index, sentence in enumerate(sentences):
        if index and index == split:
            ids.append(SEP)
            first = len(ids)
        ids += sentence
    ids = [*ids[: MAX_LENGTH - 1], SEP]
    return Example(ids, min(first, len(ids)) or len(ids))


def examples(documents: list[list[list[int]]], rng: np.random.Generator) -> list[Example]:
    """Cut every document once into windows of whole sentences, of mixed sizes, in random order.

    A quarter are single sentences, as a person types them; the others hold as many sentences as fit in 64, 128 or 256
    pieces. One in five of those with two sentences or more becomes a pair.
    """
    result: list[Example] = []
    for document in documents:
        at = 0
        while at < len(document):
            room = int(rng.choice((0, 64, 128, MAX_LENGTH), p=(0.25, 0.4, 0.25, 0.1))) - 3  # [CLS] and up to two [SEP]
            end, size = at + 1, len(document[at])
            while end < len(document) and size + len(document[end]) <= room:
                size += len(document[end])
                end += 1
            split = int(rng.integers(1, end - at)) if end - at > 1 and rng.random() < 0.2 else 0
            result.append(frame(document[at:end], split))
            at = end
    return [result[index] for index in rng.permutation(len(result))]


@dataclass(frozen=True)
class Batch:
    """Sequences of one length, so nothing is padded and attention needs no mask.

    Attributes:
        ids: (B, S) piece ids.
        types: (B, S) token types, 0 or 1.
        positions: (B, S) positions, 0 to S - 1 unless the rows have been moved.
    """

    ids: Ids
    types: Ids
    positions: Ids

    def moved(self, rng: np.random.Generator, share: float = 0.7) -> "Batch":
        """The same with most rows at positions further on, [CLS] excepted, so that short rows train every position."""
        rows, length = self.ids.shape
        by = rng.integers(0, MAX_LENGTH - length + 1, (rows, 1)) * (rng.random((rows, 1)) < share)  # (B, 1)
        positions = self.positions + by
        positions[:, 0] = 0
        return Batch(self.ids, self.types, positions)


def stack(rows: list[Example]) -> Batch:
    """Examples of equal length as one batch."""
    ids = np.array([row.ids for row in rows], dtype=np.int64)  # (B, S)
    first = np.array([[row.first] for row in rows])  # (B, 1)
    places = np.arange(ids.shape[1])
    return Batch(ids, (places >= first).astype(np.int64), np.broadcast_to(places, ids.shape).copy())


def batches(rows: Iterable[Example], tokens: int) -> Iterator[Batch]:
    """Gather examples of equal length until they make about `tokens` tokens; what is left over comes last."""
    waiting: defaultdict[int, list[Example]] = defaultdict(list)
    for row in rows:
        same = waiting[len(row.ids)]
        same.append(row)
        if (len(same) + 0.5) * len(row.ids) > tokens:
            yield stack(same)
            same.clear()
    for same in waiting.values():
        if same:
            yield stack(same)


def endless(documents: list[list[list[int]]], tokens: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Yield training batches forever; each pass over the documents cuts them differently."""

    def passes() -> Iterator[Example]:
        while True:
            yield from examples(documents, rng)

    return batches(passes(), tokens)


def blocks(running: Ids, length: int, tokens: int, rng: np.random.Generator) -> Iterator[Batch]:
    """Yield training batches forever: rows of `length` from anywhere in the running text, with [CLS] and [SEP]."""
    while True:
        at = rng.integers(0, len(running) - length, tokens // length)  # (B,)
        ids = running[at[:, None] + np.arange(length)]  # (B, S)
        ids[:, 0], ids[:, -1] = CLS, SEP
        yield Batch(ids, np.zeros_like(ids), np.broadcast_to(np.arange(length), ids.shape).copy())
