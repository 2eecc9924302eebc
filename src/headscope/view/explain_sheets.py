"""Effects of heads, attributions to tokens, and the parts of a cosine: screens, JSON and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.checkpoint import called
from headscope.explain import attribution, effects
from headscope.view.inked import heat_map, inked_text, signed_bars
from headscope.view.pieces import labels
from headscope.view.tables import Column, Table
from headscope.view.terminal import Drawing, Sheet, blank, notes, prose, table, title

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from headscope.explain.attribution import Attribution
    from headscope.explain.effects import Effects
    from headscope.explain.similarity import TokenSimilarity
    from headscope.explain.target import Target
    from headscope.trace import TokenAxis

TOP = 10
EFFECT_COLUMNS = (
    Column("layer", align="right"),
    Column("head", align="right"),
    Column("change", align="right", form="+.4f"),
)
TOKEN_COLUMNS = (
    Column("position", align="right"),
    Column("token", kind="code"),
    Column("score", align="right", form="+.4f"),
)
PAIR_COLUMNS = (
    Column("a", align="right"),
    Column("token_a", "word of A", kind="code"),
    Column("b", align="right"),
    Column("token_b", "word of B", kind="code"),
    Column("part", "part", align="right", form="+.4f"),
)


def target_record(target: Target) -> Mapping[str, Any]:
    """A target as JSON has it."""
    return {
        "kind": target.kind,
        "label": target.label,
        "index": target.index,
        "position": target.row,
        "unit": target.unit,
        "default": target.chosen,
    }


def effects_sheet(model: str, found: Effects, top: int = TOP) -> Sheet:
    """What changing each head does: a heat map, and the heads that do most."""
    aside = found.target.aside if found.aside is not None else ""
    columns = (*EFFECT_COLUMNS, *((Column(aside, align="right", form=".4f"),) if aside else ()))

    def row(layer: int, head: int) -> tuple[Any, ...]:
        beside = () if found.aside is None else (float(found.aside[layer, head]),)
        return (layer, head, float(found.change[layer, head]), *beside)

    everyone = Table(columns, tuple(row(*place) for place in np.ndindex(*found.change.shape)))
    way = "the context comes from the other text" if found.method == "patch" else effects.METHODS[found.method]
    as_it_is = f"{found.base:.4f} as it is"
    if found.base_aside is not None:
        as_it_is += f", {found.target.aside} {found.base_aside:.4f}"
    return Sheet(
        record=lambda: {
            "model": model,
            "text": found.text,
            "pair": found.pair,
            "patch_from": found.patch_from,
            "tokens": found.axis.tokens,
            "target": target_record(found.target),
            "method": found.method,
            "base": found.base,
            **({found.target.aside: found.base_aside} if found.target.aside else {}),
            "heads": everyone.records(),
        },
        table=lambda: everyone,
        drawings=(
            title(f"effects of {found.change.size} heads", called(model)),
            prose(f"on {found.target}: {as_it_is}"),
            blank,
            heat_map(found.change, found.target.unit),
            blank,
            table(Table(columns, tuple(row(*place) for place in found.strongest(top)))),
            notes([f"change: with the head changed, less as it is; {way}"]),
        ),
    )


def attribution_sheet(model: str, found: Attribution, top: int = TOP) -> Sheet:
    """What each token adds: the text with ink behind its words, and the tokens that add most."""
    shown = labels(found.axis, found.text, found.pair)
    rows = Table(
        TOKEN_COLUMNS,
        tuple(
            (at, token, float(score)) for at, (token, score) in enumerate(zip(found.tokens, found.scores, strict=True))
        ),
    )
    lines = [f"{found.method}: {attribution.METHODS[found.method]}"]
    if found.rest is not None:
        whose = "the biases" if found.method == "decompx" else "the baseline"
        tokens = float(found.scores.sum())
        together = f"together {tokens + found.rest:+.4f} of {found.total:+.4f}"
        lines.append(f"tokens {tokens:+.4f}, {whose} {found.rest:+.4f}, {together}")
    unit = "share" if found.method == "alti" else found.target.unit
    return Sheet(
        record=lambda: {
            "model": model,
            "text": found.text,
            "pair": found.pair,
            "target": target_record(found.target),
            "method": found.method,
            "total": found.total,
            "rest": found.rest,
            "gap": found.gap,
            "tokens": rows.records(),
        },
        table=lambda: rows,
        drawings=(
            title(f"what {len(shown)} tokens add", called(model)),
            prose(f"to {found.target}: {found.total:.4f}"),
            blank,
            inked_text(shown, found.scores),
            blank,
            signed_bars(shown, found.scores, found.strongest(top), noun="token", unit=unit),
            notes(lines),
        ),
    )


def similarity_sheet(model: str, found: TokenSimilarity, top: int = TOP) -> Sheet:
    """Which tokens make two texts alike: both texts with ink behind their words, and the pairs that add most."""
    shown_a, shown_b = labels(found.axis_a, found.a), labels(found.axis_b, found.b)
    pairs = tuple(
        (i, shown_a[i], j, shown_b[j], float(found.cells[i, j])) for i, j in found.strongest(top)
    )  # as words on the screen, as tokens below

    def cells() -> Table:
        places = np.ndindex(*found.cells.shape)
        return Table(
            PAIR_COLUMNS,
            tuple((i, found.tokens_a[i], j, found.tokens_b[j], float(found.cells[i, j])) for i, j in places),
        )

    def record() -> dict[str, Any]:
        rerun = {"rerun_a": found.rerun_a, "rerun_b": found.rerun_b} if found.rerun_a is not None else {}
        arrays = {"parts_a": found.parts_a, "parts_b": found.parts_b, "drop_a": found.drop_a, "drop_b": found.drop_b}
        return {
            "model": model,
            "a": found.a,
            "b": found.b,
            "cosine": found.cosine,
            "special": found.special,
            "pooling": asdict(found.pooling),
            "tokens_a": found.tokens_a,
            "tokens_b": found.tokens_b,
            **{name: _numbers(values) for name, values in {**arrays, **rerun}.items() if values is not None},
            "cells": found.cells.tolist(),
            "notes": found.notes,
        }

    between_words = np.where(np.outer(~special_of(found.axis_a), ~special_of(found.axis_b)), found.cells, 0.0)
    drawings: list[Drawing] = [
        title(f"cosine {found.cosine:.4f}", called(model)),
        blank,
        inked_text(shown_a, between_words.sum(axis=1)),
        blank,
        inked_text(shown_b, between_words.sum(axis=0)),
        blank,
        table(Table(PAIR_COLUMNS, pairs)),
        notes(
            [
                "ink: what a word's pairs with the other text's words add; with pairs of special tokens, which add "
                f"{found.special:+.4f} and are not drawn, all pairs add up to the cosine",
                f"vectors: {found.pooling}",
                *found.notes,
            ]
        ),
    ]
    return Sheet(record, cells, tuple(drawings))


def special_of(axis: TokenAxis) -> Bool[np.ndarray, " tokens"]:
    """Which tokens are special, as an array."""
    return np.array(axis.special, dtype=bool)


def _numbers(values: Float[np.ndarray, " n"]) -> list[float]:
    numbers: list[float] = values.tolist()
    return numbers
