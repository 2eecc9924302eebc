"""The anatomy: what a checkpoint means, as a record that answers by role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headscope.anatomy.families import named_architectures
from headscope.anatomy.names import Placement
from headscope.anatomy.parameters import UNPLACED, Component, Parameter, Parameters
from headscope.anatomy.refusals import Refusal
from headscope.anatomy.schema import Family, Top
from headscope.anatomy.sizes import SAVED_CONFIG, Dimensions, config_value
from headscope.anatomy.tops import held_tops, sure_tasks, ties_words
from headscope.checkpoint.json_text import brief
from headscope.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from headscope.checkpoint import TensorEntry

MEANINGS = {
    "embeddings": "turns each token, its position and its segment into a vector of d_model numbers",
    "projection": "widens the embeddings to d_model where they are narrower",
    "encoder": "the layers: in each, heads mix the tokens, then a feed-forward network works on each token alone",
    "pooler": "one dense layer with tanh on the first token, used by sentence-level heads",
    "cls": "predicts hidden words, and whether one sentence follows the other",
    "lm_head": "predicts hidden words",
    "classifier": "chooses among labels",
    "pre_classifier": "one dense layer on the first token, before the classifier",
    "qa_outputs": "scores every token as the answer's first and last",
    "vocab_transform": "one dense layer before hidden words are predicted",
    "vocab_layer_norm": "normalises before hidden words are predicted",
    "vocab_projector": "scores every word of the vocabulary as the hidden one",
    "discriminator_predictions": "says of every token whether it was replaced",
    "generator_predictions": "one dense layer before hidden words are predicted",
    "generator_lm_head": "scores every word of the vocabulary as the hidden one",
    "sequence_summary": "one dense layer on the first token, before the classifier",
    UNPLACED: "tensors inside the base model that its class does not have",
}

KINDS: Mapping[type, str] = {str: "text", int: "a whole number from 0", float: "a number from 0"}
SETTINGS: Mapping[str, type] = {"activation": str, "norm_eps": float, "padding_id": int}

LARGEST_SETTING = 3e38
"""The encoder computes in float32, which has no larger numbers."""


@dataclass(frozen=True)
class Anatomy:
    """What a checkpoint means.

    Attributes:
        family: the family's table; None where headscope knows no heads of this model, `refusals` says why.
        class_stem: what the family's classes begin with, `Bert` or `XLMRoberta`; empty without a family.
        parameters: the base model's own, in the class's order. All of them, where there is no family.
        extra: all others: what sits on top (`cls.*`, `classifier.*`, …) in its class's order, then what no table knows.
        dimensions: the sizes; None without a family.
        missing: names of the base model's parameters that the checkpoint lacks; a missing pooler is no fault.
        buffers: stored tensors that are no parameters.
        tied: stored tensors that repeat a parameter, and the name under which the file stores that one.
        problems: what is wrong or contradictory, one sentence each.
        refusals: why heads or the forward pass are refused; empty where both are right.
        place: where the base model lies in the file's names; None without a family.
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
    place: Placement | None
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]
    where: str

    @property
    def base_class(self) -> str:
        """The base model's class, `BertModel`; empty without a family."""
        return f"{self.class_stem}Model" if self.family else ""

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """The base model's parts and their shares of its numbers."""
        return self.parameters.by_component(MEANINGS if self.family else {})

    @property
    def all_parameters(self) -> Parameters:
        """The base model's parameters and those on top of it, in one table: its total counts both."""
        return Parameters((*self.parameters, *self.extra))

    @cached_property
    def extra_components(self) -> tuple[Component, ...]:
        """The parts on top; shares are of what is on top."""
        return self.extra.by_component(MEANINGS)

    @cached_property
    def tops(self) -> tuple[Top, ...]:
        """The classes on top that the checkpoint holds whole, the one that config.json names first."""
        if self.family is None or self.dimensions is None:
            return ()
        return held_tops(self.family, self.class_stem, self.config, self.dimensions, self.parameters, self.extra)

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """What the checkpoint can compute on top of the base model: masked_lm, next_sentence, sequence, token, ….

        One `classifier` serves several tasks: only config.json's architectures say which. Where they don't, none of
        these tasks is listed.
        """
        return sure_tasks(self.tops, named_architectures(self.config), self.class_stem)

    @cached_property
    def _by_role(self) -> dict[tuple[str, int | None], Parameter]:
        found = {(row.role, row.layer): row for row in (*self.extra, *self.parameters) if row.role is not None}
        by_name = {row.name: row for row in (*self.parameters, *self.extra)}
        outer = self.place.outer if self.place else ""
        for spec in (spec for top in self.tops for spec in top.specs if spec.tied_to and self.ties):
            source = by_name.get(spec.tied_to or "")
            if source is not None:
                copy = outer + spec.name if outer + spec.name in self.tied else source.stored
                found.setdefault((spec.role, None), replace(source, role=spec.role, stored=copy))
        return found

    @property
    def ties(self) -> bool:
        """Whether the class ties the output embedding to the input's (the config may say not)."""
        return ties_words(self.config)

    def has(self, role: str, layer: int | None = None) -> bool:
        """Whether the checkpoint holds the parameter with this role, tied ones included."""
        return (role, layer) in self._by_role

    def parameter(self, role: str, layer: int | None = None) -> Parameter:
        """The parameter with this role; a tied one is the file's own copy of it, or else what it is tied to.

        Raises:
            UnsupportedError: the family is not known.
            CheckpointError: the checkpoint does not hold it.
        """
        if self.family is None:
            raise self.refusals[0].error(self.where)
        try:
            return self._by_role[role, layer]
        except KeyError:
            raise CheckpointError(
                f"the checkpoint has no {self._class_name(role, layer)}",
                where=f"{self.where}: {self.base_class}, {len(self.parameters)} parameters",
                advice="use a checkpoint that was saved whole; `headscope fit MODEL CLASS` lists what is missing",
            ) from None

    def _class_name(self, role: str, layer: int | None) -> str:
        """What the class calls the parameter with this role; the role, where the base model has none."""
        family = self.family
        specs = (*family.embeddings, *family.projection, *family.layer, *family.pooler) if family else ()
        return next((spec.name.format(l=layer) for spec in specs if spec.role == role), role)

    def known(self) -> Dimensions:
        """The dimensions, where layers and heads are known and their slices right.

        Raises:
            UnsupportedError: the family is not known, or its weights are not what a head is cut from; `refusals`.
            CheckpointError: shapes contradict the config.
        """
        for refusal in self.refusals:
            if refusal.heads or self.dimensions is None:
                raise refusal.error(self.where)
        assert self.dimensions is not None
        return self.dimensions

    def computable(self) -> Dimensions:
        """The dimensions, where the family's forward pass is this model's.

        Raises:
            UnsupportedError: the model computes something else; `refusals` has the reasons.
            CheckpointError: parameters are missing, or shapes contradict the config.
        """
        for refusal in self.refusals:
            raise refusal.error(self.where)
        return self.known()

    def setting(self, name: str) -> Any:
        """A config field by headscope's name, or the class's own default.

        Raises:
            UnsupportedError: the family is not known.
            ConfigError: the field holds something of another kind.
        """
        if self.family is None:
            raise self.refusals[0].error(self.where)
        value = config_value(self.config, self.family, name, self.where)
        if value is None:
            return self.family.fixed.get(name, self.family.defaults.get(self.family.config.get(name, name)))
        kind = SETTINGS[name]
        number = isinstance(value, (int, kind)) and not isinstance(value, bool)
        if not (isinstance(value, str) if kind is str else number and 0 <= value <= LARGEST_SETTING):
            raise ConfigError(
                f"config.json says {self.family.config[name]} = {brief(value)}, expected {KINDS[kind]}",
                where=self.where,
                advice=SAVED_CONFIG,
            )
        return value

    @property
    def longest_text(self) -> int:
        """The most tokens that the position table has room for, special ones included.

        Raises:
            UnsupportedError: the family is not known.
        """
        if self.family is None or self.dimensions is None:
            raise self.refusals[0].error(self.where)
        positions, offset = self.dimensions.positions, self.family.position_offset
        return positions if offset is None else max(positions - offset - int(self.setting("padding_id")), 0)
