"""Checkpoints on disk or on the hub: names are resolved, headers and configs read, and tensors read on access."""

from __future__ import annotations

from headscope.checkpoint.entry import TensorEntry
from headscope.checkpoint.opening import Checkpoint, open_checkpoint
from headscope.checkpoint.resolve import called

__all__ = ["Checkpoint", "TensorEntry", "called", "open_checkpoint"]
