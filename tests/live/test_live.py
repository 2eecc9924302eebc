"""`ablate`, `describe`, `trace` and `verify` on live models, and the example."""

from __future__ import annotations

import doctest
import importlib.util
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from comparing import captured_of, own, pass_of, passed, tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn
from transformers import AutoTokenizer, BertModel, PreTrainedTokenizerFast

import headscope
from families import BY_NAME, DECODER, SLIDING, TEXT, Family, built
from headscope import live
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import InputError, MissingExtraError, NoteWarning, UnsupportedError, install
from headscope.live import ablate, capture, describe, modules_of_checkpoint, trace

BERT = BY_NAME["BertModel"]


@pytest.mark.parametrize("batch_first", [True, False])
def test_ablation_in_torch_nn(batch_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        with ablate(model, [(1, 3)]):
            silenced = model(x)
        model.layers[1].self_attn.out_proj.weight[:, 12:] = 0
        torch.testing.assert_close(silenced, model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [{(2, 0): "zero"}, {(0, 4): "zero"}, {(-1, 0): "zero"}, {(0, 0): "half"}, {}])
def test_ablation_of_what_is_not_there(heads: dict[tuple[int, int], str]) -> None:
    with pytest.raises(InputError):
        ablate(BERT.build(), heads)


def test_ablation_asks_which_stack() -> None:
    model, inputs = built("BartModel")
    with pytest.raises(InputError, match="3 stacks"):
        ablate(model, [(0, 0)])
    with ablate(model, [(1, 1)], stack="cross"):
        captured = captured_of(model, **inputs)
    assert captured["cross"][0].ablated == {(1, 1)}
    assert captured["decoder"][0].ablated == frozenset()


@pytest.mark.parametrize("padding", [slice(0, 2), slice(-2, None), slice(2, 3)])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_mean_in_cross_attention_leaves_padded_queries_out(attention: str, padding: slice) -> None:
    """Of as many queries as the encoder has, or fewer; with a capture, or another ablation, around it, too."""
    model = BY_NAME["BartModel"].build(attention=attention)
    width = model.config.d_model // model.config.decoder_attention_heads
    head = slice(width, 2 * width)
    ids, memory = torch.arange(2, 16).view(2, 7), torch.arange(20, 34).view(2, 7)
    for queries in (7, 6):
        mask = torch.ones(2, queries, dtype=torch.long)
        mask[1, padding] = 0
        inputs = {"input_ids": memory, "decoder_input_ids": ids[:, :queries], "decoder_attention_mask": mask}

        def silence(module: nn.Module, args: tuple[torch.Tensor], mask: torch.Tensor = mask) -> tuple[torch.Tensor]:
            (x,) = (args[0].clone(),)
            for row, real in zip(x, mask.bool(), strict=True):
                row[:, head] = row[real, head].mean(0)
            return (x,)

        projection, real = model.decoder.layers[1].encoder_attn.out_proj, mask.bool()
        for around in (nullcontext(), capture(model), ablate(model, {(0, 0): "mean"}, stack="encoder")):
            with torch.no_grad(), around:
                handle = projection.register_forward_pre_hook(silence)
                expected = model(**inputs).last_hidden_state
                handle.remove()
                with ablate(model, {(1, 1): "mean"}, stack="cross"):
                    found = model(**inputs).last_hidden_state
            torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_mean_in_cross_attention_of_torch_nn(need_weights: bool) -> None:
    """A text in a batch is the text alone; where no self-attention tells padding, every query counts."""
    torch.manual_seed(0)
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), 2).eval()
    x, memory, hidden = torch.randn(2, 5, 16), torch.randn(2, 6, 16), torch.zeros(2, 5, dtype=torch.bool)
    hidden[1, 3:] = True
    with torch.no_grad(), ablate(model, {(0, 1): "mean"}, stack="cross"):
        together = model(x, memory, tgt_key_padding_mask=hidden)
        alone = model(x[1:, :3], memory[1:])
    torch.testing.assert_close(together[1:, :3], alone, atol=1e-5, rtol=1e-5)
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    captured = captured_of(attention, x, memory, memory, options={"strict": False}, need_weights=need_weights)
    with torch.no_grad(), ablate(attention, {(0, 1): "mean"}):
        output, _ = attention(x, memory, memory, need_weights=need_weights)
    for row, one in enumerate(captured.traces):
        contexts = np.stack([one[0, at].context for at in range(4)])
        contexts[1] = contexts[1].mean(0)
        joined = torch.from_numpy(np.concatenate(list(contexts), -1))
        torch.testing.assert_close(output[row], attention.out_proj(joined).detach(), atol=1e-5, rtol=1e-5)


def test_ablation_in_a_shared_module() -> None:
    model, inputs = built("AlbertModel")
    with ablate(model, [(2, 1)]):
        assert captured_of(model, **inputs).traces[0].ablated == {(2, 1)}


def passes_of(model: nn.Module) -> list[Any]:
    """A list that grows with each forward pass of a model."""
    passes: list[Any] = []
    model.register_forward_pre_hook(lambda module, args: passes.append(module))
    return passes


@pytest.mark.parametrize("name", ["BertModel", "LlamaModel", "BartModel", "ModernBertModel", "CLIPModel", "ViTModel"])
def test_verify_runs_the_model_twice(name: str) -> None:
    """Once with other ids, however many there are, and once in eager attention; an image has none."""
    model, captured, _ = pass_of(BY_NAME[name], padded=name != "ViTModel")
    passes, config = passes_of(model), model.config.to_dict()
    for found in captured.traces:
        passes.clear()
        report = found.verify()
        assert report.agrees
        tokens = [] if name == "ViTModel" or found.stack == "vision_model" else ["tokens"]
        assert [check for check, _ in report.skipped] == ["tokens"] * (not tokens)
        checks = ["row sums", "module output", *tokens, "weights (eager)"]
        assert [check.name for check in report.checks] == checks
        assert len(passes) == 1 + len(tokens)
    assert model.config.to_dict() == config
    assert model.config._attn_implementation == "sdpa"


UNLIKE = {
    "GraniteSWAAttention returns other weights than it applies": Family("GraniteSWAModel", SLIDING),
    "the model's eager attention fails: The size of tensor a (4) must match the size of tensor b (2)": Family(
        "UnlimitedOcrTextModel", {**SLIDING, "layer_types": ["full_attention"] * 2}
    ),
}


@pytest.mark.parametrize("reason", UNLIKE)
def test_eager_attention_of_the_library_that_is_not_what_ran(reason: str) -> None:
    """A sink's share that only its contexts show, and key heads that are shared, which its products don't know."""
    _, captured, _ = pass_of(UNLIKE[reason])
    report = captured.traces[1].verify()
    assert report.agrees, report
    assert [check.name for check in report.checks] == ["row sums", "module output", "tokens"]
    assert [name for name, said in report.skipped if reason in said] == ["eager weights"]


def test_eager_attention_of_the_library_that_hides_every_key() -> None:
    """As in transformers' NemotronAsrStreamingEncoder, which takes its mask of numbers for one of booleans."""

    def forward(self: Any, ids: torch.Tensor) -> Any:
        hidden = torch.full((1, 1, 3, 3), -torch.inf)
        return self.bert(ids, attention_mask=hidden if self.bert.config._attn_implementation == "eager" else None)

    model = own(forward, bert=BERT.build())
    report = captured_of(model, torch.tensor([[4, 5, 6]])).trace.verify()
    assert report.agrees, report
    assert ("eager weights", "the eager attention of BertSelfAttention gives nothing but NaN") in report.skipped


def two_rows(self: Any, ids: torch.Tensor) -> Any:
    assert len(ids) == 2
    return self.bert(ids)


PARTICULAR: dict[str, Callable[..., Any]] = {
    "no more rows": two_rows,
    "tokens first": lambda self, ids: self.bert(ids.T),
    "rows in another order": lambda self, ids: self.bert(
        inputs_embeds=self.bert.embeddings.word_embeddings(ids).flip(0)
    ),
    "rows as they are": lambda self, ids: self.bert(ids),
}
"""Encoders that are particular about the rows of their input."""


@pytest.mark.parametrize("way", PARTICULAR)
def test_ids_of_models_that_are_particular_about_rows(way: str) -> None:
    """Where a batch of copies tells nothing, or something else, each trial is a pass of its own."""
    model, ids = own(PARTICULAR[way], bert=BERT.build()), BERT.inputs(padded=False)["input_ids"]
    captured = captured_of(model, ids.T if way == "tokens first" else ids)
    passes = passes_of(model)
    for found in captured.traces:
        passes.clear()
        report = found.verify()
        assert report.agrees
        assert {"tokens", "weights (eager)"} <= {check.name for check in report.checks}
        assert (len(passes) == 2) == (way == "rows as they are")


@pytest.mark.parametrize("way", ["no more rows", "rows as they are"])
def test_verify_finds_a_wrong_id(way: str) -> None:
    model, ids = own(PARTICULAR[way], bert=BERT.build()), BERT.inputs(padded=False)["input_ids"]
    found = captured_of(model, ids).traces[1]
    named = list(found.ids)
    named[2] = next(number for number in range(5, 50) if number not in named)
    report = found.replaced(queries=replace(found.queries, ids=tuple(named))).verify()
    (wrong,) = (check for check in report.checks if check.name == "tokens")
    assert (wrong.agrees, wrong.query) == (False, 2)


def test_verify_finds_what_is_wrong() -> None:
    _, captured, _ = pass_of(BERT, padded=False)
    first, second = captured.traces[0].layers
    broken = second.v.copy()
    broken[2, 3] += 1
    report = captured.traces[0].replaced(layers=(first, replace(second, v=broken))).verify(reference=False)
    assert not report.agrees
    assert (report.worst.name, report.worst.layer, report.worst.head) == ("module output", 1, 2)


CHANGES: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "doubles": (lambda module, args, output: output * 2, ["eager weights"]),
    "moves tokens": (lambda module, args, output: output.flip(1), ["tokens", "eager weights"]),
    "only looks": (lambda module, args, output: None, []),
}
"""A hook, and what is not compared if it comes or goes."""


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("way", CHANGES)
def test_a_hook_that_comes_or_goes_after_the_pass_is_no_fault_of_the_trace(way: str, adds: bool) -> None:
    """What a second run shows is compared if they agree, whatever hooks there were: most only look."""
    model, (changes, uncompared) = BERT.build(), CHANGES[way]
    query = model.encoder.layer[0].attention.self.query
    part = model.embeddings.word_embeddings if way == "moves tokens" else query
    handle = None if adds else part.register_forward_hook(changes)
    captured = captured_of(model, torch.tensor([[4, 5, 6, 7]]))
    part.register_forward_hook(changes) if handle is None else handle.remove()
    report = captured.trace.verify()
    assert report.agrees, report
    assert [name for name, reason in report.skipped if "other hooks" in reason] == uncompared
    assert not captured_of(model, torch.tensor([[4, 5, 6, 7]])).trace.verify().skipped


@pytest.mark.parametrize("used", [["one"], ["three"], []])
def test_an_adapter_that_is_switched_after_the_pass_is_no_fault_of_the_trace(used: list[str]) -> None:
    """As peft's are, which stand around a Linear."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        factor = 1 if self.disable_adapters else len(self.active_adapters[0])
        return self.base_layer(x) * factor

    model = BERT.build()
    attention = model.encoder.layer[0].attention.self
    attention.query = adapter = own(forward, base_layer=attention.query)
    adapter.active_adapters, adapter.disable_adapters = ["one"], False
    captured = captured_of(model, torch.tensor([[4, 5, 6, 7]]))
    adapter.active_adapters, adapter.disable_adapters = used or ["one"], not used
    report = captured.trace.verify()
    assert report.agrees, report
    assert [name for name, _ in report.skipped] == ([] if used == ["one"] else ["eager weights"])


@pytest.mark.parametrize("part", ["", "embeddings.dropout"])
def test_a_model_with_a_module_in_training_is_not_run_again(part: str) -> None:
    """Its dropout would draw other numbers, and `verify` would call the right weights wrong; in eval mode, too."""
    model = BERT.build()
    model.get_submodule(part).train()
    name = part or "embeddings.dropout"
    note = f"the model is in training mode, and {name} drops numbers at random"
    with torch.no_grad(), capture(model) as captured, pytest.warns(NoteWarning, match=re.escape(note)):
        model(**BERT.inputs(padded=False))
    assert note in captured.traces[0].notes
    assert repr(captured.traces[0]).endswith(f"; {note}")
    random = torch.random.get_rng_state()
    report = captured.traces[0].verify()
    assert torch.equal(torch.random.get_rng_state(), random)
    assert report.agrees, report
    assert "tokens" in {check.name for check in report.checks}  # those passes draw the same numbers
    assert ("eager weights", "the model is in training mode, so two forward passes differ") in report.skipped
    assert part or {name for name, _ in report.skipped} == {"module output", "eager weights"}
    report = (model.eval(), captured.traces[0].verify())[1]
    assert report.agrees, report
    assert ("eager weights", "the model was in training mode, so two forward passes differ") in report.skipped


def test_the_one_liner() -> None:
    model = BERT.build().train()
    model.encoder.layer[1].eval()
    modes = [module.training for module in model.modules()]
    found = trace(model, "the cats sat", "the mat", tokenizer=tokenizer(), layers=[1])
    assert found.tokens == ("[CLS]", "the", "cat", "##s", "sat", "[SEP]", "the", "mat", "[SEP]")
    assert found.words == (None, 0, 1, 1, 2, None, 3, 4, None)
    assert found.queries.spans[2] == (4, 7)
    assert [at for at, special in enumerate(found.special) if special] == [0, 5, 8]
    assert (found.text, found.pair, found.numbers) == ("the cats sat", "the mat", (1,))
    assert [module.training for module in model.modules()] == modes
    assert headscope.trace(model, "the cat", tokenizer=tokenizer()).tokens == ("[CLS]", "the", "cat", "[SEP]")
    with pytest.raises(InputError, match="empty"):
        trace(model, "", tokenizer=tokenizer())
    with pytest.raises(InputError, match="unpaired surrogate"):
        trace(model, "the \ud800", tokenizer=tokenizer())


def test_the_one_liner_wants_a_model_that_takes_ids() -> None:
    """A Sequential around a model, such as a SentenceTransformer, takes other arguments."""
    wrapped = nn.Sequential(BERT.build())
    with pytest.raises(UnsupportedError, match=r"Sequential doesn't accept .*input_ids[\s\S]*hs\.capture"):
        trace(wrapped, "the cat", tokenizer=tokenizer())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ViTModel", r"ViTModel doesn't run on a text alone[\s\S]*hs\.capture"),
        ("T5Model", r"T5Model doesn't run on a text alone[\s\S]*hs\.capture"),
        ("BartModel", r"BartModel left 3 traces, of encoder, decoder, cross attention[\s\S]*get_encoder\(\)"),
    ],
)
def test_the_one_liner_of_what_takes_more_than_a_text(name: str, says: str) -> None:
    """Its own error was about None, or about an attribute of a block that the caller never opened."""
    with pytest.raises((InputError, UnsupportedError), match=says):
        trace(BY_NAME[name].build(), "the cat", tokenizer=tokenizer())


def test_a_token_that_the_model_has_no_embedding_for() -> None:
    """As after tokenizer.add_tokens, before resize_token_embeddings."""
    words, model = tokenizer(), BERT.build()
    words.add_tokens([f"new{at}" for at in range(model.config.vocab_size)])
    with pytest.raises(InputError, match=r"can't look up the id[\s\S]*resize_token_embeddings"):
        trace(model, f"the new{model.config.vocab_size - 1}", tokenizer=words)
    model.resize_token_embeddings(len(words))
    assert trace(model, "the new5", tokenizer=words).tokens == ("[CLS]", "the", "new5", "[SEP]")


def test_the_scores_of_an_answer_s_ends_are_those_of_tokens() -> None:
    """Of a shorter text in a batch, without padding; they were called labels."""
    model, words = transformers.BertForQuestionAnswering(transformers.BertConfig(**TEXT)).eval(), tokenizer()
    with capture(model, tokenizer=words) as captured:
        model(**words(["the cat", "the cat sat the mat"], padding=True, return_tensors="pt"))
    alone = trace(model, "the cat", tokenizer=words)
    for name in ("start_logits", "end_logits"):
        found = captured.traces[0].outputs[name]
        assert found.dims == ("tokens",)
        np.testing.assert_allclose(found.array, alone.outputs[name].array, atol=1e-5)


def test_the_one_liner_takes_its_tokenizer_by_name() -> None:
    """As `capture`, `open` and `survey` do. One that stands before the text is told the right call."""
    words: Any = tokenizer()
    with pytest.raises(TypeError, match=re.escape("trace(model, text, tokenizer=tokenizer)")):
        trace(BERT.build(), words, "the cat")
    with pytest.raises(TypeError, match=f"got {type(words).__name__}; call it as trace"):
        trace(BERT.build(), "the cat", words)
    ids: Any = torch.arange(3, 8)[None]
    with pytest.raises(TypeError, match=r"got Tensor.*with hs\.capture\(model\) as captured: model\(\*\*inputs\)"):
        trace(BERT.build(), ids)
    with pytest.raises(InputError, match=r"got NoneType[\s\S]*tokenizer=transformers"):
        trace(BERT.build(), "the cat")


def test_describe_counts_ties_once_and_repeats_together() -> None:
    model = transformers.BertForMaskedLM(transformers.BertConfig(**TEXT))
    for parameter in model.bert.embeddings.parameters():
        parameter.requires_grad = False
    description = describe(model)
    assert description.total == sum(parameter.numel() for parameter in model.parameters())
    assert description.frozen == sum(parameter.numel() for parameter in model.bert.embeddings.parameters())
    assert any("word_embeddings" in name for names in description.tied for name in names)
    assert abs(sum(one.share for one in description.components) - 1) < 1e-12
    assert "0-1: 2 x BertLayer" in str(description)
    assert json.loads(json.dumps(description.to_dict()))["total"] == description.total


@pytest.mark.parametrize("lazy", [nn.LazyLinear(8), nn.LazyBatchNorm1d()], ids=["LazyLinear", "LazyBatchNorm1d"])
def test_describe_of_a_model_whose_parameters_are_not_made_yet(lazy: nn.Module) -> None:
    model = nn.Sequential(lazy, nn.Linear(8, 2)).eval()
    with pytest.raises(InputError, match=r"0\.weight, .*: no shape before the first forward pass"):
        describe(model)
    model(torch.zeros(3, 8))
    assert describe(model).total == sum(parameter.numel() for parameter in model.parameters())


def test_describe_bert_base_as_published() -> None:
    """FACTS: 109,482,240 parameters, and the shares of its components."""
    description = modules_of_checkpoint({"model_type": "bert"})
    assert description.total == 109_482_240
    shares = {one.name: one.share for one in description.components}
    assert shares["embeddings"] == pytest.approx(0.21772649152958506, abs=1e-15)
    assert shares["encoder"] == pytest.approx(0.776879099295009, abs=1e-15)
    assert "0-11: 12 x BertLayer  7,087,872" in str(description)


def test_describe_anything_and_nothing_else() -> None:
    description = describe(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 4)))
    assert [node.repeat for node in description.tree.children] == [2, 1, 1]
    with pytest.raises(InputError, match=r"expected an nn\.Module, got str"):
        describe("BertModel")
    for odd in ("NoSuchModel", "logging", 5):
        with pytest.raises(InputError, match=str(odd)):
            modules_of_checkpoint({"architectures": [odd]})
    with pytest.raises(UnsupportedError, match=r"transformers .* raised: The hidden size[\s\S]*BertModel: config.json"):
        modules_of_checkpoint({"model_type": "bert", "hidden_size": 30, "num_attention_heads": 4})


def test_modules_without_transformers_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else find(name))
    with pytest.raises(MissingExtraError, match=re.escape(install("torch"))):
        modules_of_checkpoint({"model_type": "bert"})


def test_outputs_are_kept_where_they_are_small() -> None:
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**TEXT, num_labels=3)).eval()
    output, captured = passed(model, torch.tensor([[4, 5, 6]]))
    np.testing.assert_array_equal(captured.trace.outputs["logits"].array, output.logits[0].detach())
    model = Family("LlamaForCausalLM", DECODER, config="LlamaConfig").build()
    assert "logits" not in captured_of(model, torch.tensor([[4, 5, 6]])).trace.outputs


def test_the_example() -> None:
    path = Path(__file__).parents[2] / "examples" / "classifier.py"
    spec = importlib.util.spec_from_file_location("classifier", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model, vocabulary = example.train(steps=25)
    found, author = example.look(model, vocabulary, "The whale and the sea.")
    assert author == "Melville"
    assert found.tokens == ("[START]", "the", "whale", "and", "the", "sea", ".")
    assert found.verify().agrees
    assert "whale" in example.picture(found, 2, 0)


def test_ids_in_training_mode_are_not_verified_if_two_passes_differ() -> None:
    """Random numbers are drawn alike in each pass, but what a model counts itself goes on."""

    def forward(self: Any, input_ids: torch.Tensor) -> Any:
        self.passes += 1
        return self.bert(inputs_embeds=self.bert.embeddings.word_embeddings(input_ids) * self.passes)

    model = own(forward, bert=BERT.build(), passes=0).train()
    with torch.no_grad(), capture(model) as captured, pytest.warns(NoteWarning, match="in training mode") as noted:
        model(BERT.inputs(padded=False)["input_ids"])
    assert {one.filename for one in noted} == {__file__}  # not torch's, which calls the hooks
    report = captured.traces[0].verify()
    assert report.agrees, report
    assert ("tokens", "the model is in training mode, and two forward passes differ") in report.skipped


# Tokens are named by whatever vocabulary the caller holds: the library's own, and dicts in both directions.


@pytest.fixture(scope="module")
def published() -> Any:
    """The bundled model and its tokenizer, as transformers loads them."""
    return BertModel.from_pretrained(BUNDLED).eval(), AutoTokenizer.from_pretrained(BUNDLED)


def tokens_by(model: Any, vocabulary: Any, ids: torch.Tensor) -> tuple[str, ...]:
    with headscope.capture(model, tokenizer=vocabulary) as found, torch.no_grad():
        model(ids)
    return found.trace.tokens


def inverted(vocabulary: Mapping[str, int]) -> dict[int, str]:
    return {number: token for token, number in vocabulary.items()}


WAYS: dict[str, Callable[[dict[str, int]], Any]] = {
    "token to id": lambda words: words,
    "an OrderedDict of numpy's integers": lambda words: OrderedDict((w, np.int64(n)) for w, n in words.items()),
    "id to token": inverted,
    "id to token in JSON": lambda words: json.loads(json.dumps(inverted(words))),
    "a list": lambda words: [token for token, _ in sorted(words.items(), key=lambda item: item[1])],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_vocabulary_in_either_direction_names_the_tokens(published: Any, way: str) -> None:
    model, tokenizer = published
    ids = tokenizer("The cat sat on 3 mats.", return_tensors="pt").input_ids
    assert tokens_by(model, WAYS[way](tokenizer.get_vocab()), ids) == tuple(tokenizer.convert_ids_to_tokens(ids[0]))


def test_an_id_that_a_vocabulary_lacks_keeps_its_number(published: Any) -> None:
    assert tokens_by(published[0], {"the": 6, "3": 7}, torch.tensor([[6, 7, 8]])) == ("the", "3", "8")
    assert tokens_by(published[0], {6: "the"}, torch.tensor([[6, 7]])) == ("the", "7")
    assert tokens_by(published[0], ["a"] * 7, torch.tensor([[6, 7]])) == ("a", "7")


def test_an_id_that_a_tokenizer_lacks_keeps_its_number(published: Any) -> None:
    """A table of words often has more rows than the tokenizer has tokens."""
    model, tokenizer = BY_NAME["BertModel"].build(), WordLevel({"a": 0, "[MASK]": 1})
    for words in (Tokenizer(tokenizer), PreTrainedTokenizerFast(tokenizer_object=Tokenizer(tokenizer))):
        assert tokens_by(model, words, torch.tensor([[0, 7]])) == ("a", "7")


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ({"the": 6, "a": 6}, "id 6 is that of two tokens, 'the' and 'a'"),
        ({"the": "le"}, "expected ids and tokens, got 'the': 'le'"),
        ({"the": 6, 7: "a"}, "expected ids and tokens, got 'the': 6"),
    ],
)
def test_what_is_no_vocabulary_is_refused(published: Any, vocabulary: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        headscope.capture(published[0], tokenizer=vocabulary)


# The rooms of headscope.live: each says what it is about, and shows an example that runs.


ROOMS = sorted(path.parent.name for path in Path(live.__file__).parent.glob("*/__init__.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_the_example_of_a_room_runs_and_its_files_are_named(room: str) -> None:
    """And what to read first, and who may call it."""
    module = import_module(f"headscope.live.{room}")
    outcome = doctest.testmod(module)
    assert outcome.attempted >= 3
    assert not outcome.failed
    text = module.__doc__ or ""
    folder = Path(live.__file__).parent / room
    names = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    assert {name for name in names - {"__init__"} if f"`{name}`" not in text} == set()
    assert "first" in text
    assert "call it" in text
