"""Rules derived from masks: the rule reproduces any mask cell for cell."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from headscope.attention.scores import Mask
from headscope.live.masks.finding import Analyst, RawMask, find_rules
from headscope.live.observed import raw_mask


def cells(mask: Mask, queries: int, keys: int) -> np.ndarray:
    """(queries, keys): True for the cells that a mask allows."""
    allowed = mask.allowed(np.arange(queries), np.arange(keys), (queries, keys))
    flags = np.ones((queries, keys), dtype=bool) if allowed is None else allowed
    if mask.bias is not None:
        flags = flags & (np.asarray(mask.bias)[0] > -np.inf)
    return flags


@settings(max_examples=80)
@given(
    size=st.integers(1, 12),
    causal=st.booleans(),
    left=st.none() | st.integers(0, 5),
    right=st.none() | st.integers(0, 5),
    padding=st.integers(0, 4),
    at_left=st.booleans(),
    additive=st.sampled_from([None, float("-inf"), -1e9, -1e4, torch.finfo(torch.float32).min]),
)
def test_rules_come_back(
    size: int, causal: bool, left: int | None, right: int | None, padding: int, at_left: bool, additive: float | None
) -> None:
    padding = min(padding, size - 1)
    real = np.ones(size, dtype=bool)
    if padding:
        real[slice(0, padding) if at_left else slice(size - padding, size)] = False
    rule = Mask(causal, (left, right) if (left, right) != (None, None) else None, real)
    wanted = cells(rule, size, size)
    mask = torch.from_numpy(wanted.copy())[None, None]
    if additive is not None:
        mask = torch.zeros(mask.shape).masked_fill(~mask, additive)
    row_rule = find_rules(RawMask(mask=mask), 1, size, size, slice(0, size)).row(0)
    kept = real
    ahead = np.triu(wanted[kept][:, kept], 1).any()
    if additive is not None and np.isfinite(additive) and padding and not at_left and not ahead:
        # Softmax can't tell rows of padding from rows that are shifted: these may be either.
        np.testing.assert_array_equal(cells(row_rule.mask, size, size)[kept], wanted[kept])
        return
    np.testing.assert_array_equal(cells(row_rule.mask, size, size)[kept], wanted[kept])
    assert row_rule.mask.bias is None
    cut = row_rule.cut(row_rule.queries, row_rule.keys)
    np.testing.assert_array_equal(cells(cut, int(kept.sum()), int(kept.sum())), wanted[kept][:, kept])


@settings(max_examples=60)
@given(data=st.data(), queries=st.integers(1, 8), keys=st.integers(1, 8))
def test_any_mask_comes_back(data: st.DataObject, queries: int, keys: int) -> None:
    bits = data.draw(st.lists(st.booleans(), min_size=queries * keys, max_size=queries * keys))
    wanted = np.array(bits).reshape(queries, keys)
    rule = find_rules(RawMask(mask=torch.from_numpy(wanted)[None, None]), 1, queries, keys, None).row(0)
    np.testing.assert_array_equal(cells(rule.mask, queries, keys), wanted)
    unseen = np.zeros(queries, dtype=bool) if rule.unseen is None else rule.unseen
    np.testing.assert_array_equal(unseen, ~wanted.any(1))


def test_numbers_are_kept_as_a_bias() -> None:
    numbers = torch.randn(1, 2, 4, 4)
    rules = find_rules(RawMask(mask=numbers), 3, 4, 4, slice(0, 4))
    assert rules.shared
    assert torch.equal(rules.row(2).mask.bias, numbers[0])


def test_each_mask_is_looked_at_once() -> None:
    analyst = Analyst()
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    first = analyst.rules(RawMask(mask=mask), 2, 6, 6, slice(0, 6))
    assert analyst.rules(RawMask(mask=mask), 2, 6, 6, slice(0, 6)) is first
    assert analyst.rules(RawMask(mask=mask.clone()), 2, 6, 6, slice(0, 6)) is first
    assert analyst.rules(RawMask(mask=mask), 2, 6, 6, None) is not first


@pytest.mark.parametrize("queries", [1, 3])
def test_queries_at_the_end_of_a_cache(queries: int) -> None:
    wanted = np.tri(queries, 7, 7 - queries, dtype=bool)
    rule = find_rules(RawMask(mask=torch.from_numpy(wanted)[None, None]), 1, queries, 7, slice(7 - queries, 7)).row(0)
    assert rule.mask.bias is None
    np.testing.assert_array_equal(cells(rule.mask, queries, 7), wanted)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("width", [None, 3])
def test_what_flash_attention_is_given(causal: bool, width: int | None) -> None:
    """Flash attention takes padding, is_causal and sliding_window: a query sees itself and width - 1 keys before."""
    q = torch.zeros(2, 4, 7, 8)
    padding = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    options = {"is_causal": causal, "sliding_window": width}
    seen, used = raw_mask("flash_attention_2", nn.Module(), q, q, padding, options)
    rules = find_rules(seen, 2, 7, used, slice(0, 7))
    at = np.arange(7)
    back = at[:, None] - at
    for row in range(2):
        expected = np.tile(padding[row].bool().numpy(), (7, 1))
        if causal:
            expected &= back >= 0
        if width is not None:
            expected &= np.abs(back) < width
        kept = slice(0, 5) if row else slice(None)
        np.testing.assert_array_equal(cells(rules.row(row).mask, 7, 7)[kept], expected[kept])


@pytest.mark.parametrize("kept", [[True] * 6, [False, True, True, True, True, False]])
def test_keys_that_nobody_sees_are_padding_in_any_mask(kept: list[bool]) -> None:
    """No rule describes chunks of 3, so the mask stays a bias; its padding is recognised nevertheless."""
    real = torch.tensor(kept)
    place = torch.arange(6)
    mask = (place[:, None] // 3 == place // 3) & (place <= place[:, None]) & real & real[:, None]
    rule = find_rules(RawMask(mask=mask[None, None]), 1, 6, 6, slice(0, 6)).row(0)
    assert rule.mask.bias is not None
    expected = None if all(kept) else real.numpy()
    np.testing.assert_array_equal(rule.keys, expected)
    np.testing.assert_array_equal(rule.queries, expected)
    cut = rule.cut(rule.queries, rule.keys)
    assert cut.bias is not None
    np.testing.assert_array_equal(cut.bias[0] == 0, mask[real][:, real])


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (7, 5), (5, 7)])
def test_causal_masks_begin_where_pytorch_lets_them_begin(queries: int, keys: int) -> None:
    q, k, v = torch.randn(1, 1, queries, 4), torch.randn(1, 1, keys, 4), torch.eye(keys)[None, None]
    weights = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0, 0]
    given = RawMask.causal_from_the_first(queries, keys)
    rule = find_rules(given, 1, queries, keys, None).row(0).mask
    np.testing.assert_array_equal(cells(rule, queries, keys), weights.numpy() > 0)
