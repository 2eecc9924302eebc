"""Whether a WordPiece model reads lower case: what tokenizer_config.json says, or what its vocabulary proves."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headscope.checkpoint.tokenizer.known import BY_IDS
from headscope.checkpoint.tokenizer.settings import Settings
from headscope.errors import UnsupportedError

# From this share of the pieces with letters on, upper case (or accents) is what the model was made with. Below it,
# and above nothing at all, a few strays prove nothing.
ENOUGH = 0.01


@dataclass(frozen=True)
class Casing:
    """The normalization of a BERT tokenizer, and why it was taken."""

    do_lower_case: bool
    strip_accents: bool | None
    tokenize_chinese_chars: bool
    reasons: list[str]


def decide_casing(vocabulary: Mapping[str, int], settings: Settings) -> Casing:
    """Take what tokenizer_config.json says; for what it does not say, ask the vocabulary.

    transformers takes lower case wherever nothing is said, and so reads cased models wrongly. A vocabulary without
    an upper-case letter can only have been made from lower-cased text; one with many, only from text as it was.
    Errors: UnsupportedError where the vocabulary proves neither, or can't have been made by this tokenizer.
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
                f"nothing says whether the model reads lower case: tokenizer_config.json has no do_lower_case, and "
                f"{len(upper)} of the vocabulary's {len(lettered)} pieces with letters hold an upper-case letter "
                f"({_some(upper)})",
                where=f"{settings.where}: vocab.txt",
                advice=f'write {{"do_lower_case": true}} (or false) into tokenizer_config.json, or {BY_IDS}',
            )
        reasons.append(
            f"do_lower_case is {lower}: tokenizer_config.json does not say, and {len(upper)} of the vocabulary's "
            f"{len(lettered)} pieces with letters hold an upper-case letter"
        )
        if lower and accents is None:
            marked = [piece for piece in lettered if _accented(piece)]
            if len(marked) >= ENOUGH * len(lettered) > 0:
                accents = False
                reasons.append(
                    f"strip_accents is False: {len(marked)} pieces could never be reached otherwise ({_some(marked)})"
                )
    if ideographs is None:
        ideographs = True
        runs = [piece for piece in words if sum(map(_is_ideograph, piece)) > 1]
        if settings.class_name is None and len(runs) >= ENOUGH * len(words) > 0:
            raise UnsupportedError(
                f"{len(runs)} of {len(words)} pieces hold several ideographs ({_some(runs)}), which BERT's tokenizer "
                "sets apart: this vocabulary was made with a word segmenter that no file names",
                where=f"{settings.where}: vocab.txt",
                advice="name it in tokenizer_config.json (tokenizer_class, word_tokenizer_type, "
                f"tokenize_chinese_chars), or {BY_IDS}",
            )
    return Casing(lower, accents, ideographs, reasons)


def _accented(piece: str) -> bool:
    """Whether stripping accents changes the piece; it also takes Hangul syllables apart."""
    decomposed = unicodedata.normalize("NFD", piece)
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn") != piece


def _is_ideograph(character: str) -> bool:
    return "\u4e00" <= character <= "\u9fff" or "\u3400" <= character <= "\u4dbf"


def _some(pieces: Iterable[str]) -> str:
    shown = list(pieces)[:4]
    return ", ".join(map(repr, shown)) + (", ..." if len(shown) == 4 else "")
