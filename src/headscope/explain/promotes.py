"""The output of a head or a feed-forward in words: the tokens whose masked-LM logits it raises and lowers most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.activations import activate
from headscope.anatomy.heads import check_index
from headscope.errors import InputError, UnsupportedError
from headscope.explain.parts import Written, check_whole, deviations, output_weights, post_norm_model, record_of, walk
from headscope.explain.rows import contexts_of, values_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace import Trace
    from headscope.encoder import Encoder
    from headscope.model import Model

    Vector = Float[np.ndarray, " d_model"]

PARTS = ("attention", "feed_forward")
STEP = 1e-4
"""Half the step of the activation's central difference, in fp64."""


@dataclass(frozen=True)
class Effect:
    """One token of the vocabulary.

    Attributes:
        token: as the vocabulary spells it.
        id: its id.
        effect: what is added to its logit.
    """

    token: str
    id: int
    effect: float


@dataclass(frozen=True, eq=False)
class Promotion:
    """The direct effect of one part of the model on the masked-LM logits at one token.

    Attributes:
        part: what writes, in words.
        query: the token at which it writes.
        raised: the tokens whose logits rise most, the largest effect first.
        lowered: those whose logits fall most, the largest fall first.
        effects: (vocabulary,): all of them. A number added to all logits alike changes no probability:
            `effects - effects.mean()` leaves it out.
    """

    part: str
    query: int
    raised: tuple[Effect, ...]
    lowered: tuple[Effect, ...]
    effects: Float[np.ndarray, " vocabulary"]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without the whole vocabulary."""
        lists = {"raised": self.raised, "lowered": self.lowered}
        rows = {
            name: [{"token": e.token, "id": e.id, "effect": e.effect} for e in effects]
            for name, effects in lists.items()
        }
        return {"part": self.part, "query": self.query, **rows}

    def __repr__(self) -> str:
        lists = (("raises", self.raised), ("lowers", self.lowered))
        lines = [f"{verb} " + ", ".join(f"{e.token} {e.effect:+.3f}" for e in effects) for verb, effects in lists]
        return "\n  ".join([f"{self.part}, at token {self.query}:", *lines])


def head_promotes(
    trace: Trace, layer: int, head: int, query: int, *, top: int = 10, key: int | None = None
) -> Promotion:
    """The tokens whose masked-LM logits a head's output at one token raises and lowers most.

    The direct effect: o_i = context_i W_O goes along the residual, through every LayerNorm above made linear (centred,
    scaled, divided by its true deviation at this token), and through the masked-LM head, whose activation is replaced
    by its tangent at the point where the model is. It is the logits' exact first-order change for LayerNorms held fixed
    (the residual view is Elhage et al. 2021; for BERT's post-norm layers, LayerNorm by LayerNorm, Kobayashi et al.
    2021 and Modarressi et al. 2022). What later heads and feed-forwards make of the output is not in it.

    The cost: one token's way up the layers, O(layers (S d_model + d_model d_ffn)), and one row of the decoder.

    Args:
        trace: of a checkpoint with a masked-LM head that headscope opened, with all layers and heads.
        query: the token at which the head writes.
        top: how many tokens to name on each side.
        key: what the OV matrix alone writes with all its weight on this token, v_key W_O, instead of the head's output.

    Raises:
        InputError: no such token; top is below 1.
        UnsupportedError: the checkpoint has no masked-LM head, or the model is a live one.
        TraceError: there is no model, or the trace lacks layers, heads or values.
    """
    model = masked_lm_model(trace)
    query = check_index(query, len(trace), "token", "the trace")
    record, v = record_of(trace, layer), values_of(record_of(trace, layer), layer)[head]
    W_O = output_weights(trace, layer)[head]
    part = f"layer {layer}, head {head}"
    if key is None:
        joined = contexts_of(record, values_of(record, layer), np.array([query]))[0]
        written = joined.reshape(len(record.q), -1)[head] @ W_O
    else:
        key = check_index(key, len(trace), "token", "the trace")
        written = v[key] @ W_O
        part += f", OV matrix on token {key}"
    return _promotion(model, trace, walk(trace, np.array([query])), layer, written, "attention", part, query, top)


def layer_promotes(trace: Trace, layer: int, query: int, *, top: int = 10, part: str = "feed_forward") -> Promotion:
    """The tokens whose masked-LM logits a layer's feed-forward, or its attention, raises and lowers most.

    As `head_promotes`; for the feed-forward see Geva et al. 2022. b_2 and b_O belong to the feed-forward and to
    attention.

    Args:
        part: feed_forward, or attention, all heads and b_O together.

    Raises:
        InputError: no such token or part; top is below 1.
        UnsupportedError: the checkpoint has no masked-LM head, or the model is a live one.
        TraceError: there is no model, or the trace lacks layers, heads or values.
    """
    if part not in PARTS:
        raise InputError(f"a layer has no part {part!r:.40}", where="part", advice=f"use one of {', '.join(PARTS)}")
    model = masked_lm_model(trace)
    query = check_index(query, len(trace), "token", "the trace")
    way = walk(trace, np.array([query]))
    written = way[layer].fed[0]
    if part == "attention":
        rows = np.array([query])
        joined = contexts_of(record_of(trace, layer), values_of(record_of(trace, layer), layer), rows)
        W_O = output_weights(trace, layer)
        written = joined[0] @ W_O.reshape(-1, W_O.shape[-1])
        written = written + model.encoder.bias("layer.attention_output", layer)
    words = f"layer {layer}, {part.replace('_', '-')}"
    return _promotion(model, trace, way, layer, written, part, words, query, top)


def masked_lm_model(trace: Trace) -> Model:
    """The opened checkpoint of a whole trace, which has a masked-LM head.

    Raises:
        UnsupportedError: it has none, or the model is a live one.
        TraceError: there is no model, or the trace lacks layers or heads.
    """
    check_whole(trace)
    model = post_norm_model(trace, "the effect on the logits")
    if "masked_lm" not in model.anatomy.tasks:
        on_top = ", ".join(part.name for part in model.extra_components) or "nothing"
        raise UnsupportedError(
            f"{model.name} has no masked-LM head; on top of {model.anatomy.base_class} it has {on_top}",
            where=model.checkpoint.where,
            advice="open a checkpoint that was saved from a …ForMaskedLM or …ForPreTraining class",
        )
    return model


def _promotion(
    model: Model,
    trace: Trace,
    way: list[Written],
    layer: int,
    written: Vector,
    part: str,
    words: str,
    query: int,
    top: int,
) -> Promotion:
    if top < 1:
        raise InputError(f"top is {top}", where="top", advice="ask for at least one token")
    direction = along_the_residual(model.encoder, way, layer, written.astype(np.float64), part)
    effects = through_the_head(model, way[-1].output[0], direction)
    order = np.argsort(-effects, kind="stable")
    rising, falling = order[:top], order[::-1][:top]
    raised, lowered = (
        tuple(Effect(model.tokenizer.token(int(at)), int(at), float(effects[at])) for at in ids)
        for ids in (rising, falling)
    )
    return Promotion(words, query, raised, lowered, effects.astype(np.float32))


def along_the_residual(encoder: Encoder, way: list[Written], layer: int, vector: Vector, part: str) -> Vector:
    """(d_model,): what reaches the last hidden state of a vector written in a layer, along the residual alone.

    Args:
        way: one token's way through all layers.
        part: attention, whose output passes both LayerNorms of the layer, or feed_forward, which passes the last.
    """

    def normed(role: str, at: int, deviation: Float[np.ndarray, " n"]) -> Vector:
        return (vector - vector.mean()) * encoder.weight(f"{role}.weight", at) / deviation[0]

    for at in range(layer, len(way)):
        if at > layer or part == "attention":
            vector = normed("layer.attention_norm", at, way[at].deviation)
        vector = normed("layer.output_norm", at, way[at].output_deviation)
    return vector


def through_the_head(model: Model, last: Vector, direction: Vector) -> Float[np.ndarray, " vocabulary"]:
    """(vocabulary,): the change of the masked-LM logits along a direction of the last hidden state, to first order.

    logits = LayerNorm(act(x W + b)) D^T + bias; the LayerNorm's deviation is held, act is its tangent.
    """
    encoder, anatomy = model.encoder, model.anatomy
    W, b = encoder.weight("masked_lm.transform.weight"), encoder.weight("masked_lm.transform.bias")
    activation = (anatomy.family.masked_lm_activation if anatomy.family else None) or str(anatomy.setting("activation"))
    x = last.astype(np.float64) @ W.T + b
    points = np.stack([x, x + STEP, x - STEP])
    activate(activation, points, encoder.threads)
    deviation = deviations(points[:1], float(anatomy.setting("norm_eps")))[0]
    change = (points[1] - points[2]) / (2 * STEP) * (direction @ W.T)
    change = (change - change.mean()) / deviation * encoder.weight("masked_lm.norm.weight")
    return encoder.weight("masked_lm.decoder") @ change.astype(np.float32)
