"""The tokens of an input, which are those along an axis of its trace."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from headscope.errors import TraceError

Span = tuple[int, int]


@dataclass(frozen=True)
class TokenAxis:
    """The tokens of an input, or along one axis of a trace's maps: its queries or its keys.

    All fields but `prompt` have one entry per token.

    Attributes:
        tokens: the tokens, as the vocabulary spells them: "##ing", "Ġthe", "▁the", "[CLS]".
        ids: their ids, rows of the embedding table; -1 for tokens without an id, such as patches of an image.
        segments: 0 for tokens of the first text, 1 for tokens of the second.
        special: True for tokens that the tokenizer added ([CLS], [SEP], <s>, </s>); a [MASK] in the text is part of
            the text. If the input was ids: True for separator, class, begin, end and padding tokens.
        words: number of the word that the token belongs to, counted from 0 over the whole input: the second text's
            words continue after the first's. None for special tokens, or if unknown.
        spans: range of characters (start, stop) in the token's text; None for special tokens, or if unknown.
        prompt: number of tokens at the beginning that are left out of the text's vector.

    Raises:
        TraceError: the fields differ in length.
    """

    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    segments: tuple[int, ...]
    special: tuple[bool, ...]
    words: tuple[int | None, ...]
    spans: tuple[Span | None, ...]
    prompt: int = 0

    def __post_init__(self) -> None:
        sizes = {name: len(column) for name, column in self.columns().items()}
        if len(set(sizes.values())) > 1:
            raise TraceError(
                f"the fields of a token axis differ in length: {sizes}",
                where="token axis",
                advice="pass an id, a segment, a special flag, a word and a span for every token",
            )

    def __len__(self) -> int:
        return len(self.ids)

    def columns(self) -> dict[str, Any]:
        """The fields that have one entry per token, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "prompt"}

    def without(self, gone: Collection[int]) -> TokenAxis:
        """The input without the tokens at these positions; later ones move up."""
        kept = [at for at in range(len(self)) if at not in gone]
        columns = {name: tuple(column[at] for at in kept) for name, column in self.columns().items()}
        return TokenAxis(**columns, prompt=sum(at < self.prompt for at in kept))
