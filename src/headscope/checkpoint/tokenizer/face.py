"""The tokenizer as the rest of headscope sees it: text, words or ids in, an Encoded out, every input checked."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from headscope.checkpoint.tokenizer.encoded import Encoded, Layout, Pieces, Special, assemble
from headscope.checkpoint.tokenizer.settings import Settings
from headscope.errors import InputError

MASKS = ("[MASK]", "<mask>")
PADS = ("[PAD]", "<pad>")

T = TypeVar("T")


class Engine(Protocol):
    """What cuts one text, or words, into pieces; what comes around them is its layout."""

    notes: list[str]
    odd_to_first: bool

    @property
    def size(self) -> int: ...
    def token(self, index: int) -> str | None: ...
    def id(self, token: str) -> int | None: ...
    def text_pieces(self, text: str) -> Pieces: ...
    def word_pieces(self, words: Sequence[str]) -> Pieces: ...
    def layout(self, texts: int) -> Layout: ...


class Tokenizer:
    """A checkpoint's own tokenizer.

    Attributes:
        kind: the tokenizer's class as the checkpoint names it, or None.
        source: the file it was read from; None where the checkpoint has no tokenizer that can be used.
        notes: what was decided while reading it, in words: how lower case was known, what was switched off.
    """

    def __init__(
        self, engine: Engine, settings: Settings, *, kind: str | None, source: str | None, segments: bool
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._segments = segments
        self.kind = kind
        self.source = source
        self.notes: tuple[str, ...] = tuple(engine.notes)
        vocab_size = settings.model.get("vocab_size")
        embedded = vocab_size if isinstance(vocab_size, int) and vocab_size > 0 else None
        self._limit = embedded or engine.size or None

    @property
    def size(self) -> int:
        """How many pieces the tokenizer knows; without a tokenizer, the config's vocab_size (0 where it has none)."""
        return self._engine.size or self._limit or 0

    def id(self, token: str) -> int | None:
        """The id of a piece as the vocabulary spells it; None where it has no such piece."""
        return self._engine.id(token)

    def token(self, index: int) -> str:
        """The piece of an id as the vocabulary spells it; "#123" where the vocabulary has no name for it.

        Errors: InputError for an id that the model can't have.
        """
        self._check_id(index, "id")
        return self._spelling(index)

    @property
    def mask_token(self) -> str | None:
        """How the mask token is spelled; None where there is none."""
        return self._named("mask_token", MASKS)

    @property
    def mask_id(self) -> int | None:
        """The mask token's id; None where there is none."""
        return None if self.mask_token is None else self._engine.id(self.mask_token)

    @property
    def pad_id(self) -> int | None:
        """The padding token's id: the tokenizer's, else the config's pad_token_id; None where neither says."""
        token = self._named("pad_token", PADS)
        if token is not None:
            return self._engine.id(token)
        index = self._settings.model.get("pad_token_id")
        return index if isinstance(index, int) and not isinstance(index, bool) else None

    def encode(self, text: str, pair: str | None = None, *, max_length: int | None = None) -> Encoded:
        """Encode a text, or a pair, with the special tokens that the model was trained with.

        max_length: cut to so many positions, special tokens included, the longer text first; None: never cut.
        Errors: InputError for an empty text, one that is not UTF-8, one that leaves no pieces, or a max_length that
        leaves no room; UnsupportedError or MissingExtraError where text can't be cut as the model's tokenizer does;
        CheckpointError where the checkpoint has no tokenizer.
        """
        _check_length(max_length)
        texts = [_check_text(text, "text")] + ([] if pair is None else [_check_text(pair, "pair")])
        return self._assemble(self._engine.text_pieces, texts, max_length)

    def encode_words(
        self, words: Sequence[str], pair: Sequence[str] | None = None, *, max_length: int | None = None
    ) -> Encoded:
        """Encode words that are cut already; each is cut into pieces on its own.

        As transformers' is_split_into_words=True does (byte-level BPE: add_prefix_space=True). A word that spells a
        special token is that token; one that spells a piece of the vocabulary with its mark ("##ing", "Ġthe",
        "▁the") is that piece. `words` of the result are positions in the given list.
        Errors: as encode, and InputError for an empty list or an empty word.
        """
        _check_length(max_length)
        texts = [_check_words(words, "words")] + ([] if pair is None else [_check_words(pair, "pair")])
        return self._assemble(self._engine.word_pieces, texts, max_length)

    def encode_ids(self, ids: Sequence[int], segments: Sequence[int] | None = None) -> Encoded:
        """Take ids as they are; nothing is added or cut. Works without any tokenizer.

        tokens: the vocabulary's spelling, or "#123" where there is none. segments: 0 where not given.
        Errors: InputError for ids that the model can't have, or segments that don't fit.
        """
        taken = _whole_numbers(ids, "ids")
        if not taken:
            raise InputError("ids is empty", where="ids", advice="pass at least one id")
        for position, index in enumerate(taken):
            self._check_id(index, f"ids[{position}]")
        types = [0] * len(taken) if segments is None else _whole_numbers(segments, "segments")
        if len(types) != len(taken):
            raise InputError(
                f"segments has {len(types)} entries, and ids has {len(taken)}",
                where="segments",
                advice="pass one segment (0 or 1) for each id",
            )
        count = self._settings.model.get("type_vocab_size")
        most = count if isinstance(count, int) and count > 0 else None
        for position, segment in enumerate(types):
            if segment < 0 or (most is not None and segment >= most):
                allowed = "from 0" if most is None else f"0 to {most - 1} (type_vocab_size {most})"
                raise InputError(
                    f"segments[{position}] is {segment}, and the model knows segments {allowed}",
                    where="segments",
                    advice="pass segments that the model knows, or leave segments out",
                )
        special = self._separators()
        return Encoded(
            ids=tuple(taken),
            tokens=tuple(map(self._spelling, taken)),
            segments=tuple(types),
            special=tuple(index in special for index in taken),
            words=(None,) * len(taken),
            spans=(None,) * len(taken),
        )

    def _assemble(self, cut: Callable[[T], Pieces], texts: list[T], max_length: int | None) -> Encoded:
        layout = self._engine.layout(len(texts))
        pieces = [cut(text) for text in texts]
        for which, found in zip(("the text", "the pair"), pieces, strict=False):
            if not found.ids:
                raise InputError(
                    f"{which} leaves no pieces: the tokenizer drops every character of it",
                    where=which,
                    advice="pass a text with letters, digits or signs that the model's vocabulary can spell",
                )
        encoded = assemble(
            layout,
            pieces,
            max_length=max_length,
            odd_to_first=self._engine.odd_to_first,
            keep_end=self._settings.text("truncation_side", "right") == "left",
        )
        if self._segments:
            return encoded
        zeros = (0,) * len(encoded)
        return Encoded(encoded.ids, encoded.tokens, zeros, encoded.special, encoded.words, encoded.spans)

    def _named(self, key: str, usual: Sequence[str]) -> str | None:
        stated = self._settings.named.get(key)
        for token in usual if stated is None else (stated.content,):
            if self._engine.id(token) is not None:
                return token
        return None

    def _separators(self) -> set[int]:
        ends = {self.pad_id, *(slot.id for slot in self._engine.layout(1) if isinstance(slot, Special))}
        for key in ("cls_token", "sep_token", "bos_token", "eos_token"):
            stated = self._settings.named.get(key)
            if stated is not None:
                ends.add(self._engine.id(stated.content))
        return {index for index in ends if index is not None}

    def _spelling(self, index: int) -> str:
        token = self._engine.token(index)
        return f"#{index}" if token is None else token

    def _check_id(self, index: int, where: str) -> None:
        if index < 0 or (self._limit is not None and index >= self._limit):
            known = "ids from 0" if self._limit is None else f"ids 0 to {self._limit - 1}"
            raise InputError(
                f"{where} is {index}, and the model's vocabulary has {known}",
                where=where,
                advice="pass ids made with this checkpoint's own tokenizer",
            )


def _check_length(max_length: int | None) -> None:
    if max_length is not None and (isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1):
        raise InputError(
            f"max_length is {max_length!r}, and should be a whole number from 1",
            where="max_length",
            advice="pass the number of positions to keep, special tokens included, or leave max_length out",
        )


def _check_text(text: str, where: str) -> str:
    if not isinstance(text, str):
        raise InputError(
            f"{where} is of type {type(text).__name__}, and should be a string",
            where=where,
            advice="pass one string; words that are cut already go to words=, ids to ids=",
        )
    if not text.strip():
        found = "is empty" if not text else f"is nothing but white space ({len(text)} characters)"
        raise InputError(f"{where} {found}", where=where, advice="pass a text with something to read in it")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"character {error.start} of {where} is U+{ord(text[error.start]):04X}, half of a surrogate pair, which "
            "UTF-8 can't carry",
            where=where,
            advice="decode the text again from its bytes, with errors='replace' if they are damaged",
        ) from error
    return text


def _check_words(words: Sequence[str], where: str) -> list[str]:
    if isinstance(words, (str, bytes)) or not isinstance(words, Sequence):
        raise InputError(
            f"{where} is of type {type(words).__name__}, and should be a list of strings",
            where=where,
            advice='pass a list of words, ["The", "cat"]; a whole text goes to text=',
        )
    if not words:
        raise InputError(f"{where} is empty", where=where, advice="pass at least one word")
    return [_check_text(word, f"{where}[{position}]") for position, word in enumerate(words)]


def _whole_numbers(values: Sequence[int], where: str) -> list[int]:
    try:
        entries = list(values)
    except TypeError as error:
        raise InputError(
            f"{where} is of type {type(values).__name__}, and should be a list of whole numbers",
            where=where,
            advice="pass a list, such as [101, 7592, 102]",
        ) from error
    return [_whole_number(value, f"{where}[{position}]") for position, value in enumerate(entries)]


def _whole_number(value: int, where: str) -> int:
    try:
        return operator.index(value)
    except TypeError as error:
        raise InputError(
            f"{where} is {value!r}, and should be a whole number",
            where=where,
            advice="pass one flat list of whole numbers, such as [101, 7592, 102]",
        ) from error
