"""What the model returned beside its attention, and the model itself as far as a trace needs it."""

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
    """The model that a trace came from, as far as a trace needs one."""

    def W_O(self, layer: int, head: int) -> Float[np.ndarray, "d_head d_model"]:
        """(d_head, d_model): the head's rows of W^O."""

    def late_output(self, name: str, last_hidden_state: Float[np.ndarray, "tokens d_model"]) -> Named | None:
        """An output on top that is computed from the last hidden state when asked for; None if there is none."""

    def late_outputs(self) -> tuple[str, ...]:
        """The names that late_output knows."""


class Outputs(Mapping[str, Named]):
    """What the model returned: last_hidden_state, pooler_output, logits, ….

    Those on top of the last hidden state are computed when they are asked for.
    """

    def __init__(self, kept: Mapping[str, Named] = MappingProxyType({}), source: Source | None = None) -> None:
        self._kept = dict(kept.kept if isinstance(kept, Outputs) else kept)
        self._source = source

    def __getitem__(self, name: str) -> Named:
        if name not in self._kept and self._source is not None and "last_hidden_state" in self._kept:
            found = self._source.late_output(name, self._kept["last_hidden_state"].array)
            if found is not None:
                self._kept[name] = found
        if name not in self._kept:
            raise MissingOutputError(
                f"there is no output {name!r}; there are {', '.join(self) or 'none'}",
                where="trace.outputs",
                advice="a trace read from a file finds more with hs.load(file, model=hs.open(…))"
                if self._source is None
                else "this checkpoint has no such head on top",
            )
        return self._kept[name]

    def __iter__(self) -> Iterator[str]:
        late = self._source.late_outputs() if self._source is not None else ()
        return iter([*self._kept, *(name for name in late if name not in self._kept)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    @property
    def kept(self) -> Mapping[str, Named]:
        """Those that are in memory already."""
        return self._kept

    def __repr__(self) -> str:
        return "outputs: " + ", ".join(repr(self._kept.get(name, name)) for name in self)


class MissingOutputError(InputError, KeyError):
    """An output that isn't there; a KeyError too, so that mappings behave."""

    __str__ = InputError.__str__
