"""Weights between groups of tokens that a person names: regions of a protein, sections of a text.

From group a to group b a head with the weights A has

    G_ab = 1/|a| sum_{i in a} sum_{j in b} A_ij

the weight that a token of a puts on b, on average. Over groups that hold every token once, a row of G sums to 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.scores import softmax_rows
from headscope.attention.terms import NO_TERMS
from headscope.checkpoint.json_text import JsonError, brief, read_object
from headscope.errors import InputError, UnsupportedError
from headscope.results.measure import HeadValues, Measure
from headscope.results.table import HeadTable, in_columns
from headscope.traces import broken_rows

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from headscope.traces import LayerRecord, Trace

Groups = Mapping[str, Iterable[int | Sequence[int]]]
"""Name -> tokens of a group: positions, and spans (start, end) without their end."""

ADVICE = 'give each group a name and its tokens: {"CDR1": [[26, 33], 40]}, where a span has a start and an end'


def group_weights(trace: Trace, groups: Groups | str | Path) -> HeadTable:
    """Each head's weight from group to group: see `Trace.group_weights`. A few rows of weights are in memory."""
    members = members_of(trace, groups)
    layers = []
    for record in trace.layers:
        found = _between(record, members).astype(np.float32)
        found[broken_rows(record).any(-1)] = np.nan  # one number of a head that isn't finite makes all suspect
        layers.append(found.reshape(len(found), -1))
    heads = tuple(trace.head_numbers(number) for number in trace.numbers)
    table = in_columns(layers, heads)
    pairs = [(a, b) for a in members for b in members]
    measures = [Measure(f"{a} → {b}", meaning=f"mean weight of the tokens of {a} on those of {b}") for a, b in pairs]
    return HeadTable(
        {measure.name: HeadValues.of(measure, table[:, :, at]) for at, measure in enumerate(measures)},
        layers=trace.numbers,
        heads=heads,
        broken=frozenset(trace.broken),
        source="group_weights",
    )


def even_weights(trace: Trace, groups: Groups | str | Path) -> dict[str, float]:
    """The same numbers for a head whose tokens look evenly at all that layer 0 lets them see."""
    members = members_of(trace, groups)
    first = trace.layers[0]
    found = _between(replace(first, q=np.zeros_like(first.q[:1]), k=first.k[:1], terms=NO_TERMS), members)[0]
    return {f"{a} → {b}": float(found[i, j]) for i, a in enumerate(members) for j, b in enumerate(members)}


def _between(record: LayerRecord, members: Mapping[str, np.ndarray]) -> Float[np.ndarray, "heads from to"]:
    """The weight from group to group, by the formula above."""
    keys = np.stack([*members.values()], 1).astype(np.float64)
    shares = (keys / keys.sum(0)).T
    found = np.zeros((len(record.q), len(members), len(members)))
    for part in softmax_rows(record.q, record.k, scale=record.scale, mask=record.mask, terms=record.terms):
        found += shares[:, part.rows] @ (part.weights @ keys)
    return found


def members_of(trace: Trace, groups: Groups | str | Path) -> dict[str, Bool[np.ndarray, " tokens"]]:
    """Name -> True for the tokens of that group: see `Trace.group_weights`."""
    if trace.keys is not trace.queries:
        raise UnsupportedError(
            "queries and keys are different sequences, and a group is of one",
            where="group_weights",
            advice="pass a trace of self-attention",
        )
    given, where = (groups, "groups") if isinstance(groups, Mapping) else (_read(Path(groups)), str(groups))
    if not given:
        raise InputError("there are no groups", where=where, advice=ADVICE)
    return {str(name): _tokens(name, entries, len(trace), where) for name, entries in given.items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_object(path, unique=True)
    except JsonError as error:
        raise InputError(f"groups can't be read: {error}", where=str(path), advice=ADVICE) from error


def _tokens(name: str, entries: Any, count: int, where: str) -> Bool[np.ndarray, " tokens"]:
    inside = np.zeros(count, dtype=bool)
    for entry in entries if isinstance(entries, Iterable) and not isinstance(entries, str) else [entries]:
        span = (entry, entry + 1) if _is_number(entry) else tuple(entry) if isinstance(entry, Sequence) else ()
        if len(span) != 2 or not all(map(_is_number, span)) or not 0 <= span[0] < span[1] <= count:
            raise InputError(
                f"group {brief(name)}: {brief(entry)} is no token or span of tokens from 0 to {count}",
                where=where,
                advice=ADVICE,
            )
        inside[span[0] : span[1]] = True
    if not inside.any():
        raise InputError(f"group {brief(name)} has no tokens", where=where, advice=ADVICE)
    return inside


def _is_number(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
