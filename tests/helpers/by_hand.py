"""Made by hand: an axis of tokens, their roles, a model that has a W_O and nothing else; attention as defined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headscope.attention.scores import EVERYTHING, Mask
from headscope.attention.terms import Terms
from headscope.heads import Roles
from headscope.results.tokens import TokenAxis
from headscope.traces import LayerRecord, Trace


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


def by_definition(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, mask: Mask = EVERYTHING, terms: Terms | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Scores, weights, contexts and log-sum-exps in fp64, cell by cell, by the formula in headscope/attention/terms.py.

    The sink is a column of the softmax that is dropped.
    """
    terms = terms or Terms()
    left, right = mask.window or (None, None)
    (heads, n, _), m = q.shape, k.shape[1]
    s = np.full((heads, n, m), -np.inf)
    for h, i, j in np.ndindex(s.shape):
        ahead = j - (i + m - n)
        hidden = (mask.causal and ahead > 0) or (mask.keys is not None and not mask.keys[j])
        if hidden or (left is not None and ahead < -left) or (right is not None and ahead > right):
            continue
        query, key = q[h, i].astype("f8"), k[h * len(k) // heads, j].astype("f8")
        inside, outside = float(query @ key), 0.0
        bucket = 0 if terms.buckets is None else terms.buckets[j - i + n - 1]
        if terms.relative_keys is not None:
            inside += query @ terms.relative_keys[h, bucket]
        if terms.relative_queries is not None:
            inside += key @ terms.relative_queries[h, bucket]
        if terms.by_distance is not None:
            outside += terms.by_distance[h, bucket]
        if terms.by_key is not None:
            outside += terms.by_key[h, j]
        if mask.bias is not None:
            outside += mask.bias[min(h, len(mask.bias) - 1), i, j]
        s[h, i, j] = scale * inside + outside
        if terms.cap is not None:
            s[h, i, j] = terms.cap * np.tanh(s[h, i, j] / terms.cap)
    total = np.exp(s).sum(-1)
    if terms.sinks is not None:
        total = total + np.where(np.isfinite(s).any(-1), np.exp(terms.sinks)[:, None], 0)
    with np.errstate(divide="ignore"):
        p, lse = np.exp(s) / np.where(total == 0, 1, total)[..., None], np.log(total)
    return s, p, p @ np.repeat(v.astype("f8"), heads // len(v), axis=0), lse


def some_heads(keys: int | None = None, numbers: Sequence[Any] = (0, 5), heads: Any = (1, 3), stack: str = "") -> Trace:
    """A trace of some layers and heads of a model; in cross-attention where the number of keys is given."""
    generator = np.random.default_rng(4)
    layers = []
    for number in numbers:
        q, k = (generator.normal(size=(2, size, 8)).astype(np.float32) for size in (4, keys or 4))
        lse = np.log(np.exp(q @ k.swapaxes(1, 2) * 0.5).sum(-1))
        layers.append(LayerRecord(q, k, k, lse, 0.5, name=f"at.{number}", number=number, numbers=heads))
    queries, others = (axis_of([f"{side}{at}" for at in range(size)]) for side, size in (("q", 4), ("k", keys or 0)))
    return Trace(model="made", queries=queries, keys=keys and others, layers=layers, outputs={}, stack=stack)


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
