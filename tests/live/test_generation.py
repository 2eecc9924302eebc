"""Sequences that generate() extends pass by pass: the tokens of their keys, and the passes joined into one map."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from comparing import assert_weights, captured_of, eager_attentions, own, softmax_of, split
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache

import headscope as hs
from families import BART, BOTH, BY_NAME, CACHE, DECODER, GPT, T5, Family
from headscope.errors import InputError, UnsupportedError
from headscope.traces import Trace
from products import in_turn, pairwise

WINDOW = 4
NEW = 4
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {**SPECIAL, "vocab_size": 99}
SLIDING = {**DECODER, **SPECIAL, "sliding_window": WINDOW}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
MODELS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**GPT, **SPECIAL}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**DECODER, **SPECIAL}),
    "mistral": ("MistralForCausalLM", "MistralConfig", SLIDING),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**SLIDING, "num_hidden_layers": 3, "head_dim": 8, "layer_types": LAYERS},
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", {**BART, "forced_eos_token_id": None}),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "bloom": ("BloomForCausalLM", "BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4, **SMALL}),
    "falcon": ("FalconForCausalLM", "FalconConfig", {**DECODER, **SMALL, "new_decoder_architecture": False}),
}


def model_of(name: str, attention: str = "") -> Any:
    """A random model of this name, identical each time."""
    cls, config, settings = MODELS[name]
    return Family(cls, settings, config=config, factor=1.0).build(attention=attention)


NAMES = ["gpt2", "llama", "mistral", "gemma3"]


def prompts(rows: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts of a batch and their mask, padded on the left if there are several."""
    ids = torch.randint(5, 50, (rows, 7), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    for row, padding in enumerate((3, 0, 1)[: rows if rows > 1 else 0]):
        ids[row, :padding] = 0
        mask[row, :padding] = 0
    return ids, mask


def generated(
    model: Any, rows: int = 1, seed: int = 1, padding: str = "drop", **options: Any
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A capture of generate(), the final sequences, and their mask."""
    ids, mask = prompts(rows, seed)
    with hs.capture(model, padding=padding) as captured:
        final = model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW, **options
        )
    mask = torch.cat([mask, torch.ones(len(mask), final.shape[1] - mask.shape[1], dtype=mask.dtype)], 1)
    return captured, final, mask


def eager(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    """transformers' own eager attentions over whole sequences, without a cache."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "use_cache": False}
    return [torch.from_numpy(layer) for layer in eager_attentions(model, inputs)["self"]]


def agree_alone(traces: list[Trace], model: Any) -> None:
    """Compare traces of sequences with an eager run of their tokens, as one batch, and verify the first."""
    ids, mask = (torch.zeros(len(traces), traces[0].cut.sizes[1], dtype=torch.long) for _ in range(2))
    for trace in traces:
        ids[trace.row, trace.positions] = torch.tensor(trace.ids)
        mask[trace.row, trace.positions] = 1
    assert_weights(traces, eager(model, ids, mask), 2e-5)
    assert all(trace.verify(reference=trace.row == 0).agrees for trace in traces)


WAYS = {"dynamic": {}, "static": {"cache_implementation": "static"}, "no cache": {"use_cache": False}}
ONE = ("dynamic", "static", "no cache", "dynamic")
"""The ways of one sequence alone, of one model after another."""


@pytest.mark.parametrize(
    ("name", "way", "rows"),
    [(name, way, 3) for name in NAMES for way in WAYS] + [(name, way, 1) for name, way in zip(NAMES, ONE, strict=True)],
)
def test_the_passes_of_a_generation_are_one_causal_map(name: str, way: str, rows: int) -> None:
    """And the keys of each step are named, and looked at as a pass over the whole sequence does."""
    model = model_of(name)
    captured, final, mask = generated(model, rows, **WAYS[way])
    attentions = eager(model, final[:, :-1], mask[:, :-1])
    generations = captured.generations
    assert [trace.row for trace in generations] == list(range(rows))
    assert_weights(generations, attentions, 2e-5)
    for row, trace in enumerate(generations):
        seen = mask[row, :-1].bool()
        assert trace.ids == tuple(final[row, :-1][seen].tolist())
        assert trace.keys is trace.queries
        assert trace.positions.tolist() == torch.nonzero(seen).flatten().tolist()
        assert trace.verify(against=attentions).agrees
        report = trace.verify(reference=row == 0)  # the others were just compared
        more = ["tokens", "weights (eager)"] if row == 0 else []
        assert [check.name for check in report.checks] == ["row sums", "module output", *more]
        assert report.agrees, report
        assert all(record.mask.bias is None and record.mask.causal for record in trace.layers)
        assert name != "mistral" or {record.mask.window for record in trace.layers} == {(WINDOW - 1, None)}
    assert len(captured.forwards) == NEW
    for at, traces in enumerate(captured.forwards):
        for trace in traces:
            real = torch.nonzero(mask[trace.row]).flatten()[: int(mask[trace.row].sum()) - NEW + at]
            queries, keys = real[-len(trace.queries) :], real[-len(trace.keys) :]
            assert trace.keys.ids == tuple(final[trace.row, keys].tolist())
            assert trace.queries.ids == tuple(final[trace.row, queries].tolist())
            for layer in trace.numbers:
                cells = attentions[layer][trace.row][:, queries][:, :, keys]
                np.testing.assert_allclose(trace[layer].weights[:], cells, atol=2e-5)
    if rows == 1:
        assert captured.generation.ids == generations[0].ids
    else:
        with pytest.raises(InputError, match="3 sequences were generated"):
            captured.generation
    with pytest.raises(InputError) as error:
        captured.trace
    assert "captured.generation, the prompt and all steps" in str(error.value.advice)


@pytest.mark.parametrize(("name", "way"), in_turn(NAMES, tuple(WAYS)))
def test_padding_is_kept_in_every_pass_of_a_generation(name: str, way: str) -> None:
    """In each pass and in the whole map: rows of real tokens as transformers computes them, none left out."""
    model = model_of(name)
    captured, final, mask = generated(model, 3, padding="keep", **WAYS[way])
    attentions = eager(model, final[:, :-1], mask[:, :-1])
    for row, trace in enumerate(captured.generations):
        assert (trace.left_out.size, trace.ids) == (0, tuple(final[row, :-1].tolist()))
        real = mask[row, :-1].bool().numpy()
        for layer, theirs in enumerate(attentions):
            found = np.asarray(trace[layer].weights)[:, real]
            np.testing.assert_allclose(found, theirs[row].numpy()[:, real], atol=2e-5)
    for traces in captured.forwards:
        for trace in traces:
            assert not trace.left_out.size
            assert len(trace.keys) == trace.cut.sizes[1]
    model.set_attn_implementation("eager")  # the second run is still that of the attention that ran
    assert all(trace.verify(reference=trace.row == 0).agrees for trace in captured.generations)


def test_a_pass_over_nothing_but_padding_is_no_step_that_replaces_others() -> None:
    model, (ids, _) = model_of("llama"), prompts(2)
    mask, cache = torch.ones_like(ids), DynamicCache(config=model.config)
    mask[1, 4:] = 0
    with torch.no_grad(), hs.capture(model) as captured:
        for start, stop in ((0, 3), (3, 5), (5, 7)):
            model(ids[:, start:stop], attention_mask=mask[:, :stop], **{CACHE: cache})
    assert captured.forwards[1][1].ids == (int(ids[1, 3]),)
    assert [trace.row for trace in captured.forwards[2]] == [0]
    with pytest.raises(UnsupportedError, match="row 1: a pass reads nothing but padding"):
        captured.generations
    with torch.no_grad(), hs.capture(model, padding="keep") as captured:
        model(ids[:, :5], attention_mask=mask[:, :5], **{CACHE: (cache := DynamicCache(config=model.config))})
        model(ids[:, 5:], attention_mask=mask, **{CACHE: cache})
    assert [trace.positions.tolist() for trace in captured.forwards[1]] == [[0, 1]] * 2
    assert [trace.key_positions.tolist() for trace in captured.forwards[1]] == [[*range(7)]] * 2


@pytest.mark.parametrize(("name", "attention", "size"), pairwise(NAMES, ("sdpa", "eager"), (2, 3)))
def test_a_prompt_that_is_read_in_parts(name: str, attention: str, size: int) -> None:
    """Its first parts may be nothing but padding, in some rows."""
    model = model_of(name, attention)
    captured, final, mask = generated(model, 3, prefill_chunk_size=size)
    attentions = eager(model, final[:, :-1], mask[:, :-1])
    generations = captured.generations
    assert [trace.row for trace in generations] == [0, 1, 2]
    assert_weights(generations, attentions, 2e-5)
    for row, trace in enumerate(generations):
        seen = mask[row, :-1].bool()
        assert trace.ids == tuple(final[row, :-1][seen].tolist())
        assert trace.positions.tolist() == torch.nonzero(seen).flatten().tolist()
        assert trace.verify(reference=row == 0).agrees
    assert all(trace.verify(reference=False).agrees for trace in captured.forwards[0])


def test_a_part_of_a_prompt_that_looks_at_unused_slots() -> None:
    """Under eager attention a row that is all padding does; under sdpa it looks at nothing."""
    model = model_of("llama")
    captured, final, mask = generated(model, 3, prefill_chunk_size=2, **WAYS["static"])
    assert [trace.ids for trace in captured.generations] == [
        tuple(ids[real].tolist()) for ids, real in zip(final[:, :-1], mask[:, :-1].bool(), strict=True)
    ]
    captured, *_ = generated(model, 3, padding="keep", prefill_chunk_size=2)
    assert [len(trace) for trace in captured.generations] == [final.shape[1] - 1] * 3
    model.set_attn_implementation("eager")
    with pytest.raises(UnsupportedError, match="looks at all slots of a static cache alike"):
        generated(model, 3, prefill_chunk_size=2, **WAYS["static"])


@pytest.mark.parametrize("name", ["bloom", "falcon"])
@pytest.mark.parametrize("rows", [1, 3])
def test_classes_with_readers_leave_unused_slots_out(name: str, rows: int) -> None:
    model = model_of(name)
    (expected, *_), (captured, *_) = (generated(model, rows, **WAYS[way]) for way in ("dynamic", "static"))
    for ours, theirs in zip(captured.forwards[0], expected.forwards[0], strict=True):
        assert ours.positions.tolist() == ours.key_positions.tolist() == theirs.positions.tolist()
        assert ours.keys.ids == ours.queries.ids == theirs.ids
        assert all(record.mask.causal for record in ours.layers)
    for ours, theirs in zip(captured.generations, expected.generations, strict=True):
        assert ours.ids == theirs.ids
        np.testing.assert_allclose(ours.weights[:], theirs.weights[:], atol=2e-5)
        assert ours.verify(reference=False).agrees


@pytest.mark.parametrize("name", NAMES)
def test_padding_of_a_static_cache_under_eager_attention(name: str) -> None:
    """Its mask hides all keys from padding alike, so that padding sees unused slots; what is kept does not."""
    model = model_of(name, "eager")
    (expected, *_), (captured, *_) = (generated(model, 3, **WAYS[way]) for way in ("dynamic", "static"))
    for ours, theirs in zip(captured.forwards[0], expected.forwards[0], strict=True):
        assert (ours.ids, ours.numbers) == (theirs.ids, theirs.numbers)
        assert ours.positions.tolist() == ours.key_positions.tolist() == theirs.positions.tolist()
        for layer in ours.numbers:
            np.testing.assert_allclose(ours[layer].weights[:], theirs[layer].weights[:], atol=2e-5)
    assert [trace.ids for trace in captured.generations] == [trace.ids for trace in expected.generations]
    assert all(trace.verify(reference=False).agrees for trace in captured.generations)
    if name != "mistral":  # none of its caches has unused slots
        with pytest.raises(UnsupportedError, match="unused ones, too"):
            generated(model, 3, padding="keep", **WAYS["static"])


@pytest.mark.parametrize(("name", "rows"), in_turn(NAMES, (1, 3)))
def test_beams_that_change_places_are_followed(name: str, rows: int) -> None:
    """Each final beam is a separate sequence, compared with an eager run of its tokens."""
    model = model_of(name)
    captured, _, _ = generated(model, rows, num_beams=3)
    assert [trace.row for trace in captured.generations] == list(range(3 * rows))
    agree_alone(captured.generations, model)


def test_steps_that_are_undone_are_followed() -> None:
    """Prompt lookup guesses several tokens at once; those that the model rejects are removed from the cache."""
    model = model_of("gpt2")
    ids = prompts(1)[0].repeat(1, 2)
    with hs.capture(model) as captured:
        model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, prompt_lookup_num_tokens=3
        )
    assert any(len(trace.queries) > 1 for trace in captured.traces[1:])
    agree_alone(captured.generations, model)


@pytest.mark.parametrize("name", NAMES)
def test_steps_that_are_undone_at_the_end_are_followed(name: str) -> None:
    """Two of three guesses are rejected, and the sequence ends one token later."""
    model, cache, ids = model_of(name), DynamicCache(), prompts(1)[0]
    with torch.no_grad(), hs.capture(model) as captured:
        for tokens, undone in ((ids, 0), (ids[:, :3], 2), (ids[:, 3:4], 0)):
            model(tokens, **{CACHE: cache}, use_cache=True)
            if undone:
                cache.crop(-undone)
    trace = captured.generation
    assert trace.ids == (*ids[0].tolist(), int(ids[0, 0]), int(ids[0, 3]))
    agree_alone([trace], model)


def test_sequences_that_take_turns_are_told_apart() -> None:
    """Two texts in one block, whose caches are extended alternately: each step's keys are those of its own."""
    model, texts, caches = model_of("gpt2"), [prompts(1, seed)[0] for seed in (1, 2)], [DynamicCache(), DynamicCache()]
    with torch.no_grad(), hs.capture(model) as captured:
        for step in (texts, [torch.tensor([[7]])] * 2, [torch.tensor([[8]])] * 2):
            for ids, cache in zip(step, caches, strict=True):
                model(ids, **{CACHE: cache}, use_cache=True)
    expected = [(*ids[0].tolist(), 7, 8) for ids in texts]
    assert [trace.ids for trace in captured.generations] == expected
    assert [trace.keys.ids for trace in captured.traces[4:]] == expected


def test_a_cache_from_before_the_block() -> None:
    model, cache = model_of("gpt2"), DynamicCache()
    with torch.no_grad():
        model(prompts(1)[0], **{CACHE: cache}, use_cache=True)
        with hs.capture(model) as captured:
            for token in (7, 8):
                model(torch.tensor([[token]]), **{CACHE: cache}, use_cache=True)
    last = captured.traces[-1]
    assert last.keys.ids == (*(-1,) * 7, 7, 8)
    assert last.keys.tokens[:2] == ("[0]", "[1]")
    with pytest.raises(UnsupportedError, match="the cache held 7 tokens"):
        captured.generation


def test_a_decoder_that_is_given_all_ids_and_reads_the_last() -> None:
    """As in x-transformers: its cache, not its arguments, tells that the queries are the last of the keys."""

    def forward(self: Any, ids: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        x = self.embed(ids)[:, -1:] if cache else self.embed(ids)
        q, *new = map(split, self.qkv(x).chunk(3, -1))
        k, v = (torch.cat(both, 2) for both in zip(cache, new, strict=True)) if cache else new
        contexts = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=not cache)
        cache[:] = k, v
        return self.out(contexts.transpose(1, 2).flatten(2))

    model = own(forward, embed=nn.Embedding(99, 32), qkv=nn.Linear(32, 96), out=nn.Linear(32, 32))
    ids, cache = torch.randint(99, (2, 7)), list[torch.Tensor]()
    with torch.no_grad(), hs.capture(model) as captured:
        for size in (4, 5, 6, 7):
            model(ids[:, :size], cache)
    q, k, _ = map(split, model.qkv(model.embed(ids)).chunk(3, -1))
    weights = softmax_of(q, k, torch.full((7, 7), -torch.inf).triu(1))
    assert [trace.ids for trace in captured.generations] == list(map(tuple, ids.tolist()))
    assert_weights(captured.generations, [weights])
    assert captured.traces[-1].keys.ids == tuple(ids[1].tolist())


def test_a_window_in_a_cache_that_fits_several_sequences() -> None:
    """The keys of a single layer depend on a token and its place alone: two texts have the same last ones."""
    settings = {**SLIDING, "num_hidden_layers": 1}
    model = Family("MistralForCausalLM", settings, config="MistralConfig", factor=1.0).build()
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [12, 13, 7, 8, 9, 10, 11]])
    with hs.capture(model) as captured:
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=2, min_new_tokens=2)
    with pytest.raises(UnsupportedError, match="the window of tokens in its cache of self fits several sequences"):
        captured.generations


def test_no_sequence_was_generated() -> None:
    captured = captured_of(BY_NAME["BertModel"].build(), prompts(1)[0])
    assert captured.generations == []
    with pytest.raises(InputError, match="no sequence was generated"):
        captured.generation


def test_steps_share_their_keys_and_values() -> None:
    """Memory is linear: keys and values are stored once for all passes that saw them, and are read-only."""
    captured, final, _ = generated(model_of("gpt2"))
    traces = [*captured.traces, captured.generation]
    for layer in range(2):
        last = traces[-1].layers[layer]
        assert last.k.shape[1] == final.shape[1] - 1
        for trace in traces[:-1]:
            record = trace.layers[layer]
            assert np.shares_memory(record.k, last.k)
            assert np.shares_memory(record.v, last.v)
            with pytest.raises(ValueError, match="read-only"):
                record.k[:] = 0


@pytest.mark.parametrize(("name", "beams"), in_turn(("bart", "t5"), (1, 2)))
def test_encoder_and_decoder(name: str, beams: int) -> None:
    model = model_of(name)
    ids, mask = prompts(3)
    ids, mask = ids.flip(1), mask.flip(1)  # encoders are padded on the right
    with hs.capture(model) as captured:
        model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW, num_beams=beams
        )
    generations = captured.generations
    assert [(trace.row, trace.stack) for trace in generations] == [
        (row, stack) for row in range(3 * beams) for stack in ("decoder", "cross")
    ]
    model.set_attn_implementation("eager")
    for trace in generations:
        row = trace.row // beams
        inputs = {"input_ids": ids[row : row + 1], "attention_mask": mask[row : row + 1]}
        inputs |= {"decoder_input_ids": torch.tensor([trace.ids]), "use_cache": False}
        for layer, expected in enumerate(eager_attentions(model, inputs, BOTH)[trace.stack]):
            cells = expected[0][..., trace.key_positions]
            np.testing.assert_allclose(np.asarray(trace[layer].weights), cells, atol=2e-5)
        if trace.stack == "cross":
            assert trace.keys.ids == tuple(ids[row][mask[row].bool()].tolist())
        assert trace.verify(reference=trace.row == 0).agrees
    for trace in captured["cross"]:
        assert -1 not in trace.keys.ids


def test_a_cross_attention_whose_mask_changes_from_step_to_step() -> None:
    """Hidden keys between others stay. No rule is common to all steps: each row of the map is that of its step."""
    model, cache, memory = (
        BY_NAME["BartModel"].build(),
        EncoderDecoderCache(DynamicCache(), DynamicCache()),
        prompts(1)[0],
    )
    mask = torch.ones_like(memory)
    with torch.no_grad(), hs.capture(model) as captured:
        encoded = model.encoder(memory).last_hidden_state
        for tokens, hidden in (([5, 6, 7], 2), ([8], 4), ([9, 10], 2)):
            mask[:] = torch.arange(7) != hidden
            given = {"encoder_hidden_states": encoded, "encoder_attention_mask": mask.clone(), CACHE: cache}
            model.decoder(torch.tensor([tokens]), **given, use_cache=True)
    (whole,) = (trace for trace in captured.generations if trace.stack == "cross")
    assert whole.ids == (5, 6, 7, 8, 9, 10)
    assert [np.flatnonzero(row == 0).tolist() for row in whole[1, 0].weights[:]] == [[2], [2], [2], [4], [2], [2]]
    steps = [[trace[layer].weights[...] for trace in captured["cross"]] for layer in range(2)]
    assert_weights([whole], [[np.concatenate(layer, 1)] for layer in steps])
    assert whole.verify(reference=False).agrees
