"""The tokens along a trace's axes: ids that were looked up, patches of an image, or positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from numbers import Integral
from typing import Any

import numpy as np
import torch

from headscope.errors import InputError
from headscope.results.tokens import TokenAxis

Names = Callable[[int], str]

Followed = tuple[np.ndarray | None, np.ndarray | None]
"""The numbers of the tokens of a call's queries and of its keys, (1 or batch, tokens) each, -1 for those that are not
known; None if no token is followed to them."""

Vocabulary = tuple[Names, frozenset[int]]
"""Decodes an id to its token; and the ids of special tokens."""


def vocabulary(tokenizer: Any) -> Vocabulary:
    """The vocabulary of a tokenizer. An id without a token keeps its number.

    Args:
        tokenizer: a transformers tokenizer, a tokenizers.Tokenizer, headscope's own, a sequence of tokens, or a mapping
            from id to token or from token to id, as `get_vocab()` returns it. None decodes each id to its number.

    Raises:
        InputError: `tokenizer` is none of these.
    """
    if tokenizer is None:
        return str, frozenset()
    look_up: Callable[[int], Any]
    special = frozenset(getattr(tokenizer, "all_special_ids", ()))
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        look_up = tokenizer.convert_ids_to_tokens
    elif hasattr(tokenizer, "id_to_token"):
        added: Mapping[int, Any] = getattr(tokenizer, "get_added_tokens_decoder", dict)()
        look_up, special = tokenizer.id_to_token, frozenset(at for at, token in added.items() if token.special)
    elif isinstance(tokenizer, Sequence) and not isinstance(tokenizer, str):
        look_up = dict(enumerate(tokenizer)).get
    elif isinstance(tokenizer, Mapping):
        look_up = _words(tokenizer).get
    elif hasattr(tokenizer, "token"):
        look_up = tokenizer.token
    else:
        raise InputError(
            f"expected a tokenizer, got {type(tokenizer).__name__}",
            where="tokenizer",
            advice="pass a transformers tokenizer, a tokenizers.Tokenizer, or the list of tokens in the order of ids",
        )
    return (lambda number: str(number if (token := look_up(int(number))) is None else token)), special


def _words(tokenizer: Mapping[Any, Any]) -> dict[int, str]:
    """Id -> token, of a mapping in either direction; JSON has made its ids strings if they are keys."""
    pairs = [*tokenizer.items()]
    if all(isinstance(key, str) and isinstance(value, Integral) for key, value in pairs):
        pairs = [(number, token) for token, number in pairs]
    elif not all(isinstance(key, Integral) or (isinstance(key, str) and key.isdecimal()) for key, _ in pairs):
        key, value = next((key, value) for key, value in pairs if not isinstance(key, Integral))
        raise InputError(
            f"expected ids and tokens, got {key!r:.40}: {value!r:.40}",
            where="tokenizer",
            advice="pass a mapping from id to token or from token to id, such as tokenizer.get_vocab()",
        )
    words: dict[int, str] = {}
    for number, token in pairs:
        if words.setdefault(int(number), str(token)) != str(token):
            raise InputError(
                f"id {number} is that of two tokens, {words[int(number)]!r:.40} and {token!r:.40}",
                where="tokenizer",
                advice="pass a mapping with one token for each id",
            )
    return words


class Tokens:
    """The tokens whose embeddings entered a forward pass, numbered in the order in which they were looked up."""

    def __init__(self) -> None:
        self.count = 0
        self._ids: list[torch.Tensor] = []
        self._segments: dict[int, torch.Tensor] = {}
        self._names: dict[int, str] = {}

    def add(self, ids: torch.Tensor, segments: torch.Tensor | None = None) -> int:
        """Add the tokens of these ids, which may change later; return the first one's number."""
        first = self.count
        self._ids.append(ids.detach().flatten().clone())
        if segments is not None:
            self._segments[first] = segments.flatten()
        self.count += ids.numel()
        for name in ("ids", "segments"):
            self.__dict__.pop(name, None)
        return first

    def add_named(self, names: Sequence[str]) -> int:
        """Add tokens that have names, but no ids; return the first one's number."""
        first = self.add(torch.full((len(names),), -1, device="cpu"))
        self._names.update(zip(range(first, self.count), names, strict=True))
        return first

    def add_copy(self, tokens: Tokens, number: int) -> int:
        """Add a token of another forward pass; return its number."""
        if number in tokens._names:
            return self.add_named([tokens._names[number]])
        return self.add(*(torch.tensor([part[number]], device="cpu") for part in (tokens.ids, tokens.segments)))

    @cached_property
    def ids(self) -> np.ndarray:
        """The ids of all tokens, by their numbers; -1 for those without one."""
        return np.concatenate([part.cpu().numpy() for part in self._ids] or [np.empty(0, dtype=int)])

    @cached_property
    def segments(self) -> np.ndarray:
        """The segments of all tokens, by their numbers; 0 if they have none."""
        segments = np.zeros(self.count, dtype=int)
        for first, part in self._segments.items():
            segments[first : first + len(part)] = part.cpu().numpy()
        return segments

    def axis(self, numbers: np.ndarray, at: np.ndarray, vocabulary: Vocabulary) -> TokenAxis:
        """The tokens along an axis.

        Args:
            numbers: the token at each position of the sequence; those that are not a token's are -1.
            at: the positions to keep.
            vocabulary: decodes the ids.
        """
        name, special = vocabulary
        places = [(int(place), int(numbers[place])) for place in at]
        ids = [-1 if number < 0 else int(self.ids[number]) for _, number in places]
        tokens = [
            name(token) if token >= 0 else self._names.get(number, f"[{place}]")
            for (place, number), token in zip(places, ids, strict=True)
        ]
        return TokenAxis(
            tokens=tuple(tokens),
            ids=tuple(ids),
            segments=tuple(0 if number < 0 else int(self.segments[number]) for _, number in places),
            special=tuple(token in special for token in ids),
            words=(None,) * len(at),
            spans=(None,) * len(at),
        )


def in_common(tables: Sequence[np.ndarray]) -> np.ndarray:
    """The tokens' numbers that several tables have in common at each place, -1 where they differ."""
    most = np.max(tables, axis=0)
    common: np.ndarray = np.where(most == np.min(tables, axis=0), most, -1)
    return common


def part(axis: TokenAxis, start: int, stop: int) -> TokenAxis:
    """The tokens of an axis from `start` to `stop`."""
    return TokenAxis(**{name: column[start:stop] for name, column in axis.columns().items()})


def joined(axes: Sequence[TokenAxis]) -> TokenAxis:
    """Concatenate axes."""
    if len(axes) == 1:
        return axes[0]
    columns = [axis.columns() for axis in axes]
    both: dict[str, Any] = {name: tuple(chain.from_iterable(of[name] for of in columns)) for name in columns[0]}
    return TokenAxis(**both)


def with_extras(axis: TokenAxis, extras: tuple[str, ...]) -> TokenAxis:
    """Append keys that are not tokens to a key axis."""
    n = len(extras)
    return joined([axis, TokenAxis(extras, (-1,) * n, (0,) * n, (True,) * n, (None,) * n, (None,) * n)])
