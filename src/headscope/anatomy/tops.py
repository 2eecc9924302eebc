"""The tensors beyond the base model: classes and tasks on top, copies of other parameters, and buffers."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from headscope.anatomy.families import named_architectures
from headscope.anatomy.parameters import UNPLACED, Parameter, class_name_of
from headscope.anatomy.schema import Family, Spec, Top
from headscope.anatomy.sizes import Dimensions

if TYPE_CHECKING:
    from headscope.checkpoint import Checkpoint


def ties_words(config: Mapping[str, Any], family: Family | None) -> bool:
    """Return True if the output embedding is tied to the input embedding: by default, most families tie them."""
    default = family.defaults.get("tie_word_embeddings", True) if family else True
    return config.get("tie_word_embeddings", default) is not False


def with_tied_tables(names: Mapping[str, str], family: Family, config: Mapping[str, Any]) -> dict[str, str]:
    """Class's name -> stored name, with the base model's tables that the file keeps only as an output's weight.

    safetensors' `save_model` writes tied parameters once, under the name that sorts first: `lm_head.decoder.weight`
    before `roberta.embeddings.word_embeddings.weight`. transformers ties them again if the config ties words.
    """
    found = dict(names)
    if not ties_words(config, family):
        return found
    tables = {spec.name for spec in family.embeddings}
    for spec in (spec for top in family.tops for spec in family.held(top.specs, config) if spec.tied_to in tables):
        for name, stored in names.items():
            outer = name.removesuffix(spec.name)
            if outer == name or (outer and not outer.endswith(".")):
                continue
            for prefix in (family.prefix, family.published_prefix):
                if prefix is not None and any(other.startswith(outer + prefix) for other in names):
                    found.setdefault(f"{outer}{prefix}{spec.tied_to}", stored)
                    break
    return found


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
        for spec in family.held(top.specs, config):
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
        and all(fits(spec) for spec in family.held(top.specs, config))
    ]
    return tuple(sorted(complete, key=lambda top: stem + top.suffix not in architectures))


def sure_tasks(tops: Sequence[Top], architectures: Sequence[str], stem: str) -> tuple[str, ...]:
    """Return the tasks of these classes, without tasks that the names in the file can't distinguish."""
    tasks: dict[str, None] = {}
    for top in tops:
        own, names = {*top.tasks}, {spec.name for spec in top.specs}
        rivals = [other for other in tops if not ({*other.tasks} <= own or own <= {*other.tasks})]
        rivals = [other for other in rivals if names & {spec.name for spec in other.specs}]
        if stem + top.suffix in architectures or not rivals:
            tasks.update(dict.fromkeys(top.tasks))
    return tuple(tasks)


def sort_rest(
    checkpoint: Checkpoint,
    family: Family,
    prefix: str,
    outer: str,
    names: Mapping[str, str],
    base: Sequence[Parameter],
    specs: Mapping[str, Spec],
) -> tuple[list[Parameter], dict[str, str], list[str]]:
    """Sort the tensors that are not parameters of the base model.

    Args:
        checkpoint: the checkpoint.
        family: its family.
        prefix: the prefix of the base model's names in the file.
        outer: what a class with parameters on top puts before all its names.
        names: class's name -> stored name, of all tensors.
        base: the parameters of the base model.
        specs: class's name -> spec, of the parameters that may be on top.

    Returns:
        The parameters on top of the base model, in file order; stored copies of other parameters -> the name under
        which the file stores the original; stored tensors that are not parameters.
    """
    tensors, shared = checkpoint.tensors, checkpoint.shared
    originals = {row.name: row.stored for row in base}
    tied_to = {name: spec.tied_to for name, spec in specs.items() if spec.tied_to is not None}
    ties = tied_to if ties_words(checkpoint.config, family) else {}
    sources = {name: originals.get(source) or names.get(outer + source) for name, source in ties.items()}
    class_names = {stored: name for name, stored in names.items()}
    stored_base = {row.stored for row in base}
    listed = {shared.get(row.stored, row.stored): row.stored for row in base}
    base_modules = {
        spec.name.split(".", 1)[0] for spec in (*family.embeddings, *family.layer, *family.pooler, *family.beside)
    }
    extra, tied, buffers = list[Parameter](), dict[str, str](), list[str]()
    for stored, entry in tensors.items():
        if stored in stored_base:
            continue
        full = class_names.get(stored) or class_name_of(stored)
        name = full.removeprefix(outer)
        original = shared.get(stored, stored)
        source = sources.get(name)
        if full.startswith(prefix) and any(fnmatchcase(full.removeprefix(prefix), one) for one in family.buffers):
            buffers.append(stored)
        elif original in listed:
            tied[stored] = listed[original]
        elif source is not None and tensors[source].shape == entry.shape:
            tied[stored] = source
        else:
            listed[original] = stored
            spec = specs.get(name)
            if spec is not None and name in sources and source is None:  # only the copy is stored, not its original
                spec = specs.get(spec.tied_to or "", spec)
                name = spec.name
            role = spec.role if spec is not None else None
            component = component_of(full, name, prefix, base_modules)
            extra.append(Parameter(name, entry.shape, entry.dtype, component, role, None, stored))
    return extra, tied, buffers


def component_of(full: str, name: str, prefix: str, base_modules: Container[str]) -> str:
    """Component of a tensor beyond the base model: the first part of its name, or UNPLACED inside the base model."""
    module = full.removeprefix(prefix).split(".", 1)[0]
    inside = full.startswith(prefix) and (prefix or module in base_modules)
    return UNPLACED if inside else name.split(".", 1)[0]
