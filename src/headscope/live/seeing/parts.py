"""One layer's attention in several calls: over chunks of its queries, or by modules of one head each.

Nothing in such a call says where its part belongs. What reads the results does: if the contexts of all calls, side by
side along the tokens, equal the input of a Linear bit for bit, the place of each part is proven, and the calls are put
together. Otherwise they are reported as attention that was not recorded, as are those over rows of the batch or heads.

`Held` holds back the calls of a module that may be parts of one attention, until it is known what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from headscope.attention.patterns import name_of
from headscope.errors import UnsupportedError
from headscope.live.calls import UNREAD, Call
from headscope.live.keeping.projections import Awaited, Output
from headscope.live.masks.analyst import RawMask
from headscope.live.masks.cells import Cells
from headscope.live.masks.chunks import compact, copied, joined_masks
from headscope.live.names.axes import in_common
from headscope.live.names.sources import NOTHING
from headscope.live.plan.stacks import may_project
from headscope.live.progress import Extent, is_plain
from headscope.live.seeing import operators
from headscope.live.seeing.missed import Missed

if TYPE_CHECKING:
    from torch import nn

    from headscope.live.calls import Forward
    from headscope.live.sessions import Seat


ROWS, HEADS, TOKENS = range(3)
"""The axes of queries, keys, values and contexts along which parts may lie."""

WHERE = {ROWS: " over rows of the batch", HEADS: " over heads", TOKENS: " at unknown positions"}
"""Words for calls that are not put together, by the axis along which they lie side by side."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Ran(Call):
    """A call of an attention function that ran, before it has its place, and what its mask tells.

    Queries, keys and values are the function's arguments; `stage` is empty if the module's class tells.

    Attributes:
        name: the name under which transformers' interface knows the function.
        raw: the mask.
        keys: number of keys that the call uses, counted from the first.
        used: number of those that the mask leaves, once it is read.
        same_tokens: True if keys are the queries' tokens, False if they aren't; None if the sizes tell.
        returned: the contexts as the module got them, which differ in the heads that are silenced.
        dtype: precision in which queries and keys were multiplied.
        extents: where keys and values were.
    """

    name: str
    raw: RawMask
    keys: int
    used: int = 0
    same_tokens: bool | None = None
    returned: torch.Tensor
    dtype: torch.dtype
    extents: tuple[Extent, ...] = ()

    def kept(self, *, mask: bool = True) -> Ran:
        """The same call, with copies of all tensors but keys and values: the module may change its own.

        Args:
            mask: False to leave the mask as it is, whose copy may be as large as a map.
        """
        raw = self.raw
        if mask:
            raw = replace(raw, mask=compact(raw.mask, self.q.shape[2]), bias=copied(raw.bias), keys=copied(raw.keys))
        changes: dict[str, Any] = {"raw": raw}
        changes |= {name: copied(getattr(self, name)) for name in ("q", "context", "returned", "weights")}
        return replace(self, **changes, extents=self.extents or tuple(map(Extent.of, (self.k, self.v))))

    def unfolded(self, rows: int, *, heads_first: bool) -> Ran:
        """The same call, whose first axis has the heads of each row, one after another, or the rows of each head."""

        def apart(x: Any) -> Any:
            if not isinstance(x, (torch.Tensor, Cells, np.ndarray)) or len(x) == 1:
                return x
            if isinstance(x, Cells):
                return x.unfolded(rows, heads_first=heads_first)
            sizes = (-1, rows) if heads_first else (rows, -1)
            x = x.reshape(*sizes, *x.shape[2:])
            return x.swapaxes(0, 1) if heads_first else x

        changes: dict[str, Any] = {"raw": self.raw.changed(apart, rows, heads_first)}
        changes |= {name: apart(getattr(self, name)) for name in ("q", "k", "v", "weights", "context", "returned")}
        whole = [None if x is None else np.broadcast_to(x, (len(self.q), x.shape[1])) for x in self.followed]
        changes["followed"] = tuple(
            None if x is None else in_common([*apart(x[:, None]).swapaxes(0, 1)]) for x in whole
        )
        return replace(self, **changes)


def _beside(parts: list[Ran], name: str, axis: int) -> torch.Tensor | None:
    """A tensor of each of several calls, side by side along an axis; None if they differ in another size."""
    tensors = [getattr(part, name) for part in parts]
    sizes = {(*x.shape[:axis], *x.shape[axis + 1 :]) for x in tensors}
    return torch.cat(tensors, axis) if len(sizes) == 1 else None


def joined(parts: list[Ran], axis: int) -> Ran | None:
    """One call made of several along an axis; None if their settings differ, or the keys' positions are unknown.

    Args:
        parts: the calls, in order.
        axis: TOKENS, or HEADS if each is a module.
    """
    first = parts[0]
    shared = axis == TOKENS and all(_same(part.k, first.k) and _same(part.v, first.v) for part in parts)
    split = axis == TOKENS and not shared
    q, context, returned = (_beside(parts, name, axis) for name in ("q", "context", "returned"))
    k, v = (getattr(first, name) if shared else _beside(parts, name, axis) for name in ("k", "v"))
    if not _alike(parts) or q is None or k is None or v is None or context is None or returned is None:
        return None
    if split and not _are_split(parts):
        return None
    weights = [part.weights for part in parts if part.weights is not None]
    masks = [(part.raw, (*part.q.shape[:3], part.keys)) for part in parts]
    return replace(
        first,
        q=q,
        k=k,
        v=v,
        raw=joined_masks(masks, [axis, 3] if split else [axis], q),
        keys=k.shape[2],
        context=context,
        returned=returned,
        fused=all(part.fused for part in parts),
        proven=all(part.proven for part in parts),
        unfused=any(part.unfused for part in parts),
        followed=(_joined_tokens(parts, 0, apart=axis == TOKENS), _joined_tokens(parts, 1, apart=split)),
        weights=_joined_weights(weights, split=split) if len(weights) == len(parts) else None,
    )


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x is y or torch.equal(x, y)


def _alike(parts: list[Ran]) -> bool:
    """Return True if calls have the same settings."""
    terms = [part.layer_terms for part in parts]
    sinks = [None if each.sinks is None else tuple(each.sinks.tolist()) for each in terms]
    settings = zip(parts, terms, sinks, strict=True)
    return len({(part.scale, part.dropout, each.cap, apart) for part, each, apart in settings}) == 1


def _is_in(whole: torch.Tensor, x: torch.Tensor) -> bool:
    """Return True if `x` has the contexts (batch, heads, queries, d_value) with the heads side by side, bit for bit."""
    flat = whole.transpose(1, 2).flatten(2)
    if x.dim() < 2 or x.numel() != flat.numel() or x.shape[-1] != flat.shape[-1]:
        return False
    x, (rows, tokens, width) = x.detach(), flat.shape
    first = x.reshape(tokens, rows, width) if x.dim() == 2 else x.flatten(1, -2)  # tokens first, or rows
    return any(
        view.shape == flat.shape and torch.allclose(view, flat.to(view), rtol=0, atol=0, equal_nan=True)
        for view in (first.reshape(flat.shape) if x.dim() == 2 else first, first.transpose(0, 1))
    )


def _are_split(parts: list[Ran]) -> bool:
    """Return True if keys and values of each call are, in one tensor of them, where its queries are among all."""
    starts = list(accumulate((part.q.shape[2] for part in parts), initial=0))
    for extents in zip(*(part.extents for part in parts), strict=True):
        first = extents[0]
        for extent, start, stop in zip(extents, starts, starts[1:], strict=False):
            if extent.storage is None or extent.storage != first.storage or extent.shape[2] != stop - start:
                return False
            strides = [
                a == b for a, b, size in zip(extent.strides, first.strides, extent.shape, strict=True) if size > 1
            ]
            if not all(strides) or extent.offset != first.offset + start * first.strides[2]:
                return False
    return True


def _joined_tokens(parts: list[Ran], side: int, *, apart: bool) -> np.ndarray:
    """The numbers of several calls' queries (0) or keys (1), side by side if each has its own; -1 if not known."""
    tables = []
    for part in parts:
        numbers, tokens = part.followed[side], (part.q, part.k)[side].shape[2]
        tables.append(np.broadcast_to(NOTHING if numbers is None else numbers, (len(part.q), tokens)))
    return np.concatenate(tables, 1) if apart else in_common(tables)


def _joined_weights(blocks: list[torch.Tensor], *, split: bool) -> torch.Tensor:
    """One map of all pairs, with the block of each call at its place and 0 elsewhere."""
    if not split:
        return torch.cat(blocks, TOKENS)
    tokens, end = sum(block.shape[2] for block in blocks), 0
    whole = blocks[0].new_zeros(*blocks[0].shape[:2], tokens, tokens)
    for block in blocks:
        start, end = end, end + block.shape[2]
        whole[:, :, start:end, start:end] = block
    return whole


@dataclass(eq=False)
class Held:
    """The calls of a module that may be parts of one, held back until it is known what they are.

    Attributes:
        seat: the place of the first call, with the tokens of the last.
        module: the module.
        entries: how often the module had been entered at the last call.
        heads: ids of the modules of which each may be one head of the layer; () if the first call has several heads or
            its module isn't an element of a list.
        given: copies of what the first module was given.
        modules: the modules that have called, in order.
        calls: number of calls.
        parts: copies of those that are recorded, or in which heads are silenced.
        deliver: passes on a call.
        read: True if a module has read something since the last call.
        along: the axis along which a module's calls lie side by side, if it is not that of the tokens.
    """

    seat: Seat
    module: nn.Module
    entries: int
    heads: tuple[int, ...] = ()
    given: list[torch.Tensor] = field(default_factory=list)
    modules: list[nn.Module] = field(default_factory=list)
    calls: int = 1
    parts: list[Ran] = field(default_factory=list)
    deliver: Callable[[Ran, list[Seat]], None] | None = None
    read: bool = False
    along: int = TOKENS

    def is_beside(self, module: nn.Module, given: list[torch.Tensor]) -> bool:
        """Return True if a module is another element of the list, and was given the same: no layer follows another."""
        if id(module) not in self.heads or module is self.module:
            return False
        if not self.entries and not self.seat.forward.progress.entered.get(id(module)):
            return True  # called around their hooks: what reads the contexts must tell
        return len(given) == len(self.given) > 0 and all(map(torch.equal, given, self.given))

    def add_head(self, module: nn.Module, sizes: Hashable) -> None:
        """Count the next call as one of a module beside the one that called first.

        Raises:
            UnsupportedError: heads of the first call's layer are silenced: it was not known then which it is.
        """
        session, forward, place, *_ = self.seat
        if not self.modules:
            place = forward.progress.replace_as_head(session.plan, self.module, place, sizes)
            self.seat = self.seat._replace(place=place, path=session.plan.list_of(self.module))
            self.modules.append(self.module)
            if self._silences or any(part.silenced for part in self.parts):
                self._refuse_silencing()
        self.modules.append(module)
        self.module, self.entries = module, forward.progress.entered.get(id(module), 0)

    def continues(self, module: nn.Module, entries: int) -> bool:
        """Return True if a call of a module is the next part: it runs in the same entry, or in a loop of its caller."""
        if module is not self.module or (entries != self.entries and self.read):
            return False
        self.calls += 1
        self.entries, self.read = entries, False
        return True

    def add(self, ran: Ran, deliver: Callable[[Ran, list[Seat]], None]) -> None:
        """Hold back a call.

        Raises:
            UnsupportedError: heads are silenced, and it matters which part this is.
        """
        if self.calls > 1 and self._silences and (ran.q.shape[1] == 1 or self._silences != {"zero"}):
            self._refuse_silencing()
        if not is_plain(ran.q):
            return  # heads are silenced in a transform of torch.func; nothing is recorded there
        ran = replace(ran.kept(), followed=self.seat.followed, rules=UNREAD, mark=None)
        self.parts.append(replace(ran, k=self._shared("k", ran.k), v=self._shared("v", ran.v)))
        self.deliver = deliver

    def _shared(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """A copy of keys or values, which calls over the same share."""
        last = getattr(self.parts[-1], name) if self.parts else None
        return last if last is not None and _same(last, x) else x.clone()

    def prove(self, x: torch.Tensor) -> None:
        """Deliver the calls as one if `x`, which a module reads, proves their places along the tokens."""
        self.read = True
        if len(self.parts) < 2 and not (self.parts and self.parts[0].q.shape[1] == 1):
            return
        if x.numel() != sum(part.returned.numel() for part in self.parts):
            return
        forward, place = self.seat.forward, self.seat.place
        known = bool(forward.sizes(self.module))
        proven = [
            (axis, parts)
            for axis, parts in self._arrangements()
            if (returned := _beside(parts, "returned", axis)) is not None
            and _is_in(returned, x)
            and (not known or forward.is_whole(self.module, len(returned), returned.shape[2]))
        ]
        if len(proven) != 1 or self.deliver is None:
            return
        [(axis, parts)] = proven
        if len(parts) > 1 and axis != TOKENS and not self.modules:
            self.along = axis
            return
        whole = parts[0] if len(parts) == 1 else joined(parts, axis)
        if whole is None:
            return
        if self._silences and whole.q.shape[1] != self.parts[0].q.shape[1]:
            self._refuse_silencing()
        forward.held = None
        self.deliver(whole, [self.seat._replace(followed=whole.followed)])
        output = x.detach().reshape(whole.context.transpose(1, 2).shape)
        forward.awaited = Awaited.of(output, place)

    def settle(self) -> None:
        """Deliver the calls if each is whole by itself; report them otherwise."""
        session, forward, *_ = self.seat
        if not self.parts or self.deliver is None:
            return
        if self.modules:
            self._report(self.seat.path, f"in {len(self.modules)} modules side by side", "heads")
            return
        alone = len(self.parts) == 1
        if not self._has_other_rows() if alone else self.along == TOKENS and self._are_whole():
            seat = self.seat
            for at, part in enumerate(self.parts):
                if at:
                    sizes = tuple(part.q.shape), tuple(part.k.shape)
                    seat = seat._replace(place=forward.progress.place(session.plan, self.module, sizes, False))
                self.deliver(part, [seat._replace(followed=part.followed)])
        else:
            if self._silences and self.parts[0].q.shape[1] == 1:
                self._refuse_silencing()
            how = f"in {self.calls} parts{WHERE[self.along]}" if self.calls > 1 else "over other rows than it was given"
            self._report(session.plan.paths[id(self.module)], how, "parts")

    def _report(self, path: str, how: str, reason: str) -> None:
        """Report the calls as attention that was not read."""
        kind, name = type(self.module).__name__, f"{self.parts[0].name} {how}"
        self.seat.forward.missed[Missed(id(self.module), path, kind, name, reason=reason)] = 1

    def _arrangements(self) -> list[tuple[int, list[Ran]]]:
        """The ways in which the calls may lie side by side: the axis, and the calls.

        Their first axis may be that of the heads.
        """
        parts = self.parts
        if self.modules:
            if sorted(id(part.module) for part in parts) != sorted(self.heads):
                return []
            return [(HEADS, sorted(parts, key=lambda part: self.heads.index(id(part.module))))]
        ways = [(axis, parts) for axis in (ROWS, HEADS, TOKENS)[: 1 if len(parts) == 1 else 3]]
        if all(part.q.shape[1] == part.k.shape[1] == 1 and part.raw.keys is None for part in parts):
            count, sizes = len(parts[0].q), self.seat.forward.sizes(self.module) if len(parts) == 1 else ()
            batches = {1, *(rows for size in sizes for rows in size if 0 < rows < count and count % rows == 0)}
            ways += [
                (ROWS, [part.unfolded(rows, heads_first=first) for part in parts])
                for rows in sorted(batches)
                for first in (False, True)[:rows]
            ]
        return ways

    @property
    def _silences(self) -> set[str]:
        """The ways in which heads of the layer are silenced."""
        ways = self.seat.session.consumer.silences(self.seat.place.stack, self.seat.place.layer)
        return {name_of(way) for way in ways.values()}

    def _refuse_silencing(self) -> NoReturn:
        if self.modules:
            raise UnsupportedError(
                f"{type(self.module).__name__} is one head of several, each a module by itself, and can't be silenced",
                where=self.seat.path,
                advice="return zeros from the head's own module: "
                "head.register_forward_hook(lambda module, args, output: torch.zeros_like(output))",
            )
        raise UnsupportedError(
            f"{type(self.module).__name__} attends in parts, so it is unknown which heads and queries a part has",
            where=self.seat.session.plan.paths[id(self.module)],
            advice="silence heads in a module that attends to all tokens at once",
        )

    def _has_other_rows(self) -> bool:
        """Return True if the only call has some rows of its module's input; or, of one head, several for each."""
        batch, heads, queries, _ = self.parts[0].context.shape
        sizes = [(size, size[0] * size[1]) for size in self.seat.forward.sizes(self.module)]
        return bool(sizes) and all(
            (batch not in size and batch * queries < count)
            or (heads == 1 and queries in size and batch * queries > count)
            for size, count in sizes
        )

    def _are_whole(self) -> bool:
        """Return True if each call has all rows and tokens, and its first axis can't be that of the heads."""
        sizes = [part.context.shape for part in self.parts]
        return all(
            self.seat.forward.is_whole(self.module, batch, queries) and (heads > 1 or batch != self.calls)
            for batch, heads, queries, _ in sizes
        )


def note_reader(forward: Forward, module: nn.Module, given: tuple[Any, ...], path: str) -> None:
    """Note what a module reads: numbers of an attention's output, or, if it may project, several side by side."""
    if forward.held is None and (forward.awaited is None or not any(map(forward.awaited.may_be_in, given))):
        return
    with operators.Unwatched(), torch.no_grad():
        if forward.held is not None and is_plain(given[0]) and may_project(module):
            forward.held.prove(given[0])
        awaited = forward.awaited
        if awaited is not None and (x := next(filter(awaited.is_in, given), None)) is not None:
            known = forward.projections.get(awaited.place, Output((), 0))
            paths = tuple(dict.fromkeys((*known.paths, path)))  # once for a layer that attends several times
            d_value = awaited.shape[-1] if awaited.is_all_of(x) else known.d_value
            forward.projections[awaited.place] = Output(paths, d_value)


def settle(forward: Forward) -> None:
    """Deliver or report the calls that are held back: no more parts of them will come."""
    held, forward.held = forward.held, None
    if held is not None:
        with operators.Unwatched(), torch.no_grad():
            held.settle()
