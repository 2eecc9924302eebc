"""The plan of a model: found once, and used again for as long as the model stays as it is.

A plan follows from the model's modules: their tree, their classes and what those run, and a few of their settings. All
of that is compared before a plan is used again, so a model that was changed gets a new one. A plan that is kept holds
no module alive.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from headscope.checkpoint.elsewhere import refuse_sharded
from headscope.errors import UnsupportedError
from headscope.live.plan.classes import calls_sdpa, classes_where, models_in
from headscope.live.plan.refusals import WITHOUT_WEIGHTS, opaque_modules, refuse_unreadable
from headscope.live.plan.stacks import Plan
from headscope.live.seeing import multihead
from headscope.live.seeing.readers import reader_of, reads

NO_KNOWN_WAY = "no module uses transformers' attention interface, nn.MultiheadAttention or scaled_dot_product_attention"


class Kept(NamedTuple):
    """A plan without its modules, and what it follows from.

    Attributes:
        modules: weak references to the modules.
        state: theirs when the plan was found: see `_state`.
        plan: the plan.
    """

    modules: tuple[weakref.ref[nn.Module], ...]
    state: list[Any]
    plan: Plan

    def renewed(self) -> Plan | None:
        """The plan of the same modules; None if anything that it follows from has changed."""
        modules = [module for reference in self.modules if (module := reference()) is not None]
        if len(modules) < len(self.modules) or _state(modules, self.plan) != self.state:
            return None
        return self.plan.over(tuple(zip(self.plan.known.values(), modules, strict=True)))


KEPT: dict[tuple[int, bool], Kept] = {}
"""(id of a model, strict) -> its plan. A model takes its plans with it."""


def plan_of(model: nn.Module, *, strict: bool = True) -> Plan:
    """The attention modules of a model, checked before anything runs.

    Args:
        model: the model.
        strict: True to raise an error even if only one of its attention modules can't be captured.

    Raises:
        UnsupportedError: the model has attention that can't be captured, or no attention at all.
    """
    if isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
        raise UnsupportedError(
            f"nn.DataParallel runs replicas of the model on {len(model.device_ids)} devices, which can't be captured",
            where=type(model).__name__,
            advice="capture the wrapped model: with hs.capture(model.module): model.module(**inputs)",
        )
    at = id(model), strict
    kept = KEPT.get(at)
    renewed = kept.renewed() if kept is not None and kept.modules[0]() is model else None
    if "torch.distributed.tensor" in sys.modules:
        for path, module in model.named_modules() if renewed is None else renewed.modules:
            for name, tensor in chain(module._parameters.items(), module._buffers.items()):
                refuse_sharded(tensor, f"{path}.{name}".lstrip("."), type(model).__name__)
    if renewed is not None:
        return renewed
    plan = _found(model, strict)
    modules = [module for _, module in plan.modules]
    classes: set[type[nn.Module]] = set(map(type, modules))
    if all(cls.named_modules is nn.Module.named_modules for cls in classes):
        if at not in KEPT:
            weakref.finalize(model, KEPT.pop, at, None).atexit = False
        KEPT[at] = Kept(tuple(map(weakref.ref, modules)), _state(modules, plan), plan.over(()))
    return plan


def has_modules(model: nn.Module, plan: Plan) -> bool:
    """Return True if these are a plan's modules: none was replaced since."""
    return [id(module) for module in model.modules()] == list(plan.known)


def _found(model: nn.Module, strict: bool) -> Plan:
    name = type(model).__name__
    modules = tuple(model.named_modules())
    opaque = opaque_modules(modules)
    if strict:
        refuse_unreadable(name, opaque)
    members = [module for _, module in modules]
    interface = classes_where(members, lambda kind: kind.uses_interface)
    scripts = [module for module in members if isinstance(module, torch.jit.ScriptModule)]
    inside = {id(part) for script in scripts for part in script.modules() if part is not script}  # no frame shows them

    def attends(module: nn.Module) -> bool:
        calls = calls_sdpa(module) and id(module) not in inside
        return type(module) in interface or calls or multihead.is_attention(module) or reads(module)

    plan = Plan(
        modules,
        attends,
        [
            *models_in(members),
            *(module for module in members if isinstance(module, (nn.TransformerEncoder, nn.TransformerDecoder))),
        ],
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


def _children(module: nn.Module) -> tuple[Any, ...]:
    """The names and ids of a module's children, and True if it has parameters beside them; () if it has no children."""
    children = module._modules
    if not children:
        return ()
    owns = any(parameter is not None for parameter in module._parameters.values())
    return (*children.keys(), *map(id, children.values()), owns)


def _state(modules: Sequence[nn.Module], plan: Plan) -> list[Any]:
    """The facts that a plan follows from.

    These are the modules' classes with their forward functions and their children, what readers say of those that have
    one, which of them attend, and layer numbers of those that may.
    """
    classes = list(map(type, modules))
    forwards = {cls: getattr(cls, "forward", None) for cls in dict.fromkeys(classes)}
    readable = {cls for cls in forwards if reader_of(cls) is not None}
    readings = [reads(module) for module in modules if type(module) in readable]
    readings += [calls_sdpa(module) for module in modules]
    numbers = [getattr(module, "layer_idx", None) for module in modules if id(module) in plan.numbered]
    return [classes, list(map(_children, modules)), forwards, readings, numbers]
