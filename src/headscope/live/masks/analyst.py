"""Find the rule behind the mask that a model passes to its attention, and verify it cell for cell.

A rule (padding, causal, window) takes a few numbers; a mask is a map of all pairs. `guess` guesses it and compares it
with every cell of the mask, a block of queries at a time. If any cell differs, the mask is kept as a dense bias. Rows
of padding are removed, so they are not compared. `guess.Levels` decides which cells are masked and which rows are
padding.

Padding is everything masked before the first and after the last key that may be looked at. A token masked out between
them is kept as a hidden key, so that rules about positions (causal, windows, distances) use the model's positions.

At the end, a bound of the scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headscope.attention.scores import Mask
from headscope.attention.terms import NO_TERMS, Terms
from headscope.errors import UnsupportedError
from headscope.live.keeping.contents import Contents, together
from headscope.live.masks.cells import Cells, row_blocks
from headscope.live.masks.guess import NEGLIGIBLE, UNDERFLOW, Levels, first_keys, levels_of, rule_of, span, terms_of


@dataclass(frozen=True, eq=False)
class RawMask:
    """A mask as the model passes it to its attention.

    Attributes:
        mask: (1 or batch, 1 or heads, 1 or queries, keys): bool, True where allowed; or numbers added to the scores.
        bias: (1 or batch, 1 or heads, 1 or queries, keys), a position bias, also added.
        keys: (batch, keys), True where a key may be looked at.
        causal, window: as in Mask.
        deferred: reads another mask, which takes a pass over its cells: layers that share it read it once. The masks of
            flex attention are functions of their cells.
        source: all that this other mask is made from; masks of sources with the same contents are equal.
        sinks: True if the scores stand beside a sink, which a shift of a whole row doesn't shift.
    """

    mask: torch.Tensor | Cells | None = None
    bias: torch.Tensor | Cells | None = None
    keys: torch.Tensor | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    deferred: Callable[[], RawMask] | None = None
    source: tuple[Any, ...] = ()
    sinks: bool = False

    def read(self) -> RawMask:
        """The mask itself, with what this one adds to a deferred one."""
        if self.deferred is None:
            return self
        mask = self.deferred()
        return mask if self.bias is None else replace(mask, bias=self.bias)

    def changed(self, change: Callable[[Any], Any], *names: Any) -> RawMask:
        """The same with another form of mask and bias, if it is deferred once it is read; the names tell which form."""
        later, source = self.deferred, (*self.source, *names)
        then = None if later is None else lambda: later().changed(change)
        return replace(self, mask=change(self.mask), bias=change(self.bias), deferred=then, source=source)

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
        if allowed is None or bool(allowed.any(-1).all()):
            return cls(mask=allowed, bias=bias)
        lowest = torch.finfo(torch.float32).min  # hidden scores are lost beside it
        return cls(mask=torch.zeros(allowed.shape, device=allowed.device).masked_fill_(~allowed, lowest), bias=bias)

    def contents(self) -> Contents:
        """The mask's present content: models may pass one mask to all layers and change it in between."""
        return Contents(self.mask, self.bias, self.keys, self.causal, self.window, self.source, self.sinks)


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
        moved = _trailing(keys) - _trailing(queries)
        if moved and (mask.causal or mask.window):  # in cross-attention: both count from the last query and key
            left, right = mask.window or (None, None)
            right = min(right or 0, 0) if mask.causal else right
            window = None if left is None else left - moved, None if right is None else right + moved
            return Mask(False, window, allowed, bias)
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

    Attributes:
        latest: the rules that were asked for last.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
        self._known: list[tuple[Contents, tuple[int, int, int, slice | None, bool], Rules]] = []
        self._doubts: list[torch.Tensor] = []
        self.latest = Rules(())

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
            rules = self._rules(raw, contents, (batch, queries, keys, tokens, True), where)
        self.latest = rules
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
        if together(doubts).any():
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
            uncut, its = _row_rule(raw, index, queries, keys, None, exact=exact, where=where)
            rule, relied = replace(rule, whole=replace(uncut, keys=None)), min(relied, its)
        rows.append(rule)
    return Rules(tuple(rows), relied)


def _row_rule(
    raw: RawMask, index: int, queries: int, keys: int, tokens: slice | None, *, exact: bool, where: str
) -> tuple[RowRule, float]:
    """The rule of one row of the batch, and the distance that `Rules.relied` is the least of."""
    relied = float("inf")
    given, bias, real = (
        None if part is None else part[index if len(part) > 1 else 0] for part in (raw.mask, raw.bias, raw.keys)
    )
    mask, terms = Mask(raw.causal, raw.window), NO_TERMS
    allowed_keys = None if real is None else real.to(torch.bool, copy=True).cpu().numpy()
    if given is not None:
        levels = levels_of(first_keys(given, keys), float("-inf") if exact else NEGLIGIBLE, where)
        rule, terms = rule_of(levels, queries, keys, tokens)
        relied = levels.relied
        mask = replace(rule, causal=rule.causal or raw.causal, window=rule.window or raw.window)
        if rule.keys is not None:
            allowed_keys = rule.keys if allowed_keys is None else allowed_keys & rule.keys
    if bias is not None:
        bias = first_keys(bias, keys)
        if bool(bias.any()):
            additional = terms_of(bias, queries)
            if additional is not None and terms.nothing:
                terms = additional
            elif additional is not None and additional.by_key is not None:
                terms = replace(terms, by_key=terms.by_key + additional.by_key)
            else:
                bias = Levels(bias, float("-inf"), where).bias().expand(-1, queries, -1)
                mask = replace(mask, bias=bias if mask.bias is None else bias + mask.bias)
    if raw.sinks and mask.bias is not None:  # a sink leaves nothing for keys that are all far below it
        far = mask.bias.amax(-1, keepdim=True) <= NEGLIGIBLE
        mask = replace(mask, bias=mask.bias.masked_fill(far, float("-inf")))
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


def _trailing(kept: np.ndarray | None) -> int:
    """The number of positions that are cut away at the end."""
    return 0 if kept is None else int(np.argmax(kept[::-1]))


def _some(flags: np.ndarray | None) -> np.ndarray | None:
    """The flags if they are neither all True nor all False; otherwise None."""
    return None if flags is None or flags.all() or not flags.any() else flags


def _unseen(mask: Mask, queries: int, keys: int) -> np.ndarray | None:
    """(queries,): True for queries that see no key; None if there are none."""
    unseen = None
    plain = mask.window is None and (not mask.causal or (queries <= keys and mask.keys is None))
    if not plain:
        blocks = (np.arange(rows.start, rows.stop) for rows in row_blocks(1, queries, keys))
        unseen = np.concatenate([~mask.allowed(rows, np.arange(keys), (queries, keys)).any(-1) for rows in blocks])  # type: ignore[union-attr]
    if mask.bias is not None:
        by_bias = (mask.bias == float("-inf")).all(-1).all(0).cpu().numpy()
        unseen = by_bias if unseen is None else unseen | by_bias
    return unseen if unseen is not None and unseen.any() else None


def score_bound(q: torch.Tensor, k: torch.Tensor, scale: float) -> float:
    """An upper bound of all scores (Cauchy-Schwarz)."""
    if not q.numel() or not k.numel():
        return 0.0
    longest = [float(torch.linalg.vector_norm(x.detach().float(), dim=-1).amax()) for x in (q, k)]
    return abs(scale) * longest[0] * longest[1]
