"""The modules of each family's classes, with the class names that transformers prints."""

from __future__ import annotations

from collections.abc import Mapping

from headscope.anatomy.modules import bert, kin, rotary
from headscope.anatomy.modules.module import ACTIVATION_CLASSES, Module

__all__ = ["ACTIVATION_CLASSES", "BASE_MODULES", "TOP_MODULES", "Module"]

BASE_MODULES: Mapping[str, tuple[Module, ...]] = {**bert.BASE, **kin.BASE, **rotary.BASE}
"""Family -> the modules of its base model, in the order that the class prints them."""

TOP_MODULES: Mapping[tuple[str, str], tuple[Module, ...]] = {**bert.TOPS, **kin.TOPS, **rotary.TOPS}
"""Family and suffix of a class -> its modules on top, in the order that it prints them."""
