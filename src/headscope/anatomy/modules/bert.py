"""The modules of BERT, RoBERTa, DistilBERT and ELECTRA."""

from __future__ import annotations

from collections.abc import Mapping

from headscope.anatomy.modules.module import Module, activation, dropout, linears, norms, tables

L = "encoder.layer.{l}"
BERT_ENCODER = (
    Module("encoder", "{stem}Encoder"),
    Module("encoder.layer", "ModuleList"),
    Module(L, "{stem}Layer"),
    Module(f"{L}.attention", "{stem}Attention"),
    Module(f"{L}.attention.self", "{stem}SelfAttention"),
    *linears(f"{L}.attention.self.query", f"{L}.attention.self.key", f"{L}.attention.self.value"),
    dropout(f"{L}.attention.self.dropout", "attention_probs_dropout_prob"),
    Module(f"{L}.attention.output", "{stem}SelfOutput"),
    *linears(f"{L}.attention.output.dense"),
    *norms(f"{L}.attention.output.LayerNorm"),
    dropout(f"{L}.attention.output.dropout", "hidden_dropout_prob"),
    Module(f"{L}.intermediate", "{stem}Intermediate"),
    *linears(f"{L}.intermediate.dense"),
    activation(f"{L}.intermediate.intermediate_act_fn", "hidden_act"),
    Module(f"{L}.output", "{stem}Output"),
    *linears(f"{L}.output.dense"),
    *norms(f"{L}.output.LayerNorm"),
    dropout(f"{L}.output.dropout", "hidden_dropout_prob"),
)
POOLER = (
    Module("pooler", "{stem}Pooler"),
    *linears("pooler.dense"),
    Module("pooler.activation", "Tanh"),
)
EMBEDDINGS = (
    Module("embeddings", "{stem}Embeddings"),
    *tables(*(f"embeddings.{name}_embeddings" for name in ("word", "position", "token_type"))),
    *norms("embeddings.LayerNorm"),
    dropout("embeddings.dropout", "hidden_dropout_prob"),
)
ROBERTA_EMBEDDINGS = (
    Module("embeddings", "{stem}Embeddings"),
    *tables(*(f"embeddings.{name}_embeddings" for name in ("word", "token_type"))),
    *norms("embeddings.LayerNorm"),
    dropout("embeddings.dropout", "hidden_dropout_prob"),
    *tables("embeddings.position_embeddings"),
)
T = "transformer.layer.{l}"
DISTILBERT = (
    Module("embeddings", "Embeddings"),
    *tables("embeddings.word_embeddings", "embeddings.position_embeddings"),
    *norms("embeddings.LayerNorm"),
    dropout("embeddings.dropout", "dropout"),
    Module("transformer", "Transformer"),
    Module("transformer.layer", "ModuleList"),
    Module(T, "TransformerBlock"),
    Module(f"{T}.attention", "{stem}SelfAttention"),
    *linears(*(f"{T}.attention.{name}_lin" for name in ("q", "k", "v", "out"))),
    dropout(f"{T}.attention.dropout", "attention_dropout"),
    *norms(f"{T}.sa_layer_norm"),
    Module(f"{T}.ffn", "FFN"),
    dropout(f"{T}.ffn.dropout", "dropout"),
    *linears(f"{T}.ffn.lin1", f"{T}.ffn.lin2"),
    activation(f"{T}.ffn.activation", "activation"),
    *norms(f"{T}.output_layer_norm"),
)

BASE: Mapping[str, tuple[Module, ...]] = {
    "bert": (*EMBEDDINGS, *BERT_ENCODER, *POOLER),
    "roberta": (*ROBERTA_EMBEDDINGS, *BERT_ENCODER, *POOLER),
    "distilbert": DISTILBERT,
    "electra": (*EMBEDDINGS, *linears("embeddings_project"), *BERT_ENCODER),
}
"""Family -> the modules of its base model, in the order that the class prints them."""

PREDICTIONS = (
    Module("cls.predictions", "{stem}LMPredictionHead"),
    Module("cls.predictions.transform", "{stem}PredictionHeadTransform"),
    *linears("cls.predictions.transform.dense"),
    activation("cls.predictions.transform.transform_act_fn", "hidden_act"),
    *norms("cls.predictions.transform.LayerNorm"),
    *linears("cls.predictions.decoder"),
)
ONLY_PREDICTIONS = (Module("cls", "{stem}OnlyMLMHead"), *PREDICTIONS)
CLASSIFIER = (dropout("dropout", "classifier_dropout", "hidden_dropout_prob"), *linears("classifier"))
QA_OUTPUTS = linears("qa_outputs")
LM_HEAD = (
    Module("lm_head", "{stem}LMHead"),
    *linears("lm_head.dense"),
    *norms("lm_head.layer_norm"),
    *linears("lm_head.decoder"),
)
DISTILBERT_CLASSIFIER = (*linears("pre_classifier", "classifier"), dropout("dropout", "seq_classif_dropout"))
GENERATOR = (
    Module("generator_predictions", "{stem}GeneratorPredictions"),
    Module("generator_predictions.activation", "GELUActivation"),
    *norms("generator_predictions.LayerNorm"),
    *linears("generator_predictions.dense", "generator_lm_head"),
)

DENSE_CLASSIFIER = (
    Module("classifier", "{stem}ClassificationHead"),
    *linears("classifier.dense"),
    dropout("classifier.dropout", "hidden_dropout_prob"),
    *linears("classifier.out_proj"),
)

TOPS: Mapping[tuple[str, str], tuple[Module, ...]] = {
    ("bert", "ForPreTraining"): (
        Module("cls", "{stem}PreTrainingHeads"),
        *PREDICTIONS,
        *linears("cls.seq_relationship"),
    ),
    ("bert", "ForMaskedLM"): ONLY_PREDICTIONS,
    ("bert", "LMHeadModel"): ONLY_PREDICTIONS,
    ("bert", "ForNextSentencePrediction"): (Module("cls", "{stem}OnlyNSPHead"), *linears("cls.seq_relationship")),
    ("bert", "ForSequenceClassification"): CLASSIFIER,
    ("bert", "ForMultipleChoice"): CLASSIFIER,
    ("bert", "ForTokenClassification"): CLASSIFIER,
    ("bert", "ForQuestionAnswering"): QA_OUTPUTS,
    ("roberta", "ForMaskedLM"): LM_HEAD,
    ("roberta", "ForCausalLM"): LM_HEAD,
    ("roberta", "ForSequenceClassification"): (
        Module("classifier", "{stem}ClassificationHead"),
        *linears("classifier.dense"),
        dropout("classifier.dropout", "classifier_dropout", "hidden_dropout_prob"),
        *linears("classifier.out_proj"),
    ),
    ("roberta", "ForMultipleChoice"): (dropout("dropout", "hidden_dropout_prob"), *linears("classifier")),
    ("roberta", "ForTokenClassification"): CLASSIFIER,
    ("roberta", "ForQuestionAnswering"): QA_OUTPUTS,
    ("distilbert", "ForMaskedLM"): (
        activation("activation", "activation"),
        *linears("vocab_transform"),
        *norms("vocab_layer_norm"),
        *linears("vocab_projector"),
    ),
    ("distilbert", "ForSequenceClassification"): DISTILBERT_CLASSIFIER,
    ("distilbert", "ForMultipleChoice"): DISTILBERT_CLASSIFIER,
    ("distilbert", "ForTokenClassification"): (dropout("dropout", "dropout"), *linears("classifier")),
    ("distilbert", "ForQuestionAnswering"): (*QA_OUTPUTS, dropout("dropout", "qa_dropout")),
    ("electra", "ForPreTraining"): (
        Module("discriminator_predictions", "{stem}DiscriminatorPredictions"),
        *linears("discriminator_predictions.dense"),
        activation("discriminator_predictions.activation", "hidden_act"),
        *linears("discriminator_predictions.dense_prediction"),
    ),
    ("electra", "ForMaskedLM"): GENERATOR,
    ("electra", "ForCausalLM"): GENERATOR,
    ("electra", "ForSequenceClassification"): (
        Module("classifier", "{stem}ClassificationHead"),
        *linears("classifier.dense"),
        Module("classifier.activation", "GELUActivation"),
        dropout("classifier.dropout", "classifier_dropout", "hidden_dropout_prob"),
        *linears("classifier.out_proj"),
    ),
    ("electra", "ForMultipleChoice"): (
        Module("sequence_summary", "{stem}SequenceSummary"),
        *linears("sequence_summary.summary"),
        activation("sequence_summary.activation", "summary_activation"),
        dropout("sequence_summary.last_dropout", "summary_last_dropout"),
        *linears("classifier"),
    ),
    ("electra", "ForTokenClassification"): CLASSIFIER,
    ("electra", "ForQuestionAnswering"): QA_OUTPUTS,
}
"""Family and suffix of a class -> its modules on top, in the order that it prints them."""
