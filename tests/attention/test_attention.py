"""The mathematics against plain definitions in fp64, for NumPy and torch; activations against transformers' own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.activations import ACT2FN

from headscope.anatomy import entries as rules
from headscope.anatomy.modules import ACTIVATION_CLASSES
from headscope.attention.activations import ACTIVATIONS, BLOCK, FEW_BLOCKS, activate, gelu, slope
from headscope.attention.scores import Mask, attend, scores, weights
from headscope.errors import InputError, UnsupportedError
from headscope.verify.health import entropy

MASKS = {
    "everything": lambda n, m: Mask(),
    "causal": lambda n, m: Mask(causal=True),
    "window": lambda n, m: Mask(window=(2, 1)),
    "left window": lambda n, m: Mask(causal=True, window=(3, None)),
    "keys": lambda n, m: Mask(keys=np.arange(m) % 3 != 1),
    "no key": lambda n, m: Mask(keys=np.zeros(m, dtype=bool)),
    "bias": lambda n, m: Mask(bias=np.where(np.arange(n * m).reshape(1, n, m) % 5 == 0, -np.inf, 0.3).astype("f4")),
}


def plain(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, mask: Mask) -> tuple[np.ndarray, ...]:
    """Cell by cell, in fp64: scores, weights, contexts, log-sum-exps."""
    heads, n, _ = q.shape
    m = k.shape[1]
    s = np.full((heads, n, m), -np.inf)
    for h in range(heads):
        for i in range(n):
            for j in range(m):
                offset = j - (i + m - n)
                if mask.causal and offset > 0:
                    continue
                left, right = mask.window or (None, None)
                if (left is not None and offset < -left) or (right is not None and offset > right):
                    continue
                if mask.keys is not None and not mask.keys[j]:
                    continue
                shared = h * len(k) // heads
                s[h, i, j] = scale * float(q[h, i].astype("f8") @ k[shared, j].astype("f8"))
                if mask.bias is not None:
                    s[h, i, j] += mask.bias[min(h, len(mask.bias) - 1), i, j]
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = np.log(np.exp(s).sum(-1))
        p = np.nan_to_num(np.exp(s - lse[..., None]))
    values = np.repeat(v.astype("f8"), heads // len(v), axis=0)
    return s, p, p @ values, lse


def case(heads: int, kv_heads: int, n: int, m: int, d: int, spread: float, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(heads, n, d)).astype("f4") * spread
    k = rng.normal(size=(kv_heads, m, d)).astype("f4")
    v = rng.normal(size=(kv_heads, m, d)).astype("f4")
    return q, k, v


@pytest.mark.parametrize("mask_name", MASKS)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 5), (3, 7), (7, 7)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_tiles_contexts_and_sums_agree_with_the_definition(
    mask_name: str, n: int, m: int, heads: int, kv_heads: int, kind: str
) -> None:
    q, k, v = case(heads, kv_heads, n, m, 8, 1.0, 7)
    mask = MASKS[mask_name](n, m)
    s, p, context, lse = plain(q, k, v, 0.3, mask)

    def here(array: Any) -> Any:
        return torch.from_numpy(array) if kind == "torch" else array

    rule = mask if mask.bias is None else Mask(bias=here(mask.bias))
    got_context, got_lse = attend(here(q), here(k), here(v), scale=0.3, mask=rule)
    tile = scores(here(q), here(k), scale=0.3, mask=rule)
    got_weights = weights(tile, got_lse)
    np.testing.assert_allclose(np.asarray(tile), s, atol=2e-6)
    np.testing.assert_allclose(np.asarray(got_lse), lse, atol=2e-6)
    np.testing.assert_allclose(np.asarray(got_weights), p, atol=2e-6)
    np.testing.assert_allclose(np.asarray(got_context), context, atol=2e-6)
    if mask.bias is None:
        logs = np.log(np.where(p > 0, p, 1))
        expected = -(p * logs).sum(-1)
        got = entropy(here(q), here(k), got_lse, scale=0.3, mask=rule)
        np.testing.assert_allclose(np.asarray(got), expected, atol=5e-6)


@settings(max_examples=60)
@given(
    n=st.integers(1, 300),
    d=st.integers(1, 16),
    heads=st.integers(1, 3),
    spread=st.sampled_from([1e-6, 1.0, 30.0, 1e4]),
    seed=st.integers(0, 2**32 - 1),
)
def test_blocks_agree_with_the_whole_map_at_any_size_and_spread(
    n: int, d: int, heads: int, spread: float, seed: int
) -> None:
    q, k, v = case(heads, heads, n, n, d, spread, seed)
    context, lse = attend(q, k, v, scale=1.0)
    s = q.astype("f8") @ k.astype("f8").swapaxes(1, 2)
    p = np.exp(s - s.max(-1, keepdims=True))
    total = p.sum(-1)
    terms = np.abs(q.astype("f8")) @ np.abs(k.astype("f8")).swapaxes(1, 2)
    size = max(1.0, float(terms.max()))  # a score's rounding is as large as its terms, also where they cancel
    np.testing.assert_allclose(lse, np.log(total) + s.max(-1), atol=1e-6 * size)
    np.testing.assert_allclose(context, p @ v.astype("f8") / total[..., None], atol=1e-5 * size)
    assert np.isfinite(context).all()


def test_heads_that_cannot_share_keys_are_refused() -> None:
    q, k, v = case(3, 2, 4, 4, 4, 1.0, 0)
    with pytest.raises(InputError, match="3 query heads can't share 2 key heads"):
        attend(q, k, v, scale=1.0)


def test_the_entropy_identity_refuses_a_bias() -> None:
    q, k, _ = case(1, 1, 3, 3, 4, 1.0, 0)
    with pytest.raises(InputError, match="additive bias"):
        entropy(q, k, np.zeros((1, 3), "f4"), scale=1.0, mask=Mask(bias=np.zeros((1, 3, 3), "f4")))


X = np.concatenate([np.linspace(-12, 12, 200_001), [-1e30, 1e30, 0.0, -0.0, 1e-30]]).astype(np.float32)


def test_gelu_is_exact_to_fp32_everywhere() -> None:
    """As close to fp64 as torch's own in fp32, in units of the larger of 1 and the result."""
    x = torch.from_numpy(X)
    exact = torch.nn.functional.gelu(x.double()).numpy()
    unit = np.maximum(1, np.abs(exact))
    theirs = np.abs(torch.nn.functional.gelu(x).numpy() - exact) / unit
    ours = np.abs(gelu(X.copy()) - exact) / unit
    assert ours.max() <= theirs.max()
    assert ours.max() < 5e-7


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_is_what_transformers_computes_under_that_name(name: str) -> None:
    x = X[np.abs(X) < 20]
    expected = ACT2FN[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ACTIVATIONS[name][0](x), expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_slope_is_autograds(name: str) -> None:
    x = X[(np.abs(X) < 20) & (X != 0)]
    wide = torch.from_numpy(x).double().requires_grad_()
    (expected,) = torch.autograd.grad(ACT2FN[name](wide).sum(), wide)
    np.testing.assert_allclose(slope(name, x), expected.numpy(), atol=2e-6)
    assert np.isfinite(slope(name, X)).all()


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 3, FEW_BLOCKS * BLOCK + 1])
def test_blocks_cover_the_array_in_place(size: int) -> None:
    x = np.linspace(-3, 3, size, dtype=np.float32).reshape(1, size)
    expected = gelu(x.copy())
    with ThreadPoolExecutor(2) as threads:
        activate("gelu", x, threads)
    np.testing.assert_array_equal(x, expected)


def test_the_glossary_and_the_tree_know_the_same_names() -> None:
    assert set(ACTIVATIONS) == set(rules.ACTIVATIONS) == set(ACTIVATION_CLASSES)


def test_an_unknown_name_is_refused() -> None:
    with ThreadPoolExecutor(1) as threads, pytest.raises(UnsupportedError, match="'snake'"):
        activate("snake", np.zeros((1, 1), np.float32), threads)
