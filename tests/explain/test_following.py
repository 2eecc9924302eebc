"""A word followed through the layers, against every vector of every head written out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import headscope as hs
from headscope.errors import InputError, TraceError, UnsupportedError
from headscope.results.followed import Followed
from naive_layers import MINILM, NaiveLayer, minilm, naive_layers
from random_models import ids, made, random_model

TEXT = "The animal did not cross the street because it was too tired."
IT, ANIMAL = 9, 2


@pytest.fixture(scope="module")
def trace() -> hs.Trace:
    return hs.open(MINILM).trace(TEXT)


def naive_shares(layer: NaiveLayer) -> tuple[np.ndarray, np.ndarray]:
    """(heads, S, S), r_i F_ij^h . A_i / |A_i|^2 and 0 where j = i; and (S,), 1 - r_i."""
    before = layer.sent.sum((0, 2)) + layer.dense.bias + layer.x
    deviation = (before.var(-1, unbiased=False) + layer.norm.eps).sqrt()
    F = (layer.sent - layer.sent.mean(-1, keepdim=True)) / deviation[:, None, None] * layer.norm.weight
    F = F * (1 - torch.eye(len(layer.x)))[None, :, :, None]
    A = F.sum((0, 2))
    r = layer.ratios("AttnResLn-N")
    shares = torch.einsum("hijm,im->hij", F, A) * (r / A.square().sum(-1))[None, :, None]
    return shares.detach().numpy(), (1 - r).detach().numpy()


@pytest.mark.parametrize("name", ["Bert", "DistilBert", "Electra", "MiniLM"])
def test_shares_are_those_of_every_vector(name: str, tmp_path: Path, trace: hs.Trace) -> None:
    real = name == "MiniLM"
    one = trace if real else hs.open(made(tmp_path, name).folder).trace(ids=ids(13))
    with torch.no_grad():
        layers = naive_layers(minilm() if real else random_model(name).double(), one.ids)
    for token in (0, 5, len(one) - 1):
        followed = one.follow(token)
        for at, layer in enumerate(layers):
            shares, kept = naive_shares(layer)
            np.testing.assert_allclose(followed.shares[at], shares[:, token], atol=2e-5)
            assert followed.kept[at] == pytest.approx(kept[token], abs=2e-5)
            np.testing.assert_allclose(followed.weights[at], layer.p[:, token].detach(), atol=2e-5)
        np.testing.assert_allclose(np.asarray(followed).sum(-1) + followed.kept, 1, atol=1e-5)


def test_what_is_looked_at_hardest_brings_less(trace: hs.Trace) -> None:
    """3.1 gives “animal” .69 and brings .06; 5.11 gives .66 and brings .19, which no weight says."""
    followed = trace.follow(IT)
    assert [round(float(followed.weights[at][ANIMAL]), 2) for at in ((3, 1), (5, 11))] == [0.69, 0.66]
    assert [round(float(followed.shares[at][ANIMAL]), 2) for at in ((3, 1), (5, 11))] == [0.06, 0.19]
    np.testing.assert_allclose(followed.kept, [0.69, 0.73, 0.68, 0.70, 0.74, 0.62], atol=5e-3)
    assert followed.sentence == (
        "“it” takes in “tired” in layer 2, then “animal”, most in layer 5 through head 5.11. It keeps 0.62 to 0.74 of "
        "itself in a layer; “animal” brings 0.22 there, 0.19 through that head."
    )
    (link, *_) = trace.findings()
    assert link.sentence.endswith("It brings .06 of the new “it”; 5.11 brings .19.")
    assert [(cell.layer, cell.head, cell.query, cell.key) for cell in link.cells] == [(3, 1, 9, 2), (5, 11, 9, 2)]
    frame = followed.to_pandas()
    best = frame.loc[frame["share"].idxmax()]
    assert (best["layer"], best["token"], best["head"]) == (5, "animal", 11)
    assert len(frame) == 6 * 14


def test_a_notebook_shows_layers_and_tokens(trace: hs.Trace, tmp_path: Path) -> None:
    """Through IPython's formatter; and the figure's numbers are those of the shares."""
    from IPython.core.formatters import DisplayFormatter

    one = trace.follow(IT)
    shown, _ = DisplayFormatter().format(one)
    head, *rows = [re.findall(r"<t[hd][^>]*>(.*?)</", row) for row in re.findall(r"<tr>.*?</tr>", shown["text/html"])]
    assert head == ["layer", *trace.tokens]
    assert [row[1 + ANIMAL] for row in rows[3:]] == ["0.09 by 3.1", "0.09 by 4.4", "0.22 by 5.11"]
    assert [row[1 + IT] for row in rows] == [f"{share:.2f} kept" for share in one.kept]
    axes = one.plot(save=tmp_path / "one.svg")
    drawn = {text.get_position(): text.get_text() for text in axes.texts}
    assert (drawn[2, 5], drawn[9, 5]) == (".22\n5.11", ".62")
    assert len(drawn) == 6 + (np.asarray(one) >= 0.02).sum()


def test_a_silenced_head_brings_nothing(trace: hs.Trace) -> None:
    followed = hs.open(MINILM).trace(TEXT, ablate={(5, 11)}).follow(IT)
    assert not followed.shares[5, 11].any()
    np.testing.assert_allclose(np.asarray(followed).sum(-1) + followed.kept, 1, atol=1e-5)


def test_a_live_module_with_its_hidden_states_gives_the_same(trace: hs.Trace) -> None:
    module = transformers.AutoModel.from_pretrained(MINILM).eval()
    with hs.capture(module) as captured:
        module(torch.tensor([trace.ids]), output_hidden_states=True)
    words = transformers.AutoTokenizer.from_pretrained(MINILM)
    for live in (captured.trace, hs.trace(module, TEXT, tokenizer=words, hidden_states=True)):
        np.testing.assert_allclose(live.follow(IT).shares, trace.follow(IT).shares, atol=1e-4)
    with pytest.raises(TraceError, match="hidden_states=True"):
        hs.trace(module, TEXT, tokenizer=words).follow(IT)


def followed(totals: list[list[float]], places: tuple[int, ...], words: tuple[str, ...]) -> Followed:
    """One head; the first token is followed."""
    shares = np.array(totals, dtype=np.float32)[:, None]
    kept = 1 - shares.sum((1, 2))
    return Followed(0, words, words, places, tuple(range(len(totals))), kept, shares, np.abs(shares))


def test_the_sentence_counts_words_and_leaves_marks_out() -> None:
    words = ("it", "play", "##ing", ".", "dog")
    one = followed([[0, 0.1, 0.1, 0.5, 0.15], [0, 0, 0, 0.5, 0.1]], (0, 1, 1, -1, 2), words)
    assert one.brought()[0].word == "dog"  # 0.25 in both layers, "play" 0.2 in one
    assert one.sentence == (
        "“it” takes in “dog”, most in layer 0 through head 0.0. It keeps 0.15 to 0.40 of itself in a layer; "
        "“dog” brings 0.15 there, 0.15 through that head."
    )
    (play,) = [found for found in one.brought() if found.word == "play"]
    assert play.layer == 0
    assert play.share == pytest.approx(0.2)


def test_next_to_nothing_is_said_as_such() -> None:
    one = followed([[0, 0.01], [0, 0.012]], (0, 1), ("it", "dog"))
    assert one.sentence == "“it” keeps 0.99 of itself; no word brings as much as 0.02."
    assert followed([[0]], (0,), ("it",)).sentence == "“it” keeps 1.00 of itself; no word brings as much as 0.02."


def test_what_can_t_be_followed_is_refused(trace: hs.Trace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="token 15"):
        trace.follow(15)
    with pytest.raises(TraceError, match="needs the model's weights"):
        hs.load(trace.save(tmp_path / "alone.safetensors")).follow(1)
    before = hs.open(made(tmp_path, "ModernBert").folder).trace(ids=ids(9))
    with pytest.raises(UnsupportedError, match="norms come before its sums"):
        before.follow(1)
    assert all("brings" not in finding.numbers for finding in before.findings())


def test_one_token_keeps_all_of_itself(tmp_path: Path) -> None:
    one = hs.open(made(tmp_path, "Bert").folder).trace(ids=ids(1)).follow(0)
    np.testing.assert_array_equal(one.kept, 1)
    assert not one.shares.any()
