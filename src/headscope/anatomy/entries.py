"""The description of every config field: its meaning, and the rule that derives its consequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headscope.anatomy import config_rules as rules
from headscope.anatomy.config_rules import NO_EFFECT


@dataclass(frozen=True, slots=True)
class Entry:
    """The description of one field.

    Attributes:
        meaning: the field's meaning, in a sentence.
        implies: the rule that derives the consequences of a value for a model.
        anywhere: True if the rule needs no dimensions, and so works for any family.
    """

    meaning: str
    implies: rules.Rule = rules.nothing
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

WIDTH = Entry("The width of the residual stream: the length of each token's vector (d_model).", rules.width)
LAYERS = Entry("The number of layers; each has attention and a feed-forward network.", rules.layers)
HEADS = Entry(
    "The number of attention heads per layer; each looks at all tokens with its own queries and keys.", rules.heads
)
FFN = Entry("The width of the feed-forward network between its two matrices (d_ffn).", rules.ffn)
ACTIVATION = Entry("The activation function of the feed-forward network.", rules.activation)
LABEL_MEANING = "The names of a classifier's outputs, by index."

LATER: Mapping[str, Entry] = {
    "num_hidden_groups": Entry("The number of groups of layers that share their parameters (ALBERT).", rules.groups),
    "inner_group_num": Entry("The number of different layers in such a group."),
    "classifier_dropout_prob": Entry("Dropout before a classifier.", rules.dropout),
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
    "attention_bias": Entry("True if query, key, value and output of attention have biases."),
    "mlp_bias": Entry("True if the feed-forward network has biases."),
    "norm_bias": Entry("True if the norms have a shift."),
    "decoder_bias": Entry("True if the output layer of a masked-LM head has a bias."),
    "classifier_bias": Entry("True if the dense layer of the heads on top has a bias."),
    "classifier_activation": Entry("The activation of the dense layer of the heads on top."),
    "classifier_pooling": Entry("The vector that a sequence classifier reads: first token, mean, or mean of scores."),
    "embedding_dropout": Entry("Dropout after the embeddings.", rules.dropout),
    "mlp_dropout": Entry("Dropout inside the feed-forward network.", rules.dropout),
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
    "num_key_value_heads": Entry("The number of key heads per layer; query heads may share them.", rules.key_heads),
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
    "pooler_dropout": Entry("Dropout before the pooler on top.", rules.dropout),
    "pooler_hidden_act": Entry("The activation of the pooler on top."),
    "pooler_hidden_size": Entry("The width of the pooler on top."),
    "legacy": Entry("True if a masked-LM head has the names of BERT's, which DeBERTa's files don't have."),
    "pretraining_tp": Entry("A setting of distributed training.", NO_EFFECT),
}
"""Fields of families after BERT, RoBERTa, DistilBERT and ELECTRA."""

ENTRIES: Mapping[str, Entry] = {
    "vocab_size": Entry("The number of tokens in the vocabulary: rows of the word embeddings.", rules.vocab),
    "hidden_size": WIDTH,
    "dim": WIDTH,
    "embedding_size": Entry("The width of the embeddings before the first layer.", rules.embedding),
    "num_hidden_layers": LAYERS,
    "n_layers": LAYERS,
    "num_attention_heads": HEADS,
    "n_heads": HEADS,
    "intermediate_size": FFN,
    "hidden_dim": FFN,
    "max_position_embeddings": Entry("Rows of the position table; they limit the length of a text.", rules.positions),
    "type_vocab_size": Entry("The number of segments: rows of the token-type table.", rules.types),
    "hidden_act": ACTIVATION,
    "hidden_activation": ACTIVATION,
    "activation": ACTIVATION,
    "layer_norm_eps": Entry("Added to the variance in every LayerNorm to avoid division by zero.", rules.norms),
    "norm_eps": Entry("Added to the variance in every LayerNorm to avoid division by zero.", rules.norms),
    "rms_norm_eps": Entry("Added to the mean square in every RMSNorm to avoid division by zero.", rules.norms),
    "position_embedding_type": Entry(
        "How attention knows positions: absolute, or relative to the other token.", rules.positions_kind
    ),
    "sinusoidal_pos_embds": Entry(
        "True if the position table was initialised with sines and cosines; it is stored either way.", NO_EFFECT
    ),
    "is_decoder": Entry("True if the model is a decoder: each token looks only at earlier tokens.", rules.decoder),
    "add_cross_attention": Entry(
        "True if each layer also looks at another model's output.",
        lambda value, _facts: "another attention block in every layer" if value else "self-attention only",
    ),
    "is_encoder_decoder": Entry("True if the model consists of an encoder and a decoder.", anywhere=True),
    "cross_attention_hidden_size": Entry("The width of the other model's output under cross-attention."),
    "use_cache": Entry(
        "True if a decoder caches the keys and values of earlier tokens.", rules.fixed("encoders don't use it")
    ),
    **LATER,
    "pruned_heads": Entry("Heads that were removed, by layer.", rules.pruned),
    "per_layer_config": Entry("Settings that differ between layers."),
    "chunk_size_feed_forward": Entry(
        "The number of tokens that the feed-forward network processes at a time, to save memory; 0 is all at once.",
        NO_EFFECT,
    ),
    "tie_word_embeddings": Entry(
        "True if the output layer shares the table of the word embeddings.", rules.tied, anywhere=True
    ),
    "tie_weights_": Entry("An old name of tie_word_embeddings, which the class does not read.", NO_EFFECT),
    "tie_encoder_decoder": Entry("True if an encoder and a decoder share their weights.", NO_EFFECT),
    "tie_last_hidden_states": Entry("True if the returned last hidden state is the one after the final norm."),
    "hidden_dropout_prob": Entry("Dropout after the embeddings, attention and feed-forward network.", rules.dropout),
    "dropout": Entry("Dropout after the embeddings and the feed-forward network.", rules.dropout),
    "attention_probs_dropout_prob": Entry("Dropout on the attention weights.", rules.dropout),
    "attention_dropout": Entry("Dropout on the attention weights.", rules.dropout),
    "classifier_dropout": Entry("Dropout before a classifier.", rules.classifier_dropout),
    "qa_dropout": Entry("Dropout before the question-answering outputs.", rules.dropout),
    "seq_classif_dropout": Entry("Dropout before the sequence classifier.", rules.dropout),
    "initializer_range": Entry(
        "The standard deviation of newly initialised weights.",
        lambda value, _facts: f"new matrices are drawn from a normal distribution with deviation {value}",
        anywhere=True,
    ),
    "gradient_checkpointing": Entry(
        "True if training recomputes activations to save memory.", NO_EFFECT, anywhere=True
    ),
    "summary_type": Entry(
        "The vector that represents the text in a multiple-choice head: first, last, mean, ….", rules.nothing
    ),
    "summary_use_proj": Entry(
        "True if a multiple-choice head has a dense layer before its classifier.",
        lambda value, facts: f"a matrix ({facts.s.d_model}, {facts.s.d_model})" if value else "no dense layer",
    ),
    "summary_activation": Entry("The activation function after that dense layer."),
    "summary_proj_to_labels": Entry("True if that dense layer maps directly to the labels."),
    "summary_first_dropout": Entry("Dropout before that dense layer.", rules.dropout),
    "summary_last_dropout": Entry("Dropout after that dense layer.", rules.dropout),
    "pad_token_id": Entry("The id of the token that pads the shorter texts of a batch.", rules.padding),
    "bos_token_id": Entry("The id of the token that begins a text, if the model has one."),
    "eos_token_id": Entry("The id of the token that ends a text, if the model has one."),
    "sep_token_id": Entry("The id of the token that separates two texts."),
    "cls_token_id": Entry("The id of the token that represents the whole text."),
    "mask_token_id": Entry("The id of the token that replaces a masked word."),
    "unk_token_id": Entry("The id of the token for anything that the vocabulary lacks."),
    "id2label": Entry(LABEL_MEANING, rules.labels, anywhere=True),
    "label2id": Entry("The inverse of id2label: index by name.", rules.label_ids, anywhere=True),
    "num_labels": Entry("The number of a classifier's outputs."),
    "_num_labels": Entry("The number of a classifier's outputs, as old versions spell it."),
    "problem_type": Entry("The task of a sequence classifier: one label, several labels, or a number."),
    "finetuning_task": Entry(
        "The task that the model was fine-tuned on, according to its author.", NO_EFFECT, anywhere=True
    ),
    "task_specific_params": Entry("Settings for particular tasks; encoders ignore them.", NO_EFFECT, anywhere=True),
    "model_type": Entry(
        "The family: it determines the classes and the table of names.",
        lambda _value, facts: f"its base class is {facts.anatomy.base_class}",
    ),
    "architectures": Entry("The class that the checkpoint was saved from.", rules.architectures),
    "dtype": Entry("The dtype that the weights were saved in.", rules.dtype, anywhere=True),
    "torch_dtype": Entry(
        "The dtype that the weights were saved in, as transformers before 5 spells it.", rules.dtype, anywhere=True
    ),
    "transformers_version": Entry("The version of transformers that wrote the config.", NO_EFFECT, anywhere=True),
    "_name_or_path": Entry("The name or path that the model was loaded from.", NO_EFFECT, anywhere=True),
    "name_or_path": Entry("The name or path that the model was loaded from.", NO_EFFECT, anywhere=True),
    "_commit_hash": Entry("The commit that the config was loaded from.", NO_EFFECT, anywhere=True),
    "tokenizer_class": Entry("The class of the model's tokenizer.", anywhere=True),
    "auto_map": Entry("Code in the model's repository that replaces a class of transformers.", anywhere=True),
    "quantization_config": Entry("How the weights are quantised: the file stores codes and scales.", anywhere=True),
    "attn_implementation": Entry(
        "The kernel that transformers uses for attention; all give the same weights.",
        NO_EFFECT,
        anywhere=True,
    ),
    "_attn_implementation": Entry(
        "The kernel that transformers uses for attention; all give the same weights.",
        NO_EFFECT,
        anywhere=True,
    ),
    "_attn_implementation_autoset": Entry("True if that kernel was chosen by default.", NO_EFFECT, anywhere=True),
    "return_dict": Entry("True if outputs have names.", NO_EFFECT, anywhere=True),
    "use_return_dict": Entry("True if outputs have names.", NO_EFFECT, anywhere=True),
    "output_attentions": Entry("True if transformers returns attention weights.", NO_EFFECT, anywhere=True),
    "output_hidden_states": Entry("True if transformers returns every layer's output.", NO_EFFECT, anywhere=True),
    "torchscript": Entry("True if the model is prepared for TorchScript.", NO_EFFECT, anywhere=True),
    "use_bfloat16": Entry("A setting of TensorFlow models on TPUs.", NO_EFFECT, anywhere=True),
    "tf_legacy_loss": Entry("A setting of TensorFlow models.", NO_EFFECT, anywhere=True),
    "prefix": Entry("A text before every input, for generative models.", NO_EFFECT, anywhere=True),
    "output_past": Entry("An old name of use_cache.", NO_EFFECT, anywhere=True),
    "language": Entry("The language of the training text, according to its author.", NO_EFFECT, anywhere=True),
    "directionality": Entry("The reading direction, written by Google's original code.", NO_EFFECT),
    "pooler_fc_size": Entry("A setting of Google's original code that the class does not read.", NO_EFFECT),
    "pooler_num_attention_heads": Entry("A setting of Google's original code that the class does not read.", NO_EFFECT),
    "pooler_num_fc_layers": Entry("A setting of Google's original code that the class does not read.", NO_EFFECT),
    "pooler_size_per_head": Entry("A setting of Google's original code that the class does not read.", NO_EFFECT),
    "pooler_type": Entry("A setting of Google's original code that the class does not read.", NO_EFFECT),
}
"""Field -> its description, for the configs of all families and for fields of every config."""
