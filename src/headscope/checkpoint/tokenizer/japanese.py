"""BertJapaneseTokenizer: words from MeCab (or BERT's basic rules), then WordPiece or characters over vocab.txt.

transformers' class is written in Python, so no tokenizer.json describes it, and this file repeats its steps instead of
calling it: the class returns neither offsets nor word ids, which traces need for spans and words. It passes
mecab_option from the downloaded tokenizer_config.json to MeCab unchecked, while segmenters.py accepts only the options
that name a dictionary. And it would make transformers, which is optional, a requirement for opening a checkpoint.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence

from headscope.checkpoint.json_text import brief, shortened
from headscope.checkpoint.tokenizer.encoded import Layout, Pieces, Slot, Span, Special
from headscope.checkpoint.tokenizer.known import JAPANESE, Refused
from headscope.checkpoint.tokenizer.segmenters import Segmenter, Word, basic, mecab
from headscope.checkpoint.tokenizer.settings import Settings, TokenizerSource
from headscope.checkpoint.tokenizer.sources import read_vocab_txt
from headscope.errors import CheckpointError, HeadscopeError, UnsupportedError

LONGEST_WORD = 100

Piece = tuple[str, Span | None]


def open_japanese(source: TokenizerSource, settings: Settings) -> tuple[Japanese | Refused, str | None]:
    """Open a BertJapaneseTokenizer.

    MeCab and its dictionary are loaded with the first text: words and ids need only vocab.txt.

    Raises:
        CheckpointError: vocab.txt can't be read, or an option is invalid.
    """
    where = f"{settings.where}: tokenizer_config.json"
    path = source.file("vocab.txt")
    subwords = settings.text("subword_tokenizer_type", "wordpiece")
    if subwords not in ("wordpiece", "character"):
        error: HeadscopeError = UnsupportedError(
            f"headscope has no {JAPANESE} with subword_tokenizer_type {brief(subwords)}",
            where=where,
            advice=f"pass ids= (token ids from transformers' {JAPANESE})",
        )
        vocabulary = {} if path is None else read_vocab_txt(path, f"{settings.where}: vocab.txt")
        return Refused(error, vocabulary), None
    if path is None:
        error = CheckpointError(
            f"the checkpoint's tokenizer is {JAPANESE}, but its vocab.txt is missing",
            where=settings.where,
            advice="put vocab.txt beside the weights, or pass ids= (token ids)",
        )
        return Refused(error, {}), None
    return Japanese(read_vocab_txt(path, f"{settings.where}: vocab.txt"), settings), "vocab.txt"


class Japanese:
    """An engine that splits a text into words, and words into tokens."""

    odd_to_first = True

    def __init__(self, vocabulary: dict[str, int], settings: Settings) -> None:
        self._where = f"{settings.where}: tokenizer_config.json"
        self._settings = settings
        self._vocabulary = vocabulary
        self._lower = bool(settings.flag("do_lower_case", False))
        self._unknown = settings.spelling("unk_token", "[UNK]")
        self._cls, self._sep = settings.spelling("cls_token", "[CLS]"), settings.spelling("sep_token", "[SEP]")
        missing = [token for token in (self._cls, self._sep, self._unknown) if token not in vocabulary]
        if missing:
            raise CheckpointError(
                f"the vocabulary of {len(vocabulary)} tokens lacks {', '.join(map(shortened, missing))}",
                where=f"{settings.where}: vocab.txt",
                advice="name the special tokens in tokenizer_config.json (cls_token, sep_token, unk_token)",
            )
        self._added = _added_ids(vocabulary, settings)
        self._spellings = {index: piece for piece, index in (*vocabulary.items(), *self._added.items())}
        # The longest first: "[MASK2]" before "[MASK".
        added = sorted(self._added, key=len, reverse=True)
        self._added_pattern = re.compile("(" + "|".join(map(re.escape, added)) + ")")
        self._characters = settings.text("subword_tokenizer_type", "wordpiece") == "character"
        self._segmenter: Segmenter | None = None
        self.notes = [
            f"{JAPANESE}: words by {self._word_type()}, tokens by {'character' if self._characters else 'WordPiece'}"
        ]

    @property
    def size(self) -> int:
        return max(self._spellings) + 1

    def token(self, index: int) -> str | None:
        return self._spellings.get(index)

    def id(self, token: str) -> int | None:
        return self._added.get(token, self._vocabulary.get(token))

    def layout(self, texts: int) -> Layout:
        cls, sep = self._vocabulary[self._cls], self._vocabulary[self._sep]
        layout: list[Special | Slot] = [Special(cls, self._cls, 0), Slot(0, 0), Special(sep, self._sep, 0)]
        return layout if texts == 1 else [*layout, Slot(1, 1), Special(sep, self._sep, 1)]

    def state(self) -> None:
        """Return None: the `tokenizers` library doesn't run it."""

    def text_pieces(self, text: str) -> Pieces:
        if self._segmenter is None:
            self._segmenter = self._open_segmenter()
        pieces: list[Piece] = []
        owners: list[int] = []
        word_count = 0
        position = 0
        for part in self._added_pattern.split(text):
            words: Sequence[Word | None] = []
            if part in self._added:
                words = [None]
            elif part:
                words = self._segmenter(part)
            for word in words:
                whole = (position, position + len(part))
                cut: list[Piece] = [(part, whole)] if word is None else _moved(self._cut(word), position)
                pieces += cut
                owners += [word_count] * len(cut)
                word_count += bool(cut)
            position += len(part)
        return self._pieces(pieces, owners, word_count)

    def word_pieces(self, words: Sequence[str]) -> Pieces:
        """Tokenize each word as if it came from MeCab: apply NFKC and lower case, but no segmentation."""
        pieces: list[Piece] = []
        owners: list[int] = []
        never_split = self._never_split()
        normalize = self._word_type() == "mecab" and self._mecab_options().get("normalize_text", True) is not False
        for position, word in enumerate(words):
            if word in self._added or (word.startswith("##") and word in self._vocabulary):
                cut: list[Piece] = [(word, None)]
            else:
                text = unicodedata.normalize("NFKC", word) if normalize else word
                cut = self._cut(Word(text.lower() if self._lower and text not in never_split else text))
            pieces += cut
            owners += [position] * len(cut)
        return self._pieces(pieces, owners, len(words))

    def _pieces(self, pieces: Sequence[Piece], owners: Sequence[int], word_count: int) -> Pieces:
        unknown = self._vocabulary[self._unknown]
        ids = [self._added.get(piece, self._vocabulary.get(piece, unknown)) for piece, _ in pieces]
        tokens = [self._spellings[index] for index in ids]
        return Pieces(ids, tokens, owners, [span for _, span in pieces], word_count)

    def _cut(self, word: Word) -> list[Piece]:
        if not self._settings.flag("do_subword_tokenize", True):
            return [(word.text, _span(word, 0, len(word.text)))]
        return self._cut_characters(word) if self._characters else self._cut_wordpieces(word)

    def _cut_characters(self, word: Word) -> list[Piece]:
        text = unicodedata.normalize("NFKC", word.text)
        normal = Word(text, word.origins if text == word.text else None)
        return [(c if c in self._vocabulary else self._unknown, _span(normal, i, i + 1)) for i, c in enumerate(text)]

    def _cut_wordpieces(self, word: Word) -> list[Piece]:
        """Apply WordPiece: greedy, the longest match first; a word with an unknown part becomes one unknown token."""
        pieces: list[Piece] = []
        for match in re.finditer(r"\S+", word.text):
            begin, end = match.span()
            cut: list[Piece] = []
            start = begin if end - begin <= LONGEST_WORD else end + 1
            while start < end:
                mark = "" if start == begin else "##"
                stops = (stop for stop in range(end, start, -1) if mark + word.text[start:stop] in self._vocabulary)
                stop = next(stops, None)
                if stop is None:
                    break
                cut.append((mark + word.text[start:stop], _span(word, start, stop)))
                start = stop
            pieces += cut if start == end else [(self._unknown, _span(word, begin, end))]
        return pieces

    def _open_segmenter(self) -> Segmenter:
        kind = self._word_type()
        if not self._settings.flag("do_word_tokenize", True):
            return lambda text: [Word(text, [(index, index + 1) for index in range(len(text))])]
        if kind == "basic":
            return basic(lower=self._lower, keep=self._never_split())
        if kind == "mecab":
            return mecab(self._mecab_options(), lower=self._lower, keep=self._never_split(), where=self._where)
        raise UnsupportedError(
            f"{JAPANESE} with word_tokenizer_type {brief(kind)}: headscope has only mecab and basic",
            where=self._where,
            advice="pass words= (words from that segmenter) or ids= (token ids)",
        )

    def _word_type(self) -> str:
        return self._settings.text("word_tokenizer_type", "basic")

    def _mecab_options(self) -> Mapping[str, object]:
        options = self._settings.options.get("mecab_kwargs") or {}
        if not isinstance(options, dict):
            raise CheckpointError(
                f"mecab_kwargs is {brief(options)}, expected an object",
                where=self._where,
                advice="pass words= or ids=",
            )
        return options

    def _never_split(self) -> frozenset[str]:
        """Return the words that are neither lower-cased nor split: those of never_split, and special tokens."""
        listed = self._settings.options.get("never_split") or []
        if not isinstance(listed, list) or not all(isinstance(word, str) for word in listed):
            raise CheckpointError(
                f"never_split is {brief(listed)}, expected a list of strings",
                where=self._where,
                advice="pass words= or ids=",
            )
        plain = {piece.content for piece in self._settings.added.values() if not piece.special}
        return frozenset({*listed, *(self._added.keys() - plain)})


def _span(word: Word, start: int, stop: int) -> Span | None:
    return None if word.origins is None else (word.origins[start][0], word.origins[stop - 1][1])


def _moved(pieces: Sequence[Piece], by: int) -> list[Piece]:
    return [(piece, None if span is None else (span[0] + by, span[1] + by)) for piece, span in pieces]


def _added_ids(vocabulary: Mapping[str, int], settings: Settings) -> dict[str, int]:
    """Return the added tokens, which are matched before words, with their ids, in the order of transformers."""
    ids: dict[str, int] = {}
    for index, piece in sorted(settings.added.items()):
        if piece.single_word:
            raise UnsupportedError(
                f"the added token {brief(piece.content)} has single_word, which headscope's {JAPANESE} doesn't support",
                where=f"{settings.where}: tokenizer_config.json",
                advice="pass ids= (token ids)",
            )
        if vocabulary.get(piece.content, index) != index:
            raise CheckpointError(
                f"the added token {brief(piece.content)} is declared with id {index}, but its id in vocab.txt is "
                f"{vocabulary[piece.content]}",
                where=f"{settings.where}: tokenizer_config.json",
                advice="save the tokenizer again with transformers' save_pretrained, so that its files agree",
            )
        ids[piece.content] = index
    usual = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    usual["mask_token"] = "[MASK]"
    stated = [piece.content for piece in (*settings.named.values(), *settings.extra)]
    known = {*settings.named, *settings.without}
    defaults = [token for key, token in usual.items() if key not in known and token in vocabulary]
    for content in (*defaults, *stated):
        if content not in ids:
            ids[content] = vocabulary.get(content, len({*vocabulary, *ids}))
    return ids
