"""`hs.describe(module)`: the anatomy of any nn.Module: its parts, its parameter counts, its repeated modules."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from headscope.anatomy.parameters import Component, Components
from headscope.anatomy.tree import Node, collapsed
from headscope.checkpoint.json_text import few
from headscope.checkpoint.models_in_memory import unpacked
from headscope.errors import InputError, UnsupportedError, require
from headscope.live.plan.refusals import refuse_others


@dataclass(frozen=True)
class Description:
    """The anatomy of a module. `print(description)` shows its counts and its tree.

    Attributes:
        name: name of its class.
        total: number of parameters (scalars), shared ones counted once.
        trainable: number of those that require a gradient.
        buffers: number of scalars in buffers.
        components: the parameter counts of its children; parameters shared with an earlier child are counted there.
        tied: for each shared parameter tensor, all of its names.
        parameters: (name, shape, dtype, count, trainable) of each parameter tensor, shared ones once.
        tree: its modules as a tree, with repeats collapsed.
    """

    name: str
    total: int
    trainable: int
    buffers: int
    components: Components
    tied: tuple[tuple[str, ...], ...]
    parameters: tuple[tuple[str, tuple[int, ...], str, int, bool], ...]
    tree: Node

    @property
    def frozen(self) -> int:
        """Number of parameters that don't require a gradient."""
        return self.total - self.trainable

    def to_dict(self) -> dict[str, Any]:
        """The description as a dict for JSON."""
        return {
            "class": self.name,
            "total": self.total,
            "trainable": self.trainable,
            "frozen": self.frozen,
            "buffers": self.buffers,
            "components": self.components.rows(),
            "tied": [list(names) for names in self.tied],
            "parameters": [
                {"name": name, "shape": list(shape), "dtype": dtype, "count": count, "trainable": trainable}
                for name, shape, dtype, count, trainable in self.parameters
            ],
            "tree": asdict(self.tree),
        }

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.total:,} parameters, {self.trainable:,} trainable, {self.frozen:,} frozen"]
        lines += [f"  {line}" for line in repr(self.components).splitlines()]
        lines += [f"  tied: {' = '.join(names)}" for names in self.tied]
        return "\n".join([*lines, "", str(self.tree)])

    __repr__ = __str__


def describe(module: nn.Module) -> Description:
    """Describe any nn.Module: its parameter counts, its tied parameters and its tree of modules.

        print(hs.describe(model))
        hs.describe(model).total

    Nothing is computed, so the module can be on any device, including the meta device.

    Args:
        module: a model or a part of one; or a pipeline.

    Returns:
        The description. Counts are numbers of scalars; a shared parameter counts once. Weights that PyTorch's
        quantisation packs count, as frozen ones.

    Raises:
        InputError: `module` is not an nn.Module, or has parameters that are made by the first forward pass.
        UnsupportedError: a module packs its weights in a form that isn't known, or is frozen TorchScript.
    """
    module, _ = unpacked(module)
    refuse_others(module, "describe", "pass a model or a part of one; for a model from hs.open, look at its tree")
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule) and not hasattr(part, "training"):
            raise UnsupportedError(
                f"the weights of {type(part).__name__} are constants of frozen TorchScript, which can't be counted",
                where=path or "describe",
                advice="describe the model before it is traced, scripted or frozen",
            )
    unmade = [name for name, tensor in chain(module.named_parameters(), module.named_buffers()) if is_lazy(tensor)]
    if unmade:
        raise InputError(
            f"{few(unmade, 4)}: no shape before the first forward pass, as in a LazyLinear",
            where="describe",
            advice="call the module once on an input, then describe it",
        )
    names: dict[int, list[str]] = {}
    packed = _packed(module)
    parameters = _parameters(module, packed)
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), []).append(name)
    distinct = {id(parameter): parameter for parameter in parameters.values()}
    total = sum(parameter.numel() for parameter in distinct.values())
    components = []
    counted: set[int] = set()
    loose = [*module.parameters(recurse=False), *packed.get(id(module), {}).values()]
    children = [("(itself)", module, loose)] * bool(loose)
    children += [(name, child, list(_parameters(child, packed).values())) for name, child in module.named_children()]
    for name, child, inside in children:
        fresh = {id(parameter): parameter.numel() for parameter in inside if id(parameter) not in counted}
        counted |= set(fresh)
        count = sum(fresh.values())
        components.append(Component(name, count, count / total if total else 0.0, len(fresh), type(child).__name__))
    return Description(
        name=type(module).__name__,
        total=total,
        trainable=sum(parameter.numel() for parameter in distinct.values() if parameter.requires_grad),
        buffers=sum(buffer.numel() for buffer in module.buffers()),
        components=Components(components),
        tied=tuple(tuple(same) for same in names.values() if len(same) > 1),
        parameters=tuple(
            (same[0], tuple(x.shape), str(x.dtype).removeprefix("torch."), x.numel(), x.requires_grad)
            for x, same in zip(distinct.values(), names.values(), strict=True)
        ),
        tree=_node("", module, packed),
    )


def _packed(module: nn.Module) -> dict[int, dict[str, torch.Tensor]]:
    """The weights of PyTorch's quantised modules, which aren't parameters, by the ids of the modules.

    Raises:
        UnsupportedError: a module packs them in another form than Linears, convolutions and embeddings do.
    """
    found: dict[int, dict[str, torch.Tensor]] = {}
    inside: set[int] = set()
    registered = {id(parameter) for parameter in module.parameters()}
    for name, part in module.named_modules():
        if id(part) in inside or not type(part).__module__.startswith("torch.ao.nn.quantized"):
            continue
        inside |= {id(other) for other in part.modules()}
        tensors = {which: make() for which in ("weight", "bias") if callable(make := getattr(part, which, None))}
        if not tensors and list(part.state_dict()):
            raise UnsupportedError(
                f"{type(part).__name__} packs its weights in a form that can't be counted",
                where=name or "describe",
                advice="describe the model before quantising it",
            )
        found[id(part)] = {
            which: tensor if id(tensor) in registered else tensor.detach()
            for which, tensor in tensors.items()
            if isinstance(tensor, torch.Tensor)
        }
    return found


def _parameters(module: nn.Module, packed: dict[int, dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """All parameters by all of their names: packed ones, too, and one for those that offloading has untied."""
    parameters: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    offloaded = any(parameter.is_meta for parameter in parameters.values())
    for path, part in module.named_modules():
        tied = getattr(part, "all_tied_weights_keys", None) if offloaded else None
        for names in (tied or {}).items():
            name, source = (f"{path}.{one}" if path else one for one in names)
            if name in parameters and source in parameters:
                parameters[name] = parameters[source]
    for path, part in module.named_modules(remove_duplicate=False) if packed else ():
        for which, tensor in packed.get(id(part), {}).items():
            parameters[f"{path}.{which}" if path else which] = tensor
    return parameters


def _node(name: str, module: nn.Module, packed: dict[int, dict[str, torch.Tensor]]) -> Node:
    children = collapsed([_node(child_name, child, packed) for child_name, child in module.named_children()])
    distinct = {id(parameter): parameter.numel() for parameter in _parameters(module, packed).values()}
    sizes = "" if children else module.extra_repr()
    label = f"{type(module).__name__}({sizes})" if sizes and "\n" not in sizes else type(module).__name__
    return Node(name, label, sum(distinct.values()), children=tuple(children))


def modules_of_checkpoint(config: dict[str, Any]) -> Description:
    """Describe the class of a checkpoint, built by transformers on the meta device: no weights are created or read.

    Args:
        config: the contents of config.json. The class is the first of its `architectures`, or the base class of its
            model type.

    Raises:
        MissingExtraError: transformers is not installed.
        InputError: transformers has no such class or model type.
        UnsupportedError: the class doesn't accept this config, or the config asks for other code.
    """
    require("transformers", "torch", where="modules, which transformers builds")
    import transformers

    from headscope.live.built import base_class, configured, foreign_errors, quiet

    named = next(iter(config.get("architectures") or ()), None)
    cls = getattr(transformers, named, None) if isinstance(named, str) else None
    if named is None:
        _, cls = base_class(config, where="modules")
    is_model = isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
    if cls is None or not is_model:
        raise InputError(
            f"transformers {transformers.__version__} has no class {named}",
            where="config.json",
            advice="name a class that it has, or install a version of transformers that has this one",
        )
    fields = configured(cls.config_class, config, where="modules")
    with quiet(), foreign_errors(f"{cls.__name__}: config.json", "correct config.json"), torch.device("meta"):
        built = cls(fields)
    return describe(built)
