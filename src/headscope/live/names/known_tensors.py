"""The tensors of a pass whose tokens are known, however their memory is shared, written to or changed unseen."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch

from headscope.live.keeping.contents import fingerprint
from headscope.live.names.memory import Memory
from headscope.live.names.sources import NOTHING, Sources, compressed, together, unknown
from headscope.live.progress import WeakStorage

ROOM = 512
"""Number of tensors that are known before those that no longer exist are forgotten."""


class Entry(NamedTuple):
    """Facts about a tensor.

    Attributes:
        tensor: weak reference to it.
        sources: the tokens in it.
        pointer: where its numbers are.
        version: how often they had been changed; None in inference mode.
        exposed: their fingerprint, if NumPy may change them unseen; else None.
    """

    tensor: weakref.ref[torch.Tensor]
    sources: Sources
    pointer: int
    version: int | None
    exposed: torch.Tensor | None


class View(NamedTuple):
    """A part of a tensor: what is written to it is written to the whole.

    Attributes:
        part, whole: weak references to both.
        op, args: the operator that made one from the other, and its further arguments.
    """

    part: weakref.ref[torch.Tensor]
    whole: weakref.ref[torch.Tensor]
    op: Any
    args: tuple[Any, ...]


class KnownTensors:
    """The tensors of one thread's forward pass, with the tokens whose vectors stand in them.

    Args:
        memory: what was worked out in earlier passes.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.forget()

    def forget(self) -> None:
        """Forget all tensors."""
        self._entries: dict[int, Entry] = {}
        self._storages: dict[int | None, tuple[WeakStorage, dict[Any, Entry]]] = {}
        self._room = ROOM
        self._views: list[View] = []
        self._exposed: list[range] = []
        self._before: dict[int, Sources | None] | None = None

    def known(self, x: Any) -> Sources | None:
        """The sources of a tensor; None if it has no token."""
        if self._before is not None and id(x) in self._before:
            return self._before[id(x)]
        entry = self._entries.get(id(x))
        if not isinstance(x, torch.Tensor):
            return None
        if entry is None or entry.tensor() is not x:
            return self._of_another_view(x)
        unseen = x.data_ptr() != entry.pointer or (entry.version is not None and x._version != entry.version)
        if unseen or (entry.exposed is not None and not torch.equal(fingerprint(x), entry.exposed)):
            self.put(x, self.memory.interned(unknown(x.dim())))  # changed, and not by an operator of this thread
            return self._entries[id(x)].sources
        return entry.sources

    def _of_another_view(self, x: torch.Tensor) -> Sources | None:
        """The sources of a tensor that no operator was seen to make: those of an equal view of the same memory."""
        if not x.is_floating_point() or (x.requires_grad and x.is_leaf):
            return None
        memory = self._storages.get(_storage(x))
        if memory is None:
            return None
        entry = memory[1].get((x.data_ptr(), x.shape, x.stride()))
        same = entry is not None and entry.version == _version(x) and entry.exposed is None
        self.put(x, entry.sources if entry is not None and same else self.memory.interned(unknown(x.dim())))
        return self._entries[id(x)].sources

    def put(self, x: torch.Tensor, sources: Sources) -> None:
        """Note the sources of a tensor."""
        if len(self._entries) > self._room:
            self._entries = {at: entry for at, entry in self._entries.items() if entry.tensor() is not None}
            self._views = [view for view in self._views if view.part() is not None and view.whole() is not None]
            self._storages = {at: memory for at, memory in self._storages.items() if not memory[0].expired()}  # type: ignore[no-untyped-call]
            self._room = ROOM + 2 * len(self._entries)
        exposed = fingerprint(x) if any(_overlap(memory, _memory(x)) for memory in self._exposed) else None
        entry = Entry(weakref.ref(x), sources, x.data_ptr(), _version(x), exposed)
        self._entries[id(x)] = entry
        if x.is_floating_point() and (at := _storage(x)) is not None:
            if at not in self._storages:
                self._storages[at] = WeakStorage(x), {}
            self._storages[at][1][entry.pointer, x.shape, x.stride()] = entry

    def before_writing(self, args: tuple[Any, ...]) -> dict[int, Sources | None]:
        """The sources of the arguments of an operator that writes to the first one's memory, by their ids."""
        memory = _memory(args[0])
        for entry in list(self._entries.values()):
            x = entry.tensor()
            if x is not None and _overlap(memory, _memory(x)):
                self.known(x)  # it is not compared again afterwards
        tensors = [x for value in args for x in (value if isinstance(value, list) else [value])]
        return {id(x): self.known(x) for x in tensors if isinstance(x, torch.Tensor)}

    def write(self, x: torch.Tensor, sources: Sources | None) -> None:
        """Note that an operator has written to a tensor, and so to others in the same memory."""
        same = sources is not None and self.known(x) is sources
        written = [x]
        while not same:
            if sources is None or not bool((sources != NOTHING).any()):
                self._entries.pop(id(written[-1]), None)
                self._storages.pop(_storage(written[-1]), None)
            else:
                self.put(written[-1], sources)
            view = next((view for view in reversed(self._views) if view.part() is written[-1]), None)
            whole = None if view is None else view.whole()
            if view is None or whole is None:
                break
            sources = self.memory.interned(self._whole(view, whole, written[-1]))
            written.append(whole)
        self._renew(_memory(x), None if same else written)

    def view(self, part: torch.Tensor, whole: torch.Tensor, op: Any, args: tuple[Any, ...]) -> None:
        """Note that an operator has made a part of a tensor: what is written to it is written to the whole."""
        self._views.append(View(weakref.ref(part), weakref.ref(whole), op, args))

    def _renew(self, memory: range, but: list[torch.Tensor] | None) -> None:
        """Note that numbers changed: tensors in this memory keep their tokens, or only these do."""
        for entry in list(self._entries.values()):
            x = entry.tensor()
            if x is not None and _overlap(memory, _memory(x)):
                kept = but is None or any(x is each for each in but)
                self.put(x, entry.sources if kept else self.memory.interned(unknown(x.dim())))

    def _whole(self, view: View, whole: torch.Tensor, part: torch.Tensor) -> Sources:
        """The sources of a tensor after a part of it has been written."""
        entries = [(x, self._entries.get(id(x))) for x in (whole, part)]
        known = [entry.sources if entry is not None and entry.tensor() is x else None for x, entry in entries]
        axis, sources, shape = view.args[0] % whole.dim(), known[1], list(part.shape)
        selected = part.dim() < whole.dim()
        if selected:
            sources = None if sources is None else sources.unsqueeze(axis)
            shape.insert(axis, 1)
        table, new = together([known[0], sources], [whole.shape, shape], axis)
        table = table.clone(memory_format=torch.contiguous_format)
        view.op(table, *view.args).copy_(new.squeeze(axis) if selected else new)
        return compressed(table)

    def expose(self, x: torch.Tensor) -> None:
        """Note that NumPy can change a tensor's memory from now on, which no operator does."""
        memory = _memory(x)
        self._exposed.append(memory)
        self._renew(memory, None)


def _memory(x: torch.Tensor) -> range:
    """The addresses of a tensor's memory; none if it has no memory of its own."""
    try:
        storage = x.untyped_storage()
        return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())
    except (NotImplementedError, RuntimeError):
        return range(0)


def _storage(x: torch.Tensor) -> int | None:
    """Return an identity of a tensor's memory, valid while a weak reference exists; None if it has none of its own."""
    try:
        return x.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None


def _version(x: torch.Tensor) -> int | None:
    return None if x.is_inference() else x._version


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop
