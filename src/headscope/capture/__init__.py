"""Traces from live PyTorch models: transformers through its attention interface, torch.nn."""

from __future__ import annotations

import importlib.util

from headscope.errors import MissingExtraError

if importlib.util.find_spec("torch") is None:
    raise MissingExtraError(
        "live models need PyTorch, which is not installed",
        where="headscope.capture",
        advice="pip install 'headscope[torch]'",
    )

from headscope.capture.calls import Call, Consumer, Forward, Stack
from headscope.capture.captured import Captured, capture, feed

__all__ = ["Call", "Captured", "Consumer", "Forward", "Stack", "capture", "feed"]
