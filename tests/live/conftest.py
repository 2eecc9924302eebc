"""What tests of captures need: the same random numbers, no attention functions of another test, no gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def registered() -> Iterator[None]:
    """Removes the attention functions that a test registers."""
    from transformers import AttentionInterface

    before = dict(AttentionInterface._global_mapping)
    yield
    AttentionInterface._global_mapping.clear()
    AttentionInterface._global_mapping.update(before)


@pytest.fixture
def no_grad() -> Iterator[None]:
    """No pass of the test has gradients."""
    with torch.no_grad():
        yield


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flex attention without a compiler, which also spares the tests its time.

    PyTorch compiles even what is called uncompiled, unless it is told that somebody debugs: its operator gets the same
    arguments. The first call of a process, in test_flex.py, is not told.
    """
    from torch.nn.attention import flex_attention
    from transformers.integrations.flex_attention import WrappedFlexAttention

    monkeypatch.setattr(WrappedFlexAttention, "__call__", lambda self: flex_attention.flex_attention)
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same random numbers, whatever ran before."""
    torch.manual_seed(0)
