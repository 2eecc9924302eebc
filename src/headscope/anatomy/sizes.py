"""The sizes that shapes are spelled in, from config.json and, for the embedding tables, from the header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headscope.anatomy.schema import Family, Spec
from headscope.checkpoint.json_text import brief
from headscope.errors import ConfigError

DEFAULT_LABELS = 2
"""Outputs of a classifier where the config doesn't say: transformers' own default, which configs leave out."""

MOST_LAYERS = 10_000
"""More layers than this are no model's: a config that says so is damaged."""

SAVED_CONFIG = "use the config.json that was saved with these weights"


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The sizes that shapes are spelled in.

    Attributes:
        layers: how many.
        heads: how many in each layer.
        d_model: the width of the residual stream. d_head = d_model / heads.
        d_ffn: the width of the feed-forward network's middle.
        d_embedding: the width of the embeddings; d_model except in ELECTRA.
        vocab: rows of the table of word pieces.
        positions: rows of the table of positions.
        types: rows of the table of segments; 0 where there is none.
        labels: outputs of a classifier on top, as the config has them; 2 where it doesn't say.
    """

    layers: int
    heads: int
    d_model: int
    d_ffn: int
    d_embedding: int
    vocab: int
    positions: int
    types: int
    labels: int = DEFAULT_LABELS

    @property
    def d_head(self) -> int:
        """The width of one head: d_model / heads."""
        return self.d_model // self.heads

    def shape(self, spec: Spec) -> tuple[int, ...]:
        """A spec's shape in numbers."""
        return tuple(size if isinstance(size, int) else int(getattr(self, size)) for size in spec.shape)


def config_value(config: Mapping[str, Any], family: Family, ours: str, where: str) -> Any:
    """A config field by headscope's name: under the family's name for it, or the one that transformers takes as well.

    Raises:
        ConfigError: both names are there and say different things.
    """
    theirs = family.config.get(ours)
    if theirs is None:
        return None
    value = config.get(theirs)
    alias = family.aliases.get(theirs)
    other = None if alias is None else config.get(alias)
    if other is not None and value is not None and other != value:
        raise ConfigError(
            f"config.json says {theirs} {brief(value)} and {alias} {brief(other)}, which are two names for one thing",
            where=where,
            advice=SAVED_CONFIG,
        )
    return other if value is None else value


def config_size(config: Mapping[str, Any], family: Family, ours: str, where: str) -> int:
    """A size that config.json has to give.

    Raises:
        ConfigError: it doesn't, or it says something that is no size.
    """
    value = config_value(config, family, ours, where)
    if is_size(value):
        return int(value)
    theirs = family.config[ours]
    found = f"has no {theirs}" if value is None else f"says {theirs} = {brief(value)}, which is no size"
    raise ConfigError(f"config.json {found}", where=where, advice=SAVED_CONFIG)


def is_size(value: object) -> bool:
    """Whether a config's value is a whole number above 0 (JSON's true is none)."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def config_labels(config: Mapping[str, Any], where: str) -> int:
    """Outputs of a classifier: as many as id2label has, else num_labels, else 2.

    Raises:
        ConfigError: id2label is no mapping, or num_labels no size.
    """
    names = config.get("id2label")
    if names is not None:
        if not isinstance(names, Mapping) or not all(str(index).isdecimal() for index in names):
            raise ConfigError(
                f"config.json says id2label = {brief(names)}, which maps no index to a label",
                where=where,
                advice='write it as {"0": "negative", "1": "positive"}',
            )
        return len(names)
    labels = config.get("num_labels")
    if labels is None:
        return DEFAULT_LABELS
    if not is_size(labels):
        raise ConfigError(
            f"config.json says num_labels = {brief(labels)}, which is no size",
            where=where,
            advice=SAVED_CONFIG,
        )
    return int(labels)


def read_dimensions(
    config: Mapping[str, Any], family: Family, tables: Mapping[str, tuple[int, ...]], where: str
) -> Dimensions:
    """The sizes of a model.

    Numbers of layers and heads, d_model and d_ffn are the config's; the rows of the embedding tables are the header's.

    Args:
        config: config.json.
        family: the family that it names.
        tables: role -> shape of the embedding tables that the header holds.
        where: the checkpoint, for messages.

    Raises:
        ConfigError: a size is missing or none, or the heads don't divide d_model.
    """
    d_model = config_size(config, family, "d_model", where)
    heads = config_size(config, family, "heads", where)
    layers = config_size(config, family, "layers", where)
    if d_model % heads:
        raise ConfigError(
            f"{family.config['d_model']} {d_model} can't be divided into {heads} heads",
            where=f"{where}: config.json",
            advice=f"{family.config['heads']} must divide {family.config['d_model']}: {SAVED_CONFIG}",
        )
    if layers > MOST_LAYERS:
        raise ConfigError(
            f"config.json says {family.config['layers']} = {layers}, more than any model has",
            where=where,
            advice=SAVED_CONFIG,
        )

    def axis(role: str, index: int, otherwise: int) -> int:
        shape = tables.get(role, ())
        return shape[index] if len(shape) == 2 else otherwise

    return Dimensions(
        layers=layers,
        heads=heads,
        d_model=d_model,
        d_ffn=config_size(config, family, "d_ffn", where),
        d_embedding=axis("embeddings.word", 1, d_model),
        vocab=axis("embeddings.word", 0, 0),
        positions=axis("embeddings.position", 0, 0),
        types=axis("embeddings.token_type", 0, 0),
        labels=config_labels(config, where),
    )
