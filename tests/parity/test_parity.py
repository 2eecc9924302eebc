"""`hs.parity`: each number against transformers' eager pass or scipy's formula; each fault found where it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import headscope as hs
from compare.models import edited, scaled
from headscope.errors import InputError
from headscope.results.parity import Parity
from parity.sides import TEXTS, small
from random_models import FAMILIES

LAYER = "encoder.layer.1."
FAULTS = {
    "word embeddings": ("word_embeddings.weight", slice(None), "embeddings", None),
    "W_Q of a head": (f"{LAYER}attention.self.query.weight", slice(16, 24), "attention", 1),
    "W_O": (f"{LAYER}attention.output.dense.weight", slice(None), "attention", 1),
    "W_1": (f"{LAYER}intermediate.dense.weight", slice(None), "feed-forward", 1),
    "W_2": (f"{LAYER}output.dense.weight", slice(None), "feed-forward", 1),
    "norm after attention": (f"{LAYER}attention.output.LayerNorm.weight", slice(None), "feed-forward", 1),
    "last norm": ("encoder.layer.2.output.LayerNorm.bias", slice(None), "feed-forward", 2),
}
"""What is changed: tensor and rows; the step and the layer at which sides part."""


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("parity") / "bert"
    return folder, small(folder)


@pytest.fixture(scope="module")
def sharper(bert: tuple[Path, Any]) -> tuple[Path, Any, Parity]:
    """Head 1.2 with other queries, the module that has them, and the comparison."""
    from transformers import AutoModel

    folder = edited(bert[0].parent / "sharper", {FAULTS["W_Q of a head"][0]: scaled(slice(16, 24), 1.5)}, bert[0])
    module = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    return folder, module, hs.parity(bert[0], folder, TEXTS)


def eager(module: Any, folder: Path, text: str) -> Any:
    """transformers' own states and weights."""
    batch = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    batch.pop("token_type_ids", None)
    with torch.inference_mode():
        return module(**batch, output_attentions=True, output_hidden_states=True)


def test_a_checkpoint_is_the_same_as_itself(bert: tuple[Path, Any]) -> None:
    report = hs.parity(bert[0], bert[0], TEXTS, tolerance=0)
    assert report.agrees
    assert report.sentence() == "the same, bit for bit"
    assert [check.name for check in report.checks[:4]] == ["tokens", "embeddings", "attention", "feed-forward"]
    assert len(report.checks) == 2 + 2 * 3 + 1
    assert report.cost is not None
    assert report.cost.cosines == pytest.approx(np.ones(len(TEXTS)))
    assert report.first is None


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_at_its_step(bert: tuple[Path, Any], tmp_path: Path, fault: str) -> None:
    name, rows, step, layer = FAULTS[fault]
    report = hs.parity(bert[0], edited(tmp_path / "b", {name: scaled(rows, 1.3)}, bert[0]), TEXTS)
    assert not report.agrees
    assert report.first is not None
    assert (report.first.name, report.first.layer) == (step, layer)
    before = report.checks[: report.checks.index(report.first)]
    assert all(check.worst == 0 for check in before)
    named = f"layer {layer}, {step}" if layer is not None else f"the {step}"
    assert report.sentence().startswith(f"part at {named}; head")


def test_the_numbers_are_those_of_transformers(bert: tuple[Path, Any], sharper: tuple[Path, Any, Parity]) -> None:
    from scipy.spatial.distance import jensenshannon

    folder, module, report = sharper
    heads = report.heads
    assert heads is not None
    divergences, changes = [], []
    for text, differences in zip(TEXTS, report.differences, strict=True):
        a, b = (eager(one, folder, text) for one in (bert[1], module))
        for layer in range(3):
            x, y = (out.hidden_states[layer + 1][0].double().numpy() for out in (a, b))
            expected = np.linalg.norm(x - y, axis=1) / np.linalg.norm(x, axis=1)
            np.testing.assert_allclose(differences[2 + 2 * layer], expected, rtol=1e-3, atol=2e-6)
        p, q = (np.stack([layer[0].double().numpy() for layer in out.attentions]) for out in (a, b))
        divergences.append(jensenshannon(p, q, axis=-1) ** 2)
        changes.append(np.abs(p - q).max((-1, -2)))
    each = [np.nan_to_num(one).mean(-1) for one in divergences]
    np.testing.assert_allclose(heads["divergence"].array, np.mean(each, axis=0), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(heads["weight_change"].array, np.mean(changes, axis=0), rtol=1e-3, atol=1e-5)
    assert report.strongest(1) == [(1, 2)]
    move, texts = report.move, len(TEXTS)
    assert move is not None
    assert abs(move.b - move.a) == pytest.approx(np.max(changes), rel=1e-3)
    assert abs(move.b - move.a) == pytest.approx(np.max(changes[move.text]), rel=1e-3)
    half = heads["divergence"].high - heads["divergence"].array  # type: ignore[operator]
    spread = np.std(each, axis=0, ddof=1) / np.sqrt(texts)
    np.testing.assert_allclose(half, 2.776 * spread, rtol=2e-3, atol=1e-6)


def test_the_cost_is_that_of_plain_formulas(bert: tuple[Path, Any], tmp_path: Path) -> None:
    from scipy.stats import spearmanr

    name = FAULTS["W_2"][0]
    other = edited(tmp_path / "b", {name: scaled(slice(0, 16), -2.0)}, bert[0])
    report = hs.parity(bert[0], other, TEXTS)
    sides = []
    for folder in (bert[0], other):
        states = [trace.outputs["last_hidden_state"].array for trace in hs.open(folder).trace(list(TEXTS))]
        unit = np.stack([state.mean(0) / np.linalg.norm(state.mean(0)) for state in states]).astype(np.float64)
        sides.append(unit / np.linalg.norm(unit, axis=1, keepdims=True))
    similar = [unit @ unit.T for unit in sides]
    assert report.cost is not None
    assert report.cost.cosines == pytest.approx((sides[0] * sides[1]).sum(1), abs=1e-6)
    pairs = [[cells[i, j] for i in range(5) for j in range(i)] for cells in similar]
    assert report.cost.rank_correlation == pytest.approx(spearmanr(*pairs).statistic)
    nearest = [
        [max((c, j) for j, c in enumerate(row) if j != i)[1] for i, row in enumerate(cells)] for cells in similar
    ]
    assert report.cost.top1_changes == sum(x != y for x, y in zip(*nearest, strict=True))


def test_predictions_that_flip_are_counted(tmp_path: Path) -> None:
    module = small(tmp_path / "a", "Bert", "ForTokenClassification")
    other = edited(tmp_path / "b", {"classifier.bias": lambda bias: bias[::-1].copy() * 9}, tmp_path / "a")
    report = hs.parity(tmp_path / "a", other, TEXTS)
    from transformers import AutoModelForTokenClassification

    tuned = AutoModelForTokenClassification.from_pretrained(other, attn_implementation="eager").eval()
    labels = [
        np.concatenate([eager(one, other, text).logits[0].argmax(-1).numpy() for text in TEXTS])
        for one in (module, tuned)
    ]
    assert report.cost is not None
    assert report.cost.predictions == len(labels[0])
    assert report.cost.flips == int((labels[0] != labels[1]).sum()) > 0
    assert hs.parity(tmp_path / "a", module, TEXTS).cost.flips == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("stem", [stem for stem in FAMILIES if stem != "MegatronBert"])
def test_a_live_model_is_the_same_as_its_checkpoint(tmp_path: Path, stem: str) -> None:
    module = small(tmp_path / "a", stem)
    report = hs.parity(tmp_path / "a", module, TEXTS[:2], tolerance=2e-5)
    assert report.agrees, repr(report)
    assert report.skipped == ()
    assert report.checks[2].name == "attention"
    hooks = [hook for part in module.modules() for hook in part._forward_hooks.values()]
    assert not any("headscope" in getattr(hook, "__module__", "") for hook in hooks)


def test_a_live_model_of_two_classes_reads_with_its_own_tokenizer(bert: tuple[Path, Any]) -> None:
    folder, module = bert
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert hs.parity(folder, module, TEXTS, tokenizer=tokenizer, tolerance=2e-5).agrees
    assert hs.parity(module, module, TEXTS[:1], tokenizer=tokenizer).agrees
    cased = AutoTokenizer.from_pretrained(folder)
    cased.backend_tokenizer.normalizer = None
    report = hs.parity(folder, module, ["the Cat sat", "the dog"], tokenizer=cased)
    assert report.sentence() == "part at the tokens of text 0, at token 2"
    assert report.checks[0].worst == 0.5
    assert "1 of 2 texts are cut into other tokens: their states aren't compared" in report.notes


def test_a_precision_and_a_compiled_model(bert: tuple[Path, Any], tmp_path: Path) -> None:
    folder, module = bert
    compiled = torch.compile(module, backend="eager")
    assert hs.parity(folder, compiled, TEXTS[:2], tolerance=2e-5).agrees
    half = type(module).from_pretrained(folder, dtype=torch.bfloat16).eval()
    report = hs.parity(folder, half, TEXTS)
    assert not report.agrees
    assert report.notes == ("BertModel computes in torch.bfloat16",)
    assert hs.parity(folder, half, TEXTS, tolerance=0.2).agrees


def test_a_training_mode_is_restored(bert: tuple[Path, Any]) -> None:
    module = bert[1]
    module.train()
    try:
        assert hs.parity(bert[0], module, TEXTS[:1], tolerance=2e-5).agrees
        assert all(part.training for part in module.modules())
    finally:
        module.eval()


def test_a_number_that_is_none_parts_the_sides(bert: tuple[Path, Any], tmp_path: Path) -> None:
    def broken(array: np.ndarray) -> np.ndarray:
        array[3] = np.nan
        return array

    report = hs.parity(bert[0], edited(tmp_path / "b", {FAULTS["W_2"][0]: broken}, bert[0]), TEXTS[:2])
    assert not report.agrees
    assert (report.first.name, report.first.layer) == ("feed-forward", 1)  # type: ignore[union-attr]
    assert json.loads(json.dumps(report.to_dict()))["agrees"] is False


def test_tokens_at_every_step_as_a_table(sharper: tuple[Path, Any, Parity]) -> None:
    table = sharper[2].arrow().to_pylist()
    tokens = sum(map(len, sharper[2].tokens))
    assert len(table) == 7 * tokens
    row = max(table, key=lambda row: row["difference"])
    check = max(sharper[2].checks[1:-1], key=lambda check: check.worst)
    place = (check.text, check.query, check.layer, check.name)
    assert (row["text"], row["position"], row["layer"], row["step"]) == place
    assert row["difference"] == pytest.approx(check.worst)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"texts": "one text"}, "a single text"),
        ({"texts": []}, "there is no text"),
        ({"texts": [3]}, "a text is a int"),
        ({"tolerance": -1}, "tolerance is -1"),
        ({"tolerance": float("nan")}, "tolerance is nan"),
        ({"max_length": 2}, "max_length is 2"),
        ({"b": 3}, "got int"),
        ({"b": "-"}, "has 3 layers, the bundled model 4"),
        ({"b": torch.nn.Linear(3, 3)}, "no transformers config"),
    ],
)
def test_what_cannot_be_compared_is_refused(bert: tuple[Path, Any], options: dict[str, Any], says: str) -> None:
    given = {"a": bert[0], "b": bert[0], "texts": TEXTS, **options}
    with pytest.raises(hs.HeadscopeError, match=says):
        hs.parity(given.pop("a"), given.pop("b"), given.pop("texts"), **given)


def test_a_copy_with_another_vocabulary(bert: tuple[Path, Any], tmp_path: Path) -> None:
    name = "embeddings.word_embeddings.weight"
    other = edited(tmp_path / "b", {name: lambda table: table[:40].copy()}, bert[0])
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "vocab_size": 40}))
    with pytest.raises(hs.HeadscopeError, match=r"has 60 ids, .* 40"):
        hs.parity(bert[0], other, TEXTS)


def test_two_live_models_without_a_tokenizer(bert: tuple[Path, Any]) -> None:
    with pytest.raises(hs.HeadscopeError, match="neither side has a tokenizer"):
        hs.parity(bert[1], bert[1], TEXTS)


def test_texts_beyond_the_window_are_counted(bert: tuple[Path, Any]) -> None:
    said = "longer than the window: only their beginnings are compared"
    assert not any(said in note for note in hs.parity(bert[0], bert[0], [" the cat \N{WAVING HAND SIGN} "]).notes)
    long = hs.parity(bert[0], bert[0], ["the cat", "the cat " * 400], max_length=8)
    assert long.notes == (f"1 of 2 texts are {said}",)
    with pytest.raises(InputError, match="the text needs at least one"):
        hs.parity(bert[0], bert[0], ["the cat"], max_length=2)
