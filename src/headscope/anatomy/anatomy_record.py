"""The anatomy: the meaning of a checkpoint's tensors, as a record with lookups by role."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headscope.anatomy.families import named_architectures
from headscope.anatomy.layer_rules import Disentangled, read_disentangled, read_layer_rules
from headscope.anatomy.parameters import UNPLACED, Components, Parameter, Parameters, class_name_of
from headscope.anatomy.refused_checkpoints import Refusal
from headscope.anatomy.schema import Family, Top
from headscope.anatomy.sizes import Dimensions, config_value, wrong_config
from headscope.anatomy.tops import held_tops, sure_tasks, ties_words
from headscope.checkpoint.json_text import brief
from headscope.errors import CheckpointError

if TYPE_CHECKING:
    from headscope.checkpoint import TensorEntry

MEANINGS = {
    "projection": "projects the embeddings to d_model if they have another width",
    "encoder": "the layers: in each, heads mix the tokens, then a feed-forward network processes each token separately",
    "pooler": "one dense layer with tanh on the first token, used by sentence-level heads",
    "contact_head": "predicts which residues of a protein are in contact, from all heads' weights",
    "head": "one dense layer and a norm, before the last layer",
    "decoder": "scores every word of the vocabulary",
    "predictions": "predicts masked words",
    "sop_classifier": "predicts the order of two sentences",
    "lm_predictions": "predicts masked words",
    "dense": "one dense layer, before the classifier",
    "lm_head": "predicts masked words",
    "classifier": "chooses among labels",
    "pre_classifier": "one dense layer on the first token, before the classifier",
    "qa_outputs": "scores every token as the answer's first and last",
    "vocab_transform": "one dense layer before masked words are predicted",
    "vocab_layer_norm": "normalises before masked words are predicted",
    "vocab_projector": "scores every word of the vocabulary for each masked word",
    "discriminator_predictions": "predicts of every token whether it was replaced",
    "generator_predictions": "one dense layer before masked words are predicted",
    "generator_lm_head": "scores every word of the vocabulary for each masked word",
    "sequence_summary": "one dense layer on the first token, before the classifier",
    UNPLACED: "tensors inside the base model that its class doesn't have",
}
"""Component -> its function, if it is the same in every checkpoint."""

EMBEDDED = {
    "embeddings.word.weight": "each token",
    "embeddings.position.weight": "its position",
    "embeddings.token_type.weight": "its segment",
    "embeddings.task_type.weight": "its task",
}
"""Role of a table -> the thing whose vectors it holds."""

PREDICTED = {"masked_lm.norm.weight": "masked words", "next_sentence.weight": "whether one sentence follows the other"}
"""Role of a parameter of BERT's heads on top -> the head's output."""

KINDS: Mapping[type, str] = {str: "a string", int: "an integer of at least 0", float: "a number of at least 0"}
SETTINGS: Mapping[str, type] = {
    "activation": str,
    "head_activation": str,
    "masked_lm_activation": str,
    "norm_eps": float,
    "padding_id": int,
    "mask_id": int,
    "positions": int,
    "pooling": str,
}

LARGEST_SETTING = 3e38
"""About the largest number in float32, in which the encoder computes."""


@dataclass(frozen=True, repr=False)
class Anatomy:
    """The meaning of a checkpoint.

    Attributes:
        family: the family's table; None if headscope doesn't know the heads of this model (`refusals` has the reason).
        class_stem: the prefix of the family's classes, `Bert` or `XLMRoberta`; empty without a family.
        parameters: the base model's parameters, in the class's order; without a family, all parameters.
        extra: the other parameters: those on top (`cls.*`, `classifier.*`, …) in their class's order, then unknown
            ones.
        dimensions: the sizes; None without a family.
        missing: names of the base model's parameters that the checkpoint lacks; a missing pooler is not a fault.
        buffers: stored tensors that are not parameters.
        tied: stored copies of a parameter -> the name under which the file stores that parameter.
        problems: errors and contradictions, one sentence each.
        refusals: the reasons for which heads or the forward pass are refused; empty if both are right.
        prefix: the prefix of the base model's names in the file, without wrappers: empty, `bert.`, `model.bert.`,
            `encoder.`, …; None without a family.
        outer: the part of it that a class with parameters on top puts before all its names: empty, `model.`, ….
        config: config.json.
        tensors: the header.
        where: the checkpoint, for messages.
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
    refusals: tuple[Refusal, ...]
    prefix: str | None
    outer: str
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]
    where: str

    def __repr__(self) -> str:
        dtypes = " and ".join(self.parameters.dtypes) or "no dtype"
        count = f"{len(self.parameters)} tensors, {self.parameters.total:,} parameters"
        return f"{self.base_class or 'unknown family'}: {count}, {dtypes}"

    @property
    def base_class(self) -> str:
        """The base model's class, such as `BertModel`; empty without a family."""
        return f"{self.class_stem}Model" if self.family else ""

    @cached_property
    def components(self) -> Components:
        """The base model's parts and their shares of its parameters."""
        if self.dimensions is None:
            return self.parameters.by_component({})
        *others, last = [text for role, text in EMBEDDED.items() if self.has(role)]
        width = "d_model" if self.dimensions.d_embedding == self.dimensions.d_model else "d_embedding"
        text = f"turns {' and '.join([', '.join(others), last] if others else [last])} into a vector of width {width}"
        return self.parameters.by_component({**MEANINGS, "embeddings": text})

    @property
    def all_parameters(self) -> Parameters:
        """The base model's parameters and those on top of it, in one table: its total counts both."""
        return Parameters((*self.parameters, *self.extra))

    @cached_property
    def extra_components(self) -> Components:
        """The parts on top of the base model, and their shares of the parameters on top."""
        outputs = [text for role, text in PREDICTED.items() if self.has(role)]
        own = {"cls": f"predicts {', and '.join(outputs)}" if outputs else "", "pooler": MEANINGS["pre_classifier"]}
        return self.extra.by_component({**MEANINGS, **own})

    @cached_property
    def tops(self) -> tuple[Top, ...]:
        """The classes on top for which the checkpoint is complete; the one that config.json names comes first."""
        if self.family is None or self.dimensions is None:
            return ()
        return held_tops(self.family, self.class_stem, self.config, self.dimensions, self.parameters, self.extra)

    @property
    def rotates(self) -> bool:
        """True if queries and keys are rotated by their positions."""
        family = self.family
        return family is not None and family.rotary is not None and family.holds(family.rotary.when, self.config)

    @cached_property
    def disentangled(self) -> Disentangled | None:
        """The settings of DeBERTa's attention; None in other families."""
        if self.family is None or self.dimensions is None or self.family.terms != "disentangled":
            return None
        return read_disentangled(self.config, self.dimensions)

    @property
    def products(self) -> int:
        """The number of products in a score, by which DeBERTa multiplies d_head in the scale; 1 elsewhere."""
        return self.disentangled.share if self.disentangled else 1

    @property
    def adds_distances(self) -> bool:
        """True if the layers add something to the scores for the distance of two tokens (MPNet, DeBERTa)."""
        settings, family = self.disentangled, self.family
        return bool(family and family.terms) and (settings is None or bool(settings.relative and settings.kinds))

    @property
    def is_pre_norm(self) -> bool:
        """True if norms come before the sums, as in ModernBERT; False if they follow them, as in BERT."""
        return self.family is not None and self.family.layer_form == "pre_norm"

    @property
    def windows(self) -> tuple[int | None, ...]:
        """For each layer, the number of keys that a query sees on each side of its own position; None for all.

        Raises:
            UnsupportedError: headscope doesn't know the family, or can't read its settings.
        """
        return self._layer_rules[0]

    @property
    def rotation_bases(self) -> tuple[float | None, ...]:
        """For each layer, the base of the rotation's frequencies, rope_theta; None if it doesn't rotate.

        Raises:
            UnsupportedError: as for `windows`.
        """
        return self._layer_rules[1]

    @cached_property
    def _layer_rules(self) -> tuple[tuple[int | None, ...], tuple[float | None, ...]]:
        if self.family is None or self.dimensions is None:
            raise self.refusals[0].error(self.where)
        windows, bases, refusals = read_layer_rules(self.config, self.family, self.dimensions)
        for refusal in refusals:
            raise refusal.error(self.where)
        return windows, bases

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that the checkpoint can compute on top: masked_lm, next_sentence, sequence, token, ….

        Several tasks use a `classifier`; only config.json's architectures tell which one it is. If they don't, none of
        these tasks is listed.
        """
        return sure_tasks(self.tops, named_architectures(self.config), self.class_stem)

    @cached_property
    def _by_role(self) -> dict[tuple[str, int | None], Parameter]:
        """Role and layer -> parameter; layers that share their parameters have the same."""
        rows = {(row.role, row.layer): row for row in (*self.extra, *self.parameters) if row.role is not None}
        by_name = {row.name: row for row in (*self.parameters, *self.extra)}
        copies = {class_name_of(stored): stored for stored in self.tied}
        for spec in (spec for top in self.tops for spec in top.specs if spec.tied_to and self.ties):
            source = by_name.get(spec.tied_to or "")
            if source is not None:
                copy = copies.get(self.outer + spec.name, source.stored)
                rows.setdefault((spec.role, None), replace(source, role=spec.role, stored=copy))
        for role, row in self._stacked():
            rows[role, row.layer] = row
        if self.dimensions is None or not self.dimensions.groups:
            return rows
        users: dict[int | None, list[int | None]] = {None: [None]}
        for layer in range(self.dimensions.layers):
            users.setdefault(self.dimensions.stored_layer(layer), []).append(layer)
        return {(role, layer): row for (role, stored), row in rows.items() for layer in users.get(stored, ())}

    def _stacked(self) -> Iterator[tuple[str, Parameter]]:
        """Yield the parameters that the file stacks in one tensor, in equal parts, with their roles."""
        stacks = {spec.role: spec.stacks for spec in (self.family.layer if self.family else ()) if spec.stacks}
        for row in self.parameters:
            roles = stacks.get(row.role or "", ())
            for index, role in enumerate(roles):
                count = row.shape[0] // len(roles)
                rows = (index * count, (index + 1) * count)
                yield role, replace(row, role=role, shape=(count, *row.shape[1:]), rows=rows)

    @property
    def ties(self) -> bool:
        """True if the class ties the output embedding to the input embedding; the config may say otherwise."""
        return ties_words(self.config, self.family)

    def has(self, role: str, layer: int | None = None) -> bool:
        """Return True if the checkpoint has the parameter with this role, stored or tied."""
        return (role, layer) in self._by_role

    def find(self, role: str, layer: int | None = None) -> Parameter | None:
        """Return the parameter with this role as `parameter` does; None if the checkpoint lacks it."""
        return self._by_role.get((role, layer))

    def rows_of(self, layer: int) -> list[Parameter]:
        """The stored parameters that a layer uses; layers may share them."""
        used = {row.stored for (_, at), row in self._by_role.items() if at == layer}
        return [row for row in self.parameters if row.stored in used]

    def class_rows(self, rows: Iterable[Parameter]) -> Iterator[tuple[str, Parameter]]:
        """Yield parameters under the names of transformers' class, which may split those that the file stacks."""
        names = self.family.class_names if self.family else {}
        parts: dict[str, list[Parameter]] = {}
        if names:
            for _, part in self._stacked():
                parts.setdefault(part.stored, []).append(part)
        for row in rows:
            for part in parts.get(row.stored, [row]):
                module, _, kind = (part.role or "").rpartition(".")
                renamed = names[module].format(l=part.layer) + f".{kind}" if module in names else row.name
                yield renamed, part

    def goes_without(self, role: str, layer: int | None = None) -> bool:
        """Return True if the class has no parameter with this role, so that its absence is not a fault."""
        return not self.has(role, layer) and self._class_name(role, layer) not in self.missing

    def parameter(self, role: str, layer: int | None = None) -> Parameter:
        """Return the parameter with this role; for a tied one, its stored copy or else the parameter it is tied to.

        Raises:
            UnsupportedError: headscope doesn't know the family.
            CheckpointError: the checkpoint lacks this parameter.
        """
        if self.family is None:
            raise self.refusals[0].error(self.where)
        try:
            return self._by_role[role, layer]
        except KeyError:
            raise CheckpointError(
                f"the checkpoint has no {self._class_name(role, layer)}",
                where=f"{self.where}: {self.base_class}, {len(self.parameters)} parameters",
                advice="use a complete checkpoint; `headscope fit MODEL CLASS` lists the missing parameters",
            ) from None

    def _class_name(self, role: str, layer: int | None) -> str:
        """Return the class's name of the parameter with this role; the role itself if the base model lacks it."""
        family, sizes = self.family, self.dimensions
        if family is None or sizes is None:
            return role
        outside = (*family.embeddings, *family.projection, *family.before_layers, *family.after_layers)
        for spec in (*outside, *family.layer, *family.pooler, *family.beside):
            if spec.role == role or role in spec.stacks:
                return spec.name if layer is None else sizes.name(spec, sizes.stored_layer(layer))
        return role

    def known(self) -> Dimensions:
        """Return the dimensions, after checking that the heads' slices are right.

        Raises:
            UnsupportedError: headscope can't slice this model's heads; `refusals` has the reasons.
            CheckpointError: shapes contradict the config.
        """
        for refusal in self.refusals:
            if refusal.heads or self.dimensions is None:
                raise refusal.error(self.where)
        assert self.dimensions is not None
        return self.dimensions

    def computable(self) -> Dimensions:
        """Return the dimensions, after checking that headscope's forward pass is right for this model.

        Raises:
            UnsupportedError: the model computes something else; `refusals` has the reasons.
            CheckpointError: parameters are missing, or shapes contradict the config.
        """
        for refusal in self.refusals:
            raise refusal.error(self.where)
        return self.known()

    def setting(self, name: str) -> Any:
        """Return a config field by headscope's name, or the class's default.

        Raises:
            UnsupportedError: headscope doesn't know the family.
            ConfigError: the field has a value of the wrong kind, or a number is missing that has no default.
        """
        if self.family is None:
            raise self.refusals[0].error(self.where)
        value = config_value(self.config, self.family, name, self.where)
        kind = SETTINGS[name]
        if value is None:
            config_field = self.family.config.get(name, name)
            value = self.family.fixed.get(name, self.family.defaults.get(config_field))
            if value is None and kind is not str:
                raise wrong_config(f"has no {config_field}", self.where)
            return value
        number = isinstance(value, (int, kind)) and not isinstance(value, bool)
        if not (isinstance(value, str) if kind is str else number and 0 <= value <= LARGEST_SETTING):
            problem = f"says {self.family.config[name]} = {brief(value)}, expected {KINDS[kind]}"
            raise wrong_config(problem, self.where)
        return value

    @property
    def longest_text(self) -> int:
        """The maximum number of tokens in one input, special tokens included, by the position table.

        Without a table (where positions rotate queries and keys, or scores depend on distances), it is the config's
        number, the longest text that the model was made for; longer ones can be computed.

        Raises:
            UnsupportedError: headscope doesn't know the family.
        """
        if self.family is None or self.dimensions is None:
            raise self.refusals[0].error(self.where)
        positions, offset = self.dimensions.positions, self.family.position_offset
        if not positions:
            return int(self.setting("positions"))
        return positions if offset is None else max(positions - offset - int(self.setting("padding_id")), 0)


PRECISIONS = {"fp32": 32, "fp16": 16, "bf16": 16, "int8": 8}
"""Bits per parameter. int8 counts only the codes: the scales take less than a hundredth of that."""

AS_STORED = "as stored"


def memory(anatomy: Anatomy) -> dict[str, tuple[int, int]]:
    """Return the bytes of the base model's parameters, and of these and those on top, at each precision.

    The precisions are fp32, fp16, bf16, int8 and `as stored`. Tied weights count once; buffers and activations don't
    count.
    """
    base, whole = anatomy.parameters.total, anatomy.all_parameters.total
    sizes = {name: (base * bits // 8, whole * bits // 8) for name, bits in PRECISIONS.items()}
    return {**sizes, AS_STORED: (anatomy.parameters.bytes, anatomy.all_parameters.bytes)}
