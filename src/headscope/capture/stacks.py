"""Which attention modules a model has, sorted into stacks before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from headscope.capture.calls import Stack

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


@dataclass(frozen=True, eq=False)
class Plan:
    """The modules of a model as they were found, and those of attention sorted into stacks.

    Attributes:
        modules: all of them with their names in the model.
        paths: each attention module, by id, and its name in the model.
        stacks: the stack of each, by id.
        sizes: for each stack's name, how many modules it has.
    """

    modules: tuple[tuple[str, nn.Module], ...]
    paths: Mapping[int, str]
    stacks: Mapping[int, Stack]
    sizes: Mapping[str, int]

    @property
    def names(self) -> tuple[str, ...]:
        """The stacks' names, in the model's order."""
        return tuple(self.sizes)


COUNTED = re.compile(r"(.*_)\d+")
"""A name with a number at its end, as torchvision gives to the blocks of an nn.Sequential: `encoder_layer_0`."""


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


def plan(modules: tuple[tuple[str, nn.Module], ...], is_attention: Callable[[nn.Module], bool]) -> Plan:
    """Sort attention modules into stacks and give each stack a name of its own."""
    paths: dict[int, str] = {}
    members: dict[str, list[int]] = {}
    named = dict(modules)
    for path, module in modules:
        if not is_attention(module):
            continue
        paths[id(module)] = path
        members.setdefault(pattern_of(path, named), []).append(id(module))
    names = _names(list(members))
    stacks: dict[int, Stack] = {}
    for pattern, ids in members.items():
        stack = Stack(pattern, names[pattern], _is_cross(pattern))
        stacks.update(dict.fromkeys(ids, stack))
    return Plan(modules, paths, stacks, {names[pattern]: len(ids) for pattern, ids in members.items()})


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
