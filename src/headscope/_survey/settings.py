"""Settings of a survey: everything that its numbers depend on, checked before anything is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headscope._survey.documents import spelled
from headscope.errors import InputError
from headscope.explain.windows import METHODS
from headscope.statistics.catalog import chosen

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""headscope's name of a dtype -> torch's."""

LENGTH = 512
"""Tokens per window, if the model accepts that many."""

BATCH_TOKENS = {"cpu": 2048}
"""Kind of device -> most tokens per batch. On CPUs larger batches gain nothing and cost memory."""

BATCH_TOKENS_ELSEWHERE = 65536
"""Most tokens per batch on any other device."""

PART_SIZE = 500_000
"""Characters per part: about a minute's work for BERT-base on two cores."""

MAX_DOCUMENT = 10_000_000
"""Most characters per document. The limit bounds memory."""


@dataclass(frozen=True)
class Settings:
    """Everything that the numbers depend on, except model and corpus.

    Attributes:
        length: tokens per window, special tokens included; None until the model is known.
        statistics: names, in the order of CATALOG; None for all that the model supports.
        head_distances: number of windows over which heads are compared.
        device: as torch names it.
        dtype: fp32, fp16 or bf16.
        field: the field or column that holds the text, in tables.
        batch_tokens: most tokens per batch.
        part_size: characters per part.
        max_document: characters beyond which a document is refused.
        labels: whether every head gets a label.
        examples: how many examples of each head are kept.
        effects: number of windows over which the effects of heads are measured.
        effects_output: the number that effects are measured on: `loss`, `class`, `embedding` or a class; None for the
            model's default.
        effects_method: how heads are silenced.
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
    effects: int = 0
    effects_output: str | None = None
    effects_method: str = METHODS[0]

    def record(self) -> dict[str, Any]:
        """The settings as the manifest records them. Labels, examples and effects only if they are on."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        off = {name for name in ("labels", "examples", "effects") if not fields[name]}
        off |= {"effects_output", "effects_method"} if "effects" in off else set()
        fields = {name: value for name, value in fields.items() if name not in off}
        return {**fields, "statistics": None if self.statistics is None else list(self.statistics)}


def check_number(name: str, value: int | None, least: int = 1) -> None:
    """Check an optional whole number.

    Raises:
        InputError: the value is not a whole number of at least `least`.
    """
    if value is not None and (type(value) is not int or value < least):
        raise InputError(f"{name} is {value!r}", where=name, advice=f"use a whole number of at least {least}")


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
    effects: int = 0,
    effects_output: str | None = None,
    effects_method: str = METHODS[0],
) -> Settings:
    """Return settings, checked as far as possible without the model.

    Raises:
        InputError: a number is too small, or a dtype, statistic or method is unknown.
    """
    if dtype not in DTYPES:
        raise InputError(f"unknown dtype {dtype!r}", where="dtype", advice=f"use one of {', '.join(DTYPES)}")
    if field != spelled(field):
        raise InputError(
            f"the name {spelled(field)!r} is not valid UTF-8",
            where="field",
            advice="use the name of a field or column",
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
        ("effects", effects, 0),
    ):
        check_number(name, value, least)
    if effects_method not in METHODS:
        raise InputError(
            f"heads can't be silenced by {effects_method!r:.40}",
            where="effects_method",
            advice=f"use {' or '.join(METHODS)}",
        )
    if not effects and (effects_output is not None or effects_method != METHODS[0]):
        raise InputError(
            "effects_output and effects_method say how effects are measured, and none are requested",
            where="effects",
            advice="add --effects N (in Python effects=N), for N windows",
        )
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
        effects=effects,
        effects_output=effects_output,
        effects_method=effects_method,
    )
