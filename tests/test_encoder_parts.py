"""Rotations, buckets of distances and local attention, each against a second derivation."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

import headscope as hs
from headscope.anatomy import Disentangled
from headscope.attention.scores import Mask, attend
from headscope.encoder.attending import attend_nearby
from headscope.encoder.distances import deberta_buckets, default_frequencies, distances_of, rotate, t5_buckets
from random_models import ids, made, run

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
