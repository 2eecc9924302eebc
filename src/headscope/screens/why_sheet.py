"""A head that looks from one token at another: the pairs of input tokens that make up its score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.checkpoint import called
from headscope.results.head_values import signed
from headscope.results.score_parts import KAPPA
from headscope.screens.explain_sheets import part_record, trust
from headscope.screens.inked import inked_text, signed_bars
from headscope.screens.tables import Column, Table
from headscope.screens.terminal import Line, Paper, Sheet, blank, notes, prose, title

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.results.score_parts import Why

TOP = 10
COLUMNS = (
    Column("query_part", "query's side", kind="code"),
    Column("key_part", "key's side", kind="code"),
    Column("share", "share", align="right", form="+.4f"),
)


def why_sheet(model: str, result: Why, names: Sequence[str], text: str, top: int | None = None) -> Sheet:
    """The score, the text with each token's part in it as ink, and the strongest pairs.

    Args:
        model: its name.
        result: the answer.
        names: a label for each token.
        text: the text.
        top: most rows of a table.
    """
    labels = [name.removeprefix("·") or name for name in (*names, *result.labels[len(names) :])]
    pairs = result.strongest(result.table.size if top is None else top)
    shown = pairs[: top or TOP]
    head = f"layer {result.layer}, head {result.head}"
    shares = result.table[tuple(zip(*shown, strict=True))]

    def bars(paper: Paper) -> Iterable[Line]:
        mixed = [f"{labels[row]}{paper.times(' x ')}{labels[column]}" for row, column in shown]
        drawn = signed_bars(mixed, shares, range(len(shown)), noun="pair", unit="share", ranks=result.kappa > KAPPA)
        return drawn(paper)

    rows = tuple((labels[row], labels[column], float(result.table[row, column])) for row, column in pairs)
    return Sheet(
        lambda: _record(model, result, labels, text, pairs[: top or len(pairs)]),
        lambda: Table(COLUMNS, rows),
        (
            title(f"{head}: {labels[result.query]} looks at {labels[result.key]}", called(model)),
            prose(
                f"weight {result.weight:.4f}; score {result.score:.4f}, the mean of the other keys {result.others:.4f}"
            ),
            prose(f"these pairs add up to the difference, {signed(result.difference)}"),
            blank,
            inked_text(names, _of_tokens(result)),
            blank,
            bars,
            notes(_lines(result)),
        ),
    )


def _record(
    model: str, result: Why, labels: Sequence[str], text: str, pairs: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    return {
        "model": model,
        "text": text,
        "layer": result.layer,
        "head": result.head,
        "query": result.query,
        "key": result.key,
        "weight": result.weight,
        "score": result.score,
        "others": result.others,
        "kappa": result.kappa,
        "rest": result.rest,
        "pairs": [
            {"query_part": labels[row], "key_part": labels[column], "share": float(result.table[row, column])}
            for row, column in pairs
        ],
        "checks": [part_record(part) for part in result.checks],
    }


def _of_tokens(result: Why) -> Float[np.ndarray, " tokens"]:

    return np.array([result.of_token(at) for at in range(len(result.axis))])


def _lines(result: Why) -> list[str]:
    tokens = float(result.cells.sum())
    lines = [
        "a pair: what the first token gives the query, times what the second gives this key more than the other keys",
        f"pairs of tokens {signed(tokens)}, pairs with biases or the distance {signed(result.rest)}",
        *trust(result.kappa),
    ]
    if result.unchecked:
        lines.append(result.unchecked)
    return lines + [
        f"masking {part.label} for real takes {signed(part.change, 2)} from the weight's log odds; its pairs add "
        f"{signed(part.share)}"
        for part in result.checks
        if part.change is not None
    ]
