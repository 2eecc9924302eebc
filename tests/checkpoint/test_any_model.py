"""Models as people hold them: without a tokenizer, with one from elsewhere, with an adapter beside them, in memory."""

from __future__ import annotations

import gc
import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from shutil import unpack_archive
from types import SimpleNamespace
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
from safetensors.numpy import save_file
from safetensors.torch import load_file
from safetensors.torch import save_file as save_tensors
from torch import nn
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import headscope as hs
from commands import run
from explain.tops import TEXT, bi_encoder, readable
from headscope.anatomy.refused_checkpoints import NOT_LOADED, SAVE_PLAIN
from headscope.atlas.loading import load
from headscope.atlas.run import source_of
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import HeadscopeError, UnsupportedError
from products import pairwise
from random_models import assert_same, made
from random_models import run as run_module
from small_bert import small_bert

RESIDUES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"LAGVESIKRDTPNQFYMHCWXUBZO"]


def apart(folder: Path) -> tuple[Path, Path]:
    """A checkpoint without its tokenizer, and the tokenizer by itself."""
    weights, words = small_bert(folder / "weights"), folder / "words"
    words.mkdir()
    shutil.move(weights / "vocab.txt", words)
    return weights, words


def test_a_tokenizer_from_elsewhere(tmp_path: Path) -> None:
    whole = hs.open(str(small_bert(tmp_path / "whole"))).trace(TEXT)
    weights, words = apart(tmp_path)
    with pytest.raises(hs.errors.CheckpointError):
        hs.open(weights).trace(TEXT)
    assert hs.open(weights, tokenizer=words).trace(TEXT).ids == whole.ids
    assert hs.open(weights, tokenizer=tmp_path / "whole").trace(TEXT).ids == whole.ids
    done = run("predict", weights, "the [MASK]", "--tokenizer", words, "--json")
    assert json.loads(done.stdout)["masks"]


def test_a_survey_reads_with_the_tokenizer_that_open_was_given(tmp_path: Path) -> None:
    """As transformers loads it: from a folder, another checkpoint, or the bundled one."""
    weights, words = apart(tmp_path)

    def library(folder: Path) -> Any:
        return transformers.AutoTokenizer.from_pretrained(folder, config=transformers.BertConfig())

    for given, folder in ((words, words), ("-", BUNDLED)):
        size = len(library(folder))
        made(weights, "Bert", vocab_size=size)
        source, _ = source_of(hs.open(weights, tokenizer=given), None, None)
        tokenizer = load(source, device="cpu", dtype="fp32").tokenizer
        expected = library(folder)
        assert (tokenizer(TEXT)["input_ids"], len(tokenizer)) == (expected(TEXT)["input_ids"], size)


def test_a_tokenizer_that_cant_be_taken_is_an_error(tmp_path: Path) -> None:
    weights, words = apart(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(hs.errors.CheckpointError, match="is there"):
        hs.open(weights, tokenizer=tmp_path / "empty").tokenizer
    with pytest.raises(hs.errors.InputError, match=r"got BertTokenizer[\s\S]*save_pretrained\(folder\)") as refused:
        hs.open(weights, tokenizer=AutoTokenizer.from_pretrained(BUNDLED)).tokenizer
    assert len(str(refused.value)) < 400
    with open(words / "vocab.txt", "a", encoding="utf-8") as file:
        file.writelines(f"more{number}\n" for number in range(5000))
    with pytest.raises(hs.errors.InputError, match="tokens, and the model embeddings for"):
        hs.open(weights, tokenizer=words).tokenizer
    hs.open().trace("a").save(tmp_path / "x.safetensors")
    with pytest.raises(hs.errors.InputError, match="a trace takes no tokenizer"):
        hs.open(tmp_path / "x.safetensors", tokenizer=words)


def test_a_chain_without_spaces_says_what_to_do(tmp_path: Path) -> None:
    made(tmp_path, "Bert", vocab_size=len(RESIDUES))
    (tmp_path / "vocab.txt").write_text("\n".join(RESIDUES) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    model = hs.open(tmp_path)
    for chain in ("MKTAYIAKQR", "mktayiakqr"):
        with pytest.raises(hs.errors.InputError) as error:
            model.trace(chain)
        assert "M K T A Y I" in str(error.value.advice)
    assert model.trace(" ".join("MKTAYIAKQR")).tokens[1:-1] == tuple("MKTAYIAKQR")
    assert model.trace("M J K").tokens[2] == "[UNK]", "an unknown residue among others is shown as such"


def test_models_in_memory_are_read_as_they_are_now(tmp_path: Path) -> None:
    """With the weights that they have, not those of the files that they came from; the folder goes with the model.

    It has no model card: to write one, the library asks the hub.
    """
    held = bi_encoder("mean", folder=small_bert(tmp_path / "small"))
    with torch.no_grad():
        held[0].auto_model.encoder.layer[0].attention.self.query.weight *= 3
    model = hs.open(held)
    vector = model.trace(TEXT).outputs["sentence_embedding"].array
    np.testing.assert_allclose(vector, held.encode(TEXT), atol=1e-5)
    folder = Path(model.checkpoint.where)
    assert folder.is_dir()
    assert not (folder / "README.md").exists()
    del model
    gc.collect()
    assert not folder.exists()


def test_a_tokenizer_goes_before_that_of_a_sentence_transformer(tmp_path: Path) -> None:
    held = bi_encoder("mean", folder=small_bert(tmp_path))
    words = AutoTokenizer.from_pretrained(tmp_path, do_lower_case=False)
    text = "The cat sat"
    tokens = hs.open(held, tokenizer=words).trace(text).tokens
    assert tokens == tuple(words.convert_ids_to_tokens(words(text)["input_ids"]))
    assert tokens != hs.open(held).trace(text).tokens


@pytest.fixture
def classifier(tmp_path: Path) -> tuple[Any, Any, Any]:
    """A classifier of transformers that was saved in tmp_path, its tokenizer, and a pipeline of both."""
    readable(tmp_path, "Bert", "ForSequenceClassification")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path)
    return model, words, transformers.pipeline("text-classification", model=model, tokenizer=words, device="cpu")


def test_models_and_pipelines_of_transformers(tmp_path: Path, classifier: tuple[Any, Any, Any]) -> None:
    model, words, pipeline = classifier
    expected = hs.open(tmp_path).predict(TEXT)
    for opened in (hs.open(model, tokenizer=words), hs.open(model, tokenizer=tmp_path), hs.open(pipeline)):
        assert opened.name.startswith(f"{tmp_path.name} (BertForSequenceClassification in memory ")
        assert opened.predict(TEXT).rows() == expected.rows()
    assert not hs.compare(model, tmp_path).differs
    with pytest.raises(hs.errors.CheckpointError, match=r"hs\.open\(model, tokenizer=tokenizer\)"):
        hs.open(model).trace(TEXT)


def test_what_holds_a_tokenizer_brings_it(tmp_path: Path, classifier: tuple[Any, Any, Any]) -> None:
    """A pipeline runs as its user calls it; a model of sentence-transformers has a forward of its own."""
    held, (model, words, pipeline) = bi_encoder("mean", folder=small_bert(tmp_path / "sentence")), classifier
    expected = hs.trace(model, TEXT, tokenizer=words)
    for call, captured in ((pipeline, hs.capture(pipeline)), (held.encode, hs.capture(held))):
        with captured:
            call(TEXT)
        assert captured.trace.tokens == expected.tokens
        assert captured.trace.verify(reference=False).agrees
    np.testing.assert_array_equal(hs.trace(pipeline, TEXT)[0, 1].weights, expected[0, 1].weights)
    before = pipeline(TEXT)
    with hs.ablate(pipeline, {(0, 0), (0, 1)}):
        assert pipeline(TEXT) != before
    assert pipeline(TEXT) == before

    def sure() -> list[float]:
        return [pipeline(TEXT)[0]["score"]]

    np.testing.assert_array_equal(hs.effects(pipeline, sure), hs.effects(model, sure))
    assert str(hs.describe(pipeline)) == str(hs.describe(model))
    surveyed = hs.survey(pipeline, [TEXT] * 2)
    np.testing.assert_array_equal(surveyed["entropy"], hs.survey(model, [TEXT] * 2, tokenizer=words)["entropy"])
    for ask in (lambda: hs.trace(held, TEXT), lambda: hs.trace(str(tmp_path), TEXT), lambda: hs.survey(held, [TEXT])):
        with pytest.raises(hs.errors.InputError, match=r"hs\.open\(model\)"):
            ask()


@pytest.fixture
def bars() -> Iterator[None]:
    """The libraries' bars, as users have them; the models of tests are saved without."""
    transformers.utils.logging.enable_progress_bar()
    yield
    transformers.utils.logging.disable_progress_bar()


def test_saving_a_model_draws_no_bar_and_leaves_the_users_own(
    tmp_path: Path, bars: None, capsys: pytest.CaptureFixture[str]
) -> None:
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 9}
    model = BertModel(transformers.BertConfig(**size))
    disable_progress_bars("mine")
    hs.open(model)
    assert capsys.readouterr().err == ""
    assert are_progress_bars_disabled("mine")
    model.save_pretrained(tmp_path)
    assert "Writing model shards" in capsys.readouterr().err


def test_what_is_no_tokenizer_is_refused(classifier: tuple[Any, Any, Any]) -> None:
    """A model has what saves it, too: it was saved over the one that is opened."""
    model, words, _ = classifier
    for given in (3, model, words.backend_tokenizer):
        with pytest.raises(hs.errors.InputError, match=rf"expected a tokenizer, got {type(given).__name__}"):
            hs.open(model, tokenizer=given)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=words.backend_tokenizer)
    assert hs.open(model, tokenizer=wrapped).trace(TEXT).tokens == hs.open(model, tokenizer=words).trace(TEXT).tokens


@pytest.mark.parametrize("held", [torch.nn.Linear(2, 2), 3, None])
def test_other_objects_are_refused(held: Any) -> None:
    with pytest.raises(hs.errors.InputError, match=rf"{type(held).__name__} can't be opened[\s\S]*hs\.capture"):
        hs.open(held)


@pytest.mark.parametrize("holder", [SimpleNamespace, torch.nn.Module])
def test_an_object_that_holds_a_model_names_it(classifier: tuple[Any, Any, Any], holder: Any) -> None:
    """As setfit's SetFitModel, which is no module, has a model of sentence-transformers in `model_body`."""
    held = holder()
    held.labels, held.model_body = ["a", "b"], classifier[0]
    with pytest.raises(hs.errors.InputError, match=r"can't be opened[\s\S]*hs\.open\(model\.model_body\)"):
        hs.open(held)


class Doubled(torch.nn.Module):
    """Around a part, with the attribute that DataParallel has."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor, *others: Any, **options: Any) -> Any:
        return self.module(2 * x, *others, **options)


class Adapted(torch.nn.Module):
    """A Linear as peft leaves it in a model: the Linear itself is called base_layer."""

    def __init__(self, base_layer: torch.nn.Linear) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = torch.nn.Linear(base_layer.in_features, 2, bias=False)
        self.lora_B = torch.nn.Linear(2, base_layer.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.lora_B(self.lora_A(x))  # type: ignore[no-any-return]


def test_a_model_with_adapters_is_to_be_merged_and_its_trace_has_them(tmp_path: Path) -> None:
    readable(tmp_path, "Bert", "Model")
    model = BertModel.from_pretrained(tmp_path).eval()
    words = transformers.AutoTokenizer.from_pretrained(tmp_path)
    before = hs.trace(model, TEXT, tokenizer=words)
    attention = model.encoder.layer[0].attention.self
    attention.query = Adapted(attention.query)
    with pytest.raises(UnsupportedError, match=r"encoder\.layer\.0\.attention\.self\.query[\s\S]*merge_and_unload"):
        hs.open(model, tokenizer=words)
    trace = hs.trace(model, TEXT, tokenizer=words)
    assert trace.verify(reference=False).agrees
    assert np.abs(np.asarray(trace[0, 0].q) - np.asarray(before[0, 0].q)).max() > 1e-3


def test_a_part_of_ones_own_is_run_live_only(classifier: tuple[Any, Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are those of the plain class, which would give other numbers: by a class, a forward, a hook, ….

    A class on top of the base model may be anybody's, as for a loss of one's own.
    """
    model, words, _ = classifier
    attention = model.bert.encoder.layer[0].attention.self

    class Sharp(type(attention)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, *others: Any, **options: Any) -> Any:
            return super().forward(2 * x, *others, **options)

    class Weighted(type(model)):  # type: ignore[misc]
        def forward(self, *inputs: Any, **options: Any) -> Any:
            return super().forward(*inputs, **options)

    model.__class__ = Weighted
    opened = hs.open(model, tokenizer=words)
    expected = opened.trace(TEXT)
    with pytest.raises(UnsupportedError, match=r"it has classifier\.weight, whose task [\s\S]* don't tell"):
        opened.predict(TEXT)
    plain = attention.forward
    attention.__class__ = Sharp
    refuses_to_run(model, words, "Sharp has a forward")
    assert hs.trace(model, TEXT, tokenizer=words)[0, 0].weights[1, 1] != expected[0, 0].weights[1, 1]
    attention.__class__ = Sharp.__base__
    monkeypatch.setattr(attention, "forward", lambda x, *others, **options: plain(2 * x, *others, **options))
    refuses_to_run(model, words, "BertSelfAttention has a forward")
    monkeypatch.undo()
    model.bert.encoder.layer[0].attention.self = Doubled(attention)
    refuses_to_run(model, words, "Doubled has a forward")
    model.bert.encoder.layer[0].attention.self = attention
    hook = attention.query.register_forward_hook(lambda module, given, found: 2 * found)
    refuses_to_run(model, words, "Linear has a forward, a hook")
    hook.remove()
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sharp", lambda *given, **options: None)
    model.set_attn_implementation("sharp")
    with pytest.raises(UnsupportedError, match=r"an attention function that isn't transformers' own"):
        hs.open(model, tokenizer=words).trace(TEXT)
    model.set_attn_implementation("eager")
    found = hs.open(model, tokenizer=words).trace(TEXT)
    np.testing.assert_array_equal(found[0, 0].weights, expected[0, 0].weights)


def refuses_to_run(model: Any, words: Any, message: str) -> None:
    opened = hs.open(model, tokenizer=words)
    assert opened.layers[0].heads[1].W_Q.shape == (32, 8)
    for ask in (opened.trace, opened.predict, opened.effects):
        with pytest.raises(UnsupportedError, match=rf"{message}[\s\S]*encoder\.layer\.0\.attention\.self[\s\S]*live"):
            ask(TEXT)


def test_weights_with_an_adapter_beside_them_are_not_taken_for_the_model(tmp_path: Path) -> None:
    """As peft saves it into the model's own folder."""
    text = "The cat sat."
    folder = Path(shutil.copytree(BUNDLED, tmp_path / "model"))
    name = "base_model.model.encoder.layer.0.attention.self.query.lora_{}.weight"
    ranks = {name.format("A"): np.ones((2, 192), np.float32), name.format("B"): np.ones((192, 2), np.float32)}
    save_file(ranks, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "base_model_name_or_path": str(folder), "r": 2, "target_modules": ["query"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    model = hs.open(folder)
    assert model.parameters.total == hs.open().parameters.total
    for ask in (lambda: model.trace(text), lambda: model.layers[0].heads[0].W_Q, lambda: hs.match(model, text, text)):
        with pytest.raises(UnsupportedError, match=r"an adapter .* lies beside the weights") as raised:
            ask()
        assert "model.safetensors" in str(raised.value.advice)
    result = run("summary", folder)
    assert "an adapter (LoRA or similar) lies beside the weights" in " ".join(result.output.split())
    plain = hs.open(folder / "model.safetensors")
    assert np.array_equal(plain.trace(text)[0, 1].q, hs.open().trace(text)[0, 1].q)


# A model in memory has its own class, count and name; what reads it again reads it, not the model it came from.

TEXTS = ["The cat sat on the mat.", "A dog ran to the park.", "We went home."] * 4


@pytest.fixture(scope="module")
def changed() -> BertModel:
    model = BertModel.from_pretrained(BUNDLED).eval()
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight.mul_(3)
    return model


def test_a_classifier_is_called_by_its_class_and_counts_its_own_parameters() -> None:
    classifier = BertForSequenceClassification.from_pretrained(BUNDLED, num_labels=3)
    model = hs.open(classifier)
    text = repr(model)
    assert "BertForSequenceClassification" in text
    assert f"{sum(part.numel() for part in classifier.parameters()):,} parameters" in text
    assert repr(hs.open(BertForSequenceClassification(classifier.config))) != text


def test_two_models_of_one_origin_differ_by_name(changed: BertModel) -> None:
    before, after, again = hs.open(BUNDLED), hs.open(changed), hs.open(changed)
    assert len({before.name, after.name, again.name}) == 3
    comparison = hs.compare(hs.open(BertModel.from_pretrained(BUNDLED)), after)
    assert comparison.a != comparison.b
    assert comparison.b == after.name


def test_a_survey_of_a_model_in_memory_reads_that_model(changed: BertModel, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    model = hs.open(changed, tokenizer=tokenizer)
    survey = hs.survey(model, tmp_path / "texts.txt", out=tmp_path / "out", threads=1)
    live = hs.survey(changed, tmp_path / "texts.txt", tokenizer=tokenizer, out=tmp_path / "live", threads=1)
    np.testing.assert_allclose(survey["entropy"], live["entropy"], atol=1e-4)
    assert survey.manifest["model"]["name"] == model.name


# Models with compiled or wrapped parts, against transformers on the same weights; and advice about saving, tried.


SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}
WIDTHS = {**SIZES, "hidden_size": 32, "intermediate_size": 64}
MODELS: dict[str, Callable[[], Any]] = {
    "BERT": lambda: BertForMaskedLM(BertConfig(**WIDTHS)),
    "RoBERTa": lambda: RobertaForMaskedLM(RobertaConfig(**WIDTHS)),
    "DistilBERT": lambda: DistilBertForMaskedLM(DistilBertConfig(**SIZES, dim=32, hidden_dim=64)),
}
IDS = [5, 9, 7, 30, 12, 6]


class Around(nn.Module):
    """A wrapper that keeps a module under some name, as FSDP and checkpointing do."""

    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.add_module(name, inner)


def wrap_layers(model: Any, wrap: Callable[[nn.Module], nn.Module]) -> None:
    base = model.base_model
    layers = (base.encoder if hasattr(base, "encoder") else base.transformer).layer
    for at, layer in enumerate(layers):
        layers[at] = wrap(layer)


def wrap_base(model: Any, wrap: Callable[[nn.Module], nn.Module]) -> None:
    setattr(model, model.base_model_prefix, wrap(model.base_model))


def wrap_head(model: Any, wrap: Callable[[nn.Module], nn.Module]) -> None:
    name = next(name for name in ("cls", "lm_head", "vocab_transform") if hasattr(model, name))
    setattr(model, name, wrap(getattr(model, name)))


PARTS = {"layers": wrap_layers, "base": wrap_base, "head": wrap_head}
WRAPS: dict[str, Callable[[nn.Module], Any]] = {
    "compiled": lambda inner: torch.compile(inner, backend="eager"),
    "DataParallel": nn.DataParallel,
    "FSDP": lambda inner: Around("_fsdp_wrapped_module", inner),
    "checkpointing": lambda inner: Around("_fsdp_wrapped_module", Around("_checkpoint_wrapped_module", inner)),
}


def plain(name: str) -> tuple[Any, Any]:
    """A model, and what it gives for IDS."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    model.set_attn_implementation("eager")
    return model, run_module(model, [IDS])


def same_as_transformers(opened: Any, expected: Any) -> None:
    trace = opened.trace(ids=IDS, hidden_states=True)
    assert_same(trace, expected)
    assert "logits" in trace.outputs
    assert opened.anatomy.tops[0].suffix == "ForMaskedLM"
    assert (opened.anatomy.problems, opened.anatomy.missing) == ((), ())


@pytest.mark.parametrize(("name", "part", "wrap"), pairwise(tuple(MODELS), tuple(PARTS), tuple(WRAPS)))
def test_wrapped_parts_are_read_as_what_they_wrap(name: str, part: str, wrap: str, tmp_path: Path) -> None:
    """From a file with the wrapped names, and from the model in memory."""
    model, expected = plain(name)
    PARTS[part](model, WRAPS[wrap])
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    same_as_transformers(hs.open(tmp_path), expected)
    same_as_transformers(hs.open(model), expected)


@pytest.mark.parametrize("wrap", ["compiled", "DataParallel"])
def test_a_wrapped_model_in_memory(wrap: str) -> None:
    model, expected = plain("BERT")
    same_as_transformers(hs.open(WRAPS[wrap](model)), expected)


def bert(folder: Path, rename: Callable[[str], str] = str, **more: torch.Tensor) -> dict[str, torch.Tensor]:
    """Save a BertModel, its tensors renamed, with more of them; return its own tensors."""
    torch.manual_seed(1)
    model = BertModel(BertConfig(**WIDTHS)).eval()
    model.save_pretrained(folder)
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_tensors({**{rename(name): tensor for name, tensor in own.items()}, **more}, folder / "model.safetensors")
    return own


def holds(folder: Path, own: dict[str, torch.Tensor]) -> bool:
    opened = hs.open(folder)
    return all(np.array_equal(opened.checkpoint.read(row.stored), own[row.name].numpy()) for row in opened.parameters)


def test_saving_the_plain_model_keeps_its_weights(tmp_path: Path) -> None:
    own = bert(tmp_path, **{"encoder.layer.0.attention.self.gate.weight": torch.ones(3)})
    (refusal,) = hs.open(tmp_path).anatomy.refusals
    assert refusal.advice == SAVE_PLAIN.format(base="BertModel")
    BertModel.from_pretrained(tmp_path).save_pretrained(tmp_path / "other")
    assert holds(tmp_path / "other", own)
    assert not hs.open(tmp_path / "other").anatomy.refusals


@pytest.mark.parametrize("before", ["module.", "model.bert.", "encoder."])
def test_what_transformers_would_not_load_is_not_to_be_saved(before: str, tmp_path: Path) -> None:
    """from_pretrained would start these weights at random."""
    own = bert(tmp_path, lambda name: before + name, **{f"{before}encoder.layer.0.attention.self.gate": torch.ones(3)})
    (refusal,) = hs.open(tmp_path).anatomy.refusals
    assert refusal.advice == NOT_LOADED.format(base="BertModel")
    loaded = BertModel.from_pretrained(tmp_path).state_dict()
    assert not torch.equal(loaded["encoder.layer.1.output.dense.weight"], own["encoder.layer.1.output.dense.weight"])


def test_the_wrapped_model_is_saved_whole(tmp_path: Path) -> None:
    for wrap, attribute in (("compiled", "_orig_mod"), ("DataParallel", "module")):
        model = BertModel(BertConfig(**WIDTHS))
        wrapped, folder = WRAPS[wrap](model), tmp_path / wrap
        model.config.save_pretrained(folder)
        torch.save(wrapped.state_dict(), folder / "pytorch_model.bin")
        (note,) = hs.open(folder).fit("BertModel").notes
        assert f"model.{attribute}" in note
        getattr(wrapped, attribute).save_pretrained(folder / "other")
        assert holds(folder / "other", model.state_dict())
        assert hs.open(folder / "other").fit("BertModel").complete


def test_one_of_two_models_is_saved_alone(tmp_path: Path) -> None:
    own = bert(
        tmp_path, **{f"encoder2.{n}": t.clone() for n, t in BertModel(BertConfig(**WIDTHS)).state_dict().items()}
    )
    (refusal,) = hs.open(tmp_path).anatomy.refusals
    assert "model.encoder.save_pretrained(folder)" in refusal.advice
    both = nn.Module()
    both.encoder = BertModel(BertConfig(**WIDTHS))
    both.encoder.load_state_dict(own)
    both.encoder.save_pretrained(tmp_path / "other")
    assert holds(tmp_path / "other", own)


def as_pickle(folder: Path, name: str = "pytorch_model.bin", *, whole: bool = False) -> None:
    model = BertModel(BertConfig(**WIDTHS))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    torch.save(model if whole else model.state_dict(), folder / name)


def compressed(folder: Path) -> None:
    """The archive that torch.save writes, with its entries compressed."""
    as_pickle(folder)
    with ZipFile(folder / "pytorch_model.bin") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with ZipFile(folder / "pytorch_model.bin", "w", ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def zipped(folder: Path) -> None:
    with ZipFile(folder / "model.zip", "w") as archive:
        archive.write(folder / "model.safetensors", "model.safetensors")
    (folder / "model.safetensors").unlink()


def through(change: Callable[[bytes], bytes], folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(change(file.read_bytes()))


def as_program(folder: Path) -> None:
    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    model.config.return_dict = False
    torch.jit.trace(model, torch.tensor([IDS]), check_trace=False).save(str(folder / "pytorch_model.bin"))
    (folder / "model.safetensors").unlink()


def from_program(folder: Path) -> None:
    state = torch.jit.load(folder / "pytorch_model.bin").state_dict()
    save_tensors({name: tensor.clone() for name, tensor in state.items()}, folder / "model.safetensors")


def renamed(before: str, after: str) -> Callable[[Path], object]:
    return lambda folder: (folder / before).rename(folder / after)


ADVICE: dict[str, tuple[Callable[[Path], object], str, Callable[[Path], object]]] = {
    "compressed": (
        compressed,
        "load it with torch and save it again",
        lambda folder: torch.save(torch.load(folder / "pytorch_model.bin"), folder / "pytorch_model.bin"),
    ),
    "zip": (
        zipped,
        "unpack model.zip and pass the unpacked folder",
        lambda folder: unpack_archive(folder / "model.zip", folder),
    ),
    "gzip": (partial(through, gzip.compress), "unpack it", partial(through, gzip.decompress)),
    "a pickle's content": (
        lambda folder: as_pickle(folder, "model.safetensors"),
        "rename it to pytorch_model.bin",
        renamed("model.safetensors", "pytorch_model.bin"),
    ),
    "a safetensors file's content": (
        renamed("model.safetensors", "pytorch_model.bin"),
        "rename it to model.safetensors",
        renamed("pytorch_model.bin", "model.safetensors"),
    ),
    "program": (as_program, "load it with torch.jit.load and save its state_dict() as model.safetensors", from_program),
    "whole model": (
        lambda folder: as_pickle(folder, whole=True),
        "If it is your own, save model.state_dict() instead of the model",
        lambda folder: torch.save(
            torch.load(folder / "pytorch_model.bin", weights_only=False).state_dict(), folder / "pytorch_model.bin"
        ),
    ),
}
"""A file that can't be read, the advice, and what it says, done."""


@pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning",
    "ignore:`torch.jit:FutureWarning",  # torch 2.15
    "ignore:`is_gradient_check:FutureWarning",
    "ignore::torch.jit.TracerWarning",  # what is traced depends on which mask functions ran before
)
@pytest.mark.parametrize("kind", ADVICE)
def test_advice_about_files_keeps_the_weights(tmp_path: Path, kind: str) -> None:
    own = bert(tmp_path)
    spoil, advice, follow = ADVICE[kind]
    spoil(tmp_path)
    with pytest.raises(HeadscopeError) as error:
        hs.open(tmp_path)
    assert advice in error.value.advice
    follow(tmp_path)
    assert holds(tmp_path, own)


def test_an_adapter_is_merged_and_not_loaded_by_name(tmp_path: Path) -> None:
    """peft's names; its merge is W + (alpha / r) B A. from_pretrained starts the wrapped weights at random."""
    query = "encoder.layer.1.attention.self.query"
    a, b = torch.randn(4, 32), torch.randn(32, 4)
    adapter = {f"{query}.lora_A.default.weight": a, f"{query}.lora_B.default.weight": b}
    own = bert(tmp_path, lambda name: name.replace(f"{query}.", f"{query}.base_layer."), **adapter)
    opened = hs.open(tmp_path)
    with pytest.raises(HeadscopeError, match="merge it with peft") as error:
        opened.trace(ids=IDS)
    assert "from_pretrained would start these weights at random" in str(error.value.advice)
    loaded = BertModel.from_pretrained(tmp_path)
    assert not torch.equal(loaded.state_dict()[f"{query}.weight"], own[f"{query}.weight"])
    own[f"{query}.weight"] = own[f"{query}.weight"] + 8 / 4 * b @ a
    loaded.load_state_dict(own)
    loaded.save_pretrained(tmp_path / "merged")
    assert holds(tmp_path / "merged", own)
    assert hs.open(tmp_path / "merged").trace(ids=IDS).verify().agrees
