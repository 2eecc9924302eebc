"""From files to a tokenizer of the `tokenizers` library: tokenizer.json, vocab.txt, vocab.json with merges.txt."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.checkpoint.json_text import MOST_BYTES, brief, shortened, shown
from headscope.checkpoint.raw_files import read_whole
from headscope.checkpoint.tokenizer.backend import Backend, added_token, library_errors
from headscope.checkpoint.tokenizer.known import BY_IDS, CASING, RESIDUES, WORDPIECE, decide_casing, usual_specials
from headscope.checkpoint.tokenizer.tokenizer_config import AGAIN, Settings, parse_json
from headscope.errors import CheckpointError, UnsupportedError

if TYPE_CHECKING:
    import tokenizers

MOST_LINES = 2_000_000
"""Maximum lines of a vocab.txt or merges.txt; the largest vocabulary in use has a million tokens."""

MOST_TOKENS = 5_000_000
"""Maximum id, and more: the largest vocabulary in use has a million tokens."""


LONG_ID = re.compile(rb":\s*[0-9]{7}")
"""A number that may be an id beyond `MOST_TOKENS`. Only then are ids checked: listing them is slow."""


def from_tokenizer_json(path: Path, settings: Settings, class_name: str | None) -> Backend:
    """Build the tokenizer that the file describes, without its truncation and padding.

    Settings in tokenizer_config.json for casing, accents and ideographs (BERT) or the prefix space (byte-level BPE)
    take precedence, as in transformers.

    Raises:
        CheckpointError: the file is not a tokenizer.
    """
    from tokenizers import Tokenizer

    where = f"{settings.where}: tokenizer.json"
    advice = f"{AGAIN}; a file written by a newer tokenizers library needs that version (pip install -U tokenizers)"
    try:
        data = read_whole(path, MOST_BYTES)
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"tokenizer.json can't be read: {reason}", where=where, advice=advice) from error
    with library_errors(where, advice):
        rust = Tokenizer.from_buffer(data)
        if LONG_ID.search(data):
            _check_ids(rust.get_vocab(with_added_tokens=True), where)
        notes = _apply_settings(rust, settings, class_name)
        mark_special(rust, settings, class_name)
    backend = Backend(rust, where=where, settings=settings)
    backend.notes += notes
    return backend


def from_vocab_txt(path: Path, settings: Settings) -> Backend:
    """Build BERT's basic tokenizer and WordPiece, as transformers' BertTokenizer does from vocab.txt.

    Raises:
        CheckpointError: the file is not a vocabulary, or lacks the special tokens.
        UnsupportedError: the casing of the model is unknown.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    where = f"{settings.where}: vocab.txt"
    for option, harmless in (("do_basic_tokenize", True), ("never_split", None)):
        value = settings.options.get(option)
        if value not in (harmless, None, []):
            raise UnsupportedError(
                f"{option} is {brief(value)}, which only transformers' old tokenizers in Python support",
                where=f"{settings.where}: tokenizer_config.json",
                advice=BY_IDS,
            )
    vocabulary = read_vocab_txt(path, where)
    cls, sep, unk = required_tokens(vocabulary, settings, where, cls="[CLS]", sep="[SEP]", unk="[UNK]")
    casing, reasons = decide_casing(vocabulary, settings)
    with library_errors(where, AGAIN):
        rust = Tokenizer(models.WordPiece(vocabulary, unk_token=unk))
        rust.normalizer = normalizers.BertNormalizer(clean_text=True, **casing)
        rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        add_template(rust, cls, sep)
        mark_special(rust, settings, "BertTokenizer")
    backend = Backend(rust, where=where, settings=settings)
    backend.notes = backend.notes or reasons  # a foreign vocabulary is no evidence of a casing
    return backend


def from_residues(path: Path, settings: Settings) -> Backend:
    """Build ESM's tokenizer: every token of vocab.txt is matched wherever it occurs in the text, the longest first.

    What lies between matches is split at white space; such a part is <unk>.

    Raises:
        CheckpointError: the file is not a vocabulary, or lacks the special tokens.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

    where = f"{settings.where}: vocab.txt"
    vocabulary = read_vocab_txt(path, where)
    eos = {} if "eos_token" in settings.without else {"eos": "<eos>"}
    cls, *ends, unk = required_tokens(vocabulary, settings, where, cls="<cls>", **eos, unk="<unk>")
    longest_first = "|".join(re.escape(token) for token in sorted(filter(None, vocabulary), key=len, reverse=True))
    with library_errors(where, AGAIN):
        rust = Tokenizer(models.WordLevel(vocabulary, unk_token=unk))
        rust.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(longest_first), "isolated"), pre_tokenizers.WhitespaceSplit()]
        )
        rust.post_processor = processors.TemplateProcessing(
            single=[cls, "$A", *ends],
            pair=[cls, "$A", *ends, "$B:0", *ends],
            special_tokens=[(token, vocabulary[token]) for token in (cls, *ends)],
        )
        mark_special(rust, settings, RESIDUES)
    return Backend(rust, where=where, settings=settings)


def from_vocab_and_merges(vocab: Path, merges: Path, settings: Settings) -> Backend:
    """Build byte-level BPE with RoBERTa's template, as transformers' RobertaTokenizer does.

    Raises:
        CheckpointError: the files are not a vocabulary and merges, or lack the special tokens.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    where = f"{settings.where}: vocab.json"
    vocabulary = _read_vocab_json(vocab, where)
    pairs = _read_merges(merges, f"{settings.where}: merges.txt")
    cls, sep = required_tokens(vocabulary, settings, where, cls="<s>", sep="</s>")
    space = bool(settings.flag("add_prefix_space", False))
    trim = bool(settings.flag("trim_offsets", True))
    with library_errors(f"{settings.where}: vocab.json and merges.txt", AGAIN):
        rust = Tokenizer(models.BPE(vocabulary, pairs, continuing_subword_prefix="", end_of_word_suffix=""))
        rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
        rust.post_processor = processors.RobertaProcessing(
            (sep, vocabulary[sep]), (cls, vocabulary[cls]), trim_offsets=trim, add_prefix_space=space
        )
        mark_special(rust, settings, "RobertaTokenizer")
    return Backend(rust, where=where, settings=settings)


def required_tokens(vocabulary: Mapping[str, int], settings: Settings, where: str, **usual: str) -> list[str]:
    """Return the spellings of special tokens that the tokenizer needs, in order; usual ones where no file names them.

    Raises:
        CheckpointError: the vocabulary lacks one.
        UnsupportedError: the files say that there is none.
    """
    tokens = [settings.spelling(f"{name}_token", token) for name, token in usual.items()]
    if missing := [token for token in tokens if token not in vocabulary]:
        names = ", ".join(f"{name}_token" for name in usual)
        raise CheckpointError(
            f"the vocabulary of {len(vocabulary)} tokens lacks {', '.join(map(shortened, missing))}",
            where=where,
            advice=f"name the special tokens in tokenizer_config.json ({names}), or pass ids=",
        )
    return tokens


def add_template(rust: tokenizers.Tokenizer, cls: str, sep: str) -> None:
    """Put BERT's special tokens around texts: [CLS] A [SEP], [CLS] A [SEP] B [SEP]."""
    from tokenizers import processors

    rust.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, rust.token_to_id(cls)), (sep, rust.token_to_id(sep))],
    )


def _unusable(where: str, problem: str) -> CheckpointError:
    return CheckpointError(problem, where=where, advice=AGAIN)


def read_vocab_txt(path: Path, where: str) -> dict[str, int]:
    """Read a vocabulary with one token per line; its id is its line number, counted from 0.

    White space at the end of a line is not part of the token, as in BERT's original code; a token of only white space
    is kept unchanged, so that it doesn't replace another one.

    Raises:
        CheckpointError: the file is empty or not UTF-8.
    """
    lines = _read_lines(path, where)
    if not lines[-1]:
        lines.pop()
    vocabulary = {line.rstrip() or line: index for index, line in enumerate(lines)}
    if not any(vocabulary):
        raise _unusable(where, "the vocabulary is empty")
    return vocabulary


def _read_lines(path: Path, where: str) -> list[str]:
    try:
        data = read_whole(path, MOST_BYTES)
        lines = data.count(b"\n")
        if lines > MOST_LINES:
            raise OSError(errno.EFBIG, f"it has {lines:,} lines, at most {MOST_LINES:,} are read")
        return data.decode("utf-8").replace("\r\n", "\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _unusable(where, f"{path.name} can't be read as UTF-8 text: {reason}") from error


def _read_vocab_json(path: Path, where: str) -> dict[str, int]:
    value = parse_json(path, where)
    if not value:
        raise _unusable(where, "vocab.json has no tokens")
    for piece, index in value.items():
        if not isinstance(index, int) or isinstance(index, bool):
            raise _unusable(where, f"the id of {shown(piece)} is {brief(index)}, expected an integer")
    _check_ids(value, where)
    return value


def _check_ids(vocabulary: Mapping[str, int], where: str) -> None:
    """Reject ids far beyond the vocabulary: the tokenizers library iterates over all ids up to the largest."""
    for piece, index in vocabulary.items():
        if not 0 <= index < MOST_TOKENS:
            raise _unusable(where, f"the id of {shown(piece)} is {index}, expected 0 to {MOST_TOKENS - 1}")


def _read_merges(path: Path, where: str) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(_read_lines(path, where), 1):
        if not line or line.startswith("#version"):
            continue
        parts = line.split(" ")
        if len(parts) != 2:
            raise _unusable(where, f"line {number} of merges.txt has {len(parts)} tokens, expected two: {line[:80]!r}")
        merges.append((parts[0], parts[1]))
    return merges


def mark_special(rust: tokenizers.Tokenizer, settings: Settings, class_name: str | None) -> None:
    """Register the class's special tokens that are in the vocabulary, unless the file has registered them already.

    The file's description of a token takes precedence.
    """
    described = {piece.content: piece for piece in (*settings.added.values(), *settings.named.values())}
    known = {piece.content for piece in rust.get_added_tokens_decoder().values()}
    for key, usual in usual_specials(class_name).items():
        if key in settings.without:
            continue
        piece = settings.named.get(key, usual)
        if piece.content not in known and rust.token_to_id(piece.content) is not None:
            rust.add_special_tokens([added_token(described.get(piece.content, piece))])


def _apply_settings(rust: tokenizers.Tokenizer, settings: Settings, class_name: str | None) -> list[str]:
    """Apply the settings in tokenizer_config.json that differ from tokenizer.json, and return a note on each."""
    fields: list[tuple[Any, str, str]] = []
    if class_name in WORDPIECE and type(rust.normalizer).__name__ == "BertNormalizer":
        fields = [(rust.normalizer, option, field) for option, field in CASING.items()]
    if type(rust.pre_tokenizer).__name__ == "ByteLevel":
        fields.append((rust.pre_tokenizer, "add_prefix_space", "add_prefix_space"))
    notes = []
    for component, option, field in fields:
        value = settings.flag(option, None)
        if value is not None and value != getattr(component, field):
            setattr(component, field, value)
            notes.append(f"{option} is {value}, from tokenizer_config.json; tokenizer.json differs")
    return notes
