"""Weights between groups of tokens that a person names: regions of a protein, sections of a text.

From group a to group b a head with the weights A has

    G_ab = 1/|a| sum_{i in a} sum_{j in b} A_ij

the weight that a token of a puts on b, on average. Over groups that hold every token once, a row of G sums to 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.scores import softmax_rows
from headscope.checkpoint.json_text import JsonError, brief, read_object
from headscope.errors import InputError, UnsupportedError
from headscope.results.measure import HeadValues, Measure
from headscope.results.table import HeadTable, in_columns
from headscope.traces import broken_rows

if TYPE_CHECKING:
    from jaxtyping import Bool

    from headscope.traces import Trace

Groups = Mapping[str, Iterable[int | Sequence[int]]]
"""Name -> tokens of a group: positions, and spans (start, end) without their end."""

ADVICE = 'give each group a name and its tokens: {"CDR1": [[26, 33], 40]}, where a span has a start and an end'


def group_weights(trace: Trace, groups: Groups | str | Path) -> HeadTable:
    """Each head's weight from group to group: see `Trace.group_weights`. A few rows of weights are in memory."""
    if trace.keys is not trace.queries:
        raise UnsupportedError(
            "queries and keys are different sequences, and a group is of one",
            where="group_weights",
            advice="pass a trace of self-attention",
        )
    given, where = (groups, "groups") if isinstance(groups, Mapping) else (_read(Path(groups)), str(groups))
    members = {name: _members(name, tokens, len(trace), where) for name, tokens in given.items()}
    if not members:
        raise InputError("there are no groups", where=where, advice=ADVICE)
    keys = np.stack([*members.values()], 1).astype(np.float64)
    shares = (keys / keys.sum(0)).T
    layers = []
    for record in trace.layers:
        found = np.zeros((len(record.q), len(members), len(members)))
        for part in softmax_rows(record.q, record.k, scale=record.scale, mask=record.mask, terms=record.terms):
            found += shares[:, part.rows] @ (part.weights @ keys)
        found[broken_rows(record).any(-1)] = np.nan  # one number of a head that isn't finite makes all suspect
        layers.append(found.reshape(len(found), -1).astype(np.float32))
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


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_object(path, unique=True)
    except JsonError as error:
        raise InputError(f"groups can't be read: {error}", where=str(path), advice=ADVICE) from error


def _members(name: str, tokens: Any, count: int, where: str) -> Bool[np.ndarray, " tokens"]:
    """True for the tokens of a group."""
    inside = np.zeros(count, dtype=bool)
    for entry in tokens if isinstance(tokens, Iterable) and not isinstance(tokens, str) else [tokens]:
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
