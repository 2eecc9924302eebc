"""The NumPy encoder against transformers' eager forward, family by family, and its parts against second derivations."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

import headscope as hs
from headscope.anatomy import Disentangled
from headscope.attention.scores import Mask, attend
from headscope.encoder.attending import attend_nearby
from headscope.encoder.distances import deberta_buckets, default_frequencies, distances_of, rotate, t5_buckets
from headscope.errors import HeadscopeError, InputError
from headscope.traces import Trace
from random_models import FAMILIES, WITH_SEGMENTS, ids, made, run

CLASSES = [
    *(
        (stem, suffix)
        for stem in FAMILIES
        for suffix in (
            "Model",
            "ForMaskedLM",
            "ForSequenceClassification",
            "ForTokenClassification",
            "ForQuestionAnswering",
        )
        if hasattr(transformers, stem + suffix)
    ),
    ("Bert", "ForPreTraining"),
    ("Bert", "ForNextSentencePrediction"),
    ("Electra", "ForPreTraining"),
    ("Albert", "ForPreTraining"),
    ("Ernie", "ForPreTraining"),
]
LIMIT = 2e-5


RENAMED = {"logits": "prediction_logits", "seq_relationship_logits": "logits"}
"""What headscope calls an output -> what some classes of transformers call it."""


def assert_same(trace: Trace, outputs: Any, row: int) -> None:
    """Every head's weights, every hidden state and everything on top, of one row of a batch, padding left out."""
    size = len(trace)
    for layer, attention in enumerate(outputs.attentions):
        for head in range(trace.heads):
            theirs = attention[row, head, :size, :size].numpy()
            np.testing.assert_allclose(trace[layer, head].weights, theirs, atol=LIMIT)
    for state, theirs in zip(trace.hidden_states, outputs.hidden_states, strict=True):
        np.testing.assert_allclose(state, theirs[row, :size].numpy(), atol=LIMIT, rtol=LIMIT)
    for name in trace.outputs:
        if name.startswith("hidden_states") or (name == "pooler_output" and name not in outputs):
            continue  # compared above; a class with something on top doesn't return its pooler's output
        key = name if name in outputs and RENAMED.get(name) not in outputs else RENAMED.get(name, name)
        theirs = (outputs.hidden_states[-1] if name == "last_hidden_state" else outputs[key])[row].numpy()
        if "tokens" in trace.outputs[name].dims:
            theirs = theirs[:size]
        np.testing.assert_allclose(trace.outputs[name], theirs, atol=LIMIT, rtol=LIMIT, err_msg=name)


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
    expected = {"ForMaskedLM": {"logits"}, "ForQuestionAnswering": {"start_logits", "end_logits"}}.get(suffix)
    if expected:
        assert expected <= set(trace.outputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("stem", FAMILIES)
def test_narrow_and_wide_checkpoints_compute_in_fp32(tmp_path: Path, stem: str, dtype: torch.dtype) -> None:
    checkpoint = made(tmp_path, stem, "ForMaskedLM", dtype=dtype)
    outputs = run(checkpoint.module, [list(ids(12))])
    trace = hs.open(tmp_path).trace(ids=ids(12), hidden_states=True)
    assert trace.layers[0].q.dtype == np.float32
    assert_same(trace, outputs, 0)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "swish", "silu"])
@pytest.mark.parametrize("stem", ["Bert", "DistilBert"])
def test_the_config_chooses_the_activation(tmp_path: Path, stem: str, activation: str) -> None:
    field = "activation" if stem == "DistilBert" else "hidden_act"
    checkpoint = made(tmp_path, stem, "ForMaskedLM", **{field: activation})
    trace = hs.open(tmp_path).trace(ids=ids(12), hidden_states=True)
    assert_same(trace, run(checkpoint.module, [list(ids(12))]), 0)


@pytest.mark.parametrize("stem", ["Bert", "Roberta", "DistilBert", "Electra"])
def test_untied_output_weights_are_used_where_the_config_says_so(tmp_path: Path, stem: str) -> None:
    checkpoint = made(tmp_path, stem, "ForMaskedLM", tie_word_embeddings=False)
    trace = hs.open(tmp_path).trace(ids=ids(12), hidden_states=True)
    assert "logits" in trace.outputs
    assert_same(trace, run(checkpoint.module, [list(ids(12))]), 0)


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        ({"2": "c", "0": "a", "1": "b"}, ("a", "b", "c")),
        ({"1": "a", "2": "b", "3": "c"}, None),
    ],
)
def test_labels_are_named_by_their_index_or_not_at_all(tmp_path: Path, names: dict[str, str], labels: object) -> None:
    made(tmp_path, "Bert", "ForSequenceClassification")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "id2label": names}))
    assert hs.open(tmp_path).trace(ids=[5, 6, 7]).outputs["logits"].labels == labels


def test_an_unknown_activation_is_refused_by_name(tmp_path: Path) -> None:
    made(tmp_path, "Bert")
    config = (tmp_path / "config.json").read_text().replace('"gelu"', '"mish_of_tomorrow"')
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(HeadscopeError, match="mish_of_tomorrow"):
        hs.open(tmp_path).trace(ids=[1, 2])


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
    assert_same(trace, run(checkpoint.module, [list(ids(9))]), 0)
    assert not trace[1, 2].output.any()
    assert trace[1, 2].silenced
    assert not trace[1, 1].silenced
    untouched = model.trace(ids=ids(9)).outputs["last_hidden_state"].array
    assert np.abs(untouched - trace.outputs["last_hidden_state"].array).max() > 1e-3


@pytest.mark.parametrize("where", [(3, 0), (0, 4), (-4, 0)])
def test_silencing_a_head_that_is_not_there_is_an_error(tmp_path: Path, where: tuple[int, int]) -> None:
    made(tmp_path, "Bert")
    with pytest.raises(InputError, match=r"there is no (layer|head)"):
        hs.open(tmp_path).trace(ids=[1, 2], ablate={where})


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


@pytest.mark.parametrize(("given", "message"), [([60], "60"), ([-1], "-1"), ([], "empty|no ids|0")])
def test_ids_beyond_the_vocabulary_are_refused(tmp_path: Path, given: list[int], message: str) -> None:
    made(tmp_path, "Bert")
    with pytest.raises(InputError, match=message):
        hs.open(tmp_path).trace(ids=given)


def test_a_segment_beyond_the_table_is_refused(tmp_path: Path) -> None:
    made(tmp_path, "Bert")
    with pytest.raises(InputError, match="segment"):
        hs.open(tmp_path).trace(ids=[5, 6], segments=[0, 2])


def test_memory_is_linear_in_the_text(tmp_path: Path) -> None:
    """Beyond the trace itself, a forward pass of twice the text takes about twice the memory, never four times."""
    made(tmp_path, "Bert", max_position_embeddings=2048, num_hidden_layers=1)
    model = hs.open(tmp_path)
    model.trace(ids=[5] * 8)
    extra = []
    for size in (512, 1024, 2048):
        tracemalloc.start()
        trace = model.trace(ids=[5 + i % 50 for i in range(size)])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        extra.append(peak - trace.nbytes)
        assert trace.nbytes == size * (3 * 32 + 4) * 4
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


@pytest.mark.parametrize("pairs", [True, False])
def test_rotated_products_depend_on_distances_alone(pairs: bool) -> None:
    """Su et al. 2021, eq. 16, with the paper's matrix written out for one position."""
    generator = np.random.default_rng(3)
    q, k = generator.normal(size=(2, 8)).astype(np.float32)
    theta = 100.0 ** (-np.arange(4) / 4)
    angles = np.arange(30)[:, None] * theta
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    many_q, many_k = (
        rotate(np.repeat(x[None, None], 30, axis=1), cos, sin, pairs=pairs)[0].astype(np.float64) for x in (q, k)
    )
    products = many_q @ many_k.T
    for distance in (-7, 0, 3):
        line = np.diagonal(products, distance)
        np.testing.assert_allclose(line, line[0], atol=2e-6)
    matrix = np.zeros((8, 8))
    for at in range(4):
        first, second = (2 * at, 2 * at + 1) if pairs else (at, at + 4)
        c, s = np.cos(5 * theta[at]), np.sin(5 * theta[at])
        matrix[np.ix_([first, second], [first, second])] = [[c, -s], [s, c]]
    np.testing.assert_allclose(many_q[5], matrix @ q, atol=2e-6)


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
    for layer, theirs in enumerate(outputs.attentions):
        np.testing.assert_allclose(trace[layer, 1].weights[:], theirs[0, 1].numpy(), atol=2e-5)
        assert trace[layer].mask.window == (None if layer in (0, 3) else (4, 4))
    for state, theirs in zip(trace.hidden_states, outputs.hidden_states, strict=True):
        np.testing.assert_allclose(state.array, theirs[0].numpy(), atol=5e-5, rtol=5e-5)


def test_local_layers_take_memory_linear_in_the_text(tmp_path: Path) -> None:
    """8,192 tokens, beyond the trace itself: far less than one map of a head, 268 MB, and linear."""
    made(tmp_path, "ModernBert", max_position_embeddings=8192, layer_types=["sliding_attention"] * 4)
    model = hs.open(tmp_path)
    model.trace(ids=[5] * 8)
    extra: list[int] = []
    for size in (2048, 8192):
        tracemalloc.start()
        trace: Any = model.trace(ids=[5 + at % 50 for at in range(size)])
        extra.append(tracemalloc.get_traced_memory()[1] - trace.nbytes)
        tracemalloc.stop()
    assert extra[1] < 4.5 * extra[0]
    assert extra[1] < 8192 * 8192 * 4 / 8
