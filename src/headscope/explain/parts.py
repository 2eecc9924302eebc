"""The parts of a layer that weights alone leave out: W_O, the bias, the residual's LayerNorm, and the layer's input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import TraceError, UnsupportedError
from headscope.explain.post_norm import PostNorm
from headscope.explain.rows import contexts_of, values_of
from headscope.model import Model
from headscope.statistics.table import layer_W_O

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace import LayerRecord, Trace
    from headscope.encoder import Encoder, Tokens


@dataclass(frozen=True, eq=False)
class Written:
    """One layer at some queries, from its input to its output.

    Attributes:
        x: (n, d_model), the layer's input at these queries.
        deviation: (n,), of x + attention + b_O, which the attention's LayerNorm divides by.
        middle: (n, d_model), what that LayerNorm gives.
        fed: (n, d_model), what the feed-forward writes, its bias included.
        output_deviation: (n,), of middle + fed, which the layer's last LayerNorm divides by.
        output: (n, d_model), the layer's output.
    """

    x: Tokens
    deviation: Float[np.ndarray, " n"]
    middle: Tokens
    fed: Tokens
    output_deviation: Float[np.ndarray, " n"]
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


def post_norm_model(trace: Trace, what: str) -> Model:
    """The opened checkpoint that a trace came from, if a norm follows every sum of its layers, as in BERT.

    Raises:
        TraceError: the trace has no model.
        UnsupportedError: its model is a live one, or its layers have another formula.
    """
    model = opened_model(trace, what)
    anatomy, reason = model.anatomy, ""
    if anatomy.family is not None and anatomy.family.layer_form != "post_norm":
        reason = f"{anatomy.base_class}'s norms come before its sums"
    elif anatomy.has("convolution.weight"):
        reason = "a convolution stands beside the first layer"
    if reason:
        raise UnsupportedError(
            f"{what} is defined for layers whose norms follow their sums, and {reason}",
            where=trace.model,
            advice="use weights, contexts and statistics, or effects, which run the layers as they are",
        )
    return model


def output_weights(trace: Trace, layer: int) -> Float[np.ndarray, "heads d_value d_model"]:
    """(heads, d_value, d_model): W_O of each head that was kept, in fp32; 0 for silenced heads, which write nothing.

    Raises:
        TraceError: the trace has no model.
        UnsupportedError: it isn't known where this live model keeps W_O.
    """
    if trace.source is None:
        raise TraceError(
            "this measure needs W_O, which is in the model and not in the trace",
            where=f"layer {layer}",
            advice="read the trace with hs.load(file, model=hs.open(…)), or use a kind that ends in W",
        )
    return layer_W_O(trace, layer)


def post_norm(trace: Trace, layer: int) -> PostNorm:
    """The bias and the LayerNorm that follow a layer's heads.

    Raises:
        TraceError: the trace has no model, or not all heads of the layer.
        UnsupportedError: this live model has no LayerNorm that is known to follow the residual.
    """
    if trace.layers[trace.numbers.index(layer)].numbers is not None:
        raise TraceError(
            "the residual needs all heads of the layer, and only some were kept",
            where=f"layer {layer}",
            advice="make the trace again with all heads, or use the kinds Attn-W and Attn-N",
        )
    if trace.source is not None and not isinstance(trace.source, Model):
        from headscope.explain.live import live_post_norm  # imports torch

        return live_post_norm(trace.source, layer)
    model = post_norm_model(trace, "the residual")
    encoder = model.encoder
    return PostNorm(
        bias=encoder.bias("layer.attention_output", layer),
        scale=encoder.weight("layer.attention_norm.weight", layer),
        eps=float(model.anatomy.setting("norm_eps")),
    )


def layer_input(trace: Trace, layer: int) -> Tokens:
    """(queries, d_model): the hidden states that a layer reads.

    Kept ones where the trace has them (`hidden_states=True`); else recomputed from the trace's q, k and v and the
    opened checkpoint's weights, at the price of the forward pass up to this layer.

    Raises:
        TraceError: there is no model, or a layer below was not kept.
        UnsupportedError: the model is a live one and kept no hidden states.
    """
    kept = trace.outputs.kept.get(f"hidden_states.{layer}")
    if kept is not None:
        return np.asarray(kept.array, dtype=np.float32)
    if trace.source is not None and not isinstance(trace.source, Model):
        raise TraceError(
            "the residual needs the layer's input, and this trace kept no hidden states",
            where=f"layer {layer}",
            advice="call the model with output_hidden_states=True inside hs.capture",
        )
    rows = np.arange(len(trace.queries))
    return embedded(trace) if layer == 0 else walk(trace, rows, layer)[-1].output


def embedded(trace: Trace) -> Tokens:
    """(queries, d_model): the embeddings' output, layer 0's input."""
    from headscope.encoder import Input

    encoder = post_norm_model(trace, "the layer's input").encoder
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
    encoder = post_norm_model(trace, "the layer's input").encoder
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
    eps = float(encoder.anatomy.setting("norm_eps"))
    total = encoder.linear(contexts, "layer.attention_output", layer) + x
    deviation = deviations(total, eps)
    middle = encoder.norm(total, "layer.attention_norm", layer)
    fed = encoder.feed_forward(middle, layer)
    total = middle + fed
    output_deviation = deviations(total, eps)
    return Written(x, deviation, middle, fed, output_deviation, encoder.norm(total, "layer.output_norm", layer))


def deviations(x: Tokens, eps: float) -> Float[np.ndarray, " n"]:
    """(n,): what a LayerNorm divides each row by, sqrt(variance + eps)."""
    return np.sqrt(x.var(axis=-1, dtype=np.float64) + eps)


def check_whole(trace: Trace) -> None:
    """Check that the trace has every layer and head from 0 on, and that its tokens look at themselves.

    Raises:
        TraceError: layers or heads are missing, or it is cross-attention.
    """
    if trace.keys is not trace.queries:
        raise TraceError(
            f"{len(trace.queries)} queries look at {len(trace.keys)} other keys: there is no residual between them",
            where=f"trace of {trace.stack} attention",
            advice="use a trace of self-attention over a whole text",
        )
    if trace.numbers != tuple(range(len(trace.layers))) or any(record.numbers is not None for record in trace.layers):
        raise TraceError(
            "only some layers or heads were kept",
            where="trace.layers",
            advice="make the trace again with all layers and heads",
        )
