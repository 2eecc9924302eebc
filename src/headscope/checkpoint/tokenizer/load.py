"""From a checkpoint to its tokenizer: the choice of files, and of an engine that reads them correctly."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.checkpoint.open_checkpoint import Checkpoint
from headscope.checkpoint.resolve import resolve
from headscope.checkpoint.tokenizer.face import Engine, Tokenizer
from headscope.checkpoint.tokenizer.known import (
    BY_IDS,
    BYTE_LEVEL,
    CLASSES,
    CONVERT,
    JAPANESE,
    RESIDUES,
    SENTENCEPIECE,
    SENTENCEPIECE_FILES,
    WORDPIECE,
    Known,
    Refused,
    effective_class,
    reads_segments,
)
from headscope.checkpoint.tokenizer.tokenizer_config import Settings, TokenizerSource, read_settings
from headscope.checkpoint.tokenizer.vocabularies import (
    from_residues,
    from_tokenizer_json,
    from_vocab_and_merges,
    from_vocab_txt,
    read_vocab_txt,
)
from headscope.errors import CheckpointError, InputError, UnsupportedError

FILES = ("tokenizer.json", "vocab.txt", "vocab.json", *SENTENCEPIECE_FILES)
"""Files that a tokenizer may be read from."""


def load_tokenizer(checkpoint: TokenizerSource, segments: str = "own") -> Tokenizer:
    """Return a checkpoint's tokenizer, from tokenizer.json, else vocab.txt, vocab.json and merges.txt, or spm.model.

    headscope never guesses a tokenizer that needs more than these files: the result then accepts ids, but text and
    words raise an error that names the tokenizer. The same holds if the checkpoint has no tokenizer at all.

    Args:
        checkpoint: of the tokenizer.
        segments: of a pair: `own`, as the tokenizer has them; `one` for both texts, or `two`.

    Raises:
        CheckpointError: a tokenizer file can't be read.
        InputError: two segments for a model that has one.
    """
    settings = read_settings(checkpoint)
    class_name, known_by = effective_class(settings)
    try:
        engine, source = _open(checkpoint, settings, class_name, known_by)
    except UnsupportedError as refusal:
        engine, source = Refused(refusal, _vocabulary(checkpoint, settings)), None
    two, differs = reads_segments(settings, class_name, segments)
    return Tokenizer(engine, settings, kind=class_name, source=source, segments=two, differs=differs)


@dataclass(frozen=True)
class _Borrowed:
    """Tokenizer files of one place, for the model of another, whose config says what ids it has."""

    where: str
    config: Mapping[str, Any]
    file: Callable[[str], Path | None]


def borrowed_tokenizer(
    name: str | os.PathLike[str], checkpoint: Checkpoint, embeddings: int, segments: str = "own"
) -> Tokenizer:
    """Return the tokenizer of another folder or checkpoint, for a model whose own checkpoint has none.

    Args:
        name: a folder with tokenizer files, or the name of another checkpoint, whose weights are not looked for.
        checkpoint: of the model.
        embeddings: number of tokens that the model knows.
        segments: as for `load_tokenizer`.

    Raises:
        NotFoundError: there is no such folder or checkpoint.
        CheckpointError: there are no tokenizer files, or one can't be read.
        InputError: the tokenizer has more tokens than the model has embeddings.
    """
    if not isinstance(name, (str, os.PathLike)):
        found = f"expected the name of a tokenizer, got {type(name).__name__}"
        advice = "save it, tokenizer.save_pretrained(folder), and pass the folder"
        raise InputError(found, where="tokenizer", advice=advice)
    _, place, _ = resolve(name, None)
    if not any(place.path(each) for each in FILES):
        raise place.unreachable or CheckpointError(
            f"none of {', '.join(FILES)} is there", where=str(name), advice="name a folder with a tokenizer's files"
        )
    tokenizer = load_tokenizer(_Borrowed(str(name), checkpoint.config, place.path), segments)
    if tokenizer.size > embeddings:
        raise InputError(
            f"the tokenizer has {tokenizer.size:,} tokens, and the model embeddings for {embeddings:,}",
            where=str(name),
            advice="use the tokenizer that the model was trained with",
        )
    return tokenizer


def _open(
    checkpoint: TokenizerSource, settings: Settings, class_name: str | None, known_by: str
) -> tuple[Engine, str | None]:
    """The engine and the file that it reads; an UnsupportedError if the files are there but don't tell enough."""
    if class_name == JAPANESE:
        from headscope.checkpoint.tokenizer.japanese import Japanese

        path = checkpoint.file("vocab.txt")
        if path is not None:
            return Japanese(path, settings), "vocab.txt"
        found = f"the checkpoint's tokenizer is {JAPANESE}, but its vocab.txt is missing"
        return Refused(CheckpointError(found, where=settings.where, advice=f"add it, or {BY_IDS}"), {}), None
    path = checkpoint.file("tokenizer.json")
    if path is not None:
        if class_name == "BertweetTokenizer" and settings.flag("normalization", False):
            raise _lacking(settings, class_name, "a tweet normalizer, which tokenizer.json can't hold")
        return from_tokenizer_json(path, settings, class_name), "tokenizer.json"
    auto_map = settings.options.get("auto_map")
    if isinstance(auto_map, list) or (isinstance(auto_map, dict) and auto_map.get("AutoTokenizer") is not None):
        raise _lacking(settings, class_name or "a custom class", "code from the checkpoint")
    vocab_txt = checkpoint.file("vocab.txt")
    unnamed = class_name is None and settings.model.get("model_type") is None
    if vocab_txt is not None and (unnamed or class_name in WORDPIECE):
        engine = from_vocab_txt(vocab_txt, settings)
        if unnamed:
            assumed = (
                "assumed to be BERT's tokenizer: vocab.txt has its special tokens, and no file names another class"
            )
            engine.notes.append(assumed)
        return engine, "vocab.txt"
    if vocab_txt is not None and class_name == RESIDUES:
        return from_residues(vocab_txt, settings), "vocab.txt"
    model = next((path for name in SENTENCEPIECE_FILES if (path := checkpoint.file(name)) is not None), None)
    if model is not None and class_name in SENTENCEPIECE:
        from headscope.checkpoint.tokenizer.sentencepiece import from_sentencepiece

        return from_sentencepiece(model, settings, class_name), model.name
    vocab_json, merges = checkpoint.file("vocab.json"), checkpoint.file("merges.txt")
    if vocab_json is not None and merges is not None and class_name in BYTE_LEVEL:
        return from_vocab_and_merges(vocab_json, merges, settings), "vocab.json"
    known = class_name in WORDPIECE | SENTENCEPIECE | BYTE_LEVEL
    files = [path.name for path in (vocab_txt, vocab_json, merges, model) if path is not None]
    if known or not (files or settings.class_name):
        lacking = _incomplete(checkpoint, settings, class_name if known else None, known_by)
        return Refused(lacking, {} if class_name in SENTENCEPIECE else _vocabulary(checkpoint, settings)), None
    if class_name is None:
        raise UnsupportedError(
            f"the checkpoint has {', '.join(files)} but no tokenizer.json, and the tokenizer's class is unknown: "
            f"{known_by}",
            where=settings.where,
            advice=f"{CONVERT}; or set tokenizer_class in tokenizer_config.json; or {BY_IDS}",
        )
    raise _lacking(settings, class_name, f"a sentencepiece model ({model.name})" if model else None)


def _lacking(settings: Settings, class_name: str, needs: str | None) -> UnsupportedError:
    """The error for a class that needs more than headscope has."""
    needs = CLASSES.get(class_name, Known()).needs or needs or "steps that headscope doesn't have"
    return UnsupportedError(
        f"the checkpoint's tokenizer is {class_name}, which needs {needs}",
        where=settings.where,
        advice=f"{CONVERT}; or {BY_IDS}",
    )


def _incomplete(
    checkpoint: TokenizerSource, settings: Settings, class_name: str | None, known_by: str
) -> CheckpointError:
    """The error for a class whose files aren't there, with the files that are and can't be used."""
    read = {"vocab.txt"} if class_name in WORDPIECE else {"vocab.json", "merges.txt"}
    wanted = "vocab.txt" if class_name in WORDPIECE else "vocab.json with merges.txt"
    if class_name in SENTENCEPIECE:
        read, wanted = set(SENTENCEPIECE_FILES), ", ".join(SENTENCEPIECE_FILES)
    elif class_name is None:
        wanted = "vocab.txt, vocab.json with merges.txt"
    there = [name for name in (*FILES[1:], "merges.txt") if checkpoint.file(name) is not None]
    half = [name for name in there if name in read]
    lacking = f"{half[0]} without {(read - {half[0]}).pop()}" if half else f"none of tokenizer.json, {wanted}"
    named = "" if class_name is None else f" for its {class_name}"
    found = f"the checkpoint lacks the files of a tokenizer{named}: {lacking}"
    advice = f"put the model's tokenizer files beside its weights, or {BY_IDS}"
    if isinstance(checkpoint, Checkpoint) and (unreachable := checkpoint._place.unreachable) is not None:
        found = f"the hub can't be reached, and its cache lacks the files of a tokenizer{named}: {lacking}"
        return CheckpointError(found, where=settings.where, advice=f"{unreachable.advice}; or {BY_IDS}")
    if isinstance(checkpoint, Checkpoint) and checkpoint.held:
        advice = f"open the model with its tokenizer: hs.open(model, tokenizer=tokenizer); or {BY_IDS}"
    useless = [name for name in there if name not in read]
    if useless:
        found += f". {class_name}, {known_by}, can't use {' and '.join(useless)}"
        like = {"vocab.txt": "BertTokenizer", "vocab.json": "RobertaTokenizer", "merges.txt": "RobertaTokenizer"}
        field = f"tokenizer_class in {settings.class_from or 'tokenizer_config.json'}"
        wrong = f"add {field}, which no file has" if settings.class_name is None else f"correct {field}"
        other = like.get(useless[0], "AlbertTokenizer")
        advice = f"if another class made {useless[0]}, such as {other}, {wrong}; otherwise {advice}"
    return CheckpointError(found, where=settings.where, advice=advice)


def _vocabulary(checkpoint: TokenizerSource, settings: Settings) -> dict[str, int]:
    """Return the vocabulary for decoding ids if text is refused: vocab.txt, if it has one token per line."""
    path = checkpoint.file("vocab.txt")
    if path is None or settings.class_name in ("PhobertTokenizer", "BertweetTokenizer"):
        return {}
    return read_vocab_txt(path, f"{settings.where}: vocab.txt")
