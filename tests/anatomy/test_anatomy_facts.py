"""Published sizes and shares of BERT, its heads as slices of stored weights; config fields and classes explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from fake_checkpoint import TINY_BERT, TINY_CONFIGS, FakeCheckpoint, anatomy_of, class_header, every_class, tiny_bert

from commands import imported
from headscope.anatomy import Anatomy, layers_of, read_anatomy
from headscope.anatomy.fit import fit
from headscope.anatomy.glossary import ENTRIES, GENERATION, UNDESCRIBED, explain_config
from headscope.anatomy.heads import OutOfRangeError
from headscope.anatomy.tree import tree
from headscope.checkpoint import Checkpoint, open_checkpoint
from headscope.errors import InputError
from making import bert_checkpoint, bert_header

NAMES = list(bert_header())
"""In the class's order, which test_anatomy_against_transformers.py compares with transformers' for every class."""


def test_bert_base(tmp_path: Path) -> None:
    anatomy = read_anatomy(open_checkpoint(bert_checkpoint(tmp_path)))
    assert [row.name for row in anatomy.parameters] == NAMES
    assert (len(NAMES), anatomy.parameters.total) == (199, 109_482_240)
    assert [(part.name, part.count, part.share) for part in anatomy.components] == [
        ("embeddings", 23_837_184, 0.21772649152958506),
        ("encoder", 85_054_464, 0.776879099295009),
        ("pooler", 590_592, 0.005394409175405983),
    ]
    assert all(part.meaning for part in anatomy.components)
    assert sum(row.count for row in anatomy.parameters if row.layer == 7) == 7_087_872
    assert anatomy.parameters["embeddings.word_embeddings.weight"].shape == (30522, 768)
    assert anatomy.parameters["encoder.layer.0.intermediate.dense.weight"].shape == (3072, 768)
    assert (anatomy.extra.total, anatomy.missing, anatomy.problems, anatomy.refusals) == (0, (), (), ())
    assert anatomy.known().d_head == 64
    assert anatomy.longest_text == 512


def test_published_file(tmp_path: Path) -> None:
    anatomy = read_anatomy(open_checkpoint(bert_checkpoint(tmp_path, published=True)))
    assert [row.name for row in anatomy.parameters] == NAMES
    assert anatomy.parameters["embeddings.LayerNorm.weight"].stored == "bert.embeddings.LayerNorm.gamma"
    with pytest.raises(InputError, match=r"no parameter '.*gamma'; did you mean 'embeddings"):
        anatomy.parameters["embeddings.LayerNorm.gamma"]
    counts = {row.name: row.count for row in anatomy.extra}
    assert counts == {
        "cls.predictions.bias": 30_522,
        "cls.predictions.transform.dense.weight": 589_824,
        "cls.predictions.transform.dense.bias": 768,
        "cls.predictions.transform.LayerNorm.weight": 768,
        "cls.predictions.transform.LayerNorm.bias": 768,
        "cls.seq_relationship.weight": 1_536,
        "cls.seq_relationship.bias": 2,
    }
    assert anatomy.parameters.total + anatomy.extra.total == 110_106_428
    assert anatomy.tasks == ("masked_lm", "next_sentence")
    assert anatomy.refusals == ()
    assert tree(anatomy).name == "BertForPreTraining"


def test_the_header_needs_no_arrays(tmp_path: Path) -> None:
    code = (
        "from headscope.anatomy import *; from headscope.checkpoint import open_checkpoint as o;"
        "from headscope.anatomy.fit import fit; from headscope.anatomy.glossary import explain_config;"
        "from headscope.anatomy.anatomy_record import memory; from headscope.anatomy.tree import tree;"
        f"c = o({str(bert_checkpoint(tmp_path))!r}); a = read_anatomy(c);"
        "explain_config(a), tree(a), memory(a), fit(a, 'BertForMaskedLM'), layers_of(c, a)[0].heads[3]"
    )
    assert imported(code, ("numpy", "torch", "transformers", "tokenizers", "rich", "typer")) == []


def opened() -> tuple[FakeCheckpoint, Checkpoint, Anatomy]:
    config, header = class_header("BertModel")
    generator = np.random.default_rng(5)
    arrays = {name: generator.normal(size=shape).astype(np.float32) for name, shape in header.items()}
    checkpoint = FakeCheckpoint(config, header, arrays=arrays)
    return checkpoint, cast(Checkpoint, checkpoint), read_anatomy(cast(Checkpoint, checkpoint))


def test_only_a_heads_rows_are_read() -> None:
    fake, checkpoint, anatomy = opened()
    head = layers_of(checkpoint, anatomy)[1].heads[2]
    assert fake.reads == [], "nothing is read until it is asked for"
    assert (head.W_Q.shape, head.W_O.shape) == ((12, 4), (4, 12))
    assert fake.reads == [
        ("encoder.layer.1.attention.self.query.weight", slice(8, 12), None),
        ("encoder.layer.1.attention.output.dense.weight", None, slice(8, 12)),
    ]


@pytest.mark.parametrize(("layer", "head"), [(2, 0), (-3, 0), (0, 3), (0, -4), (10**9, 0)])
def test_heads_that_are_not_there(layer: int, head: int) -> None:
    _, checkpoint, anatomy = opened()
    with pytest.raises(
        OutOfRangeError, match=r"there is no (layer|head) -?\d+: \w+ ?\d? has \d (layer|head)s"
    ) as caught:
        layers_of(checkpoint, anatomy)[layer].heads[head]
    assert "count from 0" in str(caught.value)


def test_a_list_of_layers_is_refused_in_a_line() -> None:
    _, checkpoint, anatomy = opened()
    with pytest.raises(OutOfRangeError, match=r"there is no layer \[0, 1, 2") as caught:
        layers_of(checkpoint, anatomy)[list(range(9000))]  # type: ignore[call-overload]
    assert len(str(caught.value)) < 300


def test_counting_from_the_end() -> None:
    _, checkpoint, anatomy = opened()
    layers = layers_of(checkpoint, anatomy)
    assert (layers[-1].index, layers[-1].heads[-1].index, len(layers[0:1])) == (1, 2, 1)
    assert repr(layers) == "2 layers of BertModel, counted from 0"
    assert "W_Q, W_K, W_V (12, 4)" in repr(layers[0].heads[0])


def test_layers_and_heads_are_members_of_sets() -> None:
    _, checkpoint, anatomy = opened()
    layers = layers_of(checkpoint, anatomy)
    assert len({layers[0], layers[-2], layers[1]}) == 2
    assert len({layers[0].heads[1], layers[0].heads[-2], layers[0].heads[0], layers[1].heads[1]}) == 3


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
    for strange in (5, None, [1], np.int64(3)):  # as in any mapping
        assert strange not in table
        assert table.get(strange) is None
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


@pytest.mark.parametrize(
    ("class_name", "change", "field", "says"),
    [
        ("MPNetModel", {"pad_token_id": 0}, "pad_token_id", "positions count from 1 + 1 = 2, so text never uses rows"),
        ("ModernBertModel", {"position_embedding_type": "absolute"}, "position_embedding_type", "no table is added: q"),
        ("ModernBertModel", {"position_embedding_type": "sans_pos"}, "position_embedding_type", "no table is added: q"),
        ("EsmModel", {}, "position_embedding_type", "no table is added: queries and keys are rotated"),
        ("BertModel", {"position_embedding_type": "absolute"}, "position_embedding_type", "one learned vector"),
        ("BertModel", {"position_embedding_type": "relative_key"}, "position_embedding_type", "scores depend on dist"),
        ("ModernBertModel", {}, "parameters_per_layer", "= 1,308, in layer 0; 1,320 in the last"),
    ],
)
def test_a_field_is_explained_as_the_family_reads_it(
    class_name: str, change: dict[str, Any], field: str, says: str
) -> None:
    config, header = class_header(class_name)
    assert says in explain_config(anatomy_of({**config, **change}, header)).field(field).implies


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
        (
            "BertForSequenceClasification",
            "has no class .*; did you mean 'BertForSequenceClassification'",
            "classes of bert",
        ),
        ("GPT2Model", "has no class 'GPT2Model'", "one of the classes of bert: BertModel, BertForPreTraining"),
        ("", "has no class ''", "BertForQuestionAnswering"),
        ("B" * 9000, "has no class 'BBBB", "BertForQuestionAnswering"),
        ("ElectraForPreTraining", "is a class of electra, the checkpoint is bert", "one of its classes: BertModel"),
    ],
)
def test_no_such_class(class_name: str, message: str, advice: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        fit(anatomy_of(TINY_BERT, tiny_bert()), class_name)
    assert advice in str(caught.value)
    assert len(str(caught.value)) < 500
