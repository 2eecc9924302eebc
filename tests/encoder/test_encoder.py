"""The NumPy encoder against transformers' eager forward and fp64, its parts against second derivations; products."""

from __future__ import annotations

import copy
import json
import os
import threading
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from threadpoolctl import threadpool_info
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

import headscope as hs
from headscope.anatomy import Disentangled
from headscope.attention.scores import Mask, attend
from headscope.encoder import Input, attending, forward
from headscope.encoder.attending import attend_everywhere, attend_nearby
from headscope.encoder.distances import deberta_buckets, default_frequencies, distances_of, t5_buckets
from headscope.encoder.products import FEW_TEXTS, FEW_TOKENS, as_stored, block_rows, empty_aligned, is_aligned
from headscope.encoder.role_weights import SCRATCH_NUMBERS
from headscope.errors import ConfigError, HeadscopeError, InputError, UnsupportedError
from headscope.runs.engine import Edit, NumpyRunner
from headscope.traces import LayerRecord
from making import change_json
from peak import Peak
from random_models import FAMILIES, WITH_SEGMENTS, assert_same, ids, made, run

SUFFIXES = ("Model", *(f"For{task}" for task in ("SequenceClassification", "TokenClassification", "QuestionAnswering")))
"""Masked LMs of every family are compared with fp64, below."""
CLASSES = [(stem, suffix) for stem in FAMILIES for suffix in SUFFIXES if hasattr(transformers, stem + suffix)]
CLASSES += [("Bert", "ForNextSentencePrediction")]
CLASSES += [(stem, "ForPreTraining") for stem in ("Bert", "Electra", "Albert", "Ernie")]
LIMIT = 2e-5


@pytest.mark.parametrize(("stem", "suffix"), CLASSES)
def test_every_family_and_class_agrees_with_transformers(tmp_path: Path, stem: str, suffix: str) -> None:
    checkpoint = made(tmp_path, stem, suffix)
    model = hs.open(tmp_path)
    padding = checkpoint.config.get("pad_token_id") or 0
    rows = [list(ids(20)), list(ids(7, 1)), list(ids(1, 2))]
    typed = stem in WITH_SEGMENTS
    segments = [[0] * 9 + [1] * 11, [0] * 7, [1]] if typed else None
    outputs = run(checkpoint.module, rows, segments, padding)
    for index, row in enumerate(rows):
        trace = model.trace(ids=row, segments=segments[index] if segments else None, hidden_states=True)
        assert_same(trace, outputs, index)
    if suffix == "ForQuestionAnswering":
        assert {"start_logits", "end_logits"} <= set(trace.outputs)


DTYPES = (torch.float16, torch.bfloat16, torch.float64)


@pytest.mark.parametrize(
    ("stem", "dtype"), [*(("Bert", dtype) for dtype in DTYPES), *zip([*FAMILIES][1:], cycle(DTYPES), strict=False)]
)
def test_narrow_and_wide_checkpoints_compute_in_fp32(tmp_path: Path, stem: str, dtype: torch.dtype) -> None:
    checkpoint = made(tmp_path, stem, "ForMaskedLM", dtype=dtype)
    outputs = run(checkpoint.module, [list(ids(12))])
    trace = hs.open(tmp_path).trace(ids=ids(12), hidden_states=True)
    assert trace.layers[0].q.dtype == np.float32
    assert_same(trace, outputs)


ACTIVATIONS = ("gelu", "gelu_new", "relu", "swish", "silu")


@pytest.mark.parametrize(
    ("stem", "field", "value"),
    [
        *(("Bert", "hidden_act", name) for name in ACTIVATIONS),
        *(("DistilBert", "activation", name) for name in ACTIVATIONS),
        *((stem, "tie_word_embeddings", False) for stem in ("Bert", "Roberta", "DistilBert", "Electra")),
    ],
)
def test_activations_and_untied_weights_are_what_the_config_says(
    tmp_path: Path, stem: str, field: str, value: object
) -> None:
    checkpoint = made(tmp_path, stem, "ForMaskedLM", **{field: value})
    trace = hs.open(tmp_path).trace(ids=ids(12), hidden_states=True)
    assert "logits" in trace.outputs
    assert_same(trace, run(checkpoint.module, [list(ids(12))]))


@pytest.mark.parametrize(
    ("names", "labels"), [({"2": "c", "0": "a", "1": "b"}, ("a", "b", "c")), ({"1": "a", "2": "b", "3": "c"}, None)]
)
def test_labels_are_named_by_their_index_or_not_at_all(tmp_path: Path, names: dict[str, str], labels: object) -> None:
    made(tmp_path, "Bert", "ForSequenceClassification")
    change_json(tmp_path / "config.json", id2label=names)
    assert hs.open(tmp_path).trace(ids=[5, 6, 7]).outputs["logits"].labels == labels


def test_padding_ids_inside_a_roberta_text_keep_the_padding_position(tmp_path: Path) -> None:
    checkpoint = made(tmp_path, "Roberta")
    row = [0, 5, 1, 1, 9, 2]
    with torch.inference_mode():
        theirs = checkpoint.module(torch.tensor([row])).last_hidden_state[0].numpy()
    np.testing.assert_allclose(hs.open(tmp_path).trace(ids=row).outputs["last_hidden_state"], theirs, atol=LIMIT)


@pytest.mark.parametrize("stem", ["Bert", "DistilBert", "Roberta"])
def test_a_silenced_head_writes_nothing(tmp_path: Path, stem: str) -> None:
    """Silencing is the same as zeroing the head's columns of the stored W_O."""
    checkpoint = made(tmp_path, stem)
    model = hs.open(tmp_path)
    trace = model.trace(ids=ids(9), ablate={(1, 2), (0, -1)}, hidden_states=True)
    assert trace.ablated == {(1, 2), (0, 3)}
    with torch.no_grad():
        for layer, head in trace.ablated:
            name = model.anatomy.parameter("layer.attention_output.weight", layer).name
            dict(checkpoint.module.named_parameters())[name][:, head * 8 : head * 8 + 8] = 0
    assert_same(trace, run(checkpoint.module, [list(ids(9))]))
    assert not trace[1, 2].output.any()
    assert trace[1, 2].silenced
    assert not trace[1, 1].silenced
    untouched = model.trace(ids=ids(9)).outputs["last_hidden_state"].array
    assert np.abs(untouched - trace.outputs["last_hidden_state"].array).max() > 1e-3


def test_a_text_beyond_the_position_table_is_refused_with_the_numbers(tmp_path: Path) -> None:
    made(tmp_path / "bert", "Bert")
    made(tmp_path / "roberta", "Roberta")
    for folder, longest in (("bert", 64), ("roberta", 64)):
        model = hs.open(tmp_path / folder)
        assert len(model.trace(ids=[5] * longest)) == longest
        with pytest.raises(InputError, match=f"{longest + 1} tokens, the model takes {longest} at most") as refused:
            model.trace(ids=[5] * (longest + 1))
        assert f"max_length={longest}" in (refused.value.advice or "")
        assert len(model.trace(ids=[5] * 70, max_length=longest)) == longest


def beyond_the_trace(model: hs.Model, size: int) -> tuple[int, int]:
    """The bytes that a pass over so many tokens takes at most, less those of its trace; and these."""
    model.trace(ids=[5] * 8)
    with Peak() as peak:
        trace = model.trace(ids=[5 + at % 50 for at in range(size)])
    return peak.bytes - trace.nbytes, trace.nbytes


def test_memory_is_linear_in_the_text(tmp_path: Path) -> None:
    """Beyond the trace itself, a forward pass of twice the text takes about twice the memory, never four times."""
    made(tmp_path, "Bert", max_position_embeddings=2048, num_hidden_layers=1)
    model = hs.open(tmp_path)
    extra, traces = zip(*(beyond_the_trace(model, size) for size in (512, 1024, 2048)), strict=True)
    assert traces == tuple(size * (3 * 32 + 4) * 4 for size in (512, 1024, 2048))
    assert extra[2] < 2048 * 2048 * 4 / 2, "a whole map of one head is twice as large as this"
    assert extra[2] / extra[1] < 2.5


TOKENS = 1500


def test_mpnets_buckets_are_transformers() -> None:
    expected = MPNetEncoder.relative_position_bucket(torch.from_numpy(distances_of(TOKENS)))
    np.testing.assert_array_equal(t5_buckets(TOKENS), expected.numpy())


@pytest.mark.parametrize(("buckets", "longest"), [(256, 512), (8, 64), (32, 1024), (-1, 512), (-1, 40)])
def test_debertas_buckets_are_transformers(buckets: int, longest: int) -> None:
    span = buckets if buckets > 0 else longest
    settings = Disentangled(("c2p",), True, True, span, longest, buckets > 0)
    text = torch.empty(1, TOKENS, 1)
    relative = build_relative_position(text, text, bucket_size=buckets, max_position=longest)[0]
    rows = (relative + span).clamp(0, 2 * span - 1).numpy()
    ours = deberta_buckets(TOKENS, settings)
    i, j = np.indices(rows.shape)
    np.testing.assert_array_equal(ours[j - i + TOKENS - 1], rows)


@pytest.mark.parametrize("base", [1000.0, 10000.0, 160000.0, 250000.0])
@pytest.mark.parametrize("d_head", [8, 32, 64, 80, 128])
def test_frequencies_are_torchs_to_a_unit_in_the_last_place(base: float, d_head: int) -> None:
    ours = default_frequencies(base, d_head)
    theirs = 1.0 / (base ** (torch.arange(0, d_head, 2, dtype=torch.float) / d_head))
    np.testing.assert_array_max_ulp(ours, theirs.numpy(), 2)


@pytest.mark.parametrize("window", [0, 3, 16, 200])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_local_attention_is_masked_attention(window: int, kv_heads: int) -> None:
    generator = np.random.default_rng(window)
    q = generator.normal(size=(4, 100, 8)).astype(np.float32)
    k, v = generator.normal(size=(2, kv_heads, 100, 8)).astype(np.float32)
    mask = Mask(window=(window, window))
    whole, whole_lse = attend(q, k, v, scale=0.3, mask=mask)
    near, lse = attend_nearby(q, k, v, scale=0.3, mask=mask, places=np.arange(100))
    np.testing.assert_allclose(near, whole, atol=2e-6)
    np.testing.assert_allclose(lse, whole_lse, atol=2e-6)
    some = np.array([3, 40, 99])
    near, lse = attend_nearby(q[:, some], k, v, scale=0.3, mask=mask, places=some)
    np.testing.assert_allclose(near, whole[:, some], atol=2e-6)


def test_a_long_text_of_modernbert_is_transformers(tmp_path: Path) -> None:
    """700 tokens, with windows of 4 on each side: far more than a window, and several blocks of rows."""
    checkpoint = made(tmp_path, "ModernBert", "ForMaskedLM", max_position_embeddings=1024)
    row = list(ids(700))
    outputs = run(checkpoint.module, [row])
    trace = hs.open(tmp_path).trace(ids=row, hidden_states=True)
    assert_same(trace, outputs, limit=5e-5)
    for layer in trace.numbers:
        assert trace[layer].mask.window == (None if layer in (0, 3) else (4, 4))


def test_local_layers_take_memory_linear_in_the_text(tmp_path: Path) -> None:
    """8,192 tokens, beyond the trace itself: far less than one map of a head, 268 MB, and linear."""
    made(tmp_path, "ModernBert", max_position_embeddings=8192, layer_types=["sliding_attention"] * 4)
    extra = [beyond_the_trace(hs.open(tmp_path), size)[0] for size in (2048, 8192)]
    assert extra[1] < 4.5 * extra[0]
    assert extra[1] < 8192 * 8192 * 4 / 8


def fresh(_purpose: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, np.nan, dtype=np.float32)


@pytest.mark.parametrize(("out", "into"), [(768, 768), (3072, 768), (768, 3072), (1152, 768), (1024, 4096), (50, 40)])
@pytest.mark.parametrize("tokens", [1, 12, 32])
def test_blocks_divide_a_weight_and_are_small_enough_for_blas(out: int, into: int, tokens: int) -> None:
    rows = block_rows(out, into, tokens)
    assert out % 4 != 0 if rows == 0 else out % rows == 0
    assert rows * tokens <= 1200
    assert rows * tokens * into <= 10**6


@pytest.mark.parametrize("shape", [(1,), (3, 5), (12, 768)])
def test_memory_begins_at_a_cache_line(shape: tuple[int, ...]) -> None:
    arrays = [empty_aligned(shape) for _ in range(5)]
    assert all(is_aligned(array) and array.shape == shape and array.flags.c_contiguous for array in arrays)
    assert not is_aligned(np.frombuffer(bytes(256), np.uint8)[1:65])


@pytest.mark.parametrize("family", ["Bert", "EuroBert"])
def test_the_buffer_of_a_text_is_as_large_as_its_queries_keys_and_values(tmp_path: Path, family: str) -> None:
    made(tmp_path, family)
    layers = hs.open(tmp_path).trace(ids=ids(9)).layers
    ends = [array.__array_interface__["data"][0] + array.nbytes for layer in layers for array in layer_arrays(layer)]
    starts = [array.__array_interface__["data"][0] for layer in layers for array in layer_arrays(layer)]
    assert starts[1:] == ends[:-1]


def layer_arrays(layer: LayerRecord) -> tuple[np.ndarray, ...]:
    return layer.q, layer.k, layer.v


def test_a_weight_that_begins_at_a_cache_line_needs_no_copy_as_stored() -> None:
    weight = empty_aligned((8, 16))
    assert as_stored({}, "a", [weight]) is weight


@pytest.mark.parametrize("family", ["Bert", "Albert", "ModernBert", "EuroBert", "DebertaV2"])
@pytest.mark.parametrize("tokens", [9, FEW_TOKENS + 9])
def test_many_texts_are_as_each(tmp_path: Path, family: str, tokens: int) -> None:
    """A list of texts multiplies by copies, a text by weights as stored."""
    made(tmp_path, family)
    model = hs.open(tmp_path)
    assert model.encoder.copies is None
    many, alone = model.encoder.for_many_texts, model.encoder
    sequence = Input(np.array(ids(tokens)), np.zeros(tokens, dtype=np.int64))
    (with_copies,), (alone_states,) = (encoder.forward([sequence], hidden_states=True) for encoder in (many, alone))
    assert many.copies
    for first, last in zip(alone_states.hidden, with_copies.hidden, strict=True):
        np.testing.assert_allclose(last, first, atol=2e-5)


def test_copies_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers' matrices in both orders, or nothing: what is copied doesn't depend on what was computed before."""
    built = made(tmp_path, "Bert").module
    matrices = [parameter for name, parameter in built.named_parameters() if ".layer." in name and parameter.ndim == 2]
    size = 2 * 4 * sum(parameter.numel() for parameter in matrices)
    monkeypatch.setattr(forward, "COPIED_BYTES", size)
    assert hs.open(tmp_path).encoder.for_many_texts.copies is not None
    monkeypatch.setattr(forward, "COPIED_BYTES", size - 1)
    assert hs.open(tmp_path).encoder.for_many_texts.copies is None


@pytest.mark.parametrize("text", ["The cat sat.", 9 * "The cat sat on the mat. "])
def test_the_same_call_gives_the_same_bytes(text: str) -> None:
    """However often, whatever was computed in between, and with the model opened anew; one text, and a list of them."""
    used = hs.open()
    first, *later = (used.trace(text) for _ in range(5))
    many = [text] * (FEW_TEXTS + 2)
    once, *again = (list(map(bytes_of, model.trace(many))) for model in (used, used, hs.open()))
    assert all(bytes_of(trace) == bytes_of(first) for trace in (*later, hs.open().trace(text)))
    assert all(traces == once for traces in again)


def bytes_of(trace: hs.Trace) -> list[bytes]:
    """All numbers of the layers, to the bit."""
    return [array.tobytes() for layer in trace.layers for array in (*layer_arrays(layer), layer.lse)]


@pytest.mark.parametrize("cells", [300, 5000, 1 << 17])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("size", [0.3, 1.0, 12.0, 300.0])
def test_attention_is_torchs(monkeypatch: pytest.MonkeyPatch, cells: int, kv_heads: int, size: float) -> None:
    """Also with scores beyond exp's range in fp32, where the highest score of each row is subtracted."""
    monkeypatch.setattr(attending, "TILE_CELLS", cells)
    generator = np.random.default_rng(int(size))
    q = (size * generator.normal(size=(6, 33, 8))).astype(np.float32)
    k, v = generator.normal(size=(2, kv_heads, 40, 8)).astype(np.float32)
    context, lse = attend_everywhere(q, k, v, scale=0.35, scratch=fresh)
    exact = [torch.from_numpy(x.astype(np.float64)) for x in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*exact, scale=0.35, enable_gqa=True)
    keys = exact[1].repeat_interleave(6 // kv_heads, 0)
    sums = torch.logsumexp(0.35 * exact[0] @ keys.transpose(1, 2), -1)
    np.testing.assert_allclose(context, expected.numpy(), atol=3e-6 * max(1, size))
    np.testing.assert_allclose(lse, sums.numpy(), atol=1e-6, rtol=1e-6)


def test_scratch_memory_is_each_threads_own_and_bounded(tmp_path: Path) -> None:
    made(tmp_path, "Bert")
    encoder = hs.open(tmp_path).encoder
    first = encoder.scratch("tile", (4, 5))
    assert np.shares_memory(first, encoder.scratch("tile", (10,)))
    assert not np.shares_memory(first, encoder.scratch("scaled", (10,)))
    elsewhere: list[np.ndarray] = []
    worker = threading.Thread(target=lambda: elsewhere.append(encoder.scratch("tile", (4, 5))))
    worker.start()
    worker.join()
    assert not np.shares_memory(first, elsewhere[0])
    large = encoder.scratch("tile", (SCRATCH_NUMBERS + 1,))
    assert not np.shares_memory(large, encoder.scratch("tile", (SCRATCH_NUMBERS + 1,)))


def test_a_trace_holds_no_scratch_memory(tmp_path: Path) -> None:
    """A second text leaves the first one's trace as it is."""
    made(tmp_path, "NomicBert", "ForMaskedLM")
    model = hs.open(tmp_path)
    trace = model.trace(ids=ids(30), hidden_states=True)
    copies = [state.array.copy() for state in trace.hidden_states]
    weights = trace[1].weights[:].copy()
    model.trace(ids=ids(30, 1), hidden_states=True)
    for state, kept in zip(trace.hidden_states, copies, strict=True):
        np.testing.assert_array_equal(state.array, kept)
    np.testing.assert_array_equal(trace[1].weights[:], weights)


@pytest.mark.parametrize(
    ("settings", "threads"), [({"OMP_NUM_THREADS": "1"}, 1), ({"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "1"}, 2)]
)
def test_threads_are_blas_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], threads: int
) -> None:
    made(tmp_path, "Bert")
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    pool = hs.open(tmp_path).encoder.threads
    assert (1 if pool is None else pool._max_workers) == threads


def test_the_tests_multiply_in_as_many_threads_as_conftest_says() -> None:
    """If NumPy is imported before, processes wait for one another's threads, and take three times as long."""
    numbers = {found["num_threads"] for found in threadpool_info() if found["internal_api"] == "openblas"}
    assert numbers == {min(int(os.environ["OPENBLAS_NUM_THREADS"]), os.cpu_count() or 1)}


# Every family's forward pass: distances from fp64, half precision, verification, effects.


SHAPES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "Albert": [("two groups", {"num_hidden_groups": 2, "num_hidden_layers": 5}), ("inner", {"inner_group_num": 2})],
    "Ernie": [("no task", {"use_task_id": False})],
    "RoFormer": [("values", {"rotary_value": True}), ("wide", {"embedding_size": 32})],
    "ModernBert": [
        ("biases", dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True)),
        ("no decoder bias", {"decoder_bias": False}),
        ("wide heads", {"num_attention_heads": 2}),
        ("tanh", {"hidden_activation": "gelu_new", "classifier_activation": "silu"}),
        ("types", {"layer_types": ["sliding_attention", "full_attention"] * 2}),
    ],
    "Esm": [
        ("absolute", {"position_embedding_type": "absolute", "emb_layer_norm_before": True}),
        ("no dropout", {"token_dropout": False}),
    ],
    "NomicBert": [("narrow heads", {"head_dim": 4}), ("base", {"rope_parameters": {"rope_theta": 50.0}})],
    "Gte": [("no types", {"type_vocab_size": 0}), ("types", {"type_vocab_size": 2})],
    "MPNet": [("wide heads", {"num_attention_heads": 2})],
    "DebertaV2": [
        ("own projections", {"share_att_key": False}),
        ("c2p", {"share_att_key": False, "pos_att_type": ["c2p"]}),
        ("p2c", {"share_att_key": False, "pos_att_type": ["p2c"]}),
        ("all distances", {"position_buckets": -1, "norm_rel_ebd": "none"}),
        ("few distances", {"position_buckets": -1, "max_relative_positions": 7}),
        ("positions and types", {"position_biased_input": True, "type_vocab_size": 2}),
        ("convolution", {"conv_kernel_size": 3, "conv_act": "gelu"}),
        ("grouped convolution", {"conv_kernel_size": 3, "conv_groups": 2}),
        ("narrow embeddings", {"embedding_size": 16, "conv_kernel_size": 5}),
        ("no distances", {"relative_attention": False, "position_biased_input": True}),
        ("no products", {"pos_att_type": []}),
        ("scale only", {"relative_attention": False, "position_biased_input": True, "pos_att_type": ["c2p"]}),
        ("another head", {"legacy": False}),
    ],
    "EuroBert": [
        ("biases", {"attention_bias": True, "mlp_bias": True}),
        ("wide heads", {"head_dim": 16}),
        ("tied", {"tie_word_embeddings": True}),
        ("no groups", {"num_key_value_heads": 4}),
    ],
}
NAMED_SHAPES = [(f"{stem}-{name}", stem, config) for stem, cases in SHAPES.items() for name, config in cases]
CASES = [*((stem, {}) for stem in FAMILIES), *(pytest.param(*shape, id=name) for name, *shape in NAMED_SHAPES)]


Numbers = dict[str, list[np.ndarray]]


def numbers_of(outputs: Any) -> Numbers:
    """Every kind of number that transformers returned for one text."""
    kinds = {"weights": outputs.attentions, "hidden": outputs.hidden_states}
    kinds |= {name: (outputs[name],) for name in ("logits", "pooler_output") if name in outputs}
    return {kind: [array[0].double().numpy() for array in arrays] for kind, arrays in kinds.items()}


def distances(numbers: Numbers, exact: Numbers) -> dict[str, float]:
    """Of every kind of number, the largest distance from the fp64 run."""
    return {
        kind: max(float(np.abs(one - truth).max()) for one, truth in zip(numbers[kind], exact[kind], strict=True))
        for kind in exact
    }


@pytest.mark.parametrize(
    ("stem", "config", "suffix"),
    [
        ("Bert", {}, "Model"),  # the pooler, which all that have one share
        *((stem, {}, "ForMaskedLM") for stem in FAMILIES),
        *(pytest.param(*shape, "ForMaskedLM", id=name) for name, *shape in NAMED_SHAPES),
    ],
)
def test_as_close_to_fp64_as_transformers(tmp_path: Path, stem: str, config: dict[str, Any], suffix: str) -> None:
    """At most twice as far as transformers' own fp32 run, or within 2 units in the last place of numbers around 1."""
    checkpoint = made(tmp_path, stem, suffix, **config)
    row = [*ids(50), 4, *ids(11, 1)]
    segments = [0] * 30 + [1] * 32 if stem in WITH_SEGMENTS or config.get("type_vocab_size") == 2 else None
    exact, outputs = (
        numbers_of(run(module, [row], [segments] if segments else None))
        for module in (copy.deepcopy(checkpoint.module).double(), checkpoint.module)
    )
    trace = hs.open(tmp_path).trace(ids=row, segments=segments, hidden_states=True)
    ours: Numbers = {"weights": [trace[layer].weights[:] for layer in trace.numbers]}
    ours["hidden"] = [state.array for state in trace.hidden_states]
    ours |= {name: [trace.outputs[name].array] for name in exact if name in trace.outputs}
    limits = {kind: 2 * distance + 2.5e-7 for kind, distance in distances(outputs, exact).items()}
    assert {kind: one for kind, one in distances(ours, exact).items() if not one <= limits[kind]} == {}


@pytest.mark.parametrize(
    ("stem", "change"),
    [
        ("ModernBert", {"position_embedding_type": "sans_pos"}),  # mmBERT and Ettin
        ("ModernBert", {"position_embedding_type": "rope"}),
        ("ModernBert", {"sliding_window": 2}),
        ("Gte", {"position_embedding_type": "rope"}),
    ],
)
def test_fields_that_no_class_writes_are_read_as_it_reads_them(
    stem: str, change: dict[str, Any], tmp_path: Path
) -> None:
    """They stand in published configs, and in those that somebody edits."""
    checkpoint = made(tmp_path, stem)
    change_json(tmp_path / "config.json", **change)
    module = type(checkpoint.module).from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert_same(hs.open(tmp_path).trace(ids=ids(40), hidden_states=True), run(module, [[*ids(40)]]))


NAMES = [
    *("row sums", "queries", "keys", "values", "weights", "context", "sum over heads", "weights (eager)"),
    "hidden states",
]


SIDE_BY_SIDE = (("W_V", 1), ("b_V", 0), ("W_O", 0))
"""Parts of heads, and the axis along which a layer has them beside each other."""


@pytest.mark.parametrize(("stem", "config"), CASES)
def test_verification_passes(tmp_path: Path, stem: str, config: dict[str, Any]) -> None:
    """The paper's formulas in fp64, head by head, and transformers; of each family, also with silenced heads.

    The formulas multiply with each head's slices of what is stored.
    """
    made(tmp_path, stem, **config)
    model = hs.open(tmp_path)
    layer, ones = model.layers[0], np.ones((1, 1))
    W_V, b_V, W_O = (np.concatenate([getattr(head, name) for head in layer.heads], axis) for name, axis in SIDE_BY_SIDE)
    if len(b_V) == len(layer.b_O):  # the authors' matrices, else the affine map
        first = np.block([[W_V, np.zeros((len(W_V), 1))], [b_V, ones]])
        second = np.block([[W_O, layer.b_O[:, None]], [np.zeros((1, len(layer.b_O))), ones]])
        product = first @ second
    else:
        product = np.block([[W_V @ W_O, np.zeros((len(W_V), 1))], [b_V @ W_O + layer.b_O, ones]])
    assert layer.expansion_rate == pytest.approx(np.linalg.norm(product) / np.sqrt(len(W_V) + 1), rel=1e-4)
    for silenced in ((), {(1, 2), (2, 0)}) if not config else ((),):
        report = model.trace(ids=ids(24), ablate=silenced).verify()
        assert report.agrees, report
        assert [check.name for check in report.checks] == NAMES
        assert all(0 <= check.worst <= check.tolerance for check in report.checks)
        assert report.skipped == ()
        assert json.loads(json.dumps(report.to_dict()))["agrees"] is True


@pytest.mark.parametrize(("stem", "config"), CASES)
def test_runs_are_those_of_silenced_forward_passes(tmp_path: Path, stem: str, config: dict[str, Any]) -> None:
    """Runs restart from kept layers; silencing the heads in a whole forward pass gives the same numbers."""
    made(tmp_path, stem, **config)
    model = hs.open(tmp_path)
    texts = [Input(row, np.zeros_like(row)) for row in (np.array(ids(size), dtype=np.int64) for size in (21, 9))]
    last = model.anatomy.known().layers - 1
    sets: list[set[tuple[int, int]]] = [{(0, 1)}, {(1, 0)}, {(last, 1)}, {(0, 0), (1, 1)}, {(0, 1), (last, 0)}]
    edits = [frozenset(Edit(*head) for head in heads) for heads in sets]
    wholes = [
        [model.trace(ids=text.ids.tolist(), ablate=heads).outputs["last_hidden_state"].array for text in texts]
        for heads in sets
    ]
    runner = NumpyRunner(model)
    for kept in (True, False):
        base = runner.base(texts, contexts=kept)
        for places in (None, [[2, 13], [0]]):
            for runs, hidden in runner.states(base, edits, places):
                for at, which in enumerate(runs):
                    for text, states in enumerate(hidden):
                        whole = wholes[which][text] if places is None else wholes[which][text][places[text]]
                        np.testing.assert_allclose(states[at], whole, atol=3e-5, rtol=3e-5)
    without = runner.base(texts, edits=frozenset({Edit(last, 0)}), contexts=False)
    ((_, hidden),) = runner.states(without, [frozenset({Edit(0, 1)})])
    for text, states in enumerate(hidden):
        np.testing.assert_allclose(states[0], wholes[4][text], atol=3e-5, rtol=3e-5)


@pytest.mark.parametrize(
    ("stem", "field", "value"),
    [
        ("NomicBert", "rope_parameters", {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0}),
        ("Gte", "rope_parameters", {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0}),
        ("EuroBert", "rope_parameters", {"rope_type": "default", "rope_theta": -1}),
        ("EuroBert", "partial_rotary_factor", 0.5),
        ("ModernBert", "layer_types", ["full_attention"]),
        ("ModernBert", "layer_types", ["chunked_attention"] * 4),
        ("ModernBert", "local_attention", "wide"),
        ("Esm", "position_embedding_type", "relative_key"),
        ("Bert", "position_embedding_type", "rotary"),
        ("DebertaV2", "pos_att_type", ["p2p"]),
        ("DebertaV2", "conv_kernel_size", 2),
        ("DebertaV2", "attention_head_size", 4),
        ("ModernBert", "auto_map", {"AutoModel": "modeling.Model"}),
        ("Bert", "hidden_act", "mish_of_tomorrow"),
    ],
)
def test_settings_that_are_not_computed_are_named(tmp_path: Path, stem: str, field: str, value: Any) -> None:
    made(tmp_path, stem)
    change_json(tmp_path / "config.json", **{field: value})
    name = "rope_theta" if value == {"rope_type": "default", "rope_theta": -1} else field
    name = value if field == "hidden_act" else name
    with pytest.raises(UnsupportedError, match=name):
        hs.open(tmp_path).trace(ids=[5, 6])


BUCKETS = "buckets can't hold distances up to 64"
"""log((longest - 1) / (buckets / 2)) is no positive number: transformers gives rows at random."""


@pytest.mark.parametrize(
    ("stem", "config", "message"),
    [
        ("MPNet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets"),
        ("DebertaV2", {"position_buckets": 1}, f"1 {BUCKETS}"),
        ("DebertaV2", {"position_buckets": 200}, f"200 {BUCKETS}"),
    ],
)
def test_shapes_that_are_not_computed_are_named(
    tmp_path: Path, stem: str, config: dict[str, Any], message: str
) -> None:
    made(tmp_path, stem, **config)
    with pytest.raises(HeadscopeError, match=message):
        hs.open(tmp_path).trace(ids=ids(5))


def without(folder: Path, *names: str) -> hs.Model:
    """The model, with these fields taken out of its config."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({name: config[name] for name in config if name not in names}))
    return hs.open(folder)


def test_a_deberta_that_does_not_say_how_long_its_texts_are(tmp_path: Path) -> None:
    """Its class takes 512; there is no table of positions that could tell."""
    row = ids(40)
    made(tmp_path / "64", "DebertaV2")
    stated = made(tmp_path / "512", "DebertaV2", max_position_embeddings=512)
    other = hs.open(tmp_path / "64").trace(ids=row)[2, 1].weights[:]
    model = without(tmp_path / "512", "max_position_embeddings", "max_relative_positions")
    assert model.anatomy.longest_text == 512
    trace = model.trace(ids=row)
    weights = trace[2, 1].weights[:]
    np.testing.assert_allclose(weights, run(stated.module, [list(row)]).attentions[2][0, 1], atol=2e-5)
    assert np.abs(weights - other).max() > 1e-4  # buckets up to 512 are not those up to 64
    assert trace.verify().agrees


def test_numbers_without_a_default_are_named_where_they_are_missing(tmp_path: Path) -> None:
    made(tmp_path, "Esm")
    with pytest.raises(ConfigError, match=r"config\.json has no mask_token_id"):
        without(tmp_path, "mask_token_id").trace(ids=ids(5))


def test_a_roformer_without_its_table_computes_it(tmp_path: Path) -> None:
    checkpoint = made(tmp_path, "RoFormer")
    file, name = tmp_path / "model.safetensors", "encoder.embed_positions.weight"
    plain = type(checkpoint.module)(checkpoint.module.config)
    state = {**load_file(file), name: plain.state_dict()[name]}
    save_file(state, file, {"format": "pt"})
    before = hs.open(tmp_path).trace(ids=ids(30)).outputs["last_hidden_state"].array
    del state[name]
    save_file(state, file, {"format": "pt"})
    model = hs.open(tmp_path)
    assert model.anatomy.missing == ()
    np.testing.assert_allclose(model.trace(ids=ids(30)).outputs["last_hidden_state"].array, before, atol=2e-5)
