"""What a class would make of a checkpoint: what it loads, what it would newly initialise, what it would ignore.

The rules are those of transformers' `from_pretrained`: gamma and beta are the LayerNorm's weight and bias; the base
model's prefix (`bert.`) is taken away or put in front where that finds a parameter; tied parameters follow each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headscope.anatomy.families import FAMILIES, family_of
from headscope.anatomy.names import modern_name
from headscope.anatomy.parameters import Parameter, Parameters
from headscope.anatomy.reading import base_specs, read_anatomy
from headscope.anatomy.record import Anatomy
from headscope.anatomy.schema import Family, Spec, Top
from headscope.anatomy.sizes import Dimensions, config_labels, config_size, config_value
from headscope.anatomy.tops import own_specs
from headscope.errors import InputError

if TYPE_CHECKING:
    from headscope.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Fit:
    """What a class would make of a checkpoint.

    Attributes:
        class_name: the class.
        loaded: how many of its parameters come from the checkpoint.
        initialised: its parameters that the checkpoint lacks, so that they would start at random; name and shape.
        ignored: the checkpoint's tensors that the class has no place for; buffers are not among them.
        mismatched: parameters whose shape in the checkpoint is not the class's: name, stored shape, wanted shape.
        tied: the class's parameters that share another one's storage, and that one's name.
        notes: what else is worth knowing, one sentence each.
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
        """Whether every parameter of the class comes from the checkpoint."""
        return not self.initialised and not self.mismatched


def fit(model: Anatomy | Checkpoint, class_name: str) -> Fit:
    """What `class_name` would load from a checkpoint, newly initialise and ignore.

    Raises:
        InputError: headscope has no such class, or it is one of another family; the message lists the classes.
        UnsupportedError: the checkpoint's family is not known.
        ConfigError: config.json lacks a size.
    """
    anatomy = model if isinstance(model, Anatomy) else read_anatomy(model)
    known = family_of(anatomy.config)
    if known is None:
        raise anatomy.refusals[0].error(anatomy.where)
    family, top = find_class(class_name, known, anatomy.where)
    wanted, tied = class_parameters(anatomy, family, top)

    stored: dict[str, str] = {}
    strangers: list[str] = []
    names = {*wanted, *tied}
    for name in anatomy.tensors:
        modern = modern_name(name)
        bare = modern.removeprefix(family.prefix)
        own = bare if bare in names else family.prefix + modern if family.prefix + modern in names else modern
        if own in names:
            stored[own] = name
        else:
            strangers.append(name)

    buffers = set(anatomy.buffers)
    rows = {row.stored: row for part in (anatomy.parameters, anatomy.extra) for row in part}
    shapes = {name: anatomy.tensors[at].shape for name, at in stored.items()}
    present = {name: shapes.get(name) for name in wanted}
    for repeat, source in tied.items():
        if present.get(source) is None and repeat in shapes:
            present[source] = shapes[repeat]
    return Fit(
        class_name=class_name,
        loaded=sum(present[name] == shape for name, shape in wanted.items()),
        initialised=tuple((name, shape) for name, shape in wanted.items() if present[name] is None),
        ignored=Parameters([rows.get(name) or repeat_row(anatomy, name) for name in strangers if name not in buffers]),
        mismatched=tuple(
            (name, found, shape)
            for name, shape in wanted.items()
            if (found := present[name]) is not None and found != shape
        ),
        tied=tied,
        notes=(*wrapper_notes(anatomy), *(why.found for why in anatomy.refusals if why.heads and not why.damaged)),
    )


def classes_of(family: Family, stem: str) -> tuple[str, ...]:
    """The classes of a family, the base model's first."""
    return (f"{stem}Model", *(stem + top.suffix for top in family.tops))


def find_class(class_name: str, known: tuple[Family, str], where: str) -> tuple[Family, Top | None]:
    """The family of a class, and what it has on top; None for the base model's own class.

    Raises:
        InputError: headscope has no such class, or it is one of another family.
    """
    own, own_stem = known
    ours = classes_of(own, own_stem)
    for family in FAMILIES:
        for stem in family.model_types.values():
            if class_name not in classes_of(family, stem):
                continue
            if family is not own:
                raise InputError(
                    f"{class_name} is a class of {family.name}, the checkpoint is {own.name}: their parameters have "
                    "different names",
                    where=where,
                    advice=f"its classes are {', '.join(ours)}",
                )
            return family, next((top for top in family.tops if stem + top.suffix == class_name), None)
    from difflib import get_close_matches

    close = get_close_matches(class_name, ours, 1)
    raise InputError(
        f"headscope knows no class {class_name!r}",
        where=where,
        advice=(f"did you mean {close[0]}? " if close else "") + f"The classes of {own.name}: {', '.join(ours)}",
    )


def class_parameters(
    anatomy: Anatomy, family: Family, top: Top | None
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Name -> shape of a class's parameters under this config, in its order; and the tied ones -> whose storage."""
    sizes = class_dimensions(anatomy, family)
    prefix = family.prefix if top else ""
    with_pooler = top is None or top.pooler
    specs = base_specs(family, sizes.layers, projected=sizes.d_embedding != sizes.d_model)
    wanted = {prefix + spec.name: sizes.shape(spec) for spec, _ in specs if with_pooler or spec not in family.pooler}
    tied: dict[str, str] = {}
    on_top: tuple[Spec, ...] = own_specs(top, anatomy.config) if top else ()
    for spec in on_top:
        if spec.tied_to is not None and anatomy.ties:
            source = spec.tied_to if spec.tied_to in {other.name for other in on_top} else prefix + spec.tied_to
            tied[spec.name] = source
        else:
            wanted[spec.name] = sizes.shape(spec)
    return wanted, tied


def class_dimensions(anatomy: Anatomy, family: Family) -> Dimensions:
    """The sizes that a class takes from config.json; what the config leaves out is the header's."""
    held = anatomy.dimensions
    where, config = anatomy.where, anatomy.config

    def size(ours: str) -> int:
        said = config_value(config, family, ours, where)
        if said is None and held is not None and ours in family.config:
            return int(getattr(held, ours))
        return config_size(config, family, ours, where) if ours in family.config else 0

    d_model = size("d_model")
    return Dimensions(
        layers=size("layers"),
        heads=size("heads"),
        d_model=d_model,
        d_ffn=size("d_ffn"),
        d_embedding=size("d_embedding") if "d_embedding" in family.config else d_model,
        vocab=size("vocab"),
        positions=size("positions"),
        types=size("types"),
        labels=config_labels(config, where),
    )


def repeat_row(anatomy: Anatomy, stored: str) -> Parameter:
    """A stored repeat of a tied parameter, as it stands in the file."""
    entry = anatomy.tensors[stored]
    return Parameter(stored, entry.shape, entry.dtype, stored.split(".", 1)[0], None, None, stored)


def wrapper_notes(anatomy: Anatomy) -> tuple[str, ...]:
    """Why nothing of the base model would load where its names carry what no class puts before them."""
    place, family = anatomy.place, anatomy.family
    if place is None or family is None or place.prefix in ("", family.prefix):
        return ()
    before = place.outer or place.prefix
    return (
        f"the base model's names begin with {before!r}, which no class has: save the model inside (of DataParallel, "
        "model.module) and they will be found",
    )
