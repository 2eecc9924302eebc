"""The masks and score_mods of flex attention, read as masks and score terms.

A block mask is a function of a place, mask_mod, and lists of the blocks of the map that hold allowed cells. Compiled
kernels visit the listed blocks only; PyTorch's uncompiled form asks mask_mod alone. Both must agree, which is checked
for every cell.

A score_mod is read by its values at a few scores: it must be

    c tanh((factor * score + bias[b, h, i, j]) / c),    -inf where a mask says so

with or without the soft cap c, and score terms express it. Anything else raises an error. Some places and scores are
tried, so the contexts of every query are compared afterwards.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch

from headscope.errors import UnsupportedError, first_line
from headscope.live.genuine import from_library
from headscope.live.masks.analyst import RawMask
from headscope.live.masks.cells import Cells
from headscope.live.masks.guess import NEGLIGIBLE

ADVICE = (
    "capture reads score_mods that multiply a score by a constant, add numbers that depend on the place, apply one "
    "soft cap c * tanh(score / c) after that, and mask with -inf: write it with these operators, or attend without "
    'flex_attention (in transformers: model.set_attn_implementation("sdpa"))'
)

CellFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of one place: row of the batch, head, query, key, each a tensor without axes."""

Scoring = tuple[float, "float | None", "CellFunction | None"]
"""The reading of a score_mod, as the last attributes of `Flexed` say it."""

SCORES = (0.37, -2.6, 11.3)
"""Scores at which a reading is compared with the score_mod, beside powers of 2 and HUGE."""

HUGE = 2.0**40
"""A score beside which numbers that are added don't count, and that reaches every soft cap."""

NEARLY_ONE = 1 - 1e-15
MOST_TRIED = 4
"""Maximum number of rows, heads, queries and keys that are tried, spread evenly."""


def read_score_mod(
    score_mod: Callable[..., torch.Tensor],
    buffers: tuple[Any, ...],
    sizes: tuple[int, int, int, int],
    device: torch.device,
    where: str,
) -> Scoring:
    """Read a score_mod.

    Args:
        score_mod: the function of (score, row of the batch, head, query, key, *buffers).
        buffers: tensors that a graph passes to it.
        sizes: (batch, heads, queries, keys).
        device: where it runs.
        where: the module's name, for errors.

    Raises:
        UnsupportedError: it does something else than score terms express.
    """

    def scored(*given: torch.Tensor) -> torch.Tensor:
        return score_mod(*given, *buffers)

    places = [torch.linspace(0, size - 1, min(size, MOST_TRIED), device=device).long() for size in sizes]
    try:
        steps = 2.0 ** torch.arange(10, -20, -1, dtype=torch.float64, device=device)
        scores = torch.tensor([0.0, HUGE, -HUGE, 2 * HUGE, *SCORES], dtype=steps.dtype, device=device)
        scores = torch.cat([scores, steps, -steps])
        values = _over_all(scored, 5)(scores, *places).double()
    except (RuntimeError, TypeError) as error:
        raise _unread(f"it can't be computed for many places at once ({first_line(error)})", where) from error
    seen = values[0] > float("-inf")
    factor, cap = _constants(values, seen, steps) if bool(seen.any()) else (1.0, None)
    truly = _truly(scores, values, factor, cap)
    if factor == 0 or not bool(truly.all()):
        score = float(scores[int(truly.byte().argmin())])
        raise _unread(f"it differs from all of them at a score of {score:g}", where)
    return factor, cap, partial(scored, scores[0])


def _unread(reason: str, where: str) -> UnsupportedError:
    message = f"a score_mod of flex attention is not a sum of score terms: {reason}"
    return UnsupportedError(message, where=where, advice=ADVICE)


def _truly(scores: torch.Tensor, values: torch.Tensor, factor: float, cap: float | None) -> torch.Tensor:
    """For each score: whether all values are those of this factor, this cap, and what is seen and added at 0."""
    seen, given = values > float("-inf"), factor * scores.view(-1, 1, 1, 1, 1)
    expected = given + _inside(values[0], cap)
    expected = expected if cap is None else cap * torch.tanh(expected / cap)
    close = (values - expected).abs() <= 1e-5 * (1 + values.abs() + given.abs())
    return ((seen == seen[0]) & (close | ~seen)).flatten(1).all(1)


def _constants(values: torch.Tensor, seen: torch.Tensor, steps: torch.Tensor) -> tuple[float, float | None]:
    """The factor and the soft cap behind values at 0, HUGE, -HUGE, 2 HUGE, SCORES, some steps up, and as many down."""
    _, high, low, higher = values[:4]
    half = float((high - low)[seen].mean() / 2)
    if half == 0 or not torch.equal(high, higher):
        return half / HUGE, None
    up, down = values[-2 * len(steps) :].chunk(2)
    small = seen & (torch.maximum(up.abs(), down.abs()) < 0.9 * abs(half))
    at = int(small.flatten(1).any(1).byte().argmax())  # the largest step that stays below the cap somewhere
    rise = (_inside(up[at], abs(half)) - _inside(down[at], abs(half)))[small[at]].mean()
    return float(rise / (2 * steps[at])), abs(half)


def _inside(scores: torch.Tensor, cap: float | None) -> torch.Tensor:
    """The numbers that a soft cap is applied to, if these are the results."""
    return scores if cap is None else cap * torch.atanh((scores / cap).clamp(-NEARLY_ONE, NEARLY_ONE))


LIBRARY = "torch.nn.attention.flex_attention"
"""The module of PyTorch in which flex attention lives."""


@dataclass(frozen=True, eq=False)
class Flexed:
    """The mask of one call of flex attention, and what its score_mod does after scale * q . k.

    Attributes:
        mask_mod: (row of the batch, head, query, key) -> True where allowed; None if all cells are.
        blocks: for each block of queries, number and indices of its partial blocks of keys, and of its full ones.
        block_size: (queries, keys) of a block.
        source: the objects that all of this was made from.
        factor: multiplies the score.
        cap: the soft cap of that with the bias, if there is one.
        at_zero: the score_mod at a score of 0; None if there is none.
    """

    mask_mod: CellFunction | None
    blocks: tuple[torch.Tensor | None, ...]
    block_size: tuple[int, int]
    source: tuple[Any, ...] = ()
    factor: float = 1.0
    cap: float | None = None
    at_zero: CellFunction | None = None

    @classmethod
    def of(cls, mask: Any) -> Flexed | None:
        """Read a mask that a model passes to an attention function; None if it isn't a block mask."""
        if isinstance(mask, cls):
            return mask
        library = sys.modules.get(LIBRARY)
        if library is None or not isinstance(mask, library.BlockMask):
            return None
        return cls._of(mask.as_tuple())

    @classmethod
    def of_operator(cls, args: tuple[Any, ...], where: str) -> Flexed:
        """Read the arguments of the operator flex_attention.

        Args:
            args: query, key, value, score_mod, block mask, scale, options, and tensors for both functions.
            where: the module's name, for errors.
        """
        score_mod, mask = args[3], args[4]
        score_buffers, mask_buffers = (tuple(args[at]) if len(args) > at else () for at in (7, 8))
        library = sys.modules[LIBRARY]
        plain, sizes = score_mod is library._identity, (*args[0].shape[:3], args[1].shape[2])
        scoring = () if plain else read_score_mod(score_mod, score_buffers, sizes, args[0].device, where)
        return cls._of(mask, mask_buffers, scoring, (score_mod, *score_buffers))

    @classmethod
    def _of(
        cls, mask: tuple[Any, ...], buffers: tuple[Any, ...] = (), scoring: Scoring | tuple[()] = (), source: Any = ()
    ) -> Flexed:
        *_, query_block, key_block, mask_mod = mask
        blocks = mask[2:6]
        plain = mask_mod is sys.modules[LIBRARY].noop_mask
        function = (lambda *place: mask_mod(*place, *buffers)) if buffers else mask_mod
        made_from = (mask_mod, *buffers, *blocks, *source)
        return cls(None if plain else function, blocks, (query_block, key_block), made_from, *scoring)

    def allowed(self, *place: torch.Tensor) -> torch.Tensor:
        """True for a cell that the score_mod doesn't mask."""
        assert self.at_zero is not None
        return self.at_zero(*place) > float("-inf")

    def bias(self, *place: torch.Tensor) -> torch.Tensor:
        """The number that is added to the score times the factor; 0 where it is masked."""
        assert self.at_zero is not None
        score = self.at_zero(*place)
        return torch.where(score > float("-inf"), _inside(score, self.cap), 0.0).float()

    def is_fixed(self) -> bool:
        """Return True if its functions are a library's: others may look at what changes between two layers."""
        return self.at_zero is None and (self.mask_mod is None or from_library(self.source[0]))

    def raw(self, sizes: tuple[int, int, int, int], device: torch.device, where: str) -> RawMask:
        """The mask and the bias over a map, to be read once for all layers that share them. See `read`."""
        return RawMask(deferred=lambda: self.read(sizes, device, where), source=(self.source, sizes))

    def read(self, sizes: tuple[int, int, int, int], device: torch.device, where: str) -> RawMask:
        """The mask and the bias over a map, as functions of their cells.

        Args:
            sizes: (batch, heads, queries, keys).
            device: of the call.
            where: the module's name, for errors.

        Raises:
            UnsupportedError: the mask's function and its blocks contradict each other.
        """
        self._check_blocks(sizes, device, where)
        reads = self.at_zero is not None
        conditions = [*([] if self.mask_mod is None else [self.mask_mod]), *([self.allowed] if reads else [])]
        mask = _cells(_every(conditions), sizes, device) if conditions else None
        if not reads:
            return RawMask(mask=mask)
        added = _cells(self.bias, sizes, device)
        if all(bool((block > NEGLIGIBLE).all()) for _, block in added.blocks()):
            return RawMask(mask=mask, bias=added)

        def numbers(*place: torch.Tensor) -> torch.Tensor:
            return torch.where(_every(conditions)(*place), self.bias(*place), float("-inf"))

        return RawMask(mask=_cells(numbers, sizes, device))

    def _check_blocks(self, sizes: tuple[int, int, int, int], device: torch.device, where: str) -> None:
        """Compare the blocks that kernels visit with the function that decides about cells."""
        count, indices, full_count, full_indices = self.blocks
        partly = _block_map(count, indices, sizes[3], self.block_size[1])
        full = _block_map(full_count, full_indices, sizes[3], self.block_size[1])
        if partly is None:
            return
        whole = torch.zeros_like(partly) if full is None else full
        lists = torch.stack([partly | whole, whole], 1)
        lists = lists[:1] if bool((lists == lists[:1]).all()) else lists
        if self.mask_mod is None and bool(lists[:, 0].all()):
            return
        allowed = _cells(self.mask_mod or sys.modules[LIBRARY].noop_mask, sizes, device)
        for row in range(max(len(lists), len(allowed))):
            listed = lists[row if len(lists) > 1 else 0]
            for rows, block in allowed[row if len(allowed) > 1 else 0].blocks():
                visited, unmasked = (_spread(blocks, rows, sizes[3], self.block_size) for blocks in listed)
                if bool((block & ~visited).any()) or bool((~block & unmasked).any()):
                    raise UnsupportedError(
                        f"a block mask contradicts itself: its mask_mod and its list of blocks of {self.block_size[0]} "
                        f"queries and {self.block_size[1]} keys allow different cells among queries {rows.start} to "
                        f"{rows.stop - 1}, so compiled and uncompiled flex attention differ",
                        where=where,
                        advice="make both from one function: create_block_mask(mask_mod, …)",
                    )


def _every(conditions: list[CellFunction]) -> CellFunction:
    return lambda *place: reduce(operator.and_, (condition(*place) for condition in conditions))


def _cells(function: CellFunction, sizes: tuple[int, int, int, int], device: torch.device) -> Cells:
    """The cells of a function of one place, computed for many places at once.

    The memory layout of the first cell tells on which rows and heads they depend: torch.vmap expands those that a
    function ignores.
    """
    compute = _over_all(function, 4)
    batch, heads = (torch.arange(size, device=device) for size in sizes[:2])
    first = torch.zeros(1, dtype=torch.int64, device=device)
    cell = compute(batch, heads, first, first)
    shape = (*(1 if cell.stride(axis) == 0 else sizes[axis] for axis in (0, 1)), *sizes[2:])
    return Cells(compute, shape, cell.dtype, device)


def _over_all(function: Callable[..., torch.Tensor], axes: int) -> Callable[..., torch.Tensor]:
    """A function of numbers, computed for all of several of each: an axis of the result for each argument."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    mapped = function
    for axis in reversed(range(axes)):
        mapped = torch.vmap(mapped, in_dims=tuple(0 if at == axis else None for at in range(axes)))

    def compute(*given: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), TransformGetItemToIndex():
            return mapped(*given)

    return compute


def _block_map(count: torch.Tensor | None, indices: torch.Tensor | None, keys: int, size: int) -> torch.Tensor | None:
    """(1 or batch, 1 or heads, blocks of queries, blocks of keys): True for the blocks in a list."""
    if count is None or indices is None:
        return None
    columns = -(-keys // size)
    listed = torch.arange(indices.shape[-1], device=indices.device) < count[..., None]
    places = torch.where(listed, indices.long(), columns)
    blocks = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool, device=indices.device)
    return blocks.scatter_(-1, places, True)[..., :columns]


def _spread(blocks: torch.Tensor, rows: slice, keys: int, size: tuple[int, int]) -> torch.Tensor:
    """(1 or heads, n, keys): each cell of these rows as its block is."""
    lines = torch.arange(rows.start, rows.stop, device=blocks.device) // size[0]
    columns = torch.arange(keys, device=blocks.device) // size[1]
    return blocks[:, lines][:, :, columns]
