"""The sizes that determine shapes: from config.json and, for the embedding tables, from the header."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headscope.anatomy.schema import Family, Spec
from headscope.checkpoint.json_text import brief
from headscope.errors import ConfigError

DEFAULT_LABELS = 2
"""Outputs of a classifier if the config doesn't say: transformers' default, which configs leave out."""

MOST_LAYERS = 1000
"""The most layers, and groups of layers, that a config may name; more only if there are as many tensors."""

DEBERTA_SPANS = ("position_buckets", "max_relative_positions", "max_position_embeddings")
"""The fields that may give the number of DeBERTa's distances on each side; the first positive one counts."""

SAVED_CONFIG = "use the config.json that was saved with these weights"


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The sizes that determine shapes.

    Attributes:
        layers: number of layers.
        heads: number of heads in each layer.
        d_model: width of the residual stream. d_head = d_model / heads.
        d_ffn: width of the feed-forward network between its two matrices.
        d_embedding: width of the embeddings; d_model except in ELECTRA.
        vocab: rows of the word embedding table.
        positions: rows of the position table.
        types: rows of the token-type table; 0 if there is none.
        labels: outputs of a classifier on top, from the config; 2 if it doesn't say.
        head_width: the width of one head if it is not d_model / heads; else 0.
        grouped: number of key heads if several query heads share one; else 0.
        groups: number of groups of layers that share their parameters (ALBERT); 0 if no layers share any.
        inner: number of layers in such a group.
        relative: rows of the table of distances; 0 if there is none.
        kernel: width of DeBERTa's convolution; 0 if there is none.
        conv_groups: groups of channels of that convolution, which don't mix.
        task_types: rows of ERNIE's table of tasks; 0 if there is none.
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
    head_width: int = 0
    grouped: int = 0
    groups: int = 0
    inner: int = 1
    task_types: int = 0
    relative: int = 0
    kernel: int = 0
    conv_groups: int = 1

    @property
    def d_head(self) -> int:
        """The width of one head: d_model / heads, except where the config has another."""
        return self.head_width or self.d_model // self.heads

    @property
    def kv_heads(self) -> int:
        """Number of key heads in each layer; under grouped-query attention, several query heads share one."""
        return self.grouped or self.heads

    @property
    def d_heads(self) -> int:
        """The width of all heads together."""
        return self.heads * self.d_head

    @property
    def d_keys(self) -> int:
        """The width of all key heads together."""
        return self.kv_heads * self.d_head

    @property
    def d_qkv(self) -> int:
        """Rows of query, key and value in one tensor."""
        return self.d_heads + 2 * self.d_keys

    @property
    def d_gated(self) -> int:
        """Rows of both halves of a gated feed-forward network in one tensor."""
        return 2 * self.d_ffn

    @property
    def d_conv(self) -> int:
        """Channels that each channel of the convolution reads."""
        return self.d_model // self.conv_groups

    @property
    def all_heads(self) -> int:
        """Number of heads of all layers."""
        return self.layers * self.heads

    @property
    def stored_layers(self) -> int:
        """Number of layers with parameters of their own; fewer than `layers` if some share theirs."""
        return self.groups * self.inner or self.layers

    def stored_layer(self, layer: int) -> int:
        """The layer of the file whose parameters a layer uses: itself, unless layers share theirs.

        ALBERT's layers fall into groups of equal size, in order (Lan et al. 2019, section 3.1).
        """
        if not self.groups:
            return layer
        rounds = self.layers // self.inner
        return int(layer // self.inner / (rounds / self.groups)) * self.inner + layer % self.inner

    def name(self, spec: Spec, stored_layer: int) -> str:
        """Return the name of a layer's parameter: `{l}` is the layer, or the group of layers, and `{i}` its layer."""
        return spec.name.format(l=stored_layer // self.inner, i=stored_layer % self.inner)

    def named(self, specs: Iterable[Spec], stored_layer: int) -> list[Spec]:
        """Return the parameters of a layer under their names in it, without those that only later layers have."""
        return [replace(spec, name=self.name(spec, stored_layer)) for spec in specs if stored_layer >= spec.first]

    def shape(self, spec: Spec) -> tuple[int, ...]:
        """Return a spec's shape as integers."""
        return tuple(size if isinstance(size, int) else int(getattr(self, size)) for size in spec.shape)


def wrong_config(problem: str, where: str, advice: str = SAVED_CONFIG) -> ConfigError:
    """The error for a config that says or lacks something."""
    return ConfigError(f"config.json {problem}", where=where, advice=advice)


def config_value(config: Mapping[str, Any], family: Family, name: str, where: str) -> Any:
    """Return a config field by headscope's name, under the family's name for it or an alias that transformers accepts.

    Raises:
        ConfigError: both names are present with different values.
    """
    config_field = family.config.get(name)
    if config_field is None:
        return None
    value = config.get(config_field)
    alias = family.aliases.get(config_field)
    alias_value = None if alias is None else config.get(alias)
    if alias_value is not None and value is not None and alias_value != value:
        both = f"{config_field} {brief(value)} and {alias} {brief(alias_value)}"
        raise wrong_config(f"says {both}, which are two names for the same field", where)
    return alias_value if value is None else value


def config_size(config: Mapping[str, Any], family: Family, name: str, where: str) -> int:
    """Return a size that config.json must contain.

    Raises:
        ConfigError: it is missing, or not a positive integer.
    """
    value = config_value(config, family, name, where)
    if is_size(value):
        return int(value)
    config_field = family.config[name]
    stated = f"says {config_field} = {brief(value)}, expected a positive integer"
    raise wrong_config(f"has no {config_field}" if value is None else stated, where)


def relative_rows(config: Mapping[str, Any], family: Family) -> int:
    """Return the rows of the table of distances: MPNet's buckets; in DeBERTa, two for each distance or bucket."""
    fields = {"by_distance": (1, ("relative_attention_num_buckets",)), "disentangled": (2, DEBERTA_SPANS)}
    factor, names = fields.get(family.terms, (0, ()))
    sizes = (config.get(name, family.defaults.get(name)) for name in names)
    return factor * next((int(size) for size in sizes if is_size(size)), 0)


def optional_size(config: Mapping[str, Any], family: Family, name: str, where: str) -> int:
    """Return a size that the family may lack or config.json may leave out; then 0.

    Raises:
        ConfigError: it is not a positive integer.
    """
    if name not in family.config or config_value(config, family, name, where) is None:
        return 0
    return config_size(config, family, name, where)


def is_size(value: object) -> bool:
    """Return True if a config's value is a positive integer (JSON's true is not)."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def config_labels(config: Mapping[str, Any], where: str) -> int:
    """Return the number of a classifier's outputs: the length of id2label, else num_labels, else 2.

    Raises:
        ConfigError: id2label is not a mapping, or num_labels not a positive integer.
    """
    names = config.get("id2label")
    if names is not None:
        if not isinstance(names, Mapping) or not all(re.fullmatch(r"\d{1,9}", str(index)) for index in names):
            problem = f"says id2label = {brief(names)}, expected a mapping from index to label"
            raise wrong_config(problem, where, 'write it as {"0": "negative", "1": "positive"}')
        return len(names)
    labels = config.get("num_labels")
    if labels is None:
        return DEFAULT_LABELS
    if not is_size(labels):
        raise wrong_config(f"says num_labels = {brief(labels)}, expected a positive integer", where)
    return int(labels)


def read_dimensions(
    config: Mapping[str, Any], family: Family, tables: Mapping[str, tuple[int, ...]], where: str, *, tensors: int = 0
) -> Dimensions:
    """Return the sizes of a model.

    The numbers of layers and heads, d_model and d_ffn come from the config; the rows of the embedding tables come from
    the header.

    Args:
        config: config.json.
        family: the family that it names.
        tables: role -> shape of the embedding tables in the header.
        where: the checkpoint, for messages.
        tensors: number of tensors in the header.

    Raises:
        ConfigError: a size is missing or not a positive integer, the heads don't divide d_model, or there are more
            layers than tensors.
    """
    d_model = config_size(config, family, "d_model", where)
    heads = config_size(config, family, "heads", where)
    layers = config_size(config, family, "layers", where)
    head_width = optional_size(config, family, "d_head", where)
    if d_model % heads and not head_width:
        raise ConfigError(
            f"{family.config['d_model']} {d_model} is not divisible by {heads} heads",
            where=f"{where}: config.json",
            advice=f"{family.config['heads']} must divide {family.config['d_model']}: {SAVED_CONFIG}",
        )
    inner = optional_size(config, family, "inner", where) or 1
    groups = optional_size(config, family, "groups", where) or int("groups" in family.config)
    for name, count in {"layers": layers, "inner": layers * inner, "groups": groups * inner}.items():
        if count > max(MOST_LAYERS, tensors):
            text = f"{family.config[name]} = {brief(config_value(config, family, name, where))}"
            raise wrong_config(f"says {text}, more than any model has", where)
    grouped = optional_size(config, family, "kv_heads", where)
    if grouped and heads % grouped:
        problem = f"says {family.config['kv_heads']} = {grouped}, which doesn't divide the {heads} heads"
        raise wrong_config(problem, where)

    def axis(role: str, index: int, otherwise: int) -> int:
        shape = tables.get(role, ())
        return shape[index] if len(shape) == 2 else otherwise

    return Dimensions(
        layers=layers * inner,
        heads=heads,
        d_model=d_model,
        d_ffn=config_size(config, family, "d_ffn", where),
        d_embedding=axis("embeddings.word", 1, optional_size(config, family, "d_embedding", where) or d_model),
        vocab=axis("embeddings.word", 0, 0),
        positions=axis("embeddings.position", 0, 0) or axis("rotation", 0, 0),
        types=axis("embeddings.token_type", 0, 0),
        labels=config_labels(config, where),
        head_width=head_width,
        grouped=grouped,
        groups=groups,
        inner=inner,
        relative=relative_rows(config, family),
        kernel=optional_size(config, family, "kernel", where) if config.get("conv_kernel_size") else 0,
        conv_groups=optional_size(config, family, "conv_groups", where) or 1,
        task_types=optional_size(config, family, "task_types", where) or family.defaults.get("task_type_vocab_size", 0),
    )
