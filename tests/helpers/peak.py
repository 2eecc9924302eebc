"""The memory of Python and NumPy that a piece of a test takes."""

from __future__ import annotations

import tracemalloc


class Peak:
    """The most bytes that were held at once in the block, beyond what was held before."""

    bytes = 0

    def __enter__(self) -> Peak:
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
