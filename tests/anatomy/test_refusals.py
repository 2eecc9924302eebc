"""Checkpoints whose numbers would not be theirs are refused; nonsense is an anatomy or an error of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from fake_checkpoint import TINY_BERT, TINY_CONFIGS, anatomy_of, base_header, every_kind, fake, tiny_bert
from hypothesis import given, settings
from hypothesis import strategies as st

from headscope.anatomy import layers_of, read_anatomy
from headscope.anatomy.anatomy_record import memory
from headscope.anatomy.fit import fit
from headscope.anatomy.glossary import ENTRIES, explain_config
from headscope.anatomy.tree import tree
from headscope.errors import CheckpointError, HeadscopeError, UnsupportedError
from peak import Peak
from products import in_turn

CONFIG = {**TINY_BERT, "architectures": ["BertModel"]}
QUERY = "encoder.layer.1.attention.self.query"


OTHER_PASSES: list[tuple[dict[str, Any], str]] = [
    ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ({"position_embedding_type": "relative_key_query"}, "position_embedding_type is 'relative_key_query'"),
    ({"position_embedding_type": "alibi"}, "position_embedding_type is 'alibi'"),
    ({"is_decoder": True}, "is_decoder is true: each token looks only at earlier tokens"),
    ({"add_cross_attention": True}, "add_cross_attention is true"),
    ({"auto_map": {"AutoModel": "modeling_own.OwnBert"}}, r"custom code \(modeling_own.OwnBert\)"),
]
OTHER_HEADS: list[tuple[dict[str, Any], str]] = [
    ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"the weights are quantised \(gptq\)"),
    ({"quantization": {"group_size": 64, "bits": 4}}, r"the weights are quantised \(4 bits\)"),
    ({"pruned_heads": {"0": [], "1": [0, 2]}}, r"heads were pruned \(layer 1: \[0, 2\]\)"),
    ({"per_layer_config": {"1": {"num_attention_heads": 1}}}, "per_layer_config"),
]


@pytest.mark.parametrize(("change", "reason"), OTHER_PASSES + OTHER_HEADS)
def test_another_forward_pass_or_other_heads(change: dict[str, Any], reason: str) -> None:
    """Slices are right all the same in another forward pass."""
    checkpoint = fake({**CONFIG, **change}, tiny_bert())
    anatomy = read_anatomy(checkpoint)
    refusing: list[Callable[[], Any]] = [anatomy.computable]
    if (change, reason) in OTHER_PASSES:
        assert anatomy.known().heads == 3
    else:
        refusing += [anatomy.known, lambda: layers_of(checkpoint, anatomy)]
    for face in refusing:
        with pytest.raises(UnsupportedError, match=reason) as caught:
            face()
        assert caught.value.where == "a fake: config.json"
        assert caught.value.advice
    assert any(refusal.found in anatomy.problems for refusal in anatomy.refusals)
    assert anatomy.parameters.total == anatomy_of(CONFIG, tiny_bert()).parameters.total


@pytest.mark.parametrize(
    "change",
    [
        {"position_embedding_type": "absolute"},
        {"pruned_heads": {}},
        {"is_decoder": False, "add_cross_attention": False},
        {"quantization_config": None},
        {"auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}},
        {"chunk_size_feed_forward": 8},
    ],
)
def test_settings_that_change_nothing(change: dict[str, Any]) -> None:
    assert anatomy_of({**CONFIG, **change}, tiny_bert()).refusals == ()


@pytest.mark.parametrize(
    ("names", "reason", "slices"),
    [
        ([f"{QUERY}.lora_A.default.weight", f"{QUERY}.lora_B.default.weight"], "an adapter", False),
        ([f"{QUERY}.weight.absmax"], "BertModel doesn't have", False),
        ([f"{QUERY}.weight_scale"], "BertModel doesn't have", False),
        (["encoder.layer.0.crossattention.self.query.weight"], "cross-attention", True),
        (["encoder.layer.0.attention.self.distance_embedding.weight"], "relative positions", True),
        (["encoder.layer.0.output.adapters.news.adapter_down.0.weight"], "BertModel doesn't have", True),
        (["embeddings.visual.weight"], "BertModel doesn't have", True),
    ],
)
@pytest.mark.parametrize("prefix", ["", "bert."])
def test_strangers_inside_the_base_model(prefix: str, names: list[str], reason: str, slices: bool) -> None:
    header = tiny_bert(prefix=prefix, extra=[(prefix + name, (4, 12)) for name in names])
    anatomy = anatomy_of(CONFIG, header)
    assert {row.component for row in anatomy.extra} == {"unplaced"}
    with pytest.raises(UnsupportedError, match=reason) as caught:
        anatomy.computable()
    assert prefix + names[0] in str(caught.value)
    if slices:
        assert anatomy.known().heads == 3
    else:
        with pytest.raises(UnsupportedError, match=reason):
            anatomy.known()


def test_adapter_around_the_weights() -> None:
    header = {
        name.replace("query.weight", "query.base_layer.weight"): shape
        for name, shape in tiny_bert(prefix="bert.").items()
    }
    with pytest.raises(UnsupportedError, match="merge it with peft"):
        anatomy_of(CONFIG, header).known()


def test_whole_numbers_are_no_weights() -> None:
    with pytest.raises(UnsupportedError, match="stored as I8, which are codes"):
        anatomy_of(CONFIG, tiny_bert(dtype="I8")).known()
    assert anatomy_of(CONFIG, tiny_bert(dtype="F8_E4M3")).refusals == ()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"pruned_heads": {"1": [2]}}, "heads were pruned"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantised"),
    ],
)
def test_an_odd_shape_is_said_with_what_explains_it(config: dict[str, Any], reason: str) -> None:
    header = {**tiny_bert(), f"{QUERY}.weight": ("F32", (8, 12)), f"{QUERY}.bias": ("F32", (8,))}
    with pytest.raises(UnsupportedError, match=reason):
        anatomy_of({**CONFIG, **config}, header).known()
    with pytest.raises(CheckpointError, match=r"has shape \(8, 12\)") as caught:
        anatomy_of(CONFIG, header).known()
    assert "from before pruning" in str(caught.value.advice)


@pytest.mark.parametrize("named", ["BertModel", "AntiBERTy"])
def test_strangers_on_top_refuse_nothing(named: str) -> None:
    """Nor does a class that nobody knows, without a pooler."""
    header = tiny_bert(prefix="bert.", extra=[("crf.transitions", (5, 5))])
    header = {name: shape for name, shape in header.items() if "pooler" not in name}
    anatomy = anatomy_of({**CONFIG, "architectures": [named]}, header)
    assert (anatomy.refusals, anatomy.missing, anatomy.problems) == ((), (), ())
    assert anatomy.computable().heads == 3
    assert [(row.name, row.component) for row in anatomy.extra] == [("crf.transitions", "crf")]


NONSENSE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 30),
    st.floats(allow_nan=True),
    st.sampled_from(["bert", "gelu", "absolute", "", "BertForMaskedLM", "0"]),
    st.lists(st.sampled_from(["BertForMaskedLM", "BertForTokenClassification", None, 3]), max_size=2),
    st.dictionaries(
        st.sampled_from(["0", "1", "AutoModel"]), st.one_of(st.none(), st.integers(), st.text()), max_size=2
    ),
)
FIELDS = st.sampled_from(sorted({*TINY_BERT, *ENTRIES}))
NAMES = st.sampled_from(sorted(tiny_bert(prefix="bert.", pretraining=True)))
SHAPES = st.lists(st.integers(0, 40), max_size=3).map(tuple)


@settings(max_examples=200)
@given(
    config=st.dictionaries(FIELDS, NONSENSE, max_size=4),
    lost=st.lists(NAMES, max_size=4),
    changed=st.dictionaries(NAMES, st.tuples(st.sampled_from(["F32", "I8", "BF16"]), SHAPES), max_size=4),
    added=st.dictionaries(st.text(max_size=12), SHAPES, max_size=3),
)
def test_nonsense_is_an_anatomy_or_an_error_of_ours(
    config: dict[str, Any], lost: list[str], changed: dict[str, Any], added: dict[str, Any]
) -> None:
    header = tiny_bert(prefix="bert.", pretraining=True) | changed | added
    for name in lost:
        header.pop(name, None)
    with contextlib.suppress(HeadscopeError):
        anatomy = anatomy_of({**TINY_BERT, **config}, header)
        explain_config(anatomy), tree(anatomy), memory(anatomy), fit(anatomy, "BertForTokenClassification")
        counted = [row.stored for row in (*anatomy.parameters, *anatomy.extra)]
        assert sorted([*counted, *anatomy.tied, *anatomy.buffers]) == sorted(header)
        anatomy.computable()


KINDS = {kind: (family, stem) for family, kind, stem in every_kind()}


@pytest.mark.parametrize(("kind", "count"), in_turn(tuple(KINDS), (1_001, 300_000, 2**32, 10**18)))
def test_no_count_of_a_config_costs_more_than_its_checkpoint(kind: str, count: int) -> None:
    """Memory is counted, time is not. A config of 616 bytes took 1.75 GB, and with 2^32 groups it never ended."""
    family, stem = KINDS[kind]
    config, header = TINY_CONFIGS[kind], base_header(family, kind)
    numbers = {name for name, value in {**family.defaults, **config}.items() if type(value) is int}
    for name in sorted({*numbers, *family.config.values(), "num_labels", "conv_kernel_size", "position_buckets"}):
        with Peak() as peak, contextlib.suppress(HeadscopeError):
            anatomy = anatomy_of({**config, name: count}, header)
            explain_config(anatomy), tree(anatomy), memory(anatomy), fit(anatomy, f"{stem}Model")
            anatomy.computable()
        assert peak.bytes < 30e6, name
