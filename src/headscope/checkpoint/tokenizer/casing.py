"""The casing of a WordPiece model: the settings in tokenizer_config.json, or conclusions from its vocabulary."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headscope.checkpoint.tokenizer.known import BY_IDS
from headscope.checkpoint.tokenizer.settings import Settings
from headscope.errors import UnsupportedError

ENOUGH = 0.01
"""From this share of upper-case (or accented) tokens, the model was trained with them. Fewer prove nothing."""


@dataclass(frozen=True)
class Casing:
    """The normalization of a BERT tokenizer, and the reasons for it."""

    do_lower_case: bool
    strip_accents: bool | None
    tokenize_chinese_chars: bool
    reasons: list[str]


def decide_casing(vocabulary: Mapping[str, int], settings: Settings) -> Casing:
    """Return the settings in tokenizer_config.json; those that it lacks are derived from the vocabulary.

    transformers lower-cases by default, and so reads cased models wrongly. A vocabulary without upper-case letters
    must come from lower-cased text; a vocabulary with many must come from cased text.

    Raises:
        UnsupportedError: the vocabulary proves neither, or another kind of tokenizer made it.
    """
    reasons: list[str] = []
    lower = settings.flag("do_lower_case", None)
    accents = settings.flag("strip_accents", None)
    ideographs = settings.flag("tokenize_chinese_chars", None)
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
    return Casing(lower, accents, ideographs, reasons)


def _accented(piece: str) -> bool:
    """Return True if stripping accents changes the token; it also decomposes Hangul syllables."""
    decomposed = unicodedata.normalize("NFD", piece)
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn") != piece


def _is_ideograph(character: str) -> bool:
    return "\u4e00" <= character <= "\u9fff" or "\u3400" <= character <= "\u4dbf"


def _some(pieces: Iterable[str]) -> str:
    examples = list(pieces)[:4]
    return ", ".join(map(repr, examples)) + (", ..." if len(examples) == 4 else "")
