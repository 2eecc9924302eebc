"""The plan of a model: its modules that attend, sorted into stacks and their layers numbered, before anything runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from headscope.checkpoint.models_in_memory import WRAPPERS
from headscope.checkpoint.weights_elsewhere import refuse_sharded, with_numbers
from headscope.errors import UnsupportedError
from headscope.live.plan.classes import LIBRARIES, classes_where, kind_of, models_in
from headscope.live.plan.refusals import WITHOUT_WEIGHTS, attends, opaque_modules, refuse_unreadable
from headscope.live.seeing.readers import reader_of

CROSS = re.compile(
    r"cross|encoder_attn|encdec|encoder_decoder|multihead_attn|src_attn|encoder_attention", re.IGNORECASE
)
"""Names of modules whose keys come from another sequence."""

CONTAINERS = re.compile(
    r"(model|module|layers?|blocks?|h|stages?|self|attn|attention|selfattention|self_attn|self_attention|transformer"
    r"|base_model|resblocks|temporal_block|layer_module|mixer|\*)$",
    re.IGNORECASE,
)
"""Parts of a module's name that don't identify its stack."""

COUNTED = re.compile(r"(.*_)\d+")
"""A name that ends in a number, such as torchvision's for the blocks of an nn.Sequential: `encoder_layer_0`."""

NUMBERED = re.compile(r"(.*\.)?\d+(?=\.|$)")
"""The part of a name that ends with its last number."""


@dataclass(frozen=True)
class Stack:
    """The attention modules that have the same role in successive layers.

    Attributes:
        pattern: their common name in the model, with layer numbers replaced by *: `encoder.layers.*.self_attn`.
        name: a short name, unique within the model: self, cross, encoder, decoder, vision_model, ….
        cross: True if keys come from another sequence than queries.
        call: 0 for the first attention that a layer's module computes each time it runs; 1 for the second, which is a
            separate stack, `self.2`; and so on.
    """

    pattern: str
    name: str
    cross: bool
    call: int = 0

    @property
    def base(self) -> str:
        """The stack's name without the number of the call."""
        return self.name if not self.call else self.name.removesuffix(f".{self.call + 1}")


NOWHERE = Stack("", "", False)
"""The stack of a call whose place isn't known yet."""


@dataclass(frozen=True)
class Place:
    """The place of a call in the model.

    Attributes:
        stack: the stack; for a module that attends more than once each time it runs, the stack of this call.
        layer: the layer's number, as the model counts.
        turn: number of earlier calls, in this forward pass, of the transformer that the module is part of.
    """

    stack: Stack
    layer: int
    turn: int


class Plan:
    """The modules of a model, with the attention modules sorted into stacks.

    Args:
        attending: ids of the attention modules.
        transformers: transformers that they may be parts of.

    Attributes:
        modules: all modules of the model, with their names.
        known: module id -> name, for all modules.
        paths: module id -> name, for attention modules.
        stacks: module id -> stack, for attention modules.
        names: the stacks' names in the model's order, followed by those discovered while it ran.
        opaque: ids of modules that, judging by their code, compute attention that capture cannot see: any softmax they
            run is attention.
        homes: module id -> id of the transformer that the attention module is part of, if it is part of one; each call
            of the transformer starts at its first layer.
        layers: module id -> id of the closest element of a list that the attention module is part of.
        readers: module id -> name, for modules that may read an attention's output: adapters, and those with numbers.
        looped: reader's id -> for each attention module in whose list it is, the module's id and its name from there.
    """

    def __init__(
        self,
        modules: tuple[tuple[str, nn.Module], ...],
        attending: Collection[int],
        transformers: Iterable[nn.Module],
        opaque: frozenset[int],
    ) -> None:
        self.modules = modules
        self.opaque = opaque
        self.known = {id(module): path for path, module in modules}
        self.paths: dict[int, str] = {}
        self.stacks: dict[int, Stack] = {}
        self.names: tuple[str, ...] = ()
        self.homes: dict[int, int] = {}
        self.layers: dict[int, int] = {}
        may_read = (is_linear, _has_numbers, is_adapter)
        self.readers = {id(module): path for path, module in modules if any(reads(module) for reads in may_read)}
        self._numbers: dict[int, int] = {}
        self._of_lists: dict[str, int] = {}
        self._transformers = {id(transformer) for transformer in transformers}
        members: dict[str, list[tuple[str, nn.Module]]] = {}
        for path, module in modules:
            if id(module) in attending:
                members.setdefault(_pattern_of(path, self._by_name), []).append((path, module))
        names = _names(list(members))
        for pattern, stack_members in members.items():
            self._add(Stack(pattern, names[pattern], _is_cross(pattern)), stack_members)
        self.looped = self._looped()

    def __repr__(self) -> str:
        return f"{len(self.paths)} attention modules in the stacks {', '.join(self.names)}"

    @cached_property
    def _by_name(self) -> dict[str, nn.Module]:
        return dict(self.modules)

    def number(self, module: nn.Module) -> int:
        """The layer number of an attention module, as the model counts.

        It is the module's layer_idx, or the number of the block it is part of, or its position within its stack.
        """
        return self._numbers[id(module)]

    def beside(self, module: nn.Module) -> tuple[int, ...]:
        """Ids of the attention modules in the nn.ModuleList that has this one as an element; () if there is none."""
        around = self._by_name.get(self.list_of(module)) if "." in self.paths[id(module)] else None
        if not isinstance(around, nn.ModuleList):
            return ()
        return tuple(id(element) for element in around if id(element) in self.paths)

    def list_of(self, module: nn.Module) -> str:
        """The name of the list that has an attention module as an element."""
        return self.paths[id(module)].rpartition(".")[0]

    def number_of_list(self, module: nn.Module) -> int:
        """The layer number of the list that has an attention module as an element, if its elements are heads."""
        return self._of_lists[self.list_of(module)]

    def idle(self, called: nn.Module, read: Collection[int]) -> dict[str, nn.Module]:
        """The attention modules of a module that was called, by their names, of which no call was read.

        Args:
            called: the module.
            read: ids of those with a call that was read.
        """
        name = self.known.get(id(called), "")
        return {
            path: module
            for path, module in self.modules
            if id(module) in self.paths and id(module) not in read and within(path, name)
        }

    def admit(self, module: nn.Module) -> list[nn.Module]:
        """Add a module that turned out to compute attention; if it starts a new stack, add all modules like it.

        Returns:
            The modules added; none if this module's layer can't be determined.
        """
        path = self.known[id(module)]
        pattern = _pattern_of(path, self._by_name)
        stack = next((known for known in self.stacks.values() if known.pattern == pattern), None)
        if stack is None:
            name = _names([*{known.pattern for known in self.stacks.values()}, pattern])[pattern]
            name = pattern if name in self.names else name
            alike = [(path, member) for path, member in self.modules if type(member) is type(module)]
            alike = [(path, member) for path, member in alike if _pattern_of(path, self._by_name) == pattern]
            self._add(Stack(pattern, name, _is_cross(pattern)), alike)
            self.looped = self._looped()
            return [member for _, member in alike]
        if id(module) not in self._numbers:
            return []
        self._enter(stack, path, module)
        return [module]

    def _looped(self) -> dict[int, list[tuple[int, str]]]:
        """The readers in lists of an attention module whose elements don't attend themselves, as `looped` has them."""
        ids = {path: module for module, path in self.paths.items() if not isinstance(self._by_name[path], GraphModule)}
        around = {path[:at] for path in ids for at, letter in enumerate(path + ".") if letter == "."} | {""}
        found: dict[int, list[tuple[int, str]]] = {}
        for reader, path in self.readers.items():
            numbered = NUMBERED.match(path)
            if numbered is None or numbered[0] in around or not may_project(self._by_name[path]):
                continue
            parts = path.split(".")
            first = next((at for at, part in enumerate(parts) if ".".join(parts[: at + 1]) not in around), len(parts))
            for length in range(first + 1):
                above = ".".join(parts[:length])
                if above in ids:
                    found.setdefault(reader, []).append((ids[above], ".".join(parts[length:])))
        return found

    def has_layers(self, module: nn.Module) -> bool:
        """Return True if an attention module without others like it has a list whose elements have parts."""
        stack = self.stacks[id(module)]
        return sum(other == stack for other in self.stacks.values()) == 1 and any(
            len(child) > 1 and all(any(element.children()) for element in child.children())
            for child in module.children()
            if isinstance(child, (nn.ModuleList, nn.ModuleDict, nn.Sequential))
        )

    def part(self, stack: Stack, call: int) -> Stack:
        """The stack of one of a layer's calls of attention after the first: `stack.2` for call 1, …."""
        part = replace(stack, name=f"{stack.name}.{call + 1}", call=call)
        if part.name not in self.names:
            self.names += (part.name,)
        return part

    def _add(self, stack: Stack, members: list[tuple[str, nn.Module]]) -> None:
        self.names += (stack.name,)
        for path, module in members:
            self._enter(stack, path, module)
        # Include modules that only look like attention: discovering one later must not change the others' numbers.
        classes = {type(module) for _, module in members}
        classes |= classes_where((module for _, module in self.modules), lambda kind: kind.may_attend)
        alike = [
            (path, module)
            for path, module in self.modules
            if type(module) in classes and _pattern_of(path, self._by_name) == stack.pattern
        ]
        numbers = [getattr(module, "layer_idx", None) for _, module in alike]
        integers = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        if not integers or len({*numbers}) < len(numbers):
            numbers = _counted([self._unwrapped(path) for path, _ in alike], stack.pattern)
        for place, ((_, module), number) in enumerate(zip(alike, numbers, strict=True)):
            self._numbers[id(module)] = place if number is None else number
        lists = [*dict.fromkeys(path.rpartition(".")[0] for path, _ in alike)]
        for place, (path, number) in enumerate(
            zip(lists, _counted([*map(self._unwrapped, lists)], stack.pattern.rpartition(".")[0]), strict=True)
        ):
            self._of_lists[path] = place if number is None else number

    def _unwrapped(self, path: str) -> str:
        return ".".join(part for part, _ in _parts(path, self._by_name))

    def _enter(self, stack: Stack, path: str, module: nn.Module) -> None:
        self.paths[id(module)] = path
        self.stacks[id(module)] = stack
        parts = path.split(".")
        numbered = [at + 1 for at, part in enumerate(parts[:-1]) if part.isdigit()]
        if numbered and (layer := self._by_name.get(".".join(parts[: numbered[-1]]))) is not None:
            self.layers[id(module)] = id(layer)
        for length in range(len(parts) - 1, -1, -1):
            above = self._by_name.get(".".join(parts[:length]))
            if above is not None and id(above) in self._transformers:
                self.homes[id(module)] = id(above)
                return


def within(path: str, other: str) -> bool:
    """Return True if a module is another one or a part of it, by their names."""
    return not other or f"{path}.".startswith(f"{other}.")


def _parts(path: str, modules: Mapping[str, nn.Module]) -> list[tuple[str, nn.Module | None]]:
    """The parts of a module's name, each with the module that has it, without those of wrappers of one module."""
    parts = path.split(".")
    around = [modules.get(".".join(parts[:at])) for at in range(len(parts))]
    return [
        (part, parent)
        for part, parent in zip(parts, around, strict=True)
        if part not in WRAPPERS or parent is None or len(parent._modules) > 1
    ]


def _pattern_of(path: str, modules: Mapping[str, nn.Module]) -> str:
    """A module's name with its layer numbers replaced by *: `encoder.layer.*.attention.self`.

    A number at the end of a name is a layer number only in a container: attributes such as attn_1 and attn_2 have
    different roles.
    """
    pattern = []
    for part, parent in _parts(path, modules):
        match = COUNTED.fullmatch(part) if isinstance(parent, (nn.Sequential, nn.ModuleDict)) else None
        pattern.append("*" if part.isdigit() else f"{match[1]}*" if match else part)
    return ".".join(pattern)


def _counted(paths: list[str], pattern: str) -> list[int | None]:
    """The numbers of the layers that these modules are part of: `blocks.7.attn` is layer 7. None for unnumbered ones.

    Modules that are list elements themselves are numbered by position: other elements may not be layers.
    """
    stars = [at for at, part in enumerate(pattern.split(".")[:-1]) if "*" in part]
    columns = [[path.split(".")[at].rpartition("_")[2] for path in paths] for at in stars]
    telling = [column for column in columns if len({*column}) == len(paths)] if len(stars) > 1 else columns
    if len(telling) != 1 or (len(stars) > 1 and len(paths) == 1):
        return [None] * len(paths)
    return [int(number) for number in telling[0]]


def _is_cross(pattern: str) -> bool:
    return CROSS.search(".".join(pattern.split(".")[-3:])) is not None


def _names(patterns: list[str]) -> dict[str, str]:
    """A short name for each pattern: self or cross if that identifies it, else the part of the name that differs."""
    telling = {
        pattern: [part for part in pattern.split(".")[:-1] if not CONTAINERS.match(part)] for pattern in patterns
    }
    self_attention = [pattern for pattern in patterns if not _is_cross(pattern)]
    short: dict[str, str] = {}
    for pattern in patterns:
        if _is_cross(pattern):
            short[pattern] = "cross"
            continue
        others = {part for other in self_attention if other != pattern for part in telling[other]}
        unique = [part for part in telling[pattern] if part not in others]
        short[pattern] = "self" if len(patterns) == 1 else (unique or telling[pattern] or ["self"])[0]
    taken = list(short.values())
    return {pattern: name if taken.count(name) == 1 else pattern for pattern, name in short.items()}


def may_project(module: nn.Module) -> bool:
    """Return True for Linears, and for modules that have one and numbers of their own, as adapters do."""
    return is_linear(module) or (_has_numbers(module) and any(map(is_linear, module.children())))


def _has_numbers(module: nn.Module) -> bool:
    """Return True if parameters or buffers are a module's own, or in a ParameterDict or the like."""
    own = (*module._parameters.values(), *module._buffers.values())
    holders = (one for one in module.children() if getattr(type(one), "forward", None) is nn.Module.forward)
    return any(numbers is not None for numbers in own) or any(map(_has_numbers, holders))


def is_idle(module: nn.Module, given: Mapping[str, Any]) -> bool:
    """Return True for an adapter of peft that is switched off, part of the weight that it stands around, or not used.

    Args:
        module: a module that may be an adapter.
        given: its keyword arguments, which may name adapters for the rows of the batch.
    """
    off = any(getattr(module, name, None) is True for name in ("disable_adapters", "merged"))
    if off or not is_adapter(module):
        return off
    used = (*module.active_adapters, *(given.get("adapter_names") or ()))  # type: ignore[misc]
    parts = (part for part in module.children() if isinstance(part, (nn.ModuleDict, nn.ParameterDict)))
    return not any(name in part for part in parts for name in used)


def is_adapter(module: nn.Module) -> bool:
    """Return True for an adapter of peft: its parts may read copies of the contexts, of some rows, or dropped."""
    return "base_layer" in module._modules and hasattr(module, "active_adapters")


def is_linear(module: nn.Module) -> bool:
    """Return True for nn.Linear, quantised or not, and transformers' Conv1D, which stores W rather than W^T."""
    return isinstance(module, nn.Linear) or is_conv1d(module) or packs_linear(module)


def packs_linear(module: nn.Module) -> bool:
    """Return True for a Linear that PyTorch has quantised: its weight is a method."""
    return type(module).__name__ == "Linear" and type(module).__module__.startswith("torch.ao.nn.quantized")


def is_conv1d(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"


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
    plan = Plan(modules, attending, [*models_in(members), *towers], frozenset(id(module) for _, module in opaque))
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
            for tensor_name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if type(tensor) is not nn.Parameter:
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


def refuse_without_numbers(model: nn.Module, plan: Plan) -> None:
    """Raise an error if the attention's parameters are on the meta device, and nothing brings their numbers back.

    Raises:
        UnsupportedError: the first of them has no numbers.
    """
    attending = ((path, module) for path, module in plan.modules if id(module) in plan.paths)
    named = (each for path, module in attending for each in module.named_parameters(prefix=path))
    if (first := next((name for name, parameter in named if parameter.is_meta), None)) is not None:
        with_numbers(model, first, type(model).__name__)  # they may be on a disk
