"""Memory of a model's parameters, at the usual precisions."""

from __future__ import annotations

from dataclasses import dataclass

from headscope.anatomy.record import Anatomy

PRECISIONS = {"fp32": 32, "fp16": 16, "bf16": 16, "int8": 8}
"""Bits per parameter. int8 counts only the codes: the scales take less than a hundredth of that."""

AS_STORED = "as stored"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at one precision.

    Attributes:
        precision: fp32, fp16, bf16, int8, or as stored.
        base: bytes of the base model's parameters.
        whole: bytes of these and of the parameters on top.
    """

    precision: str
    base: int
    whole: int


def memory(anatomy: Anatomy) -> tuple[Memory, ...]:
    """Return the bytes of a model's parameters, at each precision and as the checkpoint stores them.

    Tied weights count once; buffers and activations don't count.
    """
    base, whole = anatomy.parameters.total, anatomy.all_parameters.total
    rows = [Memory(name, base * bits // 8, whole * bits // 8) for name, bits in PRECISIONS.items()]
    stored = anatomy.parameters.bytes
    return (*rows, Memory(AS_STORED, stored, stored + anatomy.extra.bytes))
