"""The processor time of each test's call: `--most-seconds 8` lists the costliest and marks those that take longer."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

SHOWN = 10
"""Tests that are listed."""


def processor_seconds() -> float:
    """Processor time of this process and of those that it started and waited for."""
    return sum(os.times()[:4])


class Costs:
    """A pytest plugin: measures in each worker, and lists where their reports come together.

    It never fails a test: a machine at half the speed is no fault.

    Args:
        most: seconds from which a test is marked as too long.
    """

    def __init__(self, most: float) -> None:
        self.most = most
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        begin = processor_seconds()
        try:
            return (yield)
        finally:
            item.user_properties.append(("processor", processor_seconds() - begin))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.seconds[report.nodeid] = dict(report.user_properties).get("processor", 0.0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section(f"processor time: {sum(self.seconds.values()):.0f} s; aim: {self.most:g} s a test")
        for name, seconds in sorted(self.seconds.items(), key=lambda item: -item[1])[:SHOWN]:
            terminalreporter.write_line(f"{seconds:6.1f} s  {'TOO LONG  ' * (seconds > self.most)}{name}")
