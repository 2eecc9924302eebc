"""Copies of captured tensors on the device where they are kept, made without waiting for a GPU layer by layer.

A copy from a GPU goes to pinned memory and is on its way when the layer's consumer returns; `Carrier.wait` waits for
all of them at the end of the forward pass, once for each stream that the model ran on.
"""

from __future__ import annotations

import torch


class Room:
    """Memory for copies that are kept and dropped together, in one piece.

    Copies on their own would take the place of the model's temporary tensors, which then need new memory in every
    layer: at 2,048 tokens that costs as much as all else that a capture does.

    Args:
        copies: number of copies that are expected, of the first one's size; what doesn't fit is copied on its own.
    """

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._memory: torch.Tensor | None = None
        self._used = 0

    def copy(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A contiguous copy of a tensor on the CPU."""
        if self._memory is None:
            self._memory = torch.empty(self._copies * x.numel(), dtype=dtype)
        start, stop = self._used, self._used + x.numel()
        if stop > len(self._memory):
            return x.to(dtype, copy=True, memory_format=torch.contiguous_format)
        self._used = stop
        return self._memory[start:stop].view(x.shape).copy_(x)


class Carrier:
    """The copies of one forward pass.

    Args:
        device: where the copies are kept.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._under_way: dict[torch.cuda.Stream, torch.cuda.Event] = {}

    def copy(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A contiguous copy of a tensor; its numbers are there once `wait` has returned."""
        if not x.is_cuda or self.device.type != "cpu":
            return x.to(self.device, dtype, copy=True, memory_format=torch.contiguous_format)
        sent = x.to(dtype).contiguous()
        kept = torch.empty(sent.shape, dtype=dtype, pin_memory=True)
        kept.copy_(sent, non_blocking=True)
        stream = torch.cuda.current_stream(x.device)
        self._under_way.setdefault(stream, torch.cuda.Event()).record(stream)  # type: ignore[no-untyped-call]
        return kept

    def wait(self) -> None:
        """Wait until all copies have arrived."""
        for event in self._under_way.values():
            event.synchronize()
        self._under_way.clear()
