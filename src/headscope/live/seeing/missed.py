"""Operators that ran without being read, and which of them are attention, judged when the forward pass is over.

A softmax is attention if it reduces as many keys, for as many queries, as a call that was read; or if its module makes
a map of these sizes with one matrix product, and with another sums over the same keys. Two such products are attention
whatever is done to the scores in between (a sigmoid, a ReLU, exp and a sum), if the map is as large as one that was
read; and so is linear attention, which sums over the keys first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement

Map = tuple[int, int]
"""Numbers of queries and keys."""


@dataclass(frozen=True)
class Missed:
    """An attention operator, a softmax or a matrix product that ran without being read.

    Attributes:
        module: id of the innermost module of the model that was running.
        path: that module's name.
        kind: the innermost class.
        operator: the operator's name.
        over: size of the dimension that a softmax reduces; 0 for others.
        others: sizes of its other dimensions.
        factors: batch, rows, inner size and columns of a matrix product; empty for others.
        certain: True if it is attention regardless of its sizes.
        reason: why it was not read, if that is known: heads, nested, parts, thread.
    """

    module: int
    path: str
    kind: str
    operator: str
    over: int = 0
    others: frozenset[int] = frozenset()
    factors: tuple[int, ...] = ()
    certain: bool = True
    reason: str = ""


def attention_among(missed: Mapping[Missed, int], read: Collection[Map]) -> list[Missed]:
    """The operators that are attention, at most one that is not certain for each map of a module.

    Args:
        missed: operator -> how often it ran.
        read: sizes of the calls that were read.
    """
    products: dict[int, list[tuple[Missed, int]]] = {}
    for call, times in missed.items():
        if call.factors:
            products.setdefault(call.module, []).append((call, times))
    maps = {module: dict(_maps(calls)) for module, calls in products.items()}
    found = [
        call
        for call in missed
        if call.certain
        or any(keys == call.over and queries in call.others for queries, keys in (*read, *maps.get(call.module, ())))
    ]
    modules = {call.module for call in found}
    return found + [
        call
        for module, mixing in maps.items()
        if module not in modules
        for (queries, keys), call in mixing.items()
        if (queries, keys) in read
    ]


def _maps(products: list[tuple[Missed, int]]) -> Iterator[tuple[Map, Missed]]:
    """The maps that two of a module's products, in order, make and sum over, or that linear attention goes without."""
    for (first, times), (second, _) in combinations_with_replacement(products, 2):
        if first.factors[0] != second.factors[0] or (first is second and times == 1):
            continue
        _, first_rows, first_inner, first_columns = first.factors
        _, rows, inner, columns = second.factors
        for queries, width in ((rows, columns), (columns, rows)):
            if sorted((queries, inner)) == sorted((first_rows, first_columns)):
                yield (queries, inner), second  # (Q K^T) V
            if sorted((inner, width)) == sorted((first_rows, first_columns)):
                yield (queries, first_inner), second  # Q (K^T V)
