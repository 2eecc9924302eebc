"""Findings: what is worth reading in a trace, as sentences with their numbers, the most surprising first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError
from headscope.explain.content import Content, content_of
from headscope.explain.finding_measures import ROLES, Link, Measures, measure, offset_mean, similar_heads
from headscope.explain.finding_rules import LEAST_SURPRISE, LEAST_TOKENS, MOST_OF_A_KIND, THRESHOLDS, surprise
from headscope.statistics import roles_of

if TYPE_CHECKING:
    from headscope._trace import Trace

NEIGHBOUR_WORDS = {"previous": "the previous token", "next": "the next token", "same": "the token itself"}
LONGEST_WORD = 24
"""Characters of a word that a sentence quotes."""


@dataclass(frozen=True)
class Cell:
    """Where a finding is: a head, and a weight of it where it is one weight. All by number, counted from 0."""

    layer: int
    head: int
    query: int | None = None
    key: int | None = None


@dataclass(frozen=True)
class Finding:
    """Something about a head, a pair of heads or one weight that is unlike what the head does on average.

    Attributes:
        kind: previous, next, same, same_word, cls, sep, punctuation, link, alike or negligible.
        sentence: in plain English.
        numbers: what it says in numbers, by name.
        cells: where it is.
        surprise: how far the number is from what is expected, in nats. See headscope.explain.finding_rules.
    """

    kind: str
    sentence: str
    numbers: Mapping[str, float]
    cells: tuple[Cell, ...]
    surprise: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        cells = [{name: getattr(cell, name) for name in ("layer", "head", "query", "key")} for cell in self.cells]
        return {
            "kind": self.kind,
            "sentence": self.sentence,
            "numbers": dict(self.numbers),
            "cells": cells,
            "surprise": self.surprise,
        }

    def __str__(self) -> str:
        return self.sentence


def findings(trace: Trace, *, layers: Sequence[int] | None = None) -> tuple[Finding, ...]:
    """The findings of a trace, the most surprising first; none where there is nothing to say.

    A number is surprising where it is far from what the same head does on average over this text's queries: what a head
    gives to the token before, against what it gives to that token over all queries; one weight, against the same key's
    and the same distance's average; weight on [CLS], against the share of what the head writes that comes from there.
    The distance is a Kullback-Leibler divergence in nats (finding_rules.surprise), and the thresholds are in one table
    there. The order takes variety into account: the second finding of a kind counts half, the third a third.

    The cost is one pass over the weights in blocks of queries, about that of `trace.statistics()`; memory is O(S).
    Silenced and broken heads are left out. Where W_O or the values are not known, the sentences speak of weights only.

    Args:
        layers: the numbers of the layers to look at; all by default.

    Raises:
        InputError: there is no such layer.
    """
    chosen = trace.numbers if layers is None else tuple(dict.fromkeys(trace[layer].layer for layer in layers))
    if not chosen:
        raise InputError("no layer to look at", where="layers", advice="name some, or leave it out for all")
    if sum(not special for special in trace.keys.special) < LEAST_TOKENS:
        return ()
    aligned = trace.keys is trace.queries
    roles = roles_of(trace)
    content = content_of(trace, trace.queries, roles) if aligned else None
    left_out = set(trace.broken) | set(trace.ablated)
    measured = [measure(trace, layer, roles, content) for layer in chosen]
    heads = [(layer, head) for layer in chosen for head in trace.head_numbers(layer) if (layer, head) not in left_out]
    rows = np.flatnonzero(~roles.query_special)
    sample = rows[
        np.all([np.isfinite(trace.layers[trace.numbers.index(layer)].lse[:, rows]).all(0) for layer in chosen], 0)
    ]
    everything = [
        *_neighbours(trace, measured, heads),
        *_resting(trace, measured, heads),
        *_linked(trace, measured, heads, content),
        *_alike(trace, heads, sample),
        *_negligible(trace, measured, heads),
    ]
    return ranked([finding for finding in everything if finding.surprise >= LEAST_SURPRISE])


def ranked(everything: Sequence[Finding]) -> tuple[Finding, ...]:
    """The most surprising first, MOST_OF_A_KIND at most of a kind, the n-th of a kind at an n-th of its surprise."""
    counts: dict[str, int] = {}
    order = []
    for finding in sorted(everything, key=lambda finding: -finding.surprise):
        counts[finding.kind] = counts.get(finding.kind, 0) + 1
        if counts[finding.kind] <= MOST_OF_A_KIND:
            order.append((finding.surprise / counts[finding.kind], finding))
    return tuple(finding for _, finding in sorted(order, key=lambda pair: -pair[0]))


def _each(
    trace: Trace, measured: Sequence[Measures], heads: Sequence[tuple[int, int]]
) -> Iterator[tuple[Measures, int, int]]:
    """Every head that counts: its layer's measures, its position in them and its number."""
    counted = set(heads)
    for layer in measured:
        for at, head in enumerate(trace.head_numbers(layer.layer)):
            if (layer.layer, head) in counted:
                yield layer, at, head


def _neighbours(trace: Trace, measured: Sequence[Measures], heads: Sequence[tuple[int, int]]) -> Iterator[Finding]:
    """Heads that read the token before, after or itself, or other tokens of the same word."""
    for layer, at, head in _each(trace, measured, heads):
        for kind in (*NEIGHBOUR_WORDS, "same_word"):
            if kind not in layer.expected:
                continue
            share, expected = float(layer.shares[kind][at]), float(layer.expected[kind][at])
            if not share > max(THRESHOLDS[kind], expected):
                continue
            place = NEIGHBOUR_WORDS.get(kind, "other tokens of the same word")
            yield Finding(
                kind,
                f"Layer {layer.layer}, head {head}: {percent(share)} of its weight on {place}; "
                f"{percent(expected)} if the query did not matter.",
                {"weight": share, "expected": expected},
                (Cell(layer.layer, head),),
                surprise(share, expected),
            )


def _resting(trace: Trace, measured: Sequence[Measures], heads: Sequence[tuple[int, int]]) -> Iterator[Finding]:
    """Heads that rest on [CLS], [SEP] or punctuation, with the share of what they write beside the weight."""
    for role in ROLES:
        name = _role_name(trace, role)
        everyone = [float(layer.shares[role][at]) for layer, at, _ in _each(trace, measured, heads)]
        if not everyone or np.isnan(everyone).all():
            continue
        average = float(np.nanmean(everyone))
        for layer, at, head in _each(trace, measured, heads):
            share = float(layer.shares[role][at])
            if not share > THRESHOLDS[role]:
                continue
            start = f"Layer {layer.layer}, head {head}: {percent(share)} of its weight on {name}, "
            cells = (Cell(layer.layer, head),)
            if layer.written:
                written = float(layer.written[role][at])
                numbers = {"weight": share, "written": written}
                words = f"{start}{percent(written)} of what it writes."
                yield Finding(role, words, numbers, cells, surprise(share, written))
            elif share > average:
                numbers = {"weight": share, "average": average}
                words = f"{start}the average head {percent(average)} (weights only)."
                yield Finding(role, words, numbers, cells, surprise(share, average))


def _role_name(trace: Trace, role: str) -> str:
    """[CLS] as this vocabulary spells it; punctuation."""
    if role == "punctuation":
        return role
    flags = getattr(roles_of(trace), role)
    return next((token for token, flag in zip(trace.keys.tokens, flags, strict=True) if flag), role)


def _linked(
    trace: Trace, measured: Sequence[Measures], heads: Sequence[tuple[int, int]], content: Content | None
) -> Iterator[Finding]:
    """The strongest links between content words, each pair of words once, in the head where it surprises most."""
    if content is None:
        return
    counted = set(heads)
    links = [link for layer in measured for link in layer.links if (link.layer, link.head) in counted]
    links.sort(key=lambda link: -surprise(link.weight, link.expected))
    best: dict[tuple[int, int], Link] = {}
    for link in links:
        low, high = sorted((int(content.place[link.query]), int(content.place[link.key])))
        best.setdefault((low, high), link)
    for link in list(best.values())[: 3 * MOST_OF_A_KIND]:
        closer = replace(link, expected=max(link.expected, offset_mean(trace, link)))
        if closer.weight <= closer.expected:
            continue
        query, key = (f"“{_short(content.words[at])}” ({at})" for at in (link.query, link.key))
        yield Finding(
            "link",
            f"Layer {link.layer}, head {link.head}: {query} puts {percent(link.weight)} of its weight on {key}; "
            f"{percent(closer.expected)} is usual for this head.",
            {"weight": closer.weight, "expected": closer.expected},
            (Cell(link.layer, link.head, link.query, link.key),),
            surprise(closer.weight, closer.expected),
        )


def percent(share: float) -> str:
    """A share in per cent without decimals; never 0% or 100% for what only rounds to it."""
    if 0 < share < 0.005:
        return "under 1%"
    return "over 99%" if 0.995 <= share < 1 else f"{share:.0%}"


def _short(word: str) -> str:
    return word if len(word) <= LONGEST_WORD else word[: LONGEST_WORD - 1] + "…"


def _alike(trace: Trace, heads: Sequence[tuple[int, int]], rows: np.ndarray) -> Iterator[Finding]:
    """Pairs of heads that look at the same keys, query by query."""
    for pair in similar_heads(trace, heads, rows, MOST_OF_A_KIND):
        if pair.overlap >= max(THRESHOLDS["alike"], pair.between):
            (layer, head), (other_layer, other_head) = pair.first, pair.second
            yield Finding(
                "alike",
                f"Layer {layer}, head {head} and layer {other_layer}, head {other_head} look alike: "
                f"{percent(pair.overlap)} of their weight is on the same keys, {percent(pair.between)} where queries "
                "differ.",
                {"overlap": pair.overlap, "between": pair.between},
                (Cell(layer, head), Cell(other_layer, other_head)),
                surprise(pair.overlap, pair.between),
            )


def _negligible(trace: Trace, measured: Sequence[Measures], heads: Sequence[tuple[int, int]]) -> Iterator[Finding]:
    """Heads that write vectors much shorter than their layer's other heads do."""
    for layer, at, head in _each(trace, measured, heads):
        if layer.lengths is None:
            continue
        counted = [place for other, place, _ in _each(trace, measured, heads) if other is layer]
        average = float(layer.lengths[counted].mean())
        ratio = float(layer.lengths[at]) / average if average > 0 else 1.0
        if ratio <= THRESHOLDS["negligible"]:
            yield Finding(
                "negligible",
                f"Layer {layer.layer}, head {head} writes next to nothing: vectors {percent(ratio)} as long as its "
                "layer's average head.",
                {"length": float(layer.lengths[at]), "ratio": ratio},
                (Cell(layer.layer, head),),
                surprise(ratio / (1 + ratio), 0.5),
            )
