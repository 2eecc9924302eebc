"""Segmentation of Japanese text into words, as in transformers' BertJapaneseTokenizer: MeCab, or BERT's basic rules."""

from __future__ import annotations

import os
import shlex
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from headscope.checkpoint.json_text import brief, few, shortened
from headscope.checkpoint.tokenizer.encoded import Span
from headscope.errors import CheckpointError, InputError, MissingExtraError, UnsupportedError, install

DICTIONARY_OPTIONS = ("-d", "--dicdir", "-r", "--rcfile", "-u", "--userdic")
"""The only options of mecab_option that are passed to MeCab, because the setting comes from a downloaded file."""

DICTIONARIES = {"unidic_lite": "unidic-lite", "unidic": "unidic", "ipadic": "ipadic"}
LONGEST_CLUSTER = 64

LONGEST_TEXT = 2**15
"""Maximum characters: MeCab sums costs of at most 2 * (2**15 - 1) per character, and crashes beyond 2**31."""


@dataclass(frozen=True)
class Word:
    """A word of the text.

    Attributes:
        text: the word, normalized and lower-cased as in the tokenizer.
        origins: for each of its characters, its span in the original text; None if unknown.
    """

    text: str
    origins: Sequence[Span] | None = None


Segmenter = Callable[[str], list[Word]]


def mecab(options: Mapping[str, Any], *, lower: bool, keep: frozenset[str], where: str) -> Segmenter:
    """Return a segmenter by MeCab (fugashi): NFKC, morphemes, then lower case.

    The segmenter raises InputError for a NUL, at which MeCab would stop reading, and for a text that is too long.

    Args:
        options: mecab_kwargs of tokenizer_config.json.
        lower: True to lower-case words.
        keep: words that are never lower-cased.
        where: the file, for messages.

    Raises:
        MissingExtraError: fugashi or the dictionary is not installed.
        UnsupportedError: an option is unknown.
    """
    unknown = sorted(set(options) - {"normalize_text", "mecab_dic", "mecab_option"})
    if unknown:
        raise UnsupportedError(
            f"mecab_kwargs has unknown options: {few([*map(shortened, unknown)], 5)}",
            where=where,
            advice="pass words= or ids=",
        )
    tagger = _tagger(options.get("mecab_dic", "unidic_lite"), options.get("mecab_option"), where)
    normalize = options.get("normalize_text", True) is not False

    def segment(text: str) -> list[Word]:
        if "\0" in text:
            raise InputError(
                f"character {text.index(chr(0))} is a NUL, at which MeCab stops reading",
                where="text",
                advice="remove it from the text",
            )
        normal, origins = nfkc_with_origins(text) if normalize else (text, [(i, i + 1) for i in range(len(text))])
        if len(normal) > LONGEST_TEXT:
            raise InputError(
                f"the text has {len(normal)} characters, but MeCab can crash beyond {LONGEST_TEXT}",
                where="text",
                advice="pass it in parts, or pass words= (a list of words)",
            )
        words, cursor = [], 0
        for surface in tagger(normal):
            start = normal.find(surface, cursor)
            cursor = max(start + len(surface), cursor)
            word = surface.lower() if lower and surface not in keep else surface
            aligned = start >= 0 and len(word) == len(surface)
            words.append(Word(word, origins[start:cursor] if origins is not None and aligned else None))
        return words

    return segment


def basic(*, lower: bool, keep: frozenset[str]) -> Segmenter:
    """Return a segmenter by BERT's basic rules, without separating ideographs.

    The steps are: clean, NFC, split at white space, lower-case, split at punctuation.

    Args:
        lower: True to lower-case words.
        keep: words that are neither lower-cased nor split.
    """

    def segment(text: str) -> list[Word]:
        words = []
        for word in unicodedata.normalize("NFC", _clean(text)).split():
            if lower and word not in keep:
                word = _without_accents(word.lower())
            words += [word] if word in keep else _split_punctuation(word)
        # Lower-casing can leave white space inside a word.
        return [Word(part) for word in words for part in word.split()]

    return segment


def nfkc_with_origins(text: str) -> tuple[str, list[Span] | None]:
    """Return the NFKC of a text, and for each of its characters its span in the original text.

    The text is split into clusters that normalize independently; the span of a character is that of its cluster. The
    spans are None if the joined clusters differ from the text's NFKC.
    """
    whole = unicodedata.normalize("NFKC", text)
    if whole == text:
        return whole, [(index, index + 1) for index in range(len(text))]
    parts: list[str] = []
    origins: list[Span] = []
    start, cluster = 0, ""
    for index, character in enumerate(text):
        alone = unicodedata.normalize("NFKC", character)
        joined = unicodedata.normalize("NFKC", text[start : index + 1])
        if index == start or (joined != cluster + alone and index - start < LONGEST_CLUSTER):
            cluster = joined
            continue
        parts.append(cluster)
        origins += [(start, index)] * len(cluster)
        start, cluster = index, alone
    parts.append(cluster)
    origins += [(start, len(text))] * len(cluster)
    return whole, origins if "".join(parts) == whole else None


def _tagger(dictionary: Any, option: Any, where: str) -> Callable[[str], list[str]]:
    if dictionary is not None and (not isinstance(dictionary, str) or dictionary not in DICTIONARIES):
        raise UnsupportedError(
            f"mecab_dic is {brief(dictionary)}, expected one of {', '.join(DICTIONARIES)}",
            where=where,
            advice="pass words= or ids=",
        )
    if option is not None and not isinstance(option, str):
        raise CheckpointError(
            f"mecab_option is {brief(option)}, expected a string", where=where, advice="pass words= or ids="
        )
    _check_option(option or "", where)
    fugashi = _module("fugashi", "fugashi (MeCab)", "", where)
    arguments = option or ""
    if dictionary is not None:
        package = DICTIONARIES[dictionary]
        extra = "" if dictionary == "unidic_lite" else f" {package}"
        folder = _module(dictionary, f"the dictionary {package}", extra, where).DICDIR
        if not os.path.isdir(folder):
            raise MissingExtraError(
                f"the package {package} is installed, but its dictionary is missing",
                where=where,
                advice=f"run `python -m {dictionary} download`, or pass words= or ids=",
            )
        arguments = f'-d "{folder}" -r "{os.path.join(folder, "mecabrc")}" {arguments}'
    try:
        tagger = fugashi.GenericTagger(arguments)
    except (RuntimeError, UnicodeEncodeError) as error:
        option_text = brief(arguments.strip()) if arguments.strip() else "none given"
        raise MissingExtraError(
            f"MeCab can't open the dictionary of mecab_option: {option_text}",
            where=where,
            advice="install that dictionary, or pass words= or ids=",
        ) from error
    return lambda text: [word.surface for word in tagger(text)]


def _check_option(option: str, where: str) -> None:
    try:
        arguments = shlex.split(option)
    except ValueError:
        arguments = [option]
    for argument in arguments:
        name = argument.split("=")[0]
        if name.startswith("-") and not name.startswith(DICTIONARY_OPTIONS):
            raise UnsupportedError(
                f"mecab_option contains {brief(argument)}; headscope accepts only options that name a dictionary "
                f"({', '.join(DICTIONARY_OPTIONS)})",
                where=where,
                advice="pass words= or ids=",
            )


def _module(name: str, requirement: str, packages: str, where: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"this checkpoint's tokenizer uses MeCab, but {requirement} is not installed",
            where=where,
            advice=f"{install('japanese')}{packages}; or pass words= (a list of words) or ids=",
        ) from error


def _clean(text: str) -> str:
    cleaned = []
    for character in text:
        category = unicodedata.category(character)
        if character in " \t\n\r" or category == "Zs":
            cleaned.append(" ")
        elif character not in "\0\ufffd" and not category.startswith("C"):
            cleaned.append(character)
    return "".join(cleaned)


def _without_accents(word: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")


def _split_punctuation(word: str) -> list[str]:
    parts: list[str] = []
    fresh = True
    for character in word:
        if _is_punctuation(character):
            parts.append(character)
            fresh = True
        elif fresh:
            parts.append(character)
            fresh = False
        else:
            parts[-1] += character
    return parts


def _is_punctuation(character: str) -> bool:
    """Return True for punctuation by BERT's rules, which include all ASCII symbols."""
    ascii_sign = "!" <= character <= "~" and not character.isalnum()
    return ascii_sign or unicodedata.category(character).startswith("P")
