"""The heads on top of a base model: words at masks, replaced tokens, labels, answers; and one vector for a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from headscope.attention.activations import activate, sigmoid, softmax
from headscope.checkpoint.json_text import brief
from headscope.errors import UnsupportedError
from headscope.results.arrays import Named

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.encoder.forward import Encoder
    from headscope.results.explained import Pooling

    Tokens = Float[np.ndarray, "tokens d_model"]

POOLINGS = ("cls", "bos", "mean", "late")
"""Values of classifier_pooling: the first token, the mean of the tokens, or the mean of their scores."""

TASK_OUTPUTS: dict[str, dict[str, tuple[str, ...]]] = {
    "masked_lm": {"logits": ("tokens", "vocabulary")},
    "detection": {"logits": ("tokens",)},
    "sequence": {"logits": ("labels",)},
    "token": {"logits": ("tokens", "labels")},
    "question": {"start_logits": ("tokens",), "end_logits": ("tokens",)},
    "next_sentence": {"seq_relationship_logits": ("relationship",)},
    "sentence_order": {"sop_logits": ("relationship",)},
}
"""Task of a head on top -> its outputs, each with its axes."""


@dataclass(frozen=True, repr=False)
class Tops:
    """The heads on top of a checkpoint's base model, and their outputs from the last hidden state (S, d_model)."""

    encoder: Encoder

    def __repr__(self) -> str:
        return f"on top: {', '.join(self.outputs) or 'nothing'}"

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
        formulas: dict[str, Callable[[Tokens], Float[np.ndarray, "..."]]] = {
            "masked_lm": self.masked_lm,
            "detection": self.detection,
            "sequence": self.sequence,
            "token": self.token,
            "question": lambda x: self.question(x)[:, int(name.startswith("end"))].copy(),
            "next_sentence": lambda x: self.encoder.linear(self.pooled(x)[None], "next_sentence")[0],
            "sentence_order": lambda x: self.encoder.linear(self.pooled(x)[None], "sentence_order")[0],
        }
        return Named(name, axes, formulas[task](last), self.labels() if axes[-1] == "labels" else None)

    def probabilities(self, logits: Float[np.ndarray, "*n labels"]) -> Float[np.ndarray, "*n labels"] | None:
        """The probabilities that a classifier's logits stand for; None for a regression, which has none.

        `problem_type` of the config decides. Of a classifier that states none, several logits are of classes that
        exclude each other (softmax). A single one is a score of its own (sigmoid), as in transformers' pipeline.
        """
        problem = self.encoder.anatomy.config.get("problem_type")
        if problem == "regression":
            return None
        if problem == "multi_label_classification" or logits.shape[-1] == 1:
            return sigmoid(logits.astype(np.float64))
        return softmax(logits)

    def pooled(self, last: Tokens) -> Float[np.ndarray, " d_model"]:
        """tanh(first token W + b), (d_model,)."""
        return np.tanh(self.encoder.linear(last[:1], "pooler")[0])

    def masked_lm(self, last: Tokens) -> Float[np.ndarray, "tokens vocabulary"]:
        """A score for every token of the vocabulary at every position, (S, vocabulary)."""
        decoder, bias = self.decoder()
        logits = self.dense(last, "masked_lm") @ decoder.T
        if bias is not None:
            logits += bias
        return logits

    def masked_lm_activation(self) -> str:
        """The activation before the decoder: the family's, or the config's, or that of the feed-forward network."""
        anatomy = self.encoder.anatomy
        own = anatomy.family.masked_lm_activation if anatomy.family else None
        return str(own or anatomy.setting("masked_lm_activation") or self.encoder.activation)

    def decoder(self) -> tuple[Float[np.ndarray, "vocabulary width"], Float[np.ndarray, " vocabulary"] | None]:
        """The masked-LM head's last Linear: its weight, or the word embeddings that it shares; its bias, if any."""
        own = self.encoder.held("masked_lm.decoder")
        role = self.decoder_bias()
        return (
            self.encoder.weight("embeddings.word.weight") if own is None else own,
            None if role is None else self.encoder.weight(role),
        )

    def decoder_bias(self) -> str | None:
        """The role of the decoder's bias; None if it has none."""
        roles = ("masked_lm.decoder_bias", "masked_lm.bias")
        return next((role for role in roles if self.encoder.anatomy.has(role)), None)

    def activation(self) -> str:
        """The activation of dense layers on top: the config's for them, or that of the feed-forward network."""
        anatomy = self.encoder.anatomy
        return str(anatomy.setting("head_activation") or self.encoder.activation)

    def dense(self, x: Tokens, task: str) -> Tokens:
        """The dense layer, activation and norm before a task's last layer, as far as the class has them."""
        encoder, (role, activation, norm) = self.encoder, before_last(self, task)
        if not encoder.anatomy.has(f"{role}.weight"):
            return x
        x = encoder.linear(x, role)
        activate(activation, x, encoder.threads)
        return encoder.norm(x, norm) if encoder.anatomy.has(f"{norm}.weight") else x

    def token(self, last: Tokens) -> Float[np.ndarray, "tokens labels"]:
        """A score for every label of every token, (S, labels)."""
        return self.encoder.linear(self.dense(last, "token"), "classifier")

    def question(self, last: Tokens) -> Float[np.ndarray, "tokens labels"]:
        """Scores of every token as the answer's first and last, (S, 2)."""
        return self.encoder.linear(self.dense(last, "question"), "question")

    def detection(self, last: Tokens) -> Float[np.ndarray, " tokens"]:
        """ELECTRA's discriminator, (S,): above 0, the token counts as replaced."""
        x = self.encoder.linear(last, "detection.dense")
        activate(self.encoder.activation, x, self.encoder.threads)
        return self.encoder.linear(x, "detection.out")[:, 0]

    def sequence(self, last: Tokens) -> Float[np.ndarray, " labels"]:
        """A score for every label of the text, (labels,)."""
        encoder, anatomy = self.encoder, self.encoder.anatomy
        if not anatomy.has("sequence.out.weight"):
            return encoder.linear(self.pooled(last)[None], "classifier")[0]
        pooling = self.pooling
        if pooling not in POOLINGS:
            raise UnsupportedError(
                f"classifier_pooling is {brief(pooling)}",
                where=f"{anatomy.where}: config.json",
                advice=f"headscope computes {', '.join(POOLINGS)}; for others, run the live model",
            )
        rows = last[:1] if pooling in ("cls", "bos") else last
        if pooling == "mean":
            rows = rows.mean(axis=0, keepdims=True)
        logits: Float[np.ndarray, " labels"] = encoder.linear(self.dense(rows, "sequence"), "sequence.out").mean(axis=0)
        return logits

    @property
    def pooling(self) -> str:
        """The tokens that a sequence classifier reads: the first token (cls, bos), or all of them (mean, late)."""
        return str(self.encoder.anatomy.setting("pooling") or "cls")

    @property
    def reads_first_token(self) -> bool:
        """True if a sequence classifier reads the first token only."""
        return self.pooling in ("cls", "bos")

    def labels(self) -> tuple[str, ...] | None:
        """Names of the labels; None unless config.json names every one of them, from index 0."""
        id2label = self.encoder.anatomy.config.get("id2label")
        if not isinstance(id2label, dict):
            return None
        labels = {int(index): str(label) for index, label in id2label.items()}
        return tuple(labels[index] for index in range(len(labels))) if set(labels) == set(range(len(labels))) else None


def before_last(tops: Tops, task: str) -> tuple[str, str, str]:
    """Return the role of the dense layer before a task's last Linear, its activation, and the role of a norm."""
    anatomy = tops.encoder.anatomy
    if task == "masked_lm":
        return "masked_lm.transform", tops.masked_lm_activation(), "masked_lm.norm"
    if task == "sequence" and not anatomy.has("sequence.out.weight"):
        return "pooler", "tanh", "pooler.norm"
    own = anatomy.family.sequence_activation if anatomy.family else None
    return f"{task}.dense", own or tops.activation(), f"{task}.norm"


def pooled(
    hidden: Float[np.ndarray, "*runs tokens d_model"], pooling: Pooling, prompt: int
) -> Float[np.ndarray, "*runs width"]:
    """Vectors pooled in fp64, not normalised: the mean over the tokens, or the first token's; truncated if they are.

    sentence-transformers' mean covers every token that attention sees, [CLS] and [SEP] among them.

    Args:
        hidden: the last hidden state.
        pooling: as the checkpoint says.
        prompt: number of tokens at the beginning that are left out: `TokenAxis.prompt`.
    """
    vectors: Float[np.ndarray, "*runs d_model"] = hidden[..., pooling.tokens(prompt), :].astype(np.float64).mean(-2)
    return vectors[..., : pooling.width]


def sentence_embedding(
    hidden: Float[np.ndarray, "tokens d_model"], pooling: Pooling, prompt: int
) -> Float[np.ndarray, " width"]:
    """The text's vector as sentence-transformers returns it: of length 1 where the model normalises, then truncated."""
    length = length_before(hidden, pooling, prompt) if pooling.normalized else 1
    return (pooled(hidden, pooling, prompt) / max(length, 1e-12)).astype(np.float32)


def length_before(hidden: Float[np.ndarray, "tokens d_model"], pooling: Pooling, prompt: int) -> float:
    """The length of a text's vector before it is truncated."""
    return float(np.linalg.norm(pooled(hidden, replace(pooling, width=None), prompt)))


def cosines_with(b: Float[np.ndarray, " d_model"], a: Float[np.ndarray, "runs d_model"]) -> Float[np.ndarray, " runs"]:
    """Cosines of vectors with one vector; NaN where one of them is 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines: Float[np.ndarray, " runs"] = (a @ b) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b))
    return cosines
