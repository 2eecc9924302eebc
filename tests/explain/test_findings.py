"""Findings on known maps: planted ones, heads made by hand, a real model; and none where there is nothing to say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headscope as hs
from by_hand import Projection, axis_of
from explain.tops import captured_trace, in_torch
from headscope.errors import InputError
from headscope.explain import findings as findings_module
from headscope.explain.finding_measures import surprise
from headscope.explain.findings import LEAST_SURPRISE, MOST_OF_A_KIND, findings, ranked
from headscope.heads.kinds import FINDINGS
from headscope.results.explained import Cell, Finding
from headscope.results.tokens import TokenAxis
from headscope.runs.engine import Edit
from headscope.traces import LayerRecord, Trace
from naive_layers import MINILM, minilm, naive_layers
from peak import Peak
from random_models import ids, made, random_model
from small_bert import small_bert

SENTENCE = "[CLS] the red house near old trees has red windows , many guests and doors [SEP]"
WORDS = SENTENCE.split()
TEXT = "She took off her hat and sat down, tired. Her hat was red."


def words_of(tokens: list[str]) -> TokenAxis:
    special = tuple(token.startswith("[") for token in tokens)
    words = tuple(None if flag else at for at, flag in enumerate(special))
    return axis_of(tokens, special=special, words=words)


def planted(*layers: np.ndarray, tokens: list[str] = WORDS, **more: object) -> Trace:
    """A trace whose weights are these, (heads, S, S) for each layer: q = log p and k = the unit vectors."""
    size = len(tokens)
    records = []
    for p in layers:
        q = np.log(np.maximum(p, 1e-12)).astype(np.float32)
        k = np.broadcast_to(np.eye(size, dtype=np.float32), (len(p), size, size)).copy()
        records.append(LayerRecord(q, k, None, None, 1.0))
    return Trace(model="planted", queries=words_of(tokens), layers=records, outputs={}, **more)  # type: ignore[arg-type]


def uniform(heads: int = 1, size: int = len(WORDS)) -> np.ndarray:
    return np.full((heads, size, size), 1 / size)


def mixed(pattern: np.ndarray, share: float) -> np.ndarray:
    """(1, S, S): a share of each query's weight by a pattern, where it has one; the rest even."""
    even = np.full_like(pattern, 1 / len(pattern))
    rows = pattern.any(-1, keepdims=True)
    return np.where(rows, share * pattern + (1 - share) * even, even)[None]


def looking(*pairs: tuple[str, str], share: float = 0.9, tokens: Sequence[str] = WORDS) -> np.ndarray:
    """(1, S, S): words that look at others, first places, with a share of their weight."""
    pattern = np.zeros((len(tokens), len(tokens)))
    for looks, seen in pairs:
        pattern[tokens.index(looks), tokens.index(seen)] = 1
    return mixed(pattern, share)


def resting(at: int, share: float = 0.9) -> np.ndarray:
    """(1, S, S): all words rest on one."""
    return mixed(np.tile(np.eye(len(WORDS))[at], (len(WORDS), 1)), share)


def kinds(trace: Trace) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for one in trace.findings(most=None):
        found.setdefault(one.kind, []).append(one)
    return found


@pytest.mark.parametrize(("kind", "offset"), [("previous", -1), ("next", 1), ("same", 0)])
def test_heads_that_read_a_neighbour(kind: str, offset: int) -> None:
    p = mixed(np.eye(len(WORDS), k=offset), 0.8)
    (one,) = planted(np.concatenate([uniform(), p])).findings()
    at = np.arange(len(WORDS))
    has = (at + offset >= 0) & (at + offset < len(WORDS))
    weight = p[0, at[has], at[has] + offset].mean()
    expected = p[0].mean(0)[at[has] + offset].mean()
    (cell,) = one.cells
    assert (one.kind, cell.layer, cell.head) == (kind, 0, 1)
    assert cell.key == cell.query + offset
    assert one.numbers == pytest.approx({"weight": weight, "expected": expected}, rel=1e-5)
    assert one.surprise == pytest.approx(surprise(weight, expected), rel=1e-4)
    assert str(one) == one.sentence
    where = {"previous": "the one before", "next": "the one after", "same": "themselves"}[kind]
    assert one.sentence == f"Words look at {where}: head 0.1, {weight:.0%} of its weight."


def test_the_same_word_elsewhere() -> None:
    first, second = (at for at, word in enumerate(WORDS) if word == "red")
    pattern = np.zeros((len(WORDS), len(WORDS)))
    pattern[first, second] = pattern[second, first] = 1
    p = mixed(pattern, 0.9)
    (one,) = kinds(planted(p))["same_word"]
    average = p[0].mean(0)
    assert one.numbers["weight"] == pytest.approx(p[0, first, second], rel=1e-5)
    assert one.numbers["expected"] == pytest.approx(average[[first, second]].mean(), rel=1e-5)
    assert one.sentence.startswith("A repeated word looks at its other place: head 0.0, ")


def test_links_are_between_content_words_that_are_neither_neighbours_nor_equal() -> None:
    link, neighbours, function_word = ("guests", "house"), ("old", "trees"), ("windows", "the")
    p = looking(link, neighbours, function_word, ("doors", ","), ("trees", "[SEP]"))
    (one,) = kinds(planted(p))["link"]
    (cell,) = one.cells
    assert (cell.query, cell.key) == tuple(map(WORDS.index, link))
    weight = p[0, cell.query, cell.key]
    others = np.delete(p[0, :, cell.key], cell.query).mean()
    offset = np.diagonal(p[0], cell.key - cell.query).tolist()
    offset.remove(weight)
    assert one.numbers == pytest.approx({"weight": weight, "expected": max(others, np.mean(offset))}, rel=1e-4)
    assert one.sentence == (
        f"“guests” looks at “house”: head 0.0, weight {weight:.2f}; {one.numbers['expected']:.2f} is usual for it."
    ).replace(" 0.", " .").replace("head .", "head 0.")


def test_no_link_crosses_a_hyphen_or_ends_on_a_preposition() -> None:
    words = ["[CLS]", "a", "third", "-", "party", "cell", "stands", "behind", "green", "doors", "[SEP]"]
    p = looking(("party", "third"), ("doors", "behind"), ("green", "cell"), tokens=words)
    (one,) = kinds(planted(uniform(size=len(words)), p, tokens=words))["link"]
    assert one.cells == (Cell(1, 0, words.index("green"), words.index("cell")),)


def test_of_a_pair_links_between_the_texts_come_first_those_of_equal_words_too() -> None:
    """Within a text, and where the same tokens are one text, equal words are no link."""
    first, second = "[CLS] which metal never rusts [SEP]", "gold is a soft yellow metal , people say [SEP]"
    words = f"{first} {second}".split()
    across = 2, words.index("metal", 6)
    weaker = np.zeros((len(words), len(words)))
    weaker[across] = 1
    layers = [uniform(size=len(words)), looking(("people", "gold"), tokens=words), mixed(weaker, 0.5)]
    for pair, expected in ((second[:-6], [(2, *across)]), (None, [])):
        links = kinds(planted(*layers, tokens=words, pair=pair))["link"]
        cells = [(cell.layer, cell.query, cell.key) for link in links for cell in link.cells]
        assert cells == [*expected, (1, words.index("people"), words.index("gold"))]


def test_a_head_of_the_first_layer_comes_later() -> None:
    """Before its weight is seen in context, a word can only be compared as the vocabulary has it."""
    links = kinds(planted(looking(("guests", "house")), looking(("doors", "trees"), share=0.5)))["link"]
    assert [(link.cells[0].layer, WORDS[link.cells[0].query]) for link in links] == [(1, "doors"), (0, "guests")]


def test_a_head_that_always_looks_that_far_links_nothing() -> None:
    """A link's weight is held against the head's average at the same distance too."""
    assert "link" not in kinds(planted(mixed(np.eye(len(WORDS), k=-3), 0.9)))


def test_each_link_is_told_once_in_the_head_where_it_surprises_most() -> None:
    weak, strong, middle = (looking(("guests", "house"), share=share) for share in (0.5, 0.9, 0.6))
    (one,) = kinds(planted(uniform(2), np.concatenate([weak, strong]), middle))["link"]
    assert (one.cells[0].layer, one.cells[0].head) == (1, 1)


def test_a_pair_of_words_is_told_once_however_often_the_text_has_it() -> None:
    tokens = WORDS[:-1] * 2 + WORDS[-1:]
    guests, houses = ([at for at, word in enumerate(tokens) if word == name] for name in ("guests", "house"))
    pattern = np.zeros((len(tokens), len(tokens)))
    pattern[guests, houses] = 1
    (link,) = kinds(planted(uniform(1, len(tokens)), mixed(pattern, 0.9), tokens=tokens))["link"]
    assert (link.cells[0].query, link.cells[0].key) in zip(guests, houses, strict=True)


def test_heads_that_look_alike_query_by_query() -> None:
    generator = np.random.default_rng(0)
    pattern = np.eye(len(WORDS))[generator.permutation(len(WORDS))]
    one_of, other = mixed(pattern, 0.95), mixed(pattern, 0.9)
    (one,) = kinds(planted(np.concatenate([one_of, resting(0), resting(0, 0.92)]), other))["alike"]
    assert [(cell.layer, cell.head) for cell in one.cells] == [(0, 0), (1, 0)]
    rows = np.flatnonzero([not word.startswith("[") for word in WORDS])
    sample = rows[np.linspace(0, len(rows) - 1, len(rows) // 2 * 2).astype(int)]
    overlap = np.minimum(one_of[0, sample], other[0, sample]).sum(-1).mean()
    assert one.numbers["overlap"] == pytest.approx(overlap, rel=1e-5)
    moved = np.minimum(one_of[0, sample], np.roll(other[0, sample], len(sample) // 2, axis=0)).sum(-1).mean()
    assert one.numbers["between"] == pytest.approx(moved, rel=1e-5)
    assert "look alike" in one.sentence


def test_without_W_O_sentences_speak_of_weights_only() -> None:
    (one,) = kinds(planted(np.concatenate([uniform(3), resting(-1)])))["sink"]
    share = resting(-1)[0, :, -1].mean()
    average = (share + 3 / len(WORDS)) / 4
    assert one.numbers == pytest.approx({"heads": 1, "of": 4, "weight": share, "average": average}, rel=1e-5)
    assert one.sentence == (
        f"1 of 4 heads rests on [SEP]: {share:.0%} of its weight, the average head {average:.0%} (weights only)."
    )
    assert one.tokens == ("[SEP]",)


def test_all_sinks_are_one_finding() -> None:
    below = np.concatenate([resting(-1, 0.8), uniform(2), resting(0, 0.7)])
    (one,) = kinds(planted(below, np.tile(resting(0), (2, 1, 1))))["sink"]
    assert one.sentence.startswith("4 of 6 heads rest on [CLS] or [SEP]: ")
    assert one.tokens == ("[CLS]", "[SEP]")
    assert [(cell.layer, cell.head) for cell in one.cells] == [(1, 0), (1, 1), (0, 0), (0, 3)]
    assert one.cells[0].key == 0
    assert one.cells[0].query is not None


def test_a_pronoun_says_what_it_stands_for() -> None:
    """Its link back counts more than a stronger one forwards; a word is told once; the unknown links nothing."""
    tokens = ["[CLS]", "the", "horse", "that", "[UNK]", "saw", "ran", "because", "it", "felt", "the", "rain", "[SEP]"]
    back = looking(("it", "horse"), share=0.7, tokens=tokens)
    forwards = looking(("it", "rain"), share=0.75, tokens=tokens)
    unknown = looking(("ran", "[UNK]"), ("[UNK]", "rain"), tokens=tokens)
    layers = np.concatenate([back, forwards, unknown])
    found = kinds(planted(uniform(1, len(tokens)), layers, tokens=tokens))
    (one,) = found["link"]
    assert one.sentence.startswith("“it” looks at “horse”: head 1.0, weight .7")


def test_a_link_that_moves_nothing_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against transformers' last hidden states where one query of one head can't see one key."""
    trace = hs.open(MINILM).trace("The animal did not cross the street because it was too tired.")
    first, second, *_ = [one for one in trace.findings() if one.kind == "link"]
    assert first.sentence.startswith("“it” looks at “animal”: head 3.1, weight .69")
    module = minilm()
    for one in (first, second):
        layer, head, query, key = astuple(one.cells[0])
        cut = Edit(layer, head, "edge", edge=(query, key))
        a, b = (in_torch(module, list(trace.ids), edits, [])[query] for edits in ((), (cut,)))
        assert one.numbers["moved"] == pytest.approx(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)
    monkeypatch.setattr(findings_module, "LEAST_MOVED", (first.numbers["moved"] + second.numbers["moved"]) / 2)
    assert [one.cells for one in trace.findings()[:2]] == [second.cells, first.cells]


class Writes(Projection):
    """A model whose W_O is the identity, small for one head."""

    def W_O(self, layer: int, head: int) -> np.ndarray:
        return np.eye(4, dtype=np.float32) * (0.001 if head == 2 else 1)


def test_what_heads_write() -> None:
    p = np.concatenate([resting(0), uniform(2)])
    v = np.random.default_rng(0).normal(size=(3, len(WORDS), 4)).astype(np.float32)
    v[:, 0] *= 0.01
    trace = planted(p)
    found = kinds(trace.replaced(layers=[replace(trace.layers[0], v=v)], source=Writes(3)))
    lengths = np.linalg.norm(v, axis=-1)
    written = p[0] * lengths[0]
    (rests,) = found["sink"]
    assert rests.numbers["written"] == pytest.approx((written[:, 0] / written.sum(-1)).mean(), rel=1e-4)
    assert rests.sentence.endswith(" of what it writes.")
    long = np.linalg.norm(p @ v, axis=-1).mean(-1) * [1, 1, 0.001]
    (silent,) = [one for one in found["negligible"] if one.cells[0].head == 2]
    assert silent.numbers == pytest.approx({"length": long[2], "ratio": long[2] / long.mean()}, rel=1e-4)
    assert "writes next to nothing" in silent.sentence


def test_nothing_is_said_where_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert planted(uniform(4), uniform(4)).findings() == ()
    for weights in (uniform(2, 3), np.eye(3)[None]):
        assert planted(weights, tokens=["[CLS]", "house", "[SEP]"]).findings() == ()
    checkpoint = made(tmp_path, "Bert")
    module = random_model("Bert")
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if ".query." in name:
                parameter.zero_()
    module.save_pretrained(tmp_path)
    model = hs.open(checkpoint.folder)
    assert model.trace(ids=ids(20)).findings() == ()
    assert model.trace(ids=[7]).findings() == ()


def test_heads_made_by_hand(tmp_path: Path) -> None:
    trace = hs.open(small_bert(tmp_path)).trace("the cat sat on the mat and the dog sat down.")
    found = kinds(trace)
    table = trace.statistics(["previous", "same", "next"])
    for kind, place in {"previous": (0, 0), "same": (0, 1), "next": (1, 0)}.items():
        (one,) = found[kind]
        assert (one.cells[0].layer, one.cells[0].head) == place
        assert one.numbers["weight"] == pytest.approx(float(table[kind][place]), abs=1e-4)
    only = trace.findings(layers=[1])
    assert {cell.layer for one in only for cell in one.cells} == {1}
    silenced = hs.open(tmp_path).trace(TEXT, ablate={(0, 0)}).findings()
    assert all((cell.layer, cell.head) != (0, 0) for one in silenced for cell in one.cells)


def test_a_real_model_against_transformers() -> None:
    """all-MiniLM-L6-v2: shares of weights and of norms of each resting head, from eager attention in fp64."""
    trace = hs.open(MINILM).trace("She took off her hat and sat down, tired.")
    found = kinds(trace)
    with torch.no_grad():
        layers = naive_layers(minilm(), trace.ids)
        (one,) = found["sink"]
        lengths = [layers[cell.layer].sent[cell.head].norm(dim=-1) for cell in one.cells]
        weight = [float(layers[cell.layer].p[cell.head, :, 0].mean()) for cell in one.cells]
        assert one.numbers["weight"] == pytest.approx(np.mean(weight), abs=1e-5)
        written = [float((length[:, 0] / length.sum(-1)).mean()) for length in lengths]
        assert one.numbers["written"] == pytest.approx(np.mean(written), abs=1e-5)
        resting = sum(int((layer.p[:, :, 0].mean(-1) > 0.5).sum()) for layer in layers)
        assert one.numbers["heads"] == resting
        for one in found["previous"]:
            weights = layers[one.cells[0].layer].p[one.cells[0].head]
            assert one.numbers["weight"] == pytest.approx(float(weights.diagonal(-1).mean()), abs=1e-5)
    assert len(trace.findings()) == 5
    assert [one.kind for one in trace.findings()[-3:]] == ["previous", "next", "sink"]


def test_a_captured_model_says_the_same_as_an_opened_one(tmp_path: Path) -> None:
    checkpoint = made(tmp_path, "Bert")
    text = ids(16)
    live, opened = captured_trace(checkpoint.module, text), hs.open(tmp_path).trace(ids=text)
    for one, other in zip(live.findings(), opened.findings(), strict=False):
        assert one.kind == other.kind
        assert one.surprise == pytest.approx(other.surprise, abs=1e-3)
    causal = captured_trace(random_model("Bert", is_decoder=True), text)
    assert all(one.kind in {*FINDINGS, "sink"} for one in causal.findings())


def test_small_blocks_give_the_same_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = hs.open().trace(TEXT)
    whole = [one.as_dict() for one in trace.findings()]
    for name in ("residual", "finding_measures"):
        monkeypatch.setattr(f"headscope.explain.{name}.TILE_CELLS", 1)
    again = [one.as_dict() for one in trace.findings()]
    assert [one["sentence"] for one in again] == [one["sentence"] for one in whole]
    for one, other in zip(whole, again, strict=True):
        assert other["surprise"] == pytest.approx(one["surprise"], rel=1e-4)


def test_they_are_json_and_ranked() -> None:
    found = hs.open().trace(TEXT).findings()
    assert json.loads(json.dumps([one.as_dict() for one in found]))[0]["sentence"] == found[0].sentence
    assert all(one.surprise >= LEAST_SURPRISE for one in found)
    many = [Finding("link", str(at), {}, (), 1.0 + at / 10) for at in range(12)]
    more = [Finding(kind, kind, {}, (), 0.2) for kind in ("alike", "sink", "next", "previous")]
    order = [one.sentence for one in ranked([*many, *more])]
    assert order[:8] == ["0", "1", "previous", "next", "sink", "alike", "2", "3"]
    assert len(order) == MOST_OF_A_KIND + 4


def test_most_says_how_many() -> None:
    trace = hs.open(MINILM).trace(TEXT)
    every = trace.findings(most=None)
    assert trace.findings() == every[:5]
    assert trace.findings(most=0) == ()
    with pytest.raises(InputError, match="most is -1"):
        trace.findings(most=-1)


@given(st.floats(0, 1), st.floats(0, 1))
def test_surprise_is_a_divergence(share: float, expected: float) -> None:
    assert surprise(share, expected) >= -1e-12
    assert surprise(share, share) == pytest.approx(0, abs=1e-9)


def test_cross_attention_has_neither_neighbours_nor_links() -> None:
    p = np.random.default_rng(0).dirichlet([0.05] * len(WORDS), size=(3, 5))
    q = np.log(np.maximum(p, 1e-12)).astype(np.float32)
    k = np.broadcast_to(np.eye(len(WORDS), dtype=np.float32), (3, len(WORDS), len(WORDS))).copy()
    layers, five = [LayerRecord(q, k, None, None, 1.0)], ["some", "other", "words", "stand", "here"]
    trace = Trace(model="crossed", queries=axis_of(five), keys=axis_of(WORDS), layers=layers, outputs={})
    assert {one.kind for one in findings(trace)} <= {"sink", "alike"}


def test_memory_grows_with_the_text_and_not_with_its_square() -> None:
    generator = np.random.default_rng(0)
    tokens = [f"word{at}" for at in range(3000)]
    q, k, v = (generator.normal(size=(2, 3000, 4)).astype(np.float32) for _ in range(3))
    layers = [LayerRecord(q, k, v, None, 0.5), LayerRecord(k, q, v, None, 0.5)]
    trace = Trace(model="long", queries=words_of(tokens), layers=layers, outputs={}, source=Writes(3))
    assert trace.layers[0].lse.shape == (2, 3000)
    with Peak() as peak:
        trace.findings()
        trace.rollout(to=5)
        trace.mixing_ratio("Attn-N")
    assert peak.bytes < 3000 * 3000 * 4 / 2
