"""The tokens along an axis of a trace's maps."""

from __future__ import annotations

from dataclasses import dataclass

from headscope.errors import TraceError


@dataclass(frozen=True)
class TokenAxis:
    """The tokens along one axis of a trace's maps: its queries or its keys. All fields have one entry per token.

    Attributes:
        tokens: the tokens, as the vocabulary spells them.
        ids: their ids; -1 for tokens without an id, such as patches of an image.
        segments: 0 for tokens of the first text, 1 for tokens of the second.
        special: True for tokens that the tokenizer added: [CLS], [SEP], ….
        words: number of the word that the token belongs to, counted from 0; None for special tokens, or if unknown.
        spans: range of characters (start, stop) in the token's text; None for special tokens, or if unknown.

    Raises:
        TraceError: the fields differ in length.
    """

    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    segments: tuple[int, ...]
    special: tuple[bool, ...]
    words: tuple[int | None, ...]
    spans: tuple[tuple[int, int] | None, ...]

    def __post_init__(self) -> None:
        sizes = {name: len(getattr(self, name)) for name in self.__dataclass_fields__}
        if len(set(sizes.values())) > 1:
            raise TraceError(
                f"the fields of a token axis differ in length: {sizes}",
                where="token axis",
                advice="pass an id, a segment, a special flag, a word and a span for every token",
            )

    def __len__(self) -> int:
        return len(self.ids)
