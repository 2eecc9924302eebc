"""The words of a window, and a layer's attention between them, tile by tile (Clark et al. 2019, section 4.1).

From a word to a word: the sum over the tokens of the word that is looked at, the mean over the tokens of the word that
looks. In long windows of plain text, QUERIES words look, at all words of the window: a map of all of them would take
longer than the model itself, and no label or example needs every word of a large corpus. Of a treebank each sentence
is a window, cut word by word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headscope.atlas.documents import Sentence
from headscope.attention.scores import scores, softmax_rows
from headscope.checkpoint.tokenizer.backend import library_errors
from headscope.checkpoint.tokenizer.tokenizer_config import AGAIN
from headscope.errors import CheckpointError, UnsupportedError
from headscope.heads.windows import Cutter, Window, axis_of, window_of
from headscope.live.calls import Call
from headscope.results.tokens import whole_words

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from headscope.attention.scores import Mask
    from headscope.attention.terms import Terms

CELLS = 1 << 18
"""Most weights of a tile: 1 MiB, so that the passes over it stay in a core's cache."""

QUERIES = 128
"""Most words of a window that look at others, in plain text; all words of a tree do."""


@dataclass(frozen=True, eq=False)
class Words:
    """The words of a window.

    Attributes:
        of_token: (tokens,), the word of each token, from 0; -1 for special tokens and for spaces.
        forms: each word as it stands in the text. A word of a treebank may have no token.
        sentence: the tree, where the window is a sentence of a treebank.
    """

    of_token: Int[np.ndarray, " tokens"]
    forms: tuple[str, ...]
    sentence: Sentence | None = None

    def __len__(self) -> int:
        return len(self.forms)

    @cached_property
    def sizes(self) -> Int[np.ndarray, " words"]:
        """(words,), how many tokens each has."""
        return np.bincount(self.of_token[self.of_token >= 0], minlength=len(self.forms))

    @cached_property
    def bounds(self) -> Int[np.ndarray, " words_and_one"]:
        """(words + 1,): word w has the tokens from bounds[w] to bounds[w + 1], special tokens between them apart."""
        places = np.flatnonzero(self.of_token >= 0)
        ends = np.cumsum(self.sizes)
        first = int(places[0]) if len(places) else 0
        return np.concatenate([[first], [first if end == 0 else int(places[end - 1]) + 1 for end in ends]])

    @cached_property
    def looking(self) -> slice:
        """The words that look at others: neighbours, from a word on that is as good as drawn by lot."""
        spare = len(self.forms) - QUERIES
        if self.sentence is not None or spare <= 0:
            return slice(0, len(self.forms))
        digest = hashlib.sha256("\0".join(self.forms).encode()).digest()
        start = int.from_bytes(digest[:8], "big") % (spare + 1)
        return slice(start, start + QUERIES)

    @cached_property
    def looks(self) -> Bool[np.ndarray, " words"]:
        """(words,), True for the words that look at others: `looking`, but those without tokens."""
        looks = self.sizes > 0
        looks[: self.looking.start] = looks[self.looking.stop :] = False
        return looks

    @cached_property
    def _pieces(self) -> list[tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]]:
        """For the first, second, … token of a word: the words that have so many, and those tokens."""
        places = np.flatnonzero(self.of_token >= 0)
        of = self.of_token[places]
        starts = np.concatenate([[0], np.cumsum(self.sizes)])
        rank = np.arange(len(places)) - starts[of]
        return [(of[rank == at], places[rank == at]) for at in range(int(rank.max(initial=-1)) + 1)]

    def sums(self, weights: Float[torch.Tensor, "heads rows tokens"]) -> Float[torch.Tensor, "heads rows words"]:
        """Sums over the tokens of each word. May be a view of the weights."""
        if not self._pieces:
            return weights.new_zeros(*weights.shape[:2], len(self.forms))
        words, tokens = self._pieces[0]
        if len(self._pieces) == 1 and len(words) == len(self.forms) and tokens[-1] - tokens[0] == len(tokens) - 1:
            return weights[..., tokens[0] : tokens[0] + len(tokens)]
        firsts = np.zeros(len(self.forms), dtype=np.int64)
        firsts[words] = tokens
        sums = weights.index_select(-1, torch.from_numpy(firsts).to(weights.device))
        if len(words) < len(self.forms):
            sums[..., torch.from_numpy(self.sizes == 0).to(weights.device)] = 0
        for words, tokens in self._pieces[1:]:
            more = weights.index_select(-1, torch.from_numpy(tokens).to(weights.device))
            sums.index_add_(-1, torch.from_numpy(words).to(weights.device), more)
        return sums

    def means(
        self, rows: Float[torch.Tensor, "heads rows n"], first: int, last: int
    ) -> Float[torch.Tensor, "heads words n"]:
        """Means over the rows of each word's tokens, for the words from `first` to `last`; 0 for words without any.

        Args:
            rows: those of the tokens from bounds[first] to bounds[last].
            first, last: the words.
        """
        sizes = self.sizes[first:last]
        if rows.shape[1] == last - first and (sizes == 1).all():
            return rows
        means = rows.new_zeros(rows.shape[0], last - first, rows.shape[2])
        for words, tokens in self._pieces:
            inside = (words >= first) & (words < last)
            if inside.any():
                here = torch.from_numpy(tokens[inside] - self.bounds[first]).to(rows.device)
                means.index_add_(1, torch.from_numpy(words[inside] - first).to(rows.device), rows.index_select(1, here))
        return means / torch.from_numpy(np.maximum(sizes, 1)).to(means)[:, None]


@dataclass(frozen=True, eq=False)
class Tile:
    """Some words of a window, and where they look in one layer.

    Attributes:
        at: which of the window's words these are, from `at` on.
        tokens: their tokens.
        weights: (heads, rows, tokens), those tokens' weights.
        maps: (heads, n, words), from word to word; what special tokens hold is missing. It may share `weights`' memory.
    """

    at: int
    tokens: slice
    weights: Float[torch.Tensor, "heads rows tokens"]
    maps: Float[torch.Tensor, "heads n words"]


def tiles(call: Call, row: int, words: Words) -> Iterator[Tile]:
    """The layer's tiles of one row of the batch. Each holds whole words, so every mean is a mean of whole words."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    q, k = call.q[row].to(wide), call.k[row].to(wide)
    place = 0 if call.rules.shared else row
    mask, terms = call.mask(place), call.terms(place)
    most = max(1, CELLS // (q.shape[0] * k.shape[1]))
    for first, last in _groups(words, most):
        tokens = slice(int(words.bounds[first]), int(words.bounds[last]))
        weights = _weights(q, k, call.scale, mask, terms, np.arange(tokens.start, tokens.stop))
        yield Tile(first, tokens, weights, words.means(words.sums(weights), first, last))


def _weights(
    q: Float[torch.Tensor, "heads queries d_head"],
    k: Float[torch.Tensor, "kv_heads keys d_head"],
    scale: float,
    mask: Mask,
    terms: Terms,
    rows: Int[np.ndarray, " n"],
) -> Float[torch.Tensor, "heads n keys"]:
    """The weights of some queries."""
    if not len(rows):
        return q.new_zeros(q.shape[0], 0, k.shape[1])
    if mask.everything and terms.nothing:
        # Torch makes fewer passes than `softmax_rows`, which also minds empty rows.
        return torch.softmax(scores(q[:, int(rows[0]) : int(rows[-1]) + 1], k, scale=scale), -1)
    (softmax,) = softmax_rows(q, k, scale=scale, mask=mask, terms=terms, rows=rows, cells=q.shape[0] * q.shape[1] ** 2)
    weights: Float[torch.Tensor, "heads n keys"] = softmax.weights
    return weights


def _groups(words: Words, most: int) -> Iterator[tuple[int, int]]:
    """Neighbouring words that look, with at most so many tokens together, or one word."""
    first, end = words.looking.start, words.looking.stop
    while first < end:
        last = first + 1
        while last < end and words.bounds[last + 1] - words.bounds[first] <= most:
            last += 1
        yield first, last
        first = last


def words_of_text(encoding: Any, text: str) -> Words:
    """The words as `headscope.results.tokens` has them, from the encoding of a window of the text."""
    axis = axis_of(encoding)
    numbers, texts = whole_words(axis, text)
    apart = {number for number, special in zip(numbers, axis.special, strict=True) if special}
    kept = [number for number, form in enumerate(texts) if form and number not in apart]
    rank = {number: at for at, number in enumerate(kept)}
    return Words(np.array([rank.get(number, -1) for number in numbers]), tuple(texts[number] for number in kept))


def cut_trees(
    cutter: Cutter, trees: Sequence[tuple[int, int, Sentence]]
) -> tuple[list[Window], list[tuple[int, int, str]]]:
    """Return a window for each sentence of a treebank, and the reason for each sentence that has none.

    A word without tokens stays a word.

    Words are cut into tokens one by one, as transformers' is_split_into_words=True does (byte-level BPE:
    add_prefix_space=True).

    Args:
        cutter: cuts to its length.
        trees: (document, number in it, sentence).
    """
    if not trees:
        return [], []
    try:
        with library_errors("tokenizer", AGAIN):
            space = " " if _wants_spaces(cutter.tokenizer) else ""
            texts = [[space + word for word in sentence.words] for _, _, sentence in trees]
            encoded = cutter.tokenizer(texts, is_split_into_words=True, verbose=False)
    except CheckpointError as error:
        found = f"{type(cutter.tokenizer).__name__} doesn't accept text that is split into words: {error.found}"
        advice = "pass a live model and its tokenizer, loaded with add_prefix_space=True"
        raise UnsupportedError(found, where="tokenizer", advice=advice) from error
    windows, refused = [], []
    for (document, number, sentence), words, encoding in zip(trees, texts, encoded.encodings, strict=True):
        place = f"the sentence at line {sentence.line}"
        if all(encoding.special_tokens_mask):
            refused.append((document, number, f"{place} has no word that the tokenizer finds a token in"))
            continue
        if len(encoding.ids) > cutter.length:
            problem = f"{place} has {len(encoding.ids)} tokens; a window holds {cutter.length}"
            refused.append((document, number, problem))
            continue
        axis = axis_of(encoding)
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])
        spans = tuple(
            span if span is None or word is None else (int(starts[word]) + span[0], int(starts[word]) + span[1])
            for span, word in zip(axis.spans, axis.words, strict=True)
        )
        axis = replace(axis, spans=spans)
        special = np.array(encoding.special_tokens_mask, dtype=bool)
        numbers = np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int64)
        own = Words(np.where(special, -1, numbers), sentence.words, sentence)  # the treebank's words
        windows.append(window_of(document, number, axis, " ".join(words), own))
    return windows, refused


def _wants_spaces(tokenizer: Any) -> bool:
    """Return True if a word that stands alone loses the space before it, as byte-level BPE has it by default."""
    running, alone, spaced = (
        tokenizer(words, is_split_into_words=not isinstance(words, str), add_special_tokens=False)["input_ids"]
        for words in ("a a", ["a", "a"], ["a", " a"])
    )
    return bool(running != alone and running == spaced)
