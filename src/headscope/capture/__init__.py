"""Traces from live PyTorch models: transformers through its attention interface, torch.nn."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

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


class _CallableModule(ModuleType):
    """`headscope.capture` is this package and, as a name of headscope, the function: both may be called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Captured:
        return capture(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
