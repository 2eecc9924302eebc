"""Parameters as a model's class lists them, with what each is and where a checkpoint keeps it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from headscope.checkpoint.entry import DTYPE_BITS

UNPLACED = "unplaced"
"""The component of tensors inside the base model that its class doesn't have."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One named parameter.

    Attributes:
        name: the class's name for it, from the base model for the model's own (`encoder.layer.0.…`).
        shape: as stored; a Linear's weight is (out, in).
        dtype: as stored, in safetensors' names: F32, F16, BF16, ….
        component: embeddings, encoder, pooler, … or, for what sits on top, the first part of its name.
        role: what it is in headscope's words (`layer.query.weight`); None where no family table says it.
        layer: the layer that it belongs to, counted from 0; None outside the layers.
        stored: its name in the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    component: str
    role: str | None
    layer: int | None
    stored: str

    @property
    def count(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """How many bytes it takes on disk."""
        return self.count * DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True, slots=True)
class Component:
    """A part of the model and its share of the numbers.

    Attributes:
        name: embeddings, encoder, pooler, ….
        count: how many numbers it holds.
        share: its part of the total, 0 to 1.
        parameters: how many named parameters.
        meaning: what it does, in a sentence.
    """

    name: str
    count: int
    share: float
    parameters: int
    meaning: str


class Parameters(Sequence[Parameter]):
    """A table of parameters, in the class's order."""

    def __init__(self, rows: Sequence[Parameter]) -> None:
        self._rows = tuple(rows)
        self._by_name = {row.name: row for row in self._rows}

    @overload
    def __getitem__(self, index: int) -> Parameter: ...
    @overload
    def __getitem__(self, index: str) -> Parameter: ...
    @overload
    def __getitem__(self, index: slice) -> Parameters: ...
    def __getitem__(self, index: int | str | slice) -> Parameter | Parameters:
        """By position, by slice, or by name."""
        if isinstance(index, str):
            return self._by_name[index]
        if isinstance(index, slice):
            return Parameters(self._rows[index])
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._rows)

    def __contains__(self, item: object) -> bool:
        return item in self._by_name if isinstance(item, str) else item in self._rows

    def __repr__(self) -> str:
        lines = [f"{row.name:<60} {row.shape!s:<16} {row.dtype:<5} {row.count:>12,}" for row in self._rows]
        return "\n".join([*lines, f"{len(self)} parameters, {self.total:,} numbers"])

    @property
    def total(self) -> int:
        """How many numbers all of them hold."""
        return sum(row.count for row in self._rows)

    @property
    def bytes(self) -> int:
        """How many bytes they take on disk."""
        return sum(row.bytes for row in self._rows)

    @property
    def dtypes(self) -> dict[str, int]:
        """Numbers per dtype."""
        found: dict[str, int] = {}
        for row in self._rows:
            found[row.dtype] = found.get(row.dtype, 0) + row.count
        return found

    def by_component(self, meanings: Mapping[str, str]) -> tuple[Component, ...]:
        """Counts and shares per component, in the order in which they first appear."""
        groups: dict[str, list[Parameter]] = {}
        for row in self._rows:
            groups.setdefault(row.component, []).append(row)
        total = self.total
        return tuple(
            Component(
                name=name,
                count=(count := sum(row.count for row in rows)),
                share=count / total if total else 0.0,
                parameters=len(rows),
                meaning=meanings.get(name, ""),
            )
            for name, rows in groups.items()
        )
