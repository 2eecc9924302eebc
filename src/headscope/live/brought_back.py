"""Parameters of an offloaded module, while its attention is computed again from them after it has run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from headscope.checkpoint.elsewhere import with_numbers


@contextmanager
def brought_back(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Give a module and its parts their parameters inside the block, on a device, from where accelerate keeps them.

    Raises:
        UnsupportedError: nothing keeps the numbers of one.
    """
    away = [
        (path, part, name, parameter)
        for path, part in module.named_modules()
        for name, parameter in part._parameters.items()
        if parameter is not None and parameter.is_meta
    ]
    try:
        for path, part, name, _ in away:
            x = with_numbers(module, f"{path}.{name}" if path else name, type(module).__name__)
            part._parameters[name] = nn.Parameter(x.to(device), requires_grad=False)
        yield
    finally:
        for _, part, name, parameter in away:
            part._parameters[name] = parameter
