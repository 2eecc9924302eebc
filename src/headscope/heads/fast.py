"""Every statistic on torch tensors, on their device and for whole batches, in O(S) memory: no map is built.

`prepare` reads the roles of a batch's tokens once; the object it returns then measures layer after layer. Two ways give
the same numbers: blocks of scores that stay in the cache, and fused attention calls. See docs/statistics.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from headscope.attention.precision import exact_products
from headscope.attention.scores import Mask
from headscope.attention.terms import Terms
from headscope.errors import InputError
from headscope.heads.catalog import CATALOG, MASSES, chosen, need_values
from headscope.heads.reference import LayerArrays, Roles, allowed_counts, gram_of, measured, norms_by_gram, norms_from
from headscope.heads.ways import Layer, Sums, sums_by_blocks, sums_by_fused_calls, upcast

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

FUSED_FROM = 4096
"""Least number of keys for fused calls on devices other than a CPU, where blocks of scores go through memory."""


def fast_statistics(
    layer: LayerArrays, roles: Roles | Sequence[Roles], names: Iterable[str] | None = None
) -> dict[str, Float[torch.Tensor, "*batch heads queries"]]:
    """Statistics of every query of a layer, (heads, queries) each, or (batch, heads, queries); NaN where undefined.

    For several layers over the same tokens, one call of `prepare` is cheaper. Arguments and errors are those of
    `prepare` and `Prepared.of`. With names=None, the norm-weighted statistics are left out if v or W_O is missing.
    """
    names = chosen(names, values=layer.v is not None and layer.W_O is not None)
    prepared = prepare(roles, names, device=layer.q.device)
    gram = None
    if layer.W_O is not None and need_values(names):
        with torch.no_grad(), exact_products(), torch.autocast(layer.q.device.type, enabled=False):
            gram = gram_of(layer.W_O.to(torch.promote_types(layer.W_O.dtype, torch.float32)))
    return dict(zip(names, prepared.of(layer, gram=gram).unbind(0), strict=True))


def prepare(
    roles: Roles | Sequence[Roles], names: Iterable[str] | None = None, *, device: torch.device | str = "cpu"
) -> Prepared:
    """Prepare to measure the layers of a batch.

    Args:
        roles: one for each row of the batch, all with the same numbers of queries and keys; a single one for arrays
            without a batch axis.
        names: of the statistics; None for all.
        device: where the layers will be measured.

    Raises:
        InputError: there is no such statistic, rows differ in length, or only some rows are cross-attention.
    """
    batched = not isinstance(roles, Roles)
    rows = tuple(roles) if not isinstance(roles, Roles) else (roles,)
    shapes = {(len(row.query_sentences), len(row.special), row.aligned) for row in rows}
    if len(shapes) != 1:
        raise InputError(
            f"{len(rows)} rows of {len(shapes)} kinds, (queries, keys, aligned): {', '.join(map(str, sorted(shapes)))}",
            where="roles",
            advice="pass at least one row, and only rows of equal length; pad and mask shorter ones",
        )
    names = chosen(names)
    keys = len(rows[0].special)
    positions = np.broadcast_to(np.arange(keys) - keys // 2, (len(rows), keys))
    columns = {"one": np.ones_like(positions), "position": positions}
    flags = {name: np.stack([getattr(row, role) for row in rows]) for name, role in MASSES.items() if name in names}
    if "other_sentence" in names:
        sentences = np.stack([row.sentences for row in rows])
        flags |= {"first text": sentences == 0, "second text": sentences == 1}
    columns |= {name: column for name, column in flags.items() if column.any()}
    first = np.stack([row.query_sentences == 0 for row in rows])
    special = np.stack([row.special for row in rows])
    return Prepared(
        names=names,
        roles=rows,
        batched=batched,
        columns=tuple(columns),
        features=torch.as_tensor(np.stack(list(columns.values()), -1), dtype=torch.float32, device=device)[:, None],
        special=torch.as_tensor(special, dtype=torch.float32, device=device)[:, None],
        first_text=torch.as_tensor(first, device=device)[:, None],
    )


@dataclass(frozen=True, eq=False)
class Prepared:
    """A batch's tokens, prepared: `of` measures one layer at a time.

    Attributes:
        names: the statistics, in the order of CATALOG, which is that of the results' first axis.
        roles: of each row.
        batched: True if arrays have a batch axis.
        columns: the names of `features`.
        features: (batch, 1, keys, columns), multiplied by the weights: the position, and columns of 0 and 1.
        special: (batch, 1, keys): 1 for tokens that the tokenizer added.
        first_text: (batch, 1, queries): True for queries in a pair's first text.
    """

    names: tuple[str, ...]
    roles: tuple[Roles, ...]
    batched: bool
    columns: tuple[str, ...]
    features: Float[torch.Tensor, "batch 1 keys columns"]
    special: Float[torch.Tensor, "batch 1 keys"]
    first_text: Bool[torch.Tensor, "batch 1 queries"]
    _rules: dict[tuple[object, ...], _Rule] = field(default_factory=dict, repr=False)

    @torch.no_grad()
    def of(
        self,
        arrays: LayerArrays,
        *,
        gram: Float[torch.Tensor, "heads d_value d_value"] | None = None,
        way: str | None = None,
    ) -> Float[torch.Tensor, "statistics *batch heads queries"]:
        """Measure one layer: (statistics, batch, heads, queries) on q's device, NaN where undefined.

        Half precision is upcast to fp32; if scores may be extreme, the result is fp64. Gradients and autocast are off.
        Everything that depends on the mask is cached for other layers with the same mask.

        Args:
            arrays: tensors, with a batch axis if `prepare` got a sequence of roles. With terms, rows are measured one
                after the other, in blocks of scores.
            gram: `norms.gram_of(W_O)`, for the norms. It depends only on the weights.
            way: `blocks` or `fused`; None for the fastest.

        Raises:
            InputError: a mask has an additive bias; masks differ in more than their keys; v or W_O is missing; the
                arrays' sizes don't match the roles.
        """
        q, k, v, terms = arrays.q, arrays.k, arrays.v, arrays.terms
        if need_values(self.names):
            norms_from(v, gram, self.names)
        if not self.batched:
            q, k, v = q[None], k[None], None if v is None else v[None]
        rule = self._rule(arrays.mask, q, k)
        with exact_products(), torch.autocast(q.device.type, enabled=False):
            all_terms = (terms,) * len(q) if isinstance(terms, Terms) else tuple(terms)
            if all(each.nothing for each in all_terms):
                layer = self._layer(q, k, v, arrays.scale, rule, gram)
                sums = _WAYS[_fastest(layer) if way is None else way](layer, self.names)
            else:
                layer = self._layer(q, k, v, arrays.scale, replace(rule, hidden=None), gram)
                sums = _joined([sums_by_blocks(row, self.names) for row in _rows_of(layer, rule, all_terms)])
            sinks = any(each.sinks is not None for each in all_terms)
            values = self._named(layer, sums, rule, sinks)
            table = torch.stack([values[name] for name in self.names])
            table.masked_fill_(rule.unmeasured, float("nan"))
        return table if self.batched else table[:, 0]

    def _rule(self, mask: Mask | Sequence[Mask], q: torch.Tensor, k: torch.Tensor) -> _Rule:
        """The batch's masks, checked, as tensors; cached."""
        first = self.roles[0]
        expected = (len(self.roles), len(first.query_sentences), len(first.special))
        if (len(q), q.shape[2], k.shape[2]) != expected or len(k) != len(q):
            raise InputError(
                f"q {tuple(q.shape)} and k {tuple(k.shape)} don't match {expected[0]} x {expected[1]} queries and "
                f"{expected[2]} keys",
                where="roles",
                advice="pass roles as long as the arrays, one for each row of the batch",
            )
        masks = (mask,) if isinstance(mask, Mask) else tuple(mask)
        if any(member.bias is not None for member in masks):
            raise InputError(
                "the fast statistics don't support masks with an additive bias",
                where="mask.bias",
                advice="use trace.statistics() with its default engine",
            )
        key = tuple((member.causal, member.window, _bytes(member)) for member in masks)
        if key not in self._rules:
            all_masks = masks * len(self.roles) if isinstance(mask, Mask) else masks
            self._rules[key] = _rule_of(all_masks, self.roles, self.names, q.device)
        return self._rules[key]

    def _layer(
        self,
        q: Float[torch.Tensor, "batch heads queries d_head"],
        k: Float[torch.Tensor, "batch kv_heads keys d_head"],
        v: Float[torch.Tensor, "batch kv_heads keys d_value"] | None,
        scale: float,
        rule: _Rule,
        gram: Float[torch.Tensor, "heads d_value d_value"] | None,
    ) -> Layer:
        d_head = q.shape[-1]
        q, k = upcast(q, k, scale, rule.hidden)
        columns = self.features.to(k.dtype)
        if need_values(self.names):
            v, gram = norms_from(v, gram, self.names)
            norms = norms_by_gram(v.to(k.dtype), gram.to(k.dtype))
            norm_columns = torch.stack([norms, norms * self.special.to(k.dtype)], -1)
            columns = torch.cat([columns.expand(-1, q.shape[1], -1, -1), norm_columns], -1)
        return Layer(q, k, scale, d_head, rule.mask, columns, self.special.to(k.dtype), "distance" in self.names)

    def _named(self, layer: Layer, sums: Sums, rule: _Rule, sinks: bool) -> dict[str, torch.Tensor]:
        """The statistics by name; undefined where there is nothing to measure."""
        values = dict(sums.by_name)
        masses = dict(zip((*self.columns[2:], *need_values(CATALOG)), sums.mixed.unbind(-1), strict=False))
        none = sums.mixed.new_zeros(sums.mixed.shape[:-1])
        if "normalised_entropy" in self.names:
            places = rule.counts.to(none.dtype) + sinks
            values["normalised_entropy"] = values["entropy"] / places.log()
        for name in MASSES:
            values[name] = masses.get(name, none)
        if "other_sentence" in self.names:
            first, second = masses.get("first text", none), masses.get("second text", none)
            values["other_sentence"] = torch.where(self.first_text, second, first)
        if "offset" in values:
            values.setdefault("distance", -values["offset"])
        if "norm" in masses:
            values["norm"] = masses["norm"]
            values["norm_special"] = masses["norm_special"] / masses["norm"]
        return values


@dataclass(frozen=True, eq=False)
class _Rule:
    """The masks of a batch.

    Attributes:
        mask: the common part: causal and window.
        hidden: (batch, keys): True for masked keys; None if there are none.
        counts: (batch, 1, queries): number of keys that each query may look at, at least 2.
        unmeasured: (statistics, batch, 1, queries): True where there is nothing to measure.
    """

    mask: Mask
    hidden: Bool[torch.Tensor, "batch keys"] | None
    counts: Float[torch.Tensor, "batch 1 queries"]
    unmeasured: Bool[torch.Tensor, "statistics batch 1 queries"]


def _rule_of(masks: tuple[Mask, ...], roles: tuple[Roles, ...], names: tuple[str, ...], device: torch.device) -> _Rule:
    rules = {(mask.causal, mask.window) for mask in masks}
    if len(masks) != len(roles) or len(rules) != 1:
        raise InputError(
            f"{len(masks)} masks of {len(rules)} kinds for {len(roles)} rows",
            where="mask",
            advice="pass one mask for all rows, or one for each; rows of a batch may differ only in mask.keys",
        )
    queries, keys = len(roles[0].query_sentences), len(roles[0].special)
    counts = np.stack([allowed_counts(mask, queries, keys) for mask in masks])
    defined = [
        measured(names, row_counts[None], mask, row_roles, rows=np.arange(queries), queries=queries)
        for row_counts, mask, row_roles in zip(counts, masks, roles, strict=True)
    ]
    unmeasured = np.array([[~row[name][0] for row in defined] for name in names])
    unmeasured = unmeasured.reshape(len(names), len(roles), queries)
    hidden = None
    if any(mask.keys is not None for mask in masks):
        everything = np.ones(keys, dtype=bool)
        visible = [everything if mask.keys is None else np.asarray(mask.keys, dtype=bool) for mask in masks]
        hidden = torch.as_tensor(~np.stack(visible), device=device)
    return _Rule(
        mask=Mask(causal=masks[0].causal, window=masks[0].window),
        hidden=hidden,
        counts=torch.as_tensor(np.maximum(counts, 2).astype(np.float64), device=device)[:, None],
        unmeasured=torch.as_tensor(unmeasured, device=device)[:, :, None],
    )


def _rows_of(layer: Layer, rule: _Rule, terms: Sequence[Terms]) -> Iterator[Layer]:
    """The rows of a batch as layers of their own, each with its terms and its hidden keys."""
    for row, of_row in enumerate(terms):
        at = slice(row, row + 1)
        keys = None if rule.hidden is None else ~rule.hidden[row].cpu().numpy()
        yield replace(
            layer,
            q=layer.q[at],
            k=layer.k[at],
            columns=layer.columns[at if len(layer.columns) > 1 else slice(None)],
            special=layer.special[at if len(layer.special) > 1 else slice(None)],
            rule=replace(layer.rule, keys=keys),
            terms=of_row,
        )


def _joined(rows: Sequence[Sums]) -> Sums:
    """The sums of the rows of a batch, together."""
    by_name = {name: torch.cat([row.by_name[name] for row in rows]) for name in rows[0].by_name}
    return Sums(by_name, torch.cat([row.mixed for row in rows]))


def _bytes(mask: Mask) -> bytes | None:
    return None if mask.keys is None else np.asarray(mask.keys, dtype=bool).tobytes()


_WAYS = {"blocks": sums_by_blocks, "fused": sums_by_fused_calls}


def _fastest(layer: Layer) -> str:
    """Choose the fastest way. On a CPU blocks win at every length: one pass instead of the fused way's five.

    Elsewhere blocks are used for windows and for causal masks with fewer queries than keys, which have no fused kernel,
    and for short texts, where the number of calls dominates.
    """
    queries, keys = layer.q.shape[2], layer.k.shape[2]
    fusable = layer.rule.window is None and (queries == keys or not (layer.rule.causal or layer.two_sided))
    return "fused" if layer.q.device.type != "cpu" and fusable and keys >= FUSED_FROM else "blocks"
