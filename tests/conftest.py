"""What all tests share: shapes are checked while they run, and no test reaches for the network."""

from __future__ import annotations

import os
import signal

import pytest

from shape_checks import check_shapes

os.environ.setdefault("HF_HUB_OFFLINE", "1")
check_shapes()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts in the background so, and children inherit it: none could then be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-screens", action="store_true", help="write tests/view/screens anew; look at the diff")
