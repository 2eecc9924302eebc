"""From a checkpoint's config and header to its anatomy: which tensor is what, and what contradicts what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headscope.anatomy.families import Family, Spec, family_of
from headscope.anatomy.parameters import Component, Parameter, Parameters
from headscope.errors import CheckpointError, ConfigError, UnsupportedError

if TYPE_CHECKING:
    from headscope.checkpoint import Checkpoint, TensorEntry

OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
"""How files older than the class spell the LayerNorm's parameters."""

MEANINGS = {
    "embeddings": "turns each token, its position and its segment into a vector of d_model numbers",
    "projection": "widens the embeddings to d_model where they are narrower",
    "encoder": "the layers: in each, every head mixes the tokens, then a feed-forward network works on each token alone",
    "pooler": "one dense layer with tanh on the first token, used by sentence-level heads",
}


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The sizes that shapes are spelled in.

    Attributes:
        layers, heads: how many; heads per layer.
        d_model: the width of the residual stream. d_head = d_model / heads.
        d_ffn: the width of the feed-forward network's middle.
        d_embedding: the width of the embeddings; d_model except in ELECTRA.
        vocab, positions, types: rows of the three embedding tables; types is 0 where there is none.
        labels: outputs of a classifier on top; None without one.
    """

    layers: int
    heads: int
    d_model: int
    d_ffn: int
    d_embedding: int
    vocab: int
    positions: int
    types: int
    labels: int | None = None

    @property
    def d_head(self) -> int:
        """The width of one head: d_model / heads."""
        return self.d_model // self.heads

    def shape(self, spec: Spec) -> tuple[int, ...] | None:
        """A spec's shape in numbers; None where it depends on labels and there are none."""
        sizes = tuple(size if isinstance(size, int) else getattr(self, size) for size in spec.shape)
        return None if None in sizes else sizes


@dataclass(frozen=True)
class Anatomy:
    """What a checkpoint means.

    Attributes:
        family: the family's table; None where headscope has none, and so knows no heads.
        class_stem: what the family's classes begin with, `Bert` or `XLMRoberta`; empty without a family.
        parameters: the base model's own, in the class's order. All of them, where the family is not known.
        extra: what sits on top (`cls.*`, `classifier.*`, …).
        dimensions: the sizes; None where the family is not known.
        missing: names of the base model's parameters that the checkpoint lacks; a missing pooler is no fault.
        buffers: stored tensors that are no parameters.
        tied: stored tensors that repeat a parameter, and its name in the file.
        problems: contradictions between config and header, one sentence each.
    """

    family: Family | None
    class_stem: str
    parameters: Parameters
    extra: Parameters
    dimensions: Dimensions | None
    missing: tuple[str, ...]
    buffers: tuple[str, ...]
    tied: Mapping[str, str]
    problems: tuple[str, ...]
    config: Mapping[str, Any]

    @property
    def base_class(self) -> str:
        """The base model's class, `BertModel`; empty without a family."""
        return f"{self.class_stem}Model" if self.family else ""

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """The base model's parts and their shares of its numbers."""
        return self.parameters.by_component(MEANINGS)

    @cached_property
    def extra_components(self) -> tuple[Component, ...]:
        """The parts on top; shares are of what is on top."""
        return self.extra.by_component({})

    @cached_property
    def _by_role(self) -> dict[tuple[str, int | None], Parameter]:
        return {(row.role, row.layer): row for row in (*self.parameters, *self.extra) if row.role is not None}

    def has(self, role: str, layer: int | None = None) -> bool:
        """Whether the checkpoint holds the parameter with this role."""
        return (role, layer) in self._by_role

    def parameter(self, role: str, layer: int | None = None) -> Parameter:
        """The parameter with this role.

        Raises:
            UnsupportedError: the family is not known.
            CheckpointError: the checkpoint does not hold it.
        """
        if self.family is None:
            raise self.heads_unknown()
        try:
            return self._by_role[role, layer]
        except KeyError:
            place = "" if layer is None else f" of layer {layer}"
            raise CheckpointError(
                f"the checkpoint has no {role}{place}",
                where=f"{self.base_class}, {len(self.parameters)} parameters",
                advice="use a checkpoint that was saved whole; `headscope fit MODEL CLASS` lists what is missing",
            ) from None

    def heads_unknown(self) -> UnsupportedError:
        """The refusal for everything that needs layers and heads."""
        kind = self.config.get("model_type")
        found = f"model_type {kind!r}" if kind else "no model_type that headscope has a table for"
        return UnsupportedError(
            f"heads are not known for this model: {found}",
            where="config.json",
            advice="headscope reads the heads of bert, roberta, xlm-roberta, camembert, distilbert and electra; "
            "its parameter table works for any model",
        )

    def known(self) -> Dimensions:
        """The dimensions, or the refusal where the family is not known."""
        if self.dimensions is None:
            raise self.heads_unknown()
        return self.dimensions

    def setting(self, name: str) -> Any:
        """A config field by headscope's name, or the class's own default."""
        if self.family is None:
            raise self.heads_unknown()
        value = self.config.get(self.family.config.get(name, ""))
        return self.family.defaults.get(name) if value is None else value


def read_anatomy(checkpoint: Checkpoint) -> Anatomy:
    """The anatomy of a checkpoint: a pure function of its config and header.

    Raises:
        ConfigError: the config of a known family lacks a size, or holds one that can't be.
        CheckpointError: the header holds two base models, or none of the one that the config names.
    """
    config = checkpoint.config
    architectures = tuple(str(name) for name in config.get("architectures") or ())
    known = family_of(config.get("model_type"), architectures)
    if known is None:
        return unknown_anatomy(checkpoint)
    family, stem = known
    prefix = base_prefix(checkpoint, family)
    outer = prefix.removesuffix(family.prefix)
    dimensions, problems = read_dimensions(checkpoint, family, prefix)
    tops = top_specs(family, architectures, stem, checkpoint.tensors, outer)
    taken: dict[str, str] = {}
    missing: list[str] = []
    rows: list[Parameter] = []
    pooler_specs = family.pooler
    for spec, layer in base_specs(family, dimensions.layers, dimensions.d_embedding != dimensions.d_model):
        stored = stored_name(checkpoint.tensors, prefix + spec.name)
        if stored is None:
            missing.append(spec.name)
            continue
        taken[stored] = spec.name
        rows.append(_parameter(checkpoint.tensors[stored], spec, spec.name, layer, stored))
        problems.extend(_shape_problem(checkpoint.tensors[stored], dimensions.shape(spec), stored))
    if len(missing) == len(pooler_specs) and set(missing) == {spec.name for spec in pooler_specs}:
        missing = []
    else:
        missing = [name for name in missing if name not in {spec.name for spec in pooler_specs}] or missing
    extra: list[Parameter] = []
    tied: dict[str, str] = {}
    buffers: list[str] = []
    specs = {outer + spec.name: spec for spec in tops}
    ties_allowed = config.get("tie_word_embeddings", True) is not False
    for stored, entry in checkpoint.tensors.items():
        if stored in taken:
            continue
        name = modern_name(stored)
        found = specs.get(name)
        if stored.removeprefix(prefix) in family.buffers:
            buffers.append(stored)
        elif stored in checkpoint.shared:
            tied[stored] = checkpoint.shared[stored]
        elif found is not None and found.tied_to is not None and (ties_allowed or found.shape == ("vocab",)):
            tied[stored] = found.tied_to
        else:
            role_spec = found or Spec(name, "", ())
            extra.append(_parameter(entry, role_spec, name.removeprefix(outer), None, stored))
    return Anatomy(
        family=family,
        class_stem=stem,
        parameters=Parameters(rows),
        extra=Parameters(_in_class_order(extra, tops)),
        dimensions=dimensions,
        missing=tuple(missing),
        buffers=tuple(buffers),
        tied=tied,
        problems=tuple(problems),
        config=config,
    )


def unknown_anatomy(checkpoint: Checkpoint) -> Anatomy:
    """A parameter table without roles, for a family that has no table here."""
    rows = [
        Parameter(name, entry.shape, entry.dtype, name.split(".", 1)[0], None, None, name)
        for name, entry in checkpoint.tensors.items()
        if name not in checkpoint.shared
    ]
    return Anatomy(
        family=None,
        class_stem="",
        parameters=Parameters(rows),
        extra=Parameters(()),
        dimensions=None,
        missing=(),
        buffers=(),
        tied=dict(checkpoint.shared),
        problems=(),
        config=checkpoint.config,
    )


def base_specs(family: Family, layers: int, projected: bool) -> list[tuple[Spec, int | None]]:
    """The base model's parameters with their layer, in the class's order, pooler included."""
    specs: list[tuple[Spec, int | None]] = [(spec, None) for spec in family.embeddings]
    if projected:
        specs += [(spec, None) for spec in family.projection]
    for layer in range(layers):
        specs += [
            (Spec(spec.name.format(l=layer), spec.role, spec.shape, spec.tied_to), layer) for spec in family.layer
        ]
    return specs + [(spec, None) for spec in family.pooler]


def top_specs(
    family: Family, architectures: tuple[str, ...], stem: str, tensors: Mapping[str, TensorEntry], outer: str
) -> tuple[Spec, ...]:
    """The specs of what sits on top: of the class the config names, then of every class whose tensors are there.

    Two classes may use one name for different things (`classifier`); the config's architecture goes first, then the
    class of which the checkpoint holds the most.
    """
    names = {modern_name(name) for name in tensors}
    by_class = {stem + top.suffix: top for top in family.tops}
    named = [by_class[name] for name in architectures if name in by_class]
    held = sorted(
        family.tops,
        key=lambda top: -sum(outer + spec.name in names for spec in top.specs),
    )
    specs: dict[str, Spec] = {}
    for top in (*named, *held):
        for spec in top.specs:
            specs.setdefault(spec.name, spec)
    return tuple(specs.values())


def modern_name(stored: str) -> str:
    """A stored name as the class has it: gamma and beta are the LayerNorm's weight and bias."""
    for new, old in OLD_NAMES.items():
        if stored.endswith(old):
            return stored.removesuffix(old) + new
    return stored


def stored_name(tensors: Mapping[str, TensorEntry], name: str) -> str | None:
    """The file's spelling of a class's name; None where the file doesn't hold it."""
    if name in tensors:
        return name
    for new, old in OLD_NAMES.items():
        if name.endswith(new) and (spelled := name.removesuffix(new) + old) in tensors:
            return spelled
    return None


def base_prefix(checkpoint: Checkpoint, family: Family) -> str:
    """What stands before the base model's names in this file: `bert.`, nothing, `module.bert.`, ….

    Raises:
        CheckpointError: no base model of this family is there, or more than one.
    """
    anchor = family.embeddings[0].name
    found = [name.removesuffix(anchor) for name in checkpoint.tensors if name.endswith(anchor)]
    found = [prefix for prefix in found if not prefix or prefix.endswith(".")]
    if len(found) == 1:
        return found[0]
    if not found:
        raise CheckpointError(
            f"config.json says model_type {family.name}, but no tensor is named {anchor}",
            where=checkpoint.where,
            advice="check that config.json and the weights belong together",
        )
    raise CheckpointError(
        f"the checkpoint holds {len(found)} models with embeddings: prefixes {', '.join(map(repr, found))}",
        where=checkpoint.where,
        advice="save the one to look at on its own, as model.encoder.save_pretrained(folder) does",
    )


def read_dimensions(checkpoint: Checkpoint, family: Family, prefix: str) -> tuple[Dimensions, list[str]]:
    """The sizes, and what config and header say differently.

    Numbers of layers and heads, d_model and d_ffn are the config's; the rows of the embedding tables are the header's.
    """
    config, tensors = checkpoint.config, checkpoint.tensors

    def size(ours: str) -> int:
        theirs = family.config[ours]
        value = config.get(theirs)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            found = f"has no {theirs}" if value is None else f"says {theirs} = {value!r}, which is no size"
            raise ConfigError(
                f"config.json {found}",
                where=checkpoint.where,
                advice="use the config.json that was saved with these weights",
            )
        return value

    def rows(role: str) -> tuple[int, ...]:
        for spec in family.embeddings:
            if spec.role == role:
                stored = stored_name(tensors, prefix + spec.name)
                return tensors[stored].shape if stored else (0, 0)
        return (0, 0)

    d_model, heads = size("d_model"), size("heads")
    if d_model % heads:
        raise ConfigError(
            f"{family.config['d_model']} {d_model} can't be divided into {heads} heads",
            where=f"{checkpoint.where}: config.json",
            advice=f"{family.config['heads']} must divide {family.config['d_model']}: use the config.json that "
            "was saved with these weights",
        )
    words = rows("embeddings.word")
    if len(words) != 2:
        raise CheckpointError(
            f"the word embeddings have shape {words}, expected two axes",
            where=checkpoint.where,
            advice="check that config.json and the weights belong together",
        )
    problems = []
    labels = config.get("num_labels") or len(config.get("id2label") or ()) or None
    dimensions = Dimensions(
        layers=size("layers"),
        heads=heads,
        d_model=d_model,
        d_ffn=size("d_ffn"),
        d_embedding=words[1],
        vocab=words[0],
        positions=rows("embeddings.position")[0],
        types=rows("embeddings.token_type")[0],
        labels=labels,
    )
    for ours in ("vocab", "positions", "types", "d_embedding"):
        said = config.get(family.config.get(ours, ""))
        held = getattr(dimensions, ours)
        if isinstance(said, int) and said != held:
            problems.append(f"config.json says {family.config[ours]} {said}, the header holds {held}")
    held_layers = _layers_held(checkpoint, family, prefix)
    if held_layers != dimensions.layers:
        problems.append(
            f"config.json says {family.config['layers']} {dimensions.layers}, the header holds {held_layers} layers"
        )
    return dimensions, problems


def _layers_held(checkpoint: Checkpoint, family: Family, prefix: str) -> int:
    before = prefix + family.layer[0].name.split("{l}")[0]
    numbers = {
        int(number)
        for name in checkpoint.tensors
        if name.startswith(before) and (number := name.removeprefix(before).split(".", 1)[0]).isdecimal()
    }
    return max(numbers, default=-1) + 1


def _parameter(entry: TensorEntry, spec: Spec, name: str, layer: int | None, stored: str) -> Parameter:
    part = spec.role.split(".", 1)[0]
    component = {"layer": "encoder"}.get(part, part) if part in COMPONENT_ROLES else name.split(".", 1)[0]
    return Parameter(name, entry.shape, entry.dtype, component, spec.role or None, layer, stored)


COMPONENT_ROLES = ("embeddings", "projection", "layer", "pooler")


def _shape_problem(entry: TensorEntry, expected: tuple[int, ...] | None, stored: str) -> list[str]:
    if expected is None or entry.shape == expected:
        return []
    return [f"{stored} has shape {entry.shape}, config.json implies {expected}"]


def _in_class_order(extra: list[Parameter], specs: tuple[Spec, ...]) -> list[Parameter]:
    order = {spec.name: index for index, spec in enumerate(specs)}
    return sorted(extra, key=lambda row: order.get(row.name, len(order)))
