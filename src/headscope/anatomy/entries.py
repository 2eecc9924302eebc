"""The words for every field of a config: what it means, and which rule says what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headscope.anatomy import rules
from headscope.anatomy.rules import NO_EFFECT


@dataclass(frozen=True, slots=True)
class Entry:
    """The words for one field.

    Attributes:
        meaning: what it is, in a sentence.
        implies: what follows from a value for a model.
        anywhere: whether the rule needs no dimensions, and so works for any family.
    """

    meaning: str
    implies: rules.Rule = rules.nothing
    anywhere: bool = False


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

WIDTH = Entry("The width of the residual stream: how many numbers stand for one token (d_model).", rules.width)
LAYERS = Entry("How many layers are stacked; each has attention and a feed-forward network.", rules.layers)
HEADS = Entry(
    "How many heads attention has in each layer; each sees all tokens with its own queries and keys.", rules.heads
)
FFN = Entry("The width of the feed-forward network's middle, between its two matrices (d_ffn).", rules.ffn)
ACTIVATION = Entry("The function in the middle of the feed-forward network.", rules.activation)
LABEL_MEANING = "The names of a classifier's outputs, by index."

ENTRIES: Mapping[str, Entry] = {
    "vocab_size": Entry("How many tokens the vocabulary has: rows of the word embeddings.", rules.vocab),
    "hidden_size": WIDTH,
    "dim": WIDTH,
    "embedding_size": Entry("The width of the embeddings, before they enter the layers.", rules.embedding),
    "num_hidden_layers": LAYERS,
    "n_layers": LAYERS,
    "num_attention_heads": HEADS,
    "n_heads": HEADS,
    "intermediate_size": FFN,
    "hidden_dim": FFN,
    "max_position_embeddings": Entry("Rows of the position table: a limit to a text's length.", rules.positions),
    "type_vocab_size": Entry("How many segments can be told apart: rows of the token-type table.", rules.types),
    "hidden_act": ACTIVATION,
    "activation": ACTIVATION,
    "layer_norm_eps": Entry(
        "Added to the variance inside every LayerNorm, so that nothing is divided by zero.",
        lambda _value, facts: f"{2 * facts.s.layers + 1} LayerNorms in embeddings and layers",
    ),
    "position_embedding_type": Entry(
        "How positions enter: absolute, or relative to the other token.", rules.positions_kind
    ),
    "sinusoidal_pos_embds": Entry(
        "Whether the position table started out as sines and cosines; it is stored either way.", NO_EFFECT
    ),
    "is_decoder": Entry("Whether the model works as a decoder, which looks only backwards.", rules.decoder),
    "add_cross_attention": Entry(
        "Whether each layer also attends to another model's output.",
        lambda value, _facts: "another attention block in every layer" if value else "self-attention only",
    ),
    "is_encoder_decoder": Entry("Whether the model is an encoder and a decoder together.", anywhere=True),
    "cross_attention_hidden_size": Entry("The width of the other model's output under cross-attention."),
    "use_cache": Entry(
        "Whether a decoder keeps keys and values of earlier tokens.", rules.fixed("of no use to an encoder")
    ),
    "pruned_heads": Entry("Heads that were cut out, by layer.", rules.pruned),
    "per_layer_config": Entry("Settings that some layers have of their own."),
    "chunk_size_feed_forward": Entry(
        "How many tokens the feed-forward network takes at a time, to save memory; 0 is all at once.", NO_EFFECT
    ),
    "tie_word_embeddings": Entry(
        "Whether words are predicted by the same table that embeds them.", rules.tied, anywhere=True
    ),
    "tie_weights_": Entry("An old name of tie_word_embeddings, which the class does not read.", NO_EFFECT),
    "tie_encoder_decoder": Entry("Whether an encoder and a decoder share their weights.", NO_EFFECT),
    "tie_last_hidden_states": Entry("Whether the last hidden state that is returned is the one after the final norm."),
    "hidden_dropout_prob": Entry(
        "How much is dropped behind embeddings, attention and feed-forward network.", rules.dropout
    ),
    "dropout": Entry("How much is dropped behind embeddings and feed-forward network.", rules.dropout),
    "attention_probs_dropout_prob": Entry("How much of the attention weights is dropped.", rules.dropout),
    "attention_dropout": Entry("How much of the attention weights is dropped.", rules.dropout),
    "classifier_dropout": Entry("How much is dropped before a classifier.", rules.classifier_dropout),
    "qa_dropout": Entry("How much is dropped before the question-answering outputs.", rules.dropout),
    "seq_classif_dropout": Entry("How much is dropped before the sequence classifier.", rules.dropout),
    "initializer_range": Entry(
        "The standard deviation that new weights are drawn with.",
        lambda value, _facts: f"newly initialised matrices are normal with deviation {value}; trained ones are not",
        anywhere=True,
    ),
    "gradient_checkpointing": Entry(
        "Whether training computes activations twice to save memory.", NO_EFFECT, anywhere=True
    ),
    "summary_type": Entry(
        "Which token stands for the text in a multiple-choice head: first, last, mean, ….", rules.nothing
    ),
    "summary_use_proj": Entry(
        "Whether a multiple-choice head has a dense layer before its classifier.",
        lambda value, facts: f"a matrix ({facts.s.d_model}, {facts.s.d_model})" if value else "no dense layer",
    ),
    "summary_activation": Entry("The function behind that dense layer."),
    "summary_proj_to_labels": Entry("Whether that dense layer goes straight to the labels."),
    "summary_first_dropout": Entry("How much is dropped before that dense layer.", rules.dropout),
    "summary_last_dropout": Entry("How much is dropped behind that dense layer.", rules.dropout),
    "pad_token_id": Entry("The id of the token that fills up shorter texts of a batch.", rules.padding),
    "bos_token_id": Entry("The id of the token that begins a text, where the model has one."),
    "eos_token_id": Entry("The id of the token that ends a text, where the model has one."),
    "sep_token_id": Entry("The id of the token that separates two texts."),
    "cls_token_id": Entry("The id of the token that stands for the whole text."),
    "mask_token_id": Entry("The id of the token that hides a word."),
    "unk_token_id": Entry("The id of the token that stands for what the vocabulary lacks."),
    "id2label": Entry(LABEL_MEANING, rules.labels, anywhere=True),
    "label2id": Entry("The same the other way: index by name.", rules.label_ids, anywhere=True),
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
    "architectures": Entry("The class that the checkpoint was saved from.", rules.architectures),
    "dtype": Entry("The dtype that the weights were saved in.", rules.dtype, anywhere=True),
    "torch_dtype": Entry(
        "The dtype that the weights were saved in, as versions before 5 write it.", rules.dtype, anywhere=True
    ),
    "transformers_version": Entry("The version of transformers that wrote the config.", NO_EFFECT, anywhere=True),
    "_name_or_path": Entry("What the model was loaded from before it was saved.", NO_EFFECT, anywhere=True),
    "name_or_path": Entry("What the model was loaded from before it was saved.", NO_EFFECT, anywhere=True),
    "_commit_hash": Entry("The commit that the config was loaded at.", NO_EFFECT, anywhere=True),
    "tokenizer_class": Entry("The class of the tokenizer that goes with the model.", anywhere=True),
    "auto_map": Entry("Code that the model brings with it, instead of a class of transformers.", anywhere=True),
    "quantization_config": Entry("How the weights are quantised: what is stored are codes and scales.", anywhere=True),
    "attn_implementation": Entry(
        "The kernel that transformers computes attention with; all give the same weights.",
        NO_EFFECT,
        anywhere=True,
    ),
    "_attn_implementation": Entry(
        "The kernel that transformers computes attention with; all give the same weights.",
        NO_EFFECT,
        anywhere=True,
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
