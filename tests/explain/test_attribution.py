"""Attributions: DecompX and gradients, shares, kappa, pairs, one target against another; what is masked for real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional

import commands
import headscope as hs
from explain.test_effects import number
from explain.tops import TEXT, readable
from headscope.errors import CheckpointError, InputError, NoteWarning, TraceError, UnsupportedError
from headscope.explain.attribution import top_gradient
from headscope.explain.propagation import hold
from headscope.explain.scorers import Pooled
from headscope.runs.texts import as_input, as_traced
from naive_layers import MINILM
from peak import Peak
from random_models import BERTS_LAYER, FAMILIES, Made, run


class Naive:
    """A model's weights by role in fp64, and what transformers computed for a text."""

    def __init__(self, model: hs.Model, module: Any, ids: list[int]) -> None:
        self.model = model
        outputs = run(module, [ids])
        self.attentions = [item[0].double().numpy() for item in outputs.attentions]
        self.states = [item[0].double().numpy() for item in outputs.hidden_states]
        self.heads = model.anatomy.known().heads

    def weight(self, role: str, layer: int | None = None) -> np.ndarray:
        return np.asarray(self.model.checkpoint.read(self.model.anatomy.parameter(role, layer).stored), dtype=float)

    def linear(self, shares: np.ndarray, role: str, layer: int | None = None) -> np.ndarray:
        """On the last axis; the bias goes to the last share."""
        out = shares @ self.weight(f"{role}.weight", layer).T
        out[:, -1] += self.weight(f"{role}.bias", layer)
        return out

    def norm(self, shares: np.ndarray, role: str, layer: int | None = None) -> np.ndarray:
        whole = shares.sum(1)
        deviation = np.sqrt(whole.var(-1) + self.model.anatomy.setting("norm_eps"))[:, None, None]
        out = (shares - shares.mean(-1, keepdims=True)) / deviation * self.weight(f"{role}.weight", layer)
        out[:, -1] += self.weight(f"{role}.bias", layer)
        return out

    def activation(self, shares: np.ndarray, function: Any) -> np.ndarray:
        whole = shares.sum(1)
        return shares * (function(torch.tensor(whole)).numpy() / whole)[:, None]


def decompx(naive: Naive) -> np.ndarray:
    """(tokens, tokens + 1, d_model): the shares of the last hidden state, the biases' last; the paper's equations."""
    x = naive.states[0]
    shares = np.zeros((len(x), len(x) + 1, x.shape[1]))
    shares[np.arange(len(x)), np.arange(len(x))] = x
    for layer, p in enumerate(naive.attentions):
        values = naive.linear(shares, "layer.value", layer)
        split = values.reshape(*values.shape[:2], naive.heads, -1)
        mixed = np.einsum("hij,jkhd->ikhd", p, split).reshape(values.shape)
        shares = shares + naive.linear(mixed, "layer.attention_output", layer)
        shares = naive.norm(shares, "layer.attention_norm", layer)
        middle = naive.activation(naive.linear(shares, "layer.ffn_in", layer), torch.nn.functional.gelu)
        shares = naive.norm(naive.linear(middle, "layer.ffn_out", layer) + shares, "layer.output_norm", layer)
        np.testing.assert_allclose(shares.sum(1), naive.states[layer + 1], atol=1e-4)
    return shares


def by_ratios(model: hs.Model, target: Any, text: str = TEXT) -> tuple[np.ndarray, float]:
    """The scores and the biases' row with activations held at their ratios, as the paper holds them."""
    held = hold(model.encoder, as_input(as_traced(model, text).encoded), slopes="ratio")
    g, on_top = top_gradient(model, target, held.last, slopes="ratio")
    scores, below = held.parts(g)
    return scores, below + on_top


@pytest.mark.parametrize("stem", BERTS_LAYER)
def test_decompx_is_the_papers_forward_propagation_of_shares(tmp_path: Path, stem: str) -> None:
    field = "activation" if stem == "DistilBert" else "hidden_act"
    checkpoint = readable(tmp_path, stem, "ForMaskedLM", **{field: "gelu"})
    model = hs.open(tmp_path)
    result = model.attribute(TEXT, check=False)
    naive = Naive(model, checkpoint.module, list(model.trace(TEXT).ids))
    row = result.target.row
    scores, rest = by_ratios(model, result.target)
    middle = naive.linear(decompx(naive)[row : row + 1], "masked_lm.transform")
    top = naive.norm(naive.activation(middle, torch.nn.functional.gelu), "masked_lm.norm")[0]
    expected = top @ naive.weight("masked_lm.decoder")[result.target.index]
    np.testing.assert_allclose(scores, expected[:-1], atol=2e-4)
    bias = naive.weight("masked_lm.bias")[result.target.index]
    assert rest == pytest.approx(expected[-1] + bias, abs=2e-4)


def test_all_minilm() -> None:
    """DecompX of a real model's vector, by the naive formula."""
    module = transformers.AutoModel.from_pretrained(MINILM, attn_implementation="eager").eval()
    model, text = hs.open(MINILM), "She took off her hat and sat down, tired."
    naive = Naive(model, module, list(model.trace(text).ids))
    result = model.attribute(text, check=False)
    expected = decompx(naive).mean(0) @ result.target.direction / result.target.length
    scores, rest = by_ratios(model, result.target, text)
    np.testing.assert_allclose(scores, expected[:-1], atol=2e-5)
    assert rest == pytest.approx(expected[-1], abs=2e-5)
    assert result.scores.sum() + result.rest == pytest.approx(1, abs=2e-5)


def test_memory_grows_with_the_text_and_not_with_its_square(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DecompX' shares of 240 tokens would be 240 x 240 x 64 numbers, 15 MB."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "max_position_embeddings": 256}
    readable(tmp_path, "Bert", "ForSequenceClassification", **sizes)
    model = hs.open(tmp_path)
    model.attribute("the cat", check=False)
    for place in ("headscope.attention.scores.TILE_CELLS", "headscope.explain.residual.TILE_CELLS"):
        monkeypatch.setattr(place, 1 << 12)
    with Peak() as half:
        model.attribute("cat " * 118, check=False)
    with Peak() as whole:
        model.attribute("cat " * 238, check=False)
    assert whole.bytes < 240 * 240 * 64 * 4 / 3
    assert whole.bytes < 2.2 * half.bytes


def test_an_output_that_is_no_number_is_refused(tmp_path: Path) -> None:
    checkpoint = readable(tmp_path, "Bert", "ForSequenceClassification")
    with torch.no_grad():
        checkpoint.module.classifier.bias[1] = float("nan")
    checkpoint.module.save_pretrained(tmp_path)
    model = hs.open(tmp_path)
    for explain in (lambda: model.attribute(TEXT, 1), lambda: model.effects(TEXT, 1), lambda: model.predict(TEXT)):
        with pytest.raises(CheckpointError, match=r"not a number|is nan|NaN or infinite"):
            explain()


def test_a_head_that_is_no_number_is_told_by_no_answer(tmp_path: Path) -> None:
    """A query that is NaN: what rests on it is refused, or NaN; it is no score, no effect, no share that is kept."""
    checkpoint = readable(tmp_path, "Bert", "ForMaskedLM")
    with torch.no_grad():
        checkpoint.module.bert.encoder.layer[1].attention.self.query.weight[0, 0] = float("nan")
    checkpoint.module.save_pretrained(tmp_path)
    trace = hs.open(tmp_path).trace(TEXT)
    for ask in (lambda: trace[1, 0].why(1, 2), lambda: trace[0, 0].promotes(1), lambda: trace[2].promotes(1)):
        with pytest.raises(CheckpointError, match="NaN or infinite"):
            ask()
    kept = trace.follow(1).kept
    assert np.isnan(kept).tolist() == [False, True, True]
    np.testing.assert_allclose(kept, 1 - trace.mixing_ratio().array[:, 1], rtol=1e-5)
    found = trace.findings()
    assert any(finding.kind == "link" for finding in found)
    assert all(np.isfinite([*finding.numbers.values()]).all() for finding in found)


def test_a_text_s_vector_is_of_what_the_model_takes_and_a_word_has_a_place(model: hs.Model) -> None:
    for words in ("[MASK] " + "cat " * 70, "the cat"):
        with pytest.raises(InputError, match=r"73 tokens|no \[MASK\]"):
            model.attribute(words, "mat")
    with pytest.warns(NoteWarning, match="cut to 64 tokens"):
        assert "from 72 to 64 tokens" in " ".join(model.attribute("cat " * 70).notes)


def test_the_distance_of_a_vector_from_itself_has_no_slope(tmp_path: Path) -> None:
    readable(tmp_path, "Bert", "Model")
    with pytest.raises(InputError, match="slope 0"):
        hs.open(tmp_path).attribute(TEXT, ("embedding_distance",))


GATED = ("ModernBert", "NomicBert", "Gte", "EuroBert")
DOWN = (".Wo", ".fc2", ".down_proj")
"""Ends of the names of the Linear behind a gate."""
CASES: list[tuple[str, dict[str, Any]]] = [
    *((stem, {}) for stem in FAMILIES),
    ("RoFormer", {"rotary_value": True}),
    ("DebertaV2", {"conv_kernel_size": 3, "conv_act": "gelu", "conv_groups": 1}),
    ("Esm", {"position_embedding_type": "absolute"}),
]


@contextmanager
def held_by_autograd(module: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Autograd takes weights and norms' deviations for constants, and half of the slope of a gate's product."""
    softmax, rsqrt = functional.softmax, torch.rsqrt

    def layer_norm(x: torch.Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        deviation = torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + eps).detach()
        y = (x - x.mean(-1, keepdim=True)) / deviation * weight
        return y if bias is None else y + bias

    with monkeypatch.context() as patch:
        patch.setattr(functional, "softmax", lambda *given, **named: softmax(*given, **named).detach())
        patch.setattr(functional, "layer_norm", layer_norm)
        patch.setattr(torch, "rsqrt", lambda x: rsqrt(x).detach())
        hooks = [
            part.register_forward_pre_hook(lambda _, given: (0.5 * given[0] + 0.5 * given[0].detach(),))
            for name, part in module.named_modules()
            if type(module).__name__.startswith(GATED) and name.endswith(DOWN) and "mlp" in name
        ]
        yield
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("suffix", ["ForMaskedLM", "ForSequenceClassification"])
@pytest.mark.parametrize(("stem", "config"), CASES, ids=[f"{stem}{'+' * bool(config)}" for stem, config in CASES])
def test_shares_are_autograds_of_the_held_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stem: str, config: dict[str, Any], suffix: str
) -> None:
    module = readable(tmp_path, stem, suffix, **config).module
    model = hs.open(tmp_path)
    result = model.attribute(TEXT, check=False)
    assert result.target.kind == ("word" if suffix == "ForMaskedLM" else "class")
    with held_by_autograd(module, monkeypatch):
        outputs = module(torch.tensor([result.axis.ids]), output_hidden_states=True)
        place = (0, result.target.index) if suffix != "ForMaskedLM" else (0, result.target.row, result.target.index)
        number = outputs.logits[place]
        (slope,) = torch.autograd.grad(number, outputs.hidden_states[0])
        total = number.item()
    expected = (slope * outputs.hidden_states[0])[0].sum(-1).detach().numpy()
    np.testing.assert_allclose(result.scores, expected, atol=1e-5)
    assert result.total == pytest.approx(total, abs=1e-5)
    assert result.scores.sum() + result.rest == pytest.approx(total, abs=1e-5)


@pytest.mark.parametrize("slopes", ["tangent", "ratio"])
@pytest.mark.parametrize(("stem", "config"), CASES, ids=[f"{stem}{'+' * bool(config)}" for stem, config in CASES])
def test_forward_and_backward_agree_and_are_complete(
    tmp_path: Path, stem: str, config: dict[str, Any], slopes: str
) -> None:
    readable(tmp_path, stem, "Model", **config)
    model = hs.open(tmp_path)
    encoded = as_traced(model, TEXT).encoded
    held = hold(model.encoder, as_input(encoded), slopes=slopes)
    shares = held.shares()
    assert shares.shape == (len(encoded) + 1, *held.last.shape)
    np.testing.assert_allclose(shares.sum(0), held.last, atol=1e-5 * max(1, np.abs(shares).sum(0).max()))
    for layer, kept in enumerate(held.layers[1:], 1):
        np.testing.assert_allclose(held.shares([2], below=layer).sum(0)[0], kept.x[2], atol=1e-4)
    direction = np.random.default_rng(0).normal(size=held.last.shape).astype(np.float32)
    scores, rest = held.parts(direction)
    along = (shares * direction).sum((1, 2))
    np.testing.assert_allclose([*scores, rest], along, atol=1e-4)
    both, sums = held.back(np.stack([direction, 2 * direction]))
    np.testing.assert_allclose((both[1] * held.embedded).sum(-1), 2 * scores, atol=1e-4)
    np.testing.assert_allclose(sums, [rest, 2 * rest], atol=1e-4)
    groups = [range(4), range(4, len(encoded))]
    mean = Pooled(np.full((1, len(encoded)), 1 / len(encoded), np.float32))
    pools = held.shares(groups=groups, top=mean)
    np.testing.assert_allclose(pools[0, 0], shares[:4].sum(0).mean(0), atol=1e-5)
    np.testing.assert_allclose(pools[2, 0], shares[-1].mean(0), atol=1e-5)


@pytest.mark.parametrize(("stem", "pooling"), [("ModernBert", "cls"), ("ModernBert", "mean"), ("EuroBert", "late")])
def test_a_classifier_that_reads_all_tokens(tmp_path: Path, stem: str, pooling: str) -> None:
    module = readable(tmp_path, stem, "ForSequenceClassification", classifier_pooling=pooling).module
    result = hs.open(tmp_path).attribute(TEXT, "good", check=False)
    with torch.no_grad():
        expected = float(module(torch.tensor([result.axis.ids])).logits[0, 2])
    assert result.total == pytest.approx(expected, abs=1e-5)
    assert result.gap == pytest.approx(0, abs=1e-5)
    assert (result.target.row is None) == (pooling != "cls")


def test_a_form_without_a_rule_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readable(tmp_path, "Bert", "Model")
    model = hs.open(tmp_path)
    monkeypatch.setattr("headscope.explain.propagation.RULES", {})
    with pytest.raises(UnsupportedError, match="form post_norm, and there is no rule"):
        model.attribute(TEXT)


def test_kappa_is_1_where_nothing_cancels_and_grows_with_what_does(model: hs.Model) -> None:
    result = model.attribute(TEXT, check=False)
    size = np.abs(result.scores).sum() + abs(result.rest)
    assert result.kappa == pytest.approx(size / abs(result.total))
    assert result.kappa >= 1


def test_the_strongest_words_are_masked_for_real(minilm: hs.Model) -> None:
    text = "She took off her untranslatable hat. Then she sat down, tired."
    result = minilm.attribute(text, ("similarity", "A woman removes her cap."))
    words = result.parts()
    assert [part.label for part in words][:3] == ["[CLS]", "She", "took"]
    assert sum(part.share for part in words) == pytest.approx(result.scores.sum())
    assert [part.label for part in result.checks] == [
        part.label for part in sorted(words, key=lambda part: -abs(part.share)) if not part.special
    ][:3]
    trace = minilm.trace(text)
    for part in result.checks:
        ids = [103 if at in part.tokens else index for at, index in enumerate(trace.ids)]
        last = minilm.trace(ids=ids).outputs["last_hidden_state"].array.astype(float).mean(0)
        cosine = last @ result.target.direction / np.linalg.norm(last)
        assert part.change == pytest.approx(result.total - cosine, abs=1e-5)
    sentences = [part.label for part in result.parts("sentence") if not part.special]
    assert sentences == ["She took off her untranslatable hat.", "Then she sat down, tired."]
    assert any(len(part.tokens) > 1 for part in words)
    assert minilm.attribute(text, check=False).checks == ()
    with pytest.raises(InputError, match="no 'letter'"):
        result.parts("letter")


@pytest.mark.parametrize("stem", ["Bert", "ModernBert", "DebertaV2"])
def test_one_target_against_another_is_the_difference_of_both(tmp_path: Path, stem: str) -> None:
    for folder, task in (
        ("words", "MaskedLM"),
        ("classes", "SequenceClassification"),
        ("labels", "TokenClassification"),
    ):
        readable(tmp_path / folder, stem, f"For{task}")
    cases: list[tuple[str, Any, Any]] = [
        ("words", "cat", "mat"),
        ("classes", "good", "bad"),
        ("classes", 1, ("class", 0)),
        ("labels", ("token", 4, "good"), ("token", 4, "bad")),
        ("words", ("similarity", "the dog"), ("similarity", "her hat")),
    ]
    for folder, a, b in cases:
        model = hs.open(tmp_path / folder)
        both, one, other = (model.attribute(TEXT, wanted, check=False) for wanted in ((a, b), a, b))
        for single in (one, other):
            assert single.total == pytest.approx(number(model, single.target, model.trace(TEXT), 1.0), abs=1e-5)
            assert single.scores.sum() + single.rest == pytest.approx(single.total, abs=1e-4)
        assert both.total == pytest.approx(one.total - other.total, abs=1e-5)
        np.testing.assert_allclose(both.scores, one.scores - other.scores, atol=1e-5)
        assert both.gap == pytest.approx(0, abs=1e-5)
        assert " less " in str(both.target)
        change, one_s, other_s = (model.effects(TEXT, wanted).change for wanted in ((a, b), a, b))
        np.testing.assert_allclose(change, one_s - other_s, atol=1e-5)
    with pytest.raises(InputError, match="are the same"):
        hs.open(tmp_path / "words").attribute(TEXT, ("cat", "cat"))
    with pytest.raises(InputError, match="not read at the same token"):
        hs.open(tmp_path / "labels").attribute(TEXT, (("token", 4, "good"), ("token", 5, "bad")))


def test_the_prediction_and_its_runner_up(classes: Made) -> None:
    model = hs.open(classes.folder)
    result = model.attribute(TEXT, "bad", check=False)
    logits = model.trace(TEXT).outputs["logits"].array.astype(float)
    shares = np.exp(logits) / np.exp(logits).sum()
    order = np.argsort(-shares)[:2]
    assert [choice.label for choice in result.prediction] == [("bad", "fair", "good")[at] for at in order]
    np.testing.assert_allclose([choice.share for choice in result.prediction], shares[order], atol=1e-6)
    assert model.attribute(TEXT, ("embedding",), check=False).prediction == ()


SENTENCE = "The animal didn't cross the street because it was too tired."


@pytest.mark.parametrize("stem", FAMILIES)
def test_pairs_add_up_to_the_score_over_the_mean_of_other_keys(tmp_path: Path, stem: str) -> None:
    readable(tmp_path, stem, "Model")
    trace = hs.open(tmp_path).trace(TEXT)
    for layer, head, query, key in ((0, 1, 3, 2), (1, 3, 4, 6), (2, 2, 7, 7)):
        result = trace[layer, head].why(query, key, check=False)
        row = np.asarray(trace[layer, head].scores[query], dtype=float)
        seen = np.isfinite(row) & (np.asarray(trace[layer, head].weights[query]) > 0)
        others = row[seen & (np.arange(len(row)) != key)].mean()
        assert result.score == pytest.approx(row[key], abs=1e-4)
        assert result.others == pytest.approx(others, abs=1e-4)
        assert result.weight == pytest.approx(float(trace[layer, head].weights[query, key]), abs=1e-5)
        size = np.abs(result.table).sum()
        assert result.table.sum() == pytest.approx(row[key] - others, abs=1e-5 * max(1, size))
        assert result.cells.sum() + result.rest == pytest.approx(result.difference, abs=1e-5 * max(1, size))
        assert result.table.shape == (len(trace) + 2, len(trace) + 2)


def test_pairs_are_the_naive_products_of_shares(minilm: hs.Model) -> None:
    trace = minilm.trace(SENTENCE)
    query, key = trace.tokens.index("it"), trace.tokens.index("animal")
    result = trace[3, 1].why(query, key)
    held = hold(minilm.encoder, as_input(as_traced(minilm, SENTENCE).encoded))
    shares = held.shares(below=3).astype(float)
    head = minilm.layers[3].heads[1]
    q, k = shares @ head.W_Q, shares @ head.W_K
    q[-1] += head.b_Q
    k[-1] += head.b_K
    others = [at for at in range(len(trace)) if at != key]
    expected = q[:, query] @ (k[:, key] - k[:, others].mean(1)).T / np.sqrt(q.shape[-1])
    np.testing.assert_allclose(result.table[:-1, :-1], expected, atol=1e-4)
    assert not result.table[-1].any()
    best = np.unravel_index(result.cells.argmax(), result.cells.shape)
    assert best == (query, key), "as in a trial by other code, which gave 1.04"
    assert result.cells[best] == pytest.approx(1.04, abs=0.15)
    assert {part.tokens for part in result.checks} == {(query,), (key,)}
    assert result.kappa > 1
    for part in result.checks:
        ids = [103 if at in part.tokens else index for at, index in enumerate(trace.ids)]
        weights = [float(one[3, 1].weights[query][key]) for one in (trace, minilm.trace(ids=ids))]
        odds = [np.log(weight / (1 - weight)) for weight in weights]
        assert part.change == pytest.approx(odds[0] - odds[1], abs=1e-3)


def test_what_is_refused(tmp_path: Path) -> None:
    readable(tmp_path, "ModernBert", "Model")
    model = hs.open(tmp_path)
    trace = model.trace(TEXT)
    with pytest.raises(InputError, match=r"doesn't see key 11"):
        trace[1, 0].why(0, 11)
    with pytest.raises(InputError, match="token 40"):
        trace[1, 0].why(40, 0)
    with pytest.raises(TraceError, match="silenced"):
        model.trace(TEXT, ablate={(0, 1)})[1, 0].why(1, 2)
    with pytest.raises(InputError, match="sees no other key"):
        model.trace(ids=[5])[0, 0].why(0, 0)


def test_the_command_explains_one_head() -> None:
    assert "one head" in commands.run("why", "-", SENTENCE, "3", "it", "animal", code=2).output
