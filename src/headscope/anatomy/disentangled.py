"""The settings of DeBERTa's and MPNet's distances, from config.json, and those that headscope can't compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headscope.anatomy.refusals import CAPTURE_LIVE, Refusal
from headscope.anatomy.schema import Family
from headscope.anatomy.sizes import SAVED_CONFIG, Dimensions, is_size
from headscope.checkpoint.json_text import brief

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
    longest = config.get("max_relative_positions", -1)
    return Disentangled(
        kinds=tuple(name for name in KINDS if name in stated),
        relative=bool(config.get("relative_attention")),
        shared=bool(config.get("share_att_key")),
        span=sizes.relative // 2,
        longest=longest if is_size(longest) else int(config.get("max_position_embeddings", 512)),
        logarithmic=is_size(config.get("position_buckets")),
    )


def _products(config: Mapping[str, Any]) -> list[Any]:
    stated = config.get("pos_att_type") or []
    if isinstance(stated, str):
        return [name.strip() for name in stated.lower().split("|")]
    return stated if isinstance(stated, list) else [stated]


def term_refusals(config: Mapping[str, Any], family: Family, sizes: Dimensions) -> list[Refusal]:
    """Return refusals of the settings of MPNet's and DeBERTa's distances that headscope can't compute."""
    refusals: list[Refusal] = []

    def refuse(text: str, advice: str = CAPTURE_LIVE) -> None:
        refusals.append(Refusal(text, advice, "config.json"))

    if family.terms == "by_distance" and sizes.relative < FEWEST_BUCKETS:
        refuse(
            f"relative_attention_num_buckets is {sizes.relative}, and the model looks up {FEWEST_BUCKETS} buckets",
            SAVED_CONFIG,
        )
    if family.terms != "disentangled":
        return refusals
    if unknown := [name for name in _products(config) if name not in KINDS]:
        refuse(f"pos_att_type names {brief(unknown[0])}: headscope computes {' and '.join(KINDS)}")
    for name in ("max_relative_positions", "position_buckets"):
        value = config.get(name, -1)
        if isinstance(value, bool) or not isinstance(value, int):
            refuse(f"{name} is {brief(value)}, expected an integer", SAVED_CONFIG)
    kernel = config.get("conv_kernel_size") or 0
    if kernel and (not is_size(kernel) or kernel % 2 == 0):
        refuse(f"conv_kernel_size is {brief(kernel)}: headscope computes odd sizes, which keep the number of tokens")
    if config.get("attention_head_size") is not None:
        refuse(f"attention_head_size is {brief(config['attention_head_size'])}: headscope computes d_model / heads")
    return refusals
