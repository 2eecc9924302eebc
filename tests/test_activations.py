"""Activations against transformers' own, and erf against torch's in fp64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers.activations import ACT2FN

from headscope.activations import ACTIVATIONS, BLOCK, activate, erf
from headscope.anatomy import rules
from headscope.anatomy.modules import ACTIVATION_CLASSES
from headscope.errors import UnsupportedError

X = np.concatenate([np.linspace(-12, 12, 200_001), [-1e30, 1e30, 0.0, -0.0, 1e-30]]).astype(np.float32)


def test_erf_is_exact_to_fp32_everywhere() -> None:
    expected = torch.erf(torch.from_numpy(X).double()).numpy()
    assert np.abs(erf(X) - expected).max() < 7e-7


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_is_what_transformers_computes_under_that_name(name: str) -> None:
    x = X[np.abs(X) < 20]
    expected = ACT2FN[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ACTIVATIONS[name](x), expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, 2 * BLOCK + 3])
def test_blocks_cover_the_array_in_place(size: int) -> None:
    x = np.linspace(-3, 3, size, dtype=np.float32).reshape(1, size)
    expected = ACTIVATIONS["gelu"](x.copy())
    with ThreadPoolExecutor(2) as threads:
        activate("gelu", x, threads)
    np.testing.assert_array_equal(x, expected)


def test_the_glossary_and_the_tree_know_the_same_names() -> None:
    assert set(ACTIVATIONS) == set(rules.ACTIVATIONS) == set(ACTIVATION_CLASSES)


def test_an_unknown_name_is_refused() -> None:
    with ThreadPoolExecutor(1) as threads, pytest.raises(UnsupportedError, match="'snake'"):
        activate("snake", np.zeros((1, 1), np.float32), threads)
