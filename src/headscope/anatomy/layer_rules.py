"""The rules of each layer's attention, from config.json, and the settings that headscope can't compute.

Which keys a layer's queries see, how far they are rotated, and what DeBERTa and MPNet add for distances.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headscope.anatomy.refused_checkpoints import CAPTURE_LIVE, Refusal
from headscope.anatomy.schema import Family
from headscope.anatomy.sizes import SAVED_CONFIG, Dimensions, is_size
from headscope.checkpoint.json_text import brief

GLOBAL, LOCAL = "full_attention", "sliding_attention"
"""transformers' names of the two kinds of layers."""


def read_layer_rules(
    config: Mapping[str, Any], family: Family, sizes: Dimensions
) -> tuple[tuple[int | None, ...], tuple[float | None, ...], list[Refusal]]:
    """Return all layers' windows and bases of rotation, and refusals of the settings that headscope can't compute."""
    refusals: list[Refusal] = []

    def refuse(text: str, advice: str = CAPTURE_LIVE) -> None:
        refusals.append(Refusal(text, advice))

    kinds = _kinds(config, family, sizes.layers, refuse)
    window = None
    if LOCAL in kinds:
        name = "sliding_window" if "sliding_window" in config else "local_attention"  # half of it, and the whole
        window = config.get(name, family.defaults.get(name))
        if not is_size(window):
            refuse(f"{name} is {brief(window)}, expected the number of keys of a window", SAVED_CONFIG)
            window = 1
        window = 2 * window if name == "sliding_window" else window
    bases = {kind: _base(config, family, kind, refuse) for kind in dict.fromkeys(kinds)}
    if any(bases.values()) and sizes.d_head % 2:
        refuse(f"heads are {sizes.d_head} wide: a rotation needs an even width")
    windows = tuple(int(window or 0) // 2 if kind == LOCAL else None for kind in kinds)
    return windows, tuple(bases[kind] for kind in kinds), refusals


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


KINDS = ("c2p", "p2c")

FEWEST_BUCKETS = 32
"""Buckets of distances that MPNet's class looks up, whatever its config says."""


@dataclass(frozen=True, slots=True)
class Disentangled:
    """The settings of disentangled attention (He et al. 2021, section 3).

    Attributes:
        kinds: the products that are added: c2p (content to position), p2c (position to content).
        relative: False if the config names products, which change the scale, without relative_attention, which adds
            them.
        shared: True if relative keys and queries come from the layer's own W_K and W_Q.
        span: vectors on each side of distance 0.
        longest: the largest distance that has a bucket of its own.
        logarithmic: True if larger distances share buckets (DeBERTa v2, section 2).
    """

    kinds: tuple[str, ...]
    relative: bool
    shared: bool
    span: int
    longest: int
    logarithmic: bool

    @property
    def rows(self) -> int:
        """Rows of the table of distances."""
        return 2 * self.span

    @property
    def share(self) -> int:
        """Number of products in a score, by which d_head is multiplied in the scale."""
        return 1 + len(self.kinds)


def read_disentangled(config: Mapping[str, Any], sizes: Dimensions) -> Disentangled:
    """Return the settings of a DeBERTa, which `term_refusals` has checked."""
    stated = _products(config)
    lengths = (config.get(name) for name in ("max_relative_positions", "max_position_embeddings"))
    return Disentangled(
        kinds=tuple(name for name in KINDS if name in stated),
        relative=bool(config.get("relative_attention")),
        shared=bool(config.get("share_att_key")),
        span=sizes.relative // 2,
        longest=next((length for length in lengths if isinstance(length, int) and is_size(length)), 512),
        logarithmic=is_size(config.get("position_buckets")),
    )


def _products(config: Mapping[str, Any]) -> list[Any]:
    stated = config.get("pos_att_type") or []
    if isinstance(stated, str):
        return [name.strip() for name in stated.lower().split("|")]
    return stated if isinstance(stated, list) else [stated]


def term_refusals(config: Mapping[str, Any], family: Family, sizes: Dimensions) -> Iterator[Refusal]:
    """Yield refusals of the settings of MPNet's and DeBERTa's distances that headscope can't compute."""
    if family.terms == "by_distance" and sizes.relative < FEWEST_BUCKETS:
        text = f"relative_attention_num_buckets is {sizes.relative}, and the model looks up {FEWEST_BUCKETS} buckets"
        yield Refusal(text, SAVED_CONFIG)
    if family.terms != "disentangled":
        return
    if unknown := [name for name in _products(config) if name not in KINDS]:
        text = f"pos_att_type names {brief(unknown[0])}: headscope computes {' and '.join(KINDS)}"
        yield Refusal(text, CAPTURE_LIVE)
    for name in ("max_relative_positions", "position_buckets"):
        value = config.get(name, -1)
        if isinstance(value, bool) or not isinstance(value, int):
            yield Refusal(f"{name} is {brief(value)}, expected an integer", SAVED_CONFIG)
    settings = read_disentangled(config, sizes)
    if settings.logarithmic and not 1 <= settings.span // 2 < settings.longest - 1:
        text = f"{settings.span} buckets can't hold distances up to {settings.longest} by their logarithm"
        yield Refusal(text, SAVED_CONFIG)
    kernel = config.get("conv_kernel_size") or 0
    if kernel and (not is_size(kernel) or kernel % 2 == 0):
        text = f"conv_kernel_size is {brief(kernel)}: headscope computes odd sizes, which keep the number of tokens"
        yield Refusal(text, CAPTURE_LIVE)
    if config.get("attention_head_size") is not None:
        text = f"attention_head_size is {brief(config['attention_head_size'])}: headscope computes d_model / heads"
        yield Refusal(text, CAPTURE_LIVE)
