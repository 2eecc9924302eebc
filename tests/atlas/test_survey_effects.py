"""Effects over a corpus: naive loops over transformers with the head's slice changed; removal, intervals."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from surveying import ALICE, OPTIONS
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

import headscope as hs
from explain.tops import WORDS, readable
from headscope.atlas import writes
from headscope.atlas.corpus_effects import CANDIDATES
from headscope.atlas.wording import writes_sentences
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import HeadscopeError, InputError, UnsupportedError
from headscope.heads.intervals import Resampled
from making import change_json
from peak import Peak
from random_models import Made, random_model
from small_bert import small_bert

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


CASES = [  # each output and each way once; what differs only in one of them is slow
    pytest.param("ForMaskedLM", None, "zero", "loss", marks=pytest.mark.slow),
    ("ForMaskedLM", None, "mean", "loss"),
    ("ForMaskedLM", "embedding", "zero", "embedding"),
    ("ForMaskedLM", "embedding_distance", "zero", "embedding_distance"),
    pytest.param("ForSequenceClassification", None, "zero", "class", marks=pytest.mark.slow),
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


def test_one_document(words: Made) -> None:
    """Nothing is held out, and there is no interval."""
    survey = hs.survey(words.folder, [" ".join(corpus())], **{**EFFECTS, "effects": 3})
    assert {row["low"] for row in survey.effects.to_pylist()} == {None}
    for row in survey.removal.to_pylist():
        assert (row["cost_held_out"], row["windows"], row["windows_held_out"]) == (None, 3, 0)


def test_what_cannot_be_measured_or_told_is_refused(words: Made, tmp_path: Path) -> None:
    without = readable(tmp_path / "without", "Bert", "Model").folder
    convolved = readable(tmp_path / "convolved", "DebertaV2", "ForMaskedLM", conv_kernel_size=3).folder
    maskless = readable(tmp_path / "maskless", "Bert", "ForMaskedLM").folder
    change_json(maskless / "tokenizer_config.json", mask_token=None)
    classifier = readable(tmp_path / "classifier", "Bert", "ForSequenceClassification").folder
    live = {"tokenizer": AutoTokenizer.from_pretrained(words.folder)}
    cases: list[tuple[Any, dict[str, Any], type[HeadscopeError], str]] = [
        ("-", {"effects": 3, "effects_output": "class"}, UnsupportedError, "no sequence classifier"),
        (classifier, {"effects": 3, "effects_output": "9" * 5000}, InputError, "there is no class '999"),
        ("-", {"effects": -1}, InputError, "effects is -1"),
        (words.module, {"effects": 2, **live}, InputError, "a live model was passed"),
        (without, {"writes": 9}, UnsupportedError, "no masked-LM head; on top of BertModel it has nothing"),
        (maskless, {"effects": 2}, UnsupportedError, "no mask token, so nothing can be masked"),
        (maskless, {"writes": 9}, UnsupportedError, "no mask token, so nothing can be masked"),
        (convolved, {"writes": 9}, UnsupportedError, "a convolution stands beside the first layer"),
        (words.module, {"writes": 2, **live}, InputError, "writes run the model from its checkpoint, and a live model"),
    ]
    for model, options, error, message in cases:
        with pytest.raises(error, match=message):
            hs.survey(model, corpus(), out=tmp_path / "out", **OPTIONS, **options)
    assert not list(tmp_path.rglob("part-*"))
    plain = hs.survey(words.folder, corpus(), out=tmp_path / "out", **OPTIONS)
    for name in ("effects", "writes", "labels", "examples", "syntax", "similarity"):
        with pytest.raises(InputError, match=f"the survey has no {name}") as caught:
            getattr(plain, name)
    assert "--set head_distances=20" in str(caught.value)
    with pytest.raises(InputError, match=r"; effects was null, is 8"):
        hs.survey(words.folder, corpus(), out=tmp_path / "out", **OPTIONS, effects=8)


# Tokens that heads write: loops over single heads' promoted tokens, a head that was built to write, random heads.


WRITES = {**OPTIONS, "statistics": "entropy", "length": LENGTH, "writes": 9}


def naive_rows(folder: Path, count: int) -> list[dict[str, Any]]:
    """The table, from every head's promoted tokens at every mask, one after the other; windows are halved in turn."""
    model = hs.open(folder)
    windows = sorted(naive_windows(folder, count), key=lambda window: (window[0], window[2]))
    heads = list(np.ndindex(model.anatomy.known().layers, model.anatomy.known().heads))
    halves: tuple[list[Any], list[Any]] = ([], [])
    counts: Counter[int] = Counter()
    for order, (*_, ids) in enumerate(windows):
        places = naive_masks(ids)
        masked = [model.tokenizer.mask_id if place in places else index for place, index in enumerate(ids)]
        trace = model.trace(ids=masked)
        halves[order % 2].append(
            [(ids[place], {head: trace[head].promotes(place).effects for head in heads}) for place in places]
        )
        if order % 2 == 0:
            counts.update(ids[1:-1])
    f = {token: count / counts.total() for token, count in counts.items()}
    found = [token for window in halves[0] for token, _ in window]
    candidates = sorted(token for token, count in Counter(found).items() if count >= 2)

    def gain(head: tuple[int, int], token: int, effects: Any, R: list[int]) -> float:
        """log2 of p(token) over f(token)."""
        e = effects[head]
        Z = sum(f[v] * math.exp(e[v]) for v in R) + 1 - sum(f[v] for v in R)
        return ((float(e[token]) if token in R else 0) - math.log(Z)) / math.log(2)

    rows = []
    for head in heads:
        alone = {
            v: sum(gain(head, token, effects, [v]) for window in halves[0] for token, effects in window) / len(found)
            for v in candidates
        }
        R = sorted((v for v in candidates if alone[v] > 0), key=lambda v: -alone[v])[:10]
        held_out = [[gain(head, token, effects, R) for token, effects in window] for window in halves[1]]
        sums, sizes = np.array([sum(of) for of in held_out]), np.array([len(of) for of in held_out])
        ratio, n = sums.sum() / sizes.sum(), len(sums)
        error = math.sqrt(n / (n - 1) * ((sums - ratio * sizes) ** 2).sum()) / sizes.sum()
        rows.append({"R": R, "gains": [alone[v] for v in R], "bits": ratio, "error": error, "masked": sizes.sum()})
    return rows


def test_they_equal_loops_over_single_heads(words: Made) -> None:
    survey = hs.survey(words.folder, corpus(), **{**WRITES, "writes": 20})
    rows, naive = survey.writes.to_pylist(), naive_rows(words.folder, 20)
    assert len(rows) == len(naive)
    for row, expected in zip(rows, naive, strict=True):
        assert row["tokens"] == [hs.open(words.folder).tokenizer.token(v) for v in expected["R"]]
        np.testing.assert_allclose(row["gains"], expected["gains"], rtol=1e-3, atol=1e-6)
        assert row["bits"] == pytest.approx(expected["bits"], rel=1e-3, abs=1e-6)
        half = 2.262 * expected["error"]  # t with 9 degrees of freedom
        assert [row["low"], row["high"]] == pytest.approx([row["bits"] - half, row["bits"] + half], rel=1e-3, abs=1e-6)
        assert (row["masked"], row["windows"], row["over"]) == (expected["masked"], 10, "windows")
        assert row["sure"] == (row["low"] >= 0.001 and bool(row["tokens"]))
    assert max(len(row["tokens"]) for row in rows) >= 2
    assert max(abs(row["bits"]) for row in rows) > 1e-3


def built(folder: Path) -> Path:
    """A BERT of one layer, with nothing but its heads: 0 writes “mat” after “cat”, “hat” after “dog”; 1, always “the”.

    Token v's embedding is the unit vector v, the heads look evenly, and the masked-LM head reads the unit vectors.
    """
    readable(folder, "Bert", "ForMaskedLM")
    settings = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(vocab_size=len(WORDS), **settings, max_position_embeddings=32)
    model = BertForMaskedLM(config)
    layer, head = model.bert.encoder.layer[0], model.cls.predictions
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if name.endswith("LayerNorm.weight") else 0.0)
        model.bert.embeddings.word_embeddings.weight[:] = torch.eye(64)[: len(WORDS)]
        head.transform.dense.weight[:] = torch.eye(64)
        head.transform.dense.bias[:] = 3  # where the activation's slope is 1
        value, out = layer.attention.self.value.weight, layer.attention.output.dense.weight
        for at, (key, written) in enumerate((("cat", "mat"), ("dog", "hat"), ("[CLS]", "the"))):
            place = at if at < 2 else 32
            value[place, WORDS.index(key)] = 1
            out[WORDS.index(written), place] = 2
    model.save_pretrained(folder)
    return folder


def test_a_head_that_was_built_to_write_is_found(tmp_path: Path) -> None:
    """With the two words that it writes; the one that always writes the same frequent word predicts nothing."""
    drawn = np.random.default_rng(5)
    others = ["the", "the", "the", "sat", "on", "she", "and"]
    texts = []
    for number in range(400):
        key, written = (("cat", "mat"), ("dog", "hat"))[number // 2 % 2]
        words = [*drawn.choice(others, size=4), key, *[written] * 6]
        texts.append(" ".join(drawn.permutation(words)))
    survey = hs.survey(built(tmp_path), texts, **{**WRITES, "writes": 400})
    writer, other = survey.writes.to_pylist()
    assert (writer["sure"], sorted(writer["tokens"][:2])) == (True, ["hat", "mat"])
    assert writer["low"] > 0.05
    assert min(writer["gains"][:2]) > 5 * max([*writer["gains"][2:], 0])
    assert not other["sure"]
    named = survey.table().facts["writes"]
    assert named == {(0, 0): " ".join(writer["tokens"]), (0, 1): ""}
    assert hs.compare(survey, survey).changes.facts["writes_b"] == named
    assert f"head 0.0 raises {' '.join(writer['tokens'][:5])}" in writes_sentences(survey.writes)[0]
    assert (other["over"], other["documents"], other["windows"]) == ("documents", 200, 200)


def test_random_heads_write_nothing(tmp_path: Path) -> None:
    """32 heads with random weights over a text: none is said to predict it."""
    shutil.copytree(BUNDLED, tmp_path, dirs_exist_ok=True)
    settings = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 64}
    vocabulary = len(AutoTokenizer.from_pretrained(tmp_path))
    module = random_model("Bert", "ForMaskedLM", **settings, vocab_size=vocabulary, max_position_embeddings=64)
    module.save_pretrained(tmp_path)
    survey = hs.survey(tmp_path, [ALICE[:60_000]], **{**WRITES, "max_document": 10**6, "length": 64, "writes": 300})
    rows = survey.writes.to_pylist()
    assert len(rows) == 32
    assert max(len(row["tokens"]) for row in rows) == writes.WORDS
    assert [row for row in rows if row["sure"]] == []


def test_memory_is_that_of_a_batch(tmp_path: Path) -> None:
    """Four times as many windows take little more: their ids, and a number for each head of each."""
    model, texts = small_bert(tmp_path / "model"), [ALICE[start : start + 110] for start in range(0, 5500, 110)]
    options = {**OPTIONS, "length": 24, "statistics": "entropy", "batch_tokens": 240}

    def peak(count: int) -> int:
        with Peak() as held:
            hs.survey(model, texts, **options, writes=count)
        return held.bytes

    hs.survey(model, texts, **options, writes=18)  # imports and caches, which to trace takes longer than the test
    assert peak(72) <= 1.3 * peak(18)  # 1.1; 1.5 without batches


def test_one_window(words: Made) -> None:
    """Nothing is held out, so nothing is sure."""
    survey = hs.survey(words.folder, ["the cat sat on the mat"], **WRITES)
    for row in survey.writes.to_pylist():
        assert (row["bits"], row["low"], row["sure"], row["windows"]) == (None, None, False, 0)
