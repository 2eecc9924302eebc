"""Traces from live PyTorch models: transformers through its attention interface, torch.nn."""

from __future__ import annotations

import importlib.util

from headscope.callable_packages import make_callable
from headscope.errors import MissingExtraError

if importlib.util.find_spec("torch") is None:
    raise MissingExtraError(
        "live models need PyTorch, which is not installed",
        where="headscope.capture",
        advice="pip install 'headscope[torch]'",
    )

from headscope.capture.ablation import Ablation, ablate
from headscope.capture.calls import Call, Consumer, Forward, Stack
from headscope.capture.captured import Captured, capture, feed
from headscope.capture.describing import Description, describe, modules_of_checkpoint
from headscope.capture.one_liner import trace

__all__ = [
    "Ablation",
    "Call",
    "Captured",
    "Consumer",
    "Description",
    "Forward",
    "Stack",
    "ablate",
    "capture",
    "describe",
    "feed",
    "modules_of_checkpoint",
    "trace",
]


make_callable(__name__, lambda: capture)
