"""config.json explained: every field with its value, its meaning, and its consequences for this model.

A rule gives the consequences of a field for a model, in a sentence, from its value and the model's sizes.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from headscope.anatomy.anatomy_record import Anatomy
from headscope.anatomy.read_anatomy import base_specs
from headscope.anatomy.sizes import Dimensions
from headscope.errors import InputError
from headscope.late import Keyed
from headscope.results.row_tables import Rows
from headscope.settings import meant


class Facts:
    """The facts that rules refer to: an anatomy's sizes, and sums of them."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy = anatomy

    @property
    def s(self) -> Dimensions:
        """The dimensions; for rules that run only if they are known."""
        assert self.anatomy.dimensions is not None
        return self.anatomy.dimensions

    @cached_property
    def longest(self) -> int:
        """The maximum number of tokens in one input, by the position table."""
        return self.anatomy.longest_text

    @cached_property
    def longest_reason(self) -> str:
        """The derivation of that number."""
        if not self.anatomy.has("embeddings.position.weight"):
            return f"no table limits it: {self.positions_act}; the config says how long a text the model was made for"
        if self.longest == self.s.positions:
            return f"one row of the position table per token: {self.s.positions}"
        return (
            f"the position table has {self.s.positions} rows, but text never uses the first "
            f"{self.s.positions - self.longest}: positions start after the padding id"
        )

    @property
    def positions_act(self) -> str:
        """Effect of positions in a family that adds none."""
        if self.anatomy.rotates:
            return "queries and keys are rotated by their positions"
        return "scores depend on distances"

    @cached_property
    def per_layer(self) -> int:
        """Number of parameters in layer 0."""
        return sum(row.count for row in self.anatomy.rows_of(0))

    @cached_property
    def per_layer_sum(self) -> str:
        """That number as a sum over the layer's matrices."""
        d, f = self.s.d_model, self.s.d_ffn
        berts = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 4 * d
        if berts == self.per_layer:
            return f"4 ({d} x {d} + {d}) + ({d} x {f} + {f}) + ({f} x {d} + {d}) + 4 x {d} = {berts:,}"
        shapes = Counter(" x ".join(map(str, row.shape)) for row in self.anatomy.rows_of(0))
        parts = [f"{count} ({shape})" if count > 1 else shape for shape, count in shapes.items()]
        last = sum(row.count for row in self.anatomy.rows_of(self.s.layers - 1))
        others = "" if last == self.per_layer else f", in layer 0; {last:,} in the last"
        return f"{' + '.join(parts)} = {self.per_layer:,}{others}"


Rule = Callable[[Any, Facts], str]


def fixed(text: str) -> Rule:
    """Return a rule that gives the same sentence for every value."""
    return lambda _value, _facts: text


NOTHING = fixed("")
NO_EFFECT = fixed("affects no weight and no output")


def heads(_value: Any, facts: Facts) -> str:
    s, family = facts.s, facts.anatomy.family
    if not s.d_heads == s.d_keys == s.d_model:
        return f"d_head = {s.d_head}; {s.all_heads} heads in all"
    text = f"d_head = {s.d_model} / {s.heads} = {s.d_head}; {s.all_heads} heads in all"
    specs = base_specs(family, s, facts.anatomy.config) if family else []
    counted = any({"heads", "all_heads", "d_head"} & {*spec.shape} for spec, _ in specs)
    return text if counted else f"{text}; the number of heads changes no parameter count"


def groups(_value: Any, facts: Facts) -> str:
    s = facts.s
    return f"{s.layers} layers use the parameters of {s.stored_layers}"


def key_heads(_value: Any, facts: Facts) -> str:
    s = facts.s
    if s.kv_heads == s.heads:
        return "every query head has a key head of its own"
    return f"{s.heads // s.kv_heads} query heads share each key head (grouped-query attention)"


def width(_value: Any, facts: Facts) -> str:
    s = facts.s
    text = f"every token is a vector of {s.d_model} values in every layer; "
    if s.d_heads == s.d_keys == s.d_model:
        size = f"({s.d_model}, {s.d_model}) each, {s.d_model * s.d_model:,} parameters"
        return f"{text}W_Q, W_K, W_V and W_O of a layer are {size}"
    return f"{text}W_Q of a layer is ({s.d_model}, {s.d_heads}), W_K and W_V are ({s.d_model}, {s.d_keys})"


def layers(_value: Any, facts: Facts) -> str:
    layers, each = facts.s.layers, facts.per_layer
    stored = facts.s.stored_layers
    whole = sum(row.count for row in facts.anatomy.parameters if row.layer is not None)
    if stored != layers:
        return f"{layers} layers share the parameters of {stored}: {whole:,}; counted from 0, the last is {layers - 1}"
    if whole != each * layers:
        return f"{layers} layers with {whole:,} parameters; counted from 0, the last is {layers - 1}"
    return f"{layers} layers of {each:,} parameters: {each * layers:,}; counted from 0, the last is {layers - 1}"


def ffn(_value: Any, facts: Facts) -> str:
    s = facts.s
    number, word = (3, "three") if facts.anatomy.has("layer.ffn_gate.weight", 0) else (2, "two")
    return (
        f"{s.d_ffn / s.d_model:.3g} times d_model; {word} matrices per layer of {s.d_model * s.d_ffn:,} parameters "
        f"each, {number * s.d_model * s.d_ffn * s.stored_layers:,} in all layers"
    )


def vocab(_value: Any, facts: Facts) -> str:
    s = facts.s
    count = s.vocab * s.d_embedding
    share = count / (facts.anatomy.parameters.total or 1)
    table = f"a table ({s.vocab}, {s.d_embedding}): {count:,} parameters"
    return f"{table}, {share:.1%} of the base model; ids 0 to {s.vocab - 1}"


def positions(_value: Any, facts: Facts) -> str:
    s = facts.s
    if not facts.anatomy.has("embeddings.position.weight"):
        return f"no table is added: {facts.positions_act}; the model was made for texts of {facts.longest} tokens"
    return (
        f"a table ({s.positions}, {s.d_embedding}): {s.positions * s.d_embedding:,} parameters; "
        f"a text has at most {facts.longest} tokens"
    )


def types(_value: Any, facts: Facts) -> str:
    s = facts.s
    if not s.types:
        return "no table is added: the texts of a pair are not distinguished"
    size = f"a table ({s.types}, {s.d_embedding}): {s.types * s.d_embedding:,} parameters; "
    return size + ("it does not distinguish the texts of a pair" if s.types == 1 else f"segments 0 to {s.types - 1}")


def embedding(_value: Any, facts: Facts) -> str:
    s = facts.s
    if s.d_embedding == s.d_model:
        return f"as wide as the layers ({s.d_model}), so no projection is needed"
    held = facts.anatomy.has("projection.weight")
    projection = facts.anatomy.parameter("projection.weight").name.split(".")[-2] if held else "a projection"
    return (
        f"not as wide as the layers: {projection} ({s.d_model}, {s.d_embedding}) projects {s.d_embedding} values to "
        f"{s.d_model}"
    )


ACTIVATIONS = {
    "gelu": ("GELUActivation", "x times the normal distribution function of x, exactly, by erf"),
    "gelu_new": ("NewGELUActivation", "gelu's approximation by tanh"),
    "gelu_pytorch_tanh": ("GELUTanh", "gelu's approximation by tanh"),
    "gelu_fast": ("FastGELUActivation", "gelu's approximation by tanh, in another form"),
    "gelu_python": ("GELUActivation", "gelu by erf"),
    "quick_gelu": ("QuickGELUActivation", "gelu's approximation x * sigmoid(1.702 x)"),
    "relu": ("ReLU", "max(x, 0)"),
    "silu": ("SiLUActivation", "x * sigmoid(x)"),
    "swish": ("SiLU", "x * sigmoid(x)"),
    "tanh": ("Tanh", "tanh(x)"),
    "mish": ("MishActivation", "x * tanh(log(1 + exp(x)))"),
}
"""Activation's name in a config -> the class that transformers prints, and what it computes."""


def norms(_value: Any, facts: Facts) -> str:
    rows = [row for row in facts.anatomy.parameters if (row.role or "").endswith("norm.weight")]
    kind = "RMSNorms" if facts.anatomy.family and facts.anatomy.family.rms_norm else "LayerNorms"
    return f"{len(rows)} {kind} in embeddings and layers"


def activation(value: Any, facts: Facts) -> str:
    known = ACTIVATIONS.get(value) if isinstance(value, str) else None
    width = f"applied to {facts.s.d_ffn} values per token and layer"
    return f"{known[1]}; {width}" if known else width


def labels(value: Any, _facts: Facts) -> str:
    if not isinstance(value, Mapping):
        return ""
    names = ", ".join(str(name) for name in list(value.values())[:4])
    return f"a classifier has {len(value)} outputs: {names}" + (", …" if len(value) > 4 else "")


def label_ids(value: Any, _facts: Facts) -> str:
    return f"{len(value)} labels" if isinstance(value, Mapping) else ""


def padding(value: Any, facts: Facts) -> str:
    offset = facts.anatomy.family.position_offset if facts.anatomy.family else None
    if offset is None or not facts.anatomy.has("embeddings.position.weight") or not isinstance(value, int):
        return "no token looks at padding"
    first = facts.s.positions - facts.longest
    return f"positions count from {first - offset} + {offset} = {first}, so text never uses rows 0 to {first - 1}"


def dtype(value: Any, facts: Facts) -> str:
    stored = ", ".join(facts.anatomy.parameters.dtypes)
    return f"the file stores {stored}" if stored else ""


def architectures(value: Any, facts: Facts) -> str:
    count = facts.anatomy.extra.total
    if facts.anatomy.family is None or not count:
        return ""
    return f"{count:,} parameters on top of {facts.anatomy.base_class}"


def tied(value: Any, _facts: Facts) -> str:
    if value is False:
        return "a masked-LM head has a separate output table"
    return "a masked-LM head has no separate output table: the shared table counts once, as word embeddings"


def positions_kind(value: Any, facts: Facts) -> str:
    known = facts.anatomy.family.position_types if facts.anatomy.family else ()
    if known and value not in (None, *known):
        return "scores depend on distances between tokens; headscope's encoder doesn't support this model"
    if facts.anatomy.has("embeddings.position.weight"):
        return "one learned vector per position, added to the word's"
    return f"no table is added: {facts.positions_act}"


def decoder(value: Any, _facts: Facts) -> str:
    return "each token looks only at earlier tokens" if value else "every token looks at all tokens, in both directions"


def pruned(value: Any, _facts: Facts) -> str:
    removed = (
        [f"layer {layer}: {heads}" for layer, heads in value.items() if heads] if isinstance(value, Mapping) else []
    )
    return "; ".join(removed) if removed else "none removed"


def dropout(value: Any, _facts: Facts) -> str:
    part = f"{value:.0%} of the values at random, " if isinstance(value, (int, float)) else ""
    return f"{part}only during training; a trace drops nothing"


def classifier_dropout(value: Any, _facts: Facts) -> str:
    return "the same as hidden_dropout_prob" if value is None else dropout(value, _facts)


@dataclass(frozen=True, slots=True)
class Entry:
    """The description of one field.

    Attributes:
        meaning: the field's meaning, in a sentence.
        implies: the rule that derives the consequences of a value for a model.
        anywhere: True if the rule needs no dimensions, and so works for any family.
    """

    meaning: str
    implies: Rule = NOTHING
    anywhere: bool = False


GENERATION_MEANING = "A setting for text generation; encoders ignore it."
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

WIDTH = Entry("The width of the residual stream: the length of each token's vector (d_model).", width)
LAYERS = Entry("The number of layers; each has attention and a feed-forward network.", layers)
HEADS = Entry("The number of attention heads per layer; each looks at all tokens with its own queries and keys.", heads)
FFN = Entry("The width of the feed-forward network between its two matrices (d_ffn).", ffn)
ACTIVATION = Entry("The activation function of the feed-forward network.", activation)

UNUSED = {
    "gradient_checkpointing": "True if training recomputes activations to save memory.",
    "finetuning_task": "The task that the model was fine-tuned on, according to its author.",
    "task_specific_params": "Settings for particular tasks; encoders ignore them.",
    "transformers_version": "The version of transformers that wrote the config.",
    "_name_or_path": "The name or path that the model was loaded from.",
    "name_or_path": "The name or path that the model was loaded from.",
    "_commit_hash": "The commit that the config was loaded from.",
    "attn_implementation": "The kernel that transformers uses for attention; all give the same weights.",
    "_attn_implementation": "The kernel that transformers uses for attention; all give the same weights.",
    "_attn_implementation_autoset": "True if that kernel was chosen by default.",
    "return_dict": "True if outputs have names.",
    "use_return_dict": "True if outputs have names.",
    "output_attentions": "True if transformers returns attention weights.",
    "output_hidden_states": "True if transformers returns every layer's output.",
    "torchscript": "True if the model is prepared for TorchScript.",
    "use_bfloat16": "A setting of TensorFlow models on TPUs.",
    "tf_legacy_loss": "A setting of TensorFlow models.",
    "prefix": "A text before every input, for generative models.",
    "output_past": "An old name of use_cache.",
    "language": "The language of the training text, according to its author.",
}
"""Fields of any config that affect no weight and no output -> their meaning."""

ENTRIES: Mapping[str, Entry] = {
    "vocab_size": Entry("The number of tokens in the vocabulary: rows of the word embeddings.", vocab),
    "hidden_size": WIDTH,
    "dim": WIDTH,
    "embedding_size": Entry("The width of the embeddings before the first layer.", embedding),
    "num_hidden_layers": LAYERS,
    "n_layers": LAYERS,
    "num_attention_heads": HEADS,
    "n_heads": HEADS,
    "intermediate_size": FFN,
    "hidden_dim": FFN,
    "max_position_embeddings": Entry("Rows of the position table; they limit the length of a text.", positions),
    "type_vocab_size": Entry("The number of segments: rows of the token-type table.", types),
    "hidden_act": ACTIVATION,
    "hidden_activation": ACTIVATION,
    "activation": ACTIVATION,
    "layer_norm_eps": Entry("Added to the variance in every LayerNorm to avoid division by zero.", norms),
    "norm_eps": Entry("Added to the variance in every LayerNorm to avoid division by zero.", norms),
    "rms_norm_eps": Entry("Added to the mean square in every RMSNorm to avoid division by zero.", norms),
    "position_embedding_type": Entry(
        "How attention knows positions: absolute, or relative to the other token.", positions_kind
    ),
    "sinusoidal_pos_embds": Entry(
        "True if the position table was initialised with sines and cosines; it is stored either way.", NO_EFFECT
    ),
    "is_decoder": Entry("True if the model is a decoder: each token looks only at earlier tokens.", decoder),
    "add_cross_attention": Entry(
        "True if each layer also looks at another model's output.",
        lambda value, _facts: "another attention block in every layer" if value else "self-attention only",
    ),
    "is_encoder_decoder": Entry("True if the model consists of an encoder and a decoder.", anywhere=True),
    "cross_attention_hidden_size": Entry("The width of the other model's output under cross-attention."),
    "use_cache": Entry(
        "True if a decoder caches the keys and values of earlier tokens.", fixed("encoders don't use it")
    ),
    "num_hidden_groups": Entry("The number of groups of layers that share their parameters (ALBERT).", groups),
    "inner_group_num": Entry("The number of different layers in such a group."),
    "classifier_dropout_prob": Entry("Dropout before a classifier.", dropout),
    "use_task_id": Entry("True if the embeddings also have a vector for the task (ERNIE); texts have task 0."),
    "task_type_vocab_size": Entry("The number of tasks: rows of that table."),
    "rotary_value": Entry("True if values are rotated, too, and not only queries and keys."),
    "rope_theta": Entry("The base of the rotations' frequencies: pair i turns by base^(-2i / d_head) per position."),
    "rope_parameters": Entry("How queries and keys are rotated: rope_theta is the base of the frequencies."),
    "rope_scaling": Entry("How the rotation is stretched for longer texts; headscope computes the default only."),
    "global_rope_theta": Entry("The base of the rotations' frequencies in layers whose queries see all keys."),
    "local_rope_theta": Entry("The base of the rotations' frequencies in local layers."),
    "layer_types": Entry("For each layer, full_attention (its queries see all keys) or sliding_attention (a window)."),
    "global_attn_every_n_layers": Entry("Every n-th layer, from layer 0 on, sees all keys; the others are local."),
    "local_attention": Entry("The number of keys in the window of a local layer: half of them on each side."),
    "sliding_window": Entry("Half of local_attention, which it replaces: the number of keys on each side."),
    "attention_bias": Entry("True if query, key, value and output of attention have biases."),
    "mlp_bias": Entry("True if the feed-forward network has biases."),
    "norm_bias": Entry("True if the norms have a shift."),
    "decoder_bias": Entry("True if the output layer of a masked-LM head has a bias."),
    "classifier_bias": Entry("True if the dense layer of the heads on top has a bias."),
    "classifier_activation": Entry("The activation of the dense layer of the heads on top."),
    "classifier_pooling": Entry("The vector that a sequence classifier reads: first token, mean, or mean of scores."),
    "embedding_dropout": Entry("Dropout after the embeddings.", dropout),
    "mlp_dropout": Entry("Dropout inside the feed-forward network.", dropout),
    "initializer_cutoff_factor": Entry(
        "New weights further from 0 than this many deviations are drawn again.", NO_EFFECT
    ),
    "deterministic_flash_attn": Entry("True if a kernel gives the same result each time.", NO_EFFECT),
    "sparse_prediction": Entry("True if training predicts masked tokens only.", NO_EFFECT),
    "sparse_pred_ignore_index": Entry("The label of tokens that training doesn't predict.", NO_EFFECT),
    "reference_compile": Entry("True if the model compiles itself.", NO_EFFECT),
    "emb_layer_norm_before": Entry("True if the embeddings have a norm of their own."),
    "token_dropout": Entry("True if <mask> is embedded as 0, and the other tokens are scaled to make up for it (ESM)."),
    "is_folding_model": Entry("True if the checkpoint is ESMFold, which predicts structures."),
    "esmfold_config": Entry("The settings of ESMFold."),
    "vocab_list": Entry("The tokens of the vocabulary, for ESMFold."),
    "head_dim": Entry("The width of one head, if it is not d_model / heads."),
    "num_key_value_heads": Entry("The number of key heads per layer; query heads may share them.", key_heads),
    "relative_attention_num_buckets": Entry("The number of buckets of distances; each head adds a number for each."),
    "relative_attention": Entry("True if scores depend on the distance of two tokens (DeBERTa)."),
    "pos_att_type": Entry("The products that scores add: c2p, a query with a distance; p2c, a key with a distance."),
    "position_buckets": Entry("The number of buckets of distances on each side; -1: each distance counts alone."),
    "max_relative_positions": Entry("The largest distance that counts alone; -1: max_position_embeddings."),
    "position_biased_input": Entry("True if a vector for the position is added to the word's."),
    "share_att_key": Entry("True if distances are projected by the layer's own W_Q and W_K."),
    "norm_rel_ebd": Entry("The norm of the vectors of distances: layer_norm or none."),
    "conv_kernel_size": Entry("The width of a convolution beside the first layer; 0 if there is none."),
    "conv_groups": Entry("The number of groups of channels that this convolution doesn't mix."),
    "conv_act": Entry("The activation of that convolution."),
    "pooler_dropout": Entry("Dropout before the pooler on top.", dropout),
    "pooler_hidden_act": Entry("The activation of the pooler on top."),
    "pooler_hidden_size": Entry("The width of the pooler on top."),
    "legacy": Entry("True if a masked-LM head has the names of BERT's, which DeBERTa's files don't have."),
    "pretraining_tp": Entry("A setting of distributed training.", NO_EFFECT),
    "pruned_heads": Entry("Heads that were removed, by layer.", pruned),
    "per_layer_config": Entry("Settings that differ between layers."),
    "chunk_size_feed_forward": Entry(
        "The number of tokens that the feed-forward network processes at a time, to save memory; 0 is all at once.",
        NO_EFFECT,
    ),
    "tie_word_embeddings": Entry(
        "True if the output layer shares the table of the word embeddings.", tied, anywhere=True
    ),
    "tie_weights_": Entry("An old name of tie_word_embeddings, which the class does not read.", NO_EFFECT),
    "tie_encoder_decoder": Entry("True if an encoder and a decoder share their weights.", NO_EFFECT),
    "tie_last_hidden_states": Entry("True if the returned last hidden state is the one after the final norm."),
    "hidden_dropout_prob": Entry("Dropout after the embeddings, attention and feed-forward network.", dropout),
    "dropout": Entry("Dropout after the embeddings and the feed-forward network.", dropout),
    "attention_probs_dropout_prob": Entry("Dropout on the attention weights.", dropout),
    "attention_dropout": Entry("Dropout on the attention weights.", dropout),
    "classifier_dropout": Entry("Dropout before a classifier.", classifier_dropout),
    "qa_dropout": Entry("Dropout before the question-answering outputs.", dropout),
    "seq_classif_dropout": Entry("Dropout before the sequence classifier.", dropout),
    "initializer_range": Entry(
        "The standard deviation of newly initialised weights.",
        lambda value, _facts: f"new matrices are drawn from a normal distribution with deviation {value}",
        anywhere=True,
    ),
    "summary_type": Entry("The vector that represents the text in a multiple-choice head: first, last, mean, …."),
    "summary_use_proj": Entry(
        "True if a multiple-choice head has a dense layer before its classifier.",
        lambda value, facts: f"a matrix ({facts.s.d_model}, {facts.s.d_model})" if value else "no dense layer",
    ),
    "summary_activation": Entry("The activation function after that dense layer."),
    "summary_proj_to_labels": Entry("True if that dense layer maps directly to the labels."),
    "summary_first_dropout": Entry("Dropout before that dense layer.", dropout),
    "summary_last_dropout": Entry("Dropout after that dense layer.", dropout),
    "pad_token_id": Entry("The id of the token that pads the shorter texts of a batch.", padding),
    "bos_token_id": Entry("The id of the token that begins a text, if the model has one."),
    "eos_token_id": Entry("The id of the token that ends a text, if the model has one."),
    "sep_token_id": Entry("The id of the token that separates two texts."),
    "cls_token_id": Entry("The id of the token that represents the whole text."),
    "mask_token_id": Entry("The id of the token that replaces a masked word."),
    "unk_token_id": Entry("The id of the token for anything that the vocabulary lacks."),
    "id2label": Entry("The names of a classifier's outputs, by index.", labels, anywhere=True),
    "label2id": Entry("The inverse of id2label: index by name.", label_ids, anywhere=True),
    "num_labels": Entry("The number of a classifier's outputs."),
    "_num_labels": Entry("The number of a classifier's outputs, as old versions spell it."),
    "problem_type": Entry("The task of a sequence classifier: one label, several labels, or a number."),
    "model_type": Entry(
        "The family: it determines the classes and the table of names.",
        lambda _value, facts: f"its base class is {facts.anatomy.base_class}",
    ),
    "architectures": Entry("The class that the checkpoint was saved from.", architectures),
    "dtype": Entry("The dtype that the weights were saved in.", dtype, anywhere=True),
    "torch_dtype": Entry(
        "The dtype that the weights were saved in, as transformers before 5 spells it.", dtype, anywhere=True
    ),
    "tokenizer_class": Entry("The class of the model's tokenizer.", anywhere=True),
    "auto_map": Entry("Code in the model's repository that replaces a class of transformers.", anywhere=True),
    "quantization_config": Entry("How the weights are quantised: the file stores codes and scales.", anywhere=True),
    "directionality": Entry("The reading direction, written by Google's original code.", NO_EFFECT),
    "pooler_fc_size": Entry("A setting of Google's original code that the class does not read.", NO_EFFECT),
    "pooler_num_attention_heads": Entry("A setting of Google's original code that the class does not read.", NO_EFFECT),
    "pooler_num_fc_layers": Entry("A setting of Google's original code that the class does not read.", NO_EFFECT),
    "pooler_size_per_head": Entry("A setting of Google's original code that the class does not read.", NO_EFFECT),
    "pooler_type": Entry("A setting of Google's original code that the class does not read.", NO_EFFECT),
    **{name: Entry(meaning, NO_EFFECT, anywhere=True) for name, meaning in UNUSED.items()},
}
"""Field -> its description, for the configs of all families and for fields of every config."""


Source = Literal["config.json", "default", "implied"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a config.

    Attributes:
        name: the name in config.json; for an implied field, headscope's name.
        value: the value in config.json, the class's default, or the implied value.
        meaning: the field's meaning, in a sentence.
        implies: the consequences for this model, in figures if possible; empty if there are none.
        source: where the value comes from.
        described: True if headscope has a description of this field.
    """

    name: str
    value: Any
    meaning: str
    implies: str
    source: Source
    described: bool = True


class ConfigTable(Keyed, Rows, Mapping[str, Any]):
    """A config as a mapping from field to value; `fields` has the explanations.

    The fields of config.json come first, in their order, then the class's defaults, then implied fields.
    """

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self._by_name = {field.name: field for field in fields}

    def __getitem__(self, name: str) -> Any:
        return self.field(name).value

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self.fields)

    def __getattr__(self, name: str) -> Any:
        known = vars(self).get("_by_name", ())
        hint = f"; use config[{name!r}]" if name in known else meant(name, known)
        raise AttributeError(f"'ConfigTable' object has no attribute {name!r}{hint}", name=name, obj=self)

    def field(self, name: str) -> Field:
        """Return a field with its explanation.

        Raises:
            InputError: neither config.json nor the class's defaults have this field.
        """
        if not isinstance(name, str) or name not in self._by_name:
            raise MissingFieldError(
                f"the config has no field {name!r:.80}{meant(str(name), self._by_name)}",
                where="config",
                advice="`headscope config` lists them all",
            )
        return self._by_name[name]

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict for each field: name, value, meaning, implies, source."""
        keys = ("name", "value", "meaning", "implies", "source")
        return [{key: getattr(field, key) for key in keys} for field in self.fields]

    def _cells(self) -> Mapping[str, Sequence[Any]]:
        cells = super()._cells()
        return {**cells, "value": list(map(json.dumps, cells["value"]))}  # of several types, which no column has

    def __repr__(self) -> str:
        lines = []
        for field in self.fields:
            origin = "" if field.source == "config.json" else f"   ({field.source})"
            lines.append(f"{field.name} = {field.value!r}{origin}")
            lines += [f"    {text}" for text in (field.meaning, field.implies) if text]
        return "\n".join(lines)


class MissingFieldError(InputError, KeyError):
    """The config has no such field. Also a KeyError, as mappings require."""


def explain_config(anatomy: Anatomy) -> ConfigTable:
    """Explain every field of a checkpoint's config.

    Fields that config.json leaves out have the defaults of transformers' config class for this model type.
    """
    facts = Facts(anatomy)
    defaults = anatomy.family.defaults if anatomy.family else {}
    stated = [_field(name, value, facts, "config.json") for name, value in anatomy.config.items()]
    left_out = [_field(name, value, facts, "default") for name, value in defaults.items() if name not in anatomy.config]
    return ConfigTable((*stated, *left_out, *implied_fields(facts)))


def _field(name: str, value: Any, facts: Facts, source: Source) -> Field:
    if name in GENERATION:
        return Field(name, value, GENERATION_MEANING, "", source)
    entry = ENTRIES.get(name)
    if entry is None:
        return Field(name, value, UNDESCRIBED, "", source, described=False)
    implies = entry.implies(value, facts) if facts.anatomy.dimensions is not None or entry.anywhere else ""
    return Field(name, value, entry.meaning, implies, source)


def implied_fields(facts: Facts) -> tuple[Field, ...]:
    """Return the quantities that follow from config and header together."""
    sizes, factor = facts.anatomy.dimensions, facts.anatomy.products
    if sizes is None:
        return ()
    times = "" if factor == 1 else f"{factor} "
    scale = 1 / math.sqrt(factor * sizes.d_head)

    def implied(name: str, value: Any, meaning: str, implies: str = "") -> Field:
        return Field(name, value, meaning, implies, "implied")

    return (
        implied(
            "d_head",
            sizes.d_head,
            "The width of one head: the length of its queries, keys and values.",
            f"{sizes.d_heads} / {sizes.heads} = {sizes.d_head}; head h is columns {sizes.d_head}h to "
            f"{sizes.d_head}(h + 1) of a layer's W_Q ({sizes.d_model}, {sizes.d_heads})",
        ),
        implied(
            "scale",
            scale,
            f"The factor of the scores before softmax: 1 / sqrt({times}d_head).",
            f"1 / sqrt({factor * sizes.d_head}) = {scale:.6g}",
        ),
        implied(
            "longest_text",
            facts.longest,
            "The maximum number of tokens in one input, special tokens included.",
            facts.longest_reason,
        ),
        implied(
            "heads_in_all",
            sizes.all_heads,
            "Attention heads in the whole model.",
            f"{sizes.layers} layers x {sizes.heads} heads",
        ),
        implied(
            "parameters_per_layer",
            facts.per_layer,
            "Parameters of one layer: query, key, value and output of attention, the feed-forward network, two norms.",
            facts.per_layer_sum,
        ),
        implied("parameters", facts.anatomy.parameters.total, "Parameters of the base model in the checkpoint."),
    )
