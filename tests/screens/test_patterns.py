"""Patterns of heads that are known by construction, and the heads that look from a token most."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import commands
import headscope as hs
from by_hand import axis_of, some_heads
from headscope.attention.scores import Mask
from headscope.heads import grid
from headscope.heads.kinds import Pattern
from headscope.heads.measure import all_patterns
from headscope.heads.reference import roles_of
from headscope.screens.attention_sheets import attend_sheet
from headscope.traces import LayerRecord, Trace

TOKENS = ("[CLS]", "a", "b", "[SEP]", "c", "[SEP]")
SIZE = len(TOKENS)


def pattern(weights: np.ndarray) -> Pattern:
    """The pattern of one head with exactly these weights: they are its bias, and its queries are 0."""
    with np.errstate(divide="ignore"):
        bias = np.log(weights)[None].astype(np.float32)
    nothing = np.zeros((1, SIZE, 1), np.float32)
    special = tuple(token.startswith("[") for token in TOKENS)
    axis = axis_of(TOKENS, special=special)
    record = LayerRecord(q=nothing, k=nothing, v=None, lse=None, scale=1.0, mask=Mask(bias=bias), number=1)
    (only,) = all_patterns(Trace(model="-", queries=axis, layers=(record,)))
    return only


@pytest.mark.parametrize(
    ("weights", "name", "mass"),
    [
        (np.eye(SIZE, k=-1) + np.eye(SIZE)[0] * np.eye(SIZE)[:, :1], "previous", 1.0),
        (np.eye(SIZE), "same", 1.0),
        (np.roll(np.eye(SIZE), 1, axis=1), "next", 1.0),
        (np.tile(np.eye(SIZE)[0], (SIZE, 1)), "first", 1.0),
        (np.tile(np.eye(SIZE)[3], (SIZE, 1)), "sep", 1.0),
    ],
)
def test_pure_patterns(weights: np.ndarray, name: str, mass: float) -> None:
    one = pattern(weights)
    assert (one.layer, one.head, one.name) == (1, 0, name)
    assert one.means[name] == pytest.approx(mass)
    assert one.means["entropy"] == pytest.approx(0, abs=1e-6)


def test_even_heads() -> None:
    one = pattern(np.full((SIZE, SIZE), 1 / SIZE))
    assert one.name == "even"
    assert one.means["normalised_entropy"] == pytest.approx(1)
    assert one.means["entropy"] == pytest.approx(np.log(SIZE))
    assert one.means["sep"] == pytest.approx(2 / SIZE)


def test_mixed_heads() -> None:
    weights = np.full((SIZE, SIZE), 1e-6)
    weights[:, 1] = weights[:, 2] = 0.5
    assert pattern(weights).name == "mixed"


def test_scores_that_outgrow_fp16() -> None:
    """Layers kept in fp16 are measured in fp32: products of their queries and keys may be larger than fp16 holds."""
    axis = axis_of(TOKENS, special=tuple(token.startswith("[") for token in TOKENS))
    found = []
    for dtype in (np.float16, np.float64):
        q = (300 * np.eye(SIZE)[None]).astype(dtype)
        record = LayerRecord(q=q, k=q, v=None, lse=None, scale=2e-5, mask=Mask(), number=0)
        trace = Trace(model="-", queries=axis, layers=(record,))
        (only,) = all_patterns(trace)
        of_page = grid.measure_layer(record, roles_of(trace)).statistics
        found.append({**only.means, **{f"page: {name}": values[0] for name, values in of_page.items()}})
    assert found[0] == pytest.approx(found[1], rel=1e-5, abs=1e-6, nan_ok=True)
    assert np.isfinite(found[0]["entropy"])


TEXT = "She took off her hat."


def run(*args: str) -> Any:
    return commands.run("attend", "-", TEXT, *args).stdout


@pytest.mark.parametrize(("args", "layers"), [((), range(4)), (("--heads", "2"), [2])])
def test_heads_are_ranked_by_their_strongest_other_word(args: tuple[str, ...], layers: Any) -> None:
    trace = hs.open().trace(TEXT)
    place = trace.tokens.index("hat")
    words = [at for at, special in enumerate(trace.queries.special) if not special and at != place]
    expected = sorted(
        (
            (layer, head, max(words, key=lambda at: trace[layer, head].weights[place, at]))
            for layer in layers
            for head in range(4)
        ),
        key=lambda found: -trace[found[0], found[1]].weights[place, found[2]],
    )
    rows = json.loads(run("-q", "hat", *args, "--json"))["heads"]
    assert [(row["layer"], row["head"], row["key"]) for row in rows] == expected[: len(rows)]
    assert len(rows) == min(10, 4 * len(layers))
    for row in rows:
        assert row["weight"] == pytest.approx(
            float(trace[row["layer"], row["head"]].weights[place, row["key"]]), abs=1e-5
        )
    screen = run("-q", "hat", *args)
    assert "the heads that look from “hat” most" in screen
    assert f"--heads {expected[0][0]}.{expected[0][1]}" in screen


def test_a_broken_head_looks_at_nothing() -> None:
    """Heads without numbers have no rank among those that look most."""
    trace = some_heads()
    broken = trace.layers[1].q.copy()
    broken[1] = np.nan
    trace = trace.replaced(layers=(trace.layers[0], replace(trace.layers[1], q=broken)))
    rows = attend_sheet(trace, query="q2").record()["heads"]
    assert {(row["layer"], row["head"]) for row in rows} == {(0, 1), (0, 3), (5, 1)}
    for row in rows:
        assert row["weight"] == pytest.approx(np.delete(trace[row["layer"], row["head"]].weights[2], 2).max())


def test_fewer_heads_and_short_tokens() -> None:
    assert len(json.loads(run("-q", "hat", "--top", "2", "--json"))["heads"]) == 2
    assert "queries keys" in " ".join(run("--heads", "0.0").split())
