"""From a checkpoint to its tokenizer: the choice of files, and of an engine that reads them correctly."""

from __future__ import annotations

from headscope.checkpoint.tokenizer.face import Engine, Tokenizer
from headscope.checkpoint.tokenizer.japanese import open_japanese
from headscope.checkpoint.tokenizer.known import (
    BY_IDS,
    BYTE_LEVEL,
    CONVERT,
    JAPANESE,
    NEEDS,
    RESIDUES,
    SENTENCEPIECE,
    SENTENCEPIECE_FILES,
    WORDPIECE,
    effective_class,
    reads_segments,
)
from headscope.checkpoint.tokenizer.refused import Refused
from headscope.checkpoint.tokenizer.sentencepiece import from_sentencepiece
from headscope.checkpoint.tokenizer.settings import Settings, TokenizerSource, read_settings
from headscope.checkpoint.tokenizer.sources import (
    from_residues,
    from_tokenizer_json,
    from_vocab_and_merges,
    from_vocab_txt,
    read_vocab_txt,
)
from headscope.errors import CheckpointError, HeadscopeError, UnsupportedError


def load_tokenizer(checkpoint: TokenizerSource) -> Tokenizer:
    """Return a checkpoint's tokenizer, from tokenizer.json, else vocab.txt, vocab.json and merges.txt, or spm.model.

    headscope never guesses a tokenizer that needs more than these files: the result then accepts ids, but text and
    words raise an error that names the tokenizer. The same holds if the checkpoint has no tokenizer at all.

    Raises:
        CheckpointError: a tokenizer file can't be read.
    """
    settings = read_settings(checkpoint)
    class_name, known_by = effective_class(settings)
    engine, source = _open(checkpoint, settings, class_name, known_by)
    return Tokenizer(engine, settings, kind=class_name, source=source, segments=reads_segments(settings, class_name))


def _open(
    checkpoint: TokenizerSource, settings: Settings, class_name: str | None, known_by: str
) -> tuple[Engine, str | None]:
    if class_name == JAPANESE:
        return open_japanese(checkpoint, settings)
    path = checkpoint.file("tokenizer.json")
    if path is not None:
        if class_name == "BertweetTokenizer" and settings.flag("normalization", False):
            return _refuse(checkpoint, settings, class_name, "a tweet normalizer, which tokenizer.json can't hold")
        return from_tokenizer_json(path, settings, class_name), "tokenizer.json"
    if _has_custom_code(settings):
        return _refuse(checkpoint, settings, class_name or "a custom class", "code from the checkpoint")
    vocab_txt = checkpoint.file("vocab.txt")
    if vocab_txt is not None:
        try:
            if class_name in WORDPIECE:
                return from_vocab_txt(vocab_txt, settings), "vocab.txt"
            if class_name is None and settings.model.get("model_type") is None:
                engine = from_vocab_txt(vocab_txt, settings)
                engine.notes.append(
                    "assumed to be BERT's tokenizer: vocab.txt has its special tokens, and no file names another class"
                )
                return engine, "vocab.txt"
        except UnsupportedError as refusal:
            return Refused(refusal, _vocabulary(checkpoint, settings)), None
        if class_name == RESIDUES:
            return from_residues(vocab_txt, settings), "vocab.txt"
    model = next((path for name in SENTENCEPIECE_FILES if (path := checkpoint.file(name)) is not None), None)
    if class_name in SENTENCEPIECE:
        if model is None:
            return Refused(_incomplete(settings, class_name, False, False), {}), None
        try:
            return from_sentencepiece(model, settings, class_name), model.name
        except UnsupportedError as refusal:
            return Refused(refusal, {}), None
    vocab_json, merges = checkpoint.file("vocab.json"), checkpoint.file("merges.txt")
    if class_name in BYTE_LEVEL and vocab_json is not None and merges is not None:
        return from_vocab_and_merges(vocab_json, merges, settings), "vocab.json"
    if class_name in WORDPIECE or class_name in BYTE_LEVEL:
        return Refused(_incomplete(settings, class_name, vocab_json is not None, merges is not None), {}), None
    models = [name for name in SENTENCEPIECE_FILES if checkpoint.file(name) is not None]
    paths = (("vocab.txt", vocab_txt), ("vocab.json", vocab_json), ("merges.txt", merges))
    files = [name for name, path in paths if path]
    if not models and not files and settings.class_name is None:
        return Refused(_incomplete(settings, None, False, False), {}), None
    if class_name is None:
        error: HeadscopeError = UnsupportedError(
            f"the checkpoint has {', '.join(files + models)} but no tokenizer.json, and the tokenizer's class is "
            f"unknown: {known_by}",
            where=settings.where,
            advice=f"{CONVERT}; or set tokenizer_class in tokenizer_config.json; or {BY_IDS}",
        )
        return Refused(error, _vocabulary(checkpoint, settings)), None
    return _refuse(checkpoint, settings, class_name, f"a sentencepiece model ({models[0]})" if models else None)


def _refuse(
    checkpoint: TokenizerSource, settings: Settings, class_name: str, needs: str | None
) -> tuple[Engine, str | None]:
    needs = NEEDS.get(class_name) or needs or "steps that headscope doesn't have"
    error = UnsupportedError(
        f"the checkpoint's tokenizer is {class_name}, which needs {needs}",
        where=settings.where,
        advice=f"{CONVERT}; or {BY_IDS}",
    )
    return Refused(error, _vocabulary(checkpoint, settings)), None


def _incomplete(settings: Settings, class_name: str | None, vocab_json: bool, merges: bool) -> CheckpointError:
    files = "none of tokenizer.json, vocab.txt, vocab.json with merges.txt"
    if class_name in SENTENCEPIECE:
        files = f"none of tokenizer.json, {', '.join(SENTENCEPIECE_FILES)}"
    if vocab_json or merges:
        files = f"{'vocab.json' if vocab_json else 'merges.txt'} without {'merges.txt' if vocab_json else 'vocab.json'}"
    named = "" if class_name is None else f" for its {class_name}"
    return CheckpointError(
        f"the checkpoint lacks the files of a tokenizer{named}: {files}",
        where=settings.where,
        advice=f"put the model's tokenizer files beside its weights, or {BY_IDS}",
    )


def _has_custom_code(settings: Settings) -> bool:
    auto_map = settings.options.get("auto_map")
    return isinstance(auto_map, list) or (isinstance(auto_map, dict) and auto_map.get("AutoTokenizer") is not None)


def _vocabulary(checkpoint: TokenizerSource, settings: Settings) -> dict[str, int]:
    """Return the vocabulary for decoding ids if text is refused: vocab.txt, if it has one token per line."""
    path = checkpoint.file("vocab.txt")
    if path is None or settings.class_name in ("PhobertTokenizer", "BertweetTokenizer"):
        return {}
    return read_vocab_txt(path, f"{settings.where}: vocab.txt")
