"""The rules of each layer's attention, from config.json: which keys its queries see, and how far they are rotated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headscope.anatomy.refusals import CAPTURE_LIVE, Refusal
from headscope.anatomy.schema import Family
from headscope.anatomy.sizes import SAVED_CONFIG, Dimensions, is_size
from headscope.checkpoint.json_text import brief

GLOBAL, LOCAL = "full_attention", "sliding_attention"
"""transformers' names of the two kinds of layers."""


@dataclass(frozen=True, slots=True)
class LayerRule:
    """The rules of one layer's attention.

    Attributes:
        window: number of keys that a query sees on each side of its own position; None for all.
        base: the base of the rotation's frequencies, rope_theta; None if the layer doesn't rotate.
    """

    window: int | None = None
    base: float | None = None


def read_layer_rules(
    config: Mapping[str, Any], family: Family, sizes: Dimensions
) -> tuple[tuple[LayerRule, ...], list[Refusal]]:
    """Return the rules of all layers, and refusals of the settings that headscope can't compute."""
    refusals: list[Refusal] = []

    def refuse(text: str, advice: str = CAPTURE_LIVE) -> None:
        refusals.append(Refusal(text, advice, "config.json"))

    kinds = _kinds(config, family, sizes.layers, refuse)
    window = None
    if LOCAL in kinds:
        window = config.get("local_attention", family.defaults.get("local_attention"))
        if not is_size(window):
            refuse(f"local_attention is {brief(window)}, expected the number of keys of a window", SAVED_CONFIG)
            window = 1
    bases = {kind: _base(config, family, kind, refuse) for kind in dict.fromkeys(kinds)}
    if any(bases.values()) and sizes.d_head % 2:
        refuse(f"heads are {sizes.d_head} wide: a rotation needs an even width")
    rules = tuple(LayerRule(int(window or 0) // 2 if kind == LOCAL else None, bases[kind]) for kind in kinds)
    return rules, refusals


def _kinds(config: Mapping[str, Any], family: Family, layers: int, refuse: Any) -> list[str]:
    """Return the kind of each layer: layer_types, or every n-th is global."""
    if family.rotary is None or family.rotary.local_base is None:
        return [GLOBAL] * layers
    kinds = config.get("layer_types")
    if kinds is None:
        every = config.get("global_attn_every_n_layers", 3)
        if is_size(every):
            return [LOCAL if layer % every else GLOBAL for layer in range(layers)]
        refuse(f"global_attn_every_n_layers is {brief(every)}, expected a positive integer", SAVED_CONFIG)
    elif not isinstance(kinds, list) or len(kinds) != layers or not all(kind in (GLOBAL, LOCAL) for kind in kinds):
        refuse(f"layer_types is {brief(kinds)}, expected {layers} times {GLOBAL} or {LOCAL}", SAVED_CONFIG)
    else:
        return kinds
    return [GLOBAL] * layers


def _base(config: Mapping[str, Any], family: Family, kind: str, refuse: Any) -> float | None:
    """Return rope_theta of a kind of layers: in rope_parameters, in a field of its own, or the family's default."""
    rotary = family.rotary
    if rotary is None or not family.holds(rotary.when, config):
        return None
    field = next((name for name in ("rope_parameters", "rope_scaling") if config.get(name) is not None), "")
    settings = config.get(field) or {}
    base_field = next((name for name in ("rope_theta", rotary.alias) if name in config), "rope_theta")
    default = rotary.base
    if rotary.local_base is not None:
        base_field = "global_rope_theta" if kind == GLOBAL else "local_rope_theta"
        default = rotary.base if kind == GLOBAL else rotary.local_base
        if field == "rope_parameters" and isinstance(settings, Mapping):
            settings = settings.get(kind) or {}
    if not isinstance(settings, Mapping):
        refuse(f"{field} is {brief(settings)}, expected a mapping", SAVED_CONFIG)
        return None
    stretched = settings.get("rope_type", settings.get("type", "default"))
    if stretched != "default":
        refuse(f"{field} says rope_type {brief(stretched)}: headscope computes the default rotation only")
    share = settings.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if share not in (None, 1):
        refuse(f"partial_rotary_factor is {brief(share)}: headscope rotates whole heads only")
    base = settings.get("rope_theta", config.get(base_field, default))
    if isinstance(base, bool) or not isinstance(base, (int, float)) or not base > 1:
        refuse(f"{base_field} is {brief(base)}, expected a number above 1", SAVED_CONFIG)
        return None
    return float(base)
