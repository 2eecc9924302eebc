"""From the mask that a model hands to its attention to the rule it came from, verified cell for cell.

A rule (padding, causal, window) is a few numbers where the mask is a map of all pairs. The rule is guessed from each
query's first and last key, then held against every cell of the mask, a block of queries at a time; where one cell
disagrees, the mask is kept as the dense bias that it is. Rows of padding are not compared: they are cut away.

Padding is what is masked before the first and after the last key that may be looked at. A token masked out between them
stays, as a key that is hidden: what speaks of positions (causal, windows, distances) then has the model's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from headscope.attention import Mask

BLOCK_CELLS = 1 << 20
"""Cells of a mask that are looked at together."""

NEGLIGIBLE = -1e4
"""An additive mask at or below this is a masked cell: libraries write -10000, -1e9, the least finite number, -inf."""


@dataclass(frozen=True, eq=False)
class Given:
    """A mask as it arrives at the attention.

    Attributes:
        mask: (1 or batch, 1 or heads, 1 or queries, keys): bool, True where allowed, or added to the scores.
        bias: (1 or batch, 1 or heads, 1 or queries, keys), also added: a position bias.
        keys: (batch, keys), True where a key may be looked at.
        causal, window: as in Mask.
    """

    mask: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    keys: torch.Tensor | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None

    @classmethod
    def causal_from_the_first(cls, queries: int, keys: int, bias: torch.Tensor | None = None) -> Given:
        """As PyTorch's scaled_dot_product_attention does it by `is_causal`: query i sees key j only if j <= i."""
        if queries == keys:
            return cls(causal=True, bias=bias)
        return cls(window=(None, queries - keys), bias=bias)

    def same(self, other: Given) -> bool:
        """Whether both say the same; the same objects mostly, as models hand one mask to all layers."""
        return (
            self.causal == other.causal
            and self.window == other.window
            and all(
                _equal(getattr(self, name), getattr(other, name), by_value=name != "bias")
                for name in ("mask", "bias", "keys")
            )
        )


def _equal(a: torch.Tensor | None, b: torch.Tensor | None, by_value: bool) -> bool:
    if a is None or b is None or a is b:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    if a.data_ptr() == b.data_ptr() and a.stride() == b.stride():
        return True
    return by_value and torch.equal(a, b)


@dataclass(frozen=True, eq=False)
class RowRule:
    """The rule of one row of the batch.

    Attributes:
        mask: over all positions of the batch; its bias is a torch tensor on the model's device.
        queries, keys: (queries,) and (keys,) bool, the positions that are not padding; None for all.
        unseen: (queries,) bool, queries that see no key; None where there are none.
        counted: (queries,) bool, the positions that are neither padding nor masked out; None for all.
    """

    mask: Mask
    queries: np.ndarray | None = None
    keys: np.ndarray | None = None
    unseen: np.ndarray | None = None
    counted: np.ndarray | None = None

    def cut(self, queries: np.ndarray | None, keys: np.ndarray | None) -> Mask:
        """The mask over the positions that are kept (bool over all; None for all), in NumPy."""
        mask = self.mask
        allowed = mask.keys
        if allowed is not None and keys is not None:
            allowed = allowed[keys]
        if allowed is not None and allowed.all():
            allowed = None
        bias = None
        if mask.bias is not None:
            bias = mask.bias
            for axis, kept in ((-2, queries), (-1, keys)):
                if kept is not None:
                    bias = bias.index_select(axis, torch.from_numpy(np.flatnonzero(kept)).to(bias.device))
            bias = np.ascontiguousarray(bias.float().cpu().numpy())
        return Mask(mask.causal, mask.window, allowed, bias)


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules of a batch: one for each row, or one for all."""

    rows: tuple[RowRule, ...]

    def row(self, index: int) -> RowRule:
        """The rule of one row of the batch."""
        return self.rows[index if len(self.rows) > 1 else 0]

    @property
    def shared(self) -> bool:
        """Whether all rows of the batch have the same rule."""
        return len(self.rows) == 1


class Analyst:
    """Finds rules during one forward pass, each distinct mask once."""

    def __init__(self) -> None:
        self._known: list[tuple[Given, tuple[int, int, int, slice | None], Rules]] = []

    def rules(self, given: Given, batch: int, queries: int, keys: int, tokens: slice | None) -> Rules:
        """The rules of a batch.

        Args:
            tokens: where the queries stand among the keys, so that a key of padding is a query of padding; None in
                cross-attention.
        """
        sizes = (batch, queries, keys, tokens)
        rules: Rules
        for known, its_sizes, rules in reversed(self._known):
            if its_sizes == sizes and given.same(known):
                return rules
        found: Rules = find_rules(given, batch, queries, keys, tokens)
        self._known.append((given, sizes, found))
        return found

    def forget(self) -> None:
        """Let go of the masks."""
        self._known.clear()


def find_rules(given: Given, batch: int, queries: int, keys: int, tokens: slice | None) -> Rules:
    """The rules behind a mask. See Analyst.rules."""
    parts = [part for part in (given.mask, given.bias, given.keys) if part is not None]
    shared = all(len(part) == 1 or part.stride(0) == 0 for part in parts)
    rows = []
    for index in range(1 if shared else batch):
        at = {
            name: None if part is None else part[index if len(part) > 1 else 0]
            for name, part in (("mask", given.mask), ("bias", given.bias), ("keys", given.keys))
        }
        mask = Mask(given.causal, given.window)
        allowed_keys = None if at["keys"] is None else at["keys"].bool().cpu().numpy()
        if at["mask"] is not None:
            found = _rule(at["mask"][..., :keys], queries, keys, tokens)
            mask = replace(found, causal=found.causal or given.causal, window=found.window or given.window)
            if found.keys is not None:
                allowed_keys = found.keys if allowed_keys is None else allowed_keys & found.keys
        if at["bias"] is not None:
            bias = at["bias"][..., :keys].float()
            if bool((bias != 0).any()):
                bias = bias.expand(-1, queries, -1)
                mask = replace(mask, bias=bias if mask.bias is None else bias + mask.bias)
        rows.append(_row(replace(mask, keys=allowed_keys), queries, keys, tokens))
    return Rules(tuple(rows))


def _row(mask: Mask, queries: int, keys: int, tokens: slice | None) -> RowRule:
    allowed = mask.keys
    if allowed is not None and allowed.all():
        mask, allowed = replace(mask, keys=None), None
    if allowed is not None and not allowed.any():
        return RowRule(mask, unseen=np.ones(queries, dtype=bool))
    kept = None if allowed is None else span(allowed)
    counted, kept_queries = (
        None if flags is None or tokens is None else _some(flags[tokens]) for flags in (allowed, kept)
    )
    return RowRule(mask, kept_queries, _some(kept), _unseen(mask, queries, keys), counted)


def span(flags: np.ndarray) -> np.ndarray:
    """True from the first True to the last."""
    found = np.zeros_like(flags)
    places = np.flatnonzero(flags)
    if len(places):
        found[places[0] : places[-1] + 1] = True
    return found


def _some(flags: np.ndarray | None) -> np.ndarray | None:
    """Flags that leave something out and keep something; else None."""
    return None if flags is None or flags.all() or not flags.any() else flags


def _unseen(mask: Mask, queries: int, keys: int) -> np.ndarray | None:
    """Which queries see no key."""
    if mask.everything or (mask.causal and queries <= keys and mask.window is None and mask.keys is None):
        found = None
    elif mask.causal or mask.window is not None:
        found = np.concatenate(
            [~mask.allowed(rows, np.arange(keys), (queries, keys)).any(-1) for rows in _row_blocks(queries, keys)]  # type: ignore[union-attr]
        )
    else:
        found = None
    if mask.bias is not None:
        by_bias = (mask.bias == float("-inf")).all(-1).all(0).cpu().numpy()
        found = by_bias if found is None else found | by_bias
    return found if found is not None and found.any() else None


def _row_blocks(queries: int, keys: int) -> Iterator[np.ndarray]:
    step = max(1, BLOCK_CELLS // max(1, keys))
    for start in range(0, queries, step):
        yield np.arange(start, min(start + step, queries))


def _allowed(block: torch.Tensor) -> torch.Tensor:
    return block if block.dtype == torch.bool else block > NEGLIGIBLE


def _rule(mask: torch.Tensor, queries: int, keys: int, tokens: slice | None) -> Mask:
    """The rule of one row of the batch, or its mask as a dense bias.

    Args:
        mask: (1 or heads, 1 or queries, keys).
    """
    per_query = mask.shape[-2] > 1 and mask.stride(-2) != 0
    if not per_query:
        mask = mask[:, :1]
    blocks = list(_row_blocks(mask.shape[-2], keys * len(mask)))
    if len(mask) > 1 and (mask.stride(0) == 0 or all(bool((mask[1:, r] == mask[:1, r]).all()) for r in blocks)):
        mask = mask[:1]
    if mask.dtype != torch.bool and any(
        bool(((mask[:, rows] != 0) & (mask[:, rows] > NEGLIGIBLE)).any()) for rows in blocks
    ):
        return _dense_rule(mask, queries)
    if len(mask) > 1:
        return _dense_rule(mask, queries)
    one = mask[0]
    if not per_query:
        return Mask(keys=_allowed(one[0]).cpu().numpy())
    found = _guess(one, queries, keys, tokens)
    return found if found is not None else _dense_rule(mask, queries)


def _dense_rule(mask: torch.Tensor, queries: int) -> Mask:
    """A mask as the bias that it is, (1 or heads, queries, keys) in fp32, -inf where masked; keys that nobody sees."""
    if mask.dtype == torch.bool:
        bias = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, float("-inf"))
    else:
        bias = mask.float().masked_fill(mask <= NEGLIGIBLE, float("-inf"))
    hidden = (bias == float("-inf")).flatten(0, 1).all(0)
    keys = (~hidden).cpu().numpy() if bool(hidden.any()) else None
    return Mask(keys=keys, bias=bias.expand(-1, queries, -1))


def _guess(mask: torch.Tensor, queries: int, keys: int, tokens: slice | None) -> Mask | None:
    """The rule of a mask (queries, keys), or None where none gives the mask cell for cell."""
    seen = torch.zeros(keys, dtype=torch.bool, device=mask.device)
    firsts, lasts, anys = [], [], []
    for rows in _row_blocks(queries, keys):
        block = _allowed(mask[rows[0] : rows[-1] + 1])
        seen |= block.any(0)
        anys.append(block.any(1))
        firsts.append(block.byte().argmax(1))
        lasts.append(keys - 1 - block.flip(1).byte().argmax(1))
    real = seen.cpu().numpy()
    first, last = torch.cat(firsts).cpu().numpy(), torch.cat(lasts).cpu().numpy()
    compared = torch.cat(anys).cpu().numpy()
    kept = np.ones(queries, dtype=bool) if tokens is None else span(real)[tokens]
    compared = compared & kept
    if not compared.any():
        return Mask(keys=real) if not real.any() else None
    place = np.arange(queries) + keys - queries
    lowest, highest = int(np.flatnonzero(real)[0]), int(np.flatnonzero(real)[-1])
    right = int((last - place)[compared].max())
    left = int((place - first)[compared].max())
    causal = right <= 0
    bounded_left = bool((compared & (place - lowest > left)).any())
    bounded_right = not causal and bool((compared & (highest - place > right)).any())
    window = (left if bounded_left else None, right if bounded_right else None)
    rule = Mask(
        causal=causal and queries > 1,
        window=window if window != (None, None) else None,
        keys=None if real.all() else real,
    )
    columns = np.arange(keys)
    for rows in _row_blocks(queries, keys):
        rows = rows[kept[rows]]
        if not len(rows):
            continue
        theirs = _allowed(mask[torch.from_numpy(rows).to(mask.device)]).cpu().numpy()
        ours = rule.allowed(rows, columns, (queries, keys))
        if not (theirs.all() if ours is None else np.array_equal(ours, theirs)):
            return None
    return rule
