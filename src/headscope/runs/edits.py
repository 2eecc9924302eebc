"""Edits of a run, and the pass that it starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    Tokens = Float[np.ndarray, "tokens d_model"]
    Contexts = Float[np.ndarray, "heads tokens d_head"]


@dataclass(frozen=True)
class Edit:
    """Replacement of one head's context.

    Attributes:
        layer: the layer.
        head: the head.
        do: `zero`: 0; `mean`: every token gets the mean of the contexts over its text; `patch`: the head's context in
            another pass; `edge`: one query can't see one key.
        source: for `patch`, the other pass: of as many texts, each with as many tokens.
        edge: for `edge`, the positions of the query and the key, in every text.
    """

    layer: int
    head: int
    do: str = "zero"
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
