"""What all tests share: shapes are checked while they run, and no test reaches for the network."""

from __future__ import annotations

import os

import pytest

from shape_checks import check_shapes

os.environ.setdefault("HF_HUB_OFFLINE", "1")
check_shapes()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-screens", action="store_true", help="write tests/view/screens anew; look at the diff")
