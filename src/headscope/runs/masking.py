"""Words masked for real: the number that the model gives when the tokens of a word are replaced by the mask token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import UnsupportedError
from headscope.results.score_parts import CHECKED, Part, strongest
from headscope.runs.targets import read
from headscope.runs.texts import last_states

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.model import Model
    from headscope.results.effect_records import Target
    from headscope.results.tokens import TokenAxis


def mask_of(model: Model) -> int:
    """The id of a model's mask token.

    Raises:
        UnsupportedError: its tokenizer has none.
    """
    mask = model.tokenizer.mask_id
    if mask is None:
        raise UnsupportedError(
            "the tokenizer has no mask token, so nothing can be masked",
            where=model.checkpoint.where,
            advice="open the checkpoint with the tokenizer that it was trained with",
        )
    return mask


def masked_states(
    model: Model, texts: Sequence[tuple[TokenAxis, Sequence[int]]]
) -> list[Float[np.ndarray, "tokens d_model"]]:
    """The last hidden states of texts, each with the tokens at some positions masked, all in one batch.

    Raises:
        UnsupportedError: the tokenizer has no mask token.
    """
    mask = mask_of(model)
    changed = [
        (tuple(mask if at in gone else index for at, index in enumerate(encoded.ids)), encoded.segments)
        for encoded, gone in texts
    ]
    return last_states(model, changed)


def masked_changes(
    model: Model, encoded: TokenAxis, target: Target, total: float, parts: Sequence[Part]
) -> list[float]:
    """The worth of each part to a target: the number less the number with its tokens masked.

    Raises:
        UnsupportedError: the tokenizer has no mask token.
    """
    states = masked_states(model, [(encoded, part.tokens) for part in parts])
    return [total - float(read(model, target, target.rows_of(state)[None]).values[0]) for state in states]


def with_masking(
    model: Model, parts: Sequence[Part], changes: Callable[[Sequence[Part]], Sequence[float]]
) -> tuple[tuple[Part, ...], str]:
    """The parts, each with what masking it for real changes; or none, and why."""
    if model.tokenizer.mask_id is None:
        return (), "nothing was masked: the tokenizer has no mask token"
    return tuple(replace(part, change=change) for part, change in zip(parts, changes(parts), strict=True)), ""


def maskable(model: Model, parts: Sequence[Part], ids: Mapping[str, Sequence[int]], count: int = CHECKED) -> list[Part]:
    """The strongest parts among those that aren't masks in the text itself; `ids` are those of each side's tokens."""
    mask = model.tokenizer.mask_id
    return strongest([part for part in parts if {ids[part.side][at] for at in part.tokens} != {mask}], count)
