"""The words of a window, and a layer's attention between them, tile by tile (Clark et al. 2019, section 4.1).

From a word to a word: the sum over the tokens of the word that is looked at, the mean over the tokens of the word that
looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headscope._capture.calls import Call
from headscope.attention import softmax_rows

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope._survey.conllu import Sentence

CELLS = 1 << 22
"""Most weights of a tile: 16 MiB."""


@dataclass(frozen=True, eq=False)
class Words:
    """The words of a window.

    Attributes:
        of_token: (tokens,), the word of each token, from 0; -1 for special tokens.
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
    def membership(self) -> Float[torch.Tensor, "tokens words"]:
        """(tokens, words), 1 where the token is of the word."""
        matrix = torch.zeros(len(self.of_token), len(self.forms))
        places = np.flatnonzero(self.of_token >= 0)
        matrix[torch.from_numpy(places), torch.from_numpy(self.of_token[places])] = 1
        return matrix

    @cached_property
    def averaging(self) -> Float[torch.Tensor, "words tokens"]:
        """(words, tokens), the mean over each word's tokens."""
        return self.membership.T / torch.from_numpy(np.maximum(self.sizes, 1)).float()[:, None]


@dataclass(frozen=True, eq=False)
class Tile:
    """Some words of a window, and where they look in one layer.

    Attributes:
        layer: as the model counts.
        at: which of the window's words these are, from `at` on.
        tokens: their tokens.
        weights: (heads, rows, tokens), those tokens' weights.
        maps: (heads, n, words), from word to word; what special tokens hold is missing.
    """

    layer: int
    at: int
    tokens: slice
    weights: Float[torch.Tensor, "heads rows tokens"]
    maps: Float[torch.Tensor, "heads n words"]


def tiles(call: Call, row: int, words: Words, cells: int = CELLS) -> Iterator[Tile]:
    """The layer's tiles of one row of the batch. Each holds whole words, so every mean is a mean of whole words."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    q, k = call.q[row].to(wide), call.k[row].to(wide)
    mask, terms = call.mask(0 if call.rules.shared else row), call.terms(0 if call.rules.shared else row)
    membership, averaging = words.membership.to(q), words.averaging.to(q)
    most = max(1, cells // (q.shape[0] * k.shape[1]))
    for first, last in _groups(words, most):
        tokens = slice(int(words.bounds[first]), int(words.bounds[last]))
        places = np.arange(tokens.start, tokens.stop)
        if not len(places):
            weights = q.new_zeros(q.shape[0], 0, k.shape[1])
        else:
            (softmax,) = softmax_rows(
                q, k, scale=call.scale, mask=mask, terms=terms, rows=places, cells=q.shape[0] * q.shape[1] ** 2
            )
            weights = softmax.weights
        maps = averaging[first:last, tokens] @ (weights @ membership)
        yield Tile(call.layer, first, tokens, weights, maps)


def _groups(words: Words, most: int) -> Iterator[tuple[int, int]]:
    """Neighbouring words with at most so many tokens together, or one word."""
    first = 0
    while first < len(words):
        last = first + 1
        while last < len(words) and words.bounds[last + 1] - words.bounds[first] <= most:
            last += 1
        yield first, last
        first = last


def words_of_text(encoding: Any, text: str) -> Words:
    """The words as the tokenizer's pre-tokenizer cut them, from its encoding of a window of the text."""
    of_token = np.full(len(encoding.ids), -1)
    forms: list[str] = []
    last: Any = None
    start = 0
    for at, (word, special, span) in enumerate(
        zip(encoding.word_ids, encoding.special_tokens_mask, encoding.offsets, strict=True)
    ):
        if special:
            continue
        if not forms or word is None or word != last:
            forms.append("")
            start = span[0]
        forms[-1] = text[start : span[1]].strip()
        of_token[at], last = len(forms) - 1, word
    return Words(of_token, tuple(forms))


def words_of_sentence(encoding: Any, sentence: Sentence) -> Words:
    """The treebank's own words, from the tokenizer's encoding of them."""
    pairs: Sequence[tuple[int | None, int]] = list(zip(encoding.word_ids, encoding.special_tokens_mask, strict=True))
    of_token = np.array([-1 if special or word is None else word for word, special in pairs], dtype=np.int64)
    return Words(of_token, sentence.words, sentence)
