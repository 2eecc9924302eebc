"""config.json explained: every field with its value, its meaning, and its consequences for this model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from headscope.anatomy.anatomy_record import Anatomy
from headscope.anatomy.entries import ENTRIES, GENERATION, GENERATION_MEANING, UNDESCRIBED, Facts
from headscope.errors import InputError
from headscope.late import Keyed
from headscope.settings import meant

Source = Literal["config.json", "default", "implied"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a config.

    Attributes:
        name: the name in config.json; for an implied field, headscope's name.
        value: the value in config.json, the class's default, or the implied value.
        meaning: the field's meaning, in a sentence.
        implies: the consequences for this model, in figures if possible; empty if there are none.
        source: where the value comes from.
        described: True if headscope has a description of this field.
    """

    name: str
    value: Any
    meaning: str
    implies: str
    source: Source
    described: bool = True


class ConfigTable(Keyed, Mapping[str, Any]):
    """A config as a mapping from field to value; `fields` has the explanations.

    The fields of config.json come first, in their order, then the class's defaults, then implied fields.
    """

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self._by_name = {field.name: field for field in fields}

    def __getitem__(self, name: str) -> Any:
        return self.field(name).value

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self.fields)

    def __getattr__(self, name: str) -> Any:
        known = vars(self).get("_by_name", ())
        hint = f"; use config[{name!r}]" if name in known else meant(name, known)
        raise AttributeError(f"'ConfigTable' object has no attribute {name!r}{hint}", name=name, obj=self)

    def field(self, name: str) -> Field:
        """Return a field with its explanation.

        Raises:
            InputError: neither config.json nor the class's defaults have this field.
        """
        if name not in self._by_name:
            close = get_close_matches(name, self._by_name, 1)
            raise MissingFieldError(
                f"the config has no field {name!r}",
                where="config",
                advice=f"did you mean {close[0]!r}?" if close else "`headscope config` lists them all",
            )
        return self._by_name[name]

    def __repr__(self) -> str:
        lines = []
        for field in self.fields:
            origin = "" if field.source == "config.json" else f"   ({field.source})"
            lines.append(f"{field.name} = {field.value!r}{origin}")
            lines += [f"    {text}" for text in (field.meaning, field.implies) if text]
        return "\n".join(lines)


class MissingFieldError(InputError, KeyError):
    """The config has no such field. Also a KeyError, as mappings require."""

    __str__ = InputError.__str__


def explain_config(anatomy: Anatomy) -> ConfigTable:
    """Explain every field of a checkpoint's config.

    Fields that config.json leaves out have the defaults of transformers' config class for this model type.
    """
    facts = Facts(anatomy)
    defaults = anatomy.family.defaults if anatomy.family else {}
    stated = [_field(name, value, facts, "config.json") for name, value in anatomy.config.items()]
    left_out = [_field(name, value, facts, "default") for name, value in defaults.items() if name not in anatomy.config]
    return ConfigTable((*stated, *left_out, *implied_fields(facts)))


def _field(name: str, value: Any, facts: Facts, source: Source) -> Field:
    if name in GENERATION:
        return Field(name, value, GENERATION_MEANING, "", source)
    entry = ENTRIES.get(name)
    if entry is None:
        return Field(name, value, UNDESCRIBED, "", source, described=False)
    implies = entry.implies(value, facts) if facts.anatomy.dimensions is not None or entry.anywhere else ""
    return Field(name, value, entry.meaning, implies, source)


def implied_fields(facts: Facts) -> tuple[Field, ...]:
    """Return the quantities that follow from config and header together."""
    sizes = facts.anatomy.dimensions
    if sizes is None:
        return ()

    def implied(name: str, value: Any, meaning: str, implies: str = "") -> Field:
        return Field(name, value, meaning, implies, "implied")

    return (
        implied(
            "d_head",
            sizes.d_head,
            "The width of one head: the length of its queries, keys and values.",
            f"{sizes.d_model} / {sizes.heads} = {sizes.d_head}; head h is columns {sizes.d_head}h to "
            f"{sizes.d_head}(h + 1) of a layer's W_Q ({sizes.d_model}, {sizes.d_model})",
        ),
        implied(
            "scale",
            sizes.d_head**-0.5,
            "The factor of the scores before softmax: 1 / sqrt(d_head).",
            f"1 / sqrt({sizes.d_head}) = {sizes.d_head**-0.5:.6g}",
        ),
        implied(
            "longest_text",
            facts.longest,
            "The maximum number of tokens in one input, special tokens included.",
            facts.longest_reason,
        ),
        implied(
            "heads_in_all",
            sizes.layers * sizes.heads,
            "Attention heads in the whole model.",
            f"{sizes.layers} layers x {sizes.heads} heads",
        ),
        implied(
            "parameters_per_layer",
            facts.per_layer,
            "Parameters of one layer: query, key, value and output of attention, the feed-forward network, two norms.",
            facts.per_layer_sum,
        ),
        implied("parameters", facts.anatomy.parameters.total, "Parameters of the base model in the checkpoint."),
    )
