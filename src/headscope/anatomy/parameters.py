"""Tables of parameters as a model's class lists them, with their roles, and their names in the file.

Files have old spellings, wrappers' prefixes, and the prefix of the base model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload

from headscope.anatomy.schema import Family
from headscope.checkpoint.entry import DTYPES
from headscope.checkpoint.models_in_memory import unwrapped
from headscope.errors import InputError
from headscope.results.row_tables import Rows
from headscope.settings import meant

UNPLACED = "unplaced"
"""Component of tensors inside the base model that its class doesn't have."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One named parameter.

    Attributes:
        name: its name in the class, relative to the base model if it belongs to it (`encoder.layer.0.…`).
        shape: the stored shape; a Linear's weight is (out, in).
        dtype: the stored dtype, as safetensors names it: F32, F16, BF16, ….
        component: embeddings, encoder, pooler, …; for parameters on top, the first part of the name.
        role: headscope's name for its role (`layer.query.weight`); None if no family's table has it.
        layer: its layer, counted from 0; None outside the layers. If layers share their parameters (ALBERT), the
            layers that have some of their own are counted.
        stored: its name in the file.
        rows: its first row and the row after its last, if the file has it as a part of a larger tensor.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    component: str
    role: str | None
    layer: int | None
    stored: str
    rows: tuple[int, int] | None = None

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Number of bytes on disk."""
        return self.count * DTYPES[self.dtype].bits // 8


@dataclass(frozen=True, slots=True)
class Component:
    """A part of the model and its share of the parameters.

    Attributes:
        name: embeddings, encoder, pooler, ….
        count: number of elements of all its parameters.
        share: its share of the total, 0 to 1.
        parameters: number of named parameters.
        meaning: its function, in a sentence; of a module that `hs.describe` counts, its class.
    """

    name: str
    count: int
    share: float
    parameters: int
    meaning: str


class Components(Rows, tuple[Component, ...]):
    """The parts of a model, in order; their shares are of all of them."""

    __slots__ = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each part: name, count, share, parameters, meaning."""
        return list(map(asdict, self))

    def __repr__(self) -> str:
        width = max([len(part.name) for part in self], default=0)
        return "\n".join(f"{part.name:<{width}}  {part.count:>15,}  {part.share:>7.2%}" for part in self)


class MissingParameterError(InputError, KeyError):
    """There is no such parameter. Also a KeyError, as mappings require."""


class Parameters(Rows, Sequence[Parameter]):
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
        """Return a parameter by position or by name, or a table by slice.

        Raises:
            MissingParameterError: there is no parameter with this name.
        """
        if isinstance(index, str):
            if index not in self._by_name:
                raise MissingParameterError(
                    f"there is no parameter {index!r:.80}{meant(index, self._by_name)}",
                    where="parameters",
                    advice="`headscope shapes` lists them all; those on top of the base model are in model.extra",
                )
            return self._by_name[index]
        if isinstance(index, slice):
            return Parameters(self._rows[index])
        return self._rows[index]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._by_name)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._rows)

    def __contains__(self, item: object) -> bool:
        return item in self._by_name if isinstance(item, str) else item in self._rows

    def __repr__(self) -> str:
        lines = [f"{row.name:<60} {row.shape!s:<16} {row.dtype:<5} {row.count:>12,}" for row in self._rows]
        return "\n".join([*lines, f"{self.total:,} parameters in {len(self)} tensors"])

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each parameter: name, shape, dtype, count, component, layer."""
        keys = ("name", "shape", "dtype", "count", "component", "layer")
        return [{key: getattr(row, key) for key in keys} for row in self._rows]

    @property
    def total(self) -> int:
        """Number of elements of all parameters."""
        return sum(row.count for row in self._rows)

    @property
    def bytes(self) -> int:
        """Number of bytes of all parameters on disk."""
        return sum(row.bytes for row in self._rows)

    @property
    def dtypes(self) -> dict[str, int]:
        """Number of elements per dtype."""
        counts: dict[str, int] = {}
        for row in self._rows:
            counts[row.dtype] = counts.get(row.dtype, 0) + row.count
        return counts

    def by_component(self, meanings: Mapping[str, str]) -> Components:
        """Return the counts and shares of the components, in order of first appearance."""
        groups: dict[str, list[Parameter]] = {}
        for row in self._rows:
            groups.setdefault(row.component, []).append(row)
        total = self.total
        return Components(
            Component(
                name=name,
                count=(count := sum(row.count for row in rows)),
                share=count / total if total else 0.0,
                parameters=len(rows),
                meaning=meanings.get(name, ""),
            )
            for name, rows in groups.items()
        )


OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Names of the LayerNorm's parameters in files older than the class -> their names in the class."""


def class_name_of(stored: str) -> str:
    """Return the class's name for a stored name: without wrappers' parts, and in its present spelling."""
    return modern_name(unwrapped(stored))


def modern_name(stored: str) -> str:
    """Return the class's name for a stored name: gamma and beta are the LayerNorm's weight and bias."""
    for old, new in OLD_NAMES.items():
        if stored.endswith(old):
            return stored.removesuffix(old) + new
    return stored


def spellings(stored: Iterable[str]) -> dict[str, str]:
    """Class's name -> stored name; if the file has both spellings, the class's spelling wins."""
    names: dict[str, str] = {}
    for name in stored:
        modern = class_name_of(name)
        if modern == name or modern not in names:
            names[modern] = name
    return names


def find_bases(names: Mapping[str, str], family: Family) -> tuple[str, ...]:
    """Return the prefixes of the family's word embeddings: one per base model in the file."""
    anchor = family.embeddings[0].name
    prefixes = (name.removesuffix(anchor) for name in names if name.endswith(anchor))
    return tuple(prefix for prefix in prefixes if not prefix or prefix.endswith("."))


def outer_prefix(prefix: str, family: Family) -> str | None:
    """Return what a class with parameters on top puts before all its names, from the base model's prefix.

    None if the base model is part of a foreign class (`encoder.`), whose other parameters the family's table doesn't
    know.
    """
    for usual in (family.prefix, family.published_prefix):
        if usual is not None and f".{prefix}".endswith(f".{usual}"):
            return prefix.removesuffix(usual)
    return None if prefix else ""
