"""Attention functions that leave out one edge, and a model to try them in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from families import BY_NAME

BERT = BY_NAME["BertModel"]
IDS = torch.randint(3, 99, (3, 12), generator=torch.Generator().manual_seed(1))
SDPA = scaled_dot_product_attention
REFUSED = "computes something other than softmax"

Attend = Callable[..., tuple[torch.Tensor, Any]]


class Edge(NamedTuple):
    """A cell of a map. Of 12 queries in three rows, captures sample 2, 5, 8 and 11 of rows 0 and 2."""

    row: int = 1
    head: int = 2
    query: int = 4
    key: int = 7


def weights_of(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """(batch, heads, queries, keys) by the formula."""
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)


def bert(function: Attend | None = None, dtype: torch.dtype = torch.float32, factor: float = 1.0) -> Any:
    """A BERT of two layers with this attention function."""
    torch.manual_seed(3)
    model = transformers.BertModel(transformers.BertConfig(**BERT.settings)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name:
                parameter.mul_(4 * (factor if "query" in name else 1))
    if function is not None:
        AttentionInterface.register("own", function)
        model.set_attn_implementation("own")
    return model.to(dtype)


def interface(contexts: Callable[..., torch.Tensor]) -> Attend:
    """A function of transformers' interface that computes (batch, heads, queries, d) so, from q, k and v."""
    return lambda module, q, k, v, mask, **given: (contexts(q, k, v).transpose(1, 2).contiguous(), None)


def subtracted(edge: Edge) -> Attend:
    """The context without what one key contributes: its weight has become 0."""

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        output = sdpa_attention_forward(module, q, k, v, mask, **given)[0].clone()
        row, head, query, key = edge
        output[row, query, head] -= weights_of(q, k)[row, head, query, key] * v[row, head, key]
        return output, None

    return attend


def by_hand(edge: Edge, returned: bool = True, renormalised: bool = False) -> Attend:
    """Weights by the formula, with one set to 0."""

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        weights = weights_of(q, k)
        weights[edge] = 0
        weights = weights / weights.sum(-1, keepdim=True) if renormalised else weights
        return (weights @ v).transpose(1, 2).contiguous(), weights if returned else None

    return attend


def edited(edge: Edge, output: torch.Tensor, q: Any, k: Any, v: Any) -> torch.Tensor:
    """(batch, heads, queries, d) without what one key contributes."""
    output = output.clone()
    output[edge[:3]] -= weights_of(q, k)[edge] * v[edge.row, edge.head, edge.key]
    return output
