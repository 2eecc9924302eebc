"""From a checkpoint's config and header to its anatomy: the role of every tensor, and all contradictions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headscope.anatomy.anatomy_record import Anatomy
from headscope.anatomy.families import FAMILIES, family_of
from headscope.anatomy.layer_rules import read_layer_rules, term_refusals
from headscope.anatomy.parameters import (
    UNPLACED,
    Parameter,
    Parameters,
    class_name_of,
    find_bases,
    outer_prefix,
    spellings,
)
from headscope.anatomy.refused_checkpoints import (
    Refusal,
    adapter_refusals,
    config_refusals,
    dtype_refusals,
    listed,
    missing_refusals,
    own_code_refusals,
    prefix_refusals,
    shape_refusals,
    size_refusals,
    unplaced_refusals,
)
from headscope.anatomy.schema import Family, Spec
from headscope.anatomy.sizes import Dimensions, read_dimensions
from headscope.anatomy.tops import sort_rest, top_specs, with_tied_tables
from headscope.checkpoint.json_text import brief, shortened
from headscope.checkpoint.models_in_memory import WRAPPED

if TYPE_CHECKING:
    from headscope.checkpoint import Checkpoint

COMPONENTS = {
    "embeddings": "embeddings",
    "projection": "projection",
    "layer": "encoder",
    "last_norm": "encoder",
    "rotation": "encoder",
    "distances": "encoder",
    "distances_norm": "encoder",
    "convolution": "encoder",
    "convolution_norm": "encoder",
    "pooler": "pooler",
    "contacts": "contact_head",
}
"""First word of a base parameter's role -> its component."""

LAYER_DIGITS = 9
"""A longer number in a tensor's name is not the number of a layer."""

PLAIN_BUFFERS = re.compile(
    r"(^|\.)(position_ids|token_type_ids|masked_bias|inv_freq|num_batches_tracked|running_mean|running_var"
    r"|relative_position_index)$"
)
"""Names of buffers, tensors that are not trained, in models of any family."""


def read_anatomy(checkpoint: Checkpoint) -> Anatomy:
    """Return the anatomy of a checkpoint: a pure function of its config and header.

    Raises:
        ConfigError: the config of a known family lacks a size or holds an impossible one.
    """
    config, tensors = checkpoint.config, checkpoint.tensors
    known = family_of(config)
    if known is None:
        return plain_anatomy(checkpoint, family_unknown(checkpoint))
    family, stem = known
    names = spellings(tensors)
    if not find_bases(names, family):
        names = with_tied_tables(names, family, config)
    bases = find_bases(names, family)
    if len(bases) != 1:
        return plain_anatomy(checkpoint, no_single_base(family, bases))
    prefix = bases[0]
    outer = outer_prefix(prefix, family)
    tables = {
        spec.role.removesuffix(".weight"): tensors[stored].shape
        for spec in (*family.embeddings, *family.before_layers)
        if (stored := names.get(prefix + spec.name)) is not None
    }
    dimensions = read_dimensions(config, family, tables, checkpoint.where, tensors=len(tensors))
    rows, absent, mismatches = base_parameters(checkpoint, family, prefix, names, dimensions)
    missing = without_whole(absent, family.pooler, family.beside, family.before_layers)

    specs = {} if outer is None else top_specs(family, stem, config, names, outer)
    extra, tied, buffers = sort_rest(checkpoint, family, prefix, outer or "", names, rows, specs)
    order = {name: index for index, name in enumerate(specs)}
    extra.sort(key=lambda row: order.get(row.name, len(order)))
    surplus, unknown = list[Parameter](), list[Parameter]()
    for row in extra:
        if row.component == UNPLACED:
            beyond = in_surplus_layer(row, prefix, family, dimensions.groups or dimensions.layers)
            (surplus if beyond else unknown).append(row)
    problems = [
        *layer_count_problems(surplus, rows, dimensions, family, prefix),
        *(
            f"{shortened(row.stored)} has shape {row.shape}, config.json implies {expected}"
            for row in extra
            if (spec := specs.get(row.name)) is not None and row.shape != (expected := dimensions.shape(spec))
        ),
    ]
    base_class = f"{stem}Model"
    loads = not missing and prefix in ("", family.prefix) and not any(WRAPPED.search(name) for name in tensors)
    refusals = sorted(
        [
            *prefix_refusals(names[prefix + family.embeddings[0].name], prefix, family),
            *adapter_refusals(checkpoint),
            *own_code_refusals(checkpoint),
            *size_refusals(config, family, dimensions),
            *shape_refusals(mismatches),
            *config_refusals(config, family),
            *read_layer_rules(config, family, dimensions)[-1],
            *term_refusals(config, family, dimensions),
            *unplaced_refusals(unknown, rows, base_class, loads=loads),
            *dtype_refusals(rows),
            *missing_refusals(missing, base_class),
        ],
        # A reason that makes the heads' slices wrong comes first, since it explains odd shapes.
        key=lambda refusal: refusal.damaged or not refusal.heads,
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
        prefix=prefix,
        outer=outer or "",
        config=dict(config),
        tensors=dict(tensors),
        where=checkpoint.where,
    )


def plain_anatomy(checkpoint: Checkpoint, refusal: Refusal) -> Anatomy:
    """Return an anatomy without roles, for a model whose heads headscope doesn't know."""
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
        prefix=None,
        outer="",
        config=dict(checkpoint.config),
        tensors=dict(checkpoint.tensors),
        where=checkpoint.where,
    )


def is_causal_mask(name: str, shape: tuple[int, ...]) -> bool:
    """Return True for the triangle of ones, (1, 1, n, n), that GPT-2 and similar models save beside their weights."""
    return name.endswith("attn.bias") and len(shape) == 4 and shape[:2] == (1, 1) and shape[2] == shape[3]


def plain_component(name: str) -> str:
    """Return the component of a name: the part before its first number or, without one, before its last word."""
    parts = name.split(".")
    numbered = next((index for index, part in enumerate(parts) if part.isdecimal()), None)
    return ".".join(parts[:numbered] if numbered else parts[:-1]) or name


def family_unknown(checkpoint: Checkpoint) -> Refusal:
    """Return the refusal for a config that fits no family."""
    kinds = ", ".join(kind for family in FAMILIES for kind in family.model_types)
    advice = f"headscope knows the heads of {kinds}; the parameter table works for any model"
    kind = checkpoint.config.get("model_type")
    if not checkpoint.has_config:
        problem = "there is no config.json, which gives their number"
        advice = f"put the model's config.json beside its weights; {advice}"
    elif kind is None:
        problem = "config.json has no model_type"
        advice = f'if the model belongs to one of these families, add it, as in "model_type": "bert"; {advice}'
    else:
        problem = f"model_type {brief(kind)}"
        advice += "; to see its attention, load it with transformers and capture it: hs.capture(model)"
    return Refusal(f"heads are not known for this model: {problem}", advice, heads=True)


def no_single_base(family: Family, bases: Sequence[str]) -> Refusal:
    """Return the refusal for a header with no base model of the family, or several."""
    anchor = family.embeddings[0].name
    if not bases:
        return Refusal(
            f"config.json says {family.name}, but no tensor is named {anchor}",
            "check that config.json and the weights belong together, and that the file is the whole model, not a "
            "shard or an adapter; the parameter table works",
            anchor,
            heads=True,
            damaged=True,
        )
    return Refusal(
        f"the checkpoint holds {len(bases)} models with embeddings, with names that begin with "
        + listed([repr(prefix) for prefix in bases]),
        "save the model of interest separately, as with model.encoder.save_pretrained(folder); the parameter table "
        "works",
        anchor,
        heads=True,
    )


def base_specs(family: Family, sizes: Dimensions, config: Mapping[str, Any]) -> list[tuple[Spec, int | None]]:
    """Return the base model's parameters with their layers, in the class's order, including the pooler."""
    first = (*family.embeddings, *(family.projection if sizes.d_embedding != sizes.d_model else ()))
    of_layers = family.held(family.layer, config)
    last = (*family.after_layers, *family.pooler, *family.beside)
    return [
        *((spec, None) for spec in family.held((*first, *family.before_layers), config)),
        *((spec, layer) for layer in range(sizes.stored_layers) for spec in sizes.named(of_layers, layer)),
        *((spec, None) for spec in family.held(last, config)),
    ]


def base_parameters(
    checkpoint: Checkpoint, family: Family, prefix: str, names: Mapping[str, str], dimensions: Dimensions
) -> tuple[list[Parameter], list[Spec], list[tuple[Parameter, tuple[int, ...]]]]:
    """Look up the base model's parameters.

    Returns:
        The parameters in the checkpoint; the specs of those it lacks; the parameters of another shape than config.json
        implies, each with the implied shape.
    """
    rows: list[Parameter] = []
    absent: list[Spec] = []
    mismatches: list[tuple[Parameter, tuple[int, ...]]] = []
    for spec, layer in base_specs(family, dimensions, checkpoint.config):
        stored = names.get(prefix + spec.name)
        if stored is None:
            absent.append(spec)
            continue
        entry = checkpoint.tensors[stored]
        component = COMPONENTS[spec.role.split(".", 1)[0]]
        rows.append(Parameter(spec.name, entry.shape, entry.dtype, component, spec.role, layer, stored))
        if entry.shape != (expected := dimensions.shape(spec)):
            mismatches.append((rows[-1], expected))
    return rows, absent, mismatches


def without_whole(absent: Sequence[Spec], *optional: tuple[Spec, ...]) -> list[str]:
    """Return the names of missing parameters. A missing pooler is not a fault, since many classes have none.

    Nor is a missing contact head, or RoFormer's table of sines, which follows from its size.
    """
    names = [spec.name for spec in absent]
    for part in optional:
        whole = {spec.name for spec in part}
        names = [name for name in names if name not in whole] if whole <= set(names) else names
    return names


def in_surplus_layer(row: Parameter, prefix: str, family: Family, layers: int) -> bool:
    """Return True if an unplaced tensor belongs to a layer beyond config.json's number of layers."""
    before = family.layer[0].name.split("{l}")[0]
    number, _, _ = class_name_of(row.stored).removeprefix(prefix + before).partition(".")
    return number.isdecimal() and len(number) <= LAYER_DIGITS and int(number) >= layers


def layer_count_problems(
    surplus: Sequence[Parameter], base: Sequence[Parameter], dimensions: Dimensions, family: Family, prefix: str
) -> list[str]:
    """Describe the contradiction between config and header about the number of layers, if there is one."""
    before = prefix + family.layer[0].name.split("{l}")[0]
    layers = {row.layer for row in base if row.layer is not None}
    layers |= {int(class_name_of(row.stored).removeprefix(before).split(".", 1)[0]) for row in surplus}
    if len(layers) == dimensions.stored_layers and not surplus:
        return []
    return [f"config.json says {family.config['layers']} {dimensions.layers}, the header holds {len(layers)} layers"]
