"""Sizes of the tensors that operators make."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """Records the sizes of tensors that operators create inside the block, except views."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    @property
    def cells(self) -> int:
        return max(self.sizes, default=0)

    def maps(self, tokens: int) -> int:
        """How many are as large as an eighth of a map."""
        return sum(size >= tokens * tokens // 8 for size in self.sizes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {one.untyped_storage().data_ptr() for one in args if isinstance(one, torch.Tensor)}
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in given:
                self.sizes.append(one.untyped_storage().nbytes() // max(1, one.element_size()))
        return result
