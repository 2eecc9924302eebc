"""Weights between groups of tokens against a naive sum over transformers' eager weights."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import headscope as hs
from headscope.attention.scores import Mask
from headscope.cli.app import app
from headscope.errors import InputError
from headscope.heads.groups import even_weights
from random_models import ids, made

GROUPS = {"start": [[0, 4]], "loop": [5, (7, 9)], "rest": [4, 6, (9, 21)], "overlapping": [[3, 8], 20]}
ROW = (0, *ids(19), 2)


def naive(weights: np.ndarray, a: list[int], b: list[int]) -> float:
    """The mean over the tokens of a of what each puts on those of b."""
    return float(np.mean([sum(float(weights[i, j]) for j in b) for i in a]))


def tokens_of(entries: Any) -> list[int]:
    return [at for entry in entries for at in (range(*entry) if isinstance(entry, list | tuple) else [entry])]


@pytest.mark.parametrize("family", ["Bert", "Esm", "DebertaV2"])
def test_group_weights_are_sums_of_the_weights_of_transformers(family: str, tmp_path: Path) -> None:
    checkpoint = made(tmp_path, family, attn_implementation="eager")
    with torch.inference_mode():
        attentions = checkpoint.module(torch.tensor([ROW]), output_attentions=True).attentions
    table = hs.open(tmp_path).trace(ids=ROW).group_weights(GROUPS)
    assert list(table) == [f"{a} → {b}" for a in GROUPS for b in GROUPS]
    for layer, maps in enumerate(attentions):
        for head, weights in enumerate(maps[0].numpy()):
            for a, from_ in GROUPS.items():
                for b, to in GROUPS.items():
                    expected = naive(weights, tokens_of(from_), tokens_of(to))
                    assert table[f"{a} → {b}"][layer, head] == pytest.approx(expected, abs=1e-5)
    np.testing.assert_allclose(sum(table[f"loop → {b}"].array for b in ("start", "loop", "rest")), 1, atol=1e-5)


@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True), Mask(causal=True, window=(2, None))])
def test_even_weights_share_what_the_mask_allows(mask: Mask) -> None:
    trace = hs.open().trace("A cat sat on the mat.")
    trace = replace(trace, layers=tuple(replace(record, mask=mask) for record in trace.layers))
    groups = {"a": [1, 2, 5], "b": [[0, 4]]}
    seen = [[not mask.causal or max(0, i - (mask.window or (9,))[0]) <= j <= i for j in range(9)] for i in range(9)]
    even = np.array(seen) / np.sum(seen, 1, keepdims=True)
    for name, found in even_weights(trace, groups).items():
        a, b = (tokens_of(groups[one]) for one in name.split(" → "))
        assert found == pytest.approx(naive(even, a, b), abs=1e-6)


def test_no_map_is_kept(tmp_path: Path) -> None:
    """1,500 tokens, 12 heads: all maps are 108 MB."""
    made(tmp_path, "Esm", max_position_embeddings=1502)
    trace = hs.open(tmp_path).trace(ids=(0, *ids(1498), 2))
    tracemalloc.start()
    trace.group_weights({"a": [(0, 700)], "b": [(700, 1500)]})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 12 * 1500 * 1500 / 3


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({}, "there are no groups"),
        ({"a": []}, "group 'a' has no tokens"),
        ({"a": [99]}, "99 is no token or span of tokens from 0 to"),
        ({"a": [-1]}, "-1 is no token"),
        ({"a": [[3, 3]]}, r"\[3, 3\] is no token"),
        ({"a": [[1, 2, 3]]}, "no token or span"),
        ({"a": [True]}, "no token or span"),
        ({"a": "abc"}, "no token or span"),
        ({"a": [1.5]}, "no token or span"),
        ({"a": None}, "no token or span"),
    ],
)
def test_groups_that_are_none(groups: Any, message: str, tmp_path: Path) -> None:
    trace = hs.open().trace("A cat sat on the mat.")
    file = tmp_path / "groups.json"
    file.write_text(json.dumps(groups))
    with pytest.raises(InputError, match=message) as error:
        trace.group_weights(file)
    assert "groups.json" in str(error.value)
    with pytest.raises(InputError, match=message):
        trace.group_weights(groups)


def test_files_that_are_none(tmp_path: Path) -> None:
    trace = hs.open().trace("A cat sat.")
    (tmp_path / "broken.json").write_text('{"a": [1, ')
    for name in ("broken.json", "missing.json"):
        with pytest.raises(InputError, match="groups can't be read"):
            trace.group_weights(tmp_path / name)


def test_the_command(tmp_path: Path) -> None:
    text, file = "A cat sat on the mat.", tmp_path / "groups.json"
    groups = {"animal": [[1, 3]], "place": [[4, 7]]}
    file.write_text(json.dumps(groups))
    table = hs.open().trace(text).group_weights(groups)
    found = CliRunner().invoke(app, ["attend", "-", text, "--set", f"groups={file}", "--json"])
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)["heads"]
    assert [(row["layer"], row["head"]) for row in rows] == [*table.positions()]
    assert json.loads(found.stdout)["even"]["animal → place"] == pytest.approx(3 / 9)
    assert [row["animal → place"] for row in rows] == pytest.approx(table["animal → place"].array.ravel(), abs=1e-6)
    shown = CliRunner().invoke(app, ["attend", "-", text, "--set", f"groups={file}"])
    layer, head = table.strongest("animal → place", 1)[0]
    most = f"{layer}     {head}   {table['animal → place'].array.max():.3f}"
    assert most in next(line for line in shown.output.splitlines() if "animal → place" in line and "─" not in line)
    mixed = CliRunner().invoke(app, ["attend", "-", text, "--set", f"groups={file}", "--statistic", "entropy"])
    assert mixed.exit_code != 0
