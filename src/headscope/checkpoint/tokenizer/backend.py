"""Tokenization by the `tokenizers` library, and its failures as headscope's errors."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headscope.checkpoint.json_text import brief, shortened
from headscope.checkpoint.tokenizer.encoded import Layout, Pieces, Slot, Special
from headscope.checkpoint.tokenizer.known import FOREIGN_VOCABULARY
from headscope.checkpoint.tokenizer.tokenizer_config import AGAIN, AddedPiece, Settings
from headscope.errors import CheckpointError, HeadscopeError, UnsupportedError
from headscope.results.tokens import SPACES

if TYPE_CHECKING:
    import tokenizers


def _rules(component: Any) -> Iterator[dict[str, Any]]:
    """A component, as tokenizer.json has it, and those in it."""
    if isinstance(component, dict):
        yield component
        for name in ("normalizers", "pretokenizers"):
            inner = component.get(name)
            for part in inner if isinstance(inner, list) else ():
                yield from _rules(part)


SEEN, WORDS, FEWEST = 1024, 32, 4
"""Pieces of a vocabulary that are looked at, words among them that are read, and the fewest that prove anything."""
FOREIGN = 0.9
"""From this share of words that are not read as themselves, the vocabulary is another tokenizer's."""


class Backend:
    """A tokenizer of the `tokenizers` library, without truncation and padding."""

    odd_to_first = False

    def __init__(self, rust: tokenizers.Tokenizer, *, where: str, settings: Settings) -> None:
        self._rust = rust
        self._where = where
        self._layouts: dict[int, Layout] = {}
        self._for_words: tokenizers.Tokenizer | None = None
        self.notes: list[str] = []
        with library_errors(where, AGAIN):
            self._disable_stored_options()
            self._add_declared(settings)
            self._continuations = _continuation_marks(rust)
            self._byte_level_without_space = any(
                part.get("type") == "ByteLevel" and not part.get("add_prefix_space")
                for part in _rules(_state(rust.pre_tokenizer))
            )
            self.notes += self._foreign()

    def _foreign(self) -> Iterator[str]:
        """A note, if the tokenizer doesn't read the vocabulary's own words as themselves."""
        rust, model = self._rust, self._rust.model
        end = getattr(model, "end_of_word_suffix", None) or ""
        inner = getattr(model, "continuing_subword_prefix", None) or "##"
        size = rust.get_vocab_size(with_added_tokens=False)
        pieces = [one for at in range(0, size, max(1, size // SEEN)) if (one := rust.id_to_token(at))]
        first = [one for one in pieces if one[0] in SPACES] or [one for one in pieces if not one.startswith(inner)]
        words = {one: one.lstrip(SPACES).removesuffix(end) for one in first if one.endswith(end)}
        ascii_only = "ByteLevel" in str(rust.pre_tokenizer)  # which spells other letters by their bytes
        words = {one: word for one, word in words.items() if len(word) > 2 and word.isalpha()}
        chosen = [one for one, word in words.items() if not ascii_only or word.isascii()]
        read = {
            one: [rust.encode(text, add_special_tokens=False).tokens for text in (words[one], f" {words[one]}")]
            for one in chosen[:: max(1, len(chosen) // WORDS)]
        }
        wrong = [one for one in read if [one] not in read[one]]
        if len(wrong) >= FEWEST and len(wrong) > FOREIGN * len(read):
            yield (
                f"{FOREIGN_VOCABULARY} {type(model).__name__} tokenizer: {len(wrong)} of {len(read)} of its words "
                f"are not read as themselves ({wrong[0]} as {' '.join(read[wrong[0]][0])[:40]}); use the tokenizer "
                "that the model was trained with (tokenizer=)"
            )

    @property
    def size(self) -> int:
        return int(self._rust.get_vocab_size(with_added_tokens=True))

    def token(self, index: int) -> str | None:
        return self._rust.id_to_token(index) if 0 <= index < 2**32 else None

    def id(self, token: str) -> int | None:
        try:
            return self._rust.token_to_id(token)
        except UnicodeEncodeError:
            return None

    def added(self) -> dict[str, int]:
        """Return the added tokens, which are matched before anything else, with their ids."""
        return {piece.content: index for index, piece in self._rust.get_added_tokens_decoder().items()}

    def state(self) -> dict[str, Any] | None:
        """Return the tokenizer as tokenizer.json has it."""
        state: dict[str, Any] = json.loads(self._rust.to_str())
        return state

    def text_pieces(self, text: str) -> Pieces:
        with library_errors(self._where, AGAIN):
            encoding = self._rust.encode(text, add_special_tokens=False)
        words = encoding.word_ids
        count = 1 + max((word for word in words if word is not None), default=-1)
        return Pieces(encoding.ids, self._spelled(encoding.ids), words, encoding.offsets, count)

    def word_pieces(self, words: Sequence[str]) -> Pieces:
        """Tokenize each word separately; a word that is spelled like a continuation token ("##ing") is that token."""
        with library_errors(self._where, AGAIN):
            encoding = self._words_tokenizer().encode(list(words), is_pretokenized=True, add_special_tokens=False)
        ids: list[list[int]] = [[] for _ in words]
        for index, owner in zip(encoding.ids, encoding.word_ids, strict=True):
            if owner is not None:
                ids[owner].append(index)
        for at, word in enumerate(words):
            if word.startswith(self._continuations) and word not in self._continuations:
                whole = self.id(word)
                ids[at] = ids[at] if whole is None else [whole]
        return self._of_words(ids)

    def _of_words(self, ids: Sequence[Sequence[int]]) -> Pieces:
        """The tokens of separate words, from the ids of each."""
        flat = [index for word in ids for index in word]
        owners = [at for at, word in enumerate(ids) for _ in word]
        return Pieces(flat, self._spelled(flat), owners, [None] * len(flat), len(ids))

    def _spelled(self, ids: Sequence[int]) -> list[str]:
        """Return tokens as the vocabulary spells them; for added tokens, the library returns the matched text."""
        spellings = {index: self.token(index) or f"#{index}" for index in set(ids)}
        return [spellings[index] for index in ids]

    def layout(self, texts: int) -> Layout:
        """Return the special tokens that the tokenizer's template adds to one text or two."""
        if texts not in self._layouts:
            self._layouts[texts] = self._read_layout(texts)
        return self._layouts[texts]

    def _read_layout(self, texts: int) -> Layout:
        from tokenizers import Tokenizer, models

        # The template is applied to texts of one token each: everything it adds to them is the layout.
        placeholder = Tokenizer(models.WordLevel({"x": 0}, unk_token="x"))
        with library_errors(self._where, AGAIN):
            samples = [placeholder.encode("x") for _ in range(texts)]
            full = self._rust.post_process(samples[0], samples[1] if texts == 2 else None, add_special_tokens=True)
        columns = (full.ids, full.tokens, full.type_ids, full.sequence_ids, full.special_tokens_mask)
        if len({len(column) for column in columns}) > 1:
            raise CheckpointError(
                f"the tokenizer's template produces {len(full.ids)} ids but {len(full.tokens)} tokens",
                where=self._where,
                advice=AGAIN,
            )
        layout: list[Special | Slot] = []
        text_count = 0
        for index, token, segment, text, added in zip(*columns, strict=True):
            layout.append(
                Special(index, token, segment) if added else Slot(text_count if text is None else text, segment)
            )
            text_count += not added
        order = [slot.text for slot in layout if isinstance(slot, Slot)]
        if order != list(range(texts)):
            raise UnsupportedError(
                f"the tokenizer's template uses {texts} text(s) {len(order)} times, in the order {order}; expected "
                "each text once, the pair after the text",
                where=self._where,
                advice="pass ids= (token ids)",
            )
        return layout

    def _words_tokenizer(self) -> tokenizers.Tokenizer:
        """Return the tokenizer for words: byte-level BPE marks the beginning of a word by the space before it."""
        if not self._byte_level_without_space:
            return self._rust
        if self._for_words is None:
            spaced = copy.deepcopy(self._rust)
            spaced.pre_tokenizer = _with_prefix_space(spaced.pre_tokenizer)
            self._for_words = spaced
        return self._for_words

    def _disable_stored_options(self) -> None:
        rust = self._rust
        if rust.truncation is not None:
            self.notes.append(f"truncation to {rust.truncation['max_length']} tokens, stored in the file, is disabled")
            rust.no_truncation()
        if rust.padding is not None:
            self.notes.append("padding, stored in the file, is disabled")
            rust.no_padding()
        if getattr(rust.model, "dropout", None):
            self.notes.append("BPE dropout, stored in the file, is disabled: it is for training")
            rust.model.dropout = None

    def _add_declared(self, settings: Settings) -> None:
        """Add the tokens that the settings files declare and the tokenizer doesn't have yet."""
        known = self.added()
        declared = sorted(settings.added.items())
        self._add_pieces([piece for _, piece in declared if piece.content not in known])
        known = self.added()
        self._add_pieces([piece for piece in (*settings.named.values(), *settings.extra) if piece.content not in known])
        for index, piece in declared:
            actual = self.id(piece.content)
            if actual != index:
                raise CheckpointError(
                    f"the added token {brief(piece.content)} is declared with id {index}, but in the vocabulary of "
                    f"{self.size} tokens its id is {actual}",
                    where=settings.where,
                    advice="save the tokenizer again with transformers' save_pretrained, so that its files agree",
                )

    def _add_pieces(self, pieces: Sequence[AddedPiece]) -> None:
        for piece in pieces:
            (self._rust.add_special_tokens if piece.special else self._rust.add_tokens)([added_token(piece)])


def added_token(piece: AddedPiece) -> Any:
    from tokenizers import AddedToken

    return AddedToken(
        piece.content,
        lstrip=piece.lstrip,
        rstrip=piece.rstrip,
        single_word=piece.single_word,
        normalized=not piece.special if piece.normalized is None else piece.normalized,
        special=piece.special,
    )


def _state(component: Any) -> dict[str, Any]:
    """Return a component of the library as in tokenizer.json, a JSON object; {} for None."""
    state: dict[str, Any] = {} if component is None else json.loads(component.__getstate__())
    return state


def _continuation_marks(rust: tokenizers.Tokenizer) -> tuple[str, ...]:
    """Return the prefixes by which the vocabulary marks that a token continues or begins a word."""
    prefix = getattr(rust.model, "continuing_subword_prefix", None)
    marks = [prefix] if prefix else []
    for part in _rules(_state(rust.pre_tokenizer)):
        if part.get("type") == "ByteLevel":
            marks.append("Ġ")
        elif part.get("type") == "Metaspace":
            marks.append(part.get("replacement", "▁"))
    return tuple(marks)


def _with_prefix_space(component: Any) -> Any:
    state = _state(component)
    for part in _rules(state):
        if part.get("type") == "ByteLevel":
            part["add_prefix_space"] = True
    component = copy.deepcopy(component)
    component.__setstate__(json.dumps(state).encode("utf-8"))
    return component


LONGEST_MESSAGE = 400


@contextmanager
def library_errors(
    where: str, advice: str, *, library: str = "the tokenizers library", kind: type[HeadscopeError] = CheckpointError
) -> Iterator[None]:
    """Turn exceptions of the `tokenizers` library, or of another one that uses it, into an error of headscope's.

    The library raises plain Exception for bad files and, if its Rust code panics, a PanicException, which derives only
    from BaseException; what Rust prints about a panic stands on standard error.
    """
    try:
        yield
    except HeadscopeError:
        raise
    except Exception as error:
        message = " ".join(str(error).split()) or type(error).__name__
        raise kind(f"{library} raised: {shortened(message, LONGEST_MESSAGE)}", where=where, advice=advice) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        message = shortened(str(error), LONGEST_MESSAGE)
        raise kind(f"{library} panicked: {message}", where=where, advice=advice) from error
