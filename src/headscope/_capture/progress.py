"""Progress of a forward pass: how often each module has been entered, and the layer of each call of attention."""

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
    """The place of a call in the model.

    Attributes:
        stack: the stack; for a module that attends more than once each time it runs, the stack of this call.
        layer: the layer's number, as the model counts.
        turn: number of earlier calls, in this forward pass, of the transformer that the module is part of.
    """

    stack: Stack
    layer: int
    turn: int


@dataclass(frozen=True)
class Missed:
    """An attention operator, or a softmax, that ran without being read.

    Attributes:
        module: id of the innermost module of the model that was running.
        path: that module's name.
        kind: the innermost class.
        operator: the operator's name.
        over: size of the dimension that a softmax reduces; 0 for fused attention.
        others: sizes of its other dimensions.
        certain: True if it is attention regardless of its sizes.
    """

    module: int
    path: str
    kind: str
    operator: str
    over: int = 0
    others: frozenset[int] = frozenset()
    certain: bool = True


@dataclass(frozen=True)
class _Last:
    entries: tuple[int, int]
    place: Place
    base: Stack


@dataclass(eq=False)
class Progress:
    """The state of a running forward pass.

    Attributes:
        entered: module id -> how often the module has been entered, for watched modules.
        sizes: (queries, keys) of the calls that were read.
        read: ids of the modules with a call that was read.
    """

    entered: dict[int, int] = field(default_factory=dict)
    sizes: set[tuple[int, int]] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    _last: dict[int, _Last] = field(default_factory=dict)
    _taken: dict[Hashable, set[int]] = field(default_factory=dict)

    def enter(self, module: nn.Module) -> None:
        """Count that a module begins to run."""
        self.entered[id(module)] = self.entered.get(id(module), 0) + 1

    def place(self, plan: Plan, module: nn.Module, sizes: Hashable) -> Place:
        """Determine the place of a module's next call.

        A module is the layer that its position in the model says. If it has run before, either its transformer was
        called again and starts anew, or several layers share the module: then it is the next layer. If it attends again
        without having been entered again, it is the same layer's next part.

        Args:
            plan: the model's attention modules.
            module: the attention module.
            sizes: shapes of the call; layers are counted separately for each.
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
        """Return True for fused attention, and for a softmax with the queries and keys of a call that was read."""
        if missed.certain:
            return True
        return any(keys == missed.over and queries in missed.others for queries, keys in self.sizes)
