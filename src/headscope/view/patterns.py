"""What a head's weights look most like: the previous token, the next, itself, the first, a separator, everything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from headscope._trace import is_broken
from headscope.statistics import head_statistics

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from headscope._trace import Trace

STRONG = 0.4
"""Mean mass from which a head is called by a pattern's name."""
EVEN = 0.9
"""Entropy, as a share of the greatest possible, from which a head is called even."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """One head on one text, in means over its queries.

    Attributes:
        layer, head: counted from 0.
        previous, same, next: mass on the token before the query, on itself, on the one after; over the queries that
            have one, 0 where none has.
        first: mass on token 0.
        separators: mass on the other special tokens ([SEP], </s>).
        entropy: in nats; log(keys) where every key gets the same.
        evenness: entropy / log(keys), 0 to 1.

    All measures of a head whose weights are not numbers are NaN.
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
    def broken(self) -> bool:
        """Whether the weights are not numbers."""
        return math.isnan(self.entropy)

    @property
    def name(self) -> str:
        """The strongest pattern where it is strong; else `even`, or `mixed`. `NaN` for a broken head."""
        if self.broken:
            return NAN
        strongest = max(MASSES, key=lambda name: getattr(self, name))
        if getattr(self, strongest) >= STRONG:
            return strongest
        return "even" if self.evenness >= EVEN else "mixed"


NAN = "NaN"
MASSES = ("previous", "same", "next", "first", "separators")
MEANINGS = {
    "previous": "the token before",
    "same": "the token itself",
    "next": "the token after",
    "first": "the first token",
    "separators": "[SEP] and the like",
    "even": "nearly the same for all",
    "mixed": "none of these",
    NAN: "not a number",
}
MEASURES = tuple(field.name for field in fields(Patterns))[2:]


def patterns_of(
    found: Mapping[str, Float[np.ndarray, " heads"]],
    keys: int,
    layer: int,
    heads: Sequence[int],
    broken: Bool[np.ndarray, " heads"],
) -> list[Patterns]:
    """The patterns of a layer's heads (their numbers), from their statistics over `keys` keys.

    Args:
        broken: the heads whose weights are not numbers.
    """
    widest = float(np.log(keys)) if keys > 1 else 1.0
    found = {name: np.where(broken, np.nan, np.nan_to_num(values)) for name, values in found.items()}
    return [
        Patterns(
            layer=layer,
            head=head,
            previous=float(found["previous"][at]),
            same=float(found["same"][at]),
            next=float(found["next"][at]),
            first=float(found["first"][at]),
            separators=float(found["separator"][at]),
            entropy=float(found["entropy"][at]),
            evenness=float(found["entropy"][at]) / widest,
        )
        for at, head in enumerate(heads)
    ]


def all_patterns(trace: Trace, layers: Sequence[int] | None = None) -> list[Patterns]:
    """The patterns of every head that the trace has (of the layers with these numbers), layer by layer."""
    special = np.array(trace.keys.special, dtype=bool)
    aligned = trace.keys is trace.queries
    rows: list[Patterns] = []
    for layer in trace.numbers if layers is None else layers:
        record = trace.layers[trace.numbers.index(layer)]
        found = head_statistics(
            record.q, record.k, scale=record.scale, special=special, mask=record.mask, aligned=aligned
        )
        broken = is_broken(record)
        rows += patterns_of(found, len(special), layer, trace.head_numbers(layer), broken)
    return rows
