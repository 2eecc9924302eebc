"""The classes and tasks on top of the base model, derived from config.json and the names in the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headscope.anatomy.families import named_architectures
from headscope.anatomy.parameters import Parameter
from headscope.anatomy.schema import Family, Spec, Top
from headscope.anatomy.sizes import Dimensions


def ties_words(config: Mapping[str, Any], family: Family | None) -> bool:
    """Return True if the output embedding is tied to the input embedding: by default, most families tie them."""
    default = family.defaults.get("tie_word_embeddings", True) if family else True
    return config.get("tie_word_embeddings", default) is not False


def own_specs(family: Family, top: Top, config: Mapping[str, Any]) -> tuple[Spec, ...]:
    """Return the parameters that a class has on top under this config."""
    return tuple(spec for spec in top.specs if family.holds(spec.when, config))


def top_specs(
    family: Family, stem: str, config: Mapping[str, Any], names: Iterable[str], outer: str
) -> dict[str, Spec]:
    """Return all parameters that may be on top, by name.

    Two classes may use the same name for different parameters (`classifier`). The class that config.json names wins,
    then the class with the most parameters in the checkpoint.
    """
    stored = set(names)
    architectures = named_architectures(config)

    def rank(top: Top) -> tuple[bool, int]:
        return stem + top.suffix not in architectures, -sum(outer + spec.name in stored for spec in top.specs)

    order = sorted(family.tops, key=rank)
    specs: dict[str, Spec] = {}
    for top in order:
        for spec in own_specs(family, top, config):
            specs.setdefault(spec.name, spec)
    return specs


def held_tops(
    family: Family,
    stem: str,
    config: Mapping[str, Any],
    dimensions: Dimensions,
    parameters: Sequence[Parameter],
    extra: Sequence[Parameter],
) -> tuple[Top, ...]:
    """Return the classes on top whose parameters are complete and have the right shapes, config.json's class first."""
    shapes = {row.name: row.shape for row in extra if row.role is not None}
    pooler = any(row.component == "pooler" for row in parameters)
    ties = ties_words(config, family)
    architectures = named_architectures(config)

    def fits(spec: Spec) -> bool:
        if ties and spec.tied_to is not None:
            return True
        shape = shapes.get(spec.name)
        expected = dimensions.shape(spec)
        free = 1 if "labels" in spec.shape else 0
        return shape is not None and len(shape) == len(expected) and shape[free:] == expected[free:]

    complete = [
        top
        for top in family.tops
        if (pooler or not top.pooler or not family.pooler)
        and all(fits(spec) for spec in own_specs(family, top, config))
    ]
    return tuple(sorted(complete, key=lambda top: stem + top.suffix not in architectures))


def sure_tasks(tops: Sequence[Top], architectures: Sequence[str], stem: str) -> tuple[str, ...]:
    """Return the tasks of these classes, without tasks that the names in the file can't distinguish."""
    tasks: dict[str, None] = {}
    for top in tops:
        names = {spec.name for spec in top.specs}
        rivals = [other for other in tops if other.tasks != top.tasks and names & {spec.name for spec in other.specs}]
        rivals = [
            other for other in rivals if not {*other.tasks} <= {*top.tasks} and not {*top.tasks} <= {*other.tasks}
        ]
        if stem + top.suffix in architectures or not rivals:
            tasks.update(dict.fromkeys(top.tasks))
    return tuple(tasks)
