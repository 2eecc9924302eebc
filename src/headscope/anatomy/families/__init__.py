"""The families whose heads headscope knows: tables of tensor names by role, and of config fields by headscope's names.

A family is data. Everything else (anatomy, heads, encoder) uses roles: `layer.query.weight` of layer 3, never
`encoder.layer.3.attention.self.query.weight`. To add a family, add a table to a file of this folder, and to FAMILIES;
schema.py documents its fields. The order is the class's order of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headscope.anatomy.families import bert, relative
from headscope.anatomy.schema import Family

FAMILIES = (
    bert.BERT,
    bert.ROBERTA,
    bert.DISTILBERT,
    bert.ELECTRA,
    bert.ALBERT,
    bert.ERNIE,
    bert.MEGATRON_BERT,
    bert.ROFORMER,
    relative.MODERNBERT,
    bert.ESM,
    relative.NOMIC_BERT,
    relative.GTE,
    relative.EUROBERT,
    relative.MPNET,
    relative.DEBERTA_V2,
)


def named_architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the class names in config.json."""
    names = config.get("architectures")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, (list, tuple)) else ()


def family_of(config: Mapping[str, Any]) -> tuple[Family, str] | None:
    """Return the family of a config and the prefix of its classes (`XLMRoberta`); None if headscope has no table.

    `model_type` decides; for configs older than that field, the first architecture.
    """
    model_type = config.get("model_type")
    if isinstance(model_type, str):
        for family in FAMILIES:
            if model_type in family.model_types:
                return family, family.model_types[model_type]
        return None
    first = named_architectures(config)[:1]
    for family in FAMILIES:
        for stem in family.model_types.values():
            if {f"{stem}Model", *(stem + top.suffix for top in family.tops)} & set(first):
                return family, stem
    return None
