"""Forward passes of a model in eval mode: each module's mode is restored, and training notices nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from headscope.attention.precision import exact_products


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


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Run the model in eval mode inside the block, and restore everything that training depends on.

    Each module's training mode is restored, and so are torch's random numbers on the CPU and on the model's device. No
    gradients are recorded, so those that were accumulated stay. Autocast is off and products of fp32 numbers are exact:
    numbers come in the weights' precision wherever a step stands, and no cast that autocast keeps without gradients
    reaches the training around the block.
    Inference mode isn't used, because a buffer that a model keeps from such a pass can't take part in training.
    """
    device = device_of(model)
    devices = [device] if device.type not in ("cpu", "mps") else []
    kind = device.type if devices else "cuda"
    with (
        evaluating(model),
        torch.random.fork_rng(devices, device_type=kind),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
        exact_products(),
    ):
        yield


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's first parameter that has numbers; the CPU if none has."""
    return next((parameter.device for parameter in model.parameters() if not parameter.is_meta), torch.device("cpu"))


def together(numbers: Sequence[torch.Tensor]) -> torch.Tensor:
    """Numbers, which may be on several devices, in one tensor: to read them waits for a device once."""
    return torch.stack([number.to(numbers[0].device) for number in numbers]) if numbers else torch.zeros(0)
