"""Headers as people really have them: prefixes, old names, tied weights, strangers, families without a table."""

from __future__ import annotations

from typing import Any

import pytest
from fake_checkpoint import TINY_BERT, anatomy_of, class_header, fake, tiny_bert

from headscope.anatomy import layers_of, read_anatomy
from headscope.anatomy.anatomy_record import memory
from headscope.anatomy.fit import fit
from headscope.anatomy.glossary import explain_config
from headscope.anatomy.tree import tree
from headscope.errors import CheckpointError, ConfigError, HeadscopeError, UnsupportedError

WORDS = "embeddings.word_embeddings.weight"
BASE_ONLY = {**TINY_BERT, "architectures": ["BertModel"]}


@pytest.mark.parametrize(
    "prefix", ["", "bert.", "module.", "module.bert.", "_orig_mod.bert.", "encoder.", "text.model.bert."]
)
@pytest.mark.parametrize("old_names", [False, True])
def test_prefix_of_the_base_model(prefix: str, old_names: bool) -> None:
    anatomy = anatomy_of(BASE_ONLY, tiny_bert(prefix=prefix, old_names=old_names))
    plain = anatomy_of(BASE_ONLY, tiny_bert())
    assert [(row.name, row.shape, row.role, row.layer, row.component) for row in anatomy.parameters] == [
        (row.name, row.shape, row.role, row.layer, row.component) for row in plain.parameters
    ]
    assert all(row.stored.startswith(prefix) for row in anatomy.parameters)
    assert (anatomy.extra.total, anatomy.missing, anatomy.problems) == (0, (), ())


@pytest.mark.parametrize("outer", ["module.", "model.", "_orig_mod.model."])
def test_wrapped_heads_on_top(outer: str) -> None:
    header = {outer + name: shape for name, shape in tiny_bert(prefix="bert.", pretraining=True).items()}
    anatomy = anatomy_of(TINY_BERT, header)
    assert anatomy.extra[0].name == "cls.predictions.bias"
    assert anatomy.extra[0].stored == f"{outer}cls.predictions.bias"
    assert anatomy.tasks == ("masked_lm", "next_sentence")


def test_on_top_in_class_order_whatever_the_file_says() -> None:
    header = dict(reversed(tiny_bert(prefix="bert.", pretraining=True).items()))
    anatomy = anatomy_of(TINY_BERT, header | {"zebra.weight": ("F32", (3,))})
    assert anatomy.extra[0].name == "cls.predictions.bias"
    assert anatomy.extra[-2].name == "cls.seq_relationship.bias"
    assert (anatomy.extra[-1].name, anatomy.extra[-1].role, anatomy.extra[-1].component) == (
        "zebra.weight",
        None,
        "zebra",
    )
    assert anatomy.parameters[0].name == "embeddings.word_embeddings.weight"


def test_a_decoder_that_is_neither_tied_nor_stored_is_no_task() -> None:
    without = anatomy_of({**TINY_BERT, "tie_word_embeddings": False}, tiny_bert(prefix="bert.", pretraining=True))
    assert not without.has("masked_lm.decoder")
    assert "masked_lm" not in without.tasks


def test_a_decoder_of_another_size_is_no_repeat() -> None:
    header = tiny_bert(prefix="bert.", pretraining=True, extra=[("cls.predictions.decoder.weight", (41, 12))])
    anatomy = anatomy_of(TINY_BERT, header)
    assert anatomy.tied == {}
    assert "cls.predictions.decoder.weight has shape (41, 12), config.json implies (40, 12)" in anatomy.problems


def test_only_the_decoder_bias_is_stored() -> None:
    header = tiny_bert(prefix="bert.", pretraining=True, extra=[("cls.predictions.decoder.bias", (40,))])
    del header["cls.predictions.bias"]
    anatomy = anatomy_of(TINY_BERT, header)
    assert anatomy.parameter("masked_lm.bias").stored == "cls.predictions.decoder.bias"
    assert "masked_lm" in anatomy.tasks


@pytest.mark.parametrize("decoder_first", [False, True])
def test_storage_shared_in_a_pickle(decoder_first: bool) -> None:
    plain = tiny_bert(prefix="bert.", pretraining=True)
    extra = {"foreign.table": ("F32", (40, 12))}
    header = extra | plain if decoder_first else plain | extra
    words = "bert.embeddings.word_embeddings.weight"
    shared = {words: "foreign.table"} if decoder_first else {"foreign.table": words}
    anatomy = anatomy_of(TINY_BERT, header, shared=shared)
    assert anatomy.tied == {"foreign.table": words}
    assert anatomy.parameters[0].stored == words
    assert "foreign.table" not in anatomy.extra


def test_both_spellings_of_a_norm() -> None:
    anatomy = anatomy_of(BASE_ONLY, tiny_bert(extra=[("embeddings.LayerNorm.gamma", (12,))]))
    assert anatomy.parameters["embeddings.LayerNorm.weight"].stored == "embeddings.LayerNorm.weight"
    assert [row.stored for row in anatomy.extra] == ["embeddings.LayerNorm.gamma"]
    with pytest.raises(UnsupportedError, match=r"BertModel doesn't have: embeddings.LayerNorm.gamma"):
        anatomy.computable()


def test_a_missing_pooler_is_no_fault_and_half_a_pooler_is() -> None:
    header = {name: shape for name, shape in tiny_bert().items() if not name.startswith("pooler")}
    anatomy = anatomy_of(BASE_ONLY, header)
    assert (anatomy.missing, anatomy.problems) == ((), ())
    assert anatomy.computable().heads == 3
    assert not anatomy.has("pooler.weight")
    half = {**header, "pooler.dense.weight": tiny_bert()["pooler.dense.weight"]}
    assert anatomy_of(BASE_ONLY, half).missing == ("pooler.dense.bias",)


def test_missing_parameters_are_named() -> None:
    header = tiny_bert()
    for name in [name for name in header if "layer.1.output" in name]:
        del header[name]
    anatomy = anatomy_of(BASE_ONLY, header)
    assert len(anatomy.missing) == 4
    with pytest.raises(
        CheckpointError, match=r"lacks 4 of BertModel's parameters: encoder.layer.1.output.dense.weight"
    ):
        anatomy.computable()
    assert anatomy.known().heads == 3
    with pytest.raises(CheckpointError, match=r"has no encoder.layer.1.output.dense.weight"):
        anatomy.parameter("layer.ffn_out.weight", 1)


@pytest.mark.parametrize("layers", [1, 3])
def test_number_of_layers_contradicts(layers: int) -> None:
    anatomy = anatomy_of({**BASE_ONLY, "num_hidden_layers": layers}, tiny_bert())
    assert f"config.json says num_hidden_layers {layers}, the header holds 2 layers" in anatomy.problems
    if layers == 1:
        assert len(anatomy.extra) == 16
        assert {row.component for row in anatomy.extra} == {"unplaced"}
        assert anatomy.computable().layers == 1
    else:
        assert len(anatomy.missing) == 16


def test_table_sizes_contradict() -> None:
    anatomy = anatomy_of({**BASE_ONLY, "vocab_size": 50, "max_position_embeddings": 8}, tiny_bert())
    assert anatomy.problems == (
        "config.json says vocab_size 50, the header holds 40",
        "config.json says max_position_embeddings 8, the header holds 16",
    )
    assert anatomy.known().vocab == 40
    with pytest.raises(CheckpointError, match=r"config.json says vocab_size 50, the header holds 40") as caught:
        anatomy.computable()
    assert "set vocab_size to 40" in str(caught.value)


@pytest.mark.parametrize(
    ("class_name", "other"), [("RobertaForMaskedLM", "roberta"), ("DistilBertForTokenClassification", "distilbert")]
)
@pytest.mark.parametrize("before", ["", "module."])
def test_the_config_of_another_family(class_name: str, other: str, before: str) -> None:
    header = {before + name: shape for name, shape in class_header(class_name)[1].items()}
    anatomy = anatomy_of(TINY_BERT, header)
    for refused in (anatomy.known, anatomy.computable):
        with pytest.raises(CheckpointError, match=f"config.json says bert, but .* begin with '{before}{other}.'"):
            refused()


def test_a_layer_of_endless_digits_is_no_layer() -> None:
    name = f"encoder.layer.{'9' * 9000}.output.dense.weight"
    anatomy = anatomy_of(BASE_ONLY, tiny_bert(extra=[(name, (12, 20))]))
    with pytest.raises(UnsupportedError, match="BertModel doesn't have"):
        anatomy.computable()


def test_width_contradicts() -> None:
    anatomy = anatomy_of({**BASE_ONLY, "hidden_size": 15}, tiny_bert())
    assert any(
        problem == "encoder.layer.0.attention.self.query.weight has shape (12, 12), config.json implies (15, 15) "
        "(and 1 more layers)"
        for problem in anatomy.problems
    )
    with pytest.raises(CheckpointError, match=r"has shape \(12, 12\), config.json implies \(15, 15\)"):
        anatomy.known()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "has no hidden_size"),
        ({"num_attention_heads": 5}, "hidden_size 12 is not divisible by 5 heads"),
        ({"num_attention_heads": 0}, "num_attention_heads = 0, expected a positive integer"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers = '2', expected a positive integer"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True, expected a positive integer"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000, more than any model has"),
        ({"intermediate_size": -3}, "intermediate_size = -3, expected a positive integer"),
        ({"model_type": "electra", "embedding_size": 0}, "embedding_size = 0, expected a positive integer"),
        ({"id2label": ["a", "b"]}, r"id2label = \['a', 'b'\], expected a mapping from index to label"),
        ({"id2label": {"first": "a"}}, r"id2label = \{'first': 'a'\}, expected a mapping from index to label"),
        ({"id2label": {"9" * 5000: "a"}}, r"id2label = \{'999.*, expected a mapping from index to label"),
        ({"num_labels": 2.5}, "num_labels = 2.5, expected a positive integer"),
    ],
)
def test_a_config_that_cannot_be(change: dict[str, Any], message: str) -> None:
    config = {name: value for name, value in {**BASE_ONLY, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=message) as caught:
        anatomy_of(config, tiny_bert())
    assert caught.value.where is not None
    assert caught.value.advice


@pytest.mark.parametrize(
    ("field", "value", "setting"),
    [
        ("hidden_act", 3, "activation"),
        ("layer_norm_eps", "tiny", "norm_eps"),
        ("layer_norm_eps", -1e-12, "norm_eps"),
        ("layer_norm_eps", float("nan"), "norm_eps"),
        ("pad_token_id", "0", "padding_id"),
        ("pad_token_id", -1, "padding_id"),
        ("pad_token_id", 1.5, "padding_id"),
    ],
)
def test_a_setting_of_another_kind(field: str, value: object, setting: str) -> None:
    anatomy = anatomy_of({**BASE_ONLY, field: value}, tiny_bert())
    with pytest.raises(ConfigError, match=f"config.json says {field} = "):
        anatomy.setting(setting)


def test_settings_and_defaults() -> None:
    bare = anatomy_of({**BASE_ONLY, "layer_norm_eps": None, "hidden_act": None}, tiny_bert())
    assert (bare.setting("norm_eps"), bare.setting("activation"), bare.setting("padding_id")) == (1e-12, "gelu", 0)
    assert anatomy_of({**BASE_ONLY, "layer_norm_eps": 1}, tiny_bert()).setting("norm_eps") == 1


def test_distilbert_under_its_other_names() -> None:
    config, header = class_header("DistilBertModel")
    renamed = {
        {"dim": "hidden_size", "n_heads": "num_attention_heads"}.get(key, key): value for key, value in config.items()
    }
    assert anatomy_of(renamed, header).known() == anatomy_of(config, header).known()
    with pytest.raises(ConfigError, match="says dim 12 and hidden_size 24"):
        anatomy_of({**config, "hidden_size": 24}, header)


@pytest.mark.parametrize("kind", [None, ["bert"], 7, {"bert": 1}])
@pytest.mark.parametrize("architectures", [None, "BertModel", [], [None], {"a": 1}])
def test_a_config_that_names_nothing(kind: object, architectures: object) -> None:
    config = {**BASE_ONLY, "model_type": kind, "architectures": architectures}
    anatomy = anatomy_of(config, tiny_bert())
    assert anatomy.family is None
    assert len(anatomy.parameters) == 39


def test_a_config_older_than_model_type() -> None:
    config = {name: value for name, value in TINY_BERT.items() if name != "model_type"}
    assert anatomy_of(config, tiny_bert(prefix="bert.", pretraining=True)).base_class == "BertModel"


def test_no_config() -> None:
    anatomy = anatomy_of({}, tiny_bert(), has_config=False)
    assert anatomy.parameters.total == anatomy_of(BASE_ONLY, tiny_bert()).parameters.total
    with pytest.raises(UnsupportedError, match=r"there is no config.json, which gives their number"):
        anatomy.known()


def test_two_base_models() -> None:
    header = tiny_bert(prefix="left.") | tiny_bert(prefix="right.")
    anatomy = anatomy_of(BASE_ONLY, header)
    assert len(anatomy.parameters) == 78
    with pytest.raises(
        UnsupportedError, match=r"holds 2 models with embeddings, with names that begin with 'left.', 'right.'"
    ):
        anatomy.known()


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "x" * 9000},
        {"hidden_size": "x" * 9000},
        {"position_embedding_type": "x" * 9000},
        {"pruned_heads": {"x" * 9000: [1]}},
        {"id2label": {f"x{index}": "" for index in range(9000)}},
        {"vocab_size": 10**99},
        {"hidden_act": ["x"] * 9000},
    ],
)
@pytest.mark.parametrize("names", [[], ["encoder.layer.0." + "x" * 9000], [f"{i}.{WORDS}" for i in range(9000)]])
def test_messages_stay_short(change: dict[str, Any], names: list[str]) -> None:
    header = tiny_bert(extra=[(name, (1,)) for name in names])

    def refused() -> None:
        anatomy = anatomy_of({**BASE_ONLY, **change}, header)
        anatomy.computable()
        anatomy.setting("activation")

    with pytest.raises(HeadscopeError) as caught:
        refused()
    assert len(str(caught.value)) < 1500


def test_a_header_of_many_names_is_read_at_once() -> None:
    """Each of these takes minutes where something is done for every pair of them."""
    config = {**BASE_ONLY, "num_hidden_layers": 5000}
    far = [(f"encoder.layer.{layer}.output.dense.weight", (1,)) for layer in range(5000, 25_000)]
    queries = [(f"encoder.layer.{layer}.attention.self.query.weight", (12, 12)) for layer in range(2, 5000)]
    strange = [(f"encoder.layer.{layer}.attention.self.query.lora_A", (1,)) for layer in range(20_000)]
    anatomy = anatomy_of(config, tiny_bert(extra=[*far, *queries, *strange]))
    assert len(anatomy.extra) == 40_000
    with pytest.raises(UnsupportedError, match="an adapter"):
        anatomy.known()


def test_weights_of_something_else() -> None:
    anatomy = anatomy_of(BASE_ONLY, {"wte.weight": (40, 12)})
    with pytest.raises(CheckpointError, match=r"no tensor is named embeddings.word_embeddings.weight"):
        anatomy.known()
    assert anatomy.parameters.total == 480


@pytest.mark.parametrize(
    ("class_name", "tasks"),
    [
        ("BertForSequenceClassification", ()),
        ("BertForTokenClassification", ("token",)),
        ("BertForQuestionAnswering", ("question",)),
        ("RobertaForSequenceClassification", ("sequence",)),
        ("RobertaForTokenClassification", ("token",)),
        ("BertForMaskedLM", ("masked_lm",)),
        ("ElectraForPreTraining", ("detection",)),
    ],
)
def test_tasks_without_a_named_class(class_name: str, tasks: tuple[str, ...]) -> None:
    config, header = class_header(class_name)
    assert anatomy_of({**config, "architectures": None}, header).tasks == tasks


def test_labels_contradict() -> None:
    config, header = class_header("BertForTokenClassification")
    header["classifier.weight"], header["classifier.bias"] = (5, 12), (5,)
    anatomy = anatomy_of(config, header)
    assert "classifier.weight has shape (5, 12), config.json implies (2, 12)" in anatomy.problems
    assert anatomy.tasks == ("token",)
    named = anatomy_of({**config, "id2label": {str(i): f"L{i}" for i in range(5)}, "num_labels": 7}, header)
    assert named.problems == ()


def gpt2(width: int = 768, layers: int = 12) -> dict[str, tuple[int, ...]]:
    header: dict[str, tuple[int, ...]] = {"wte.weight": (50257, width), "wpe.weight": (1024, width)}
    for layer in range(layers):
        at = f"h.{layer}"
        header |= {f"{at}.{norm}.{kind}": (width,) for norm in ("ln_1", "ln_2") for kind in ("weight", "bias")}
        header |= {f"{at}.attn.bias": (1, 1, 1024, 1024), f"{at}.attn.masked_bias": ()}
        header |= {f"{at}.attn.c_attn.weight": (width, 3 * width), f"{at}.attn.c_attn.bias": (3 * width,)}
        header |= {f"{at}.attn.c_proj.weight": (width, width), f"{at}.attn.c_proj.bias": (width,)}
        header |= {f"{at}.mlp.c_fc.weight": (width, 4 * width), f"{at}.mlp.c_fc.bias": (4 * width,)}
        header |= {f"{at}.mlp.c_proj.weight": (4 * width, width), f"{at}.mlp.c_proj.bias": (width,)}
    return header | {"ln_f.weight": (width,), "ln_f.bias": (width,)}


def test_gpt2_has_its_published_size() -> None:
    anatomy = anatomy_of({"model_type": "gpt2", "n_embd": 768}, gpt2())
    assert (anatomy.parameters.total, len(anatomy.parameters)) == (124_439_808, 148)
    assert len(anatomy.buffers) == 24
    assert [part.name for part in anatomy.components] == ["wte", "wpe", "h", "ln_f"]
    assert sum(part.share for part in anatomy.components) == pytest.approx(1)
    assert (anatomy.base_class, anatomy.family, anatomy.dimensions) == ("", None, None)
    assert [base for base, _ in memory(anatomy).values()] == [
        497_759_232,
        248_879_616,
        248_879_616,
        124_439_808,
        497_759_232,
    ]


def test_heads_are_not_known() -> None:
    checkpoint = fake(
        {"model_type": "t5"}, {"shared.weight": ("BF16", (8, 4)), "encoder.block.0.layer.0.q.weight": (4, 4)}
    )
    anatomy = read_anatomy(checkpoint)
    assert anatomy.parameters.dtypes == {"BF16": 32, "F32": 16}
    assert anatomy.parameters.bytes == 128
    assert [part.name for part in anatomy.components] == ["shared", "encoder.block"]
    for refused in (
        lambda: layers_of(checkpoint, anatomy),
        anatomy.known,
        anatomy.computable,
        lambda: anatomy.parameter("layer.query.weight", 0),
        lambda: anatomy.setting("activation"),
        lambda: fit(anatomy, "T5Model"),
    ):
        with pytest.raises(UnsupportedError, match="heads are not known for this model: model_type 't5'") as caught:
            refused()
        assert "bert, roberta, xlm-roberta, camembert, distilbert, electra" in str(caught.value)


@pytest.mark.parametrize("kind", ["xlm-roberta-xl", "roberta-prelayernorm", "mobilebert", "longformer", "deberta"])
def test_neighbours_have_no_table(kind: str) -> None:
    assert anatomy_of({"model_type": kind}, {"bert.embeddings.word_embeddings.weight": (4, 2)}).family is None


def test_tree_of_names_alone() -> None:
    root = tree(anatomy_of({"model_type": "gpt2"}, gpt2()))
    assert (root.count, [child.name for child in root.children]) == (124_439_808, ["wte", "wpe", "h", "ln_f"])
    block = root.children[2].children[0]
    assert (block.name, block.label, block.repeat) == ("0-11", "12 equal modules", 12)
    assert root.children[0].children[0].shape == (50257, 768)


def test_a_name_of_endless_parts_is_drawn() -> None:
    root = tree(anatomy_of({"model_type": "gpt2"}, {"a." * 9000 + "weight": (3,)}))
    depth = 0
    while root.children:
        root, depth = root.children[0], depth + 1
    assert (root.count, depth < 100) == (3, True)


def test_config_of_names_alone() -> None:
    table = explain_config(anatomy_of({"model_type": "gpt2", "n_ctx": 1024, "top_k": 50, "bos_token_id": 3}, gpt2()))
    assert dict(table) == {"model_type": "gpt2", "n_ctx": 1024, "top_k": 50, "bos_token_id": 3}
    assert table.field("n_ctx").meaning == "not described by headscope"
    assert "text generation" in table.field("top_k").meaning
    assert {field.source for field in table.fields} == {"config.json"}


def test_nothing_at_all() -> None:
    anatomy = anatomy_of({}, {}, has_config=False)
    assert (anatomy.parameters.total, anatomy.components, tree(anatomy).children) == (0, (), ())
