"""Every token's share in what a model computes: a pass held at one text, followed forward or backward.

Each token's share x_{i<-k} of every vector x_i starts as its embedding, after the embeddings' norm, and goes through
the steps of headscope.explain.steps. Biases, and the rests of tangents, enter a share of their own, so that at every
point the tokens' shares and that one add up to what the model has there (DecompX: Modarressi et al. 2023, “DecompX:
Explaining Transformers Decisions by Propagating Token Decomposition”, who hold activations at their ratios; with ratios
the shares are the paper's).

    shares      forward: (tokens and biases, tokens, d_model) at any layer; tokens times a forward pass
    back        backward: the gradient g of one number; token k adds g_k . x_k; two forward passes in all

A share says how far it can be trusted by the sizes that cancel in it:

    kappa = (sum of |shares| + |the biases' share|) / |number|

is 1 where nothing cancels. Above KAPPA an amount is the small difference of large ones, and only its rank means
anything. Tangents are the default slopes: they cancel less than ratios, and follow real masking better
(docs/reference/explaining.md).

What is kept of a layer is q, k, v, two factors of norms, and two numbers for each neuron of the feed-forward network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope.errors import UnsupportedError
from headscope.explain.steps import (
    SAME,
    Beside,
    Chain,
    Convolved,
    HeldNorm,
    Mixed,
    Rotated,
    Step,
    held_activation,
    held_gate,
    held_linear,
    held_norm,
)
from headscope.runs.texts import BATCH_TOKENS

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.encoder import Encoder, Input
    from headscope.traces import LayerRecord

    Tokens = Float[np.ndarray, "tokens d_model"]
    Rows = Float[np.ndarray, "*shares tokens d_model"]

SLOPES = "tangent"
"""The slopes at which activations are held by default."""


@dataclass(frozen=True, eq=False)
class HeldLayer:
    """A layer held at one text.

    Attributes:
        x: (tokens, d_model), its input.
        record: its attention.
        norm: the norm before queries, keys and values; None in post-norm layers, and where a layer has none.
        step: the whole layer.
    """

    x: Tokens
    record: LayerRecord
    norm: HeldNorm | None
    step: Step


@dataclass(frozen=True, eq=False)
class Held:
    """A forward pass held at one text.

    Attributes:
        layers: the layers.
        after: the norm that follows the last layer; None in families without it.
        last: (tokens, d_model), the last hidden state.
        embedded: (tokens, d_model), the input of the first layer, where the shares start.
    """

    layers: tuple[HeldLayer, ...]
    after: HeldNorm | None
    last: Tokens
    embedded: Tokens

    def steps(self, below: int | None = None) -> list[Step]:
        """The layers below this one; by default all, and the norm that follows them."""
        steps = [layer.step for layer in self.layers[:below]]
        return steps if below is not None or self.after is None else [*steps, self.after]

    def back(self, g: Rows) -> tuple[Rows, Float[np.ndarray, "*shares"]]:
        """The gradient at the embeddings from the one at the last hidden state, and what the biases add between."""
        at_embeddings, biases = Chain(tuple(self.steps())).back(g)
        return at_embeddings, np.asarray(biases)

    def parts(self, g: Tokens) -> tuple[Float[np.ndarray, " tokens"], float]:
        """The share of each token in a number with this gradient at the last hidden state, and that of the biases."""
        at_embeddings, biases = self.back(g)
        return np.einsum("ij,ij->i", at_embeddings, self.embedded, dtype=np.float64), float(biases)

    def shares(
        self,
        rows: Sequence[int] | Int[np.ndarray, " rows"] | slice = slice(None),
        *,
        groups: Sequence[Sequence[int]] | None = None,
        below: int | None = None,
        top: Step = SAME,
    ) -> Float[np.ndarray, "shares rows d_model"]:
        """The shares of some rows, one below the other: each token's (or group's), and last the biases'.

        Args:
            rows: the rows of the result that are wanted, after `top`.
            groups: positions of tokens whose shares are wanted together, instead of each token's.
            below: of the input of this layer; by default of the last hidden state.
            top: a step from there on, in whose result the shares are wanted.
        """
        tokens, steps = len(self.embedded), Chain(tuple(self.steps(below)))
        members = np.eye(tokens, dtype=np.float32)
        if groups is not None:
            members = np.array([members[list(group)].sum(axis=0) for group in groups], np.float32).reshape(-1, tokens)
        at_once = max(1, BATCH_TOKENS // tokens)
        parts = []
        for start in range(0, len(members), at_once):
            some = members[start : start + at_once]
            parts.append(top.into(steps.into(some[:, :, None] * self.embedded))[:, rows])
        biases = steps.into(np.zeros((1, *self.embedded.shape), dtype=np.float32), affine=True)
        return np.concatenate([*parts, top.into(biases, affine=True)[:, rows]])


def hold(encoder: Encoder, text: Input, *, slopes: str = SLOPES) -> Held:
    """One forward pass, of which everything is kept that makes it linear.

    Args:
        encoder: the encoder.
        text: the text.
        slopes: how activations are held, one of headscope.explain.steps.SLOPES.

    Raises:
        InputError: an id is beyond the vocabulary, or the text is longer than the position table.
        UnsupportedError: the layers have a form without a rule.
    """
    encoder.checkpoint.fetch()
    encoder.check(text)
    family = encoder.anatomy.family
    assert family is not None
    if family.layer_form not in RULES:
        raise UnsupportedError(
            f"{encoder.anatomy.base_class}'s layers have the form {family.layer_form}, and there is no rule for it",
            where=encoder.anatomy.where,
            advice="use `effects`, which runs the model itself, or gradients of the live model (captum)",
        )
    x = encoder.embed([text])
    layers = []
    for layer in range(encoder.anatomy.known().layers):
        held, x = RULES[family.layer_form](encoder, x, layer, slopes)
        if layer == 0 and encoder.anatomy.has("convolution.weight"):
            held, x = _beside_convolution(encoder, held, x, slopes)
        layers.append(held)
    after = held_norm(encoder, x, "last_norm") if encoder.anatomy.has("last_norm.weight") else None
    return Held(tuple(layers), after, encoder.after_layers(x), layers[0].x)


def _post_norm(encoder: Encoder, x: Tokens, layer: int, slopes: str) -> tuple[HeldLayer, Tokens]:
    """BERT's layer: a norm after every sum."""
    attention, record, summed = _attention(encoder, x, layer)
    summed += x
    after = held_norm(encoder, summed, "layer.attention_norm", layer)
    middle = encoder.norm(summed, "layer.attention_norm", layer)
    feed_forward, out = _feed_forward(encoder, middle, layer, slopes)
    out += middle
    last = held_norm(encoder, out, "layer.output_norm", layer)
    step = Chain((Beside((attention, SAME)), after, Beside((feed_forward, SAME)), last))
    return HeldLayer(x, record, None, step), encoder.norm(out, "layer.output_norm", layer)


def _pre_norm(encoder: Encoder, x: Tokens, layer: int, slopes: str) -> tuple[HeldLayer, Tokens]:
    """ModernBERT's layer: norms before attention and feed-forward; the first layer may have none before attention."""
    role = "layer.attention_input_norm"
    norm = held_norm(encoder, x, role, layer) if encoder.anatomy.has(f"{role}.weight", layer) else None
    attention, record, summed = _attention(encoder, encoder.attention_input(x, layer), layer)
    summed += x
    before = held_norm(encoder, summed, "layer.ffn_input_norm", layer)
    middle = encoder.norm(summed.copy(), "layer.ffn_input_norm", layer)
    feed_forward, out = _feed_forward(encoder, middle, layer, slopes)
    out += summed
    first = attention if norm is None else Chain((norm, attention))
    step = Chain((Beside((first, SAME)), Beside((Chain((before, feed_forward)), SAME))))
    return HeldLayer(x, record, norm, step), out


Rule = Callable[["Encoder", "Tokens", int, str], tuple[HeldLayer, "Tokens"]]

RULES: dict[str, Rule] = {"post_norm": _post_norm, "pre_norm": _pre_norm}
"""Family.layer_form -> the layer held at its input, and its output."""


def _attention(encoder: Encoder, inputs: Tokens, layer: int) -> tuple[Chain, LayerRecord, Tokens]:
    """Attention from the input of queries, keys and values: the step, its record, its output."""
    tokens = len(inputs)
    out, (record,) = encoder.self_attention(inputs, layer, [slice(0, tokens)])
    steps: list[Step] = [held_linear(encoder, "layer.value", layer)]
    angles, family = encoder.angles(layer, tokens), encoder.anatomy.family
    if angles is not None and encoder.anatomy.config.get("rotary_value"):
        assert family is not None
        assert family.rotary is not None
        steps.append(Rotated(*angles, pairs=family.rotary.pairs, heads=len(record.k)))
    return Chain((*steps, Mixed(record), held_linear(encoder, "layer.attention_output", layer))), record, out


def _feed_forward(encoder: Encoder, x: Tokens, layer: int, slopes: str) -> tuple[Step, Tokens]:
    """The feed-forward network at its input, plain or gated: the step, and its output."""
    activation = encoder.activation
    into, out = (held_linear(encoder, f"layer.{role}", layer) for role in ("ffn_in", "ffn_out"))
    middle = encoder.linear(x, "layer.ffn_in", layer)
    if not encoder.anatomy.has("layer.ffn_gate.weight", layer):
        active, values = held_activation(activation, middle, slopes)
        return Chain((into, active, out)), encoder.linear(values, "layer.ffn_out", layer)
    gate = encoder.linear(x, "layer.ffn_gate", layer)
    of_gate, of_input, values = held_gate(activation, gate, middle, slopes)
    halves = (Chain((held_linear(encoder, "layer.ffn_gate", layer), of_gate)), Chain((into, of_input)))
    return Chain((Beside(halves), out)), encoder.linear(values, "layer.ffn_out", layer)


def _beside_convolution(encoder: Encoder, layer: HeldLayer, out: Tokens, slopes: str) -> tuple[HeldLayer, Tokens]:
    """DeBERTa v2's first layer, with the convolution of the embeddings that is added to it, and the norm after both."""
    convolution = Convolved(encoder.weight("convolution.weight"), encoder.weight("convolution.bias"))
    activation = str(encoder.anatomy.config.get("conv_act", "tanh"))
    active, values = held_activation(activation, convolution.into(layer.x, affine=True), slopes)
    values += out
    norm = held_norm(encoder, values, "convolution_norm")
    step = Chain((Beside((layer.step, Chain((convolution, active)))), norm))
    return HeldLayer(layer.x, layer.record, layer.norm, step), encoder.norm(values, "convolution_norm")
