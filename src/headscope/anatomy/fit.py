"""The fit of a checkpoint and a class: the parameters that the class would load, initialise and ignore.

The rules are those of transformers' `from_pretrained`: gamma and beta are the LayerNorm's weight and bias; the base
model's prefix (`bert.`) is removed or added if that matches a parameter; tied parameters share one tensor.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from headscope.anatomy.anatomy_record import Anatomy
from headscope.anatomy.families import FAMILIES, family_of
from headscope.anatomy.parameters import Parameter, Parameters, modern_name
from headscope.anatomy.read_anatomy import base_specs
from headscope.anatomy.schema import Family, Top
from headscope.anatomy.sizes import Dimensions, config_size, config_value, read_dimensions
from headscope.checkpoint.json_text import shortened
from headscope.checkpoint.models_in_memory import WRAPPED
from headscope.errors import InputError
from headscope.settings import meant


@dataclass(frozen=True, slots=True, repr=False)
class Fit:
    """The result of loading a checkpoint into a class.

    Attributes:
        class_name: the class.
        loaded: number of its parameters that come from the checkpoint.
        initialised: its parameters that the checkpoint lacks, which would be initialised at random: name and shape.
        ignored: the checkpoint's tensors that the class has no parameter for, without buffers.
        mismatched: parameters whose stored shape differs from the class's: name, stored shape, expected shape.
        tied: the class's parameters that share another parameter's storage -> the name of that parameter.
        notes: further remarks, one sentence each.
    """

    class_name: str
    loaded: int
    initialised: tuple[tuple[str, tuple[int, ...]], ...]
    ignored: Parameters
    mismatched: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    tied: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """True if every parameter of the class comes from the checkpoint."""
        return not self.initialised and not self.mismatched

    def __repr__(self) -> str:
        names = {
            "initialised at random": [name for name, _ in self.initialised],
            "of another shape": [name for name, _, _ in self.mismatched],
            "ignored": [row.name for row in self.ignored],
        }
        lists = [f"{len(of)} {what}: {', '.join(of)}" for what, of in names.items() if of]
        return "\n".join([f"{self.class_name}: {self.loaded} parameters are loaded", *lists, *self.notes])


def fit(anatomy: Anatomy, class_name: str) -> Fit:
    """List the parameters that `class_name` would load from a checkpoint, initialise and ignore.

    Raises:
        InputError: headscope has no such class, or the class belongs to another family; the message lists the classes.
        UnsupportedError: headscope doesn't know the checkpoint's family.
        ConfigError: config.json lacks a size.
    """
    known = family_of(anatomy.config)
    if known is None:
        raise anatomy.refusals[0].error(anatomy.where)
    family, top = find_class(class_name, known, anatomy.where)
    wanted, tied = class_parameters(anatomy, family, top)

    matches, unmatched = match_names(anatomy, family, {*wanted, *tied})
    stored = {name: anatomy.tensors[name_in_file].shape for name, name_in_file in matches.items()}
    # A parameter that is not stored takes the shape of a stored copy tied to it.
    shapes = {source: stored[name] for name, source in reversed(tied.items()) if name in stored} | stored
    refusals = (refusal for refusal in anatomy.refusals if refusal.heads and not refusal.damaged)
    return Fit(
        class_name=class_name,
        loaded=sum(shapes.get(name) == shape for name, shape in wanted.items()),
        initialised=tuple((name, shape) for name, shape in wanted.items() if name not in shapes),
        ignored=ignored_parameters(anatomy, unmatched),
        mismatched=tuple(
            (name, shapes[name], shape) for name, shape in wanted.items() if shapes.get(name, shape) != shape
        ),
        tied=tied,
        notes=(*wrapper_notes(anatomy), *(refusal.found for refusal in refusals)),
    )


def match_names(anatomy: Anatomy, family: Family, names: Container[str]) -> tuple[dict[str, str], list[str]]:
    """Match the names in the file to those of a class, with or without the base model's prefix.

    Returns:
        Class's name -> stored name; and the stored names that match none.
    """
    matches: dict[str, str] = {}
    unmatched: list[str] = []
    for stored in anatomy.tensors:
        modern = modern_name(stored)
        candidates = (modern.removeprefix(family.prefix), family.prefix + modern, modern)
        name = next((candidate for candidate in candidates if candidate in names), None)
        if name is None:
            unmatched.append(stored)
        else:
            matches[name] = stored
    return matches, unmatched


def ignored_parameters(anatomy: Anatomy, unmatched: Iterable[str]) -> Parameters:
    """The stored tensors that the class has no parameter for, without buffers."""
    rows = {row.stored: row for row in anatomy.all_parameters}
    for name, entry in anatomy.tensors.items():  # stored copies of tied parameters
        rows.setdefault(name, Parameter(name, entry.shape, entry.dtype, name.split(".", 1)[0], None, None, name))
    buffers = {*anatomy.buffers}
    return Parameters([rows[name] for name in unmatched if name not in buffers])


def classes_of(family: Family, stem: str) -> tuple[str, ...]:
    """Return the class names of a family, the base model's first."""
    return (f"{stem}Model", *(stem + top.suffix for top in family.tops))


def find_class(class_name: str, known: tuple[Family, str], where: str) -> tuple[Family, Top | None]:
    """Return the family of a class and its parts on top; None for the latter if it is the base model's class.

    Raises:
        InputError: headscope has no such class, or the class belongs to another family.
    """
    checkpoint_family, checkpoint_stem = known
    candidates = classes_of(checkpoint_family, checkpoint_stem)
    if not isinstance(class_name, str):
        advice = f"pass it as text: {getattr(class_name, '__name__', candidates[0])!r}"
        raise InputError(f"expected a class's name, got {class_name!r:.60}", where=where, advice=advice)
    for family in FAMILIES:
        for stem in family.model_types.values():
            if class_name not in classes_of(family, stem):
                continue
            if family is not checkpoint_family:
                raise InputError(
                    f"{class_name} is a class of {family.name}, the checkpoint is {checkpoint_family.name}: their "
                    "parameters have different names",
                    where=where,
                    advice=f"use one of its classes: {', '.join(candidates)}",
                )
            return family, next((top for top in family.tops if stem + top.suffix == class_name), None)
    raise InputError(
        f"headscope has no class {class_name!r:.80}{meant(class_name, candidates)}",
        where=where,
        advice=f"use one of the classes of {checkpoint_family.name}: {', '.join(candidates)}",
    )


def class_parameters(
    anatomy: Anatomy, family: Family, top: Top | None
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Return the parameters of a class under this config.

    Returns:
        Name -> shape, in the class's order; and name of each tied parameter -> name of the parameter it is tied to.
    """
    sizes = class_dimensions(anatomy, family)
    prefix = family.prefix if top else ""
    with_pooler = top.pooler if top else family.base_pooler
    specs = base_specs(family, sizes, anatomy.config)
    wanted = {prefix + spec.name: sizes.shape(spec) for spec, _ in specs if with_pooler or spec not in family.pooler}
    tied: dict[str, str] = {}
    on_top = family.held(top.specs, anatomy.config) if top else []
    for spec in on_top:
        if spec.tied_to is not None and anatomy.ties:
            source = spec.tied_to if spec.tied_to in {other.name for other in on_top} else prefix + spec.tied_to
            tied[spec.name] = source
        else:
            wanted[spec.name] = sizes.shape(spec)
    return wanted, tied


def class_dimensions(anatomy: Anatomy, family: Family) -> Dimensions:
    """Return the sizes that a class takes from config.json; sizes that the config leaves out come from the header."""
    stored = anatomy.dimensions
    where, config = anatomy.where, anatomy.config

    def rows(name: str) -> int:
        value = config_value(config, family, name, where) if name in family.config else 0
        if value is None and stored is not None:
            return int(getattr(stored, name))
        return config_size(config, family, name, where) if value or value is None else 0

    sizes = read_dimensions(config, family, {}, where)
    return replace(
        sizes,
        d_embedding=rows("d_embedding") or sizes.d_model,
        vocab=rows("vocab"),
        positions=rows("positions"),
        types=rows("types"),
    )


def wrapper_notes(anatomy: Anatomy) -> tuple[str, ...]:
    """Explain that the base model would not load if its names begin with a wrapper's prefix, which no class has."""
    prefix, family = anatomy.prefix, anatomy.family
    if prefix is None or family is None:
        return ()
    wrapped = next((row.stored for row in anatomy.parameters if WRAPPED.search(row.stored)), None)
    if wrapped is not None:
        return (
            f"names have parts that a wrapper added, as in {shortened(wrapped)}, which no class has, so these "
            "parameters would not load: save the wrapped model instead (for DataParallel, model.module; for "
            "torch.compile, model._orig_mod)",
        )
    if prefix in ("", family.prefix):
        return ()
    before = anatomy.outer or prefix
    return (
        f"the base model's names begin with {before!r}, which no class has, so none of its parameters would load: save "
        "the wrapped model instead (for DataParallel, model.module)",
    )
