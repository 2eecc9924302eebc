"""Compiled models: `torch.compile(model)`, `model.compile()` and compiled functions run uncompiled inside a block.

Their graphs stay, and run again when the block has ended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from headscope.live.hooks import SharedSetting


def original_of(model: Any) -> Any:
    """The model that torch.compile wrapped; the model itself if it is not wrapped."""
    dynamo = sys.modules.get("torch._dynamo")
    return model._orig_mod if dynamo is not None and isinstance(model, dynamo.OptimizedModule) else model


def _run_uncompiled() -> Callable[[], None]:
    stance = torch.compiler.set_stance("force_eager")
    return lambda: stance.__exit__(None, None, None)


UNCOMPILED = SharedSetting(_run_uncompiled)
"""Runs compiled code uncompiled."""
