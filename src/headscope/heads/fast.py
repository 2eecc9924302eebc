"""Every statistic on torch tensors, on their device and for whole batches, in O(S) memory: no map is built.

`prepare` reads the roles of a batch's tokens once; the object it returns then measures layer after layer. A layer
is upcast, with padding folded into the keys and with the columns that its weights multiply; then its weights are summed
in blocks of scores that stay in the cache. See docs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from headscope.attention.blocks import SoftmaxBlock, softmax_blocks
from headscope.attention.precision import exact_products
from headscope.attention.scores import Mask
from headscope.attention.terms import NO_TERMS, Terms
from headscope.errors import InputError
from headscope.heads.catalog import CATALOG, CELLS, MASSES, chosen, need_values
from headscope.heads.reference import LayerArrays, Roles, allowed_counts, gram_of, measured, norms_by_gram, norms_from

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

FP32_SCORES = 128.0
"""Largest score for fp32: beyond it, fp32's spacing nears 1e-4 of a weight, and fp64 is used."""


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
    ) -> Float[torch.Tensor, "statistics *batch heads queries"]:
        """Measure one layer: (statistics, batch, heads, queries) on q's device, NaN where undefined.

        Half precision is upcast to fp32; if scores may be extreme, the result is fp64. Gradients and autocast are off.
        Everything that depends on the mask is cached for other layers with the same mask.

        Args:
            arrays: tensors, with a batch axis if `prepare` got a sequence of roles. With terms, rows are measured one
                after the other, in blocks of scores.
            gram: `norms.gram_of(W_O)`, for the norms. It depends only on the weights.

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
                sums = _sums(layer, self.names)
            else:
                layer = self._layer(q, k, v, arrays.scale, replace(rule, hidden=None), gram)
                sums = _joined([_sums(row, self.names) for row in _rows_of(layer, rule, all_terms)])
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
        hidden = (None if member.keys is None else np.asarray(member.keys, dtype=bool).tobytes() for member in masks)
        key = tuple((member.causal, member.window, keys) for member, keys in zip(masks, hidden, strict=True))
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
        q, k = _upcast(q, k, scale, rule.hidden)
        columns = self.features.to(k.dtype)
        if need_values(self.names):
            v, gram = norms_from(v, gram, self.names)
            norms = norms_by_gram(v.to(k.dtype), gram.to(k.dtype))
            norm_columns = torch.stack([norms, norms * self.special.to(k.dtype)], -1)
            columns = torch.cat([columns.expand(-1, q.shape[1], -1, -1), norm_columns], -1)
        return Layer(q, k, scale, rule.mask, columns, self.special.to(k.dtype), "distance" in self.names)

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


@dataclass(frozen=True, eq=False)
class Layer:
    """The input of `_sums`.

    Attributes:
        q, k: the model's, and if keys are hidden, one more coordinate: hidden keys are 0 but there, which gives them a
            score far below all others. So a mask of keys needs no bias, and may differ between the rows of a batch.
        scale: factor of q . k.
        rule: the rest of the mask, causal and window, shared by all rows.
        columns: (batch, heads or 1, keys, columns), multiplied by the weights. The first two are 1 and the key's
            position, counted from the middle, where fp32 is finest.
        special: (batch, 1, keys): 1 for tokens that the tokenizer added.
        distance: True if the mean distance is requested.
        terms: what the model adds to scale * q . k. With terms, a layer is of one row, and its rule hides keys.
    """

    q: Float[torch.Tensor, "batch heads queries width"]
    k: Float[torch.Tensor, "batch kv_heads keys width"]
    scale: float
    rule: Mask
    columns: Float[torch.Tensor, "batch heads_or_1 keys columns"]
    special: Float[torch.Tensor, "batch 1 keys"]
    distance: bool
    terms: Terms = NO_TERMS

    @property
    def at(self) -> int:
        """Position of the first query among the keys."""
        return self.k.shape[2] - self.q.shape[2]

    @property
    def two_sided(self) -> bool:
        """True if distances must be summed besides offsets. In a causal map, distance = -offset."""
        return self.distance and not self.rule.causal

    @property
    def centred(self) -> Float[torch.Tensor, " queries"]:
        """Position of each query, (queries,), counted like the positions in `columns`."""
        queries, keys = self.q.shape[2], self.k.shape[2]
        return torch.arange(queries, device=self.q.device, dtype=self.q.dtype) + (self.at - keys // 2)


@dataclass(frozen=True, eq=False)
class Sums:
    """The output of `_sums`, (batch, heads, queries) each; undefined where there is nothing to measure.

    Attributes:
        by_name: the requested ones of `entropy`, `effective_tokens`, `strongest`, `confidence`, `previous`, `same`,
            `next`, `first`, `offset`, and `distance` if the layer is two-sided.
        mixed: (batch, heads, queries, columns): the weights times the layer's columns, without the first two.
    """

    by_name: dict[str, Float[torch.Tensor, "batch heads queries"]]
    mixed: Float[torch.Tensor, "batch heads queries columns"]


def _upcast(
    q: Float[torch.Tensor, "batch heads queries d_head"],
    k: Float[torch.Tensor, "batch kv_heads keys d_head"],
    scale: float,
    hidden: Bool[torch.Tensor, "batch keys"] | None,
) -> tuple[Float[torch.Tensor, "batch heads queries width"], Float[torch.Tensor, "batch kv_heads keys width"]]:
    """q and k in fp32, or in fp64 if scores may be extreme, with one more coordinate if keys are hidden."""
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k = q.to(wide), k.to(wide)
    bound = _largest_score(q, k, scale)
    if bound > FP32_SCORES:
        q, k = q.double(), k.double()
    if hidden is None:
        return q, k
    q = torch.nn.functional.pad(q, (0, 1), value=1)
    k = torch.nn.functional.pad(k.masked_fill(hidden[:, None, :, None], 0), (0, 1))
    k[..., -1].masked_fill_(hidden[:, None], -(2 * bound + 1000) / scale)
    return q, k


def _largest_score(q: torch.Tensor, k: torch.Tensor, scale: float) -> float:
    """Upper bound of all scores (Cauchy-Schwarz, head by head)."""
    if not q.numel() or not k.numel():
        return 0.0
    longest_q, longest_k = (torch.linalg.vector_norm(x, dim=-1).amax(-1) for x in (q, k))
    return abs(scale) * float((longest_q * longest_k.repeat_interleave(q.shape[1] // k.shape[1], 1)).max())


def _sums(layer: Layer, names: Collection[str]) -> Sums:
    """Compute the sums with one matrix product for the scores, one exp, and one narrow product for linear sums.

    With e_ij = exp(s_ij - max_j s_ij) and Z_i = sum_j e_ij: H_i = log Z_i - sum_j e_ij (s_ij - max) / Z_i, the largest
    weight is 1 / Z_i, and 1 / sum_j p_ij^2 = Z_i^2 / sum_j e_ij^2. Memory is O(keys), or O(window).

    Scores are taken in units of log 2, so that e_ij = 2^s_ij.
    """
    batch, heads, queries, _ = layer.q.shape
    keys = layer.k.shape[2]
    # The first two, one and position, are summed below. The others are the left factor and the transposed weights the
    # right one: with columns on the right, MKL takes from a third to four times longer.
    columns = layer.columns[..., 2:].mT
    count = columns.shape[-2]
    columns = columns.expand(batch, heads, count, keys).reshape(batch * heads, count, keys)
    mixed = layer.q.new_zeros(batch * heads, count, queries)
    rows = {name: layer.q.new_zeros(batch * heads, queries) for name in _needed(layer, names)}
    content = (1 - layer.special).expand(batch, heads, keys).reshape(batch * heads, 1, keys)
    positions = layer.columns[0, 0, :, 1]
    gaps, gaps_of = positions, slice(0)
    for block in softmax_blocks(layer.q, layer.k, scale=layer.scale, mask=layer.rule, terms=layer.terms):
        scores, powers, at = block.shifted, block.powers, (block.heads, block.rows)
        if count:
            mixed[block.heads, :, block.rows] = torch.bmm(columns[block.heads, :, block.keys], powers.mT)
        rows["total"][at] = powers.sum(-1)
        if "strongest" in rows:
            rows["strongest"][at] = powers.amax(-1)
        if "entropy" in rows:
            rows["entropy"][at] = scores.mul_(powers).sum(-1)
        if "effective_tokens" in rows:
            rows["effective_tokens"][at] = torch.linalg.vector_norm(powers, dim=-1)
        if block.sinks is not None:
            _count_sinks(rows, at, block.sinks[..., 0])
        if "first" in rows and block.keys.start == 0:
            rows["first"][at] = powers[..., 0]
        for name, offset in CELLS.items():
            if name in rows:
                _pick(rows[name], block, powers, layer.at + offset)
        if "offset" in rows:
            if gaps_of != block.rows:  # blocks of the same rows follow each other
                gaps, gaps_of = positions[block.keys] - layer.centred[block.rows, None], block.rows
            rows["offset"][at] = torch.mul(powers, gaps, out=scores).sum(-1)
            if "distance" in rows:
                rows["distance"][at] = scores.abs_().sum(-1)
        if "confidence" in rows:
            rows["confidence"][at] = torch.mul(powers, content[block.heads, :, block.keys], out=scores).amax(-1)
    shape = (batch, heads, queries)
    # A row without keys has no block; 1 keeps it finite until it is set to NaN.
    total = rows.pop("total")
    total = torch.where(total > 0, total, 1)
    mixed /= total[:, None]
    means = {name: row / total for name, row in rows.items()}
    if "entropy" in means:
        means["entropy"] = ((total.log2() - means["entropy"]) * math.log(2)).clamp_min(0)
    if "effective_tokens" in means:
        means["effective_tokens"] = means["effective_tokens"].square().reciprocal()
    if "strongest" in names and layer.terms.sinks is None:
        means["strongest"] = total.reciprocal()
    return Sums({name: row.view(shape) for name, row in means.items()}, mixed.view(batch, heads, count, queries).mT)


def _needed(layer: Layer, names: Collection[str]) -> list[str]:
    """Names of the sums taken row by row.

    Totals, offsets and distances are summed separately: a matrix product adds key by key, and next to one large weight
    fp32 then loses the many small ones further away.
    """
    needed = ["total", *(name for name in ("effective_tokens", "confidence", "first", *CELLS) if name in names)]
    if "entropy" in names or "normalised_entropy" in names:
        needed.append("entropy")
    if "offset" in names or "distance" in names:
        needed.append("offset")
    if "strongest" in names and layer.terms.sinks is not None:
        needed.append("strongest")
    return [*needed, "distance"] if layer.two_sided else needed


def _count_sinks(
    rows: dict[str, Float[torch.Tensor, "all queries"]], at: tuple[slice, slice], shifted: torch.Tensor
) -> None:
    """Count a sink as one more place: in the total, the entropy and the squares, but in no sum over keys."""
    power = shifted.exp2()
    rows["total"][at] += power
    if "entropy" in rows:
        rows["entropy"][at] += torch.where(power > 0, shifted, 0) * power
    if "effective_tokens" in rows:
        rows["effective_tokens"][at] = torch.hypot(rows["effective_tokens"][at], power)


def _pick(row: Float[torch.Tensor, "all queries"], block: SoftmaxBlock, powers: torch.Tensor, offset: int) -> None:
    """Fill in the cells on the diagonal `offset` keys away from the main one."""
    start, low, high = block.rows.start, block.keys.start, block.keys.stop
    begin = max(start, low - offset)
    end = min(block.rows.stop, high - offset)
    if begin < end:
        cells = powers[:, begin - start : end - start, begin + offset - low : end + offset - low]
        row[block.heads, begin:end] = cells.diagonal(dim1=-2, dim2=-1)
