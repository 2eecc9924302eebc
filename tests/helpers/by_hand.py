"""Parts of traces made by hand: an axis of tokens, their roles, a model that has a W_O and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headscope.heads import Roles
from headscope.results.arrays import TokenAxis


def axis_of(tokens: int | Sequence[str], **more: Any) -> TokenAxis:
    """Tokens t0, t1, … or these, one text of no special tokens and no words unless other fields are given."""
    names = tuple(f"t{n}" for n in range(tokens)) if isinstance(tokens, int) else tuple(tokens)
    size, none = len(names), (None,) * len(names)
    fields = {"ids": tuple(range(size)), "segments": (0,) * size, "special": (False,) * size}
    return TokenAxis(names, **{**fields, "words": none, "spans": none, **more})


def ends(size: int) -> tuple[bool, ...]:
    """Special tokens at both ends."""
    return tuple(n in (0, size - 1) for n in range(size))


def roles_for(queries: int, keys: int | None = None) -> Roles:
    """[CLS] first, [SEP] in the middle and last, punctuation here and there, two texts; queries are the last keys."""
    n = keys or queries
    special = np.isin(np.arange(n), (0, n // 2, n - 1))
    cls = np.arange(n) == 0
    sentences = np.where(special, -1, (np.arange(n) > n // 2).astype(np.int64))
    punctuation = ~special & (np.arange(n) % 5 == 2)
    rarest = ~special & ~punctuation & (np.arange(n) % 4 == 1)
    of_queries = (sentences[n - queries :], special[n - queries :])
    return Roles(cls, special & ~cls, punctuation, rarest, special, sentences, *of_queries)


class Projection:
    """A model's W_O, (d_value, d_model) for each of `heads` heads of a layer."""

    name = "random"

    def __init__(self, heads: int, *shape: int) -> None:
        self.heads, self.shape = heads, shape

    def W_O(self, layer: int, head: int) -> np.ndarray:
        drawn = np.random.default_rng(layer * self.heads + head).normal(size=self.shape)
        return np.asarray(drawn.astype(np.float32))

    def late_output(self, name: str, last_hidden_state: np.ndarray, prompt: int = 0) -> None:
        return None

    def late_outputs(self) -> tuple[str, ...]:
        return ()
