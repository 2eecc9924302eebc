"""The masks and score_mods of flex attention, read as masks and score terms.

A block mask is a function of a place, mask_mod, and lists of the blocks of the map that hold allowed cells. Compiled
kernels visit the listed blocks only; PyTorch's uncompiled form asks mask_mod alone. Both must agree, which is checked
for every cell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from headscope.errors import UnsupportedError
from headscope.live.masks import score_mods
from headscope.live.masks.analyst import Deferred, RawMask
from headscope.live.masks.cells import BatchCells, Compute
from headscope.live.masks.levels import NEGLIGIBLE
from headscope.live.masks.score_mods import Place, Scoring

LIBRARY = "torch.nn.attention.flex_attention"
"""The module of PyTorch in which flex attention lives."""


@dataclass(frozen=True, eq=False)
class Flexed:
    """The mask of one call of flex attention, and what its score_mod adds.

    Attributes:
        mask_mod: (row of the batch, head, query, key) -> True where allowed; None if all cells are.
        blocks: for each block of queries, number and indices of its partial blocks of keys, and of its full ones.
        block_size: (queries, keys) of a block.
        scoring: what the score_mod does.
        source: the objects that all of this was made from.
    """

    mask_mod: Place | None
    blocks: tuple[torch.Tensor | None, ...]
    block_size: tuple[int, int]
    scoring: Scoring = field(default_factory=Scoring)
    source: tuple[Any, ...] = ()

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
        plain = score_mod is library._identity
        scoring = Scoring() if plain else score_mods.read(score_mod, score_buffers, args[0].device, where)
        return cls._of(mask, mask_buffers, scoring, (score_mod, *score_buffers))

    @classmethod
    def _of(
        cls, mask: tuple[Any, ...], buffers: tuple[Any, ...] = (), scoring: Scoring | None = None, source: Any = ()
    ) -> Flexed:
        *_, query_block, key_block, mask_mod = mask
        blocks = mask[2:6]
        plain = mask_mod is sys.modules[LIBRARY].noop_mask
        function = (lambda *place: mask_mod(*place, *buffers)) if buffers else mask_mod
        return cls(
            None if plain else function,
            blocks,
            (query_block, key_block),
            scoring or Scoring(),
            (mask_mod, *buffers, *blocks, *source),
        )

    def raw(self, sizes: tuple[int, int, int, int], device: torch.device, where: str) -> RawMask:
        """The mask and the bias over a map, to be read once for all layers that share them. See `read`."""
        return RawMask(deferred=Deferred(self.source, sizes, lambda: self.read(sizes, device, where)))

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
        conditions = [*([] if self.mask_mod is None else [self.mask_mod]), *self.scoring.allowed]
        bias = self.scoring.bias
        mask = _cells(_every(conditions), sizes, device) if conditions else None
        if bias is None:
            return RawMask(mask=mask)
        added = _cells(bias, sizes, device)
        if all(bool((block > NEGLIGIBLE).all()) for cells in added.rows() for _, block in cells.blocks()):
            return RawMask(mask=mask, bias=added)
        return RawMask(mask=_cells(_masked(bias, conditions), sizes, device))

    def _check_blocks(self, sizes: tuple[int, int, int, int], device: torch.device, where: str) -> None:
        """Compare the blocks that kernels visit with the function that decides about cells."""
        count, indices, full_count, full_indices = self.blocks
        partial = _block_map(count, indices, sizes[3], self.block_size[1])
        full = _block_map(full_count, full_indices, sizes[3], self.block_size[1])
        if partial is None:
            return
        whole = torch.zeros_like(partial) if full is None else full
        lists = torch.stack([partial | whole, whole], 1)
        lists = lists[:1] if bool((lists == lists[:1]).all()) else lists
        if self.mask_mod is None and bool(lists[:, 0].all()):
            return
        allowed = _cells(self.mask_mod or _anything, sizes, device)
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


def _anything(*place: torch.Tensor) -> torch.Tensor:
    return torch.ones((), dtype=torch.bool, device=place[0].device)


def _every(conditions: list[Place]) -> Place:
    def allowed(*place: torch.Tensor) -> torch.Tensor:
        first, *others = (condition(*place) for condition in conditions)
        for other in others:
            first = first & other
        return first

    return allowed


def _masked(bias: Place, conditions: list[Place]) -> Place:
    def numbers(*place: torch.Tensor) -> torch.Tensor:
        cell = bias(*place)
        return torch.where(_every(conditions)(*place), cell, float("-inf")) if conditions else cell

    return numbers


def _cells(function: Place, sizes: tuple[int, int, int, int], device: torch.device) -> BatchCells:
    """The cells of a function of one place, computed for many places at once."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    mapped: Callable[..., torch.Tensor] = function
    for axis in reversed(range(4)):
        mapped = torch.vmap(mapped, in_dims=tuple(0 if at == axis else None for at in range(4)))

    def compute(*axes: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), TransformGetItemToIndex():
            return mapped(*axes)

    computed: Compute = compute
    return BatchCells.of(computed, sizes, device)


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
