"""The plan of a model: its modules that attend, found before anything runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import chain

import torch
from torch import nn

from headscope.checkpoint.models_in_memory import refuse_sharded
from headscope.errors import UnsupportedError
from headscope.live.plan.classes import LIBRARIES, kind_of, models_in
from headscope.live.plan.refusals import WITHOUT_WEIGHTS, attends, opaque_modules, refuse_unreadable
from headscope.live.plan.stacks import Plan
from headscope.live.seeing.readers import reader_of

NO_KNOWN_WAY = "no module uses transformers' attention interface, nn.MultiheadAttention or scaled_dot_product_attention"


def plan_of(model: nn.Module, *, strict: bool = True) -> Plan:
    """The attention modules of a model, checked before anything runs.

    Args:
        model: the model.
        strict: True to raise an error even if only one of its attention modules can't be captured.

    Raises:
        UnsupportedError: the model has attention that can't be captured, or no attention at all.
    """
    name, modules = type(model).__name__, tuple(model.named_modules())
    _refuse_several_devices(model, modules)
    opaque = opaque_modules(modules)
    if strict:
        refuse_unreadable(name, opaque)
    members = [module for _, module in modules]
    scripts = [module for module in members if isinstance(module, torch.jit.ScriptModule)]
    attending = _attending(members, scripts)
    towers = [module for module in members if isinstance(module, (nn.TransformerEncoder, nn.TransformerDecoder))]
    plan = Plan(
        modules,
        lambda module: id(module) in attending,
        [*models_in(members), *towers],
        opaque=frozenset(id(module) for _, module in opaque),
    )
    if not plan.paths:
        model_type = getattr(getattr(model, "config", None), "model_type", "")
        reason = WITHOUT_WEIGHTS.get(model_type, NO_KNOWN_WAY)
        raise UnsupportedError(
            f"{name} has no attention that can be captured: {reason}",
            where=name,
            advice="capture a model that uses one of these" + (", before it is traced or scripted" if scripts else ""),
        )
    return plan


def _refuse_several_devices(model: nn.Module, modules: Sequence[tuple[str, nn.Module]]) -> None:
    """Raise an error for a model that runs as replicas, or whose parameters are in parts over processes."""
    name = type(model).__name__
    if isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
        raise UnsupportedError(
            f"nn.DataParallel runs replicas of the model on {len(model.device_ids)} devices, which can't be captured",
            where=name,
            advice="capture the wrapped model: with hs.capture(model.module): model.module(**inputs)",
        )
    if "torch.distributed.tensor" in sys.modules:
        for path, module in modules:
            for tensor_name, tensor in chain(module._parameters.items(), module._buffers.items()):
                refuse_sharded(tensor, f"{path}.{tensor_name}".lstrip("."), name)


def _attending(members: Sequence[nn.Module], scripts: Sequence[nn.Module]) -> set[int]:
    """Ids of the modules that attend in a way that capture sees; of those in TorchScript, no frame shows a part."""
    inside = {id(part) for script in scripts for part in script.modules() if part is not script}
    candidates = set(filter(_may_attend, set(map(type, members))))
    attending = (module for module in members if type(module) in candidates and id(module) not in inside)
    return {id(module) for module in attending if attends(module)}


def _may_attend(cls: type[nn.Module]) -> bool:
    """Return False for classes of which no module attends: of the libraries', that is known without a look at each."""
    kind = kind_of(cls)
    asked = not cls.__module__.startswith(LIBRARIES) or issubclass(cls, (nn.MultiheadAttention, torch.jit.ScriptModule))
    return asked or kind.uses_interface or kind.calls_sdpa or reader_of(cls) is not None
