"""The tokens along an axis of a trace's maps."""

from __future__ import annotations

from dataclasses import dataclass

from headscope.errors import TraceError


@dataclass(frozen=True)
class TokenAxis:
    """The tokens along one axis of the maps.

    Attributes:
        tokens: the pieces, as the vocabulary spells them.
        ids: their ids.
        segments: 0 for the first text, 1 for the second.
        special: whether the model's tokenizer added it: [CLS], [SEP], ….
        words: which word of the text each piece belongs to, counted from 0; None for special tokens.
        spans: characters (from, to) of the text, or of the second text; None where there are none.
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
                f"the tokens of a trace disagree in number: {sizes}",
                where="token axis",
                advice="give every token an id, a segment, a special flag, a word and a span",
            )

    def __len__(self) -> int:
        return len(self.ids)
