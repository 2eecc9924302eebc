"""Run on one thread: the models here are tiny, and two threads would wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from families import MAJOR


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore a warning of transformers 4.57, which compiles functions in a way that torch has since deprecated."""
    if MAJOR < 5:
        for item in items:
            item.add_marker(pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"))
