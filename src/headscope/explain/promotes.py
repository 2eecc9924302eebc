"""Outputs in words: the masked-LM logits that a head or a feed-forward raises and lowers most; all heads at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headscope.anatomy.heads import check_index
from headscope.encoder.forward import summands
from headscope.errors import InputError, not_a_number
from headscope.explain.attribution import dense_steps
from headscope.explain.residual import (
    Written,
    check_form,
    check_whole,
    opened_model,
    record_of,
    values_of,
    walk,
)
from headscope.explain.steps import Chain, HeldNorm, held_norm
from headscope.results.explained import Promotion
from headscope.runs.engine import NumpyRunner
from headscope.runs.targets import lacks
from headscope.settings import whole
from headscope.traces import layer_W_O

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.encoder import Encoder, Input
    from headscope.model import Model
    from headscope.traces import HeadTrace, LayerTrace, Trace

    Vector = Float[np.ndarray, " d_model"]
    Places = Sequence[Int[np.ndarray, " _"]]


PARTS = ("attention", "feed_forward")
WHAT = "the effect on the logits"


def head_promotes(head: HeadTrace, query: int, *, top: int = 10, key: int | None = None) -> Promotion:
    """The tokens whose masked-LM logits a head's output at one token raises and lowers most.

    The direct effect: o_i = context_i W_O goes along the residual, through every norm in its way made linear (centred,
    scaled, divided by its true deviation at this token; where norms come before the sums, that after the last layer
    alone), and through the masked-LM head, whose activation is replaced by its tangent at the point where the model is.
    It is the logits' exact first-order change for norms held fixed (the residual view is Elhage et al. 2021; for BERT's
    post-norm layers, LayerNorm by LayerNorm, Kobayashi et al. 2021 and Modarressi et al. 2022). What later heads and
    feed-forwards make of the output is not in it.

    The cost: one token's way up the layers, O(layers (S d_model + d_model d_ffn)), and one row of the decoder.
    Arguments are those of `HeadTrace.promotes`.

    Raises:
        InputError: no such token; top is below 1.
        UnsupportedError: the checkpoint has no masked-LM head, or the model is a live one.
        TraceError: there is no model, or the trace lacks layers, heads or values.
        CheckpointError: an effect is not a number.
    """
    trace, layer, at = head.trace, head.layer, head.head
    model = _masked_lm_model(trace)
    query = check_index(query, len(trace), "token", "the trace")
    way, W_O = walk(trace, np.array([query])), layer_W_O(trace, layer)
    part, context = f"layer {layer}, head {at}", way[layer].contexts.reshape(len(W_O), -1)[at]
    if key is not None:
        key = check_index(key, len(trace), "token", "the trace")
        part, context = f"{part}, OV matrix on token {key}", values_of(record_of(trace, layer), layer)[at, key]
    return _promotion(model, way, layer, context @ W_O[at], "attention", part, query, top)


def layer_promotes(of: LayerTrace, query: int, *, top: int = 10, part: str = "feed_forward") -> Promotion:
    """The tokens whose masked-LM logits a layer's feed-forward, or its attention, raises and lowers most.

    As `head_promotes`; for the feed-forward see Geva et al. 2022. b_2 and b_O belong to the feed-forward and to
    attention. Arguments are those of `LayerTrace.promotes`.

    Raises:
        InputError: no such token or part; top is below 1.
        UnsupportedError: the checkpoint has no masked-LM head, or the model is a live one.
        TraceError: there is no model, or the trace lacks layers, heads or values.
        CheckpointError: an effect is not a number.
    """
    if part not in PARTS:
        raise InputError(f"a layer has no part {part!r:.40}", where="part", advice=f"use one of {', '.join(PARTS)}")
    trace, layer = of.trace, of.layer
    model = _masked_lm_model(trace)
    query = check_index(query, len(trace), "token", "the trace")
    way = walk(trace, np.array([query]))
    written = way[layer].fed
    if part == "attention":
        written = model.encoder.linear(way[layer].contexts, "layer.attention_output", layer)
    return _promotion(model, way, layer, written[0], part, f"layer {layer}, {part.replace('_', '-')}", query, top)


def _masked_lm_model(trace: Trace) -> Model:
    """The opened checkpoint of a whole trace, which has a masked-LM head.

    Raises:
        UnsupportedError: it has none, or the model is a live one.
        TraceError: there is no model, or the trace lacks layers or heads.
    """
    check_whole(trace)
    return with_masked_lm(opened_model(trace, WHAT), trace.model)


def with_masked_lm(model: Model, where: str) -> Model:
    """The model, if the effects on its masked-LM logits are defined.

    Raises:
        UnsupportedError: it has no masked-LM head, or its layers have another formula.
    """
    check_form(model, WHAT, where)
    if "masked_lm" not in model.anatomy.tasks:
        raise lacks(model, "masked-LM head", "ForMaskedLM or …ForPreTraining", instead="")
    return model


def _promotion(
    model: Model, way: list[Written], layer: int, written: Vector, part: str, words: str, query: int, top: int
) -> Promotion:
    """The effects of a vector that a part of a layer writes at a query; none may be NaN."""
    top = whole(top, "top", 1)
    direction = along_the_residual(model.encoder, way, layer, written.astype(np.float64), part)
    last = model.encoder.after_layers(way[-1].output.copy())
    (change,) = Chain(dense_steps(model, "masked_lm", last)).into(direction[None])
    effects = model.tops.decoder()[0] @ change.astype(np.float32)
    if not np.isfinite(effects).all():
        raise not_a_number(f"the effects of {words} on the logits are NaN or infinite", model.checkpoint.where)
    order = np.argsort(-effects, kind="stable")
    raised, lowered = (
        [{"token": model.tokenizer.token(int(at)), "id": int(at), "effect": float(effects[at])} for at in ids]
        for ids in (order[:top], order[::-1][:top])
    )
    return Promotion(words, query, raised, lowered, effects)


def along_the_residual(encoder: Encoder, way: list[Written], layer: int, vector: Vector, part: str) -> Vector:
    """(d_model,): what reaches the last hidden state of a vector written in a layer, along the residual alone.

    Args:
        way: one token's way through all layers.
        part: attention, whose output passes all norms of the layer, or feed_forward, which passes the last.
    """
    rows = vector[None]
    for at in range(layer, len(way)):
        for norm in norms_passed(encoder, at, way[at].summed, way[at].fed, part if at == layer else "attention"):
            rows = norm.into(rows)
    return rows[0]


def norms_passed(
    encoder: Encoder,
    layer: int,
    summed: Float[np.ndarray, "n d_model"],
    fed: Float[np.ndarray, "n d_model"],
    part: str = "attention",
) -> list[HeldNorm]:
    """The norms that what is written into the residual passes in a layer, held at some queries.

    Where norms come before the sums there are none, but that after the last layer.

    Args:
        encoder: the encoder.
        layer: the layer.
        summed: the sum of the layer's input and its attention's output.
        fed: what the feed-forward writes.
        part: what wrote it: attention, or whatever came before the layer, or feed_forward, which passes the last norm.
    """
    if encoder.anatomy.is_pre_norm:
        last = layer == encoder.anatomy.known().layers - 1 and encoder.anatomy.has("last_norm.weight")
        return [held_norm(encoder, summed + fed, "last_norm")] if last else []
    residual = encoder.norm(summed.copy(), "layer.attention_norm", layer)
    after_attention = [held_norm(encoder, summed, "layer.attention_norm", layer)] if part == "attention" else []
    return [*after_attention, held_norm(encoder, residual + fed, "layer.output_norm", layer)]


CELLS = 1 << 23
"""Most numbers of the heads' directions that are held at once."""


def all_promote(
    model: Model, texts: Sequence[Input], places: Places, tokens: Int[np.ndarray, "heads_or_one k"]
) -> Iterator[tuple[slice, Float[np.ndarray, "heads_total n k"]]]:
    """Yield a few positions at a time, which of all they are, and what each head adds to the tokens' logits at them.

    Args:
        model: with a masked-LM head: see `with_masked_lm`.
        texts: run side by side; memory grows linearly with their tokens.
        places: the positions in each text, in ascending order.
        tokens: the ids whose logits are wanted, of each head (layer 0's first), or one row for all heads.

    Raises:
        InputError: an id is beyond the vocabulary, or a text is longer than the position table.
        CheckpointError: a parameter is missing.
    """
    encoder, sizes = model.encoder, model.anatomy.known()
    base = NumpyRunner(model).base(texts)
    every = np.concatenate([span.start + at for span, at in zip(base.rows, places, strict=True)])
    decoder = np.swapaxes(model.tops.decoder()[0][tokens], 1, 2)  # (heads or 1, width, k)
    step = max(1, CELLS // (sizes.layers * sizes.heads * (sizes.d_model + tokens.shape[1])))
    for start in range(0, len(every), step):
        part = slice(start, min(start + step, len(every)))
        rows = every[part]
        directions = np.empty((0, len(rows), sizes.d_model), dtype=np.float32)  # of each head, along the residual alone
        for layer, kept in enumerate(base.layers):
            assert kept.summed is not None
            assert kept.contexts is not None
            summed = kept.summed[rows]
            _, fed = summands(encoder, summed.copy(), layer)
            W_O = encoder.weight("layer.attention_output.weight", layer)  # (d_model, heads * d_value), as stored
            written = kept.contexts[:, rows] @ W_O.reshape(len(W_O), sizes.heads, -1).transpose(1, 2, 0)
            directions = np.concatenate([directions, written])
            for norm in norms_passed(encoder, layer, summed, fed):
                directions = norm.into(directions)
        yield part, Chain(dense_steps(model, "masked_lm", base.last[rows])).into(directions) @ decoder
