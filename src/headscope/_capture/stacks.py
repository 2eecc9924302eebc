"""Which attention modules a model has, sorted into stacks and numbered before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from torch import nn

from headscope._capture.calls import Stack
from headscope._capture.classes import kind_of

CROSS = re.compile(
    r"cross|encoder_attn|encdec|encoder_decoder|multihead_attn|src_attn|encoder_attention", re.IGNORECASE
)
"""Names of modules whose keys come from elsewhere."""

CONTAINERS = re.compile(
    r"(model|module|layers?|blocks?|h|stages?|self|attn|attention|selfattention|self_attn|self_attention|transformer"
    r"|base_model|resblocks|temporal_block|layer_module|mixer|\*)$",
    re.IGNORECASE,
)
"""Parts of a module's name that tell nothing about which stack it is."""

COUNTED = re.compile(r"(.*_)\d+")
"""A name with a number at its end, as torchvision gives to the blocks of an nn.Sequential: `encoder_layer_0`."""


class Plan:
    """The modules of a model as they were found, and those of attention sorted into stacks.

    Attributes:
        modules: all of them with their names in the model.
        known: the names of all of them, by id.
        paths: each attention module, by id, and its name in the model.
        stacks: the stack of each, by id.
        homes: for each, by id, the id of the transformer it is part of, where it is part of one; each call of that one
            begins at its first layer.
    """

    def __init__(
        self,
        modules: tuple[tuple[str, nn.Module], ...],
        is_attention: Callable[[nn.Module], bool],
        transformers: Iterable[nn.Module] = (),
    ) -> None:
        self.modules = modules
        self.known = {id(module): path for path, module in modules}
        self.paths: dict[int, str] = {}
        self.stacks: dict[int, Stack] = {}
        self.homes: dict[int, int] = {}
        self._by_name = dict(modules)
        self._numbers: dict[int, int] = {}
        self._names: list[str] = []
        self._transformers = {id(one) for one in transformers}
        members: dict[str, list[tuple[str, nn.Module]]] = {}
        for path, module in modules:
            if is_attention(module):
                members.setdefault(pattern_of(path, self._by_name), []).append((path, module))
        names = _names(list(members))
        for pattern, found in members.items():
            self._add(Stack(pattern, names[pattern], _is_cross(pattern)), found)

    @property
    def names(self) -> tuple[str, ...]:
        """The stacks' names, in the model's order; those that were met while it ran stand last."""
        return tuple(self._names)

    def number(self, module: nn.Module) -> int:
        """The layer that an attention module is, as the model counts.

        By its layer_idx, else the number of the block that it is part of, else its place among its like.
        """
        return self._numbers[id(module)]

    def members(self, name: str) -> list[nn.Module]:
        """The attention modules of a stack, in the model's order."""
        return [
            module for _, module in self.modules if id(module) in self.paths and self.stacks[id(module)].name == name
        ]

    def admit(self, module: nn.Module) -> list[nn.Module]:
        """Take in a module that was found to compute attention as it ran, and those like it where it founds a stack.

        Returns:
            The modules that were taken in; none where this one's layer can't be told.
        """
        path = self.known[id(module)]
        pattern = pattern_of(path, self._by_name)
        stack = next((one for one in self.stacks.values() if one.pattern == pattern), None)
        if stack is None:
            name = _names([*{one.pattern for one in self.stacks.values()}, pattern])[pattern]
            name = pattern if name in self._names else name
            alike = [(path, one) for path, one in self.modules if type(one) is type(module)]
            alike = [(path, one) for path, one in alike if pattern_of(path, self._by_name) == pattern]
            self._add(Stack(pattern, name, _is_cross(pattern)), alike)
            return [one for _, one in alike]
        if id(module) not in self._numbers:
            return []
        self._enter(stack, path, module)
        return [module]

    def part(self, stack: Stack, call: int) -> Stack:
        """The stack of a layer's second, third, … call of attention; `stack` itself for the first, call 0."""
        if not call:
            return stack
        part = replace(stack, name=f"{stack.name}.{call + 1}", call=call)
        if part.name not in self._names:
            self._names.append(part.name)
        return part

    def _add(self, stack: Stack, members: list[tuple[str, nn.Module]]) -> None:
        self._names.append(stack.name)
        for path, module in members:
            self._enter(stack, path, module)
        # Also those that only look like attention: one that is met as it runs must not change the others' numbers.
        classes = {type(module) for _, module in members}
        alike = [
            (path, module)
            for path, module in self.modules
            if (type(module) in classes or kind_of(type(module)).may_attend)
            and pattern_of(path, self._by_name) == stack.pattern
        ]
        told = [getattr(module, "layer_idx", None) for _, module in alike]
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in told) or len({*told}) < len(told):
            told = _counted([path for path, _ in alike], stack.pattern)
        for place, ((_, module), number) in enumerate(zip(alike, told, strict=True)):
            self._numbers[id(module)] = place if number is None else number

    def _enter(self, stack: Stack, path: str, module: nn.Module) -> None:
        self.paths[id(module)] = path
        self.stacks[id(module)] = stack
        parts = path.split(".")
        for length in range(len(parts) - 1, -1, -1):
            above = self._by_name.get(".".join(parts[:length]))
            if above is not None and id(above) in self._transformers:
                self.homes[id(module)] = id(above)
                return


def pattern_of(path: str, modules: Mapping[str, nn.Module]) -> str:
    """A module's name with its counting numbers left out: `encoder.layer.*.attention.self`.

    A number at the end of a name counts only in a container: attributes such as attn_1 and attn_2 are two things.
    """
    parts = path.split(".")
    for at, part in enumerate(parts):
        if part.isdigit():
            parts[at] = "*"
        elif found := COUNTED.fullmatch(part):
            inside = modules.get(".".join(path.split(".")[:at]))
            parts[at] = f"{found[1]}*" if isinstance(inside, (nn.Sequential, nn.ModuleDict)) else part
    return ".".join(parts)


def _counted(paths: list[str], pattern: str) -> list[int | None]:
    """The numbers of the layers that these modules are parts of: `blocks.7.attn` is layer 7. None where none are.

    Elements of a list themselves are counted instead: what stands between them may be no layers.
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
    """A short name for each pattern: self or cross where that says it, else the part of the name that differs."""
    telling = {
        pattern: [part for part in pattern.split(".")[:-1] if not CONTAINERS.match(part)] for pattern in patterns
    }
    own = [pattern for pattern in patterns if not _is_cross(pattern)]
    short: dict[str, str] = {}
    for pattern in patterns:
        if _is_cross(pattern):
            short[pattern] = "cross"
            continue
        others = {part for other in own if other != pattern for part in telling[other]}
        unlike = [part for part in telling[pattern] if part not in others]
        short[pattern] = "self" if len(patterns) == 1 else (unlike or telling[pattern] or ["self"])[0]
    taken = list(short.values())
    return {pattern: name if taken.count(name) == 1 else pattern for pattern, name in short.items()}
