"""How much memory a model's numbers take, at the precisions that people load them in."""

from __future__ import annotations

from dataclasses import dataclass

from headscope.anatomy.record import Anatomy

PRECISIONS = {"fp32": 32, "fp16": 16, "bf16": 16, "int8": 8}
"""Bits per number. int8 counts the codes alone: the scales that go with them are under a hundredth of that."""

AS_STORED = "as stored"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at one precision.

    Attributes:
        precision: fp32, fp16, bf16, int8, or as stored.
        base: bytes of the base model's parameters.
        whole: bytes of these and of what sits on top.
    """

    precision: str
    base: int
    whole: int


def memory(anatomy: Anatomy) -> tuple[Memory, ...]:
    """Bytes of a model's parameters, without activations: at each precision, and as the checkpoint stores them.

    Tied weights count once and buffers not at all.
    """
    base, whole = anatomy.parameters.total, anatomy.all_parameters.total
    rows = [Memory(name, base * bits // 8, whole * bits // 8) for name, bits in PRECISIONS.items()]
    stored = anatomy.parameters.bytes
    return (*rows, Memory(AS_STORED, stored, stored + anatomy.extra.bytes))
