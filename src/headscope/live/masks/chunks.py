"""The mask of several calls that are one attention: over chunks of its queries, or one for each of its heads.

All their masks together are a map of all pairs, which nobody holds: its cells are read from the masks of the calls,
and those are kept in memory that is linear in the tokens where that is possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import torch

from headscope.attention.scores import Mask
from headscope.live.keeping.contents import once
from headscope.live.masks.analyst import RawMask
from headscope.live.masks.cells import Cells

Part = tuple[RawMask, tuple[int, ...]]
"""The mask of a call, and its sizes: (batch, heads, queries, keys)."""


def joined_masks(parts: Sequence[Part], axes: Sequence[int], keys: int, like: torch.Tensor) -> RawMask:
    """The mask of several calls: the one that they have in common, or one whose cells are read from theirs.

    Args:
        parts: their masks, in order.
        axes: the axes of the map along which they lie side by side: heads, queries, or queries and keys.
        keys: number of keys of all calls together.
        like: queries of a call, in the precision in which masks are added.
    """
    first, sizes = parts[0]
    plain = all(x is None for raw, _ in parts for x in (raw.mask, raw.bias, raw.keys, raw.deferred))
    moves = 2 in axes and (first.causal or first.window is not None or 3 in axes)
    settings = {(whole[3], raw.causal, raw.window) for raw, whole in parts}
    if plain and not moves and settings == {(keys, first.causal, first.window)}:
        return first
    read = [(raw.read(), whole) for raw, whole in parts]
    maps = [x for raw, _ in read for x in (raw.mask, raw.bias) if x is not None]
    numbers = [x.dtype for x in maps if x.dtype != torch.bool]
    double = [torch.float64] if like.dtype == torch.float64 else []
    dtype = reduce(torch.promote_types, numbers + double) if numbers else torch.bool
    of_keys = [len(raw.keys) for raw, _ in read if raw.keys is not None]
    shape = [max([1, *of_keys, *map(len, maps)]), max([1, *(x.shape[1] for x in maps)]), sizes[2], keys]
    shape[axes[0]] = sum(whole[axes[0]] for _, whole in read)
    return RawMask(mask=Cells(partial(_joined_cells, read, axes, dtype), tuple(shape), dtype, like.device, made=True))


def _joined_cells(parts: Sequence[Part], axes: Sequence[int], dtype: torch.dtype, *index: torch.Tensor) -> torch.Tensor:
    """Cells of the mask of several calls, which lie side by side along some axes: at these places along each axis."""
    fill = False if dtype == torch.bool else -torch.inf
    whole = torch.full([len(places) for places in index], fill, dtype=dtype, device=index[0].device)
    low, high, end = int(index[axes[0]].min()), int(index[axes[0]].max()), 0
    for raw, sizes in parts:
        first, end = end, end + sizes[axes[0]]
        if end <= low or first > high:
            continue
        at, to = list(index), [torch.arange(len(places), device=places.device) for places in index]
        for axis in axes:
            to[axis] = ((index[axis] >= first) & (index[axis] < end)).nonzero()[:, 0]
            at[axis] = index[axis][to[axis]] - first
        cells = _cells(raw, sizes, at)
        if cells.dtype == torch.bool != dtype:
            cells = torch.where(cells, 0.0, -torch.inf)  # as numbers to add
        whole[_grid(to)] = cells.to(dtype)
    return whole


def _cells(raw: RawMask, sizes: Sequence[int], index: Sequence[torch.Tensor]) -> torch.Tensor:
    """The mask of a call at some of its rows, heads, queries and keys: as numbers if it adds any, otherwise bool."""
    rows, columns = index[2:]
    allowed = (columns < sizes[3]).expand(1, 1, len(rows), -1)
    rule = Mask(raw.causal, raw.window).allowed(rows.cpu().numpy(), columns.cpu().numpy(), (sizes[2], sizes[3]))
    if rule is not None:
        allowed = allowed & torch.from_numpy(rule).to(allowed.device)
    if raw.keys is not None:
        allowed = allowed & _at(raw.keys[:, None, None], index).bool()
    total: torch.Tensor | None = None
    for x in (raw.mask, raw.bias):
        if x is None:
            continue
        cells = _at(x, index)
        if cells.dtype == torch.bool:
            allowed = allowed & cells
        else:
            total = cells if total is None else total + cells
    return allowed if total is None else total.masked_fill(~allowed, -torch.inf)


def _at(x: torch.Tensor | Cells, index: Sequence[torch.Tensor]) -> torch.Tensor:
    """Cells of a map, of which an axis of size 1 has one; 0 for keys that it doesn't have."""
    at = [places if size > 1 else places[:1] * 0 for places, size in zip(index[:3], x.shape, strict=False)]
    at.append(index[3].clamp(max=x.shape[3] - 1))
    cells = x.compute(*at) if isinstance(x, Cells) else x[_grid(at)]
    return cells.masked_fill(index[3] >= x.shape[3], 0)


def _grid(index: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Indices along each axis as indices of all cells where they meet."""
    return tuple(places.view([-1 if side == axis else 1 for side in range(4)]) for axis, places in enumerate(index))


def copied(x: Any) -> Any:
    """A copy of a tensor; numbers that `expand` repeats are copied once."""
    return once(x.detach()).clone().expand(x.shape) if isinstance(x, torch.Tensor) else x


def compact(x: Any, queries: int) -> Any:
    """A copy of a mask; in memory linear in its tokens if it has two numbers, one of them in a range of keys per query.

    Keys that no query sees may lie in the range. Calls over chunks of queries get the parts of a map one after another:
    nobody ever holds all of it.
    """
    if not isinstance(x, torch.Tensor) or not x.numel() or (whole := once(x.detach())).shape[2] != queries:
        return copied(x)
    low, high = (False, True) if whole.dtype == torch.bool else (whole.amin(), whole.amax())
    allowed, keys = whole == high, whole.shape[3]
    if not bool((allowed | (whole == low)).all()):
        return copied(x)
    columns, of_any = torch.arange(keys, device=x.device), allowed.any(-1)
    first = allowed.byte().argmax(-1)
    last = torch.where(of_any, keys - 1 - allowed.flip(-1).byte().argmax(-1), -1)
    ranges = (columns >= first[..., None]) & (columns <= last[..., None])
    seen = None if torch.equal(ranges, allowed) else allowed.any(2, keepdim=True)
    if seen is not None and not torch.equal(ranges & seen, allowed):
        return copied(x)
    values = torch.tensor([low, high], dtype=x.dtype, device=x.device)

    def compute(*index: torch.Tensor) -> torch.Tensor:
        some = [_at(side[..., None], [*index[:3], index[3][:1] * 0]) for side in (first, last)]
        cells = (index[3] >= some[0]) & (index[3] <= some[1])
        return values[(cells if seen is None else cells & _at(seen, index)).long()]

    return Cells(compute, (len(whole), whole.shape[1], queries, keys), x.dtype, x.device, made=True)
