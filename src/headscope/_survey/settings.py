"""What a survey was asked for: everything that its numbers depend on, checked before anything is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headscope._survey.documents import spelled
from headscope.errors import InputError
from headscope.statistics.catalog import chosen

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""Our name of a precision -> torch's."""

LENGTH = 512
"""Tokens of a window where the model takes so many."""

BATCH_TOKENS = {"cpu": 2048}
"""Most tokens of a batch by kind of device. On CPUs larger ones gain nothing and cost fresh memory."""

BATCH_TOKENS_ELSEWHERE = 65536
"""The same for accelerators."""

PART_SIZE = 500_000
"""Characters of a part: the work between two files, about a minute of a BERT-base on two cores."""

MAX_DOCUMENT = 10_000_000
"""Characters; a longer document is refused, so that memory stays bounded."""


@dataclass(frozen=True)
class Settings:
    """Everything that the numbers depend on but model and corpus.

    Attributes:
        length: tokens of a window, special tokens included; None until the model is known.
        statistics: names, in the order of CATALOG; None for all that the model can give.
        head_distances: over how many windows heads are compared; 0 for none.
        device: as torch names it.
        dtype: fp32, fp16 or bf16.
        field: the field or column that holds the text, in tables.
        batch_tokens: most tokens of a batch.
        part_size: characters of a part.
        max_document: characters beyond which a document is refused.
        labels: whether every head gets a label.
        examples: how many examples of each head are kept.
    """

    length: int | None = None
    statistics: tuple[str, ...] | None = None
    head_distances: int = 0
    device: str = "cpu"
    dtype: str = "fp32"
    field: str = "text"
    batch_tokens: int = BATCH_TOKENS["cpu"]
    part_size: int = PART_SIZE
    max_document: int = MAX_DOCUMENT
    labels: bool = False
    examples: int = 0

    def record(self) -> dict[str, Any]:
        """For the manifest. Labels and examples are in it where they are wanted."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        found = {name: value for name, value in found.items() if value or name not in ("labels", "examples")}
        return {**found, "statistics": None if self.statistics is None else list(self.statistics)}


def check_number(name: str, value: int | None, least: int = 1) -> None:
    """That an option, where it is given, is a whole number of at least so much.

    Raises:
        InputError: it isn't.
    """
    if value is not None and (type(value) is not int or value < least):
        raise InputError(f"{name} is {value!r}", where=name, advice=f"give a whole number of at least {least}")


def settings(
    *,
    length: int | None = None,
    statistics: str | Iterable[str] | None = None,
    head_distances: int = 0,
    device: str = "cpu",
    dtype: str = "fp32",
    field: str = "text",
    batch_tokens: int | None = None,
    part_size: int = PART_SIZE,
    max_document: int = MAX_DOCUMENT,
    labels: bool = False,
    examples: int = 0,
) -> Settings:
    """Settings, checked as far as they can be without the model.

    Raises:
        InputError: a number that is too small, an unknown precision or statistic.
    """
    if dtype not in DTYPES:
        raise InputError(f"there is no precision {dtype!r}", where="dtype", advice=f"use one of {', '.join(DTYPES)}")
    if field != spelled(field):
        raise InputError(
            f"the name {spelled(field)!r} is not valid UTF-8",
            where="field",
            advice="give the name of a field or column",
        )
    if batch_tokens is None:
        batch_tokens = BATCH_TOKENS.get(device.partition(":")[0], BATCH_TOKENS_ELSEWHERE)
    for name, value, least in (
        ("length", length, 1),
        ("head_distances", head_distances, 0),
        ("batch_tokens", batch_tokens, 1),
        ("part_size", part_size, 1),
        ("max_document", max_document, 1),
        ("examples", examples, 0),
    ):
        check_number(name, value, least)
    return Settings(
        length=length,
        statistics=None if statistics is None else chosen(statistics),
        head_distances=head_distances,
        device=device,
        dtype=dtype,
        field=field,
        batch_tokens=batch_tokens,
        part_size=part_size,
        max_document=max_document,
        labels=labels,
        examples=examples,
    )
