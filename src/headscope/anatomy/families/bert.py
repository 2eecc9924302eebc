"""BERT, RoBERTa, DistilBERT and ELECTRA: BERT's layer under their own names."""

from __future__ import annotations

from headscope.anatomy.schema import Family, Spec, Top, linear, norm, table

WORDS = "embeddings.word_embeddings.weight"
"""The parameter that output layers share."""


def words(width: str) -> tuple[Spec]:
    return table("embeddings.word_embeddings", "embeddings.word", "vocab", width)


def positions(width: str) -> tuple[Spec]:
    return table("embeddings.position_embeddings", "embeddings.position", "positions", width)


def token_types(width: str) -> tuple[Spec]:
    return table("embeddings.token_type_embeddings", "embeddings.token_type", "types", width)


def embeddings_norm(width: str) -> tuple[Spec, Spec]:
    return norm("embeddings.LayerNorm", "embeddings.norm", width)


def bert_embeddings(width: str) -> tuple[Spec, ...]:
    return (*words(width), *positions(width), *token_types(width), *embeddings_norm(width))


def predictions(width: str, when: str | None = None, norm_name: str = "LayerNorm") -> tuple[Spec, ...]:
    """BERT's masked-LM head, over embeddings of some width."""
    on_top = "cls.predictions"
    return (
        Spec(f"{on_top}.bias", "masked_lm.bias", ("vocab",), when=when),
        *linear(f"{on_top}.transform.dense", "masked_lm.transform", width, "d_model", when=when),
        *norm(f"{on_top}.transform.{norm_name}", "masked_lm.norm", width, when=when),
        Spec(f"{on_top}.decoder.weight", "masked_lm.decoder", ("vocab", width), tied_to=WORDS, when=when),
        Spec(f"{on_top}.decoder.bias", "masked_lm.decoder_bias", ("vocab",), tied_to=f"{on_top}.bias", when=when),
    )


BERT_LAYER = (
    *linear("encoder.layer.{l}.attention.self.query", "layer.query", "d_model", "d_model"),
    *linear("encoder.layer.{l}.attention.self.key", "layer.key", "d_model", "d_model"),
    *linear("encoder.layer.{l}.attention.self.value", "layer.value", "d_model", "d_model"),
    *linear("encoder.layer.{l}.attention.output.dense", "layer.attention_output", "d_model", "d_model"),
    *norm("encoder.layer.{l}.attention.output.LayerNorm", "layer.attention_norm", "d_model"),
    *linear("encoder.layer.{l}.intermediate.dense", "layer.ffn_in", "d_ffn", "d_model"),
    *linear("encoder.layer.{l}.output.dense", "layer.ffn_out", "d_model", "d_ffn"),
    *norm("encoder.layer.{l}.output.LayerNorm", "layer.output_norm", "d_model"),
)

POOLER = linear("pooler.dense", "pooler", "d_model", "d_model")

BERT_CONFIG = {
    "vocab": "vocab_size",
    "positions": "max_position_embeddings",
    "types": "type_vocab_size",
    "d_model": "hidden_size",
    "d_ffn": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "activation": "hidden_act",
    "norm_eps": "layer_norm_eps",
    "padding_id": "pad_token_id",
}

COMMON_DEFAULTS = {
    "initializer_range": 0.02,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": True,
    "chunk_size_feed_forward": 0,
    "is_encoder_decoder": False,
    "problem_type": None,
}
BERT_DEFAULTS = {
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "use_cache": True,
    "classifier_dropout": None,
    "is_decoder": False,
    "add_cross_attention": False,
    **COMMON_DEFAULTS,
}

CLASSIFIER = linear("classifier", "classifier", "labels", "d_model")
QA_OUTPUTS = linear("qa_outputs", "question", "labels", "d_model")

BERT_PREDICTIONS = predictions("d_model")
BERT_NEXT_SENTENCE = linear("cls.seq_relationship", "next_sentence", 2, "d_model")

BERT = Family(
    name="bert",
    model_types={"bert": "Bert"},
    prefix="bert.",
    embeddings=bert_embeddings("d_model"),
    layer=BERT_LAYER,
    pooler=POOLER,
    tops=(
        Top("ForPreTraining", ("masked_lm", "next_sentence"), True, (*BERT_PREDICTIONS, *BERT_NEXT_SENTENCE)),
        Top("ForMaskedLM", ("masked_lm",), False, BERT_PREDICTIONS),
        Top("LMHeadModel", ("masked_lm",), False, BERT_PREDICTIONS),
        Top("ForNextSentencePrediction", ("next_sentence",), True, BERT_NEXT_SENTENCE),
        Top("ForSequenceClassification", ("sequence",), True, CLASSIFIER),
        Top("ForMultipleChoice", ("choice",), True, linear("classifier", "classifier", 1, "d_model")),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
        Top("ForQuestionAnswering", ("question",), False, QA_OUTPUTS),
    ),
    config=BERT_CONFIG,
    defaults=BERT_DEFAULTS,
)

ROBERTA_LM_HEAD = (
    Spec("lm_head.bias", "masked_lm.bias", ("vocab",)),
    *linear("lm_head.dense", "masked_lm.transform", "d_model", "d_model"),
    *norm("lm_head.layer_norm", "masked_lm.norm", "d_model"),
    Spec("lm_head.decoder.weight", "masked_lm.decoder", ("vocab", "d_model"), tied_to=WORDS),
    Spec("lm_head.decoder.bias", "masked_lm.decoder_bias", ("vocab",), tied_to="lm_head.bias"),
)
DENSE_CLASSIFIER = (
    *linear("classifier.dense", "sequence.dense", "d_model", "d_model"),
    *linear("classifier.out_proj", "sequence.out", "labels", "d_model"),
)

ROBERTA = Family(
    name="roberta",
    model_types={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    prefix="roberta.",
    embeddings=(*words("d_model"), *token_types("d_model"), *embeddings_norm("d_model"), *positions("d_model")),
    layer=BERT_LAYER,
    pooler=POOLER,
    tops=(
        Top("ForMaskedLM", ("masked_lm",), False, ROBERTA_LM_HEAD),
        Top("ForCausalLM", ("masked_lm",), False, ROBERTA_LM_HEAD),
        Top("ForSequenceClassification", ("sequence",), False, DENSE_CLASSIFIER),
        Top("ForMultipleChoice", ("choice",), True, linear("classifier", "classifier", 1, "d_model")),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
        Top("ForQuestionAnswering", ("question",), False, QA_OUTPUTS),
    ),
    config=BERT_CONFIG,
    defaults={**BERT_DEFAULTS, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    position_offset=1,
    masked_lm_activation="gelu",
    sequence_activation="tanh",
)

DISTILBERT = Family(
    name="distilbert",
    model_types={"distilbert": "DistilBert"},
    prefix="distilbert.",
    embeddings=(*words("d_model"), *positions("d_model"), *embeddings_norm("d_model")),
    layer=(
        *linear("transformer.layer.{l}.attention.q_lin", "layer.query", "d_model", "d_model"),
        *linear("transformer.layer.{l}.attention.k_lin", "layer.key", "d_model", "d_model"),
        *linear("transformer.layer.{l}.attention.v_lin", "layer.value", "d_model", "d_model"),
        *linear("transformer.layer.{l}.attention.out_lin", "layer.attention_output", "d_model", "d_model"),
        *norm("transformer.layer.{l}.sa_layer_norm", "layer.attention_norm", "d_model"),
        *linear("transformer.layer.{l}.ffn.lin1", "layer.ffn_in", "d_ffn", "d_model"),
        *linear("transformer.layer.{l}.ffn.lin2", "layer.ffn_out", "d_model", "d_ffn"),
        *norm("transformer.layer.{l}.output_layer_norm", "layer.output_norm", "d_model"),
    ),
    tops=(
        Top(
            "ForMaskedLM",
            ("masked_lm",),
            False,
            (
                *linear("vocab_transform", "masked_lm.transform", "d_model", "d_model"),
                *norm("vocab_layer_norm", "masked_lm.norm", "d_model"),
                Spec("vocab_projector.weight", "masked_lm.decoder", ("vocab", "d_model"), tied_to=WORDS),
                Spec("vocab_projector.bias", "masked_lm.bias", ("vocab",)),
            ),
        ),
        Top(
            "ForSequenceClassification",
            ("sequence",),
            False,
            (
                *linear("pre_classifier", "sequence.dense", "d_model", "d_model"),
                *linear("classifier", "sequence.out", "labels", "d_model"),
            ),
        ),
        Top(
            "ForMultipleChoice",
            ("choice",),
            False,
            (
                *linear("pre_classifier", "sequence.dense", "d_model", "d_model"),
                *linear("classifier", "sequence.out", 1, "d_model"),
            ),
        ),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
        Top("ForQuestionAnswering", ("question",), False, QA_OUTPUTS),
    ),
    config={
        "vocab": "vocab_size",
        "positions": "max_position_embeddings",
        "d_model": "dim",
        "d_ffn": "hidden_dim",
        "layers": "n_layers",
        "heads": "n_heads",
        "activation": "activation",
        "padding_id": "pad_token_id",
    },
    aliases={"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"},
    defaults={
        "activation": "gelu",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False,
        **COMMON_DEFAULTS,
    },
    fixed={"norm_eps": 1e-12},
    sequence_activation="relu",
)

ELECTRA_GENERATOR = (
    *norm("generator_predictions.LayerNorm", "masked_lm.norm", "d_embedding"),
    *linear("generator_predictions.dense", "masked_lm.transform", "d_embedding", "d_model"),
    Spec("generator_lm_head.weight", "masked_lm.decoder", ("vocab", "d_embedding"), tied_to=WORDS),
    Spec("generator_lm_head.bias", "masked_lm.bias", ("vocab",)),
)

ELECTRA = Family(
    name="electra",
    model_types={"electra": "Electra"},
    prefix="electra.",
    embeddings=bert_embeddings("d_embedding"),
    projection=linear("embeddings_project", "projection", "d_model", "d_embedding"),
    layer=BERT_LAYER,
    tops=(
        Top(
            "ForPreTraining",
            ("detection",),
            False,
            (
                *linear("discriminator_predictions.dense", "detection.dense", "d_model", "d_model"),
                *linear("discriminator_predictions.dense_prediction", "detection.out", 1, "d_model"),
            ),
        ),
        Top("ForMaskedLM", ("masked_lm",), False, ELECTRA_GENERATOR),
        Top("ForCausalLM", ("masked_lm",), False, ELECTRA_GENERATOR),
        Top("ForSequenceClassification", ("sequence",), False, DENSE_CLASSIFIER),
        Top(
            "ForMultipleChoice",
            ("choice",),
            False,
            (
                Spec(
                    "sequence_summary.summary.weight", "summary.weight", ("d_model", "d_model"), when="summary_use_proj"
                ),
                Spec("sequence_summary.summary.bias", "summary.bias", ("d_model",), when="summary_use_proj"),
                *linear("classifier", "classifier", 1, "d_model"),
            ),
        ),
        Top("ForTokenClassification", ("token",), False, CLASSIFIER),
        Top("ForQuestionAnswering", ("question",), False, QA_OUTPUTS),
    ),
    config={**BERT_CONFIG, "d_embedding": "embedding_size"},
    defaults={
        **BERT_DEFAULTS,
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
    },
    masked_lm_activation="gelu",
    sequence_activation="gelu",
)
