"""Vectors alone: each fault, planted in transformers' own pass, is named; pairs; and none of these is an answer."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import headscope as hs
from headscope.checkpoint.resolve import BUNDLED
from headscope.verify.diagnosis import diagnose
from headscope.verify.hypotheses import Replay

TEXTS = (
    "She took off her hat.",
    "The CAT looked at the dog!",
    "No.",
    "The whale was white, and the men looked at the water for a long time without a word.",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model's first two layers: trained weights, at half the cost."""
    folder = tmp_path_factory.mktemp("diagnosis") / "two"
    shutil.copytree(BUNDLED, folder)
    module = AutoModel.from_pretrained(BUNDLED)
    del module.encoder.layer[2:]
    module.config.num_hidden_layers = 2
    module.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def replay(folder: Path) -> Replay:
    """Passes of variants are kept from one fault to the next."""
    return Replay(hs.open(folder), TEXTS)


@pytest.fixture(scope="module")
def module(folder: Path) -> Any:
    return AutoModel.from_pretrained(folder).eval()


TOKENIZER = AutoTokenizer.from_pretrained(BUNDLED)


def vectors(module: Any, **fault: Any) -> np.ndarray:
    """What a pass in transformers gives: padded batch, masked mean; or with a fault."""
    texts = [fault.get("prompt", "") + text for text in TEXTS]
    batch = TOKENIZER(
        texts,
        padding=True,
        return_tensors="pt",
        add_special_tokens=fault.get("specials", True),
        truncation="cut" in fault,
        max_length=fault.get("cut"),
    )
    batch.setdefault("token_type_ids", torch.zeros_like(batch["input_ids"]))
    batch["token_type_ids"] = torch.full_like(batch["input_ids"], fault.get("token_type", 0))
    real = batch["attention_mask"].clone()
    if fault.get("padding") in ("seen", "both"):
        batch["attention_mask"] = torch.ones_like(real)
    if "shift" in fault:
        batch["position_ids"] = torch.arange(real.shape[1])[None] + fault["shift"]
    changed = copy.deepcopy(module)
    if "without" in fault:
        del changed.encoder.layer[fault["without"]]
    for part in changed.modules():
        if isinstance(part, torch.nn.LayerNorm):
            part.eps = fault.get("eps", part.eps)
        if hasattr(part, "intermediate_act_fn") and "gelu" in fault:
            part.intermediate_act_fn = torch.nn.GELU(approximate=fault["gelu"])
    if fault.get("precision"):
        changed = changed.to(torch.bfloat16)
    with torch.inference_mode():
        hidden = changed(**batch).last_hidden_state.float().numpy()
    counted = np.ones_like(real) if fault.get("padding") in ("counted", "both") else real.numpy()
    if fault.get("mode") == "cls":
        result = hidden[:, 0]
    elif fault.get("mode") == "last":
        result = hidden[np.arange(len(hidden)), real.numpy().sum(1) - 1]
    else:
        result = (hidden * counted[..., None]).sum(1) / counted.sum(1, keepdims=True)
    return result / np.linalg.norm(result, axis=1, keepdims=True) if fault.get("normalized") else result


FAULTS: dict[str, dict[str, Any]] = {
    "pools the first token": {"mode": "cls"},
    "pools the last token": {"mode": "last"},
    "normalises": {"normalized": True},
    "counts padding in the mean": {"padding": "counted"},
    "ignores the attention mask": {"padding": "seen"},
    "ignores the attention mask and counts padding in the mean": {"padding": "both"},
    "leaves out the special tokens": {"specials": False},
    "adds the prompt 'query: '": {"prompt": "query: "},
    "cuts texts to 16 tokens": {"cut": 16},
    "sets every token type to 1": {"token_type": 1},
    "counts positions from +1": {"shift": 1},
    "counts positions from +2": {"shift": 2},
    "computes GELU by tanh": {"gelu": "tanh"},
    "has a norm epsilon of 1e-05": {"eps": 1e-5},
    "lacks layer 0": {"without": 0},
    "lacks layer 1": {"without": 1},
}


def test_vectors_of_a_right_pass_agree(module: Any, folder: Path, tmp_path: Path) -> None:
    right = vectors(module)
    report = hs.parity(folder, right, TEXTS, tolerance=1e-5)
    assert report.agrees
    assert report.diagnosis is None
    assert report.heads is None
    np.save(tmp_path / "v.npy", right)
    assert hs.parity(folder, tmp_path / "v.npy", TEXTS, tolerance=1e-5).agrees


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named(module: Any, replay: Replay, name: str) -> None:
    found = diagnose(replay, vectors(module, **FAULTS[name]).astype(np.float64))
    assert found.verdict == "is", str(found)
    assert found.explanations[0].name == name
    assert found.margin > 2, str(found)
    assert f"it {name}" in str(found)


PAIRS = [
    ("pools the first token", "lacks layer 1"),
    ("normalises", "counts positions from +1"),
    ("ignores the attention mask", "computes GELU by tanh"),
]


@pytest.mark.parametrize("pair", PAIRS)
def test_pairs_of_faults_are_named(module: Any, replay: Replay, pair: tuple[str, str]) -> None:
    faults = FAULTS
    found = diagnose(replay, vectors(module, **faults[pair[0]], **faults[pair[1]]).astype(np.float64))
    assert found.verdict == "is", str(found)
    assert set(found.explanations[0].name.split(", and it ")) == set(pair)


def test_a_precision_cannot_be_replayed_and_is_called_so(module: Any, replay: Replay) -> None:
    found = diagnose(replay, vectors(module, precision=True).astype(np.float64))
    assert found.verdict == "precision", str(found)
    assert "a precision or a kernel" in str(found)
    found = diagnose(replay, vectors(module, precision=True, mode="cls").astype(np.float64))
    assert found.verdict == "mainly", str(found)
    assert found.explanations[0].name == "pools the first token"


def test_none_of_these_is_an_answer(module: Any, replay: Replay) -> None:
    other = np.random.default_rng(0).normal(size=(len(TEXTS), module.config.hidden_size))
    for wrong in (other, vectors(module)[::-1]):
        found = diagnose(replay, wrong.astype(np.float64))
        assert found.verdict == "none"
        assert "none of " in str(found)


def test_a_report_has_the_diagnosis(module: Any, folder: Path) -> None:
    report = hs.parity(folder, vectors(module, mode="cls")[:2], TEXTS[:2])
    assert report.diagnosis is not None
    assert "it pools the first token" in report.sentence()
    assert report.to_dict()["diagnosis"]["verdict"] == report.diagnosis.verdict == "is"


def test_a_live_model_says_only_that_vectors_differ(module: Any) -> None:
    with pytest.raises(hs.HeadscopeError, match="doesn't say how it cuts texts and pools"):
        hs.parity(module, vectors(module), TEXTS)


BAD: dict[str, tuple[Callable[[np.ndarray], Any], str]] = {
    "rows": (lambda right: right[:-1], r"expected 4 vectors of 192 numbers, got float64 of shape \(3, 192\)"),
    "width": (lambda right: right[:, :-1], r"shape \(4, 191\)"),
    "axes": (lambda right: right[0], r"shape \(192,\)"),
    "kind": (lambda right: right.astype(int), "got int64"),
    "NaN": (lambda right: np.where(np.arange(4)[:, None] == 2, np.nan, right), "vector 2 has NaN"),
    "objects": (lambda right: np.array([None, {}], dtype=object), "got object"),
}


@pytest.mark.parametrize("name", BAD)
def test_other_arrays_are_refused(module: Any, folder: Path, name: str) -> None:
    change, says = BAD[name]
    with pytest.raises(hs.HeadscopeError, match=says):
        hs.parity(folder, change(vectors(module)), TEXTS)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY\x01\x00",
        b"PK\x03\x04 no zip",
        b"\x93NUMPY\x01\x00\x08\x00{'descr'",  # an open bracket: tokenize.TokenError
        b"\x93NUMPY\x01\x00\x52\x00{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999999, 9)}",
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "v.npy"
    path.write_bytes(content)
    with pytest.raises(hs.HeadscopeError, match="the vectors can't be read"):
        hs.parity("-", path, TEXTS)


def test_vectors_are_the_second_side(module: Any) -> None:
    with pytest.raises(hs.HeadscopeError, match="the first side is vectors"):
        hs.parity(vectors(module), "-", TEXTS)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "v.npy"
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(hs.HeadscopeError, match="can't be read"):
        hs.parity("-", path, TEXTS)
