"""BertJapaneseTokenizer: words from MeCab, then WordPiece or characters over vocab.txt, by the `tokenizers` library.

transformers' class returns neither spans nor word ids, and no tokenizer.json describes it. It also passes mecab_option
of the downloaded tokenizer_config.json to MeCab unchecked; here it may only name a dictionary.
"""

from __future__ import annotations

import os
import shlex
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from headscope.checkpoint.json_text import brief, few, shortened
from headscope.checkpoint.tokenizer.backend import Backend, library_errors
from headscope.checkpoint.tokenizer.encoded import Pieces
from headscope.checkpoint.tokenizer.known import JAPANESE
from headscope.checkpoint.tokenizer.tokenizer_config import AGAIN, Settings
from headscope.checkpoint.tokenizer.vocabularies import add_template, mark_special, read_vocab_txt, required_tokens
from headscope.errors import InputError, MissingExtraError, UnsupportedError, install
from headscope.results.tokens import Span

DICTIONARIES = ("unidic_lite", "unidic", "ipadic")
DICTIONARY_OPTIONS = ("-d", "--dicdir", "-r", "--rcfile", "-u", "--userdic")
"""The only options of mecab_option that are passed to MeCab, because the setting comes from a downloaded file."""

LONGEST_TEXT = 2**15
"""Maximum characters: MeCab sums costs of at most 2 * (2**15 - 1) per character, and crashes beyond 2**31."""
LONGEST_CLUSTER = 64

Word = tuple[str, Sequence[Span] | None]
"""A word as it is looked up, and for each of its characters its span in the text; None if unknown."""


class Japanese(Backend):
    """The library's WordPiece, or its characters, of the words that MeCab finds between the added tokens of a text.

    MeCab and its dictionary are loaded with the first text: words and ids need only vocab.txt.

    Raises:
        CheckpointError: the file is not a vocabulary, lacks the special tokens, or an option is invalid.
        UnsupportedError: tokens are neither WordPiece's nor characters.
    """

    odd_to_first = True

    def __init__(self, path: Path, settings: Settings) -> None:
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

        where = f"{settings.where}: vocab.txt"
        self._settings, self._file = settings, f"{settings.where}: tokenizer_config.json"
        subwords = settings.text("subword_tokenizer_type", "wordpiece")
        single = [piece.content for piece in settings.added.values() if piece.single_word]
        if subwords not in ("wordpiece", "character"):
            raise _refused(f"headscope has no {JAPANESE} with subword_tokenizer_type {brief(subwords)}", self._file)
        if single:
            raise _refused(f"the added token {brief(single[0])} of {JAPANESE} has single_word", self._file)
        self._words_by = settings.text("word_tokenizer_type", "basic")
        self._lower = settings.flag("do_lower_case", False)
        self._mecab = settings.table("mecab_kwargs")
        self._tagger: Any = None
        characters, whole = subwords == "character", not settings.flag("do_subword_tokenize", True)
        vocabulary = read_vocab_txt(path, where)
        cls, sep, unknown = required_tokens(vocabulary, settings, where, cls="[CLS]", sep="[SEP]", unk="[UNK]")
        with library_errors(where, AGAIN):
            model = (models.WordLevel if characters or whole else models.WordPiece)(vocabulary, unk_token=unknown)
            # Without added tokens: a word that MeCab finds is none, even if it is spelled like one.
            self._pieces, rust = Tokenizer(model), Tokenizer(model)
            if characters and not whole:
                self._pieces.normalizer = normalizers.NFKC()
                self._pieces.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
            elif not whole:
                self._pieces.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\x1c-\x1f]+"), "removed")
            add_template(rust, cls, sep)
            mark_special(rust, settings, JAPANESE)
            super().__init__(rust, where=where, settings=settings)
            added = list(rust.get_added_tokens_decoder().values())
            self._parts = Tokenizer(models.WordLevel({"": 0}, unk_token=""))
            self._parts.add_tokens(added)
        self._kept = {*settings.strings("never_split"), *(piece.content for piece in added if piece.special)}
        self.notes.append(f"{JAPANESE}: words by {self._words_by}, tokens by {'character' * characters or 'WordPiece'}")

    def state(self) -> None:
        """Return None: the `tokenizers` library doesn't find the words."""

    def text_pieces(self, text: str) -> Pieces:
        found = self._encoded(text, self._segmented)
        owners = {word: number for number, word in enumerate(dict.fromkeys(word for _, word, _ in found))}
        ids = [index for index, _, _ in found]
        words, spans = [owners[word] for _, word, _ in found], [span for _, _, span in found]
        return Pieces(ids, self._spelled(ids), words, spans, len(owners))

    def word_pieces(self, words: Sequence[str]) -> Pieces:
        """Tokenize each word as if it came from MeCab: apply NFKC and lower case, but no segmentation."""
        ids: list[list[int]] = []
        for word in words:
            whole = self.id(word) if word.startswith("##") else None
            tokens = self._encoded(word, lambda part: [(self._cased(self._normal(part)), None)])
            ids.append([index for index, _, _ in tokens] if whole is None else [whole])
        return self._of_words(ids)

    def _encoded(
        self, text: str, words_of: Callable[[str], list[Word]]
    ) -> list[tuple[int, tuple[int, int], Span | None]]:
        """A text's tokens: their ids, their words as the beginning of a part and a number in it, and their spans."""
        found: list[tuple[int, tuple[int, int], Span | None]] = []
        with library_errors(self._where, AGAIN):
            parts = self._parts.encode(text)
            for index, (start, stop) in zip(parts.ids, parts.offsets, strict=True):
                if index:  # an added token; what lies between them is 0
                    added: Any = self.id(self._parts.id_to_token(index) or "")
                    found.append((added, (start, 0), (start, stop)))
                    continue
                words = words_of(text[start:stop])
                encoding = self._pieces.encode([word for word, _ in words], is_pretokenized=True)
                owners: list[Any] = encoding.word_ids
                for piece, at, (first, last) in zip(encoding.ids, owners, encoding.offsets, strict=True):
                    places = words[at][1]
                    span = None if places is None else (start + places[first][0], start + places[last - 1][1])
                    found.append((piece, (start, at), span))
        return found

    def _segmented(self, text: str) -> list[Word]:
        """The words of a text without added tokens.

        Raises:
            InputError: the text has a NUL, at which MeCab would stop reading, or is too long.
            MissingExtraError: fugashi or the dictionary is not installed.
            UnsupportedError: words are not by MeCab, or an option is unknown.
        """
        if not self._settings.flag("do_word_tokenize", True):
            return [(text, [(at, at + 1) for at in range(len(text))])]
        if self._words_by != "mecab":
            found = f"{JAPANESE} with word_tokenizer_type {brief(self._words_by)}: headscope finds words only by mecab"
            raise _refused(found, self._file)
        self._tagger = self._tagger or open_mecab(self._mecab, self._file)
        if "\0" in text:
            found = f"character {text.index(chr(0))} is a NUL, at which MeCab stops reading"
            raise InputError(found, where="text", advice="remove it from the text")
        normal = self._normal(text)
        if len(normal) > LONGEST_TEXT:
            found = f"the text has {len(normal)} characters, but MeCab can crash beyond {LONGEST_TEXT}"
            raise InputError(found, where="text", advice="pass it in parts, or pass words= (a list of words)")
        origins, words, cursor = origins_of(text, normal) or [], list[Word](), 0
        for surface in (node.surface for node in self._tagger(normal)):
            start = normal.find(surface, cursor)
            cursor = max(start + len(surface), cursor)
            word = self._cased(surface)
            aligned = origins and start >= 0 and len(word) == len(surface)
            words.append((word, origins[start:cursor] if aligned else None))
        return words

    def _normal(self, text: str) -> str:
        normalize = self._words_by == "mecab" and self._mecab.get("normalize_text", True) is not False
        return unicodedata.normalize("NFKC", text) if normalize else text

    def _cased(self, word: str) -> str:
        return word.lower() if self._lower and word not in self._kept else word


def origins_of(text: str, normal: str) -> list[Span] | None:
    """Return the span in a text of each character of its NFKC.

    The text is split into clusters that normalize independently; the span of a character is that of its cluster. None
    if the joined clusters differ from the text's NFKC.
    """
    if normal == text:
        return [(index, index + 1) for index in range(len(text))]
    clusters, begins = [""], [0]
    for index, character in enumerate(text):
        alone = unicodedata.normalize("NFKC", character)
        joined = unicodedata.normalize("NFKC", text[begins[-1] : index + 1])
        if index and (joined == clusters[-1] + alone or index - begins[-1] >= LONGEST_CLUSTER):
            clusters.append(alone)
            begins.append(index)
        else:
            clusters[-1] = joined
    spans = zip(clusters, begins, [*begins[1:], len(text)], strict=True)
    origins = [(begin, end) for cluster, begin, end in spans for _ in cluster]
    return origins if "".join(clusters) == normal else None


def open_mecab(options: Mapping[str, Any], where: str) -> Any:
    """Return fugashi's tagger for mecab_kwargs of tokenizer_config.json.

    Raises:
        MissingExtraError: fugashi or the dictionary is not installed.
        UnsupportedError: an option is unknown, or does more than name a dictionary.
    """
    dictionary, option = options.get("mecab_dic", "unidic_lite"), options.get("mecab_option") or ""
    if unknown := sorted(set(options) - {"normalize_text", "mecab_dic", "mecab_option"}):
        raise _refused(f"mecab_kwargs has unknown options: {few([*map(shortened, unknown)], 5)}", where)
    if dictionary not in (None, *DICTIONARIES):
        raise _refused(f"mecab_dic is {brief(dictionary)}, expected one of {', '.join(DICTIONARIES)}", where)
    if not isinstance(option, str):
        raise _refused(f"mecab_option is {brief(option)}, expected a string", where)
    try:
        arguments = shlex.split(option)
    except ValueError:
        arguments = [option]
    for argument in arguments:
        if argument.startswith("-") and not argument.split("=")[0].startswith(DICTIONARY_OPTIONS):
            names = ", ".join(DICTIONARY_OPTIONS)
            found = f"mecab_option contains {brief(argument)}; headscope accepts only options that name a dictionary"
            raise _refused(f"{found} ({names})", where)
    fugashi = _module("fugashi", "fugashi (MeCab)", "", where)
    if dictionary is not None:
        package = dictionary.replace("_", "-")
        extra = "" if package == "unidic-lite" else f" {package}"
        folder = _module(dictionary, f"the dictionary {package}", extra, where).DICDIR
        option = f'-d "{folder}" -r "{os.path.join(folder, "mecabrc")}" {option}'
    try:
        return fugashi.GenericTagger(option)
    except (RuntimeError, UnicodeEncodeError) as error:
        raise MissingExtraError(
            f"MeCab can't open the dictionary of {brief(option.strip()) if option.strip() else 'its settings'}",
            where=where,
            advice="install that dictionary (unidic: `python -m unidic download`), or pass words= or ids=",
        ) from error


def _module(name: str, requirement: str, packages: str, where: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"this checkpoint's tokenizer uses MeCab, but {requirement} is not installed",
            where=where,
            advice=f"{install('japanese')}{packages}; or pass words= (a list of words) or ids=",
        ) from error


def _refused(found: str, where: str) -> UnsupportedError:
    return UnsupportedError(found, where=where, advice="pass words= (a list of words) or ids= (token ids)")
