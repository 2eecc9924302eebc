"""Copies of captured tensors on the device where they are kept, made without waiting for a GPU layer by layer.

A copy from a GPU goes to pinned memory and is on its way when the layer's consumer returns; `Carrier.wait` waits for
all of them at the end of the forward pass, once for each stream that the model ran on.

Copies on a CPU lie side by side, in large pages: memory that a process gets in pages of 4 KiB takes longer to get than
to fill.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref

import torch

LARGE = 1 << 21
"""Bytes of a large page of Linux; memory of at least this size is made of them."""

MOST_SPARE = 1 << 26
"""Maximum number of bytes that are held for copies to come."""


class Room:
    """Memory for copies that are kept and dropped together: those of one row of the batch, in successive layers.

    Args:
        copies: number of copies that are expected.
    """

    def __init__(self, copies: int) -> None:
        self._expected = copies
        self._made = 0
        self._buffer = torch.empty(0)
        self._used = 0

    def new(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor of any numbers."""
        size, start = math.prod(shape), self._used
        if dtype != self._buffer.dtype or start + size > len(self._buffer):
            copies = max(1, self._expected - self._made, self._made)
            self._buffer, start = PAGES.tensor(size * copies, dtype), 0
        self._used, self._made = start + size, self._made + 1
        return self._buffer[start : start + size].view(shape)

    def copy(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A contiguous copy of a tensor."""
        return self.new(x.shape, dtype).copy_(x)


class Pages:
    """Large pages, used again when nothing refers to them: getting new ones takes longer than filling them.

    At most `MOST_SPARE` bytes are held for copies to come, which is as much as one text of 512 tokens takes.
    """

    def __init__(self) -> None:
        self._held: list[tuple[mmap.mmap, weakref.ref[memoryview]]] = []
        self._lock = threading.Lock()

    def tensor(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """(size,), of any numbers."""
        length = size * dtype.itemsize
        if length < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(size, dtype=dtype)
        with self._lock:
            fits = (at for at, (pages, user) in enumerate(self._held) if length <= len(pages) and user() is None)
            at = min(fits, key=lambda at: len(self._held[at][0]), default=None)
            pages = self._new(-(-length // LARGE) * LARGE) if at is None else self._held.pop(at)[0]
            user = memoryview(pages)  # the tensor and all views of it refer to this very object
            self._held.append((pages, weakref.ref(user)))
            while sum(len(pages) for pages, _ in self._held) > MOST_SPARE:
                del self._held[0]
            return torch.frombuffer(user, dtype=dtype, count=size)

    @staticmethod
    def _new(length: int) -> mmap.mmap:
        pages = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_HUGEPAGE)
        return pages


PAGES = Pages()
"""The pages of this process."""


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
