"""From a checkpoint to its tokenizer: which files there are, and which way of reading them is known to be right."""

from __future__ import annotations

from headscope.checkpoint.tokenizer.face import Engine, Tokenizer
from headscope.checkpoint.tokenizer.japanese import open_japanese
from headscope.checkpoint.tokenizer.known import (
    BY_IDS,
    BYTE_LEVEL,
    CONVERT,
    JAPANESE,
    NEEDS,
    SENTENCEPIECE_FILES,
    WORDPIECE,
    effective_class,
    reads_segments,
)
from headscope.checkpoint.tokenizer.refused import Refused
from headscope.checkpoint.tokenizer.settings import Settings, TokenizerSource, read_settings
from headscope.checkpoint.tokenizer.sources import (
    from_tokenizer_json,
    from_vocab_and_merges,
    from_vocab_txt,
    read_vocab_txt,
)
from headscope.errors import CheckpointError, HeadscopeError, UnsupportedError


def load_tokenizer(checkpoint: TokenizerSource) -> Tokenizer:
    """The tokenizer of a checkpoint: tokenizer.json, else vocab.txt, else vocab.json and merges.txt.

    A tokenizer that needs more than these files is never guessed at: the result then takes ids, and where the
    vocabulary allows it words, but raises an error that names the tokenizer when it is given text. The same where
    the checkpoint has no tokenizer at all.
    Errors: CheckpointError for a tokenizer file that can't be read.
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
    if _has_code_of_its_own(settings):
        return _refuse(checkpoint, settings, class_name or "a class of its own", "code that comes with the checkpoint")
    vocab_txt = checkpoint.file("vocab.txt")
    if vocab_txt is not None:
        try:
            if class_name in WORDPIECE:
                return from_vocab_txt(vocab_txt, settings), "vocab.txt"
            if class_name is None and settings.model.get("model_type") is None:
                engine = from_vocab_txt(vocab_txt, settings)
                engine.notes.append(
                    "taken for BERT's tokenizer: vocab.txt has its special tokens, and no file names another"
                )
                return engine, "vocab.txt"
        except UnsupportedError as refusal:
            return Refused(refusal, _vocabulary(checkpoint, settings)), None
    vocab_json, merges = checkpoint.file("vocab.json"), checkpoint.file("merges.txt")
    if class_name in BYTE_LEVEL and vocab_json is not None and merges is not None:
        return from_vocab_and_merges(vocab_json, merges, settings), "vocab.json"
    if class_name in WORDPIECE or class_name in BYTE_LEVEL:
        return Refused(_incomplete(settings, class_name, vocab_json is not None, merges is not None), {}), None
    found = [name for name in SENTENCEPIECE_FILES if checkpoint.file(name) is not None]
    files = [
        name for name, there in (("vocab.txt", vocab_txt), ("vocab.json", vocab_json), ("merges.txt", merges)) if there
    ]
    if not found and not files and settings.class_name is None:
        return Refused(_incomplete(settings, None, False, False), {}), None
    if class_name is None:
        error: HeadscopeError = UnsupportedError(
            f"the checkpoint has {', '.join(files + found)} but no tokenizer.json, and nothing says which tokenizer "
            f"reads them: {known_by}",
            where=settings.where,
            advice=f"{CONVERT}; or name tokenizer_class in tokenizer_config.json; or {BY_IDS}",
        )
        return Refused(error, _vocabulary(checkpoint, settings)), None
    return _refuse(checkpoint, settings, class_name, f"a sentencepiece model ({found[0]})" if found else None)


def _refuse(
    checkpoint: TokenizerSource, settings: Settings, class_name: str, needs: str | None
) -> tuple[Engine, str | None]:
    needs = NEEDS.get(class_name) or needs or "more than headscope knows to be right"
    error = UnsupportedError(
        f"the checkpoint's tokenizer is {class_name}, which needs {needs}",
        where=settings.where,
        advice=f"{CONVERT}; or {BY_IDS}",
    )
    return Refused(error, _vocabulary(checkpoint, settings)), None


def _incomplete(settings: Settings, class_name: str | None, vocab_json: bool, merges: bool) -> CheckpointError:
    files = "none of tokenizer.json, vocab.txt, vocab.json with merges.txt"
    if vocab_json or merges:
        files = f"{'vocab.json' if vocab_json else 'merges.txt'} without {'merges.txt' if vocab_json else 'vocab.json'}"
    named = "" if class_name is None else f" for its {class_name}"
    return CheckpointError(
        f"the checkpoint has no tokenizer that could read text{named}: {files}",
        where=settings.where,
        advice=f"put the model's tokenizer files beside its weights, or {BY_IDS}",
    )


def _has_code_of_its_own(settings: Settings) -> bool:
    auto_map = settings.options.get("auto_map")
    return isinstance(auto_map, list) or (isinstance(auto_map, dict) and auto_map.get("AutoTokenizer") is not None)


def _vocabulary(checkpoint: TokenizerSource, settings: Settings) -> dict[str, int]:
    """What spells ids where text is refused: a vocab.txt of one piece per line, if there is one."""
    path = checkpoint.file("vocab.txt")
    if path is None or settings.class_name in ("PhobertTokenizer", "BertweetTokenizer"):
        return {}
    return read_vocab_txt(path, f"{settings.where}: vocab.txt")
