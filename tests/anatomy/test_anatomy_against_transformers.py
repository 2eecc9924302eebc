"""Every family and class against transformers itself: names, order, shapes, ties, modules, config fields, loading."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import safetensors
import torch
import transformers
from fake_checkpoint import TINY_CONFIGS, anatomy_of, every_class, every_kind
from safetensors import safe_open
from safetensors.torch import load_file, save_file, save_model
from tokenizers import Tokenizer, models, pre_tokenizers

import headscope as hs
from headscope.anatomy import Anatomy, read_anatomy
from headscope.anatomy.fit import fit
from headscope.anatomy.glossary import ENTRIES, explain_config
from headscope.anatomy.tree import Node, tree
from headscope.checkpoint import open_checkpoint
from headscope.errors import CheckpointError
from making import change_json
from random_models import FAMILIES, assert_same, random_model, run

KINDS = [kind for _, kind, _ in every_kind()]


@contextmanager
def quietly() -> Iterator[None]:
    """Decoder classes of an encoder's config, and every test of loading, make transformers talk."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    transformers.logging.set_verbosity(before)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quietly():
        yield


def kind_of(class_name: str) -> str:
    return next(kind for _, kind, stem in every_kind() if class_name.startswith(stem))


def config_of(class_name: str, **change: Any) -> transformers.PreTrainedConfig:
    config = {**TINY_CONFIGS[kind_of(class_name)], "architectures": [class_name], **change}
    return transformers.AutoConfig.for_model(**config)


def build(class_name: str, **change: Any) -> torch.nn.Module:
    with torch.device("meta"):
        return getattr(transformers, class_name)(config_of(class_name, **change))


RENAMED = ("NomicBert", "Gte")
"""Families whose files have other names than their classes: transformers renames and stacks parameters while saving."""


def renamed(class_name: str) -> bool:
    return class_name.startswith(RENAMED)


def header_of(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """The names and shapes of a model's own parameters, tied ones once, in the class's order, or those of its file."""
    if renamed(type(model).__name__):
        with tempfile.TemporaryDirectory() as folder:
            type(model)(model.config).save_pretrained(folder)
            with safe_open(Path(folder) / "model.safetensors", "numpy") as file:
                return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    tied = getattr(model, "all_tied_weights_keys", {})
    parameters = model.named_parameters(remove_duplicate=False)
    return {name: tuple(tensor.shape) for name, tensor in parameters if name not in tied}


@dataclasses.dataclass(frozen=True)
class Built:
    """A model of a class, and the header of its file."""

    name: str
    model: torch.nn.Module
    header: dict[str, tuple[int, ...]]

    def anatomy(self) -> Anatomy:
        return anatomy_of(self.model.config.to_dict(), self.header)


@pytest.fixture(scope="module", params=every_class())
def built(request: pytest.FixtureRequest) -> Built:
    """Of every class, made once for all tests of it."""
    with quietly():
        model = build(request.param)
        return Built(request.param, model, header_of(model))


def test_names_order_and_shapes(built: Built) -> None:
    class_name, model, header = built.name, built.model, built.header
    anatomy = anatomy_of(model.config.to_dict(), dict(sorted(header.items())))
    prefix = anatomy.prefix or ""
    expected = [name for name in header if name.startswith(prefix)] if prefix else list(header)
    base, extra = [prefix + row.name for row in anatomy.parameters], [row.name for row in anatomy.extra]
    rest = [name for name in header if name not in expected]
    if renamed(class_name):  # a file's names have no order
        base, extra, expected, rest = sorted(base), sorted(extra), sorted(expected), sorted(rest)
    assert base == expected
    assert extra == rest
    assert {row.stored: row.shape for row in (*anatomy.parameters, *anatomy.extra)} == header
    assert all(row.role for row in (*anatomy.parameters, *anatomy.extra))
    tops = [top for family, _, stem in every_kind() for top in family.tops if class_name == stem + top.suffix]
    assert anatomy.tasks[: sum(len(top.tasks) for top in tops)] == sum((top.tasks for top in tops), ())
    assert (anatomy.problems, anatomy.missing, anatomy.refusals) == ((), (), ())
    assert anatomy.base_class in (class_name, type(getattr(model, prefix.removesuffix(".") or "base_model")).__name__)


def test_all_that_a_state_dict_holds(built: Built) -> None:
    model = built.model
    state = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if renamed(built.name):
        state = built.header
    anatomy = anatomy_of(model.config.to_dict(), state)
    assert anatomy.parameters.total + anatomy.extra.total == sum(tensor.numel() for tensor in model.parameters())
    rows = {row.stored for row in (*anatomy.parameters, *anatomy.extra)}
    assert set(anatomy.tied) | rows | set(anatomy.buffers) == set(state)


def test_modules(built: Built) -> None:
    """They are those that transformers prints; where a file has other names, each of these is in one of three kinds."""
    model, drawn = built.model, dict(modules(tree(built.anatomy())))
    if renamed(built.name):
        for name in built.header:
            if name != "cls.predictions.bias":
                assert drawn[name.rpartition(".")[0]].startswith(("Linear(", "Embedding(", "LayerNorm(")), name
        return
    printed = {name: type(module).__name__ for name, module in model.named_modules() if name}
    needed = {name for name, module in model.named_modules() if name and list(module.parameters())}
    assert {name: label.split("(")[0] for name, label in drawn.items()} == {
        name: printed[name] for name in printed if name in drawn or name in needed
    }
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding):
            assert drawn[name] == f"{type(module).__name__}({module.num_embeddings}, {module.embedding_dim})"
        elif isinstance(module, torch.nn.Linear):
            assert drawn[name].startswith(f"Linear({module.in_features}, {module.out_features})")
        elif isinstance(module, torch.nn.LayerNorm):
            assert drawn[name] == f"LayerNorm({module.normalized_shape[0]}, eps={module.eps})"
        elif isinstance(module, torch.nn.Dropout) and name in drawn:
            assert drawn[name] == f"Dropout({module.p})"


def test_components_mean_what_the_class_has(built: Built) -> None:
    anatomy, modules = built.anatomy(), [name for name, _ in built.model.named_modules()]
    embeddings, *_ = anatomy.components
    tables = {"position": "position_embeddings", "segment": "token_type_embeddings", "task": "task_type_embeddings"}
    for word, module in tables.items():
        assert (word in embeddings.meaning) == any(name.endswith(module) for name in modules)
    for part in anatomy.extra_components:
        if part.name == "cls":
            assert ("masked words" in part.meaning) == ("cls.predictions" in modules)
            assert ("sentence" in part.meaning) == ("cls.seq_relationship" in modules)
        if part.name == "pooler":
            assert "tanh" not in part.meaning, "DeBERTa's has GELU"


def test_a_module_that_the_config_switches_off() -> None:
    model = build("ElectraForMultipleChoice", summary_use_proj=False)
    drawn = dict(modules(tree(anatomy_of(model.config.to_dict(), header_of(model)))))
    printed = [name for name, module in model.named_modules() if not isinstance(module, torch.nn.Identity)]
    on_top = [name for name in drawn if not name.startswith("electra")]
    assert on_top == [name for name in printed if name and not name.startswith("electra")]
    assert "sequence_summary.activation" in on_top


def modules(node: Node, path: str = "") -> Iterator[tuple[str, str]]:
    """Path and label of every module of a tree, runs of equal ones drawn apart again."""
    for child in node.children:
        if child.shape is not None:
            continue
        first = int(child.name.split("-")[0]) if child.repeat > 1 else 0
        names = [str(first + step) for step in range(child.repeat)] if child.repeat > 1 else [child.name]
        for name in names:
            yield f"{path}{name}", child.label.removeprefix(f"{child.repeat} x ")
            yield from modules(child, f"{path}{name}.")


@pytest.mark.parametrize(
    "activation",
    ["gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "swish", "mish", "tanh"],
)
def test_activations_by_class(activation: str) -> None:
    model = build("BertModel", hidden_act=activation)
    drawn = dict(modules(tree(anatomy_of(model.config.to_dict(), header_of(model)))))
    path = "encoder.layer.0.intermediate.intermediate_act_fn"
    assert drawn[path] == type(model.get_submodule(path)).__name__


DERIVED = {"layer_types", "rope_parameters", "head_dim", "num_key_value_heads", "pooler_hidden_size"}
"""Fields whose default follows from other fields."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_the_config_class_is_described(kind: str) -> None:
    default = type(transformers.AutoConfig.for_model(kind))
    assert {field.name for field in dataclasses.fields(default)} | set(default().to_dict()) <= set(ENTRIES)


@pytest.mark.parametrize(("kind", "stem"), [(kind, stem) for _, kind, stem in every_kind()])
def test_the_number_of_heads_changes_what_the_glossary_says(kind: str, stem: str) -> None:
    field = "n_heads" if kind == "distilbert" else "num_attention_heads"
    three, two = build(f"{stem}Model"), build(f"{stem}Model", **{field: 2})
    counts = [sum(np.prod(shape) for shape in header_of(model).values()) for model in (three, two)]
    implies = explain_config(anatomy_of(three.config.to_dict(), header_of(three))).field(field).implies
    assert ("changes no parameter count" in implies) == (counts[0] == counts[1])


@pytest.mark.parametrize("head_dim", [8, 4])
def test_the_glossary_knows_heads_of_another_width(head_dim: int) -> None:
    model = build("EuroBertModel", head_dim=head_dim)
    width, d_model = model.layers[0].self_attn.q_proj.weight.shape
    table = explain_config(anatomy_of(model.config.to_dict(), header_of(model)))
    assert table.field("d_head").implies.startswith(f"{width} / 3 = {head_dim}; head h is columns {head_dim}h to ")
    assert table.field("d_head").implies.endswith(f"W_Q ({d_model}, {width})")


@pytest.mark.parametrize("products", [[], ["c2p"], ["c2p", "p2c"]])
def test_the_glossary_scales_scores_as_the_model_does(products: list[str], tmp_path: Path) -> None:
    """He et al. 2021, eq. 4: 1 / sqrt(3 d) for a sum of three products."""
    random_model("DebertaV2", pos_att_type=products).save_pretrained(tmp_path)
    model = hs.open(tmp_path)
    scale = (8 * (1 + len(products))) ** -0.5
    assert model.config["scale"] == pytest.approx(scale, rel=1e-12)
    assert model.config.field("scale").implies == f"1 / sqrt({8 * (1 + len(products))}) = {scale:.6g}"
    assert model.trace(ids=[5, 6, 7]).layers[0].scale == model.config["scale"]
    assert model.config.field("type_vocab_size").implies.startswith("no table")


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_the_classs(kind: str) -> None:
    stem = next(stem for _, other, stem in every_kind() if other == kind)
    header = header_of(build(f"{stem}Model"))
    default = transformers.AutoConfig.for_model(kind).to_dict()
    assumed = [
        field for field in explain_config(anatomy_of(TINY_CONFIGS[kind], header)).fields if field.source == "default"
    ]
    assert {field.name: field.value for field in assumed} == {field.name: default[field.name] for field in assumed}
    bookkeeping = {"architectures", "dtype", "transformers_version", "return_dict", "output_hidden_states",
                   "output_attentions", "id2label", "label2id", "_name_or_path", *DERIVED}  # fmt: skip
    assert set(default) - set(TINY_CONFIGS[kind]) - bookkeeping == {field.name for field in assumed}


def saved(folder: Path, class_name: str, **change: Any) -> Path:
    getattr(transformers, class_name)(config_of(class_name, **change)).save_pretrained(folder)
    return folder


State = dict[str, torch.Tensor]


def published(state: State) -> State:
    """A checkpoint like those of 2018: gamma and beta, a copy of the decoder, and a buffer of positions."""
    norms = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, old in norms.items():
        state = {name.replace(new, old): tensor for name, tensor in state.items()}
    state["cls.predictions.decoder.weight"] = state["bert.embeddings.word_embeddings.weight"].clone()
    return {**state, "bert.embeddings.position_ids": torch.arange(16)[None]}


def without_layer(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if ".layer.1." not in name}


def wrapped(state: State) -> State:
    return {f"module.{name}": tensor for name, tensor in state.items()}


WIDER = {"vocab_size": 44, "max_position_embeddings": 9}
SOURCES: dict[str, tuple[str, dict[str, Any], Callable[[State], State] | None]] = {
    "BertModel": ("BertModel", {}, None),
    "BertForPreTraining, published": ("BertForPreTraining", {}, published),
    "BertForPreTraining, untied": ("BertForPreTraining", {"tie_word_embeddings": False}, None),
    "BertForSequenceClassification, 5 labels": ("BertForSequenceClassification", {"num_labels": 5}, None),
    "BertModel, a layer missing": ("BertModel", {}, without_layer),
    "BertForMaskedLM, wrapped": ("BertForMaskedLM", {}, wrapped),
    "BertForMaskedLM, another vocabulary": ("BertForMaskedLM", {}, None),
    "RobertaForMaskedLM": ("RobertaForMaskedLM", {}, None),
    "XLMRobertaModel": ("XLMRobertaModel", {}, None),
    "CamembertForTokenClassification": ("CamembertForTokenClassification", {"num_labels": 3}, None),
    "DistilBertForMaskedLM": ("DistilBertForMaskedLM", {}, None),
    "DistilBertModel": ("DistilBertModel", {}, None),
    "ElectraForPreTraining": ("ElectraForPreTraining", {}, None),
    "ElectraForMaskedLM": ("ElectraForMaskedLM", {}, None),
    "AlbertForPreTraining, two groups": ("AlbertForPreTraining", {"num_hidden_groups": 2}, None),
    "ErnieForMaskedLM": ("ErnieForMaskedLM", {}, None),
    "MegatronBertForPreTraining, published": ("MegatronBertForPreTraining", {}, published),
    "RoFormerForMaskedLM": ("RoFormerForMaskedLM", {}, None),
    "ModernBertForMaskedLM": ("ModernBertForMaskedLM", {}, None),
    "ModernBertModel, biases": ("ModernBertModel", {"norm_bias": True, "attention_bias": True}, None),
    "EsmForMaskedLM": ("EsmForMaskedLM", {}, None),
    "EuroBertForMaskedLM": ("EuroBertForMaskedLM", {}, None),
    "MPNetForMaskedLM": ("MPNetForMaskedLM", {}, None),
    "DebertaV2ForMaskedLM": ("DebertaV2ForMaskedLM", {}, None),
    "DebertaV2ForSequenceClassification, shared": (
        "DebertaV2ForSequenceClassification",
        {"share_att_key": True, "num_labels": 3},
        None,
    ),
    "ElectraModel, no summary": ("ElectraModel", {"summary_use_proj": False}, None),
}


@pytest.mark.parametrize("source", SOURCES)
def test_fit_says_what_from_pretrained_does(source: str, tmp_path: Path) -> None:
    class_name, change, edit = SOURCES[source]
    saved(tmp_path, class_name, **change)
    if edit is not None:
        save_file(edit(load_file(tmp_path / "model.safetensors")), tmp_path / "model.safetensors", {"format": "pt"})
    if source.endswith("another vocabulary"):
        change_json(tmp_path / "config.json", **WIDER)
    anatomy = read_anatomy(open_checkpoint(tmp_path))
    stem = next(stem for _, kind, stem in every_kind() if kind == kind_of(class_name))
    suffixes = ["Model", *(top.suffix for family, _, other in every_kind() if other == stem for top in family.tops)]
    for wanted in [stem + suffix for suffix in suffixes]:
        _, info = getattr(transformers, wanted).from_pretrained(
            tmp_path, output_loading_info=True, ignore_mismatched_sizes=True
        )
        result = fit(anatomy, wanted)
        new = {name for name, _ in result.initialised}
        assert new | {name for name, of in result.tied.items() if of in new} == set(info["missing_keys"]), wanted
        assert {modern(row.stored) for row in result.ignored} == set(map(modern, info["unexpected_keys"])), wanted
        wrong = {(name, tuple(stored), tuple(shape)) for name, stored, shape in info["mismatched_keys"]}
        assert set(result.mismatched) == {row for row in wrong if row[0] not in result.tied}, wanted
        assert result.complete == (not new and not result.mismatched)


def modern(name: str) -> str:
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def test_a_pickle_that_shares_storage(tmp_path: Path) -> None:
    model = transformers.BertForPreTraining(config_of("BertForPreTraining"))
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    model.config.save_pretrained(tmp_path)
    anatomy = read_anatomy(open_checkpoint(tmp_path))
    assert anatomy.parameters.total + anatomy.extra.total == sum(tensor.numel() for tensor in model.parameters())
    assert set(anatomy.tied) == {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert fit(anatomy, "BertForPreTraining").complete


# Files that keep a tied table once, against transformers' own reading of them.


TEXT = "a cat sat on the mat near one dog"
REWRITTEN = {"NomicBert", "Gte"}
"""`save_model` writes the names that these classes have in memory, which no file of them has."""
TIED = [stem for stem in FAMILIES if stem not in REWRITTEN and hasattr(transformers, f"{stem}ForMaskedLM")]


def one_file(module: Any, folder: Path) -> None:
    save_model(module, str(folder / "model.safetensors"))


def shards(module: Any, folder: Path) -> None:
    huggingface_hub.save_torch_model(module, folder, max_shard_size=20_000)
    assert len(list(folder.glob("*.safetensors"))) > 1


def pickled(module: Any, folder: Path) -> None:
    kept = {name: part for name, part in module.state_dict().items() if not name.endswith("word_embeddings.weight")}
    torch.save(kept, folder / "pytorch_model.bin")


def written(stem: str, folder: Path, way: Callable[[Any, Path], None] = one_file) -> Any:
    """A random masked LM, of which this way has made the files."""
    module = random_model(stem, "ForMaskedLM")
    module.config.architectures = [type(module).__name__]
    module.config.save_pretrained(folder)
    way(module, folder)
    return module


def same_as_transformers(module: Any, folder: Path) -> None:
    """A folder's weights, states and logits are those of the class that transformers loads from it."""
    loaded, report = type(module).from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    assert not report["missing_keys"]
    assert torch.equal(loaded.get_input_embeddings().weight, module.get_input_embeddings().weight)
    ids = [3, 5, 6, 7, 8]
    trace = hs.open(folder).trace(ids=ids, hidden_states=True)
    assert_same(trace, run(loaded.eval(), [ids]))
    assert "logits" in trace.outputs
    anatomy = hs.open(folder).anatomy
    assert not anatomy.missing
    assert fit(anatomy, type(module).__name__).complete


@pytest.mark.parametrize(
    ("stem", "way"),
    [
        *((stem, one_file) for stem in TIED),
        *((stem, way) for stem in ("Roberta", "DebertaV2") for way in (shards, pickled)),
    ],
)
def test_a_table_that_is_kept_once(stem: str, way: Callable[[Any, Path], None], tmp_path: Path) -> None:
    same_as_transformers(written(stem, tmp_path, way), tmp_path)


def test_a_survey_reads_the_table(tmp_path: Path) -> None:
    module = written("Roberta", tmp_path)
    words = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, **{word: 5 + at for at, word in enumerate(TEXT.split())}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")
    wrapped.save_pretrained(tmp_path)
    table = hs.survey(tmp_path, [TEXT], out=tmp_path / "survey").table()
    with torch.no_grad():
        maps = module(**wrapped(TEXT, return_tensors="pt"), output_attentions=True).attentions
    expected = [-(layer[0] * layer[0].log()).sum(-1).mean(-1).numpy() for layer in maps]
    np.testing.assert_allclose(table["entropy"].array, expected, atol=1e-4)


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod."])
def test_names_may_have_a_wrapper_s_prefix(wrapper: str, tmp_path: Path) -> None:
    written("Roberta", tmp_path)
    plain = hs.open(tmp_path).trace(ids=[3, 5, 6])
    with safetensors.safe_open(tmp_path / "model.safetensors", "pt") as file:
        tensors = {wrapper + name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    wrapped = hs.open(tmp_path).trace(ids=[3, 5, 6])
    np.testing.assert_array_equal(wrapped.outputs["logits"].array, plain.outputs["logits"].array)


def test_an_untied_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    module = written("Roberta", tmp_path)
    module.config.tie_word_embeddings = False
    module.config.save_pretrained(tmp_path)
    _, report = type(module).from_pretrained(tmp_path, output_loading_info=True)
    assert "roberta.embeddings.word_embeddings.weight" in report["missing_keys"]
    with pytest.raises(CheckpointError, match=r"embeddings\.word_embeddings\.weight"):
        hs.open(tmp_path).trace(ids=[3, 5, 6])
