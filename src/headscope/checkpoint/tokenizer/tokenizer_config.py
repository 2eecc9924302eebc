"""A tokenizer's settings: tokenizer_config.json, special_tokens_map.json, added_tokens.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from headscope.checkpoint.json_text import JsonError, brief, read_object, shortened
from headscope.errors import CheckpointError, UnsupportedError

T = TypeVar("T")

FILE = "tokenizer_config.json"

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

AGAIN = "download the file again, or save the tokenizer again with transformers' save_pretrained"


class TokenizerSource(Protocol):
    """The part of a Checkpoint that reading a tokenizer requires."""

    @property
    def where(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    def file(self, filename: str) -> Path | None: ...


@dataclass(frozen=True)
class AddedPiece:
    """An added token, which is matched in the text before anything else.

    Attributes:
        content: its spelling.
        lstrip: True if it includes the white space to its left.
        rstrip: True if it includes the white space to its right.
        single_word: True if it matches only whole words.
        normalized: True if it is matched in the normalized text; None for the default, which is False only for special
            tokens.
        special: True if it is a special token.
    """

    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool | None = None
    special: bool = True


@dataclass(frozen=True)
class Settings:
    """The contents of the settings files beside the vocabulary.

    Attributes:
        where: the checkpoint, for messages.
        options: tokenizer_config.json ({} if there is none).
        class_name: the tokenizer's class, without "Fast"; None if no file names it.
        class_from: the file that names it.
        named: the special tokens by name, such as "cls_token".
        without: names of special tokens that are null: the tokenizer has none, not even the class's own.
        extra: further special tokens.
        added: added tokens by id.
        model: config.json.
    """

    where: str
    options: Mapping[str, Any]
    class_name: str | None
    class_from: str | None
    named: Mapping[str, AddedPiece]
    extra: tuple[AddedPiece, ...]
    added: Mapping[int, AddedPiece]
    model: Mapping[str, Any]
    without: frozenset[str] = frozenset()

    def flag(self, key: str, default: bool | None) -> bool | None:
        """Return a Boolean option; the default if it is absent or null."""
        value = self._option(key, bool, "true or false")
        return default if value is None else value

    def text(self, key: str, default: str) -> str:
        """Return a string option; the default if it is absent or null."""
        value = self._option(key, str, "a string")
        return default if value is None else value

    def table(self, key: str) -> dict[str, Any]:
        """Return an option that is an object; {} if it is absent or null."""
        return self._option(key, dict, "an object") or {}

    def strings(self, key: str) -> list[str]:
        """Return an option that is a list of strings; [] if it is absent or null."""
        values = self._option(key, list, "a list of strings") or []
        if all(isinstance(value, str) for value in values):
            return values
        raise _wrong(self.where, key, values, "a list of strings")

    def _option(self, key: str, kind: type[T], expected: str) -> T | None:
        value = self.options.get(key)
        if value is None or isinstance(value, kind):
            return value
        raise _wrong(self.where, key, value, expected)

    def spelling(self, key: str, default: str) -> str:
        """Return the spelling of a special token that the tokenizer needs.

        Raises:
            UnsupportedError: the files say that it has none.
        """
        if key in self.without:
            raise UnsupportedError(
                f"{key} is null, and this tokenizer puts that token around every text",
                where=f"{self.where}: {FILE}",
                advice=f"name the token ({default}) in tokenizer_config.json, or pass ids= (token ids)",
            )
        piece = self.named.get(key)
        return default if piece is None else piece.content


def read_settings(source: TokenizerSource) -> Settings:
    """Read the settings files; if they disagree, the newer format wins, as in transformers.

    tokenizer_config.json's added_tokens_decoder replaces special_tokens_map.json and added_tokens.json; without it,
    special_tokens_map.json takes precedence over tokenizer_config.json.

    Raises:
        CheckpointError: a file is not JSON or has invalid values.
    """
    options = read_json(source, FILE) or {}
    where = source.where
    statements: dict[str, Any] = dict(options)
    added: dict[int, AddedPiece] = {}
    decoder = options.get("added_tokens_decoder")
    if decoder is None:
        statements.update(read_json(source, "special_tokens_map.json") or {})
    extra = []
    for listed in ("additional_special_tokens", "extra_special_tokens"):
        values = statements.get(listed) or []
        values = list(values.values()) if isinstance(values, dict) else values
        if not isinstance(values, list):
            raise _wrong(where, listed, values, "a list")
        extra += [_piece(where, listed, value) for value in values]
    if decoder is not None:
        if not isinstance(decoder, dict):
            raise _wrong(where, "added_tokens_decoder", decoder, "an object")
        for index, value in decoder.items():
            name = f"added_tokens_decoder.{shortened(index)}"
            added[_index(where, FILE, index)] = _piece(where, name, value, special=False)
    else:
        specials = {_content(value) for key, value in statements.items() if key in NAMED}
        specials |= {piece.content for piece in extra}
        for content, index in (read_json(source, "added_tokens.json") or {}).items():
            special = content in specials
            added[_index(where, "added_tokens.json", index)] = AddedPiece(
                content, normalized=not special, special=special
            )
    by_content = {piece.content: piece for piece in added.values()}
    named = {}
    for key in NAMED:
        if statements.get(key) is not None:
            piece = _piece(where, key, statements[key])
            named[key] = by_content.get(piece.content, piece)
    class_name, class_from = _class_name(where, options, source.config)
    without = frozenset(key for key in NAMED if key in statements and statements[key] is None)
    return Settings(where, options, class_name, class_from, named, tuple(extra), added, dict(source.config), without)


def read_json(source: TokenizerSource, filename: str) -> dict[str, Any] | None:
    """Return the JSON object in a settings file; None if the file doesn't exist.

    Raises:
        CheckpointError: it is not JSON, or not an object.
    """
    path = source.file(filename)
    if path is None:
        return None
    return parse_json(path, f"{source.where}: {filename}")


def parse_json(path: Path, where: str) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        CheckpointError: it is not JSON, not an object, or has two values for one name.
    """
    try:
        return read_object(path, unique=False)
    except JsonError as error:
        raise CheckpointError(f"{path.name} can't be read: {error}", where=where, advice=AGAIN) from error


def _class_name(where: str, options: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[str | None, str | None]:
    for filename, statements in ((FILE, options), ("config.json", model)):
        value = statements.get("tokenizer_class")
        if value is None:
            continue
        if not isinstance(value, str):
            raise _wrong(where, "tokenizer_class", value, "a string", filename)
        if value not in ("PreTrainedTokenizerFast", "PreTrainedTokenizer"):
            value = value.removesuffix("Fast")
        return value, filename
    if "word_tokenizer_type" in options or "mecab_kwargs" in options:
        return "BertJapaneseTokenizer", FILE
    return None, None


def _content(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _piece(where: str, key: str, value: Any, *, special: bool = True) -> AddedPiece:
    content = _content(value)
    if not content:
        raise _wrong(where, key, value, "a token: a string, or an object with its content")
    if not isinstance(value, dict):
        return AddedPiece(content, special=special)
    flags = {flag: bool(value.get(flag)) for flag in ("lstrip", "rstrip", "single_word")}
    normalized = value.get("normalized")
    return AddedPiece(
        content,
        normalized=None if normalized is None else bool(normalized),
        special=special or bool(value.get("special")),
        **flags,
    )


def _index(where: str, filename: str, value: Any) -> int:
    try:
        index = int(value)
    except (TypeError, ValueError, OverflowError):
        index = -1
    if not 0 <= index < 2**31:
        raise _wrong(where, "the id of an added token", value, "a non-negative integer", filename)
    return index


def _wrong(where: str, key: str, value: Any, expected: str, filename: str = FILE) -> CheckpointError:
    return CheckpointError(
        f"{key} is {brief(value)}, expected {expected}",
        where=f"{where}: {filename}",
        advice=f"correct it in {filename}, or save the tokenizer again with transformers' save_pretrained",
    )
