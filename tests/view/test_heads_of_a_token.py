"""`attend TEXT -q it` without a head: the heads that look from “it” most."""

from __future__ import annotations

import json
from typing import Any

import pytest

import commands
import headscope as hs

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


def test_fewer_heads_and_short_tokens() -> None:
    assert len(json.loads(run("-q", "hat", "--top", "2", "--json"))["heads"]) == 2
    assert "queries keys" in " ".join(run("--heads", "0.0").split())
