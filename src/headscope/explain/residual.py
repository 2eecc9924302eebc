"""A trace's layers beyond the weights: values, W_O, the bias, the residual and its LayerNorm, at a few query rows.

Nothing here holds a map of all pairs: rows of weights are computed, used, and dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.scores import join_heads, scores, weights
from headscope.checkpoint.json_text import few
from headscope.checkpoint.weights_elsewhere import with_numbers
from headscope.encoder.forward import Input, last_sum, summands
from headscope.errors import TraceError, UnsupportedError
from headscope.model import Model
from headscope.results.arrays import full
from headscope.results.lazy_maps import TILE_CELLS
from headscope.traces import refuse_swapped
from headscope.traces.views import kept_values

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import nn

    from headscope.encoder import Encoder, Tokens
    from headscope.traces import LayerRecord, ModelWeights, Trace

    Rows = Int[np.ndarray, " n"]

ADVICE = "use the kinds Attn-W and Attn-N, or open the checkpoint: hs.open(…).trace(…)"
TOLERANCE = 1e-4
"""Of a live module's own output beside LayerNorm(x W_O + b_O + residual), in fp32."""


@dataclass(frozen=True, eq=False)
class PostNorm:
    """The end of a post-norm layer's attention: LayerNorm(x + sum of the heads' outputs + bias).

    Attributes:
        bias: (d_model,), b_O.
        scale: (d_model,), the LayerNorm's weight.
        eps: added to the variance.
    """

    bias: Float[np.ndarray, " d_model"]
    scale: Float[np.ndarray, " d_model"]
    eps: float


def scores_of(record: LayerRecord, rows: Rows, columns: Rows | None = None) -> Float[np.ndarray, "heads n m"]:
    """(heads, n, m): the scores of these queries with these keys, with all keys by default; -inf where masked."""
    queries, keys = record.q.shape[1], record.k.shape[1]
    columns = np.arange(keys) if columns is None else columns
    return scores(
        full(record.q[:, rows]),
        full(record.k[:, columns]),
        scale=record.scale,
        mask=record.mask,
        terms=record.terms,
        rows=rows,
        columns=columns,
        sizes=(queries, keys),
    )


def weights_of(record: LayerRecord, rows: Rows, columns: Rows | None = None) -> Float[np.ndarray, "heads n m"]:
    """(heads, n, m): the weights of these queries on these keys, on all keys by default."""
    return weights(scores_of(record, rows, columns), record.lse[:, rows])


def values_of(record: LayerRecord, layer: int) -> Float[np.ndarray, "heads keys d_value"]:
    """(heads, keys, d_value): the values, repeated where several heads share them.

    Raises:
        TraceError: the trace was kept without values.
    """
    v = full(kept_values(record, f"layer {layer}"))
    shared = len(record.q) // len(v)
    return v if shared == 1 else np.repeat(v, shared, axis=0)


def blocks_of_rows(heads: int, queries: int, keys: int) -> Iterator[Rows]:
    """All queries, a few at a time, so that a tile of all heads and keys stays in the cache."""
    step = max(1, TILE_CELLS // max(1, heads * keys))
    for start in range(0, queries, step):
        yield np.arange(start, min(start + step, queries))


def contexts_of(
    record: LayerRecord, v: Float[np.ndarray, "heads keys d_value"], rows: Rows
) -> Float[np.ndarray, "n joined"]:
    """(n, heads * d_value): softmax(Q K^T) V of these queries, heads side by side."""
    heads, keys, d_value = v.shape
    contexts = np.empty((len(rows), heads * d_value), dtype=v.dtype)
    for part in blocks_of_rows(heads, len(rows), keys):
        contexts[part] = join_heads(weights_of(record, rows[part]) @ v)
    return contexts


@dataclass(frozen=True, eq=False)
class Written:
    """One layer at some queries, from its input to its output.

    Attributes:
        x: (n, d_model), the layer's input at these queries.
        contexts: (n, heads * d_value), of all heads side by side.
        summed: (n, d_model), x + attention + b_O.
        fed: (n, d_model), what the feed-forward writes, its bias included.
        output: (n, d_model), the layer's output.
    """

    x: Tokens
    contexts: Tokens
    summed: Tokens
    fed: Tokens
    output: Tokens


def record_of(trace: Trace, layer: int) -> LayerRecord:
    """The record of the layer with this number."""
    return trace.layers[trace.numbers.index(layer)]


def opened_model(trace: Trace, what: str) -> Model:
    """The opened checkpoint that a trace came from.

    Args:
        what: what needs it, for the message.

    Raises:
        TraceError: the trace has no model.
        UnsupportedError: its model is a live one, of which only W_O is known.
    """
    source = trace.source
    if isinstance(source, Model):
        source.anatomy.computable()
        return source
    if source is None:
        raise TraceError(
            f"{what} needs the model's weights, and this trace has no model",
            where=trace.model,
            advice="read the trace with hs.load(file, model=hs.open(…))",
        )
    raise UnsupportedError(
        f"{what} needs the whole layer: its feed-forward, its LayerNorms. Of a live model only attention is known",
        where=trace.model,
        advice="open the checkpoint instead: hs.open(…).trace(…)",
    )


def whole_layers(trace: Trace, what: str) -> Model:
    """The opened checkpoint that a trace came from, if its layers run token by token once their contexts are known.

    Raises:
        TraceError: the trace has no model.
        UnsupportedError: its model is a live one, or its first layer mixes tokens in another way, too.
    """
    model = opened_model(trace, what)
    check_form(model, what, trace.model)
    return model


def check_form(model: Model, what: str, where: str) -> None:
    """Check that a model's layers mix tokens by attention alone.

    Raises:
        UnsupportedError: a convolution does so, too, as in DeBERTa v2's larger models.
    """
    if model.anatomy.has("convolution.weight"):
        raise UnsupportedError(
            f"{what} is not defined where a convolution stands beside the first layer",
            where=where,
            advice="use weights, contexts and statistics, or effects, which run the layers as they are",
        )


def post_norm(trace: Trace, layer: int, kind: str) -> PostNorm | None:
    """The bias and the LayerNorm that follow a layer's heads; None where norms come before the sums.

    Raises:
        TraceError: the trace has no model, or not all heads of the layer.
        UnsupportedError: this live model has no LayerNorm that is known to follow the residual, or the kind asks for
            one that the checkpoint doesn't have.
    """
    if record_of(trace, layer).numbers is not None:
        raise TraceError(
            "the residual needs all heads of the layer, and only some were kept",
            where=f"layer {layer}",
            advice="make the trace again with all heads, or use the kinds Attn-W and Attn-N",
        )
    if trace.source is not None and not isinstance(trace.source, Model):
        return live_post_norm(trace.source, layer)
    model = opened_model(trace, "the residual")
    check_form(model, kind, trace.model)
    encoder = model.encoder
    if model.anatomy.is_pre_norm:
        if kind != "AttnResLn-N":
            return None
        raise UnsupportedError(
            f"{kind} is defined for layers whose norms follow their sums, and {model.anatomy.base_class}'s come first",
            where=trace.model,
            advice='use "AttnRes-N", which is all of such a layer',
        )
    return PostNorm(
        bias=encoder.bias("layer.attention_output", layer),
        scale=encoder.weight("layer.attention_norm.weight", layer),
        eps=float(model.anatomy.setting("norm_eps")),
    )


def layer_inputs(trace: Trace, rows: Rows | None = None, layers: Sequence[int] | None = None) -> dict[int, Tokens]:
    """Layer number -> (n, d_model), the hidden states that it reads at these queries; by default all, of all layers.

    Kept ones where the trace has them (`hidden_states=True`); else recomputed from the trace's q, k and v and the
    opened checkpoint's weights, in one walk up to the last of these layers: at most the price of the forward pass.

    Raises:
        TraceError: there is no model, or a layer below was not kept.
        UnsupportedError: the model is a live one and kept no hidden states.
    """
    rows = np.arange(len(trace.queries)) if rows is None else rows
    layers = trace.numbers if layers is None else layers
    missing = [layer for layer in layers if f"hidden_states.{layer}" not in trace.outputs]
    if not missing:
        states = {layer: trace.outputs[f"hidden_states.{layer}"].array for layer in layers}
        return {layer: np.asarray(state, dtype=np.float32)[rows] for layer, state in states.items()}
    if trace.source is not None and not isinstance(trace.source, Model):
        raise TraceError(
            "the residual needs the layer's input, and this trace kept no hidden states",
            where=f"layer {missing[0]}",
            advice="trace it with hidden_states=True, or call it with output_hidden_states=True inside hs.capture",
        )
    below = walk(trace, rows, max(layers)) if max(layers) else []
    inputs = [embedded(trace)[rows], *(written.output for written in below)]
    return {layer: inputs[layer] for layer in layers}


def embedded(trace: Trace) -> Tokens:
    """(queries, d_model): the embeddings' output, layer 0's input."""
    encoder = whole_layers(trace, "the layer's input").encoder
    ids, segments = (np.array(values, dtype=np.int64) for values in (trace.ids, trace.segments))
    text = Input(ids, segments)
    encoder.check(text)
    return encoder.embed([text])


def walk(trace: Trace, rows: np.ndarray, layers: int | None = None) -> list[Written]:
    """Some queries' way through the layers, from the embeddings up: every layer's parts at these queries.

    The keys and values come from the trace, so only these rows are computed: O(n (S d_model + d_model d_ffn)) a layer.

    Args:
        rows: which queries.
        layers: how many layers to go up; all by default.

    Raises:
        TraceError: there is no model, or the trace lacks a layer, heads or values.
        UnsupportedError: the model is a live one.
    """
    encoder = whole_layers(trace, "the layer's input").encoder
    check_whole(trace)
    x = embedded(trace)[rows]
    way: list[Written] = []
    for layer in range(len(trace.layers) if layers is None else layers):
        record = trace.layers[layer]
        v = values_of(record, layer)
        silenced = [head for at, head in trace.ablated if at == layer]
        v = np.where(np.isin(np.arange(len(v)), silenced)[:, None, None], np.float32(0), v) if silenced else v
        way.append(through_layer(encoder, layer, x, contexts_of(record, v, rows)))
        x = way[-1].output
    return way


def through_layer(encoder: Encoder, layer: int, x: Tokens, contexts: Tokens) -> Written:
    """One layer from its input and its heads' contexts, side by side, both (n, d_model)."""
    summed = encoder.linear(contexts, "layer.attention_output", layer) + x
    residual, fed = summands(encoder, summed.copy(), layer)
    return Written(x, contexts, summed, fed.copy(), last_sum(encoder, residual, fed, layer))


def check_whole(trace: Trace) -> None:
    """Check that the trace has every layer and head from 0 on, and that its tokens look at themselves.

    Raises:
        TraceError: layers or heads are missing, it is cross-attention, or a head attended with another map.
    """
    refuse_swapped(trace)
    if trace.keys is not trace.queries:
        raise TraceError(
            f"{len(trace.queries)} queries look at {len(trace.keys)} other keys: there is no residual between them",
            where=f"trace of {trace.stack} attention",
            advice="use a trace of self-attention over a whole text",
        )
    if lacks := what_it_lacks(trace):
        advice = "make the trace again with all layers and heads; hybrid models have layers without heads to follow"
        raise TraceError(lacks, where="trace.layers", advice=advice)


def what_it_lacks(trace: Trace) -> str:
    """Name, in words, the layers or heads of its model that the trace lacks; empty if it has all.

    An opened checkpoint tells how many there are. Otherwise layers and heads that were chosen have their numbers.
    """
    sizes = trace.source.anatomy.known() if isinstance(trace.source, Model) else None
    layers = tuple(range(len(trace.layers) if sizes is None else sizes.layers))
    if trace.numbers != layers or (sizes is None and any(record.number is not None for record in trace.layers)):
        return f"it has the attention of layers {few(list(map(str, trace.numbers)), 8)}, not of every layer from 0 on"
    whole = (record.numbers is None if sizes is None else len(record.q) == sizes.heads for record in trace.layers)
    return "" if all(whole) else "only some heads were kept"


def live_post_norm(source: ModelWeights, layer: int) -> PostNorm:
    """The bias and LayerNorm of the module that holds W_O, as BertSelfOutput does: norm(dense(contexts) + residual).

    The module is run on random numbers, and refused where it gives anything else.

    Raises:
        TraceError: the model is gone, or its weights have changed.
        UnsupportedError: no such module holds W_O, or it computes something else.
    """
    import torch
    from torch import nn

    from headscope.live.keeping.source import CapturedModel

    where = f"layer {layer}"
    if not isinstance(source, CapturedModel):
        raise UnsupportedError(
            f"a {type(source).__name__} tells nothing of the LayerNorm after its attention", where=where, advice=ADVICE
        )
    model = source.unchanged(where)
    output = source.projection(layer)
    if output is None or len(output.paths) != 1:
        raise UnsupportedError(f"{source.name}: no single Linear is W_O", where=where, advice=ADVICE)
    path = output.paths[0].rpartition(".")[0]
    holder = model.get_submodule(path)
    linears = [child for child in holder.children() if isinstance(child, nn.Linear)]
    norms = [(name, child) for name, child in holder.named_children() if isinstance(child, nn.LayerNorm)]
    W_O = with_numbers(model, f"{output.paths[0]}.weight", where)
    if len(linears) != 1 or len(norms) != 1 or not _computes(holder, linears[0], norms[0][1], W_O):
        raise UnsupportedError(
            f"{source.name}: {path or type(model).__name__} is not LayerNorm(contexts W_O + b_O + residual), "
            "so the LayerNorm that follows the heads is not known",
            where=where,
            advice=ADVICE,
        )
    name, norm = norms[0]
    bias, weight = (with_numbers(model, x, where) for x in (f"{output.paths[0]}.bias", f"{path}.{name}.weight"))
    bias = torch.zeros(linears[0].out_features, device="cpu") if bias is None else bias
    scale, shift = (np.asarray(tensor.detach().float().cpu().numpy()) for tensor in (weight, bias))
    return PostNorm(bias=shift, scale=scale, eps=float(norm.eps))


def _computes(holder: nn.Module, linear: nn.Linear, norm: nn.LayerNorm, W_O: Any) -> bool:
    """Return True if the module gives norm(linear(contexts) + residual) for random contexts and residual."""
    import torch

    from headscope.live.hooks import drawing, drawn_next

    generator = torch.Generator().manual_seed(0)
    contexts = torch.randn(1, 3, linear.in_features, generator=generator, device="cpu").to(W_O)
    residual = torch.randn(1, 3, linear.out_features, generator=generator, device="cpu").to(W_O)
    if norm.weight is None or norm.normalized_shape != (linear.out_features,):
        return False
    with torch.no_grad(), drawing(drawn_next(holder)):  # dropout in training mode draws
        try:
            given = holder(contexts, residual)
        except (TypeError, RuntimeError):
            return False
        expected = norm(linear(contexts) + residual)
    return isinstance(given, torch.Tensor) and torch.allclose(given, expected, atol=TOLERANCE, rtol=TOLERANCE)
