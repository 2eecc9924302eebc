"""What is on disk or on the hub: names resolved, headers and configs read, tensors and slices read when asked for."""

from __future__ import annotations

from headscope.checkpoint.entry import TensorEntry
from headscope.checkpoint.opening import Checkpoint, open_checkpoint
from headscope.checkpoint.resolve import called

__all__ = ["Checkpoint", "TensorEntry", "called", "open_checkpoint"]
