"""SentencePiece models (spm.model, spiece.model): read without the library, and turned into a tokenizer.

The file is one protobuf message, ModelProto (sentencepiece_model.proto). Read are its pieces, with their scores and
types, the type of model, and the compiled normalisation.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.checkpoint.json_text import MOST_BYTES
from headscope.checkpoint.raw_files import read_whole
from headscope.checkpoint.tokenizer.backend import Backend, added_token, library_errors
from headscope.checkpoint.tokenizer.known import BY_IDS
from headscope.checkpoint.tokenizer.tokenizer_config import AGAIN, AddedPiece, Settings
from headscope.checkpoint.tokenizer.vocabularies import add_template, required_tokens
from headscope.errors import CheckpointError, UnsupportedError

if TYPE_CHECKING:
    import tokenizers

PIECES, TRAINER, NORMALIZER = 1, 2, 3
"""Fields of ModelProto."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""

UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6
"""Types of pieces that are not plain text."""

UNIGRAM = 1
"""The type of model whose tokens are the likeliest split, which all encoders here use."""

MOST_PIECES = 2_000_000
"""Maximum number of pieces; the largest vocabulary in use has a million."""

NUMBER_COMMA = re.compile(r".*[0-9],$", re.DOTALL)
"""Pieces that ALBERT's tokenizer splits again: a digit and a comma at the end."""


@dataclass(frozen=True)
class Model:
    """The parts of a SentencePiece model that determine its tokens.

    Attributes:
        pieces: spelling, score and type of each id.
        kind: the type of model; 1 is unigram.
        charsmap: the compiled normalisation; empty if there is none.
    """

    pieces: tuple[tuple[str, float, int], ...]
    kind: int
    charsmap: bytes


def from_sentencepiece(path: Path, settings: Settings, class_name: str) -> Backend:
    """Build DeBERTa v2's or ALBERT's tokenizer from a SentencePiece model.

    Raises:
        CheckpointError: the file is not a SentencePiece model, or lacks the special tokens.
        UnsupportedError: its model is not a unigram model.
    """
    from tokenizers import Tokenizer, models

    where = f"{settings.where}: {path.name}"
    model = read_model(path, where)
    if model.kind != UNIGRAM:
        raise UnsupportedError(
            f"the SentencePiece model is of type {model.kind}, and headscope reads unigram models (type {UNIGRAM})",
            where=where,
            advice=BY_IDS,
        )
    unknown = next((index for index, (_, _, kind) in enumerate(model.pieces) if kind == UNKNOWN), None)
    albert = class_name == "AlbertTokenizer"
    scores = [
        (piece, score - 100 if albert and NUMBER_COMMA.match(piece) else score) for piece, score, _ in model.pieces
    ]
    with library_errors(where, AGAIN):
        rust = Tokenizer(models.Unigram(scores, unk_id=unknown, byte_fallback=False))
        for piece, _, kind in model.pieces:
            if kind in (CONTROL, USER_DEFINED):
                rust.add_tokens([_plain(piece, special=kind == CONTROL)])
        _normalise(rust, model, settings, albert)
        cls, sep = required_tokens(rust.get_vocab(), settings, where, cls="[CLS]", sep="[SEP]")
        add_template(rust, cls, sep)
        mask = [] if "mask_token" in settings.without else [settings.spelling("mask_token", "[MASK]")]
        # DeBERTa's model has no mask: its id follows those of the model.
        rust.add_special_tokens([_plain(token, special=True) for token in dict.fromkeys((cls, sep, *mask))])
    return Backend(rust, where=where, settings=settings)


def _plain(piece: str, *, special: bool) -> Any:
    return added_token(AddedPiece(piece, normalized=False, special=special))


def _normalise(rust: tokenizers.Tokenizer, model: Model, settings: Settings, albert: bool) -> None:
    """Set the steps before the model: case, the compiled normalisation, and spaces as ▁."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    steps: list[Any] = []
    splits: list[Any] = []
    if albert:
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if not settings.flag("keep_accents", False):
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.flag("do_lower_case", albert):
        steps.append(normalizers.Lowercase())
    if not albert:
        steps.append(normalizers.Strip())
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if albert:
        splits.append(pre_tokenizers.WhitespaceSplit())
    elif settings.flag("split_by_punct", False):
        splits.append(pre_tokenizers.Punctuation(behavior="isolated"))
    scheme = "always" if settings.flag("add_prefix_space", True) else "never"
    splits.append(pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme))
    rust.normalizer = normalizers.Sequence(steps)
    rust.pre_tokenizer = pre_tokenizers.Sequence(splits)


def read_model(path: Path, where: str) -> Model:
    """Read a SentencePiece model.

    Raises:
        CheckpointError: the file is not a SentencePiece model.
    """
    pieces: list[tuple[str, float, int]] = []
    kind, charsmap = UNIGRAM, b""
    try:
        for number, value in _fields(read_whole(path, MOST_BYTES)):
            if number == PIECES and isinstance(value, bytes):
                pieces.append(_piece(value))
            elif number == TRAINER and isinstance(value, bytes):
                kind = next((found for at, found in _fields(value) if at == 3 and isinstance(found, int)), kind)
            elif number == NORMALIZER and isinstance(value, bytes):
                charsmap = next((found for at, found in _fields(value) if at == 2 and isinstance(found, bytes)), b"")
            if len(pieces) > MOST_PIECES:
                raise ValueError(f"more than {MOST_PIECES:,} pieces")
        if not pieces:
            raise ValueError("it has no pieces")
    except (OSError, ValueError, IndexError, struct.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"{path.name} is not a SentencePiece model: {reason}", where=where, advice=AGAIN
        ) from error
    return Model(tuple(pieces), kind, charsmap)


def _piece(data: bytes) -> tuple[str, float, int]:
    """A message SentencePiece: 1 the spelling, 2 the score, 3 the type (1, plain text, by default)."""
    spelling, score, kind = "", 0.0, 1
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            spelling = value.decode("utf-8")
        elif number == 2 and isinstance(value, float):
            score = value
        elif number == 3 and isinstance(value, int):
            kind = value
    return spelling, score, kind


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield a message's fields: number and value.

    Raises:
        ValueError: the bytes are not a protobuf message.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(wire)
        if wire == BYTES:
            size, at = _varint(data, at)
        if size is None or not number:
            raise ValueError(f"byte {at} doesn't begin a field of a message")
        if at + size > len(data):
            raise ValueError(f"the field at byte {at} ends beyond the file")
        part = data[at : at + size]
        at += size
        yield number, struct.unpack("<f", part)[0] if wire == FIXED32 else part


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An integer of 7 bits per byte, the low ones first, and the place after it."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError(f"the number at byte {at} has no end")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
