"""The contexts of heads that are silenced in a call of a live model, or that attend with another map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from headscope.attention.patterns import OneHead, Way, is_map, maps
from headscope.attention.terms import Terms
from headscope.live.plan.refusals import refuse_transforms

if TYPE_CHECKING:
    from torch import nn

    from headscope.live.masks.analyst import Rules


@dataclass(frozen=True, eq=False)
class Attended:
    """Everything that the maps of a call's heads depend on, and the values that they mix.

    Attributes:
        module: the attention module.
        layer: its layer.
        q, k: (batch, heads, tokens, d_head); k has fewer heads under grouped-query attention.
        v: (batch, kv_heads, keys, d_value), with its gradient.
        scale: factor of q . k.
        rules: the masks.
        terms: the layer's own terms.
        tokens: positions of the queries among the keys; None in cross-attention, or if they are unknown.
    """

    module: nn.Module
    layer: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    rules: Rules
    terms: Terms
    tokens: slice | None

    def context(self, way: Way, row: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions of a row's queries without padding, and the head's contexts there: map @ V.

        Gradients flow through V alone.

        Raises:
            InputError: the map doesn't fit the text, or what its queries see.
        """
        at_key = head * self.k.shape[1] // self.q.shape[1]
        rule, sizes = self.rules.row(row), (self.q.shape[2], self.k.shape[2])
        flags = rule.queries, rule.keys
        queries, keys = (np.arange(n) if on is None else np.flatnonzero(on) for on, n in zip(flags, sizes, strict=True))
        q, k = (_plain(x[row if len(x) > 1 else 0]) for x in (self.q[:, head], self.k[:, at_key]))
        terms = rule.with_terms(self.terms)
        if not terms.nothing:
            spans = (int(queries[0]), len(queries), int(keys[0]), len(keys))
            terms = terms.window(*spans, sizes).of_head(head).mapped(lambda table: _plain(table))
        places = None if self.tokens is None else queries + self.tokens.start - keys[0]
        mask = rule.cut(*flags).of_head(head)
        one = OneHead(q[None, queries], k[None, keys], self.scale, mask, terms, places, self.layer, head)
        v = self.v[row if len(self.v) > 1 else 0, at_key]
        v = v[torch.from_numpy(keys).to(v.device)]
        wide = torch.promote_types(v.dtype, torch.float32)
        with torch.autocast(v.device.type, enabled=False):
            parts = [torch.from_numpy(cells).to(v.device, wide) @ v.to(wide) for cells in maps(way, one)]
        return torch.from_numpy(queries).to(v.device), torch.cat(parts)


def silence(
    context: torch.Tensor, ways: Mapping[int, Way], kept: torch.Tensor | None, attended: Attended
) -> torch.Tensor:
    """Return a copy of the contexts with those of some heads replaced.

    Args:
        context: (batch, heads, queries, d_value).
        ways: head -> "zero", "mean" for the mean of the head's contexts over the queries, or another map.
        kept: (batch, queries) bool, True for positions that are not padding: means are taken over these. None for all.
        attended: what maps depend on.

    Raises:
        InputError: a map doesn't fit a text, or what its queries see.
        UnsupportedError: a head attends with another map in a transform of torch.func.
    """
    context = context.clone()
    for head, way in ways.items():
        if is_map(way):
            refuse_transforms(attended.module)
            for row in range(len(context)):
                places, contexts = attended.context(way, row, head)
                context[row, head, places] = contexts.to(context.dtype)
        elif way == "zero":
            context[:, head] = 0
        else:
            contexts = context[:, head]
            share = contexts.new_ones(contexts.shape[:2]) if kept is None else kept.to(contexts)
            mean = (contexts * share[..., None]).sum(1, keepdim=True) / share.sum(1)[:, None, None].clamp(min=1)
            context[:, head] = mean.expand_as(contexts)
    return context


def _plain(x: torch.Tensor) -> np.ndarray:
    """The numbers of a tensor in NumPy, in fp32 if they are in less."""
    x = x.detach()
    return (x if x.dtype == torch.float64 else x.float()).cpu().numpy()
