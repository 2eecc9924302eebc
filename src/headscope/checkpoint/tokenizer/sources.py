"""From files to a tokenizer of the `tokenizers` library: tokenizer.json, vocab.txt, vocab.json with merges.txt."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.checkpoint.files import read_whole
from headscope.checkpoint.json_text import MOST_BYTES, JsonError, brief, check_structure, shortened, shown
from headscope.checkpoint.tokenizer.backend import Backend, added_token
from headscope.checkpoint.tokenizer.casing import decide_casing
from headscope.checkpoint.tokenizer.known import BY_IDS, WORDPIECE, usual_specials
from headscope.checkpoint.tokenizer.panics import library_errors
from headscope.checkpoint.tokenizer.settings import AGAIN, Settings, parse_json
from headscope.errors import CheckpointError, UnsupportedError

if TYPE_CHECKING:
    import tokenizers

MOST_LINES = 2_000_000
"""Most lines of a vocab.txt or merges.txt; the largest vocabulary in use has a million pieces."""

MOST_TOKENIZER_ITEMS = 5_000_000
"""Most items of a tokenizer.json: one of 260,000 pieces and 580,000 merges has two million."""


LONG_ID = re.compile(rb":\s*[0-9]{7}")
"""A number that could be an id beyond `MOST_TOKENIZER_ITEMS`. To list a vocabulary takes as long as to read it."""


def from_tokenizer_json(path: Path, settings: Settings, class_name: str | None) -> Backend:
    """The tokenizer as the file describes it, but without its truncation and padding.

    Where tokenizer_config.json explicitly says otherwise about lower case, accents and ideographs (BERT) or the prefix
    space (byte-level BPE), that holds, as in transformers.
    Errors: CheckpointError for a file that is not a tokenizer.
    """
    from tokenizers import Tokenizer

    where = f"{settings.where}: tokenizer.json"
    advice = f"{AGAIN}; a file written by a newer tokenizers library needs that version (pip install -U tokenizers)"
    try:
        data = read_whole(path, MOST_BYTES)
        check_structure(data, MOST_TOKENIZER_ITEMS)
    except (OSError, JsonError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"tokenizer.json can't be read: {reason}", where=where, advice=advice) from error
    with library_errors(where, advice):
        rust = Tokenizer.from_buffer(data)
        if LONG_ID.search(data):
            _check_ids(rust.get_vocab(with_added_tokens=True), where)
        notes = _overrule(rust, settings, class_name)
        _mark_special(rust, settings, class_name)
    backend = Backend(rust, where=where, settings=settings)
    backend.notes += notes
    return backend


def from_vocab_txt(path: Path, settings: Settings) -> Backend:
    """BERT's basic tokenizer and WordPiece, as transformers' BertTokenizer builds them from vocab.txt.

    Errors: CheckpointError for a file that is not a vocabulary, or lacks the special tokens; UnsupportedError where
    nothing tells whether the model reads lower case.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    where = f"{settings.where}: vocab.txt"
    for option, harmless in (("do_basic_tokenize", True), ("never_split", None)):
        value = settings.options.get(option)
        if value not in (harmless, None, []):
            raise UnsupportedError(
                f"{option} is {brief(value)}: only transformers' old tokenizers in Python followed that",
                where=f"{settings.where}: tokenizer_config.json",
                advice=BY_IDS,
            )
    vocabulary = read_vocab_txt(path, where)
    cls, sep, unk = (
        settings.spelling(key, default)
        for key, default in (("cls_token", "[CLS]"), ("sep_token", "[SEP]"), ("unk_token", "[UNK]"))
    )
    missing = [token for token in (cls, sep, unk) if token not in vocabulary]
    if missing:
        raise CheckpointError(
            f"the vocabulary of {len(vocabulary)} pieces lacks {', '.join(map(shortened, missing))}",
            where=where,
            advice="name the special tokens in tokenizer_config.json (cls_token, sep_token, unk_token), or pass ids=",
        )
    casing = decide_casing(vocabulary, settings)
    with library_errors(where, AGAIN):
        rust = Tokenizer(models.WordPiece(vocabulary, unk_token=unk))
        rust.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=casing.tokenize_chinese_chars,
            strip_accents=casing.strip_accents,
            lowercase=casing.do_lower_case,
        )
        rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        rust.post_processor = processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
        )
        _mark_special(rust, settings, "BertTokenizer")
    backend = Backend(rust, where=where, settings=settings)
    backend.notes += casing.reasons
    return backend


def from_vocab_and_merges(vocab: Path, merges: Path, settings: Settings) -> Backend:
    """Byte-level BPE with RoBERTa's template, as transformers' RobertaTokenizer builds it.

    Errors: CheckpointError for files that are not a vocabulary and merges, or lack the special tokens.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    where = f"{settings.where}: vocab.json"
    vocabulary = _read_vocab_json(vocab, where)
    pairs = _read_merges(merges, f"{settings.where}: merges.txt")
    cls, sep = settings.spelling("cls_token", "<s>"), settings.spelling("sep_token", "</s>")
    missing = [token for token in (cls, sep) if token not in vocabulary]
    if missing:
        raise CheckpointError(
            f"the vocabulary of {len(vocabulary)} pieces lacks {', '.join(map(shortened, missing))}",
            where=where,
            advice="name the special tokens in tokenizer_config.json (cls_token, sep_token), or pass ids=",
        )
    space = bool(settings.flag("add_prefix_space", False))
    trim = bool(settings.flag("trim_offsets", True))
    with library_errors(f"{settings.where}: vocab.json and merges.txt", AGAIN):
        rust = Tokenizer(models.BPE(vocabulary, pairs, continuing_subword_prefix="", end_of_word_suffix=""))
        rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
        rust.post_processor = processors.RobertaProcessing(
            (sep, vocabulary[sep]), (cls, vocabulary[cls]), trim_offsets=trim, add_prefix_space=space
        )
        _mark_special(rust, settings, "RobertaTokenizer")
    return Backend(rust, where=where, settings=settings)


def read_vocab_txt(path: Path, where: str) -> dict[str, int]:
    """One piece per line; its line number from 0 is its id.

    White space at a line's end is no part of the piece, as in BERT's own code; a piece that is nothing but white space
    is kept as it is, so that it does not take another's place.
    Errors: CheckpointError when the file is empty or not UTF-8.
    """
    text = _read_text(path, where)
    lines = text.replace("\r\n", "\n").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    vocabulary = {line.rstrip() or line: index for index, line in enumerate(lines)}
    if not any(vocabulary):
        raise CheckpointError("the vocabulary is empty", where=where, advice=AGAIN)
    return vocabulary


def _read_text(path: Path, where: str) -> str:
    try:
        data = read_whole(path, MOST_BYTES)
        lines = data.count(b"\n")
        if lines > MOST_LINES:
            raise OSError(errno.EFBIG, f"it has {lines:,} lines, at most {MOST_LINES:,} are read")
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"{path.name} can't be read as UTF-8 text: {reason}", where=where, advice=AGAIN
        ) from error


def _read_vocab_json(path: Path, where: str) -> dict[str, int]:
    value = parse_json(path, where)
    if not value:
        raise CheckpointError("vocab.json holds no pieces", where=where, advice=AGAIN)
    for piece, index in value.items():
        if not isinstance(index, int) or isinstance(index, bool):
            raise CheckpointError(
                f"the id of {shown(piece)} is {brief(index)}, and should be a whole number", where=where, advice=AGAIN
            )
    _check_ids(value, where)
    return value


def _check_ids(vocabulary: Mapping[str, int], where: str) -> None:
    """Refuse ids far beyond the vocabulary: the tokenizers library walks over all of them when it copies one."""
    for piece, index in vocabulary.items():
        if not 0 <= index < MOST_TOKENIZER_ITEMS:
            raise CheckpointError(
                f"the id of {shown(piece)} is {index}, and should be from 0 to {MOST_TOKENIZER_ITEMS - 1}",
                where=where,
                advice=AGAIN,
            )


def _read_merges(path: Path, where: str) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(_read_text(path, where).replace("\r\n", "\n").split("\n"), 1):
        if not line or line.startswith("#version"):
            continue
        parts = line.split(" ")
        if len(parts) != 2:
            raise CheckpointError(
                f"line {number} of merges.txt holds {len(parts)} pieces, and should hold two: {line[:80]!r}",
                where=where,
                advice=AGAIN,
            )
        merges.append((parts[0], parts[1]))
    return merges


def _mark_special(rust: tokenizers.Tokenizer, settings: Settings, class_name: str | None) -> None:
    """Look in the text for the special tokens that the class has and the vocabulary holds, if that is not done yet.

    A file's own description of one wins.
    """
    described = {piece.content: piece for piece in (*settings.added.values(), *settings.named.values())}
    known = {piece.content for piece in rust.get_added_tokens_decoder().values()}
    for key, usual in usual_specials(class_name).items():
        piece = settings.named.get(key, usual)
        if piece.content not in known and rust.token_to_id(piece.content) is not None:
            rust.add_special_tokens([added_token(described.get(piece.content, piece))])


def _overrule(rust: tokenizers.Tokenizer, settings: Settings, class_name: str | None) -> list[str]:
    notes: list[str] = []
    if class_name in WORDPIECE and type(rust.normalizer).__name__ == "BertNormalizer":
        fields = {"do_lower_case": "lowercase", "strip_accents": "strip_accents"}
        fields["tokenize_chinese_chars"] = "handle_chinese_chars"
        notes += _set(rust.normalizer, settings, fields)
    if type(rust.pre_tokenizer).__name__ == "ByteLevel":
        notes += _set(rust.pre_tokenizer, settings, {"add_prefix_space": "add_prefix_space"})
    return notes


def _set(component: Any, settings: Settings, fields: Mapping[str, str]) -> list[str]:
    notes = []
    for option, field in fields.items():
        said = settings.flag(option, None)
        if said is not None and said != getattr(component, field):
            setattr(component, field, said)
            notes.append(f"{option} is {said} by tokenizer_config.json, against tokenizer.json")
    return notes
