"""Edits of a run, the pass that it starts from, and the models that can run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    from headscope.encoder import Input
    from headscope.results.effect_records import Target
    from headscope.runs.targets import Readings

    Tokens = Float[np.ndarray, "tokens d_model"]
    Contexts = Float[np.ndarray, "heads tokens d_head"]


@dataclass(frozen=True)
class Edit:
    """Replacement of one head's context.

    Attributes:
        layer: the layer.
        head: the head.
        do: `zero`: 0; `mean`: every token gets the mean of the contexts over its text; `scale`: the context times
            `factor`; `patch`: the head's context in another pass; `edge`: one query can't see one key.
        factor: for `scale`.
        source: for `patch`, the other pass: of as many texts, each with as many tokens.
        edge: for `edge`, the positions of the query and the key, in every text.
    """

    layer: int
    head: int
    do: str = "zero"
    factor: float = 1.0
    source: Base | None = None
    edge: tuple[int, int] | None = None


Edits = frozenset[Edit]
"""Heads that are changed in the same run, each once."""


@dataclass(frozen=True, eq=False)
class KeptLayer:
    """Starting point of runs in a layer, for all texts one below the other.

    Attributes:
        into: (tokens, d_model), the layer's input.
        summed: (tokens, d_model), the input plus the attention's output, before the norm; None if it wasn't kept.
        contexts: (heads, tokens, d_head); None likewise.
    """

    into: Tokens
    summed: Tokens | None = None
    contexts: Contexts | None = None


@dataclass(frozen=True, eq=False)
class Base:
    """A pass over some texts that other runs differ from: 4 tokens d_model bytes for a layer, or 12 with contexts.

    Attributes:
        rows: each text's rows in `last` and in the layers' arrays.
        layers: what runs start from.
        last: (tokens, d_model), the last hidden states.
        edits: what is changed in this pass, and in all runs that start from it.
    """

    rows: tuple[slice, ...]
    layers: tuple[KeptLayer, ...]
    last: Tokens
    edits: Edits = frozenset()

    @property
    def keeps_contexts(self) -> bool:
        """True if runs can be patched from it."""
        return all(layer.contexts is not None for layer in self.layers)


class Runner(Protocol):
    """Runs a model with changes. The NumPy encoder is one; others need only do what they say that they can.

    Attributes:
        can: of `edit` (change heads), `layers` (give hidden states), `tokens` (read any token), `outputs`.
    """

    can: ClassVar[frozenset[str]]

    def base(self, texts: Sequence[Input], *, edits: Edits = frozenset(), contexts: bool = True) -> Base:
        """The pass that other runs differ from."""

    def run(self, base: Base, edits: Sequence[Edits], targets: Sequence[Target]) -> Readings:
        """Each text's target, (edits, texts), in a run for each set of edits."""
