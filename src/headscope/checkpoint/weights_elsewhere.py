"""Weights of a live model that are elsewhere: offloaded by accelerate, or in parts over several processes.

Between passes, parameters that accelerate offloads (cpu_offload, disk_offload, device_map="auto") are on the meta
device: shapes without numbers. A hook of the module, or of one that contains it, knows where the numbers are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headscope.errors import UnsupportedError

ADVICE = "load the model with its weights; of an offloaded one, those that accelerate's hooks keep are read"


def stored(model: Any, name: str) -> Any:
    """A parameter of an nn.Module by its name, with its numbers if a hook keeps them; None if it has none."""
    path, _, attribute = name.lstrip(".").rpartition(".")
    try:
        x = getattr(model.get_submodule(path), attribute, None)
    except AttributeError:
        return None  # its layer was taken out
    if not _is_meta(x):
        return x
    return next((weights[rest] for rest, weights in _maps(model, name) if rest in weights), x)


def _maps(model: Any, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Tensors that the hooks around a parameter keep, each time with the name that the parameter has there."""
    parts = name.lstrip(".").split(".")
    for length in range(len(parts) - 1, -1, -1):
        hook = getattr(model.get_submodule(".".join(parts[:length])), "_hf_hook", None)
        for each in getattr(hook, "hooks", (hook,)):
            if (weights := getattr(each, "weights_map", None)) is not None:
                yield ".".join(parts[length:]), weights


def with_numbers(model: Any, name: str, where: str) -> Any:
    """A parameter of an nn.Module by its name, as `stored` returns it.

    Raises:
        UnsupportedError: nothing keeps its numbers, or this process has only some of them.
    """
    x = stored(model, name)
    refuse_meta(x, name, where)
    refuse_sharded(x, name, type(model).__name__)
    return x


def refuse_meta(x: Any, name: str, where: str) -> None:
    """Raise an error for a tensor on the meta device.

    Raises:
        UnsupportedError: it is on the meta device.
    """
    if _is_meta(x):
        raise UnsupportedError(
            f"{name} is on the meta device: it has a shape, but no numbers", where=where, advice=ADVICE
        )


def refuse_sharded(x: Any, name: str, model: str) -> None:
    """Raise an error for a DTensor, of which each process has a part: some of the heads, or of the weights.

    Raises:
        UnsupportedError: it is a DTensor, as in tensor parallelism and FSDP2.
    """
    if type(x).__name__ == "DTensor":
        places = ", ".join(map(str, x.placements))
        raise UnsupportedError(
            f"{model}: {name} is a DTensor over {x.device_mesh.size()} processes ({places}), as in tensor parallelism "
            "and FSDP2, so this process has only a part of the heads or weights",
            where=name,
            advice="use the model in one process, before it is parallelised: load it without tp_plan",
        )


def _is_meta(x: Any) -> bool:
    return getattr(x, "is_meta", False) is True


def is_wrapped(x: Any) -> bool:
    """Return True for a tensor that keeps its numbers in others, as torchao's quantised weights and DTensors do."""
    return hasattr(x, "__tensor_flatten__")
