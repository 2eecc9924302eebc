"""Fits of checkpoints and classes: missing classifiers, mismatched shapes, and unknown classes."""

from __future__ import annotations

import pytest
from fake_checkpoint import TINY_BERT, anatomy_of, class_header, fake, tiny_bert

from headscope.anatomy.fit import fit
from headscope.errors import InputError


def test_a_classifier_is_newly_initialised() -> None:
    checkpoint = fake(TINY_BERT, tiny_bert(prefix="bert.", old_names=True, pretraining=True, position_ids=True))
    result = fit(checkpoint, "BertForSequenceClassification")
    assert result.initialised == (("classifier.weight", (2, 12)), ("classifier.bias", (2,)))
    assert (result.loaded, result.complete, result.mismatched) == (39, False, ())
    assert [row.name for row in result.ignored] == [
        "cls.predictions.bias",
        "cls.predictions.transform.dense.weight",
        "cls.predictions.transform.dense.bias",
        "cls.predictions.transform.LayerNorm.weight",
        "cls.predictions.transform.LayerNorm.bias",
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
    ]


def test_as_many_labels_as_the_config_names() -> None:
    anatomy = anatomy_of({**TINY_BERT, "id2label": {"0": "a", "1": "b", "2": "c"}}, tiny_bert())
    assert fit(anatomy, "BertForTokenClassification").initialised[0] == ("classifier.weight", (3, 12))


def test_a_classifier_of_another_size() -> None:
    config, header = class_header("BertForTokenClassification")
    result = fit(anatomy_of({**config, "num_labels": 5}, header), "BertForSequenceClassification")
    assert result.mismatched == (("classifier.weight", (2, 12), (5, 12)), ("classifier.bias", (2,), (5,)))
    assert [name for name, _ in result.initialised] == ["bert.pooler.dense.weight", "bert.pooler.dense.bias"]


def test_a_decoders_copy_is_loaded_or_ignored() -> None:
    header = tiny_bert(prefix="bert.", pretraining=True, extra=[("cls.predictions.decoder.weight", (40, 12))])
    anatomy = anatomy_of(TINY_BERT, header)
    assert fit(anatomy, "BertForPreTraining").complete
    assert "cls.predictions.decoder.weight" in fit(anatomy, "BertModel").ignored


def test_a_sibling_class_of_the_same_names() -> None:
    config, header = class_header("RobertaForMaskedLM")
    assert fit(anatomy_of(config, header), "XLMRobertaForMaskedLM").complete


@pytest.mark.parametrize(
    ("prefix", "note"),
    [
        ("module.", "names have parts that a wrapper added, as in module.embeddings"),
        ("model.bert.", "the base model's names begin with 'model.', which no class has"),
        ("0.auto_model.", "the base model's names begin with '0.auto_model.', which no class has"),
    ],
)
def test_a_wrapper_keeps_everything_from_loading(prefix: str, note: str) -> None:
    result = fit(anatomy_of(TINY_BERT, tiny_bert(prefix=prefix)), "BertModel")
    assert (result.loaded, len(result.initialised), len(result.ignored)) == (0, 39, 39)
    assert result.notes[0].startswith(note)


def test_a_note_says_that_weights_are_quantised() -> None:
    anatomy = anatomy_of({**TINY_BERT, "quantization_config": {"quant_method": "gptq"}}, tiny_bert())
    assert fit(anatomy, "BertModel").notes == (
        "the weights are quantised (gptq): stored numbers are codes, not weights",
    )


@pytest.mark.parametrize(
    ("class_name", "message", "advice"),
    [
        ("BertForSequenceClasification", "has no class", "did you mean BertForSequenceClassification?"),
        ("GPT2Model", "has no class 'GPT2Model'", "The classes of bert: BertModel, BertForPreTraining"),
        ("", "has no class ''", "BertForQuestionAnswering"),
        ("ElectraForPreTraining", "is a class of electra, the checkpoint is bert", "one of its classes: BertModel"),
    ],
)
def test_no_such_class(class_name: str, message: str, advice: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        fit(anatomy_of(TINY_BERT, tiny_bert()), class_name)
    assert advice in str(caught.value)
