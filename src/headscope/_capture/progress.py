"""Where a forward pass stands: which modules have been entered how often, and which layers their attention is."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from headscope._capture.calls import Stack
    from headscope._capture.stacks import Plan


@dataclass(frozen=True)
class Place:
    """Which attention of the model a call is.

    Attributes:
        stack: the stack, or the part of it where a module attends more than once each time it runs.
        layer: the layer's number, as the model counts.
        turn: how many times the transformer that the module is part of had been called before in this forward pass.
    """

    stack: Stack
    layer: int
    turn: int


@dataclass(frozen=True)
class Missed:
    """An operator of attention, or a softmax, that ran where capture reads nothing.

    Attributes:
        module: the id of the innermost module that was running; `path`: its name; `kind`: the innermost class.
        operator: its name.
        over: the size of a softmax's own dimension; 0 for fused attention.
        others: the sizes of its other dimensions.
        surely: whether it is attention whatever its sizes.
    """

    module: int
    path: str
    kind: str
    operator: str
    over: int = 0
    others: frozenset[int] = frozenset()
    surely: bool = True


@dataclass(frozen=True)
class _Last:
    entries: tuple[int, int]
    place: Place
    base: Stack


@dataclass(eq=False)
class Progress:
    """What is known of a forward pass while it runs.

    Attributes:
        entered: for each module that is watched, by id, how often it has been entered.
        sizes: (queries, keys) of the calls that were read.
        read: the modules, by id, of which a call was read.
    """

    entered: dict[int, int] = field(default_factory=dict)
    sizes: set[tuple[int, int]] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    _last: dict[int, _Last] = field(default_factory=dict)
    _taken: dict[Hashable, set[int]] = field(default_factory=dict)

    def enter(self, module: nn.Module) -> None:
        """A module begins to run."""
        self.entered[id(module)] = self.entered.get(id(module), 0) + 1

    def place(self, plan: Plan, module: nn.Module, sizes: Hashable) -> Place:
        """Which attention of the model the next call of this module is.

        A module is the layer that its place in the model says. If it has run before, it is either part of a transformer
        that is called again and begins anew, or one that several layers share: then it is the next layer. If it attends
        again without having been entered again, it is the same layer's next part.

        Args:
            sizes: of the call; layers are counted for each by itself.
        """
        stack = plan.stacks[id(module)]
        home = plan.homes.get(id(module))
        entries = (self.entered.get(id(module), 0), 0 if home is None else self.entered.get(home, 0))
        last = self._last.get(id(module))
        if last is not None and last.entries == entries and entries[0]:
            part = plan.part(last.base, last.place.stack.call + 1)
            place = Place(part, last.place.layer, last.place.turn)
        else:
            turn = max(entries[1] - 1, 0)
            taken = self._taken.setdefault((stack, turn, sizes), set())
            layer = plan.number(module)
            layer = max(taken) + 1 if layer in taken else layer
            taken.add(layer)
            place = Place(stack, layer, turn)
        self._last[id(module)] = _Last(entries, place, stack)
        return place

    def is_attention(self, missed: Missed) -> bool:
        """Whether what ran unread is attention: fused, or a softmax over as many keys as a call that was read."""
        if missed.surely:
            return True
        return any(keys == missed.over and queries in missed.others for queries, keys in self.sizes)
