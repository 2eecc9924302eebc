"""The forward pass over a batch of texts. Leaves the record of every layer's attention.

The tokens of all texts of a batch are stacked in one matrix X (tokens, d_model). Operations on single tokens are one
product for the whole batch, attention runs over each text separately, and nothing is padded. All arithmetic is in
fp32, whatever dtype the checkpoint stores.

A layer has one of two forms, by where its norms stand. `post_norm` is BERT's layer (Devlin et al. 2018; Vaswani et
al. 2017): a norm after every sum.

    y = Norm(x + Attention(x))
    x' = Norm(y + FeedForward(y))

`pre_norm` is that of ModernBERT (Warner et al. 2024), ESM-2 (Lin et al. 2023), EuroBERT and MegatronBERT: norms come
first, and the residual stream itself is normalised only once, after the last layer.

    y = x + Attention(Norm(x))
    x' = y + FeedForward(Norm(y))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.activations import activate
from headscope.attention.patterns import OneHead, Way, context_under, is_map
from headscope.attention.scores import EVERYTHING, Mask, attend, join_heads, silent, split_heads
from headscope.attention.terms import NO_TERMS, Terms
from headscope.encoder import distances
from headscope.encoder.attending import attend_everywhere, attend_nearby
from headscope.encoder.distances import rotate, turns
from headscope.encoder.products import COPIED_BYTES, QKVBuffer
from headscope.encoder.role_weights import EncoderWeights
from headscope.errors import InputError
from headscope.traces import LayerRecord

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.anatomy import Anatomy
    from headscope.encoder.distances import Angles, Heads

    Tokens = Float[np.ndarray, "tokens d_model"]

PROJECTIONS = ("layer.query", "layer.key", "layer.value")
MASKED_IN_TRAINING = 0.15 * 0.8
"""Share of the tokens that were <mask> while ESM was trained (Lin et al. 2023, supplement A.1)."""
NO_WAYS: Mapping[Any, Way] = {}
"""No head is changed."""


@dataclass(frozen=True)
class Input:
    """One text as the encoder takes it: ids and segments, (S,) each."""

    ids: Int[np.ndarray, " tokens"]
    segments: Int[np.ndarray, " tokens"]


@dataclass
class Pass:
    """The record of one text's forward pass.

    Attributes:
        layers: the inputs of attention (Q, K, V), layer by layer.
        last: (S, d_model), the last hidden state.
        hidden: the outputs of the embeddings and of every layer, (S, d_model) each, if requested; the last one after
            the norm that follows the layers, if the family has one.
    """

    layers: list[LayerRecord] = field(default_factory=list)
    last: Tokens | None = None
    hidden: list[Tokens] = field(default_factory=list)


@dataclass(frozen=True, repr=False)
class Encoder(EncoderWeights):
    """An encoder over a checkpoint's weights.

    Weights are looked up by role and the formula of a layer by its form, so this file is independent of the family.
    """

    _turns: dict[float, tuple[Angles, Angles]] = field(default_factory=dict, repr=False)
    _terms: dict[tuple[int, int], Terms] = field(default_factory=dict, repr=False)
    _relative: dict[int, dict[str, Float[np.ndarray, "heads buckets d_head"]]] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return f"encoder of {self.anatomy!r}"

    def changed(
        self, weights: Mapping[str, Float[np.ndarray, "..."]] | None = None, config: Mapping[str, Any] | None = None
    ) -> Encoder:
        """A copy that computes with other parameters, by their stored names, or with other fields of config.json."""
        anatomy = replace(self.anatomy, config={**self.anatomy.config, **(config or {})})
        return Encoder(self.checkpoint, anatomy, {**self._cache, **(weights or {})})

    @cached_property
    def for_many_texts(self) -> Encoder:
        """This encoder with copies of its weights, which BLAS multiplies faster, unless they take too much memory.

        Products with copies may round otherwise: take one of both encoders for all numbers that are compared.
        """
        linear = sum(row.count for row in self.anatomy.parameters if row.layer is not None and len(row.shape) == 2)
        orders = 2  # for few tokens and for many
        too_large = orders * linear * np.dtype(np.float32).itemsize > COPIED_BYTES
        return self if too_large else replace(self, copies={})

    def embed(self, sequences: Sequence[Input]) -> Tokens:
        """The input of the first layer, word + position + token type, normalised; (tokens of all texts, d_model).

        A family without one of the tables, or without the norm, leaves it out: with rotary positions there is no table
        of them.
        """
        anatomy, family = self.anatomy, self.anatomy.family
        ids = np.concatenate([sequence.ids for sequence in sequences])
        x = np.array(self.weight("embeddings.word.weight")[ids])
        if family is not None and family.holds("token_dropout", {"token_dropout": False, **anatomy.config}):
            _drop_masks(x, sequences, int(anatomy.setting("mask_id")))
        if (table := self.held("embeddings.position.weight")) is not None:
            x += table[np.concatenate([positions(anatomy, sequence.ids) for sequence in sequences])]
        if anatomy.known().types:
            segments = np.concatenate([sequence.segments for sequence in sequences])
            x += self.weight("embeddings.token_type.weight")[segments]
        if (table := self.held("embeddings.task_type.weight")) is not None:
            x += table[0]
        first = family is not None and family.projects_first
        projects = self.held("projection.weight") is not None
        if projects and first:
            x = self.linear(x, "projection")
        if self.held("embeddings.norm.weight") is not None:
            x = self.norm(x, "embeddings.norm")
        if projects and not first:
            x = self.linear(x, "projection")
        return x

    def check(self, sequence: Input) -> None:
        """Check that the embedding tables have a row for every id, segment and position.

        Raises:
            InputError: an id, a segment or a position is beyond its table.
        """
        anatomy, sizes = self.anatomy, self.anatomy.known()
        for kind, values, limit in (
            ("id", sequence.ids, sizes.vocab),
            ("segment", sequence.segments, sizes.types or None),
        ):
            beyond = np.flatnonzero((values < 0) | (values >= limit)) if limit is not None else np.array([], int)
            if len(beyond):
                at = int(beyond[0])
                raise InputError(
                    f"{kind} {int(values[at])} is out of range: the model has {limit} {kind}s",
                    where=f"token {at} of {len(values)}",
                    advice=f"{kind}s run from 0 to {limit - 1 if limit else 0}",
                )
        longest = anatomy.longest_text
        if sizes.positions and len(sequence.ids) > longest:
            raise InputError(
                f"the text has {len(sequence.ids):,} tokens, the model takes {longest:,} at most",
                where="max_position_embeddings",
                advice=f"shorten the text, or pass max_length={longest} (--set max_length={longest}) to cut it there",
            )

    def attention_input(self, x: Tokens, layer: int) -> Tokens:
        """The input of a layer's queries, keys and values: its input, or in pre-norm layers the norm of that.

        ModernBERT's first layer has no norm before its attention, since the embeddings have one.
        """
        if self.held("layer.attention_input_norm.weight", layer) is None:
            return x
        return self.norm(x.copy(), "layer.attention_input_norm", layer)

    def feed_forward(self, x: Tokens, layer: int) -> Tokens:
        """The layer's feed-forward network, each token alone."""
        return np.array(_feed_forward(self, x, layer), order="C")

    def after_attention(self, summed: Tokens, layer: int) -> Tokens:
        """A layer's output from the sum of its input and its attention's output, which is overwritten."""
        return last_sum(self, *summands(self, summed, layer), layer)

    def after_layers(self, x: Tokens) -> Tokens:
        """The last hidden state from the last layer's output: its norm, if the family has one there."""
        return x if self.held("last_norm.weight") is None else self.norm(x, "last_norm")

    def angles(self, layer: int, tokens: int) -> tuple[Angles, Angles] | None:
        """(tokens, d_head / 2) each: cosines and sines by which the layer rotates; None if it doesn't."""
        base = self.anatomy.rotation_bases[layer]
        if base is None:
            return None
        if base not in self._turns or len(self._turns[base][0]) < tokens:
            self._turns[base] = turns(self, base, tokens)
        cos, sin = self._turns[base]
        return cos[:tokens], sin[:tokens]

    def split(
        self,
        product: Float[np.ndarray, "tokens width"],
        role: str,
        layer: int,
        angles: tuple[Angles, Angles] | None,
        buffer: QKVBuffer | None = None,
    ) -> Heads:
        """(heads, tokens, d_head): queries, keys or values, rotated by the angles of these tokens.

        Values turn only in RoFormers whose config says rotary_value.

        Args:
            product: x W, without the bias.
            role: of the Linear.
            layer: the layer.
            angles: those of these tokens; None if the layer doesn't rotate.
            buffer: memory for the result.
        """
        family, bias = self.anatomy.family, self.held(f"{role}.bias", layer)
        split = split_heads(product, product.shape[1] // self.d_head)
        out = np.empty(split.shape, split.dtype) if buffer is None else buffer.take(split.shape)
        rotary = None if angles is None or family is None else family.rotary
        if role == "layer.value" and not self.anatomy.config.get("rotary_value"):
            rotary = None
        x = out if rotary is None else self.scratch("split", split.shape)
        if bias is None:
            x[...] = split
        else:
            np.add(split, bias.reshape(len(split), 1, -1), out=x)
        if rotary is not None and angles is not None:
            rotate(x, *angles, pairs=rotary.pairs, out=out)
        return out

    def mask(self, layer: int) -> Mask:
        """The keys that the layer's queries see: all, or those within the window of a local layer."""
        window = self.anatomy.windows[layer]
        return EVERYTHING if window is None else Mask(window=(window, window))

    def attend(
        self,
        q: Float[np.ndarray, "heads queries d_head"],
        k: Float[np.ndarray, "kv_heads keys d_head"],
        v: Float[np.ndarray, "kv_heads keys d_head"],
        layer: int,
        places: Int[np.ndarray, " queries"] | None = None,
    ) -> tuple[Float[np.ndarray, "heads queries d_head"], Float[np.ndarray, "heads queries"]]:
        """Contexts (heads, queries, d_head) and log-sum-exps (heads, queries) of one text in a layer.

        Args:
            q: queries.
            k: keys of all tokens.
            v: values of all tokens.
            layer: the layer, whose rules and scale apply.
            places: positions of the queries among the keys; by default, q has all of them.
        """
        mask, scale = self.mask(layer), self.scale
        terms = self.terms(layer, k.shape[1])
        if mask.everything and terms.nothing:
            return attend_everywhere(q, k, v, scale=scale, scratch=self.scratch)
        if mask.everything and q.shape[1] == k.shape[1]:
            return attend(q, k, v, scale=scale, terms=terms)
        places = np.arange(k.shape[1]) if places is None else places
        return attend_nearby(q, k, v, scale=scale, mask=mask, terms=terms, places=places)

    @cached_property
    def d_head(self) -> int:
        """The width of one head."""
        return self.anatomy.known().d_head

    @cached_property
    def scale(self) -> float:
        """The factor of q . k: 1 / sqrt(d_head); DeBERTa multiplies d_head by the number of products in a score."""
        return 1 / math.sqrt(self.d_head * self.anatomy.products)

    def terms(self, layer: int, tokens: int) -> Terms:
        """Return the layer's score terms for this many tokens; they are kept for texts of the same length."""
        settings = self.anatomy.disentangled
        if not self.anatomy.adds_distances:
            return NO_TERMS
        key = (layer if settings else 0, tokens)  # MPNet's are the same in every layer
        terms = self._terms.get(key)
        if terms is None:
            if any(length != tokens for _, length in tuple(self._terms)):
                self._terms.clear()
            if settings is None:
                terms = distances.by_distance(self, tokens)
            else:
                if layer not in self._relative:
                    self._relative[layer] = distances.relative_tables(self, layer, settings)
                terms = distances.disentangled(settings, self._relative[layer], tokens)
            self._terms[key] = terms
        return terms

    def self_attention(
        self,
        x: Tokens,
        layer: int,
        texts: Sequence[slice],
        ways: Mapping[int, Way] = NO_WAYS,
        buffers: Sequence[QKVBuffer] = (),
    ) -> tuple[Tokens, list[LayerRecord]]:
        """MultiHead(X) = Concat(head_1 .. head_h) W^O + b_O for each text separately, and the record of each text.

        head_i = softmax(Q_i K_i^T / sqrt(d_head)) V_i; of a silenced head what `attention.silent` leaves, and under
        another map what attention.patterns gives. (Vaswani et al. 2017, 3.2.)

        Args:
            x: the tokens of all texts.
            layer: the layer.
            texts: the rows of each text.
            ways: heads whose context is replaced, each with its way.
            buffers: memory for each text's queries, keys and values; by default, new memory for each array.
        """
        sizes = self.anatomy.known()
        mask = self.mask(layer)
        product = self.product(x, PROJECTIONS, layer)
        keys, values = sizes.heads * sizes.d_head, (sizes.heads + sizes.kv_heads) * sizes.d_head  # first columns
        parts = (product[:, :keys], product[:, keys:values], product[:, values:])
        joined, records = [], []
        for text, buffer in zip_longest(texts, buffers):
            angles = self.angles(layer, text.stop - text.start)
            q, k, v = (
                self.split(part[text], role, layer, angles, buffer)
                for role, part in zip(PROJECTIONS, parts, strict=True)
            )
            context, lse = self.attend(q, k, v, layer)
            terms = self.terms(layer, text.stop - text.start)
            for head, way in ways.items():
                if isinstance(way, str) and not is_map(way):
                    context[head] = silent(context[head], way)
                    continue
                at, places = head * len(k) // len(q), np.arange(q.shape[1])
                one = q[head, None], k[at, None], self.scale, mask, terms.of_head(head), places, layer, head
                context[head] = context_under(way, OneHead(*one), v[at])
            joined.append(join_heads(context))
            stage = "projected" if angles is None else "rotated"
            records.append(LayerRecord(q, k, v, lse, self.scale, mask, stage, terms=terms))
        heads = joined[0] if len(joined) == 1 else np.concatenate(joined)
        return self.linear(heads, "layer.attention_output", layer), records

    def layer(
        self,
        x: Tokens,
        layer: int,
        texts: Sequence[slice],
        ways: Mapping[int, Way] = NO_WAYS,
        buffers: Sequence[QKVBuffer] = (),
    ) -> tuple[Tokens, list[LayerRecord]]:
        """One layer's output, and the record of each text. Arguments as for `self_attention`; `x` is left as it is."""
        summed, records = self.self_attention(self.attention_input(x, layer), layer, texts, ways, buffers)
        summed += x
        out = self.after_attention(summed, layer)
        if layer == 0 and self.anatomy.has("convolution.weight"):
            out = convolved(self, x, out, texts)
        return out, records

    def forward(
        self,
        sequences: Sequence[Input],
        *,
        ablate: Mapping[tuple[int, int], Way] = NO_WAYS,
        hidden_states: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> list[Pass]:
        """Run all layers over a batch of texts.

        Args:
            sequences: the texts.
            ablate: the heads whose context is replaced, (layer, head), each with its way.
            hidden_states: True to keep the outputs of the embeddings and of every layer.
            progress: called with the number of finished layers.

        Raises:
            InputError: an id is beyond the vocabulary, or a text is longer than the position table.
            CheckpointError: a parameter is missing.
        """
        sizes = self.anatomy.computable()
        layers = sizes.layers
        self.checkpoint.fetch()
        for sequence in sequences:
            self.check(sequence)
        texts = rows_of(sequences)
        passes = [Pass() for _ in sequences]

        def keep(x: Tokens) -> None:
            if hidden_states:
                for forward_pass, text in zip(passes, texts, strict=True):
                    forward_pass.hidden.append(x[text].copy())

        numbers = layers * (sizes.heads + 2 * sizes.kv_heads) * sizes.d_head  # of each token
        buffers = [QKVBuffer(len(sequence.ids) * numbers) for sequence in sequences]
        x = self.embed(sequences)
        for layer in range(layers):
            keep(x)
            ways = {head: way for (at, head), way in ablate.items() if at == layer}
            x, records = self.layer(x, layer, texts, ways, buffers=buffers)
            for forward_pass, record in zip(passes, records, strict=True):
                forward_pass.layers.append(record)
            if progress is not None:
                progress(layer + 1)
        x = self.after_layers(x)
        keep(x)
        for forward_pass, text in zip(passes, texts, strict=True):
            forward_pass.last = x[text].copy()
        return passes


def rows_of(sequences: Sequence[Input]) -> list[slice]:
    """The rows of each text where the tokens of all texts are stacked."""
    ends = np.cumsum([len(sequence.ids) for sequence in sequences])
    return [slice(int(end) - len(sequence.ids), int(end)) for sequence, end in zip(sequences, ends, strict=True)]


def positions(anatomy: Anatomy, ids: Int[np.ndarray, " tokens"]) -> Int[np.ndarray, " tokens"]:
    """The row of the position table for each token.

    BERT counts from 0. RoBERTa counts non-padding tokens from padding_id + 1; padding has position padding_id.
    """
    if anatomy.family is None or anatomy.family.position_offset is None:
        return np.arange(len(ids))
    padding = int(anatomy.setting("padding_id"))
    real = ids != padding
    return np.cumsum(real) * real + padding


def _drop_masks(x: Tokens, sequences: Sequence[Input], mask: int) -> None:
    """ESM's token dropout, in place: <mask> is 0, and the others make up for it, text by text.

    The factor is (share of other tokens in training) / (share of other tokens in this text).
    """
    start = 0
    for sequence in sequences:
        part = x[start : start + len(sequence.ids)]
        masked = sequence.ids == mask
        part[masked] = 0
        part *= np.float32(1 - MASKED_IN_TRAINING)
        part /= np.float32(1) - np.float32(masked.sum()) / np.float32(len(masked))
        start += len(masked)


def summands(weights: EncoderWeights, summed: Tokens, layer: int) -> tuple[Tokens, Tokens]:
    """The two things that a layer adds up last: the residual after attention, and the feed-forward network's output.

    The first is in the memory of `summed`, the second is valid until this thread's next call.
    """
    if weights.anatomy.is_pre_norm:
        return summed, _feed_forward(weights, weights.norm(summed.copy(), "layer.ffn_input_norm", layer), layer)
    residual = weights.norm(summed, "layer.attention_norm", layer)
    return residual, _feed_forward(weights, residual, layer)


def last_sum(weights: EncoderWeights, residual: Tokens, fed: Tokens, layer: int) -> Tokens:
    """A layer's output from its `summands`, of which the first may be overwritten."""
    if weights.anatomy.is_pre_norm:
        residual += fed
        return residual
    return weights.norm(np.add(fed, residual, order="C"), "layer.output_norm", layer)


def _feed_forward(weights: EncoderWeights, x: Tokens, layer: int) -> Tokens:
    """The plain network, or the gated one if the family has a gate; valid until this thread's next call.

    Plain: activation(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, eq. 2).
    Gated: (activation(x W_g) * (x W_1)) W_2, with biases where the family has them (Shazeer 2020, eq. 6: GEGLU with
    GELU, SwiGLU with SiLU).
    """
    gated = weights.held("layer.ffn_gate.weight", layer) is not None
    middle = _linear(weights, x, "layer.ffn_gate" if gated else "layer.ffn_in", layer)
    activate(weights.activation, middle, weights.threads)
    if gated:
        middle *= _linear(weights, x, "layer.ffn_in", layer)
    return _linear(weights, middle, "layer.ffn_out", layer)


def _linear(
    weights: EncoderWeights, x: Float[np.ndarray, "tokens into"], role: str, layer: int
) -> Float[np.ndarray, "tokens out"]:
    """x W + b, in the product's memory."""
    product, bias = weights.product(x, (role,), layer), weights.held(f"{role}.bias", layer)
    if bias is not None:
        product += bias
    return product


def convolved(weights: EncoderWeights, embedded: Tokens, out: Tokens, texts: Sequence[slice]) -> Tokens:
    """DeBERTa v2's convolution beside the first layer: each token sees its neighbours' embeddings.

    Norm(out + activation(sum_t x_(i + t) W_t + b)), with x the embeddings and t from -(size - 1) / 2 on.

    Beyond the ends of a text, x is 0.
    """
    total = np.empty_like(out)
    for text in texts:
        total[text] = neighbours(embedded[text], weights.weight("convolution.weight"))
    total += weights.weight("convolution.bias")
    activate(str(weights.anatomy.config.get("conv_act", "tanh")), total, weights.threads)
    total += out
    return weights.norm(total, "convolution_norm")


def neighbours(
    x: Float[np.ndarray, "*n tokens width"], kernel: Float[np.ndarray, "width into size"]
) -> Float[np.ndarray, "*n tokens width"]:
    """sum_t x_(i + t) W_t; x is 0 beyond the ends. `kernel` is (out, in of one group, size), as torch stores it."""
    width, into, size = kernel.shape
    padded = np.pad(x, (*((0, 0),) * (x.ndim - 2), (size // 2, size // 2), (0, 0)))
    total = np.zeros_like(x)
    for at in range(size):
        for first in range(0, width, into):
            part = slice(first, first + into)
            total[..., part] += padded[..., at : at + x.shape[-2], part] @ kernel[part, :, at].T
    return total
