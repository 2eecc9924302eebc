"""The interface of a tokenizer: from text, words or ids to `TokenAxis`, with all inputs checked."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from headscope.checkpoint.tokenizer.backend import Backend
from headscope.checkpoint.tokenizer.encoded import Layout, Pieces, Special, assemble
from headscope.checkpoint.tokenizer.known import FOREIGN_VOCABULARY, RESIDUES, Refused
from headscope.checkpoint.tokenizer.tokenizer_config import Settings
from headscope.errors import InputError, UnsupportedError
from headscope.results.tokens import TokenAxis
from headscope.settings import whole

MASKS = ("[MASK]", "<mask>")
UNKNOWN = ("[UNK]", "<unk>")
MOST_RESIDUES = 64
"""Tokens of a vocabulary of residues; ProtBERT has 30."""
PADS = ("[PAD]", "<pad>")

T = TypeVar("T")
Engine = Backend | Refused
"""An implementation that tokenizes one text, or words; its layout describes the special tokens around them."""


class Tokenizer:
    """A checkpoint's tokenizer.

    Attributes:
        kind: the tokenizer's class according to the checkpoint, or None.
        source: the file that the tokenizer was read from; None if the checkpoint has no usable tokenizer.
        notes: decisions made while reading it, in sentences: the casing, disabled options.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        *,
        kind: str | None,
        source: str | None,
        segments: bool,
        differs: str = "",
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._segments = segments
        self.kind = kind
        self.source = source
        self.notes: tuple[str, ...] = (*engine.notes, *([differs] if differs else []))
        self._differs = differs
        vocab_size = settings.model.get("vocab_size")
        embedded = vocab_size if isinstance(vocab_size, int) and vocab_size > 0 else None
        self._limit = embedded or engine.size or None

    def __repr__(self) -> str:
        return f"{self.kind or 'tokenizer'} of {self.size:,} tokens, from {self.source or 'no file'}"

    @property
    def size(self) -> int:
        """Size of the tokenizer's vocabulary; without a tokenizer, the config's vocab_size (0 if it has none)."""
        return self._engine.size or self._limit or 0

    def id(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary spells it; None if it has no such token.

        Raises:
            InputError: it is not a string.
        """
        if not isinstance(token, str):
            raise _of_another_type(token, "token", "a string", "pass a token as the vocabulary spells it")
        return self._engine.id(token)

    def token(self, index: int) -> str:
        """Return the token with this id as the vocabulary spells it; "#123" if the vocabulary has no spelling.

        Raises:
            InputError: the id is no integer, or beyond the model's vocabulary.
        """
        index = _integer(index, "id", "pass an id, such as 101; `id(token)` gives a token's")
        self._check_id(index, "id")
        return self._spelling(index)

    @property
    def mask_token(self) -> str | None:
        """The mask token as the vocabulary spells it; None if there is none."""
        return self._named("mask_token", MASKS)

    @property
    def mask_id(self) -> int | None:
        """The mask token's id; None if there is none."""
        return None if self.mask_token is None else self._engine.id(self.mask_token)

    @property
    def pad_id(self) -> int | None:
        """The padding token's id, from the tokenizer or else from the config's pad_token_id; None if neither has it."""
        token = self._named("pad_token", PADS)
        if token is not None:
            return self._engine.id(token)
        index = self._settings.model.get("pad_token_id")
        return index if isinstance(index, int) and not isinstance(index, bool) else None

    def doubts(self, *, pair: bool) -> list[str]:
        """The notes that put a number in doubt: a foreign vocabulary, and for a pair, segments that depend on versions.

        Args:
            pair: True if a pair is read.
        """
        return [note for note in self.notes if (note == self._differs and pair) or note.startswith(FOREIGN_VOCABULARY)]

    @property
    def special_tokens(self) -> frozenset[str]:
        """The special tokens, as the vocabulary spells them."""
        named = {one.content for one in self._settings.named.values()}
        named |= set() if self.mask_token is None else {self.mask_token}
        return frozenset(named | {self._spelling(index) for index in self._separators()})

    def layout(self, texts: int) -> Layout:
        """Return the special tokens around one text or two, with segments as the model takes them."""
        layout = self._engine.layout(texts)
        return layout if self._segments else [replace(slot, segment=0) for slot in layout]

    def library_state(self) -> dict[str, Any] | None:
        """Return the tokenizer as tokenizer.json has it; None if the `tokenizers` library doesn't run it."""
        return self._engine.state()

    def encode(self, text: str, pair: str | None = None, *, max_length: int | None = None) -> TokenAxis:
        """Encode a text, or a pair, with the special tokens that the model was trained with.

        Args:
            text: the text.
            pair: a second text for the same input.
            max_length: cut the input to this many positions, special tokens included, the longer text first; None
                never cuts.

        Raises:
            InputError: a text is empty, not valid Unicode or without tokens, or max_length leaves no room.
            UnsupportedError: headscope can't tokenize as the model's tokenizer does.
            MissingExtraError: the tokenizer needs an optional dependency that is not installed.
            CheckpointError: the checkpoint has no tokenizer.
        """
        texts = [checked_text(text, "text")] + ([] if pair is None else [checked_text(pair, "pair")])
        encoded = self._assemble(self._engine.text_pieces, texts, max_length)
        for each in texts:
            self._check_chain(each, encoded)
        return encoded

    def _check_chain(self, text: str, encoded: TokenAxis) -> None:
        """Refuse a protein without spaces that became unknown, because the vocabulary has residues as words.

        Raises:
            InputError: it did.
        """
        chain = text.strip()
        unknown = any(token in UNKNOWN for token in encoded.tokens)
        if not unknown or self.size > MOST_RESIDUES or len(chain) < 2 or not chain.isalpha():
            return
        if all(self.id(residue) is not None for residue in set(chain.upper())):
            raise InputError(
                f"{chain[:12]}{'…' * (len(chain) > 12)} is one unknown word; the vocabulary has a token for a residue",
                where="text",
                advice=f"write residues apart, in capitals: {' '.join(chain.upper()[:6])} … (' '.join(chain))",
            )

    def encode_words(
        self, words: Sequence[str], pair: Sequence[str] | None = None, *, max_length: int | None = None
    ) -> TokenAxis:
        """Encode a list of words; each word is tokenized separately.

        The result equals that of transformers' is_split_into_words=True (byte-level BPE: add_prefix_space=True). A
        word that is spelled like a special token, or like a token of the vocabulary with its mark ("##ing", "Ġthe",
        "▁the"), is that token. The result's `words` are indices of the given list.

        Raises:
            InputError: as in `encode`; or the list or a word is empty.
            UnsupportedError: as in `encode`.
            CheckpointError: as in `encode`.
        """
        texts = [_check_words(words, "words")] + ([] if pair is None else [_check_words(pair, "pair")])
        return self._assemble(self._engine.word_pieces, texts, max_length)

    def encode_ids(
        self, ids: Sequence[int], segments: Sequence[int] | None = None, *, max_length: int | None = None
    ) -> TokenAxis:
        """Use ids unchanged, without special tokens. Works without any tokenizer.

        Args:
            ids: token ids; the tokens are the vocabulary's spellings, or "#123" without one.
            segments: one segment per id; all 0 by default.
            max_length: drop the ids after this many.

        Raises:
            InputError: an id is beyond the model's vocabulary, or the segments don't match the ids.
        """
        max_length = None if max_length is None else whole(max_length, "max_length", 1)
        checked = _integers(ids, "ids")
        if not checked:
            raise InputError("ids is empty", where="ids", advice="pass at least one id")
        for position, index in enumerate(checked):
            self._check_id(index, f"ids[{position}]")
        types = [0] * len(checked) if segments is None else _integers(segments, "segments")
        if len(types) != len(checked):
            raise InputError(
                f"segments has {len(types)} entries, but ids has {len(checked)}",
                where="segments",
                advice="pass one segment (0 or 1) for each id",
            )
        count = self._settings.model.get("type_vocab_size")
        most = count if isinstance(count, int) and count > 0 else None
        for position, segment in enumerate(types):
            if segment < 0 or (most is not None and segment >= most):
                allowed = "from 0" if most is None else f"0 to {most - 1} (type_vocab_size {most})"
                raise InputError(
                    f"segments[{position}] is {segment}, but the model has segments {allowed}",
                    where="segments",
                    advice="pass segments that the model has, or leave segments out",
                )
        checked, types = checked[:max_length], types[:max_length]
        special = self._separators()
        return TokenAxis(
            ids=tuple(checked),
            tokens=tuple(map(self._spelling, checked)),
            segments=tuple(types),
            special=tuple(index in special for index in checked),
            words=(None,) * len(checked),
            spans=(None,) * len(checked),
        )

    def _assemble(self, tokenize: Callable[[T], Pieces], texts: list[T], max_length: int | None) -> TokenAxis:
        max_length = None if max_length is None else whole(max_length, "max_length", 1)
        if len(texts) > 1 and self.kind == RESIDUES and "eos_token" in self._settings.without:
            raise UnsupportedError(
                "eos_token is null, so nothing ends a text of a pair",
                where=f"{self._settings.where}: tokenizer_config.json",
                advice="pass one text: the model reads no pairs",
            )
        layout = self.layout(len(texts))
        pieces = [tokenize(text) for text in texts]
        for name, text_pieces in zip(("the text", "the pair"), pieces, strict=False):
            if not text_pieces.ids:
                raise InputError(
                    f"{name} has no tokens: the tokenizer drops all of its characters",
                    where=name,
                    advice="pass a text with letters, digits or signs from the model's vocabulary",
                )
        return assemble(
            layout,
            pieces,
            max_length=max_length,
            odd_to_first=self._engine.odd_to_first,
            keep_end=self._settings.text("truncation_side", "right") == "left",
        )

    def _named(self, key: str, usual: Sequence[str]) -> str | None:
        if key in self._settings.without:
            return None
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
            valid = "ids from 0" if self._limit is None else f"ids 0 to {self._limit - 1}"
            raise InputError(
                f"{where} is {index}, but the model's vocabulary has {valid}",
                where=where,
                advice="pass ids from this checkpoint's tokenizer",
            )


def _of_another_type(value: object, where: str, expected: str, advice: str) -> InputError:
    return InputError(f"{where} has type {type(value).__name__}, expected {expected}", where=where, advice=advice)


def checked_text(text: str, where: str) -> str:
    """The text.

    Raises:
        InputError: it is not a string, empty, or not valid Unicode.
    """
    if not isinstance(text, str):
        advice = "pass one string; pass a list of words as words=, and ids as ids="
        raise _of_another_type(text, where, "a string", advice)
    if not text:
        raise InputError(f"{where} is empty", where=where, advice="pass a text with at least one word")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"character {error.start} of {where} is U+{ord(text[error.start]):04X}, an unpaired surrogate, which is "
            "not valid Unicode text",
            where=where,
            advice="decode the text again from its bytes, with errors='replace' if they are damaged",
        ) from error
    return text


def _check_words(words: Sequence[str], where: str) -> list[str]:
    if isinstance(words, (str, bytes)) or not isinstance(words, Sequence):
        advice = 'pass a list of words, ["The", "cat"]; pass a whole text as text='
        raise _of_another_type(words, where, "a list of strings", advice)
    if not words:
        raise InputError(f"{where} is empty", where=where, advice="pass at least one word")
    return [checked_text(word, f"{where}[{position}]") for position, word in enumerate(words)]


def _integers(values: Sequence[int], where: str) -> list[int]:
    try:
        entries = list(values)
    except TypeError as error:
        advice = "pass a list, such as [101, 7592, 102]"
        raise _of_another_type(values, where, "a list of integers", advice) from error
    return [_integer(value, f"{where}[{position}]") for position, value in enumerate(entries)]


def _integer(value: int, where: str, advice: str = "pass a flat list of integers, such as [101, 7592, 102]") -> int:
    try:
        return operator.index(value)
    except TypeError as error:
        raise InputError(f"{where} is {value!r}, expected an integer", where=where, advice=advice) from error
