"""Findings: notable properties of a trace, as sentences with their numbers and their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """Place of a finding: a head, and a weight of it where it is one weight. All by number, counted from 0."""

    layer: int
    head: int
    query: int | None = None
    key: int | None = None


@dataclass(frozen=True)
class Finding:
    """Something about a head, a pair of heads or one weight that is unlike what the head does on average.

    Attributes:
        kind: link, previous, next, same, same_word, sink, alike or negligible.
        sentence: in plain English.
        numbers: what it says in numbers, by name.
        cells: where it is.
        surprise: how far the number is from what is expected, in nats. See headscope.explain.finding_measures.
        tokens: for `sink`, what the heads rest on: [CLS] or [SEP] as this vocabulary spells them, `punctuation`.
    """

    kind: str
    sentence: str
    numbers: Mapping[str, float]
    cells: tuple[Cell, ...]
    surprise: float
    tokens: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        cells = [asdict(cell) for cell in self.cells]
        return {**vars(self), "numbers": dict(self.numbers), "cells": cells, "tokens": list(self.tokens)}

    def __str__(self) -> str:
        return self.sentence
