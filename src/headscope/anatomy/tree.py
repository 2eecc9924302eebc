"""The module tree of a checkpoint, as transformers prints its class, with a count at every node."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from headscope.anatomy.anatomy_record import Anatomy
from headscope.anatomy.families import named_architectures
from headscope.anatomy.modules import ACTIVATION_CLASSES, BASE_MODULES, TOP_MODULES, Module, modules_of
from headscope.anatomy.parameters import Parameter
from headscope.anatomy.read_anatomy import base_specs
from headscope.anatomy.schema import Top


@dataclass(frozen=True, slots=True)
class Node:
    """One module, or one parameter in a module of unknown class.

    Attributes:
        name: its name in its parent; `0-11` if the node stands for equal modules; the model's class at the root.
        label: its class with its sizes, as in `Linear(768, 3072)`; `12 x BertLayer` if the node stands for equal
            modules; a parameter's dtype; empty at the root and if the class is unknown.
        count: number of elements of its parameters; of one module, if the node stands for several.
        shape: a parameter's shape; None for a module.
        repeat: number of equal modules that the node stands for.
        children: its submodules and parameters.
    """

    name: str
    label: str
    count: int
    shape: tuple[int, ...] | None = None
    repeat: int = 1
    children: tuple[Node, ...] = ()

    @property
    def total(self) -> int:
        """Number of elements of all the modules that the node stands for."""
        return self.count * self.repeat


@dataclass
class _Growing:
    """A module while its parameters are being collected."""

    module: Module | None = None
    parameters: dict[str, Parameter] = field(default_factory=dict)
    children: dict[str, _Growing] = field(default_factory=dict)

    def at(self, path: str) -> _Growing:
        """Return the module at a path below this one, created if necessary."""
        node = self
        for part in filter(None, path.split(".", DEEPEST)):
            node = node.children.setdefault(part, _Growing())
        return node

    def put(self, path: str, module: Module) -> None:
        """Set the module at a path below this one, before the one that the class prints next."""
        self.at(path).module = module
        *parents, name = path.split(".", DEEPEST)
        siblings = self.at(".".join(parents)).children
        if module.before in siblings:
            names = [other for other in siblings if other != name]
            for later in names[names.index(module.before) :]:
                siblings[later] = siblings.pop(later)


DEEPEST = 50
"""Maximum depth of the tree; the rest of a longer name stays in one part."""

OPTIONAL = {
    "pooler": "pooler",
    "embeddings_project": "projection",
    "embeddings.embed_proj": "projection",
    "contact_head": "contact_head",
}
"""First words of modules that a checkpoint may lack -> the component of their parameters."""

LEAVES = ("Embedding", "Linear", "LayerNorm", "RoFormerSinusoidalPositionalEmbedding")
"""Classes that the tree shows with their sizes instead of their parameters."""


def tree(anatomy: Anatomy) -> Node:
    """Return the module tree of a checkpoint, with runs of equal modules collapsed into one node.

    Modules of a known family have the class names that transformers prints. Parameters that fit no module of the class
    and models of other families have only the names in the file.
    """
    root = _Growing()
    top = class_on_top(anatomy)
    base_path = ""
    family, sizes = anatomy.family, anatomy.dimensions
    if family is not None and anatomy.prefix is not None and sizes is not None:
        base_path = anatomy.prefix.removeprefix(anatomy.outer)
        components = {row.component for row in anatomy.parameters}
        lacking = tuple(path for path, part in OPTIONAL.items() if part not in components)
        root.put(base_path, Module(base_path, "{stem}Model"))
        specs = [spec for spec, _ in base_specs(family, sizes, anatomy.config)]
        for module in (*modules_of(specs, family), *BASE_MODULES[family.name]):
            if module.path.startswith(lacking) or not family.holds(module.when, anatomy.config):
                continue
            for layer in range(sizes.stored_layers) if "{l}" in module.path else (0,):
                root.put(base_path + module.path.format(l=layer // sizes.inner, i=layer % sizes.inner), module)
        specs = family.held(top.specs if top else (), anatomy.config)
        others = TOP_MODULES.get((family.name, top.suffix), ()) if top else ()
        for module in (*modules_of(specs, family), *others):
            if family.holds(module.when, anatomy.config):
                root.put(module.path, module)
    for row in anatomy.parameters:
        path, _, last = (base_path + row.name).rpartition(".")
        root.at(path).parameters[last] = row
    for row in anatomy.extra:
        path, _, last = row.name.rpartition(".")
        root.at(path).parameters[last] = row
    return dataclasses.replace(finished(root, "", root_name(anatomy, top), anatomy, top), label="")


def class_on_top(anatomy: Anatomy) -> Top | None:
    """Return the class with the most parameters on top; among equals, the one that config.json names."""
    names = {row.name for row in anatomy.extra}
    return max(anatomy.tops, key=lambda top: sum(spec.name in names for spec in top.specs), default=None)


def root_name(anatomy: Anatomy, top: Top | None) -> str:
    """Return the name of the root: its class, if that is unambiguous."""
    if anatomy.family is None:
        return "model"
    if top is None:
        return anatomy.base_class if not anatomy.extra else "checkpoint"
    named = anatomy.class_stem + top.suffix in named_architectures(anatomy.config)
    names = {row.name for row in anatomy.extra}
    rivals = [other for other in anatomy.tops if names <= {spec.name for spec in other.specs}]
    return anatomy.class_stem + top.suffix if named or rivals == [top] else f"{anatomy.base_class} and more"


def finished(growing: _Growing, path: str, name: str, anatomy: Anatomy, top: Top | None) -> Node:
    """Return a module and everything below it as a record."""
    children = [
        finished(child, f"{path}.{part}" if path else part, part, anatomy, top)
        for part, child in growing.children.items()
    ]
    module = growing.module
    rows = growing.parameters
    direct = sum(row.count for row in rows.values())
    if module is None or module.kind not in LEAVES:
        children = [Node(last, row.dtype, row.count, row.shape) for last, row in rows.items()] + children
    return Node(
        name=name,
        label=label_of(growing, path, anatomy, top),
        count=direct + sum(child.total for child in children if child.shape is None),
        children=tuple(collapsed(children)),
    )


def label_of(growing: _Growing, path: str, anatomy: Anatomy, top: Top | None) -> str:
    """Return a module's class with its sizes; empty if the class is unknown."""
    module = growing.module
    if module is None:
        return ""
    kind = module.kind.format(stem=anatomy.class_stem)
    if kind in LEAVES:
        weight = growing.parameters.get("weight")
        if weight is None:
            return tied_label(kind, path, anatomy, top)
        sizes = [str(size) for size in (reversed(weight.shape) if kind == "Linear" else weight.shape)]
        if kind == "LayerNorm":
            sizes.append(f"eps={anatomy.setting('norm_eps')}")
        return f"{kind}({', '.join(sizes)})"
    value = setting_of(module, anatomy)
    if kind == "Dropout":
        return f"Dropout({value})"
    return ACTIVATION_CLASSES.get(str(value), str(value)) if kind == "Activation" else kind


def tied_label(kind: str, path: str, anatomy: Anatomy, top: Top | None) -> str:
    """Return the label of a module whose weight is tied or missing."""
    for spec in top.specs if top else ():
        if spec.name == f"{path}.weight" and spec.tied_to and anatomy.ties and anatomy.dimensions:
            out, into = anatomy.dimensions.shape(spec)
            return f"{kind}({into}, {out}), tied to {spec.tied_to.removesuffix('.weight')}"
    return f"{kind}, missing"


def setting_of(module: Module, anatomy: Anatomy) -> Any:
    """Return the config's value for a module: the first of its fields that is not null."""
    settings = {**(anatomy.family.defaults if anatomy.family else {}), **anatomy.config}
    return next((settings[name] for name in module.fields if settings.get(name) is not None), None)


def collapsed(nodes: Sequence[Node]) -> Iterable[Node]:
    """Yield siblings in order, with runs of numbered siblings that differ only in their number collapsed into one."""

    def key(node: Node) -> object:
        return dataclasses.replace(node, name="") if node.name.isdecimal() else node.name

    for _, run in groupby(nodes, key):
        same = list(run)
        first, last = same[0], same[-1]
        if len(same) == 1:
            yield first
        else:
            label = f"{len(same)} x {first.label}" if first.label else f"{len(same)} equal modules"
            yield dataclasses.replace(first, name=f"{first.name}-{last.name}", label=label, repeat=len(same))
