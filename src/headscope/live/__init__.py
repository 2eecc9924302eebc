"""Capture traces from live PyTorch models: transformers models, torch.nn, and hand-written attention.

Read `captured` first, which opens a session (`sessions`) and restores everything; `calls` says what is recorded of a
call of attention. The rooms, in the order in which a pass goes through them: `plan` finds the modules that attend,
`seeing` sees their calls, which `checking` compares with the modules' output; `masks` tells what their masks mean,
`names` follows the tokens, and `keeping` copies and makes the trace.

Everything below it in the order of parts may call it.
"""

from __future__ import annotations

import importlib.util

from headscope.errors import MissingExtraError, install

if importlib.util.find_spec("torch") is None:
    raise MissingExtraError("torch is not installed", where="hs.capture", advice=install("torch"))

from headscope.live.ablation import Ablation, ablate
from headscope.live.calls import Call, Consumer, Forward
from headscope.live.captured import Captured, capture, feed, trace
from headscope.live.describing import Description, describe, modules_of_checkpoint
from headscope.live.plan.stacks import Stack

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
