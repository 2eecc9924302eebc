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


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same random numbers, whatever ran before."""
    torch.manual_seed(0)
