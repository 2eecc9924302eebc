"""The words for every field of a config: what it means, and a rule for what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headscope.anatomy.record import Anatomy
from headscope.anatomy.sizes import Dimensions


class Facts:
    """What the rules may speak of: an anatomy's sizes, and sums of them."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy = anatomy
        self.dimensions: Dimensions | None = anatomy.dimensions

    @property
    def sizes(self) -> Dimensions | None:
        """The dimensions; None where the family is not known."""
        return self.dimensions

    @property
    def s(self) -> Dimensions:
        """The dimensions, for rules that only run where they are known."""
        assert self.dimensions is not None
        return self.dimensions

    @cached_property
    def longest(self) -> int:
        """The most tokens that the position table has room for."""
        return self.anatomy.longest_text

    @cached_property
    def longest_reason(self) -> str:
        """How that number comes about."""
        if self.longest == self.s.positions:
            return f"one row of the position table per token: {self.s.positions}"
        return (
            f"{self.s.positions} rows of the position table, of which the first {self.s.positions - self.longest} are "
            f"never used by text: positions start behind the padding id"
        )

    @cached_property
    def per_layer(self) -> int:
        """Numbers in layer 0."""
        return sum(row.count for row in self.anatomy.parameters if row.layer == 0)

    @cached_property
    def per_layer_sum(self) -> str:
        """The same, spelled out."""
        d, f = self.s.d_model, self.s.d_ffn
        return (
            f"4 ({d} x {d} + {d}) + ({d} x {f} + {f}) + ({f} x {d} + {d}) + 4 x {d} = "
            f"{4 * (d * d + d) + (d * f + f) + (f * d + d) + 4 * d:,}"
        )


Rule = Callable[[Any, Facts], str]


def nothing(_value: Any, _facts: Facts) -> str:
    """The rule of fields from which nothing follows."""
    return ""


@dataclass(frozen=True, slots=True)
class Entry:
    """The words for one field.

    Attributes:
        meaning: what it is, in a sentence.
        implies: what follows from a value for a model.
        anywhere: whether the rule needs no dimensions, and so works for any family.
    """

    meaning: str
    implies: Rule = nothing
    anywhere: bool = False


def fixed(text: str) -> Rule:
    """The rule of fields from which the same follows whatever they say."""
    return lambda _value, _facts: text


NO_EFFECT = fixed("changes no weight and no output")
TRAINING_ONLY = fixed("only while training; nothing is dropped in a trace")

GENERATION_MEANING = "A setting for generating text; an encoder does not use it."
GENERATION = frozenset(
    (
        "max_length",
        "min_length",
        "max_new_tokens",
        "do_sample",
        "early_stopping",
        "num_beams",
        "num_beam_groups",
        "diversity_penalty",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "repetition_penalty",
        "length_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "num_return_sequences",
        "output_scores",
        "return_dict_in_generate",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "suppress_tokens",
        "begin_suppress_tokens",
        "decoder_start_token_id",
        "epsilon_cutoff",
        "eta_cutoff",
        "renormalize_logits",
    )
)
"""Fields that PretrainedConfig carries for models that generate."""

UNDESCRIBED = "not described by headscope"


def _heads(_value: Any, facts: Facts) -> str:
    s = facts.s
    return (
        f"d_head = {s.d_model} / {s.heads} = {s.d_head}; {s.layers * s.heads} heads in all; "
        "the number of heads changes no parameter count"
    )


def _width(_value: Any, facts: Facts) -> str:
    s = facts.s
    return (
        f"every token is {s.d_model} numbers in every layer; W_Q, W_K, W_V and W_O of a layer are "
        f"({s.d_model}, {s.d_model}) each, {s.d_model * s.d_model:,} numbers"
    )


def _layers(_value: Any, facts: Facts) -> str:
    layers, each = facts.s.layers, facts.per_layer
    return f"{layers} layers of {each:,} numbers: {each * layers:,}; counted from 0, the last is {layers - 1}"


def _ffn(_value: Any, facts: Facts) -> str:
    s = facts.s
    return (
        f"{s.d_ffn / s.d_model:.3g} times d_model; two matrices per layer of {s.d_model * s.d_ffn:,} numbers each, "
        f"{2 * s.d_model * s.d_ffn * s.layers:,} in all layers"
    )


def _vocab(_value: Any, facts: Facts) -> str:
    s = facts.s
    count = s.vocab * s.d_embedding
    share = count / (facts.anatomy.parameters.total or 1)
    table = f"a table ({s.vocab}, {s.d_embedding}): {count:,} numbers"
    return f"{table}, {share:.1%} of the base model; ids 0 to {s.vocab - 1}"


def _positions(_value: Any, facts: Facts) -> str:
    s = facts.s
    return (
        f"a table ({s.positions}, {s.d_embedding}): {s.positions * s.d_embedding:,} numbers; "
        f"a text has at most {facts.longest} tokens"
    )


def _types(_value: Any, facts: Facts) -> str:
    s = facts.s
    first = f"a table ({s.types}, {s.d_embedding}): {s.types * s.d_embedding:,} numbers; "
    return first + ("pairs of texts are not told apart by it" if s.types == 1 else f"segments 0 to {s.types - 1}")


def _embedding(_value: Any, facts: Facts) -> str:
    s = facts.s
    if s.d_embedding == s.d_model:
        return f"as wide as the layers ({s.d_model}), so nothing has to widen them"
    return (
        f"narrower than the layers: embeddings_project ({s.d_model}, {s.d_embedding}) widens "
        f"{s.d_embedding} numbers to {s.d_model}"
    )


ACTIVATIONS = {
    "gelu": "x times the share of a normal distribution below x, exactly, by erf",
    "gelu_new": "gelu's approximation by tanh",
    "gelu_pytorch_tanh": "gelu's approximation by tanh",
    "gelu_fast": "gelu's approximation by tanh, written another way",
    "gelu_python": "gelu by erf",
    "quick_gelu": "gelu's approximation x * sigmoid(1.702 x)",
    "relu": "max(x, 0)",
    "silu": "x * sigmoid(x)",
    "swish": "x * sigmoid(x)",
    "tanh": "tanh(x)",
    "mish": "x * tanh(log(1 + exp(x)))",
}


def _activation(value: Any, facts: Facts) -> str:
    text = ACTIVATIONS.get(value) if isinstance(value, str) else None
    width = f"applied to {facts.s.d_ffn} numbers per token and layer"
    return f"{text}; {width}" if text else width


def _labels(value: Any, _facts: Facts) -> str:
    if not isinstance(value, Mapping):
        return ""
    shown = ", ".join(str(name) for name in list(value.values())[:4])
    return f"a classifier has {len(value)} outputs: {shown}" + (", …" if len(value) > 4 else "")


def _label_ids(value: Any, _facts: Facts) -> str:
    return f"{len(value)} labels" if isinstance(value, Mapping) else ""


def _padding(value: Any, facts: Facts) -> str:
    offset = facts.anatomy.family.position_offset if facts.anatomy.family else None
    if offset is None or not isinstance(value, int):
        return "no token looks at padding"
    return (
        f"positions count from {value} + {offset} = {value + offset}, so rows 0 to {value + offset - 1} serve no text"
    )


def _dtype(value: Any, facts: Facts) -> str:
    stored = ", ".join(facts.anatomy.parameters.dtypes)
    return f"the file itself stores {stored}" if stored else ""


def _architectures(value: Any, facts: Facts) -> str:
    count = facts.anatomy.extra.total
    if facts.anatomy.family is None or not count:
        return ""
    return f"{count:,} numbers sit on top of {facts.anatomy.base_class}"


def _tied(value: Any, _facts: Facts) -> str:
    if value is False:
        return "a masked-LM head has an output table of its own"
    return "a masked-LM head has no output table of its own: it is counted once, as word embeddings"


def _positions_kind(value: Any, _facts: Facts) -> str:
    if value in (None, "absolute"):
        return "one learned vector per position, added to the word's"
    return "scores depend on distances between tokens; headscope's encoder refuses this model"


def _decoder(value: Any, _facts: Facts) -> str:
    return "each token would see only those before it" if value else "every token sees all tokens, before and after it"


def _pruned(value: Any, _facts: Facts) -> str:
    removed = (
        [f"layer {layer}: {heads}" for layer, heads in value.items() if heads] if isinstance(value, Mapping) else []
    )
    return "; ".join(removed) if removed else "none removed"


def _dropout(value: Any, _facts: Facts) -> str:
    part = f"{value:.0%} of the numbers at random, " if isinstance(value, (int, float)) else ""
    return f"{part}only while training; nothing is dropped in a trace"


def _classifier_dropout(value: Any, _facts: Facts) -> str:
    return "as hidden_dropout_prob says" if value is None else _dropout(value, _facts)


WIDTH = Entry("The width of the residual stream: how many numbers stand for one token (d_model).", _width)
LAYERS = Entry("How many layers are stacked; each has attention and a feed-forward network.", _layers)
HEADS = Entry("How many heads attention has in each layer; each sees all tokens with its own queries and keys.", _heads)
FFN = Entry("The width of the feed-forward network's middle, between its two matrices (d_ffn).", _ffn)
ACTIVATION = Entry("The function in the middle of the feed-forward network.", _activation)
LABEL_MEANING = "The names of a classifier's outputs, by index."

ENTRIES: Mapping[str, Entry] = {
    "vocab_size": Entry("How many tokens the vocabulary has: rows of the word embeddings.", _vocab),
    "hidden_size": WIDTH,
    "dim": WIDTH,
    "embedding_size": Entry("The width of the embeddings, before they enter the layers.", _embedding),
    "num_hidden_layers": LAYERS,
    "n_layers": LAYERS,
    "num_attention_heads": HEADS,
    "n_heads": HEADS,
    "intermediate_size": FFN,
    "hidden_dim": FFN,
    "max_position_embeddings": Entry("Rows of the position table: a limit to a text's length.", _positions),
    "type_vocab_size": Entry("How many segments can be told apart: rows of the token-type table.", _types),
    "hidden_act": ACTIVATION,
    "activation": ACTIVATION,
    "layer_norm_eps": Entry(
        "Added to the variance inside every LayerNorm, so that nothing is divided by zero.",
        lambda _value, facts: f"{2 * facts.s.layers + 1} LayerNorms in embeddings and layers",
    ),
    "position_embedding_type": Entry("How positions enter: absolute, or relative to the other token.", _positions_kind),
    "sinusoidal_pos_embds": Entry(
        "Whether the position table started out as sines and cosines; it is stored either way.", NO_EFFECT
    ),
    "is_decoder": Entry("Whether the model works as a decoder, which looks only backwards.", _decoder),
    "add_cross_attention": Entry(
        "Whether each layer also attends to another model's output.",
        lambda value, _facts: "another attention block in every layer" if value else "self-attention only",
    ),
    "is_encoder_decoder": Entry("Whether the model is an encoder and a decoder together.", anywhere=True),
    "cross_attention_hidden_size": Entry("The width of the other model's output under cross-attention."),
    "use_cache": Entry("Whether a decoder keeps keys and values of earlier tokens.", fixed("of no use to an encoder")),
    "pruned_heads": Entry("Heads that were cut out, by layer.", _pruned),
    "per_layer_config": Entry("Settings that some layers have of their own."),
    "chunk_size_feed_forward": Entry(
        "How many tokens the feed-forward network takes at a time, to save memory; 0 is all at once.", NO_EFFECT
    ),
    "tie_word_embeddings": Entry(
        "Whether words are predicted by the same table that embeds them.", _tied, anywhere=True
    ),
    "tie_weights_": Entry("An old name of tie_word_embeddings, which the class does not read.", NO_EFFECT),
    "tie_encoder_decoder": Entry("Whether an encoder and a decoder share their weights.", NO_EFFECT),
    "tie_last_hidden_states": Entry("Whether the last hidden state that is returned is the one after the final norm."),
    "hidden_dropout_prob": Entry(
        "How much is dropped behind embeddings, attention and feed-forward network.", _dropout
    ),
    "dropout": Entry("How much is dropped behind embeddings and feed-forward network.", _dropout),
    "attention_probs_dropout_prob": Entry("How much of the attention weights is dropped.", _dropout),
    "attention_dropout": Entry("How much of the attention weights is dropped.", _dropout),
    "classifier_dropout": Entry("How much is dropped before a classifier.", _classifier_dropout),
    "qa_dropout": Entry("How much is dropped before the question-answering outputs.", _dropout),
    "seq_classif_dropout": Entry("How much is dropped before the sequence classifier.", _dropout),
    "initializer_range": Entry(
        "The standard deviation that new weights are drawn with.",
        lambda value, _facts: f"newly initialised matrices are normal with deviation {value}; trained ones are not",
        anywhere=True,
    ),
    "gradient_checkpointing": Entry(
        "Whether training computes activations twice to save memory.", NO_EFFECT, anywhere=True
    ),
    "summary_type": Entry("Which token stands for the text in a multiple-choice head: first, last, mean, ….", nothing),
    "summary_use_proj": Entry(
        "Whether a multiple-choice head has a dense layer before its classifier.",
        lambda value, facts: f"a matrix ({facts.s.d_model}, {facts.s.d_model})" if value else "no dense layer",
    ),
    "summary_activation": Entry("The function behind that dense layer."),
    "summary_proj_to_labels": Entry("Whether that dense layer goes straight to the labels."),
    "summary_first_dropout": Entry("How much is dropped before that dense layer.", _dropout),
    "summary_last_dropout": Entry("How much is dropped behind that dense layer.", _dropout),
    "pad_token_id": Entry("The id of the token that fills up shorter texts of a batch.", _padding),
    "bos_token_id": Entry("The id of the token that begins a text, where the model has one."),
    "eos_token_id": Entry("The id of the token that ends a text, where the model has one."),
    "sep_token_id": Entry("The id of the token that separates two texts."),
    "cls_token_id": Entry("The id of the token that stands for the whole text."),
    "mask_token_id": Entry("The id of the token that hides a word."),
    "unk_token_id": Entry("The id of the token that stands for what the vocabulary lacks."),
    "id2label": Entry(LABEL_MEANING, _labels, anywhere=True),
    "label2id": Entry("The same the other way: index by name.", _label_ids, anywhere=True),
    "num_labels": Entry("How many outputs a classifier has."),
    "_num_labels": Entry("How many outputs a classifier has, as old versions wrote it."),
    "problem_type": Entry("What a sequence classifier is trained for: one label, several at once, or a number."),
    "finetuning_task": Entry(
        "The task that the model was fine-tuned on, as its maker noted it.", NO_EFFECT, anywhere=True
    ),
    "task_specific_params": Entry(
        "Settings for particular tasks; an encoder does not use them.", NO_EFFECT, anywhere=True
    ),
    "model_type": Entry(
        "The family: it decides which classes and which table of names apply.",
        lambda _value, facts: f"its base class is {facts.anatomy.base_class}",
    ),
    "architectures": Entry("The class that the checkpoint was saved from.", _architectures),
    "dtype": Entry("The dtype that the weights were saved in.", _dtype, anywhere=True),
    "torch_dtype": Entry(
        "The dtype that the weights were saved in, as versions before 5 write it.", _dtype, anywhere=True
    ),
    "transformers_version": Entry("The version of transformers that wrote the config.", NO_EFFECT, anywhere=True),
    "_name_or_path": Entry("What the model was loaded from before it was saved.", NO_EFFECT, anywhere=True),
    "name_or_path": Entry("What the model was loaded from before it was saved.", NO_EFFECT, anywhere=True),
    "_commit_hash": Entry("The commit that the config was loaded at.", NO_EFFECT, anywhere=True),
    "tokenizer_class": Entry("The class of the tokenizer that goes with the model.", anywhere=True),
    "auto_map": Entry("Code that the model brings with it, instead of a class of transformers.", anywhere=True),
    "quantization_config": Entry("How the weights are quantised: what is stored are codes and scales.", anywhere=True),
    "attn_implementation": Entry(
        "The kernel that transformers computes attention with; all give the same weights.", NO_EFFECT, anywhere=True
    ),
    "_attn_implementation": Entry(
        "The kernel that transformers computes attention with; all give the same weights.", NO_EFFECT, anywhere=True
    ),
    "_attn_implementation_autoset": Entry("Whether that kernel was chosen by default.", NO_EFFECT, anywhere=True),
    "return_dict": Entry("Whether outputs have names.", NO_EFFECT, anywhere=True),
    "use_return_dict": Entry("Whether outputs have names.", NO_EFFECT, anywhere=True),
    "output_attentions": Entry("Whether transformers returns attention weights.", NO_EFFECT, anywhere=True),
    "output_hidden_states": Entry("Whether transformers returns every layer's output.", NO_EFFECT, anywhere=True),
    "torchscript": Entry("Whether the model is prepared for TorchScript.", NO_EFFECT, anywhere=True),
    "use_bfloat16": Entry("A switch of TensorFlow's models on TPUs.", NO_EFFECT, anywhere=True),
    "tf_legacy_loss": Entry("A switch of TensorFlow's models.", NO_EFFECT, anywhere=True),
    "prefix": Entry("A text that is put before every input, for models that generate.", NO_EFFECT, anywhere=True),
    "output_past": Entry("An old name of use_cache.", NO_EFFECT, anywhere=True),
    "language": Entry("The language of the training text, as its maker noted it.", NO_EFFECT, anywhere=True),
    "directionality": Entry("That BERT reads in both directions; written by Google's own code.", NO_EFFECT),
    "pooler_fc_size": Entry("A setting of Google's own code that the class does not read.", NO_EFFECT),
    "pooler_num_attention_heads": Entry("A setting of Google's own code that the class does not read.", NO_EFFECT),
    "pooler_num_fc_layers": Entry("A setting of Google's own code that the class does not read.", NO_EFFECT),
    "pooler_size_per_head": Entry("A setting of Google's own code that the class does not read.", NO_EFFECT),
    "pooler_type": Entry("A setting of Google's own code that the class does not read.", NO_EFFECT),
}
"""Field -> its words, for the configs of BERT, RoBERTa, DistilBERT and ELECTRA and what every config may hold."""
