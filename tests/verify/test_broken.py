"""NaN and infinity in a checkpoint: the heads they reach, against transformers; nothing shows them as numbers."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load
from transformers import BertModel

import commands
import headscope as hs
from headscope.attention.scores import Mask
from headscope.page.trace import page_bytes
from headscope.runs.predicting import outcomes, shifts
from headscope.traces import broken_line
from small_bert import PLACES, broken_bert

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")

TEXT = "The cat sat on the mat."
ALL = ((0, 0), (0, 1), (1, 0), (1, 1))
WHERE = {
    "query": (((0, 0), (1, 0), (1, 1)), "in layer 0: the queries of head 0"),
    "query of the last head": (((1, 1),), "in layer 1: the queries of head 1"),
    "infinite query": (((0, 0), (1, 0), (1, 1)), "in layer 0: the queries of head 0"),
    "overflowing query": (((0, 0), (1, 0), (1, 1)), "in layer 0: the queries of head 0"),
    "key bias": (((1, 0),), "in layer 1: the keys of head 0"),
    "value": (((1, 0), (1, 1)), "in layer 0: the values of head 0"),
    "embedding": (ALL, "before layer 0, in the embeddings"),
    "embedding norm": (ALL, "before layer 0, in the embeddings"),
    "layer norm": (((1, 0), (1, 1)), "after the attention of layer 0"),
    "last norm": ((), "after the attention of layer 1"),
}
"""The heads that a place's fault reaches, and where it begins."""
REACHED = {place: heads for place, (heads, _) in WHERE.items()}
BEGINS = {place: begins for place, (_, begins) in WHERE.items()}
places = pytest.mark.parametrize("place", PLACES)
run = partial(commands.run, code=1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("broken")
    return {place: broken_bert(root / str(at), place) for at, place in enumerate(PLACES)}


@places
def test_the_same_weights_are_nan_as_in_transformers(folders: dict[str, Path], place: str) -> None:
    trace = hs.open(folders[place]).trace(TEXT)
    model = BertModel.from_pretrained(folders[place], attn_implementation="eager").eval()
    with torch.no_grad():
        eager = model(input_ids=torch.tensor([trace.ids]), output_attentions=True).attentions
    for layer, found in enumerate(eager):
        for head in range(2):
            np.testing.assert_allclose(np.asarray(trace[layer, head].weights), found[0, head].numpy(), atol=2e-6)
    nan = tuple(at for at in ALL if bool(eager[at[0]][0, at[1]].isnan().any()))
    assert trace.broken == nan == REACHED[place]


def test_a_sound_model_has_nothing_to_say() -> None:
    trace = hs.open("-").trace(TEXT)
    assert trace.broken == ()
    assert broken_line(trace) is None


def test_many_heads_are_named_in_few_words(folders: dict[str, Path]) -> None:
    assert "in the weights of head 0 of layer 0, all heads of layer 1." in str(
        broken_line(hs.open(folders["query"]).trace(TEXT))
    )
    assert "in the weights of all heads of layers 0 to 1." in str(
        broken_line(hs.open(folders["embedding"]).trace(TEXT))
    )


@places
def test_attend_shows_the_rest_and_exits_with_1(folders: dict[str, Path], place: str) -> None:
    """No head that is broken has a pattern or a number anywhere."""
    result = run("attend", folders[place], TEXT, "--json")
    assert f"It begins {BEGINS[place]};" in result.stderr
    record = json.loads(result.stdout)
    assert record["broken"] == [list(at) for at in REACHED[place]]
    for row in record["heads"]:
        broken = (row["layer"], row["head"]) in REACHED[place]
        assert (row["pattern"] == "NaN") == broken
        assert {
            row[name] is None for name in ("previous", "same", "next", "first", "entropy", "normalised_entropy")
        } == {broken}
    screen = run("attend", folders[place], TEXT).stdout
    assert screen.count("NaN") == len(REACHED[place]) + bool(REACHED[place])
    assert ("most even" in screen) == (REACHED[place] != ALL)


@pytest.mark.parametrize("place", ["query", "overflowing query", "key bias", "value"])
def test_every_view_of_a_head_says_nan(folders: dict[str, Path], place: str) -> None:
    for layer, head in ALL[::2]:
        broken = (layer, head) in REACHED[place]
        chosen = ["--heads", f"{layer}.{head}"]
        weights = json.loads(run("attend", folders[place], TEXT, *chosen, "--json").stdout)["weights"]
        assert any(weight is None for row in weights for weight in row) == broken
        for more in ([], ["--top", 2], ["-q", 0], ["--set", "threshold=0.7"]):
            assert (
                "NaN" in run("attend", folders[place], TEXT, *chosen, *more).stdout
            ) == broken or place == "overflowing query"


def test_narrow_cells_and_what_lies_outside(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = run("attend", folders["query"], " ".join(["the cat"] * 11), "--heads", "0.0").stdout
    assert " ? ?" in text
    assert "NaN" in text
    assert "24 of 24 rows are not numbers" in text


def test_files_hold_nan_too(folders: dict[str, Path], tmp_path: Path) -> None:
    run("attend", folders["query"], TEXT, "--save", tmp_path / "w.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "w.csv").read_text(encoding="utf-8"))))
    assert {row["weight"] == "nan" for row in rows if (row["layer"], row["head"]) == ("0", "0")} == {True}
    assert {row["weight"] == "nan" for row in rows if (row["layer"], row["head"]) == ("0", "1")} == {False}
    run("attend", folders["query"], TEXT, "--save", tmp_path / "t.safetensors")
    assert "It begins in layer 0" in run("attend", tmp_path / "t.safetensors").stderr
    assert hs.load(tmp_path / "t.safetensors").broken == REACHED["query"]


@pytest.mark.parametrize("engine", ["numpy", "torch"])
@places
def test_statistics_are_nan_where_the_weights_are(folders: dict[str, Path], place: str, engine: str) -> None:
    table = hs.open(folders[place]).trace(TEXT).statistics(engine=engine)
    nan = {(layer, head) for layer, head in ALL if np.isnan(table["entropy"][layer, head])}
    assert nan == table.broken == set(REACHED[place])
    assert ("their weights are NaN" in repr(table)) == bool(nan)


def test_a_mean_over_the_other_queries_is_no_mean() -> None:
    """Behind a causal mask only the queries from the broken token on are NaN: the head's mean is, too."""
    whole = hs.open("-").trace(TEXT)
    layers = []
    for record in whole.layers:
        k = record.k.copy()
        k[0, 3] = np.nan
        layers.append(replace(record, k=k, lse=None, mask=Mask(causal=True)))
    trace = whole.replaced(layers=layers)
    table = trace.statistics("entropy", per_query=True)["entropy"]
    assert np.isnan(table[:, 0, 3:]).all()
    assert np.isfinite(table[:, 0, :3]).all()
    assert np.isnan(trace.statistics("entropy")["entropy"][:, 0]).all()
    assert np.isfinite(trace.statistics("entropy")["entropy"][:, 1:]).all()


def test_verify_head_and_fill(folders: dict[str, Path]) -> None:
    for place in PLACES:
        report = hs.open(folders[place]).verify(TEXT, reference=False)
        assert any("It begins" in note for note in report.notes)
        assert report.agrees == (place == "last norm")
        assert "NaN or infinite" in run("predict", folders[place], "the [MASK] sat on the cat", code=2).stderr
    assert "NaN or infinity in W_Q of layer 0, head 0" in run("head", folders["query"], "0.0").stderr
    run("head", folders["query"], "0.1", code=0)


@places
def test_the_page_can_be_made(folders: dict[str, Path], place: str, tmp_path: Path) -> None:
    run("view", folders[place], TEXT, "--html", tmp_path / "page.html")
    content = load(page_bytes(hs.open(folders[place]).trace(TEXT)))
    for layer, head in ALL:
        broken = (layer, head) in REACHED[place]
        assert np.isnan(content["view.statistics"][:, layer, head]).all() == broken
        assert np.isnan(content[f"layers.{layer}.lse"][head]).any() == broken
        assert not (broken and content["view.thumbs"][layer, head].all())


def test_the_served_page_has_no_outcomes_of_nan(folders: dict[str, Path]) -> None:
    model = hs.open(folders["query"])
    trace = model.trace("the [MASK] sat")
    assert outcomes(model, trace) == []
    assert shifts(trace, trace) is None


@pytest.mark.parametrize("place", ["value", "query"])
def test_summary_and_head_say_nothing_of_rates_that_are_no_numbers(folders: dict[str, Path], place: str) -> None:
    rates = json.loads(run("summary", folders[place], "--json", code=0).stdout)["expansion_rates"]
    assert (None in rates) == (place == "value")
