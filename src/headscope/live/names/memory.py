"""Results of earlier passes of a model, kept for the same tokens at the same places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from headscope.live.names.sources import Sources

ELEMENTS = 1 << 40
"""Numbers from here on are those of the elements of integer arguments, not of tokens."""

MOST_RESULTS, MOST_BYTES = 4096, 1 << 26
"""Maximum number of results that are kept for operators that run again on the same tokens, and of bytes for them."""


@dataclass(frozen=True, eq=False)
class Known:
    """A block's way with tokens.

    Attributes:
        calls: the tokens of the queries and keys of each attention in it. In place of the keys', True if they are the
            queries' after cached keys of earlier passes.
        outputs: the sources of the tensors that it returns.
    """

    calls: list[tuple[np.ndarray | None, np.ndarray | bool | None]]
    outputs: list[Sources | None]


class Lookup(NamedTuple):
    """Ids that were looked up.

    Attributes:
        table: id of the table.
        ids: the ids.
        elements: their own sources; None if they come from no argument.
        first: number of the first one's token.
        places: (ids,): their places in the argument that has token types; None if they come from another one.
    """

    table: int
    ids: torch.Tensor
    elements: Sources | None
    first: int
    places: torch.Tensor | None


class Memory:
    """Results of earlier passes of a model, kept for the same tokens at the same places.

    Attributes:
        results: the sources of results, and what else follows from sources alone, with those sources.
        blocks: how blocks treat tokens: see headscope.live.names.following.
    """

    def __init__(self) -> None:
        self.results: dict[Any, tuple[list[Sources], Any]] = {}
        self.blocks: dict[Any, Known] = {}
        self._interned: dict[tuple[Any, bytes], Sources] = {}
        self._size = 0

    def interned(self, sources: Sources) -> Sources:
        """The one tensor that stands for all equal ones."""
        sources = sources.contiguous()
        key = tuple(sources.shape), sources.numpy().tobytes()
        if key not in self._interned:
            self._interned[key] = sources
            self._size += 2 * sources.numel() * sources.element_size()
        return self._interned[key]

    def forget(self) -> None:
        """Forget all if it is too much."""
        if len(self.results) > MOST_RESULTS or self._size > MOST_BYTES:
            for kept in (self.results, self.blocks, self._interned):
                kept.clear()
            self._size = 0


def segments_of(places: torch.Tensor | None, types: torch.Tensor | None) -> torch.Tensor | None:
    """The token types at these places of an argument; None if it has none."""
    return None if places is None or types is None else types.flatten()[places.to(types.device)].clone()
