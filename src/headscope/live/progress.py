"""Progress of a forward pass: how often each module has been entered, and the layer of each call of attention."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from headscope.errors import UnsupportedError
from headscope.live.plan.stacks import Place

if TYPE_CHECKING:
    from torch import nn

    from headscope.live.plan.stacks import Plan


Sizes = tuple[int, int]
"""Numbers of rows and of tokens; or of tokens and of rows, in models that have the tokens first."""


def is_plain(x: object) -> bool:
    """Return True for a tensor with numbers of its own: neither nested nor one that torch.func transforms."""
    return isinstance(x, torch.Tensor) and not x.is_nested and not torch._C._functorch.is_functorch_wrapped_tensor(x)


def sizes_of(x: Any) -> Sizes | None:
    """The sizes of a batch of hidden states, or of ids; None for anything else."""
    if not is_plain(x) or not 1 <= (axes := x.dim() - x.is_floating_point()) <= 2:
        return None
    return (x.shape[0], x.shape[1]) if axes == 2 else (1, x.shape[0])


class WeakStorage(StorageWeakRef):
    """A weak reference to a tensor's memory. PyTorch's own, if copied, frees it twice, and the process dies."""

    __slots__ = ()

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__(x.untyped_storage())  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> WeakStorage:
        """Return the object itself, which is never changed."""
        return self

    __copy__ = __deepcopy__

    def __reduce__(self) -> tuple[Any, ...]:
        """Become None in another process, where there is no such memory."""
        return type(None), ()


@dataclass(frozen=True)
class Extent:
    """Place of a tensor in memory. It keeps no memory alive.

    Attributes:
        sizes: its sizes, if it is a batch of hidden states or ids.
        storage: the memory; None if the tensor is not plain.
        offset, shape, strides: where its numbers are in it.
    """

    sizes: Sizes | None
    storage: WeakStorage | None
    offset: int = 0
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    @classmethod
    def of(cls, x: torch.Tensor) -> Extent:
        """The extent of a tensor."""
        if not is_plain(x):
            return cls(sizes_of(x), None)
        return cls(sizes_of(x), WeakStorage(x), int(x.storage_offset()), tuple(x.shape), x.stride())

    @property
    def numbers(self) -> int:
        """Number of its numbers; 0 if it is not plain."""
        return 0 if self.storage is None else prod(self.shape)

    def beside(self, other: Extent) -> bool:
        """Return True if both are parts of the same tensor, at different places."""
        return self.storage is not None and self.storage == other.storage and self.offset != other.offset


@dataclass(frozen=True)
class _Last:
    entries: tuple[int, int]
    place: Place
    at: tuple[int, ...] = ()
    within: int = 0
    share: int = 0


@dataclass(eq=False)
class Loop:
    """The elements of a module's lists that ran since it last attended.

    Attributes:
        at: the numbers in the name of the last that ran, those of lists in lists included; () if none has.
        moved: places of numbers in names at which one ran after another, with other inputs: they follow each other.
        beside: those at which one ran after another with the same input.
        changed: True if one ran again with another input.
    """

    at: tuple[int, ...] = ()
    moved: set[int] = field(default_factory=set)
    beside: set[int] = field(default_factory=set)
    changed: bool = False
    _inputs: dict[str, tuple[int, torch.Tensor]] = field(default_factory=dict)

    def read(self, path: str, x: torch.Tensor) -> None:
        """Note that a Linear runs, by its name in the module that attends, and what it is given."""
        parts = path.split(".")
        self.at, given = tuple(int(part) for part in parts if part.isdigit()), x.detach().clone()
        for level, place in enumerate(at for at, part in enumerate(parts) if part.isdigit()):
            others = ".".join([*parts[:place], "*", *parts[place + 1 :]])
            number, before = self._inputs.get(others, (self.at[level], given))
            same = torch.equal(before, given)
            if number == self.at[level]:
                self.changed |= not same
            else:
                (self.beside if same else self.moved).add(level)
            self._inputs[others] = self.at[level], given

    def follows(self, at: tuple[int, ...]) -> bool | None:
        """Return True if this is another layer than that with these numbers, False if it isn't; None if unknown."""
        if not self.at or not at:
            return None
        level = next((level for level, (a, b) in enumerate(zip(self.at, at, strict=False)) if a != b), None)
        if level is None:
            return None if self.changed else False
        return True if level in self.moved else False if level in self.beside else None


@dataclass(eq=False)
class Progress:
    """The state of a running forward pass.

    Attributes:
        entered: module id -> how often the module has been entered, for watched modules.
        sizes: (queries, keys) of the calls that were read.
        read: ids of the modules with a call that was read.
        inputs: module id -> what it was last given.
        parted: ids of modules that were given parts of a tensor, one after another.
        elsewhere: ids of modules that ran meanwhile in threads without a pass.
        given: copies of what the last element of a list of attention modules was given.
        loops: module id -> the elements of its lists that run.
    """

    entered: dict[int, int] = field(default_factory=dict)
    sizes: set[tuple[int, int]] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    inputs: dict[int, Extent] = field(default_factory=dict)
    parted: set[int] = field(default_factory=set)
    elsewhere: set[int] = field(default_factory=set)
    given: list[torch.Tensor] = field(default_factory=list)
    loops: dict[int, Loop] = field(default_factory=dict)
    _last: dict[int | str, _Last] = field(default_factory=dict)
    _taken: dict[Hashable, set[int]] = field(default_factory=dict)

    def enter(
        self,
        module: nn.Module,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        beside: bool = False,
    ) -> None:
        """Count that a module begins to run, and note what it is given.

        Args:
            module: the module.
            args, kwargs: its arguments.
            beside: True if it is an element of a list of attention modules, which may be heads.
        """
        at = id(module)
        self.entered[at] = self.entered.get(at, 0) + 1
        tensors = [x for x in (*args, *(kwargs or {}).values()) if isinstance(x, torch.Tensor)]
        if beside:
            self.given = [x.detach().clone() for x in tensors if is_plain(x)]
        if tensors:
            x = tensors[0]
            before, self.inputs[at] = self.inputs.get(at), Extent.of(x)
            if before is not None and before.beside(self.inputs[at]):
                self.parted.add(at)

    def place(self, plan: Plan, module: nn.Module, sizes: Hashable, fewer: bool, *, as_head: bool = False) -> Place:
        """Determine the place of a module's next call.

        A module is the layer that its position in the model says. If it has run before, either its transformer was
        called again and starts anew, or several layers share the module: then it is the next layer. If it attends again
        without having been entered again, it is the same layer's next part, or the next layer if it attends in a loop
        over elements of a list, each of which is given something else. It is the next part, too, if its layer, an
        element of a list, runs it again on as many numbers as the layer was given: on all, in another order.

        Args:
            plan: the model's attention modules.
            module: the attention module.
            sizes: shapes of the call; layers are counted separately for each.
            fewer: True if the call has fewer tokens than the model was given.
            as_head: True if the layer is the list that has the module as an element, and the module is its first head.

        Raises:
            UnsupportedError: the module runs again for another part of the tokens, capture can't see how often, or it
                attends again and nothing tells for which layer.
        """
        stack = plan.stacks[id(module)]
        home = plan.homes.get(id(module))
        entries = (self.entered.get(id(module), 0), 0 if home is None else self.entered.get(home, 0))
        unit = plan.list_of(module) if as_head else id(module)
        last = self._last.get(unit)
        loop = self.loops.get(id(module), Loop())
        again = last is not None and last.entries == entries and entries[0] > 0
        follows = loop.follows(last.at) if again and last is not None else False
        loop.moved, loop.beside, loop.changed = set(), set(), False
        if follows is None and plan.has_layers(module):
            self._refuse_loop(plan, module)
        within, share = self._within(plan, module)
        same_layer = last is not None and last.entries[1] == entries[1] and 0 < within == last.within
        again |= same_layer and last is not None and share == last.share == 1
        alone = last is not None and last.entries[1] == entries[1] and id(module) not in plan.layers
        in_pieces = (same_layer or alone) and id(module) in self.parted
        in_pieces |= same_layer and last is not None and share == last.share == -1
        if again and not follows and last is not None:
            part = plan.part(stack, last.place.stack.call + 1)
            place = Place(part, last.place.layer, last.place.turn)
        else:
            turn = max(entries[1] - 1, 0)
            taken = self._taken.setdefault((stack, turn, sizes), set())
            layer = plan.number_of_list(module) if as_head else plan.number(module)
            if follows and last is not None:
                if not taken - {layer} and len(loop.at) == 1 and last.at[0] > layer:
                    self._refuse_loop(plan, module)
                ahead = loop.at[0] - last.at[0] if len(loop.at) == 1 else 1
                layer = last.place.layer + max(1, ahead)
            in_pieces |= layer in taken and (fewer or id(module) in self.parted or not entries[0])
            if last is not None and in_pieces:
                raise UnsupportedError(
                    f"{type(module).__name__} attends several times in one forward pass, "
                    + ("each time over a part of the tokens" if entries[0] else "called around its hooks")
                    + ": the layer and the positions of each call are unknown",
                    where=plan.paths[id(module)],
                    advice="pass it all rows and tokens at once, or capture this module alone: each of its calls is "
                    "then a forward pass of its own",
                )
            layer = max(taken) + 1 if layer in taken else layer
            taken.add(layer)
            place = Place(stack, layer, turn)
        self._last[unit] = _Last(entries, place, loop.at, within, share)
        return place

    def _within(self, plan: Plan, module: nn.Module) -> tuple[int, int]:
        """The entries of a module's layer; and 1 if the module was given as many numbers as it, -1 if fewer."""
        layer = plan.layers.get(id(module), 0)
        given, whole = self.inputs.get(id(module)), self.inputs.get(layer)
        if given is None or whole is None or not given.numbers or id(module) in self.parted:
            return self.entered.get(layer, 0), 0
        return self.entered.get(layer, 0), (given.numbers == whole.numbers) - (given.numbers < whole.numbers)

    def replace_as_head(self, plan: Plan, module: nn.Module, place: Place, sizes: Hashable) -> Place:
        """Place a module's last call again, as the first head of its list."""
        self._taken[place.stack, place.turn, sizes].discard(place.layer)
        del self._last[id(module)]
        return self.place(plan, module, sizes, False, as_head=True)

    def _refuse_loop(self, plan: Plan, module: nn.Module) -> NoReturn:
        """Raise an error for a module that attends in a loop over layers of which nothing tells the number."""
        kind = type(module).__name__
        raise UnsupportedError(
            f"{kind} attends several times in one forward pass, and has lists of modules with parts: if it attends for "
            "each of them in turn, which layer a call belongs to is unknown",
            where=plan.paths[id(module)] or kind,
            advice="let each layer's own module attend, by scaled_dot_product_attention or nn.MultiheadAttention",
        )
