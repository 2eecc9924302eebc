"""Forward passes of a model in eval mode: each module's mode is restored, and training notices nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the block with the model in eval mode, and restore the mode of each module.

    `model.train(mode)` would give all of them one mode, and put the modules that someone froze with `eval()` back to
    training. Modules of frozen TorchScript have no mode, and exported ones don't change theirs.
    """
    modes = [(module, module.training) for module in model.modules() if hasattr(module, "training")]
    try:
        if any(training for _, training in modes):
            model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's first parameter that has numbers; the CPU if none has."""
    return next((parameter.device for parameter in model.parameters() if not parameter.is_meta), torch.device("cpu"))


def together(numbers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Numbers, which may be on several devices, in one tensor: to read them waits for a device once."""
    return torch.stack([number.to(numbers[0].device) for number in numbers]) if numbers else torch.zeros(0)
