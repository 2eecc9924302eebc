"""Capture traces from live PyTorch models: transformers models, torch.nn, and hand-written attention."""

from __future__ import annotations

import importlib.util

from headscope.errors import MissingExtraError

if importlib.util.find_spec("torch") is None:
    raise MissingExtraError(
        "live models require PyTorch, which is not installed",
        where="hs.capture",
        advice="pip install 'headscope[torch]'",
    )

from headscope._capture.ablation import Ablation, ablate
from headscope._capture.calls import Call, Consumer, Forward, Stack
from headscope._capture.captured import Captured, capture, feed
from headscope._capture.describing import Description, describe, modules_of_checkpoint
from headscope._capture.one_liner import trace

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
