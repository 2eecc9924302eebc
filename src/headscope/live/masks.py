"""Find the rule behind the mask that a model passes to its attention, and verify it cell for cell.

A rule (padding, causal, window) takes a few numbers; a mask is a map of all pairs. The rule is guessed from each
query's first and last key, then compared with every cell of the mask, a block of queries at a time. If any cell
differs, the mask is kept as a dense bias. Rows of padding are removed, so they are not compared.
headscope.live.levels decides which cells are masked and which rows are padding.

Padding is everything masked before the first and after the last key that may be looked at. A token masked out between
them is kept as a hidden key, so that rules about positions (causal, windows, distances) use the model's positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headscope.attention.scores import Mask
from headscope.attention.terms import NO_TERMS, Terms
from headscope.errors import UnsupportedError
from headscope.live.biases import terms_of
from headscope.live.cells import BatchCells, Cells, row_blocks
from headscope.live.contents import Contents
from headscope.live.levels import NEGLIGIBLE, UNDERFLOW, Levels, span


@dataclass(frozen=True, eq=False)
class Deferred:
    """A mask that takes a pass over its cells to be read at all: layers that share it read it once.

    Attributes:
        source: all that it was made from; masks of sources with the same contents are equal.
        sizes: (batch, heads, queries, keys).
        read: reads it.
    """

    source: tuple[Any, ...]
    sizes: tuple[int, int, int, int]
    read: Callable[[], RawMask]


@dataclass(frozen=True, eq=False)
class RawMask:
    """A mask as the model passes it to its attention.

    Attributes:
        mask: (1 or batch, 1 or heads, 1 or queries, keys): bool, True where allowed; or numbers added to the scores.
        bias: (1 or batch, 1 or heads, 1 or queries, keys), a position bias, also added.
        keys: (batch, keys), True where a key may be looked at.
        causal, window: as in Mask.
        deferred: another mask, to be read first. Those of flex attention are functions of their cells.
        padded: the mask instead of `keys` where padding is kept, if queries of padding follow another rule.
    """

    mask: torch.Tensor | BatchCells | None = None
    bias: torch.Tensor | BatchCells | None = None
    keys: torch.Tensor | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    deferred: Deferred | None = None
    padded: torch.Tensor | None = None

    def read(self) -> RawMask:
        """The mask itself, with what this one adds to a deferred one."""
        if self.deferred is None:
            return self
        mask = self.deferred.read()
        return mask if self.bias is None else replace(mask, bias=self.bias)

    @classmethod
    def added(cls, mask: torch.Tensor | None, bias: torch.Tensor | None = None) -> RawMask:
        """The mask of a model that adds it to the scores whatever its type: booleans as 0 and 1."""
        return cls(mask=mask if mask is None or mask.is_floating_point() else mask.float(), bias=bias)

    @classmethod
    def filled(cls, allowed: torch.Tensor | None, bias: torch.Tensor | None = None) -> RawMask:
        """The mask of a model that puts the lowest number in place of each hidden score.

        A query from which all keys are hidden looks at all of them alike, where a query without keys looks at none.

        Args:
            allowed: bool, True where a key may be looked at.
            bias: a position bias.
        """
        return cls(mask=None if allowed is None else filled(allowed), bias=bias)

    @classmethod
    def causal_from_the_first(cls, queries: int, keys: int, bias: torch.Tensor | None = None) -> RawMask:
        """The mask of scaled_dot_product_attention with `is_causal`: query i sees key j only if j <= i."""
        if queries == keys:
            return cls(causal=True, bias=bias)
        return cls(window=(None, queries - keys), bias=bias)

    def contents(self) -> Contents:
        """The mask's present content: models may pass one mask to all layers and change it in between."""
        deferred = None if self.deferred is None else (self.deferred.source, self.deferred.sizes)
        return Contents(self.mask, self.bias, self.keys, self.causal, self.window, deferred)


def filled(allowed: torch.Tensor) -> torch.Tensor:
    """Add the lowest number of fp32 to hidden scores, which are lost beside it; bool if every query sees a key."""
    if bool(allowed.any(-1).all()):
        return allowed
    return torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, torch.finfo(torch.float32).min)


@dataclass(frozen=True, eq=False)
class RowRule:
    """The rule of one row of the batch.

    Attributes:
        mask: the rule over all positions of the batch; its bias is a torch tensor on the model's device.
        queries, keys: (queries,) and (keys,) bool, True for positions that are not padding; None for all.
        unseen: (queries,) bool, True for queries that see no key; None if there are none.
        counted: (queries,) bool, True for positions that are neither padding nor masked out; None for all.
        terms: the numbers by key or by distance that the mask or the position bias adds, as torch tensors.
        whole: the rule that padding follows, too, if it was asked for and there is any.
    """

    mask: Mask
    queries: np.ndarray | None = None
    keys: np.ndarray | None = None
    unseen: np.ndarray | None = None
    counted: np.ndarray | None = None
    terms: Terms = NO_TERMS
    whole: RowRule | None = None

    def with_terms(self, terms: Terms) -> Terms:
        """The layer's own terms, together with those of this row's mask and position bias."""
        if self.terms.nothing:
            return terms
        mine = {name: getattr(self.terms, name) for name in ("buckets", "by_distance", "by_key")}
        return replace(terms, **{name: value for name, value in mine.items() if value is not None})

    def cut(self, queries: np.ndarray | None, keys: np.ndarray | None) -> Mask:
        """The mask over the kept positions, in NumPy. Arguments are bool over all positions; None keeps all."""
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
    """The rules of a batch: one for each row, or one for all rows.

    Attributes:
        rows: the rules.
        relied: the largest distance between scores of a row for which the mask's finite numbers still count as -inf.
    """

    rows: tuple[RowRule, ...]
    relied: float = float("inf")

    def row(self, index: int) -> RowRule:
        """The rule of one row of the batch."""
        return self.rows[index if len(self.rows) > 1 else 0]

    def uncut(self) -> Rules:
        """The rules that padding follows, too."""
        return replace(self, rows=tuple(rule.whole or rule for rule in self.rows))

    @property
    def shared(self) -> bool:
        """True if all rows of the batch have the same rule."""
        return len(self.rows) == 1


class Analyst:
    """Finds the rules of masks during one forward pass, once for each distinct mask.

    Args:
        whole: True to find the rules that padding follows, too.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
        self._known: list[tuple[Contents, tuple[int, int, int, slice | None, bool], Rules]] = []
        self._doubts: list[torch.Tensor] = []

    def rules(
        self,
        raw: RawMask,
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
            raw: the mask.
            batch, queries, keys: the sizes of the call.
            tokens: positions of the queries among the keys, which tell that a padding key is a padding query; None in
                cross-attention.
            reach: returns an upper bound of all scores. If the mask's finite numbers might not mask such scores, they
                are kept as numbers.
            where: the module's name, for errors.

        Raises:
            UnsupportedError: the mask contains NaN or infinity.
        """
        contents = raw.contents()
        rules = self._rules(raw, contents, (batch, queries, keys, tokens, False), where)
        if reach is not None and rules.relied < float("inf") and not 2 * reach() + UNDERFLOW <= rules.relied:
            return self._rules(raw, contents, (batch, queries, keys, tokens, True), where)
        return rules

    def _rules(
        self, raw: RawMask, contents: Contents, sizes: tuple[int, int, int, slice | None, bool], where: str
    ) -> Rules:
        rules: Rules
        for known, its_sizes, rules in reversed(self._known):
            if its_sizes == sizes and contents.same(known, self._doubts):
                return rules
        rules = find_rules(raw, *sizes[:4], exact=sizes[4], whole=self._whole, where=where)
        contents.keep()
        self._known.append((contents, sizes, rules))
        return rules

    def finish(self, where: str) -> None:
        """Drop the masks of a forward pass that is over.

        Args:
            where: the model's name.

        Raises:
            UnsupportedError: a mask on a GPU was changed in place between layers.
        """
        doubts, self._doubts = self._doubts, []
        self._known.clear()
        if any(map(bool, doubts)):
            raise UnsupportedError(
                "a mask that several layers share was changed in place between them",
                where=where,
                advice="give the layers that it is changed for a copy of it: mask = mask.clone()",
            )


def find_rules(
    raw: RawMask,
    batch: int,
    queries: int,
    keys: int,
    tokens: slice | None,
    *,
    exact: bool = False,
    whole: bool = False,
    where: str = "mask",
) -> Rules:
    """The rules behind a mask. See Analyst.rules.

    Args:
        exact: True if only -inf counts as masked, not numbers that are merely far below the others.
        whole: True to find the rules that padding follows, too.
    """
    raw = raw.read()
    parts = [part for part in (raw.mask, raw.bias, raw.keys) if part is not None]
    shared = all(len(part) == 1 or (isinstance(part, torch.Tensor) and part.stride(0) == 0) for part in parts)
    rows = []
    relied = float("inf")
    for index in range(1 if shared else batch):
        rule, its = _row_rule(raw, index, queries, keys, tokens, exact=exact, where=where)
        relied = min(relied, its)
        if whole and (rule.queries is not None or rule.keys is not None):
            every = raw if raw.padded is None else replace(raw, keys=None, mask=raw.padded)
            uncut, its = _row_rule(every, index, queries, keys, None, exact=exact, where=where)
            rule, relied = replace(rule, whole=replace(uncut, keys=None)), min(relied, its)
        rows.append(rule)
    return Rules(tuple(rows), relied)


def _row_rule(
    raw: RawMask, index: int, queries: int, keys: int, tokens: slice | None, *, exact: bool, where: str
) -> tuple[RowRule, float]:
    """The rule of one row of the batch, and the distance that `Rules.relied` is the least of."""
    relied = float("inf")
    at = {
        name: None if part is None else part[index if len(part) > 1 else 0]
        for name, part in (("mask", raw.mask), ("bias", raw.bias))
    }
    mask, terms = Mask(raw.causal, raw.window), NO_TERMS
    allowed_keys = None
    if raw.keys is not None:
        allowed_keys = raw.keys[index if len(raw.keys) > 1 else 0].to(torch.bool, copy=True).cpu().numpy()
    if at["mask"] is not None:
        levels = _levels(_first(at["mask"], keys), float("-inf") if exact else NEGLIGIBLE, where)
        rule, terms = _rule(levels, queries, keys, tokens)
        relied = levels.relied
        mask = replace(rule, causal=rule.causal or raw.causal, window=rule.window or raw.window)
        if rule.keys is not None:
            allowed_keys = rule.keys if allowed_keys is None else allowed_keys & rule.keys
    if at["bias"] is not None:
        bias = _first(at["bias"], keys)
        if bool(bias.any()):
            additional = terms_of(bias, queries)
            if additional is not None and terms.nothing:
                terms = additional
            elif additional is not None and additional.by_key is not None:
                terms = replace(terms, by_key=terms.by_key + additional.by_key)
            else:
                bias = Levels(bias, float("-inf"), where).bias().expand(-1, queries, -1)
                mask = replace(mask, bias=bias if mask.bias is None else bias + mask.bias)
    return _row(replace(mask, keys=allowed_keys), terms, queries, keys, tokens), relied


def _row(mask: Mask, terms: Terms, queries: int, keys: int, tokens: slice | None) -> RowRule:
    allowed = mask.keys
    if allowed is not None and allowed.all():
        mask, allowed = replace(mask, keys=None), None
    if allowed is not None and not allowed.any():
        return RowRule(mask, unseen=np.ones(queries, dtype=bool), terms=terms)
    kept = None if allowed is None else span(allowed)
    counted, kept_queries = (
        None if flags is None or tokens is None else _some(flags[tokens]) for flags in (allowed, kept)
    )
    return RowRule(mask, kept_queries, _some(kept), _unseen(mask, queries, keys), counted, terms)


def _some(flags: np.ndarray | None) -> np.ndarray | None:
    """The flags if they are neither all True nor all False; otherwise None."""
    return None if flags is None or flags.all() or not flags.any() else flags


def _unseen(mask: Mask, queries: int, keys: int) -> np.ndarray | None:
    """(queries,): True for queries that see no key; None if there are none."""
    if mask.everything or (mask.causal and queries <= keys and mask.window is None and mask.keys is None):
        unseen = None
    elif mask.causal or mask.window is not None:
        unseen = np.concatenate(
            [~mask.allowed(rows, np.arange(keys), (queries, keys)).any(-1) for rows in _row_blocks(queries, keys)]  # type: ignore[union-attr]
        )
    else:
        unseen = None
    if mask.bias is not None:
        by_bias = (mask.bias == float("-inf")).all(-1).all(0).cpu().numpy()
        unseen = by_bias if unseen is None else unseen | by_bias
    return unseen if unseen is not None and unseen.any() else None


def _row_blocks(queries: int, keys: int) -> Iterator[np.ndarray]:
    return (np.arange(rows.start, rows.stop) for rows in row_blocks(1, queries, keys))


def _first(part: torch.Tensor | Cells, keys: int) -> Any:
    """The part of a map for the first keys."""
    return part.of(keys=keys) if isinstance(part, Cells) else part[..., :keys]


def _levels(mask: torch.Tensor | Cells, negligible: float, where: str) -> Levels:
    """The mask of one row of the batch, (1 or heads, 1 or queries, keys), with identical rows and heads merged."""
    if isinstance(mask, Cells):
        levels = Levels(mask, negligible, where)
        return Levels(mask.of(heads=1), negligible, where) if _alike(levels) else levels
    if mask.shape[-2] == 1 or mask.stride(-2) == 0:
        mask = mask[:, :1]
    if mask.stride(0) == 0:
        mask = mask[:1]
    levels = Levels(mask, negligible, where)
    return Levels(mask[:1], negligible, where) if _alike(levels) else levels


def _alike(levels: Levels) -> bool:
    """Return True if there are several heads and all have the same mask."""
    mask = levels.mask
    return len(mask) > 1 and all(
        bool((part[1:] == part[:1]).all()) for part in (mask[:, rows] for rows in levels.blocks())
    )


def _rule(levels: Levels, queries: int, keys: int, tokens: slice | None) -> tuple[Mask, Terms]:
    """The rule of one row of the batch, or its mask as a dense bias if no rule fits; and what it adds by key."""
    heads, rows, _ = levels.mask.shape
    padding = levels.padding(tokens) if tokens is not None and rows > 1 else None
    real = levels.seen(None if padding is None else ~padding)
    if heads > 1 or _numbers(levels, padding):
        return _numeric(levels, real, queries, keys, tokens)
    if rows == 1:
        return Mask(keys=real), NO_TERMS
    rule = _guess(levels, real, queries, keys, tokens)
    if rule is None:
        return Mask(keys=None if real.all() else real, bias=levels.bias()), NO_TERMS
    return rule, NO_TERMS


def _numeric(levels: Levels, real: np.ndarray, queries: int, keys: int, tokens: slice | None) -> tuple[Mask, Terms]:
    """A mask with numbers, or one that differs between heads: a rule and a number for each key, or a dense bias.

    Models that add ALiBi to their causal mask pass such a mask.
    """
    alike = all(bool((allowed[1:] == allowed[:1]).all()) for allowed in map(levels.allowed, levels.blocks()))
    rows, rule = levels.mask.shape[1], None
    kept = torch.ones(rows, dtype=torch.bool)
    if levels.top is not None and alike and rows == 1:
        rule = Mask(keys=None if real.all() else real)
    elif levels.top is not None and alike:
        rule = _guess(levels, real, queries, keys, tokens)
        kept = kept if tokens is None else torch.from_numpy(span(real)[tokens])

    def compared(rows: slice) -> torch.Tensor:
        return levels.allowed(rows)[:1] & kept[rows].to(levels.mask.device)[None, :, None]

    terms = None if rule is None else terms_of(levels.mask, queries, compared)
    if rule is not None and terms is not None:
        return rule, terms
    return Mask(keys=None if real.all() else real, bias=levels.bias().expand(-1, queries, -1)), NO_TERMS


def _numbers(levels: Levels, padding: np.ndarray | None) -> bool:
    """Return True if rows that are not padding contain numbers other than 0 in cells that are not masked."""
    for rows in levels.blocks():
        flags = levels.numbers(rows).cpu().numpy()
        if (flags if padding is None else flags & ~padding[rows]).any():
            return True
    return False


def _guess(levels: Levels, real: np.ndarray, queries: int, keys: int, tokens: slice | None) -> Mask | None:
    """The rule of a mask of one head; None if no rule reproduces the mask cell for cell.

    Args:
        real: (keys,) bool, True for keys that are not padding.
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
        expected = levels.allowed(part)[0].cpu().numpy()[kept[part]]
        predicted = rule.allowed(rows, columns, (queries, keys))
        if not (expected.all() if predicted is None else np.array_equal(predicted, expected)):
            return None
    return rule
