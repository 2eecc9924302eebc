"""Facts that a tokenizer's files leave out: tables of classes, the casing of WordPiece models, the engine that refuses.

The tables say which classes a checkpoint's files describe completely, and which need more.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headscope.checkpoint.json_text import brief
from headscope.checkpoint.tokenizer.encoded import Layout, Pieces
from headscope.checkpoint.tokenizer.tokenizer_config import AddedPiece, Settings
from headscope.errors import HeadscopeError, InputError, UnsupportedError

WORDPIECE = frozenset(
    {
        "BertTokenizer",
        "ConvBertTokenizer",
        "DistilBertTokenizer",
        "ElectraTokenizer",
        "LayoutLMTokenizer",
        "LxmertTokenizer",
        "MobileBertTokenizer",
        "RetriBertTokenizer",
        "SqueezeBertTokenizer",
    }
)
"""BERT's basic tokenizer and WordPiece over vocab.txt, [CLS] A [SEP] B [SEP]."""

SENTENCEPIECE = frozenset({"AlbertTokenizer", "DebertaV2Tokenizer"})
"""A SentencePiece unigram model, [CLS] A [SEP] B [SEP]."""

RESIDUES = "EsmTokenizer"
"""Every token of vocab.txt is matched wherever it occurs, <cls> A <eos> B <eos>."""

BYTE_LEVEL = frozenset({"BartTokenizer", "LongformerTokenizer", "RobertaTokenizer"})
"""GPT-2's byte-level BPE over vocab.json and merges.txt, <s> A </s></s> B </s>."""

JAPANESE = "BertJapaneseTokenizer"

CLASS_OF_MODEL = {
    "albert": "AlbertTokenizer",
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "convbert": "ConvBertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
    "ernie": "BertTokenizer",
    "esm": "EsmTokenizer",
    "layoutlm": "LayoutLMTokenizer",
    "longformer": "LongformerTokenizer",
    "lxmert": "LxmertTokenizer",
    "megatron-bert": "BertTokenizer",
    "mobilebert": "MobileBertTokenizer",
    "mpnet": "MPNetTokenizer",
    "nomic_bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "roformer": "RoFormerTokenizer",
    "roberta-prelayernorm": "RobertaTokenizer",
    "squeezebert": "SqueezeBertTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
"""model_type -> the class that transformers uses if no file names one."""

WITHOUT_SEGMENTS = frozenset(
    {
        "BartTokenizer",
        "CamembertTokenizer",
        "DistilBertTokenizer",
        "EsmTokenizer",
        "LongformerTokenizer",
        "MPNetTokenizer",
        "RobertaTokenizer",
        "XLMRobertaTokenizer",
    }
)
"""Tokenizers that compute the segments of a pair without passing them to the model."""

BY_VERSION = frozenset(
    {
        "AlbertTokenizer",
        "BertJapaneseTokenizer",
        "PreTrainedTokenizer",
        "PreTrainedTokenizerFast",
        "RemBertTokenizer",
        "RoFormerTokenizer",
        "TokenizersBackend",
    }
)
"""Tokenizers that pass segments to the model under transformers 4 and don't under transformers 5."""

SEGMENTS = ("own", "one", "two")
"""The choices for segments of a pair: those that the tokenizer has, one for both texts, or two."""

NEEDS = {
    "BarthezTokenizer": "a sentencepiece model",
    "BertweetTokenizer": "a tweet normalizer and its own BPE",
    "BigBirdTokenizer": "a sentencepiece model",
    "CamembertTokenizer": "a sentencepiece model",
    "FlaubertTokenizer": "a Moses tokenizer and its own BPE",
    "HerbertTokenizer": "its own BPE, which marks the end of a word",
    "MPNetTokenizer": "its own template",
    "PhobertTokenizer": "a Vietnamese word segmenter and its own BPE",
    "RemBertTokenizer": "a sentencepiece model",
    "RoFormerTokenizer": "a Chinese word segmenter",
    "XLMRobertaTokenizer": "a sentencepiece model",
    "XLMTokenizer": "a Moses tokenizer and its own BPE",
    "XLNetTokenizer": "a sentencepiece model",
}
"""Tokenizer class -> what it needs beyond the files that headscope reads."""

SENTENCEPIECE_FILES = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model")

BY_IDS = "pass ids= (token ids)"
CONVERT = (
    "convert it with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER), with the packages that "
    "this tokenizer requires, writes a tokenizer.json if that format can express it"
)


def usual_specials(class_name: str | None) -> dict[str, AddedPiece]:
    """Return the default special tokens of a class."""
    if class_name in WORDPIECE or class_name == JAPANESE:
        return {f"{name}_token": AddedPiece(f"[{name.upper()}]") for name in ("unk", "sep", "pad", "cls", "mask")}
    if class_name == RESIDUES:
        return {f"{name}_token": AddedPiece(f"<{name}>") for name in ("cls", "pad", "eos", "unk", "mask")}
    if class_name in BYTE_LEVEL or class_name in ("CamembertTokenizer", "XLMRobertaTokenizer"):
        spelled = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>"}
        usual = {f"{name}_token": AddedPiece(token) for name, token in spelled.items()}
        # These models were trained with <mask> instead of a token that includes the space before it.
        return {**usual, "mask_token": AddedPiece("<mask>", lstrip=True)}
    return {}


def effective_class(settings: Settings) -> tuple[str | None, str]:
    """Return the tokenizer's class, None if neither a file nor the model's type determines it, and its origin."""
    if settings.class_name is not None:
        return settings.class_name, f"named in {settings.class_from}"
    model_type = settings.model.get("model_type")
    if isinstance(model_type, str) and model_type in CLASS_OF_MODEL:
        return CLASS_OF_MODEL[model_type], f"the tokenizer of model_type {model_type}"
    return None, f"no file names it, and model_type is {brief(model_type)}"


def reads_segments(settings: Settings, class_name: str | None, wanted: str = "own") -> tuple[bool, str]:
    """Return True if the model uses the segments of its tokenizer, otherwise all are 0; and where versions differ, how.

    transformers passes token_type_ids to the model if the tokenizer's model_input_names contains them. Where no file
    has these, the class has, and for some classes version 4 gave two segments and version 5 gives one. Then the version
    that saved the files decides.

    Args:
        settings: of the tokenizer.
        class_name: the tokenizer's class.
        wanted: one of SEGMENTS.

    Raises:
        InputError: two segments for a model that has one.
    """
    types = settings.model.get("type_vocab_size")
    if wanted == "two" and types == 1:
        raise InputError(
            "the model has one segment (type_vocab_size 1)", where="segments", advice="leave segments out, or use own"
        )
    if wanted != "own":
        return wanted == "two", ""
    if types in (1, None):
        return types is None, ""
    names = settings.options.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names, ""
    if class_name not in BY_VERSION:
        return class_name not in WITHOUT_SEGMENTS, ""
    saved = settings.model.get("transformers_version")
    stated = re.match(r"[0-9]{1,9}", saved) if isinstance(saved, str) else None
    newer = class_name == "TokenizersBackend" or "backend" in settings.options or int(stated[0] if stated else 4) > 4
    which = "transformers 5 saved it" if newer else "transformers 4 saved it" if stated else "no file says who saved it"
    other = "version 4 gives two" if newer else "version 5 gives one"
    return not newer, (
        f"the texts of a pair have {'one segment' if newer else 'two segments'}: {which}, and tokenizer_config.json "
        f"has no model_input_names; {other} (choose with segments='one' or 'two')"
    )


FOREIGN_VOCABULARY = "this vocabulary can't belong to its"
"""The beginning of the note on one."""

CASING = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""Setting of BERT's tokenizers -> its name in the library's BertNormalizer."""

ENOUGH = 0.01
"""From this share of upper-case (or accented) tokens, the model was trained with them. Fewer prove nothing."""


def decide_casing(vocabulary: Mapping[str, int], settings: Settings) -> tuple[dict[str, Any], list[str]]:
    """Return the settings in tokenizer_config.json; those that it lacks are derived from the vocabulary, with reasons.

    They have the names of the library's BertNormalizer, as in `CASING`.

    transformers lower-cases by default, and so reads cased models wrongly. A vocabulary without upper-case letters
    must come from lower-cased text; a vocabulary with many must come from cased text.

    Raises:
        UnsupportedError: the vocabulary proves neither, or another kind of tokenizer made it.
    """
    reasons: list[str] = []
    lower, accents, ideographs = (settings.flag(option, None) for option in CASING)
    words = [piece for piece in vocabulary if not (piece.startswith("[") and piece.endswith("]"))]
    lettered = [piece for piece in words if any(map(str.isalpha, piece))]
    if lower is None:
        upper = [piece for piece in lettered if piece.lower() != piece]
        lower = not upper
        if upper and len(upper) < ENOUGH * len(lettered):
            raise UnsupportedError(
                f"the casing of the model is unknown: tokenizer_config.json has no do_lower_case, and {len(upper)} of "
                f"the vocabulary's {len(lettered)} tokens with letters have an upper-case letter ({_some(upper)})",
                where=f"{settings.where}: vocab.txt",
                advice=f'write {{"do_lower_case": true}} (or false) into tokenizer_config.json, or {BY_IDS}',
            )
        reasons.append(
            f"do_lower_case is {lower}: tokenizer_config.json doesn't set it, and {len(upper)} of the vocabulary's "
            f"{len(lettered)} tokens with letters have an upper-case letter"
        )
        if lower and accents is None:
            marked = [piece for piece in lettered if _accented(piece)]
            if len(marked) >= ENOUGH * len(lettered) > 0:
                accents = False
                reasons.append(
                    f"strip_accents is False: otherwise, {len(marked)} tokens could never occur ({_some(marked)})"
                )
    if ideographs is None:
        ideographs = True
        runs = [piece for piece in words if sum(map(_is_ideograph, piece)) > 1]
        if settings.class_name is None and len(runs) >= ENOUGH * len(words) > 0:
            raise UnsupportedError(
                f"{len(runs)} of {len(words)} tokens have several ideographs ({_some(runs)}), which BERT's tokenizer "
                "separates: this vocabulary needs a word segmenter that no file names",
                where=f"{settings.where}: vocab.txt",
                advice="name the segmenter in tokenizer_config.json (tokenizer_class, word_tokenizer_type, "
                f"tokenize_chinese_chars), or {BY_IDS}",
            )
    return dict(zip(CASING.values(), (lower, accents, ideographs), strict=True)), reasons


def _accented(piece: str) -> bool:
    """Return True if stripping accents changes the token; it also decomposes Hangul syllables."""
    decomposed = unicodedata.normalize("NFD", piece)
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn") != piece


def _is_ideograph(character: str) -> bool:
    return "\u4e00" <= character <= "\u9fff" or "\u3400" <= character <= "\u4dbf"


def _some(pieces: Iterable[str]) -> str:
    examples = list(pieces)[:4]
    return ", ".join(map(repr, examples)) + (", ..." if len(examples) == 4 else "")


class Refused:
    """The engine of a tokenizer that headscope can't read correctly: text raises an error, ids work.

    It may have a vocabulary for decoding ids.
    """

    odd_to_first = False

    def __init__(self, error: HeadscopeError, vocabulary: Mapping[str, int]) -> None:
        self._error = error
        self._vocabulary = vocabulary
        self._spellings = {index: piece for piece, index in vocabulary.items()}
        self.notes: list[str] = []

    @property
    def size(self) -> int:
        return max(self._spellings, default=-1) + 1

    def token(self, index: int) -> str | None:
        return self._spellings.get(index)

    def id(self, token: str) -> int | None:
        return self._vocabulary.get(token)

    def text_pieces(self, text: str) -> Pieces:
        raise self._fresh_error()

    def word_pieces(self, words: Sequence[str]) -> Pieces:
        raise self._fresh_error()

    def layout(self, texts: int) -> Layout:
        return ()

    def state(self) -> dict[str, Any] | None:
        raise self._fresh_error()

    def _fresh_error(self) -> HeadscopeError:
        """Copy the error: a raised error keeps its traceback, and with it the caller's text."""
        return type(self._error)(self._error.found, where=self._error.where, advice=self._error.advice)
