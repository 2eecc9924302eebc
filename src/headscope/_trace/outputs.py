"""The model's outputs in a trace, and the interface of the model that a trace came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from headscope._trace.arrays import Named
from headscope.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float


class Source(Protocol):
    """The interface of the model that a trace came from."""

    def W_O(self, layer: int, head: int) -> Float[np.ndarray, "d_head d_model"]:
        """(d_head, d_model): the head's rows of W_O."""

    def late_output(self, name: str, last_hidden_state: Float[np.ndarray, "tokens d_model"]) -> Named | None:
        """Compute an output from the last hidden state; None if the model has no such output."""

    def late_outputs(self) -> tuple[str, ...]:
        """The names of the outputs that `late_output` computes."""


class Outputs(Mapping[str, Named]):
    """The model's outputs by name: last_hidden_state, pooler_output, logits, ….

    Outputs that follow from the last hidden state are computed on first access.
    """

    def __init__(self, kept: Mapping[str, Named] = MappingProxyType({}), source: Source | None = None) -> None:
        self._kept = dict(kept.kept if isinstance(kept, Outputs) else kept)
        self._source = source

    def __getitem__(self, name: str) -> Named:
        if name not in self._kept and self._source is not None and "last_hidden_state" in self._kept:
            output = self._source.late_output(name, self._kept["last_hidden_state"].array)
            if output is not None:
                self._kept[name] = output
        if name not in self._kept:
            raise MissingOutputError(
                f"there is no output {name!r}; the outputs are {', '.join(self) or 'none'}",
                where="trace.outputs",
                advice="if the trace was read from a file, pass its model: hs.load(file, model=hs.open(…))"
                if self._source is None
                else "use one of these: the model has no such output head",
            )
        return self._kept[name]

    def __iter__(self) -> Iterator[str]:
        late = self._source.late_outputs() if self._source is not None else ()
        return iter([*self._kept, *(name for name in late if name not in self._kept)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    @property
    def kept(self) -> Mapping[str, Named]:
        """The outputs that are already in memory."""
        return self._kept

    def __repr__(self) -> str:
        return "outputs: " + ", ".join(repr(self._kept.get(name, name)) for name in self)


class MissingOutputError(InputError, KeyError):
    """There is no such output. Also a KeyError, as mappings require."""

    __str__ = InputError.__str__
