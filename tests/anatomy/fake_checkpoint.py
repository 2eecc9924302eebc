"""Checkpoints that are nothing but a config and a header, or a config and arrays whose reading is written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from headscope.anatomy import FAMILIES, Anatomy, Family, read_anatomy
from headscope.anatomy.fit import class_parameters, find_class
from headscope.anatomy.read_anatomy import base_specs
from headscope.anatomy.sizes import read_dimensions
from headscope.checkpoint import Checkpoint, TensorEntry
from making import BERT_CONFIG, bert_header
from random_models import FAMILIES as RANDOM

TINY = {
    "vocab_size": 40,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
}
TINY_BERT = {**BERT_CONFIG, **TINY}


def every_kind() -> list[tuple[Family, str, str]]:
    """Family, model type and class stem, longer stems first."""
    kinds = [(family, kind, stem) for family in FAMILIES for kind, stem in family.model_types.items()]
    return sorted(kinds, key=lambda kind: -len(kind[2]))


SMALLER = {name: size for name, size in TINY.items() if name != "type_vocab_size"}
SMALLER |= {"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 20, "embedding_size": 6, "num_key_value_heads": 1}
MORE: dict[str, dict[str, Any]] = {
    "albert": {"num_hidden_groups": 2},
    "deberta-v2": {"conv_kernel_size": 3, "share_att_key": False, "position_biased_input": True, "type_vocab_size": 2},
    "gte": {"type_vocab_size": 1},
}
"""What the random checkpoints' configs don't have."""
TINY_CONFIGS: dict[str, dict[str, Any]] = {
    kind: {
        "model_type": kind,
        **{name: SMALLER.get(name, value) for name, value in RANDOM[stem].items()},
        **MORE.get(kind, {}),
    }
    for _, kind, stem in every_kind()
}
"""The configs of random checkpoints, in smaller sizes."""


class FakeCheckpoint:
    """A checkpoint of a given config and header; `reads` lists what was read of it."""

    name = "fake"
    origin = "file"
    where = "a fake"
    has_config = True
    own_code = "", ""

    def __init__(
        self,
        config: Mapping[str, Any],
        header: Mapping[str, tuple[int, ...] | tuple[str, tuple[int, ...]]],
        *,
        arrays: Mapping[str, np.ndarray] | None = None,
        shared: Mapping[str, str] | None = None,
        has_config: bool = True,
    ) -> None:
        self.config = dict(config)
        self.tensors = {name: entry(name, value) for name, value in header.items()}
        self.arrays = dict(arrays or {})
        self.shared = dict(shared or {})
        self.has_config = has_config
        self.reads: list[tuple[str, slice | None, slice | None]] = []

    def read(self, name: str, rows: slice | None = None, columns: slice | None = None) -> np.ndarray:
        self.reads.append((name, rows, columns))
        array = self.arrays[name]
        if rows is not None:
            array = array[rows]
        return array if columns is None else array[:, columns]


def entry(name: str, value: tuple[int, ...] | tuple[str, tuple[int, ...]]) -> TensorEntry:
    dtype, shape = value if value and isinstance(value[0], str) else ("F32", value)
    return TensorEntry(name, cast(str, dtype), cast("tuple[int, ...]", shape), "model.safetensors", 0, 0)


def fake(config: Mapping[str, Any], header: Mapping[str, Any], **options: Any) -> Checkpoint:
    return cast(Checkpoint, FakeCheckpoint(config, header, **options))


def anatomy_of(config: Mapping[str, Any], header: Mapping[str, Any], **options: Any) -> Anatomy:
    return read_anatomy(fake(config, header, **options))


def tiny_bert(**options: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    return bert_header(TINY, **options)


def class_header(class_name: str) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """A tiny config and the header that a class of it would be saved with."""
    for family, kind, stem in every_kind():
        if class_name.startswith(stem):
            config = {**TINY_CONFIGS[kind], "architectures": [class_name]}
            top = find_class(class_name, (family, stem), "")[1]
            base = anatomy_of(TINY_CONFIGS[kind], base_header(family, kind))
            return config, class_parameters(base, family, top)[0]
    raise AssertionError(class_name)


def base_header(family: Family, kind: str) -> dict[str, tuple[int, ...]]:
    config = TINY_CONFIGS[kind]
    sizes = replace(
        read_dimensions(config, family, {}, ""),
        d_embedding=config.get("embedding_size", 12),
        vocab=40,
        positions=16,
        types=config.get("type_vocab_size", 2),
    )
    return {spec.name: sizes.shape(spec) for spec, _ in base_specs(family, sizes, config)}


def every_class() -> list[str]:
    return [
        stem + suffix for family, _, stem in every_kind() for suffix in ("Model", *(top.suffix for top in family.tops))
    ]
