"""What a head's weights look most like: the previous token, the next, itself, the first, a separator, everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from headscope.trace import Trace

STRONG = 0.4
"""Mean mass from which a head is called by a pattern's name."""
EVEN = 0.9
"""Entropy, as a share of the greatest possible, from which a head is called even."""
ROWS = 256


@dataclass(frozen=True, slots=True)
class Patterns:
    """One head on one text, in means over its queries.

    Attributes:
        layer, head: counted from 0.
        previous, same, next: mass on the token before the query, on itself, on the one after; over the queries that
            have one.
        first: mass on token 0.
        separators: mass on the other special tokens ([SEP], </s>).
        entropy: in nats; log(keys) where every key gets the same.
        evenness: entropy / log(keys), 0 to 1.
    """

    layer: int
    head: int
    previous: float
    same: float
    next: float
    first: float
    separators: float
    entropy: float
    evenness: float

    @property
    def name(self) -> str:
        """The strongest pattern where it is strong; else `even`, or `mixed`."""
        strongest = max(MASSES, key=lambda name: getattr(self, name))
        if getattr(self, strongest) >= STRONG:
            return strongest
        return "even" if self.evenness >= EVEN else "mixed"


MASSES = ("previous", "same", "next", "first", "separators")
MEANINGS = {
    "previous": "the token before",
    "same": "the token itself",
    "next": "the token after",
    "first": "the first token",
    "separators": "[SEP] and the like",
    "even": "nearly the same for all",
    "mixed": "none of these",
}
MEASURES = tuple(field.name for field in fields(Patterns))[2:]


def patterns_of(
    blocks: Iterable[Float[np.ndarray, "rows keys"]],
    special: Bool[np.ndarray, " keys"],
    *,
    layer: int,
    head: int,
) -> Patterns:
    """The patterns of one head, from its weights in consecutive blocks of rows (queries 0 up), queries = keys."""
    size = len(special)
    others = special.copy()
    others[0] = False
    sums = dict.fromkeys((*MASSES, "entropy"), 0.0)
    start = 0
    for block in blocks:
        block = np.asarray(block, dtype=np.float64)
        rows = np.arange(len(block))
        keys = rows + start
        sums["same"] += float(block[rows, keys].sum())
        sums["previous"] += float(block[rows[keys > 0], keys[keys > 0] - 1].sum())
        sums["next"] += float(block[rows[keys < size - 1], keys[keys < size - 1] + 1].sum())
        sums["first"] += float(block[:, 0].sum())
        sums["separators"] += float(block[:, others].sum())
        sums["entropy"] -= float((block * np.log(np.where(block > 0, block, 1.0))).sum())
        start += len(block)
    entropy = sums["entropy"] / size
    neighbours = max(size - 1, 1)
    return Patterns(
        layer=layer,
        head=head,
        previous=sums["previous"] / neighbours,
        same=sums["same"] / size,
        next=sums["next"] / neighbours,
        first=sums["first"] / size,
        separators=sums["separators"] / size,
        entropy=entropy,
        evenness=entropy / float(np.log(size)) if size > 1 else 0.0,
    )


def all_patterns(trace: Trace, layers: Sequence[int] | None = None) -> list[Patterns]:
    """The patterns of every head (of these layers), layer by layer; weights are computed in blocks of rows."""
    special = np.array(trace.keys.special, dtype=bool)
    return [
        patterns_of(_blocks(trace, layer, head), special, layer=layer, head=head)
        for layer in (range(len(trace.layers)) if layers is None else layers)
        for head in range(trace.heads)
    ]


def _blocks(trace: Trace, layer: int, head: int) -> Iterator[Float[np.ndarray, "rows keys"]]:
    weights = trace[layer, head].weights
    for start in range(0, len(trace), ROWS):
        yield weights[start : start + ROWS]
