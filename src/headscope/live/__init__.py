"""Capture traces from live PyTorch models: transformers models, torch.nn, and hand-written attention."""

from __future__ import annotations

import importlib.util

from headscope.errors import MissingExtraError, install

if importlib.util.find_spec("torch") is None:
    raise MissingExtraError(
        "live models require PyTorch, which is not installed",
        where="hs.capture",
        advice=install("torch"),
    )

from headscope.live.ablation import Ablation, ablate
from headscope.live.calls import Call, Consumer, Forward
from headscope.live.captured import Captured, capture, feed
from headscope.live.describing import Description, describe, modules_of_checkpoint
from headscope.live.one_liner import trace
from headscope.live.stacks import Stack

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
