"""Effects over a corpus: naive loops over transformers with the head's slice changed; removal, intervals."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from surveying import OPTIONS
from transformers import AutoTokenizer

import headscope as hs
from explain.tops import WORDS, readable
from headscope.atlas.corpus_effects import CANDIDATES
from headscope.errors import HeadscopeError, InputError, UnsupportedError
from headscope.heads.intervals import Resampled

LAYERS, HEADS, WIDTH = 3, 4, 8
LENGTH = 16
LIMIT = 2e-5
EFFECTS = {**OPTIONS, "statistics": "entropy", "length": LENGTH, "effects": 9}
Head = tuple[int, int]


def corpus() -> list[str]:
    """Ten documents of up to three windows."""
    drawn = np.random.default_rng(3)
    words = [word for word in WORDS if word.isalnum()]
    return [" ".join(drawn.choice(words, size=int(drawn.integers(8, 40)))) for _ in range(10)]


def naive_windows(folder: Path, count: int = 9) -> list[tuple[int, str, int, list[int]]]:
    """Number and name of the document, the window's number and its ids: those that effects are to be measured over.

    Documents are numbered in the order of the hashes of their texts, and windows are drawn by these.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    windows = []
    for number, (digest, name, text) in enumerate(
        sorted((hashlib.sha256(text.encode()).hexdigest(), str(at), text) for at, text in enumerate(corpus()))
    ):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        for at, start in enumerate(range(0, len(ids), LENGTH - 2)):
            lot = hashlib.sha256(f"{digest}\0{at}".encode()).digest()
            windows.append((lot, (number, name, at, [first, *ids[start : start + LENGTH - 2], last])))
    return [window for _, window in sorted(windows)[:count]]


def naive_masks(ids: Sequence[int]) -> list[int]:
    """The masked positions of a window of one text, between its special tokens."""
    name = hashlib.sha256(f"{' '.join(map(str, ids))}\0{' '.join('0' for _ in ids)}".encode()).hexdigest()
    places = sorted(range(1, len(ids) - 1), key=lambda place: hashlib.sha256(f"{name}\0{place}".encode()).digest())
    return sorted(places[: max(1, round(0.15 * len(places)))])


class Naive:
    """A model of transformers with slices of the input of W_O changed by hooks: a row of a batch for each change."""

    def __init__(self, folder: Path, module: Any, kind: str, method: str = "zero") -> None:
        self.module, self.kind, self.method = module, kind, method
        self.mask = AutoTokenizer.from_pretrained(folder).mask_token_id
        self.known: dict[tuple[tuple[int, ...], frozenset[Head]], tuple[torch.Tensor, torch.Tensor | None]] = {}

    def outputs(self, ids: tuple[int, ...], sets: Sequence[frozenset[Head]]) -> list[Any]:
        """The logits and, where they are read, the last hidden states, with each set of heads silenced."""
        new = [silenced for silenced in dict.fromkeys(sets) if (ids, silenced) not in self.known]

        def change(_: Any, given: tuple[torch.Tensor], layer: int) -> tuple[torch.Tensor]:
            context = given[0].clone()
            for row, silenced in enumerate(new):
                for head in (head for at, head in silenced if at == layer):
                    span = slice(head * WIDTH, (head + 1) * WIDTH)
                    mean = context[row, :, span].mean(0, keepdim=True)
                    context[row, :, span] = mean if self.method == "mean" else 0
            return (context,)

        if new:
            hooks = [
                layer.attention.output.dense.register_forward_pre_hook(lambda m, given, at=at: change(m, given, at))
                for at, layer in enumerate(self.module.bert.encoder.layer)
            ]
            with torch.no_grad():
                read = self.module(torch.tensor([list(ids)] * len(new)), output_hidden_states=True)
            for hook in hooks:
                hook.remove()
            self.known |= {
                (ids, silenced): (read.logits[row].double(), read.hidden_states[-1][row].double())
                for row, silenced in enumerate(new)
            }
        return [self.known[ids, silenced] for silenced in sets]

    def numbers(self, window: tuple[int, str, int, list[int]], sets: Sequence[Collection[Head]]) -> list[float]:
        """What is measured of a window, with each set of heads silenced."""
        ids = window[3]
        silenced = [frozenset(heads) for heads in sets]
        if self.kind == "loss":
            places = naive_masks(ids)
            masked = tuple(self.mask if place in places else index for place, index in enumerate(ids))
            truth = torch.tensor([ids[place] for place in places])
            return [
                float(torch.nn.functional.cross_entropy(logits[places], truth))
                for logits, _ in self.outputs(masked, silenced)
            ]
        plain, *changed = self.outputs(tuple(ids), [frozenset(), *silenced])
        if self.kind.startswith("embedding"):
            a, vectors = plain[1].mean(0), [states.mean(0) for _, states in changed]
            if self.kind == "embedding":
                return [float(a @ b / (a @ a)) for b in vectors]
            return [1 - float(torch.nn.functional.cosine_similarity(a, b, dim=0)) for b in vectors]
        index = int(plain[0].argmax()) if self.kind == "class" else int(self.kind)
        return [float(logits[index]) for logits, _ in changed]


CASES = [
    ("ForMaskedLM", None, "zero", "loss"),
    ("ForMaskedLM", None, "mean", "loss"),
    ("ForMaskedLM", "embedding", "zero", "embedding"),
    ("ForMaskedLM", "embedding_distance", "zero", "embedding_distance"),
    ("ForSequenceClassification", None, "zero", "class"),
    ("ForSequenceClassification", "good", "mean", "2"),
]


@pytest.mark.parametrize(("suffix", "output", "method", "kind"), CASES)
def test_they_equal_naive_loops(tmp_path: Path, suffix: str, output: str | None, method: str, kind: str) -> None:
    made = readable(tmp_path, "Bert", suffix)
    survey = hs.survey(tmp_path, corpus(), **EFFECTS, effects_output=output, effects_method=method)
    windows, naive = naive_windows(tmp_path), Naive(tmp_path, made.module, kind, method)
    rows = {(row["layer"], row["head"]): row for row in survey.effects.to_pylist()}
    assert len(rows) == LAYERS * HEADS
    read = np.array([naive.numbers(window, [set(), *({head} for head in rows)]) for window in windows])
    base = read[:, 0]
    changes = []
    for at, row in enumerate(rows.values(), 1):
        change = read[:, at] - base
        assert row["change"] == pytest.approx(change.mean(), abs=LIMIT)
        assert row["low"] <= row["change"] <= row["high"]
        assert (row["base"], row["method"]) == (pytest.approx(base.mean(), abs=LIMIT), method)
        assert (row["windows"], row["documents"]) == (len(windows), len({window[0] for window in windows}))
        changes.append(abs(change.mean()))
    assert max(changes) > 1e-3
    check_removal(survey, windows, naive, base)


def check_removal(survey: hs.Survey, windows: list[Any], naive: Naive, base: np.ndarray) -> None:
    """Greedy over the windows of even documents, the cost over the others, all from naive numbers."""
    choosing = [at for at, window in enumerate(windows) if window[0] % 2 == 0]
    others = [at for at, window in enumerate(windows) if window[0] % 2 == 1]
    assert choosing
    assert others

    def costs(places: list[int], removed: set[Head], heads: Sequence[Head]) -> dict[Head, float]:
        """What it costs to remove each of these heads beside those that are removed."""
        change = np.array([naive.numbers(windows[at], [removed | {head} for head in heads]) for at in places])
        change -= base[places, None]
        signed = naive.kind in ("loss", "embedding_distance")
        return dict(zip(heads, (change if signed else np.abs(change)).mean(0).tolist(), strict=True))

    removed: set[Head] = set()
    latest = costs(choosing, removed, [(layer, head) for layer in range(LAYERS) for head in range(HEADS)])
    for step, row in enumerate(survey.removal.to_pylist(), 1):
        candidates = sorted(latest, key=lambda head: latest[head])[:CANDIDATES]
        latest |= costs(choosing, removed, candidates)
        head = (row["layer"], row["head"])
        assert latest[head] == pytest.approx(min(latest[candidate] for candidate in candidates), abs=LIMIT)
        assert row["step"] == step
        assert row["cost"] == pytest.approx(latest.pop(head), abs=LIMIT)
        assert row["cost_held_out"] == pytest.approx(costs(others, removed, [head])[head], abs=LIMIT)
        removed.add(head)
        assert (row["windows"], row["windows_held_out"]) == (len(choosing), len(others))
    assert len(removed) == LAYERS * HEADS


def test_a_head_that_does_nothing_goes_first(tmp_path: Path) -> None:
    """Where W_O has no rows for a head, its effect is exactly 0 and so is what removing it costs."""
    made = readable(tmp_path, "Bert", "Model")
    made.module.encoder.layer[1].attention.output.dense.weight.data[:, 2 * WIDTH : 3 * WIDTH] = 0
    made.module.save_pretrained(tmp_path)
    survey = hs.survey(tmp_path, corpus(), **EFFECTS)
    (dead,) = [row for row in survey.effects.to_pylist() if (row["layer"], row["head"]) == (1, 2)]
    assert dead["low"] == pytest.approx(0, abs=1e-12)
    assert dead["high"] == pytest.approx(0, abs=1e-12)
    first = survey.removal.to_pylist()[0]
    assert (first["layer"], first["head"]) == (1, 2)
    assert first["cost_held_out"] == pytest.approx(0, abs=1e-12)


def test_intervals() -> None:
    """As a loop of draws gives them, and near the normal interval where documents are alike in size."""
    drawn = np.random.default_rng(1)
    documents = drawn.integers(0, 30, size=200).tolist()
    values = drawn.normal(size=(200, 3)) + 0.5 * drawn.normal(size=30)[documents][:, None]
    means, low, high = Resampled(documents).means(values)
    np.testing.assert_allclose(means, values.mean(0))
    names = sorted(set(documents))
    of = [np.array([document == name for document in documents]) for name in names]
    loop = []
    for _ in range(3000):
        picked = drawn.integers(0, len(names), size=len(names))
        loop.append(np.concatenate([values[of[at]] for at in picked]).mean(0))
    np.testing.assert_allclose((low, high), np.percentile(loop, (2.5, 97.5), axis=0), atol=0.03)
    sums = np.stack([(values[one] - means).sum(0) for one in of])
    error = np.sqrt((sums**2).sum(0) * len(names) / (len(names) - 1)) / len(values)
    np.testing.assert_allclose(high - low, 2 * 1.96 * error, rtol=0.2)
    assert np.isnan(Resampled([4, 4]).means(values[:2])[1]).all()


def test_one_document(tmp_path: Path) -> None:
    """Nothing is held out, and there is no interval."""
    readable(tmp_path, "Bert", "ForMaskedLM")
    survey = hs.survey(tmp_path, [" ".join(corpus())], **{**EFFECTS, "effects": 3})
    assert {row["low"] for row in survey.effects.to_pylist()} == {None}
    for row in survey.removal.to_pylist():
        assert (row["cost_held_out"], row["windows"], row["windows_held_out"]) == (None, 3, 0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"effects": 3, "effects_output": "class"}, UnsupportedError, "no sequence classifier"),
        ({"effects": -1}, InputError, "effects is -1"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    tmp_path: Path, options: dict[str, Any], error: type[HeadscopeError], message: str
) -> None:
    with pytest.raises(error, match=message):
        hs.survey("-", ["A cat sat."], out=tmp_path / "out", **{**OPTIONS, **options})
    assert not list(tmp_path.rglob("part-*"))


def test_a_live_model_and_one_without_masks(tmp_path: Path) -> None:
    made = readable(tmp_path, "Bert", "ForMaskedLM")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="a live model was passed"):
        hs.survey(made.module, corpus(), tokenizer=tokenizer, effects=2)
    with pytest.raises(InputError, match="the survey has no effects"):
        _ = hs.survey(tmp_path, corpus(), out=tmp_path / "out", **OPTIONS).effects
    with pytest.raises(InputError, match=r"; effects was null, is 8"):
        hs.survey(tmp_path, corpus(), out=tmp_path / "out", **OPTIONS, effects=8)
