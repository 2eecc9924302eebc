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

    from headscope._trace import TokenAxis
    from headscope.explain.attribution import Attribution
    from headscope.explain.effects import Effects
    from headscope.explain.similarity import TokenSimilarity
    from headscope.explain.target import Target

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
    """A target as a JSON record."""
    return {
        "kind": target.kind,
        "label": target.label,
        "index": target.index,
        "position": target.row,
        "unit": target.unit,
        "default": target.chosen,
    }


def effects_sheet(model: str, result: Effects, top: int = TOP) -> Sheet:
    """The effects of all heads: a heat map, and the heads with the strongest effects."""
    aside = result.target.aside if result.aside is not None else ""
    columns = (*EFFECT_COLUMNS, *((Column(aside, align="right", form=".4f"),) if aside else ()))

    def row(layer: int, head: int) -> tuple[Any, ...]:
        beside = () if result.aside is None else (float(result.aside[layer, head]),)
        return (layer, head, float(result.change[layer, head]), *beside)

    all_heads = Table(columns, tuple(row(*place) for place in np.ndindex(*result.change.shape)))
    way = "the context comes from the other text" if result.method == "patch" else effects.METHODS[result.method]
    unchanged = f"{result.base:.4f} unchanged"
    if result.base_aside is not None:
        unchanged += f", {result.target.aside} {result.base_aside:.4f}"
    return Sheet(
        record=lambda: {
            "model": model,
            "text": result.text,
            "pair": result.pair,
            "patch_from": result.patch_from,
            "tokens": result.axis.tokens,
            "target": target_record(result.target),
            "method": result.method,
            "base": result.base,
            **({result.target.aside: result.base_aside} if result.target.aside else {}),
            "heads": all_heads.records(),
        },
        table=lambda: all_heads,
        drawings=(
            title(f"effects of {result.change.size} heads", called(model)),
            prose(f"on {result.target}: {unchanged}"),
            blank,
            heat_map(result.change, result.target.unit),
            blank,
            table(Table(columns, tuple(row(*place) for place in result.strongest(top)))),
            notes([f"change: with the head changed, minus unchanged; {way}"]),
        ),
    )


def attribution_sheet(model: str, result: Attribution, top: int = TOP) -> Sheet:
    """An attribution: the text with shading behind its words, and the tokens that add most."""
    words = labels(result.axis, result.text, result.pair)
    rows = Table(
        TOKEN_COLUMNS,
        tuple(
            (at, token, float(score))
            for at, (token, score) in enumerate(zip(result.tokens, result.scores, strict=True))
        ),
    )
    lines = [f"{result.method}: {attribution.METHODS[result.method]}"]
    if result.rest is not None:
        rest_of = "the biases" if result.method == "decompx" else "the baseline"
        tokens = float(result.scores.sum())
        together = f"together {tokens + result.rest:+.4f} of {result.total:+.4f}"
        lines.append(f"tokens {tokens:+.4f}, {rest_of} {result.rest:+.4f}, {together}")
    unit = "share" if result.method == "alti" else result.target.unit
    return Sheet(
        record=lambda: {
            "model": model,
            "text": result.text,
            "pair": result.pair,
            "target": target_record(result.target),
            "method": result.method,
            "total": result.total,
            "rest": result.rest,
            "gap": result.gap,
            "tokens": rows.records(),
        },
        table=lambda: rows,
        drawings=(
            title(f"what {len(words)} tokens add", called(model)),
            prose(f"to {result.target}: {result.total:.4f}"),
            blank,
            inked_text(words, result.scores),
            blank,
            signed_bars(words, result.scores, result.strongest(top), noun="token", unit=unit),
            notes(lines),
            *(
                (blank, heat_map(result.by_head.sum(axis=-1), unit, noun="score of a head"))
                if result.by_head is not None
                else ()
            ),
        ),
    )


def similarity_sheet(model: str, result: TokenSimilarity, top: int = TOP) -> Sheet:
    """The parts of a cosine: both texts with shading behind their words, and the pairs that add most."""
    shown_a, shown_b = labels(result.axis_a, result.a), labels(result.axis_b, result.b)
    pairs = tuple(
        (i, shown_a[i], j, shown_b[j], float(result.cells[i, j])) for i, j in result.strongest(top)
    )  # as words on the screen, as tokens below

    def cells() -> Table:
        places = np.ndindex(*result.cells.shape)
        return Table(
            PAIR_COLUMNS,
            tuple((i, result.tokens_a[i], j, result.tokens_b[j], float(result.cells[i, j])) for i, j in places),
        )

    def record() -> dict[str, Any]:
        rerun = {"rerun_a": result.rerun_a, "rerun_b": result.rerun_b} if result.rerun_a is not None else {}
        arrays = {
            "parts_a": result.parts_a,
            "parts_b": result.parts_b,
            "drop_a": result.drop_a,
            "drop_b": result.drop_b,
        }
        return {
            "model": model,
            "a": result.a,
            "b": result.b,
            "cosine": result.cosine,
            "special": result.special,
            "pooling": asdict(result.pooling),
            "tokens_a": result.tokens_a,
            "tokens_b": result.tokens_b,
            **{name: _numbers(values) for name, values in {**arrays, **rerun}.items() if values is not None},
            "cells": result.cells.tolist(),
            "notes": result.notes,
        }

    between_words = np.where(np.outer(~special_of(result.axis_a), ~special_of(result.axis_b)), result.cells, 0.0)
    drawings: list[Drawing] = [
        title(f"cosine {result.cosine:.4f}", called(model)),
        blank,
        inked_text(shown_a, between_words.sum(axis=1)),
        blank,
        inked_text(shown_b, between_words.sum(axis=0)),
        blank,
        table(Table(PAIR_COLUMNS, pairs)),
        notes(
            [
                "shading: the sum of a word's pairs with the other text's words; with the pairs of special tokens "
                f"({result.special:+.4f}, not drawn) all pairs add up to the cosine",
                f"vectors: {result.pooling}",
                *result.notes,
            ]
        ),
    ]
    return Sheet(record, cells, tuple(drawings))


def special_of(axis: TokenAxis) -> Bool[np.ndarray, " tokens"]:
    """True for special tokens, (tokens,)."""
    return np.array(axis.special, dtype=bool)


def _numbers(values: Float[np.ndarray, " n"]) -> list[float]:
    numbers: list[float] = values.tolist()
    return numbers
