"""Activations against transformers' own, and GELU against torch's in fp64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers.activations import ACT2FN

from headscope.anatomy import entries as rules
from headscope.anatomy.modules import ACTIVATION_CLASSES
from headscope.attention.activations import ACTIVATIONS, BLOCK, FEW_BLOCKS, activate, gelu, slope
from headscope.errors import UnsupportedError

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
