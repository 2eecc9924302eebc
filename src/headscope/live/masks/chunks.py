"""The mask of several calls that are one attention: over chunks of its queries, one for each of its heads, or one for
each pass that continued a text.

All their masks together are a map of all pairs, which nobody holds: its cells are read from the masks of the calls,
and those are kept in memory that is linear in the tokens where that is possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate
from typing import Any

import torch

from headscope.attention.scores import Mask
from headscope.attention.terms import NO_TERMS, Terms
from headscope.live.keeping.contents import once
from headscope.live.masks.analyst import RawMask
from headscope.live.masks.cells import Cells


@dataclass(frozen=True, eq=False)
class Part:
    """The mask of one of several calls, and the terms that a pass that continued a text adds.

    Attributes:
        raw: the mask.
        sizes: those of the call, (batch, heads, queries, keys).
        places: axis -> where its heads, queries or keys are among those of all calls.
        terms: the terms over its queries and keys.
    """

    raw: RawMask
    sizes: tuple[int, ...]
    places: Mapping[int, range]
    terms: Terms = NO_TERMS


def joined_masks(calls: Sequence[tuple[RawMask, tuple[int, ...]]], axes: Sequence[int], like: torch.Tensor) -> RawMask:
    """The mask of several calls: the one that they have in common, or one whose cells are read from theirs.

    Args:
        calls: their masks and sizes, in order.
        axes: the axes of the map along which they lie side by side: heads, queries, or queries and keys.
        like: queries of a call, in the precision in which masks are added.
    """
    first, sizes = calls[0]
    stops = [*accumulate(whole[axes[0]] for _, whole in calls)]
    shape = [stops[-1] if axis in axes else size for axis, size in enumerate(sizes)]
    plain = all(x is None for raw, _ in calls for x in (raw.mask, raw.bias, raw.keys, raw.deferred))
    moves = 2 in axes and (first.causal or first.window is not None or 3 in axes)
    settings = {(whole[3], raw.causal, raw.window) for raw, whole in calls}
    if plain and not moves and settings == {(shape[3], first.causal, first.window)}:
        return first
    parts = [
        Part(raw.read(), whole, dict.fromkeys(axes, range(stop - whole[axes[0]], stop)))
        for (raw, whole), stop in zip(calls, stops, strict=True)
    ]
    return RawMask(mask=map_of(parts, shape[2], shape[3], like))


def map_of(parts: Sequence[Part], queries: int, keys: int, like: torch.Tensor) -> Cells:
    """The map of several calls' masks, (1 or batch, 1 or heads, queries, keys), masked where none of them has a cell.

    Args:
        parts: the masks, which are not deferred.
        queries, keys: their numbers in all calls together.
        like: queries of a call, in the precision in which masks are added.
    """
    maps = [x for part in parts for x in (part.raw.mask, part.raw.bias) if x is not None]
    numbers = [x.dtype for x in maps if x.dtype != torch.bool]
    double = [torch.float64] if like.dtype == torch.float64 else []
    dtype = reduce(torch.promote_types, numbers + double) if numbers else torch.bool
    rows = [len(part.raw.keys) for part in parts if part.raw.keys is not None]
    heads = [part.places[1].stop for part in parts if 1 in part.places]
    shape = max([1, *rows, *map(len, maps)]), max([1, *heads, *(x.shape[1] for x in maps)]), queries, keys
    return Cells(partial(_joined_cells, parts, dtype), shape, dtype, like.device, made=True)


def _joined_cells(parts: Sequence[Part], dtype: torch.dtype, *index: torch.Tensor) -> torch.Tensor:
    """Cells of the mask of several calls: at these places along each axis."""
    fill = False if dtype == torch.bool else -torch.inf
    whole = torch.full([len(places) for places in index], fill, dtype=dtype, device=index[0].device)
    everywhere = [torch.arange(len(places), device=places.device) for places in index]
    ends = {axis: (int(index[axis].min()), int(index[axis].max())) for axis in parts[0].places}
    for part in parts:
        if any(ends[axis][1] < place.start or place.stop <= ends[axis][0] for axis, place in part.places.items()):
            continue
        at, to = list(index), list(everywhere)
        for axis, place in part.places.items():
            to[axis] = ((index[axis] >= place.start) & (index[axis] < place.stop)).nonzero()[:, 0]
            at[axis] = index[axis][to[axis]] - place.start
        cells = _cells(part.raw, part.sizes, at)
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
