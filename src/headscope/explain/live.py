"""The LayerNorm after a live model's attention: taken only from a module that proves what it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from headscope._capture.source import CapturedModel
from headscope.errors import TraceError, UnsupportedError
from headscope.explain.post_norm import PostNorm

if TYPE_CHECKING:
    from headscope._trace import Source

ADVICE = "use the kinds Attn-W and Attn-N, or open the checkpoint: hs.open(…).trace(…)"
TOLERANCE = 1e-4
"""Of the module's own output beside LayerNorm(x W_O + b_O + residual), in fp32."""


def live_post_norm(source: Source, layer: int) -> PostNorm:
    """The bias and LayerNorm of the module that holds W_O, as BertSelfOutput does: norm(dense(contexts) + residual).

    The module is run on random numbers, and refused where it gives anything else.

    Raises:
        TraceError: the model is gone.
        UnsupportedError: no such module holds W_O, or it computes something else.
    """
    where = f"layer {layer}"
    if not isinstance(source, CapturedModel):
        raise UnsupportedError(
            f"a {type(source).__name__} tells nothing of the LayerNorm after its attention", where=where, advice=ADVICE
        )
    model = source.model
    if model is None:
        raise TraceError(f"{source.name} is gone", where=where, advice="keep the model, or open it again")
    output = source.projection(layer)
    if output is None or len(output.paths) != 1:
        raise UnsupportedError(f"{source.name}: no single Linear is W_O", where=where, advice=ADVICE)
    path = output.paths[0].rpartition(".")[0]
    holder = model.get_submodule(path)
    linears = [child for child in holder.children() if isinstance(child, nn.Linear)]
    norms = [child for child in holder.children() if isinstance(child, nn.LayerNorm)]
    if len(linears) != 1 or len(norms) != 1 or not _computes(holder, linears[0], norms[0]):
        raise UnsupportedError(
            f"{source.name}: {path or type(model).__name__} is not LayerNorm(contexts W_O + b_O + residual), "
            "so the LayerNorm that follows the heads is not known",
            where=where,
            advice=ADVICE,
        )
    linear, norm = linears[0], norms[0]
    bias = linear.bias if linear.bias is not None else torch.zeros(linear.out_features)
    return PostNorm(bias=_array(bias), scale=_array(norm.weight), eps=float(norm.eps))


@torch.no_grad()
def _computes(holder: nn.Module, linear: nn.Linear, norm: nn.LayerNorm) -> bool:
    """Return True if the module gives norm(linear(contexts) + residual) for random contexts and residual."""
    generator = torch.Generator().manual_seed(0)
    contexts = torch.randn(1, 3, linear.in_features, generator=generator).to(linear.weight)
    residual = torch.randn(1, 3, linear.out_features, generator=generator).to(linear.weight)
    if norm.weight is None or norm.normalized_shape != (linear.out_features,):
        return False
    try:
        given = holder(contexts, residual)
    except (TypeError, RuntimeError):
        return False
    expected = norm(linear(contexts) + residual)
    return isinstance(given, torch.Tensor) and torch.allclose(given, expected, atol=TOLERANCE, rtol=TOLERANCE)


def _array(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().float().cpu().numpy()
    return array
