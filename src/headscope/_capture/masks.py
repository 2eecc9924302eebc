"""From the mask that a model hands to its attention to the rule it came from, verified cell for cell.

A rule (padding, causal, window) is a few numbers where the mask is a map of all pairs. The rule is guessed from each
query's first and last key, then held against every cell of the mask, a block of queries at a time; where one cell
disagrees, the mask is kept as the dense bias that it is. Rows of padding are not compared: they are cut away.
headscope._capture.levels says which cells are masked and which rows are padding.

Padding is what is masked before the first and after the last key that may be looked at. A token masked out between them
stays, as a key that is hidden: what speaks of positions (causal, windows, distances) then has the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from headscope._capture.levels import BLOCK_CELLS, NEGLIGIBLE, UNDERFLOW, Levels
from headscope.attention import Mask


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
    """The rules of a batch: one for each row, or one for all.

    Attributes:
        rows: the rules.
        relied: how far apart the scores of a row may be, that finite numbers of the mask count as -inf.
    """

    rows: tuple[RowRule, ...]
    relied: float = float("inf")

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
        self._known: list[tuple[Given, tuple[int, int, int, slice | None, bool], Rules]] = []

    def rules(
        self,
        given: Given,
        batch: int,
        queries: int,
        keys: int,
        tokens: slice | None,
        *,
        reach: Callable[[], float] | None = None,
        where: str = "mask",
    ) -> Rules:
        """The rules of a batch.

        Args:
            tokens: where the queries stand among the keys, so that a key of padding is a query of padding; None in
                cross-attention.
            reach: gives a bound of all scores. Where finite numbers of the mask may not be masked beside such scores,
                they are kept as what they are.
            where: the module, for errors.

        Raises:
            UnsupportedError: the mask holds NaN or infinity.
        """
        found = self._rules(given, (batch, queries, keys, tokens, False), where)
        if reach is not None and found.relied < float("inf") and not 2 * reach() + UNDERFLOW <= found.relied:
            return self._rules(given, (batch, queries, keys, tokens, True), where)
        return found

    def _rules(self, given: Given, sizes: tuple[int, int, int, slice | None, bool], where: str) -> Rules:
        rules: Rules
        for known, its_sizes, rules in reversed(self._known):
            if its_sizes == sizes and given.same(known):
                return rules
        found: Rules = find_rules(given, *sizes[:4], exact=sizes[4], where=where)
        self._known.append((given, sizes, found))
        return found

    def forget(self) -> None:
        """Let go of the masks."""
        self._known.clear()


def find_rules(
    given: Given,
    batch: int,
    queries: int,
    keys: int,
    tokens: slice | None,
    *,
    exact: bool = False,
    where: str = "mask",
) -> Rules:
    """The rules behind a mask. See Analyst.rules.

    Args:
        exact: whether only -inf is masked, and no number that is merely far below the others.
    """
    parts = [part for part in (given.mask, given.bias, given.keys) if part is not None]
    shared = all(len(part) == 1 or part.stride(0) == 0 for part in parts)
    rows = []
    relied = float("inf")
    for index in range(1 if shared else batch):
        at = {
            name: None if part is None else part[index if len(part) > 1 else 0]
            for name, part in (("mask", given.mask), ("bias", given.bias), ("keys", given.keys))
        }
        mask = Mask(given.causal, given.window)
        allowed_keys = None if at["keys"] is None else at["keys"].bool().cpu().numpy()
        if at["mask"] is not None:
            levels = _levels(at["mask"][..., :keys], float("-inf") if exact else NEGLIGIBLE, where)
            found = _rule(levels, queries, keys, tokens)
            relied = min(relied, levels.relied)
            mask = replace(found, causal=found.causal or given.causal, window=found.window or given.window)
            if found.keys is not None:
                allowed_keys = found.keys if allowed_keys is None else allowed_keys & found.keys
        if at["bias"] is not None:
            bias = at["bias"][..., :keys]
            if bool((bias != 0).any()):
                bias = Levels(bias, float("-inf"), where).bias().expand(-1, queries, -1)
                mask = replace(mask, bias=bias if mask.bias is None else bias + mask.bias)
        rows.append(_row(replace(mask, keys=allowed_keys), queries, keys, tokens))
    return Rules(tuple(rows), relied)


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


def _levels(mask: torch.Tensor, negligible: float, where: str) -> Levels:
    """The mask of one row of the batch, (1 or heads, 1 or queries, keys), with rows and heads that are alike once."""
    if mask.shape[-2] == 1 or mask.stride(-2) == 0:
        mask = mask[:, :1]
    if mask.stride(0) == 0:
        mask = mask[:1]
    levels = Levels(mask, negligible, where)
    alike = len(mask) > 1 and all(bool((mask[1:, rows] == mask[:1, rows]).all()) for rows in levels.blocks())
    return Levels(mask[:1], negligible, where) if alike else levels


def _rule(levels: Levels, queries: int, keys: int, tokens: slice | None) -> Mask:
    """The rule of one row of the batch, or its mask as a dense bias."""
    heads, rows, _ = levels.mask.shape
    padding = levels.padding(tokens) if tokens is not None and rows > 1 else None
    real = levels.seen(None if padding is None else ~padding)
    if heads > 1 or _numbers(levels, padding):
        return Mask(keys=None if real.all() else real, bias=levels.bias().expand(-1, queries, -1))
    if rows == 1:
        return Mask(keys=real)
    found = _guess(levels, real, queries, keys, tokens)
    if found is None:
        return Mask(keys=None if real.all() else real, bias=levels.bias())
    return found


def _numbers(levels: Levels, padding: np.ndarray | None) -> bool:
    """Whether rows that are no padding hold numbers other than 0 where they are not masked."""
    for rows in levels.blocks():
        found = levels.numbers(rows).cpu().numpy()
        if (found if padding is None else found & ~padding[rows]).any():
            return True
    return False


def _guess(levels: Levels, real: np.ndarray, queries: int, keys: int, tokens: slice | None) -> Mask | None:
    """The rule of a mask of one head, or None where none gives the mask cell for cell.

    Args:
        real: keys that are no padding.
    """
    firsts, lasts, anys = [], [], []
    for rows in levels.blocks():
        block = levels.allowed(rows)[0]
        anys.append(block.any(1))
        firsts.append(block.byte().argmax(1))
        lasts.append(keys - 1 - block.flip(1).byte().argmax(1))
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
    for part in levels.blocks():
        rows = np.arange(part.start, part.stop)[kept[part]]
        if not len(rows):
            continue
        theirs = levels.allowed(part)[0].cpu().numpy()[kept[part]]
        ours = rule.allowed(rows, columns, (queries, keys))
        if not (theirs.all() if ours is None else np.array_equal(ours, theirs)):
            return None
    return rule
