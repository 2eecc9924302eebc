"""What an anatomy explains: every field of config.json, and which classes a checkpoint fits."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_checkpoint import TINY_BERT, TINY_CONFIGS, anatomy_of, class_header, every_class, tiny_bert

from headscope.anatomy import read_anatomy
from headscope.anatomy.entries import ENTRIES, GENERATION, UNDESCRIBED
from headscope.anatomy.fit import fit
from headscope.anatomy.glossary import explain_config
from headscope.checkpoint import open_checkpoint
from headscope.errors import InputError
from making import bert_checkpoint


def test_bert_base_in_numbers(tmp_path: Path) -> None:
    table = explain_config(read_anatomy(open_checkpoint(bert_checkpoint(tmp_path))))
    assert table["hidden_size"] == 768
    heads = table.field("num_attention_heads")
    assert heads.implies == "d_head = 768 / 12 = 64; 144 heads in all; the number of heads changes no parameter count"
    assert "12 layers of 7,087,872 parameters: 85,054,464" in table.field("num_hidden_layers").implies
    assert "(30522, 768): 23,440,896 parameters, 21.4% of the base model" in table.field("vocab_size").implies
    assert "by erf" in table.field("hidden_act").implies
    assert table.field("parameters_per_layer").implies.endswith("= 7,087,872")
    assert {name: table[name] for name in ("d_head", "scale", "longest_text", "heads_in_all", "parameters")} == {
        "d_head": 64,
        "scale": 0.125,
        "longest_text": 512,
        "heads_in_all": 144,
        "parameters": 109_482_240,
    }
    assert {table.field(name).source for name in ("d_head", "parameters")} == {"implied"}
    assert table.field("use_cache").source == "default"
    assert table["tie_word_embeddings"] is True
    assert len(table) == len(list(table)) == len(table.fields)
    assert "num_attention_heads = 12" in repr(table)


def test_a_field_that_is_not_there() -> None:
    table = explain_config(anatomy_of(TINY_BERT, tiny_bert()))
    for look in (table.field, table.__getitem__):
        with pytest.raises(InputError, match=r"no field 'hiden_size'[\s\S]*did you mean 'hidden_size'\?"):
            look("hiden_size")
    assert "hiden_size" not in table
    assert table.get("hiden_size") is None


def test_config_json_comes_first_and_in_its_order() -> None:
    fields = explain_config(anatomy_of(TINY_BERT, tiny_bert())).fields
    assert [field.name for field in fields if field.source == "config.json"] == list(TINY_BERT)
    order = [("config.json", "default", "implied").index(field.source) for field in fields]
    assert order == sorted(order)


@pytest.mark.parametrize("class_name", every_class())
def test_every_field_of_every_class_is_described(class_name: str) -> None:
    for field in explain_config(anatomy_of(*class_header(class_name))).fields:
        assert field.described, field.name
        assert field.meaning
        assert field.meaning[0].isupper()
        assert field.meaning.endswith(".")


def test_roberta_positions_start_after_the_padding_id() -> None:
    table = explain_config(anatomy_of(*class_header("RobertaModel")))
    assert table["longest_text"] == 16 - 2
    assert table.field("longest_text").implies.startswith(
        "the position table has 16 rows, but text never uses the first 2"
    )
    assert table.field("pad_token_id").implies == "positions count from 1 + 1 = 2, so text never uses rows 0 to 1"


def test_labels_are_named() -> None:
    names = {str(index): name for index, name in enumerate(["O", "B-PER", "I-PER", "B-ORG", "I-ORG"])}
    table = explain_config(anatomy_of({**TINY_BERT, "id2label": names}, tiny_bert()))
    assert table.field("id2label").implies == "a classifier has 5 outputs: O, B-PER, I-PER, B-ORG, …"


def test_strange_values_are_shown_as_they_are() -> None:
    strange = {
        "label2id": 3,
        "pruned_heads": "none",
        "hidden_dropout_prob": "some",
        "hidden_act": 5,
        "": None,
        "wombat": [1],
    }
    table = explain_config(anatomy_of({**TINY_BERT, **strange}, tiny_bert()))
    assert all(table[name] == value for name, value in strange.items())
    assert table.field("wombat").meaning == UNDESCRIBED
    assert not table.field("wombat").described


def test_no_field_is_described_twice() -> None:
    assert not GENERATION & set(ENTRIES)
    assert set(TINY_CONFIGS["electra"]) <= set(ENTRIES)


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
