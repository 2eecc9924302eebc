"""Facts about a forward pass's tensors: the tokens whose vectors stand at their places.

A `Follower` knows the tensors whose tokens are known, however their memory is shared, written to or changed unseen,
and finds out about those that operators make of them.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from headscope.live.keeping.contents import fingerprint
from headscope.live.names.axes import Tokens
from headscope.live.names.lookups import GATES, NOT_WORDS, Replace, Tables, named_tensors, tensors_of
from headscope.live.names.sources import (
    ELEMENTS,
    NOTHING,
    RESHAPES,
    SEVERAL,
    Memory,
    Operator,
    Result,
    Sources,
    compressed,
    contracts,
    kept,
    mixed,
    pointwise,
    together,
    unknown,
    unread,
)
from headscope.live.progress import WeakStorage, is_plain

if TYPE_CHECKING:
    from headscope.live.calls import Forward


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


View = tuple["weakref.ref[torch.Tensor]", "weakref.ref[torch.Tensor]", Any, "tuple[Any, ...]"]
"""A part of a tensor and the whole, and the operator that made one from the other, with its further arguments: what is
written to the part is written to the whole."""

MOST_REMEMBERED = 64
"""Maximum number of forward passes whose outputs are recognised when they are a later one's input."""

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

VIEWS = ("select", "slice")
"""Operators through whose results a tensor is written in parts: x[:, 0] = …"""


class Follower:
    """Facts about the tensors of one thread's forward pass.

    Attributes:
        memory: what was worked out in earlier passes.
        replace: changes the ids that are looked up; None to leave them as they are.
        tokens: the tokens that entered the pass.
        lookups: the ids that were looked up, in order, each time with their own sources, None if they come from no
            argument, and the number of the first one's token.
        valued: True if tokens were moved to places that depend on numbers, not on shapes alone.
        settings: for each block that ran in this pass, what it depends on beside its arguments; None if on any code.
        shipped: for the classes of each block that ran in this pass, True if they run as shipped.
        closed: True once its session is over.
    """

    def __init__(self, memory: Memory, replace: Replace | None = None) -> None:
        self.memory = memory
        self.replace = replace
        self.closed = False
        self._remembered: deque[dict[int, tuple[Tokens, int]]] = deque(maxlen=MOST_REMEMBERED)
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
            self._views = [view for view in self._views if all(x() is not None for x in view[:2])]
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
            parents = ((whole(), *made) for part, whole, *made in reversed(self._views) if part() is written[-1])
            whole, *made = next(parents, (None,))
            if whole is None:
                break
            sources = self.memory.interned(self._whole(whole, written[-1], *made))
            written.append(whole)
        self._renew(_memory(x), None if same else written)

    def _renew(self, memory: range, but: list[torch.Tensor] | None) -> None:
        """Note that numbers changed: tensors in this memory keep their tokens, or only these do."""
        for entry in list(self._entries.values()):
            x = entry.tensor()
            if x is not None and _overlap(memory, _memory(x)):
                kept = but is None or any(x is each for each in but)
                self.put(x, entry.sources if kept else self.memory.interned(unknown(x.dim())))

    def _whole(self, whole: torch.Tensor, part: torch.Tensor, op: Any, args: tuple[Any, ...]) -> Sources:
        """The sources of a tensor after a part of it has been written."""
        entries = [(x, self._entries.get(id(x))) for x in (whole, part)]
        known = [entry.sources if entry is not None and entry.tensor() is x else None for x, entry in entries]
        axis, sources, shape = args[0] % whole.dim(), known[1], list(part.shape)
        selected = part.dim() < whole.dim()
        if selected:
            sources = None if sources is None else sources.unsqueeze(axis)
            shape.insert(axis, 1)
        table, new = together([known[0], sources], [whole.shape, shape], axis)
        table = table.clone(memory_format=torch.contiguous_format)
        op(table, *args).copy_(new.squeeze(axis) if selected else new)
        return compressed(table)

    def begin(self, forward: Forward, tables: Tables) -> None:
        """Begin to follow a pass."""
        self.forget()
        self.tokens = Tokens()
        self._tables: list[Tables] = []
        self.lookups: list[tuple[torch.Tensor, Sources | None, int]] = []
        self.valued = False
        self.settings: dict[nn.Module, tuple[Any, ...] | None] = {}
        self.shipped: dict[tuple[type, ...], bool] = {}
        self._types: torch.Tensor | None = None
        self._arguments: list[tuple[int, torch.Tensor]] = []
        self.memory.forget()
        self.join(forward, tables)

    def join(self, forward: Forward, tables: Tables) -> None:
        """Follow the pass for another session, too, whose own begins at another module."""
        self._tables.append(tables)
        for parameter, names in tables.learned:
            first = self.tokens.add_named(names)
            last_axes = (-1, 1)[-parameter.dim() :]
            shape = (1,) * (parameter.dim() - len(last_axes)) + last_axes
            self.put(
                parameter, self.memory.interned(torch.arange(first, first + len(names), device="cpu").reshape(shape))
            )
        arguments = [
            (name, x)
            for name, x in tensors_of(forward.module, forward.args, forward.kwargs)
            if is_plain(x) and x.dim() and self.known(x) is None
        ]
        self._types = next((x.detach().clone() for name, x in arguments if name == "token_type_ids"), self._types)
        for name, x in arguments:
            if x.is_floating_point() and x.dim() > 1 and not GATES.search(name):
                self.put(x, self._recognised(x))
            elif x.dtype in INTEGERS and not NOT_WORDS.search(name):
                self.put(x, self._elements(x))

    def numbers(self, x: torch.Tensor, batch: int | None, tokens: int) -> np.ndarray | None:
        """(1 or batch, tokens): the number of the token at each position, -1 where none is known; None without tokens.

        Args:
            x: a tensor.
            batch, tokens: its axes of rows and of positions; without an axis of rows, it is one row.
        """
        sources = self.known(x)
        if sources is None:
            return None
        key = (id(sources), tuple(x.shape), batch, tokens)
        if key not in self.memory.results:
            others = [axis for axis in range(x.dim()) if axis not in (batch, tokens)]
            table = mixed(sources, others)
            table = table.expand(*(1 if axis in others else x.shape[axis] for axis in range(x.dim())))
            table = table if batch is None else table.movedim(batch, 0)
            table = table.reshape(1 if batch is None else len(table), x.shape[tokens])
            numbers = torch.where((table < 0) | (table >= ELEMENTS), NOTHING, table).numpy()
            self.memory.results[key] = [sources], numbers
        return self.memory.results[key][1]

    def attended(self, output: torch.Tensor, query: torch.Tensor, axes: Sequence[int]) -> None:
        """Note that an attention's output stands for the tokens of its queries.

        Args:
            output: the contexts, or what was made of them.
            query: the queries, or what they were made of.
            axes: for each axis of the output, the axis of `query` along the same tokens; -1 if there is none.
        """
        sources = self.known(query)
        if sources is None:
            return
        key = (id(sources), tuple(axes))
        if key not in self.memory.results:
            rest = [axis for axis in range(query.dim()) if axis not in axes]
            table = mixed(sources, rest).permute(*(axis for axis in axes if axis >= 0), *rest)
            sizes = iter(table.shape)
            found = self.memory.interned(table.reshape([1 if axis < 0 else next(sizes) for axis in axes]))
            self.memory.results[key] = [sources], found
        self.put(output, self.memory.results[key][1])

    def lookup(self, operator: Operator, args: tuple[Any, ...]) -> torch.Tensor | None:
        """The ids that an operator looks up, if they may be those of words; else None."""
        for tables in self._tables:
            tables.renew()
        if operator.name == "one_hot":
            table, ids = None, args[0]
        elif operator.name == "embedding":
            table, ids = args[:2]
        else:
            table, ids = args[0], args[-1]
            if operator.name == "index":
                ids = ids[0] if len(ids) == 1 else None
            elif operator.name != "take" and args[1] != 0:
                return None
            if not isinstance(ids, torch.Tensor) or ids.dtype not in INTEGERS or self.known(table) is not None:
                return None
        if table is not None and (not table.is_floating_point() or table.numel() == len(table)):
            return None  # other ids for these, or one number for each: see _mapped
        if table is not None and any(id(table) in tables.words for tables in self._tables):
            return ids
        if self.known(ids) is None:
            return None
        return ids if table is None or all(tables.may_hold_words(table) for tables in self._tables) else None

    def replaced(self, operator: Operator, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments with which an operator is to run: others than these if `replace` changes ids."""
        ids = self.lookup(operator, args) if self.replace is not None and operator.looks_up else None
        if ids is None or self.replace is None:
            return args
        rows = len(args[0]) if operator.name != "one_hot" else args[1]
        new = self.replace(ids, self._first_of(ids), rows)
        return tuple([new] if x is not ids and isinstance(x, list) else new if x is ids else x for x in args)

    def note(
        self, operator: Operator, args: tuple[Any, ...], result: Any, before: dict[int, Sources | None] | None
    ) -> None:
        """Note the tokens in the result of an operator that has run.

        Args:
            operator, args: the operator and its arguments.
            result: its result.
            before: what `before_writing` returned, if it writes to an argument; else None.
        """
        self._before = before
        sources = self._sources(operator, args, result)
        for at in operator.writes:
            self.write(args[at], sources if args[at] is result and isinstance(sources, torch.Tensor) else None)
        self._before = None
        if operator.name in VIEWS and args[0].is_floating_point():
            self._views.append((weakref.ref(result), weakref.ref(args[0]), operator.op, args[1:]))
        if operator.name == "resolve_neg":  # on the way to NumPy, which can change it from now on, as no operator does
            self._exposed.append(_memory(args[0]))
            self._renew(self._exposed[-1], None)
        if operator.writes or sources is None or result is args[0]:
            return
        if isinstance(sources, torch.Tensor):
            self.put(result if isinstance(result, torch.Tensor) else result[0], sources)
        else:
            for part, of_part in zip(result, sources, strict=False):
                if of_part is not None:
                    self.put(part, of_part)

    def end(self, output: Any) -> None:
        """End following a pass, and recognise the vectors of this output if they are a later pass's input."""
        prints: dict[int, tuple[Tokens, int]] = {}
        for _, x in named_tensors("", output):
            numbers = self.numbers(x, 0, 1) if x.dim() == 3 else None
            for bits, number in (
                [] if numbers is None else zip(fingerprint(x).flatten().tolist(), numbers.flat, strict=False)
            ):
                if number >= 0:
                    alike = bits not in prints or self.tokens.ids[prints[bits][1]] == self.tokens.ids[number]
                    prints[bits] = self.tokens, int(number) if alike else SEVERAL
        if prints:
            self._remembered.append(prints)
        self.forget()

    def _recognised(self, x: torch.Tensor) -> Sources:
        """The tokens of an argument: those of an earlier pass's output that it repeats bit for bit."""
        if x.dim() != 3 or not self._remembered:
            return self.memory.interned(unknown(x.dim()))
        bits = fingerprint(x)
        numbers = [self._number_of(number) for number in bits.flatten().tolist()]
        return self.memory.interned(compressed(torch.tensor(numbers, device="cpu").reshape(*bits.shape, 1)))

    def _number_of(self, bits: int) -> int:
        for prints in reversed(self._remembered):
            if bits in prints:
                tokens, number = prints[bits]
                self.valued = True
                return SEVERAL if number < 0 else self.tokens.add_copy(tokens, number)
        return SEVERAL

    def _sources(self, operator: Operator, args: tuple[Any, ...], result: Any) -> Result:
        """The sources of an operator's result."""
        if isinstance(result, torch.Tensor) and result.is_nested:
            return None
        if operator.looks_up and (numbers := self._looked_up(operator, args, result)) is not None:
            return numbers
        if operator.name == "linear" and any(id(args[1]) in tables.trigrams for tables in self._tables):
            sources = self.known(args[0])
            third = args[0].shape[-1] // 3
            middle = None if sources is None else sources.expand(args[0].shape)[..., third : 2 * third]
            return None if middle is None else self.memory.interned(compressed(middle))
        if operator.rule is pointwise and result.dtype != torch.bool:
            first, second = self.known(args[0]), self.known(args[1]) if len(args) > 1 else None
            if len(args) <= 2 and (first is None) != (second is None):
                only, x = (first, args[0]) if second is None else (second, args[1])
                if x.dim() == result.dim():
                    return only
            if len(args) == 2 and first is second and (first is None or args[0].dim() == args[1].dim()):
                return first
        elif operator.rule in (kept, unread):
            return operator.rule(self.known, operator.op, args, result)
        labelled: list[Sources] = []
        key = (operator, tuple(result.shape) if operator.name in RESHAPES else (), self._key(args, labelled))
        if not labelled:
            return None
        if operator.name == "convolution" and (patches := self._patches(args, result)) is not None:
            return patches
        valued = operator.valued or contracts(self.known, operator.rule, args)
        if valued or key not in self.memory.results:
            found = self._interned(operator.rule(self.known, operator.op, args, result))
            if valued:
                self.valued |= operator.valued or (isinstance(found, torch.Tensor) and bool((found >= 0).any()))
                return found
            self.memory.results[key] = labelled, found
        return self.memory.results[key][1]

    def _interned(self, found: Result) -> Result:
        if found is None or isinstance(found, torch.Tensor):
            return found if found is None else self.memory.interned(found)
        return [part if part is None else self.memory.interned(part) for part in found]

    def _key(self, x: Any, labelled: list[Sources]) -> Any:
        """Return the parts of an argument that a result's sources depend on; its tokens are added to `labelled`."""
        if isinstance(x, torch.Tensor):
            sources = self.known(x)
            if sources is None:
                return x.shape if is_plain(x) else None
            labelled.append(sources)
            return id(sources), x.shape, x.dtype
        if isinstance(x, torch.ScriptObject):
            return type(x)  # packed weights, which can't be compared
        return tuple([self._key(part, labelled) for part in x]) if isinstance(x, (list, tuple)) else x

    def _numbered(self, ids: torch.Tensor, axes: int) -> Sources:
        """The sources of what was looked up for these ids: new tokens, unless the same ids were looked up before."""
        elements, first = self.known(ids), self._first_of(ids)
        if first == self.tokens.count:
            self.tokens.add(*self._passed(ids, elements))
        self.lookups.append((ids.detach().clone(), elements, first))
        shape = *ids.shape, *(1,) * (axes - ids.dim())
        return self.memory.interned(torch.arange(first, first + ids.numel(), device="cpu").reshape(shape))

    def _looked_up(self, operator: Operator, args: tuple[Any, ...], result: Any) -> Sources | None:
        """The sources of what an operator looks up; None if they aren't those of tokens."""
        ids = self.lookup(operator, args)
        return self._mapped(args, result) if ids is None else self._numbered(ids, result.dim())

    def _mapped(self, args: tuple[Any, ...], result: Any) -> Sources | None:
        """The sources of ids that were looked up for others in a table of one number for each: those of the others."""
        for ids in (x[0] if isinstance(x, list) and x else x for x in args[1:]):
            integers = isinstance(ids, torch.Tensor) and ids.dtype in INTEGERS
            if integers and (result.dtype in INTEGERS or result.numel() == ids.numel()):
                if self.known(args[0]) is not None or (elements := self.known(ids)) is None:
                    return None
                return elements.reshape(*elements.shape, *(1,) * (result.dim() - ids.dim()))
        return None

    def _passed(self, ids: torch.Tensor, elements: Sources | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The ids that the caller passed for ids that are looked up, however the model has changed them since.

        Args:
            ids: the ids.
            elements: their sources.

        Returns:
            The ids, flat, those of no argument as they are, and -1 for those made of several; and their token types, if
            all are of the argument that has them.
        """
        named = ids.detach().flatten()
        if elements is None:
            return named, None
        numbers, types = elements.expand(ids.shape).flatten(), None
        for first, values in self._arguments:
            places, count = numbers - first, values.numel()
            inside = (places >= 0) & (places < count)
            if not bool(inside.any()):
                continue
            if bool(inside.all()) and self._types is not None and self._types.shape == values.shape:
                types = self._types.flatten()[places.to(self._types.device)].clone()
            if len(places) == count and bool((places == torch.arange(count, device="cpu")).all()):
                named = values.flatten().to(named.dtype)  # as they are: a GPU is not sent any places
            else:
                chosen = values.flatten()[places.clamp(0, count - 1).to(values.device)]
                named = torch.where(inside.to(named.device), chosen.to(named), named)
        looked_up = (numbers >= 0) & (numbers < ELEMENTS)
        if bool(looked_up.any()):  # in a table whose numbers are ids of another
            chosen = torch.from_numpy(self.tokens.ids)[numbers.clamp(0, self.tokens.count - 1)]
            named = torch.where(looked_up.to(named.device), chosen.to(named), named)
        return named.masked_fill((numbers == SEVERAL).to(named.device), -1), types

    def _first_of(self, ids: torch.Tensor) -> int:
        """The number of the first token of ids that are looked up: the same as before if they have been looked up."""
        elements = self.known(ids)
        for known, of_known, first in self.lookups:
            if of_known is elements and torch.equal(known, ids):
                return first
        return self.tokens.count

    def _elements(self, x: torch.Tensor) -> Sources:
        """The sources of an integer argument: the numbers of its elements, if it may be one of ids."""
        if x.dim() > 3:  # of images
            return self.memory.interned(unknown(x.dim()))
        first = max([ELEMENTS, *(before + values.numel() for before, values in self._arguments)])
        self._arguments.append((first, x.detach().clone()))
        return self.memory.interned(torch.arange(first, first + x.numel(), device="cpu").reshape(x.shape))

    def _patches(self, args: tuple[Any, ...], result: torch.Tensor) -> Sources | None:
        """The sources of what a convolution makes of an image that it cuts into squares; None if it does not."""
        x, weight, _, stride, padding, dilation, transposed = args[:7]
        side = weight.shape[-1]
        if x.dim() != 4 or side == 1 or transposed or any(padding) or any(step != 1 for step in dilation):
            return None
        sources = self.known(x)
        if [*weight.shape[2:], *stride] != [side] * 4 or sources is None or bool((sources != SEVERAL).any()):
            return None
        rows, columns = result.shape[2:]
        names = [f"patch {row},{column}" for row in range(rows) for column in range(columns)]
        first = self.tokens.add_named(names * len(x))
        return self.memory.interned(
            torch.arange(first, self.tokens.count, device="cpu").reshape(len(x), 1, rows, columns)
        )


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
