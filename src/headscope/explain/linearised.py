"""A forward pass made linear at one text, and read backwards: what every token's embedding adds to one number.

DecompX (Modarressi et al. 2023, “DecompX: Explaining Transformers Decisions by Propagating Token Decomposition”)
follows each token's share x_{i<-k} of every vector x_i through the model. Attention weights, the deviations
of LayerNorm and the slopes of activations are held at their true values, so that every step is linear in the shares:

    attention    z_{i<-k} = sum_h sum_j p_ij^h (x_{j<-k} W_V^h) W_O^h
    LayerNorm    (x_{i<-k} - mean(x_{i<-k})) / deviation(x_i) * gamma
    activation   theta_i * x_{i<-k}, theta_i = f(x_i) / x_i, the slope from the origin

and biases (b_V, b_O, b_1, b_2, beta, those on top) enter a share of their own, which the authors' code calls the bias
token; its default spreads each bias b over the tokens instead, by |b . share|. The paper carries all shares forward,
tokens x tokens x d_model numbers: 0.8 GB for BERT-base at 512 tokens. One output number is a linear function of them,
so its gradient through the linear steps gives the same numbers: token k adds g_k . x_k, with x_k its embedding after
the embeddings' norm and g_k that gradient. It costs about two forward passes. What is kept of a layer is its input, Q,
K and theta, 4 (3 d_model + d_ffn) bytes a token: 132 MB for BERT-base at 512 tokens. Weights are recomputed in blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope.activations import activate
from headscope.attention import TILE_CELLS, attend, join_heads, scores, split_heads, weights
from headscope.errors import UnsupportedError
from headscope.explain.target import Target

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.encoder import Encoder, Input
    from headscope.model import Model

    Tokens = Float[np.ndarray, "tokens d_model"]

SMALL = np.float32(1e-6)
"""Below this, an input's slope f(x) / x is taken at this distance from 0."""

FEED_FORWARD = {f"layer.{part}.{kind}" for part in ("ffn_in", "ffn_out") for kind in ("weight", "bias")}


@dataclass(frozen=True, eq=False)
class FrozenNorm:
    """A LayerNorm held at one text: linear but for its shift.

    Attributes:
        scale: (n, 1), one over each row's deviation.
        role: whose parameters it has.
        layer: of which layer.
    """

    scale: Float[np.ndarray, "n 1"]
    role: str
    layer: int | None = None

    def back(self, encoder: Encoder, g: Float[np.ndarray, "n width"]) -> tuple[Float[np.ndarray, "n width"], float]:
        """The gradient before the norm, and what its shift adds."""
        added = float((g @ encoder.weight(f"{self.role}.bias", self.layer)).sum())
        g = g * encoder.weight(f"{self.role}.weight", self.layer)
        return (g - g.mean(axis=-1, keepdims=True)) * self.scale, added


@dataclass(frozen=True, eq=False)
class FrozenLayer:
    """A layer held at one text.

    Attributes:
        x: (tokens, d_model), its input.
        q, k: (heads, tokens, d_head).
        lse: (heads, tokens).
        scale: what q . k is multiplied by.
        attention_norm, output_norm: its norms.
        slopes: (tokens, d_ffn), f(x) / x of the activation.
    """

    x: Tokens
    q: Float[np.ndarray, "heads tokens d_head"]
    k: Float[np.ndarray, "heads tokens d_head"]
    lse: Float[np.ndarray, "heads tokens"]
    scale: float
    attention_norm: FrozenNorm
    output_norm: FrozenNorm
    slopes: Float[np.ndarray, "tokens d_ffn"]

    def rows(self) -> Iterator[tuple[slice, Float[np.ndarray, "heads n tokens"]]]:
        """The weights of a few queries at a time, at most TILE_CELLS cells."""
        heads, tokens, _ = self.q.shape
        step = max(1, TILE_CELLS // (heads * tokens))
        for start in range(0, tokens, step):
            part = slice(start, min(start + step, tokens))
            tile = scores(self.q[:, part], self.k, scale=self.scale)
            yield part, weights(tile, self.lse[:, part])


@dataclass(frozen=True, eq=False)
class Frozen:
    """A forward pass held at one text.

    Attributes:
        layers: the layers.
        last: (tokens, d_model), the last hidden state.
    """

    layers: tuple[FrozenLayer, ...]
    last: Tokens

    @property
    def embedded(self) -> Tokens:
        """(tokens, d_model): the embeddings after their norm (and projection), where the shares start."""
        return self.layers[0].x


def check_linearisable(model: Model) -> None:
    """Check that every step of the model's layers has a rule here.

    Raises:
        UnsupportedError: a gated feed-forward network, a rotation, or another part without a rule.
    """
    if missing := without_rule(model):
        raise UnsupportedError(
            f"{model.anatomy.base_class} has {missing}: no rule has been derived and tested for this",
            where=model.checkpoint.where,
            advice="use method='integrated_gradients', which needs no rule",
        )


def without_rule(model: Model) -> str | None:
    """The first part of the model's layers that no rule here is for, in words; None if there is one for all."""
    family = model.anatomy.family
    if family is None:
        return None
    gates = [spec.role for spec in family.layer if spec.role.startswith("layer.ffn") and spec.role not in FEED_FORWARD]
    parts = {
        "norms before its sums": family.layer_form != "post_norm",
        "rotated queries and keys": model.anatomy.rotates,
        "scores that depend on distances": bool(family.terms),
        f"{gates[0]} in its feed-forward network" if gates else "": bool(gates),
    }
    return next((name for name, present in parts.items() if present), None)


def freeze(encoder: Encoder, text: Input) -> Frozen:
    """One forward pass, of which everything is kept that makes it linear.

    Raises:
        InputError: an id is beyond the vocabulary, or the text is longer than the position table.
    """
    encoder.checkpoint.fetch()
    encoder.check(text)
    sizes = encoder.anatomy.known()
    scale = 1 / float(np.sqrt(sizes.d_head))
    x = encoder.embed([text])
    layers = []
    for layer in range(sizes.layers):
        entered = x
        q, k, v = (
            np.ascontiguousarray(split_heads(encoder.linear(x, f"layer.{role}", layer), sizes.heads))
            for role in ("query", "key", "value")
        )
        context, lse = attend(q, k, v, scale=scale)
        summed = encoder.linear(join_heads(context), "layer.attention_output", layer)
        summed += x
        attention_norm = frozen_norm(encoder, summed, "layer.attention_norm", layer)
        x = encoder.norm(summed, "layer.attention_norm", layer)
        middle = encoder.linear(x, "layer.ffn_in", layer)
        slopes = slopes_of(encoder, str(encoder.anatomy.setting("activation")), middle)
        middle *= slopes
        out = encoder.linear(middle, "layer.ffn_out", layer)
        out += x
        output_norm = frozen_norm(encoder, out, "layer.output_norm", layer)
        x = encoder.norm(out, "layer.output_norm", layer)
        layers.append(FrozenLayer(entered, q, k, lse, scale, attention_norm, output_norm, slopes))
    return Frozen(tuple(layers), x)


def frozen_norm(encoder: Encoder, x: Float[np.ndarray, "n width"], role: str, layer: int | None = None) -> FrozenNorm:
    """A LayerNorm at its true deviations of x."""
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + np.float32(encoder.anatomy.setting("norm_eps")))
    return FrozenNorm(1 / deviation, role, layer)


def slopes_of(encoder: Encoder, activation: str, x: Float[np.ndarray, "n width"]) -> Float[np.ndarray, "n width"]:
    """theta = f(x) / x, element by element."""
    safe = np.where(np.abs(x) < SMALL, np.copysign(SMALL, x), x)
    values = safe.copy()
    activate(activation, values, encoder.threads)
    values /= safe
    return values


def back_through(encoder: Encoder, frozen: Frozen, g: Tokens) -> tuple[Tokens, float]:
    """The gradient at the embeddings from the one at the last hidden state, and what the biases between them add."""
    bias = 0.0
    for layer in reversed(range(len(frozen.layers))):
        held = frozen.layers[layer]
        g, added = held.output_norm.back(encoder, g)
        inner = g @ encoder.weight("layer.ffn_out.weight", layer)
        inner *= held.slopes
        added += float((g @ encoder.weight("layer.ffn_out.bias", layer)).sum())
        added += float((inner @ encoder.weight("layer.ffn_in.bias", layer)).sum())
        g = g + inner @ encoder.weight("layer.ffn_in.weight", layer)
        g, shift = held.attention_norm.back(encoder, g)
        added += shift + float((g @ encoder.weight("layer.attention_output.bias", layer)).sum())
        contexts = split_heads(g @ encoder.weight("layer.attention_output.weight", layer), len(held.q))
        values = values_gradient(held, contexts)
        added += float((values @ encoder.weight("layer.value.bias", layer)).sum())
        g = g + values @ encoder.weight("layer.value.weight", layer)
        bias += added
    return g, bias


def values_gradient(held: FrozenLayer, contexts: Float[np.ndarray, "heads tokens d_head"]) -> Tokens:
    """The gradient at the values, all heads side by side: sum_i p_ij g_i, from that at the contexts."""
    total = np.zeros_like(contexts)
    for part, tile in held.rows():
        total += tile.swapaxes(-1, -2) @ contexts[:, part]
    return join_heads(total)


def top_gradient(model: Model, target: Target, last: Tokens) -> tuple[Tokens, float]:
    """The gradient of a target at the last hidden state through what sits on top, made linear, and the biases' part.

    With g the gradient and c the biases' part, the target is sum_i g_i . last_i + c. The length of a pooled vector is
    held at its true value, so that a cosine is linear too.
    """
    encoder = model.encoder
    g = np.zeros_like(last)
    if target.direction is not None:
        along = (target.direction / target.length).astype(np.float32)
        if target.row is None:
            g[:] = along / len(last)
        else:
            g[target.row] = along
        return g, 0.0
    assert target.row is not None
    assert target.index is not None
    row = last[target.row : target.row + 1]
    if target.kind == "word":
        g[target.row], bias = _word(model, target.index, row)
    elif target.kind == "token":
        g[target.row] = encoder.weight("classifier.weight")[target.index]
        bias = float(encoder.weight("classifier.bias")[target.index])
    else:
        g[target.row], bias = _class(model, target.index, row)
    return g, bias


def _word(model: Model, index: int, row: Tokens) -> tuple[Float[np.ndarray, " d_model"], float]:
    """Through the masked-LM head: dense, activation, norm, the word's row of the decoder."""
    encoder, anatomy = model.encoder, model.anatomy
    activation = anatomy.family.masked_lm_activation if anatomy.family else None
    middle = encoder.linear(row, "masked_lm.transform")
    slopes = slopes_of(encoder, activation or str(anatomy.setting("activation")), middle)
    norm = frozen_norm(encoder, middle * slopes, "masked_lm.norm")
    own_bias = anatomy.has("masked_lm.decoder_bias")
    bias = float(encoder.weight("masked_lm.decoder_bias" if own_bias else "masked_lm.bias")[index])
    g, added = norm.back(encoder, encoder.weight("masked_lm.decoder")[index][None])
    g = g * slopes
    bias += added + float((g @ encoder.weight("masked_lm.transform.bias")).sum())
    return (g @ encoder.weight("masked_lm.transform.weight"))[0], bias


def _class(model: Model, index: int, row: Tokens) -> tuple[Float[np.ndarray, " d_model"], float]:
    """Through a sequence classifier: dense, activation, the class's row."""
    encoder, family = model.encoder, model.anatomy.family
    dense, out, activation = "pooler", "classifier", "tanh"
    if model.anatomy.has("sequence.out.weight"):
        dense, out, activation = "sequence.dense", "sequence.out", str(family.sequence_activation if family else "")
    slopes = slopes_of(encoder, activation, encoder.linear(row, dense))
    g = encoder.weight(f"{out}.weight")[index][None] * slopes
    bias = float(encoder.weight(f"{out}.bias")[index]) + float((g @ encoder.weight(f"{dense}.bias")).sum())
    return (g @ encoder.weight(f"{dense}.weight"))[0], bias
