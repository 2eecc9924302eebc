"""BERT's forward pass in NumPy, to be read beside the papers (Devlin et al. 2018; Vaswani et al. 2017). Leaves a trace.

The tokens of all texts of a batch are stacked in one matrix X (tokens, d_model). Operations on single tokens are one
product for the whole batch, attention runs over each text separately, and nothing is padded. All arithmetic is in
fp32, whatever dtype the checkpoint stores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from headscope._trace import LayerRecord, Named
from headscope.activations import activate
from headscope.attention import attend, join_heads, silent, split_heads
from headscope.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.anatomy import Anatomy
    from headscope.checkpoint import Checkpoint

    Tokens = Float[np.ndarray, "tokens d_model"]


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
        hidden: the outputs of the embeddings and of every layer, (S, d_model) each, if requested.
    """

    layers: list[LayerRecord] = field(default_factory=list)
    last: Tokens | None = None
    hidden: list[Tokens] = field(default_factory=list)


@dataclass(frozen=True)
class Encoder:
    """A BERT, RoBERTa, DistilBERT or ELECTRA encoder over a checkpoint's weights.

    Weights are looked up by role, so this file is independent of the family. fp32 weights are used in place, in the
    mapped file; narrower dtypes are upcast once and cached.
    """

    checkpoint: Checkpoint
    anatomy: Anatomy
    _cache: dict[str, Float[np.ndarray, "..."]] = field(default_factory=dict, repr=False)

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        """Threads for element-wise work; matrix products use BLAS's threads."""
        return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="headscope")

    def weight(self, role: str, layer: int | None = None) -> Float[np.ndarray, "..."]:
        """The parameter with this role, in fp32, as stored: a Linear's is (out, in)."""
        stored = self.anatomy.parameter(role, layer).stored
        if stored not in self._cache:
            self._cache[stored] = np.asarray(self.checkpoint.read(stored), dtype=np.float32)
        return self._cache[stored]

    def linear(self, x: Float[np.ndarray, "tokens n"], role: str, layer: int | None = None) -> Tokens:
        """x W + b, with the paper's W = weight.T."""
        product = x @ self.weight(f"{role}.weight", layer).T
        product += self.weight(f"{role}.bias", layer)
        return product

    def norm(self, x: Tokens, role: str, layer: int | None = None) -> Tokens:
        """LayerNorm in place: (row - mean) / deviation, scaled and shifted (Ba et al. 2016, eq. 4)."""
        eps = np.float32(self.anatomy.setting("norm_eps"))
        x -= x.mean(axis=-1, keepdims=True)
        variance = np.einsum("ij,ij->i", x, x)[:, None] / np.float32(x.shape[-1])
        x *= 1 / np.sqrt(variance + eps)
        x *= self.weight(f"{role}.weight", layer)
        x += self.weight(f"{role}.bias", layer)
        return x

    def positions(self, ids: Int[np.ndarray, " tokens"]) -> Int[np.ndarray, " tokens"]:
        """The row of the position table for each token.

        BERT counts from 0. RoBERTa counts non-padding tokens from padding_id + 1; padding has position padding_id.
        """
        family = self.anatomy.family
        offset = None if family is None else family.position_offset
        if offset is None:
            return np.arange(len(ids))
        padding = int(self.anatomy.setting("padding_id"))
        real = ids != padding
        return np.cumsum(real) * real + padding

    def embed(self, sequences: Sequence[Input]) -> Tokens:
        """Word + position + token type, normalised; (tokens of all texts, d_model)."""
        ids = np.concatenate([sequence.ids for sequence in sequences])
        positions = np.concatenate([self.positions(sequence.ids) for sequence in sequences])
        x = np.array(self.weight("embeddings.word.weight")[ids])
        x += self.weight("embeddings.position.weight")[positions]
        if self.anatomy.known().types:
            segments = np.concatenate([sequence.segments for sequence in sequences])
            x += self.weight("embeddings.token_type.weight")[segments]
        x = self.norm(x, "embeddings.norm")
        if self.anatomy.has("projection.weight"):
            x = self.linear(x, "projection")
        return x

    def self_attention(
        self, x: Tokens, layer: int, texts: Sequence[slice], silenced: Iterable[int] = (), method: str = "zero"
    ) -> tuple[Tokens, list[LayerRecord]]:
        """MultiHead(X) = Concat(head_1 .. head_h) W^O + b_O for each text separately, and the record of each text.

        head_i = softmax(Q_i K_i^T / sqrt(d_head)) V_i; of a silenced head what `attention.silent` leaves. (Vaswani et
        al. 2017, 3.2.)
        """
        sizes = self.anatomy.known()
        scale = 1 / float(np.sqrt(sizes.d_head))
        q, k, v = (self.linear(x, role, layer) for role in ("layer.query", "layer.key", "layer.value"))
        joined = np.empty_like(x)
        records = []
        for text in texts:
            q_i, k_i, v_i = (np.ascontiguousarray(split_heads(part[text], sizes.heads)) for part in (q, k, v))
            context, lse = attend(q_i, k_i, v_i, scale=scale)
            for head in silenced:
                context[head] = silent(context[head], method)
            joined[text] = join_heads(context)
            records.append(LayerRecord(q_i, k_i, v_i, lse, scale))
        return self.linear(joined, "layer.attention_output", layer), records

    def feed_forward(self, x: Tokens, layer: int) -> Tokens:
        """activation(x W_1 + b_1) W_2 + b_2 on each token separately. (Vaswani et al. 2017, eq. 2.)"""
        middle = self.linear(x, "layer.ffn_in", layer)
        activate(str(self.anatomy.setting("activation")), middle, self.threads)
        return self.linear(middle, "layer.ffn_out", layer)

    def layer(
        self, x: Tokens, layer: int, texts: Sequence[slice], silenced: Iterable[int] = (), method: str = "zero"
    ) -> tuple[Tokens, list[LayerRecord]]:
        """One layer's output, and the record of each text. Arguments as for `self_attention`; `x` is left as it is."""
        attention, records = self.self_attention(x, layer, texts, silenced, method)
        attention += x
        x = self.norm(attention, "layer.attention_norm", layer)
        out = self.feed_forward(x, layer)
        out += x
        return self.norm(out, "layer.output_norm", layer), records

    def forward(
        self,
        sequences: Sequence[Input],
        *,
        ablate: frozenset[tuple[int, int]] = frozenset(),
        hidden_states: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> list[Pass]:
        """Run all layers over a batch of texts.

        Args:
            sequences: the texts.
            ablate: the heads to silence, (layer, head).
            hidden_states: True to keep the outputs of the embeddings and of every layer.
            progress: called with the number of finished layers.

        Raises:
            InputError: an id is beyond the vocabulary, or a text is longer than the position table.
            CheckpointError: a parameter is missing.
        """
        self.anatomy.computable()
        self.checkpoint.fetch()
        for sequence in sequences:
            self.check(sequence)
        texts = rows_of(sequences)
        passes = [Pass() for _ in sequences]

        def keep(x: Tokens) -> None:
            if hidden_states:
                for forward_pass, text in zip(passes, texts, strict=True):
                    forward_pass.hidden.append(x[text].copy())

        x = self.embed(sequences)
        keep(x)
        for layer in range(self.anatomy.known().layers):
            x, records = self.layer(x, layer, texts, [head for at, head in ablate if at == layer])
            for forward_pass, record in zip(passes, records, strict=True):
                forward_pass.layers.append(record)
            keep(x)
            if progress is not None:
                progress(layer + 1)
        for forward_pass, text in zip(passes, texts, strict=True):
            forward_pass.last = x[text].copy()
        return passes

    def check(self, sequence: Input) -> None:
        """Check that the embedding tables have a row for every id, segment and position.

        Raises:
            InputError: an id, a segment or a position is beyond its table.
        """
        sizes = self.anatomy.known()
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
        longest = self.anatomy.longest_text
        if len(sequence.ids) > longest:
            raise InputError(
                f"the text has {len(sequence.ids):,} tokens, the model takes {longest:,} at most",
                where="max_position_embeddings",
                advice=f"shorten the text, or pass max_length={longest} (--max-length {longest}) to cut it there",
            )


def rows_of(sequences: Sequence[Input]) -> list[slice]:
    """The rows of each text where the tokens of all texts are stacked."""
    ends = np.cumsum([len(sequence.ids) for sequence in sequences])
    return [slice(int(end) - len(sequence.ids), int(end)) for sequence, end in zip(sequences, ends, strict=True)]


TASK_OUTPUTS: dict[str, dict[str, tuple[str, ...]]] = {
    "masked_lm": {"logits": ("tokens", "vocabulary")},
    "detection": {"logits": ("tokens",)},
    "sequence": {"logits": ("labels",)},
    "token": {"logits": ("tokens", "labels")},
    "question": {"start_logits": ("tokens",), "end_logits": ("tokens",)},
    "next_sentence": {"seq_relationship_logits": ("relationship",)},
}
"""Task of a head on top -> its outputs, each with its axes."""


@dataclass(frozen=True)
class Tops:
    """The heads on top of a checkpoint's base model, and their outputs from the last hidden state (S, d_model)."""

    encoder: Encoder

    @cached_property
    def outputs(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Name of each output -> its task and its axes; a name that is already taken gets its task as a prefix."""
        outputs: dict[str, tuple[str, tuple[str, ...]]] = {}
        if self.encoder.anatomy.has("pooler.weight"):
            outputs["pooler_output"] = ("pooler", ("d_model",))
        for task in self.encoder.anatomy.tasks:
            for name, axes in TASK_OUTPUTS.get(task, {}).items():
                outputs[f"{task}_{name}" if name in outputs else name] = (task, axes)
        return outputs

    def compute(self, name: str, last: Tokens) -> Named | None:
        """Compute one output by name; None if this checkpoint has no output of that name."""
        if name not in self.outputs:
            return None
        task, axes = self.outputs[name]
        if task == "pooler":
            return Named(name, axes, self.pooled(last))
        if task == "question":
            return Named(name, axes, self.encoder.linear(last, "question")[:, int(name.startswith("end"))].copy())
        formulas: dict[str, Callable[[Tokens], Float[np.ndarray, "..."]]] = {
            "masked_lm": self.masked_lm,
            "detection": self.detection,
            "sequence": self.sequence,
            "token": lambda x: self.encoder.linear(x, "classifier"),
            "next_sentence": lambda x: self.encoder.linear(self.pooled(x)[None], "next_sentence")[0],
        }
        return Named(name, axes, formulas[task](last), self.labels() if axes[-1] == "labels" else None)

    def pooled(self, last: Tokens) -> Float[np.ndarray, " d_model"]:
        """tanh(first token W + b), (d_model,)."""
        return np.tanh(self.encoder.linear(last[:1], "pooler")[0])

    def masked_lm(self, last: Tokens) -> Float[np.ndarray, "tokens vocabulary"]:
        """A score for every token of the vocabulary at every position, (S, vocabulary)."""
        encoder, anatomy = self.encoder, self.encoder.anatomy
        x = encoder.linear(last, "masked_lm.transform")
        activation = anatomy.family.masked_lm_activation if anatomy.family else None
        activate(activation or str(anatomy.setting("activation")), x, encoder.threads)
        x = encoder.norm(x, "masked_lm.norm")
        logits = x @ encoder.weight("masked_lm.decoder").T
        has_decoder_bias = anatomy.has("masked_lm.decoder_bias")
        logits += encoder.weight("masked_lm.decoder_bias" if has_decoder_bias else "masked_lm.bias")
        return logits

    def detection(self, last: Tokens) -> Float[np.ndarray, " tokens"]:
        """ELECTRA's discriminator, (S,): above 0, the token counts as replaced."""
        x = self.encoder.linear(last, "detection.dense")
        activate(str(self.encoder.anatomy.setting("activation")), x, self.encoder.threads)
        return self.encoder.linear(x, "detection.out")[:, 0]

    def sequence(self, last: Tokens) -> Float[np.ndarray, " labels"]:
        """A score for every label of the text, (labels,)."""
        encoder, family = self.encoder, self.encoder.anatomy.family
        if not encoder.anatomy.has("sequence.out.weight"):
            return encoder.linear(self.pooled(last)[None], "classifier")[0]
        x = encoder.linear(last[:1], "sequence.dense")
        activate(str(family.sequence_activation if family else ""), x, encoder.threads)
        return encoder.linear(x, "sequence.out")[0]

    def labels(self) -> tuple[str, ...] | None:
        """Names of the labels; None unless config.json names every one of them, from index 0."""
        id2label = self.encoder.anatomy.config.get("id2label")
        if not isinstance(id2label, dict):
            return None
        labels = {int(index): str(label) for index, label in id2label.items()}
        return tuple(labels[index] for index in range(len(labels))) if set(labels) == set(range(len(labels))) else None
