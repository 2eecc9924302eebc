"""From a checkpoint's config and header to its anatomy: which tensor is what, and what contradicts what."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headscope.anatomy.families import FAMILIES, family_of
from headscope.anatomy.names import Placement, find_bases, placement, spellings
from headscope.anatomy.parameters import UNPLACED, Parameter, Parameters
from headscope.anatomy.record import Anatomy
from headscope.anatomy.refusals import (
    Refusal,
    config_refusals,
    dtype_refusals,
    explaining_first,
    listed,
    missing_refusals,
    prefix_refusals,
    shape_refusals,
    size_refusals,
    unplaced_refusals,
)
from headscope.anatomy.schema import Family, Spec
from headscope.anatomy.sizes import Dimensions, read_dimensions
from headscope.anatomy.tops import ties_words, top_specs
from headscope.checkpoint.json_text import brief, shortened

if TYPE_CHECKING:
    from headscope.checkpoint import Checkpoint

COMPONENTS = {"embeddings": "embeddings", "projection": "projection", "layer": "encoder", "pooler": "pooler"}
"""The first word of a base parameter's role, and its component."""

LAYER_DIGITS = 9
"""A longer number in a tensor's name counts no layers."""

PLAIN_BUFFERS = re.compile(
    r"(^|\.)(position_ids|token_type_ids|masked_bias|inv_freq|num_batches_tracked|running_mean|running_var"
    r"|relative_position_index)$"
)
"""Names that models of any family save for tensors that are not trained."""


def read_anatomy(checkpoint: Checkpoint) -> Anatomy:
    """The anatomy of a checkpoint: a pure function of its config and header.

    Raises:
        ConfigError: the config of a known family lacks a size, or holds one that can't be.
    """
    config, tensors = checkpoint.config, checkpoint.tensors
    known = family_of(config)
    if known is None:
        return plain_anatomy(checkpoint, family_unknown(checkpoint))
    family, stem = known
    names = spellings(tensors)
    bases = find_bases(names, family)
    if len(bases) != 1:
        return plain_anatomy(checkpoint, no_single_base(family, bases))
    place = placement(bases[0], family)
    tables = {
        spec.role.removesuffix(".weight"): tensors[stored].shape
        for spec in family.embeddings
        if (stored := names.get(place.prefix + spec.name)) is not None
    }
    dimensions = read_dimensions(config, family, tables, checkpoint.where)

    rows: list[Parameter] = []
    absent: list[Spec] = []
    mismatches: list[tuple[Parameter, tuple[int, ...]]] = []
    for spec, layer in base_specs(family, dimensions.layers, projected=dimensions.d_embedding != dimensions.d_model):
        stored = names.get(place.prefix + spec.name)
        if stored is None:
            absent.append(spec)
            continue
        entry = tensors[stored]
        rows.append(
            Parameter(
                spec.name, entry.shape, entry.dtype, COMPONENTS[spec.role.split(".", 1)[0]], spec.role, layer, stored
            )
        )
        if entry.shape != (wanted := dimensions.shape(spec)):
            mismatches.append((rows[-1], wanted))
    missing = without_whole_pooler(absent, family)

    specs = top_specs(family, stem, config, names, place.outer) if place.own else {}
    extra, tied, buffers = sort_rest(checkpoint, family, place, names, rows, specs)
    beyond: list[Parameter] = []
    strangers: list[Parameter] = []
    for row in extra:
        if row.component == UNPLACED:
            (beyond if layer_beyond(row, place, family, dimensions.layers) else strangers).append(row)
    problems = [
        *count_problems(beyond, rows, dimensions, family, place),
        *label_problems(extra, specs, dimensions),
    ]
    base_class = f"{stem}Model"
    refusals = explaining_first(
        [
            *prefix_refusals(place, family, FAMILIES),
            *size_refusals(config, family, dimensions),
            *shape_refusals(mismatches),
            *config_refusals(config, base_class),
            *unplaced_refusals(strangers, rows, base_class),
            *dtype_refusals(rows),
            *missing_refusals(missing, base_class),
        ]
    )
    return Anatomy(
        family=family,
        class_stem=stem,
        parameters=Parameters(rows),
        extra=Parameters(extra),
        dimensions=dimensions,
        missing=tuple(missing),
        buffers=tuple(buffers),
        tied=tied,
        problems=(*problems, *(refusal.found for refusal in refusals)),
        refusals=tuple(refusals),
        place=place,
        config=config,
        tensors=tensors,
        where=checkpoint.where,
    )


def plain_anatomy(checkpoint: Checkpoint, refusal: Refusal) -> Anatomy:
    """A parameter table without roles, for a model whose heads headscope doesn't know."""
    rows: list[Parameter] = []
    buffers: list[str] = []
    for name, entry in checkpoint.tensors.items():
        if PLAIN_BUFFERS.search(name) or is_causal_mask(name, entry.shape):
            buffers.append(name)
        elif name not in checkpoint.shared:
            rows.append(Parameter(name, entry.shape, entry.dtype, plain_component(name), None, None, name))
    return Anatomy(
        family=None,
        class_stem="",
        parameters=Parameters(rows),
        extra=Parameters(()),
        dimensions=None,
        missing=(),
        buffers=tuple(buffers),
        tied={name: first for name, first in checkpoint.shared.items() if name not in buffers},
        problems=(refusal.found,),
        refusals=(refusal,),
        place=None,
        config=checkpoint.config,
        tensors=checkpoint.tensors,
        where=checkpoint.where,
    )


def is_causal_mask(name: str, shape: tuple[int, ...]) -> bool:
    """Whether this is the triangle of ones that GPT-2 and its kin save beside their weights: (1, 1, n, n)."""
    return name.endswith("attn.bias") and len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3]


def plain_component(name: str) -> str:
    """The part of a model that a name lies in: what stands before its first number, or before its last word."""
    parts = name.split(".")
    numbered = next((index for index, part in enumerate(parts) if part.isdecimal()), None)
    return ".".join(parts[:numbered] if numbered else parts[:-1]) or name


def family_unknown(checkpoint: Checkpoint) -> Refusal:
    """Why heads are not known where no table fits the config."""
    kinds = ", ".join(kind for family in FAMILIES for kind in family.model_types)
    advice = f"headscope knows the heads of {kinds}; the parameter table works for any model"
    if not checkpoint.has_config:
        return Refusal(
            "heads are not known for this model: there is no config.json, which says how many there are",
            f"put the model's config.json beside its weights; {advice}",
            "config.json",
            heads=True,
        )
    kind = checkpoint.config.get("model_type")
    if kind is None:
        return Refusal(
            "heads are not known for this model: config.json has no model_type",
            f'if it is one of these, add it, as in "model_type": "bert"; {advice}',
            "config.json",
            heads=True,
        )
    return Refusal(
        f"heads are not known for this model: model_type {brief(kind)}",
        f"{advice}; for its attention, load it with transformers and capture it: hs.capture(model)",
        "config.json",
        heads=True,
    )


def no_single_base(family: Family, bases: Sequence[str]) -> Refusal:
    """Why heads are not known where the header holds no base model of the family, or several."""
    anchor = family.embeddings[0].name
    if not bases:
        return Refusal(
            f"config.json says {family.name}, but no tensor is named {anchor}",
            "check that config.json and the weights belong together, and that the file is the whole model and no "
            "shard or adapter of it; the parameter table works",
            anchor,
            heads=True,
            damaged=True,
        )
    return Refusal(
        f"the checkpoint holds {len(bases)} models with embeddings, their names begin with "
        + listed([repr(prefix) for prefix in bases]),
        "save the one to look at on its own, as model.encoder.save_pretrained(folder) does; the parameter table works",
        anchor,
        heads=True,
    )


def base_specs(family: Family, layers: int, *, projected: bool) -> list[tuple[Spec, int | None]]:
    """The base model's parameters with their layer, in the class's order, pooler included."""
    specs: list[tuple[Spec, int | None]] = [(spec, None) for spec in family.embeddings]
    if projected:
        specs += [(spec, None) for spec in family.projection]
    for layer in range(layers):
        specs += [(Spec(spec.name.format(l=layer), spec.role, spec.shape), layer) for spec in family.layer]
    return specs + [(spec, None) for spec in family.pooler]


def without_whole_pooler(absent: Sequence[Spec], family: Family) -> list[str]:
    """What is missing; a pooler that is missing altogether is no fault, since many classes have none."""
    pooler = {spec.name for spec in family.pooler}
    names = [spec.name for spec in absent]
    return [name for name in names if name not in pooler] if pooler <= set(names) else names


def sort_rest(
    checkpoint: Checkpoint,
    family: Family,
    place: Placement,
    names: Mapping[str, str],
    base: Sequence[Parameter],
    specs: Mapping[str, Spec],
) -> tuple[list[Parameter], dict[str, str], list[str]]:
    """Every tensor that is no parameter of the base model: what sits on top, repeats of parameters, and buffers."""
    tensors, shared = checkpoint.tensors, checkpoint.shared
    ties = ties_words(checkpoint.config)
    stored_base = {row.stored for row in base}
    by_name = {row.name: row.stored for row in base}
    modern = {stored: name for name, stored in names.items()}
    inside = {spec.name.split(".", 1)[0] for spec in (*family.embeddings, *family.layer, *family.pooler)}
    counted = {shared.get(row.stored, row.stored): row.stored for row in base}
    extra: list[Parameter] = []
    tied: dict[str, str] = {}
    buffers: list[str] = []
    for stored, entry in tensors.items():
        if stored in stored_base:
            continue
        name = modern.get(stored, stored).removeprefix(place.outer)
        relative = stored.removeprefix(place.prefix)
        first = shared.get(stored, stored)
        spec = specs.get(name)
        source = by_name.get(spec.tied_to) or names.get(place.outer + spec.tied_to) if spec and spec.tied_to else None
        if stored.startswith(place.prefix) and relative in family.buffers:
            buffers.append(stored)
        elif first in counted:
            tied[stored] = counted[first]
        elif ties and source is not None and tensors[source].shape == entry.shape:
            tied[stored] = source
        else:
            counted[first] = stored
            if ties and spec is not None and spec.tied_to is not None and spec.tied_to in specs and source is None:
                spec = specs[spec.tied_to]
                name = spec.name
            if stored.startswith(place.prefix) and (place.prefix or relative.split(".", 1)[0] in inside):
                component = UNPLACED
            else:
                component = name.split(".", 1)[0]
            extra.append(
                Parameter(name, entry.shape, entry.dtype, component, spec.role if spec else None, None, stored)
            )
    order = {name: index for index, name in enumerate(specs)}
    return sorted(extra, key=lambda row: order.get(row.name, len(order))), tied, buffers


def layer_beyond(row: Parameter, place: Placement, family: Family, layers: int) -> bool:
    """Whether an unplaced tensor belongs to a layer that the config doesn't count."""
    before = family.layer[0].name.split("{l}")[0]
    number, _, _ = row.stored.removeprefix(place.prefix + before).partition(".")
    return number.isdecimal() and len(number) <= LAYER_DIGITS and int(number) >= layers


def count_problems(
    beyond: Sequence[Parameter], base: Sequence[Parameter], dimensions: Dimensions, family: Family, place: Placement
) -> list[str]:
    """What config and header say differently about the number of layers."""
    before = place.prefix + family.layer[0].name.split("{l}")[0]
    held = {row.layer for row in base if row.layer is not None}
    held |= {int(row.stored.removeprefix(before).split(".", 1)[0]) for row in beyond}
    if len(held) == dimensions.layers and not beyond:
        return []
    return [f"config.json says {family.config['layers']} {dimensions.layers}, the header holds {len(held)} layers"]


def label_problems(extra: Sequence[Parameter], specs: Mapping[str, Spec], dimensions: Dimensions) -> list[str]:
    """What config and header say differently about the shapes on top."""
    wrong = [
        (row, wanted)
        for row in extra
        if (spec := specs.get(row.name)) is not None and row.shape != (wanted := dimensions.shape(spec))
    ]
    return [f"{shortened(row.stored)} has shape {row.shape}, config.json implies {wanted}" for row, wanted in wrong]
