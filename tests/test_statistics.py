"""Statistics from blocks against the whole map, written out."""

from __future__ import annotations

import numpy as np
import pytest

from headscope import statistics
from headscope.attention import Mask
from headscope.statistics import weight_blocks

SIZE, HEADS, D = 11, 3, 8


def written_out(weights: np.ndarray, special: np.ndarray, padding: np.ndarray) -> dict[str, float]:
    """One head's statistics from its whole map, over the queries that see a key and are no padding."""
    queries, keys = weights.shape
    at = np.arange(queries) + keys - queries
    logs = np.log(np.where(weights > 0, weights, 1))
    others = special.copy()
    others[0] = False
    use = (weights.sum(-1) > 0) & ~padding[at]
    if not use.any():
        return dict.fromkeys(statistics.STATISTICS, float("nan"))

    def near(offset: int) -> float:
        there = [(i, j + offset) for i, j in enumerate(at) if use[i] and 0 <= j + offset < keys]
        return float(np.mean([weights[i, j] for i, j in there])) if there else float("nan")

    return {
        "entropy": float(-(weights * logs).sum(-1)[use].mean()),
        "previous": near(-1),
        "next": near(1),
        "same": near(0),
        "first": float(weights[use, 0].mean()),
        "separator": float(weights[use][:, others].sum(-1).mean()),
        "distance": float((weights * np.abs(np.arange(keys)[None] - at[:, None])).sum(-1)[use].mean()),
        "strongest": float(weights[use].max(-1).mean()),
    }


@pytest.mark.parametrize(
    "mask",
    [
        Mask(),
        Mask(causal=True),
        Mask(window=(2, 0)),
        Mask(keys=np.arange(SIZE) != 4),
        Mask(keys=np.zeros(SIZE, bool)),
        Mask(window=(-1, 2)),
    ],
)
@pytest.mark.parametrize("queries", [SIZE, 4, 1])
@pytest.mark.parametrize("cells", [1 << 18, 40])
def test_blocks_agree_with_the_whole_map(mask: Mask, queries: int, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_blocks, "TILE_CELLS", cells)
    generator = np.random.default_rng(1)
    q = generator.normal(size=(HEADS, queries, D)).astype(np.float32)
    k = generator.normal(size=(HEADS, SIZE, D)).astype(np.float32)
    special = np.arange(SIZE) % 5 == 0
    found = statistics.head_statistics(q, k, scale=0.5, special=special, mask=mask)
    assert set(found) == set(statistics.STATISTICS)
    scores = 0.5 * np.einsum("hnd,hmd->hnm", q.astype(np.float64), k.astype(np.float64))
    allowed = mask.allowed(np.arange(queries), np.arange(SIZE), (queries, SIZE))
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    highest = np.where(np.isneginf(scores.max(-1, keepdims=True)), 0, scores.max(-1, keepdims=True))
    powers = np.exp(scores - highest)
    weights = powers / np.maximum(powers.sum(-1, keepdims=True), 1e-30)
    padding = np.zeros(SIZE, bool) if mask.keys is None else ~mask.keys
    for head in range(HEADS):
        for name, value in written_out(weights[head], special, padding).items():
            assert found[name][head] == pytest.approx(value, abs=2e-5, nan_ok=True), name


def test_a_query_that_a_bias_leaves_no_key_is_out_and_positions_are_in_self_attention_alone() -> None:
    generator = np.random.default_rng(2)
    q, k = (generator.normal(size=(1, SIZE, D)).astype(np.float32) for _ in range(2))
    special = np.zeros(SIZE, bool)
    bias = np.zeros((1, SIZE, SIZE), np.float32)
    bias[:, 3] = -np.inf
    found = statistics.head_statistics(q, k, scale=0.5, special=special, mask=Mask(bias=bias))
    kept = np.delete(np.arange(SIZE), 3)
    powers = np.exp(0.5 * (q[0] @ k[0].T).astype(np.float64))
    weights = powers / powers.sum(-1, keepdims=True)
    assert found["strongest"][0] == pytest.approx(weights[kept].max(-1).mean(), abs=1e-5)
    crossed = statistics.head_statistics(q, k, scale=0.5, special=special, aligned=False)
    assert {name for name, values in crossed.items() if np.isnan(values).all()} == {
        "previous",
        "next",
        "same",
        "distance",
    }
