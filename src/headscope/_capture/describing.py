"""`hs.describe(module)`: the anatomy of any nn.Module: what it is made of, how many numbers, what repeats."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from headscope.errors import InputError, MissingExtraError, UnsupportedError


@dataclass(frozen=True)
class Part:
    """A module of the tree, or several alike in a row.

    Attributes:
        name: its name in its parent; `0-11` for a run of modules that are alike.
        label: its class, with the sizes that it prints for itself: `Linear(768, 3072)`.
        times: how many of it stand in a row.
        count: numbers in the parameters of one of them, its parts included.
        parts: what it is made of.
    """

    name: str
    label: str
    times: int
    count: int
    parts: tuple[Part, ...]

    def lines(self, depth: int = 0) -> Iterator[str]:
        """The tree as text, one line each."""
        times = f"{self.times} x " if self.times > 1 else ""
        name = f"{self.name}: " if self.name else ""
        yield f"{'  ' * depth}{name}{times}{self.label}  {self.count:,}"
        for part in self.parts:
            yield from part.lines(depth + 1)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "class": self.label,
            "times": self.times,
            "count": self.count,
            "parts": [part.to_dict() for part in self.parts],
        }


@dataclass(frozen=True)
class ComponentCount:
    """A child of the module.

    Attributes:
        name: its name.
        count: numbers in the parameters that are its own; one that it shares with an earlier child is counted there.
        share: of the whole.
        trainable: numbers that a gradient reaches.
    """

    name: str
    count: int
    share: float
    trainable: int


@dataclass(frozen=True)
class Description:
    """The anatomy of a module.

    Attributes:
        name: its class.
        total: numbers in all parameters, shared ones once.
        trainable: those that a gradient reaches.
        buffers: numbers in buffers.
        components: its children.
        tied: names of one and the same parameter.
        parameters: (name, shape, dtype, count, trainable) of each, shared ones once.
        tree: its modules, repeats collapsed.
    """

    name: str
    total: int
    trainable: int
    buffers: int
    components: tuple[ComponentCount, ...]
    tied: tuple[tuple[str, ...], ...]
    parameters: tuple[tuple[str, tuple[int, ...], str, int, bool], ...]
    tree: Part

    @property
    def frozen(self) -> int:
        """Numbers that no gradient reaches."""
        return self.total - self.trainable

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "class": self.name,
            "total": self.total,
            "trainable": self.trainable,
            "frozen": self.frozen,
            "buffers": self.buffers,
            "components": [{key: getattr(one, key) for key in one.__dataclass_fields__} for one in self.components],
            "tied": [list(names) for names in self.tied],
            "parameters": [
                {"name": name, "shape": list(shape), "dtype": dtype, "count": count, "trainable": trainable}
                for name, shape, dtype, count, trainable in self.parameters
            ],
            "tree": self.tree.to_dict(),
        }

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.total:,} numbers, {self.trainable:,} trainable, {self.frozen:,} frozen"]
        width = max([len(one.name) for one in self.components], default=0)
        lines += [f"  {one.name:<{width}}  {one.count:>15,}  {one.share:>7.2%}" for one in self.components]
        lines += [f"  tied: {' = '.join(names)}" for names in self.tied]
        return "\n".join([*lines, "", *self.tree.lines()])

    __repr__ = __str__


def describe(module: nn.Module) -> Description:
    """The anatomy of any nn.Module, on any device, the meta device included: nothing is computed.

    Raises:
        InputError: it is no module.
    """
    if not isinstance(module, nn.Module):
        raise InputError(
            f"{type(module).__name__} is no nn.Module", where="describe", advice="pass a model or a part of one"
        )
    names: dict[int, list[str]] = {}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), []).append(name)
    own = {id(parameter): parameter for parameter in parameters.values()}
    total = sum(parameter.numel() for parameter in own.values())
    components = []
    counted: set[int] = set()
    children = [(name, list(child.parameters())) for name, child in module.named_children()]
    loose = list(module.parameters(recurse=False))
    for name, inside in [("(itself)", loose)] * bool(loose) + children:
        fresh = {id(parameter): parameter for parameter in inside if id(parameter) not in counted}
        counted |= set(fresh)
        count = sum(parameter.numel() for parameter in fresh.values())
        trainable = sum(parameter.numel() for parameter in fresh.values() if parameter.requires_grad)
        components.append(ComponentCount(name, count, count / total if total else 0.0, trainable))
    return Description(
        name=type(module).__name__,
        total=total,
        trainable=sum(parameter.numel() for parameter in own.values() if parameter.requires_grad),
        buffers=sum(buffer.numel() for buffer in module.buffers()),
        components=tuple(components),
        tied=tuple(tuple(same) for same in names.values() if len(same) > 1),
        parameters=tuple(_row(same[0], own[key]) for key, same in names.items()),
        tree=_part("", module),
    )


def _row(name: str, parameter: nn.Parameter) -> tuple[str, tuple[int, ...], str, int, bool]:
    dtype = str(parameter.dtype).removeprefix("torch.")
    return name, tuple(parameter.shape), dtype, parameter.numel(), parameter.requires_grad


def _part(name: str, module: nn.Module) -> Part:
    runs: list[tuple[list[str], Part]] = []
    for child_name, child in module.named_children():
        one = _part(child_name, child)
        last = runs[-1][1] if runs else None
        alike = last is not None and (last.label, last.count, last.parts) == (one.label, one.count, one.parts)
        if alike and child_name.isdigit():
            runs[-1][0].append(child_name)
            continue
        runs.append(([child_name], one))
    parts = tuple(
        Part(names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}", one.label, len(names), one.count, one.parts)
        for names, one in runs
    )
    return Part(name, _label(module), 1, sum(parameter.numel() for parameter in module.parameters()), parts)


def _label(module: nn.Module) -> str:
    said = module.extra_repr() if not list(module.children()) else ""
    return f"{type(module).__name__}({said})" if said and "\n" not in said else type(module).__name__


def modules_of_checkpoint(config: dict[str, Any], class_name: str | None = None) -> Description:
    """The module tree of a checkpoint's class, built by transformers on the meta device: no weights are made or read.

    Args:
        config: config.json as read.
        class_name: the class; the first that the config's `architectures` names, else the base class of its model type.

    Raises:
        MissingExtraError: transformers is not installed.
        InputError: transformers has no such class, or knows no such model type.
        UnsupportedError: the class does not take this config.
    """
    import torch

    if importlib.util.find_spec("transformers") is None:
        raise MissingExtraError(
            "transformers, which builds the class, is not installed",
            where="modules",
            advice="pip install 'headscope[torch]'",
        )
    import transformers

    named = class_name or next(iter(config.get("architectures") or ()), None)
    model_type = str(config.get("model_type", ""))
    cls = getattr(transformers, named, None) if isinstance(named, str) else None
    if cls is None and named is None and model_type in transformers.CONFIG_MAPPING:
        cls = transformers.MODEL_MAPPING.get(transformers.CONFIG_MAPPING[model_type], None)
    is_model = isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
    if cls is None or not is_model:
        raise InputError(
            f"transformers {transformers.__version__} has no class {named or 'for model type ' + repr(model_type)}",
            where="config.json",
            advice="name a class that it has, or install another version of transformers",
        )
    try:
        with torch.device("meta"):
            built = cls(cls.config_class(**config))
    except Exception as error:
        raise UnsupportedError(
            f"{cls.__name__} of transformers {transformers.__version__} does not take the config: "
            + " ".join(str(error).split()),
            where="config.json",
            advice="correct config.json",
        ) from error
    return describe(built)
