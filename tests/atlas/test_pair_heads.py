"""Heads for marked pairs, held against loops over whole maps of transformers' eager attention."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from surveying import TREEBANK, Naive, read_trees

import headscope as hs
from commands import run
from headscope.atlas.pair_files import read_marked
from headscope.errors import InputError
from peak import Peak
from random_models import made
from tokenizer_folders import RESIDUES

COUNT = 8
CHOSEN = 4
WEIGHT = 4e-6
"""What rounding may change in a weight: scores of up to 30 are rounded at 2e-6 each, by us and by transformers."""


def arcs(heads: list[int], relations: list[str]) -> list[tuple[int, int]]:
    pairs = zip(heads, relations, strict=True)
    return [(at, head - 1) for at, (head, of) in enumerate(pairs) if head and of != "punct"]


@pytest.fixture(scope="module")
def documents(naive: Naive) -> list[tuple[list[str], list[tuple[int, int]]]]:
    """Sentences and their arcs, by the tests' own reader."""
    return [(words, arcs(heads, relations)) for (words, heads, relations), _ in [*naive.values()][:COUNT]]


@pytest.fixture(scope="module")
def maps(naive: Naive) -> list[np.ndarray]:
    """(heads, words, words) of each document: sums over the tokens that are seen, means over those that look."""
    return [np.concatenate(looks.words) for _, looks in [*naive.values()][:COUNT]]


def corrected(head: np.ndarray) -> np.ndarray:
    """Rao et al. 2021, section 3.2, cell by cell."""
    both = head + head.T
    sums, total, count = both.sum(1), both.sum(), len(both)
    return np.array([[both[i, j] - sums[i] * sums[j] / total for j in range(count)] for i in range(count)])


def precision(scores: np.ndarray, pairs: list[tuple[int, int]], *, directed: bool, apart: int) -> float:
    """Of as many pairs as are marked, those with the highest scores: the share that is marked."""
    places = [(i, j) for i in range(len(scores)) for j in range(len(scores)) if i != j and (directed or i < j)]
    places = [(i, j) for i, j in places if abs(i - j) >= apart]
    marked = {pair if directed else (min(pair), max(pair)) for pair in pairs if abs(pair[0] - pair[1]) >= apart}
    best = sorted(places, key=lambda place: -scores[place])[: len(marked)]
    return sum(place in marked for place in best) / len(marked)


def distances(count: int, pairs: list[tuple[int, int]], offset: int, *, directed: bool, apart: int) -> float:
    """The expected precision of “the pairs whose distance is nearest to this one”, equals in any order."""
    places = [(i, j) for i in range(count) for j in range(count) if abs(i - j) >= apart and (directed or i < j)]
    marked = {pair if directed else (min(pair), max(pair)) for pair in pairs if abs(pair[0] - pair[1]) >= apart}
    wanted, hits = len(marked), 0.0
    groups: dict[int, list[tuple[int, int]]] = {}
    for i, j in places:
        groups.setdefault(abs(j - i - offset), []).append((i, j))
    for _, group in sorted(groups.items()):
        taken = min(wanted, len(group))
        hits += taken * sum(place in marked for place in group) / len(group)
        wanted -= taken
    return hits / len(marked)


@pytest.mark.parametrize(("directed", "apart"), [(False, 1), (True, 1), (False, 3)])
def test_precisions_and_choices_are_those_of_whole_maps(
    directed: bool, apart: int, documents: Any, maps: list[np.ndarray]
) -> None:
    found = hs.pair_heads("-", documents, directed=directed, apart=apart, chosen_on=CHOSEN)
    rule = {"directed": directed, "apart": apart}
    scored = [[head if directed else corrected(head) for head in heads] for heads in maps]
    alone = np.array(
        [[precision(head, pairs, **rule) for head in of] for of, (_, pairs) in zip(scored, documents, strict=True)]
    )
    table = found.table["precision"].array
    np.testing.assert_allclose(table.ravel(), alone[:CHOSEN].mean(0), atol=1e-9)
    order = np.argsort(-alone[:CHOSEN].mean(0), kind="stable")[:10]
    sums = np.array(
        [
            [precision(sum(of[head] for head in order[: k + 1]), pairs, **rule) for k in range(len(order))]
            for of, (_, pairs) in zip(scored, documents, strict=True)
        ]
    )
    best = int(sums[:CHOSEN].mean(0).argmax())
    assert [layer * table.shape[1] + head for layer, head in found.heads] == order[: best + 1].tolist()
    assert found.precision == pytest.approx(sums[CHOSEN:, best].mean())
    assert found.single == pytest.approx(alone[CHOSEN:, order[0]].mean())
    rest = sums[CHOSEN:, best]
    half = 3.182446 * rest.std(ddof=1) / math.sqrt(len(rest))  # Student's t for 3 degrees of freedom
    assert found.intervals["precision"] == pytest.approx((rest.mean() - half, rest.mean() + half), abs=1e-4)
    longest = max(len(words) for words, _ in documents)
    offsets = range(-longest + 1 if directed else 1, longest)
    by_offset = np.array(
        [[distances(len(words), pairs, offset, **rule) for offset in offsets] for words, pairs in documents]
    )
    at = int(by_offset[:CHOSEN].mean(0).argmax())
    assert found.distance == offsets[at]
    assert found.offset == pytest.approx(by_offset[CHOSEN:, at].mean())


def test_every_document_is_held_out_once(documents: Any, maps: list[np.ndarray]) -> None:
    found = hs.pair_heads("-", documents)
    rule = {"directed": False, "apart": 1}
    alone = np.array(
        [
            [precision(corrected(head), pairs, **rule) for head in of]
            for of, (_, pairs) in zip(maps, documents, strict=True)
        ]
    )
    singles = []
    for at in range(COUNT):
        others = [other for other in range(COUNT) if other % 5 != at % 5]
        singles.append(alone[at, alone[others].mean(0).argmax()])
    assert found.single == pytest.approx(np.mean(singles))
    np.testing.assert_allclose(found.table["precision"].array.ravel(), alone.mean(0), atol=1e-9)
    assert found.table["precision"].low is not None
    assert (found.documents, found.left_out) == (COUNT, 0)


def test_predictions_are_the_highest_scores_of_the_heads(documents: Any, maps: list[np.ndarray]) -> None:
    model = hs.open()
    found = hs.pair_heads(model, documents, chosen_on=CHOSEN)
    words, _ = documents[-1]
    across = found.table.across
    scores = sum(corrected(maps[-1][layer * len(across) + head]) for layer, head in found.heads)
    best = sorted(((i, j) for j in range(len(words)) for i in range(j)), key=lambda place: -scores[place])
    told = found.predict(model.trace(words=words), top=5)
    assert [(i, j) for i, j, _ in told] == best[:5]
    # A score is a sum of 2 weights of each head, and weights of two passes in fp32 differ by rounding.
    rounding = 2 * len(found.heads) * WEIGHT
    assert scores[best[4]] - scores[best[5]] > 2 * rounding
    assert [score for *_, score in told] == pytest.approx([scores[place] for place in best[:5]], abs=rounding)
    assert len(found.predict(model.trace(words=words))) == len(words)
    with pytest.raises(InputError, match="no words"):
        found.predict(model.trace(ids=[2, 3]))


def random_esm(folder: Path, **config: int) -> hs.Model:
    """A random ESM-2 with its vocabulary."""
    made(folder, "Esm", vocab_size=len(RESIDUES), **config)
    (folder / "vocab.txt").write_text("\n".join(RESIDUES))
    return hs.open(folder)


def test_heads_of_random_weights_see_nothing_but_chance(tmp_path: Path) -> None:
    """Pairs at random, of random letters: what is held out shows that the choice was worth nothing."""
    model = random_esm(tmp_path)
    random = np.random.default_rng(0)
    proteins = [
        ("".join(random.choice(list("LAGVSERTIDPKQNFYMHWC"), 24)), random.integers(0, 12, (8, 2)) + np.array([0, 12]))
        for _ in range(20)
    ]
    found = hs.pair_heads(model, [(letters, [tuple(map(int, pair)) for pair in pairs]) for letters, pairs in proteins])
    assert found.intervals["precision"][0] < found.chance
    assert found.documents == 20


def test_one_layer_is_in_memory(tmp_path: Path) -> None:
    """Three times the layers don't need more of it."""
    peaks = []
    for layers in (2, 6):
        model = random_esm(tmp_path / str(layers), max_position_embeddings=402, num_hidden_layers=layers)
        document = "LAGVSERTIDPK" * 33, [(at, at + 20) for at in range(0, 300, 10)]
        hs.pair_heads(model, [("LAGV", [(0, 2)])] * 2)
        with Peak() as peak:
            hs.pair_heads(model, [document] * 2, chosen_on=1)
        peaks.append(peak.bytes)
    assert peaks[1] < 1.3 * peaks[0]


def row_hits(cells: np.ndarray, pairs: list[tuple[int, int]], apart: int) -> list[int]:
    """Of each direction, the words with partners whose strongest other word is one of them."""
    found = []
    for way in (pairs, [(j, i) for i, j in pairs]):
        partners: dict[int, set[int]] = {}
        for i, j in way:
            if abs(i - j) >= apart:
                partners.setdefault(i, set()).add(j)
        places = range(len(cells))
        best = {i: max((j for j in places if abs(i - j) >= apart), key=lambda j: cells[i, j]) for i in partners}
        found.append(sum(best[i] in partners[i] for i in partners))
    return found


def rule_hits(count: int, pairs: list[tuple[int, int]], apart: int, looks: Any) -> list[float]:
    """The same for a rule: a word's place -> the places that it names, which count in part."""
    found = []
    for way in (pairs, [(j, i) for i, j in pairs]):
        kept = [(i, j) for i, j in way if abs(i - j) >= apart]
        hits = 0.0
        for i in {i for i, _ in kept}:
            named = looks(i, [j for j in range(count) if abs(i - j) >= apart])
            hits += sum((i, j) in kept for j in named) / max(len(named), 1)
        found.append(hits)
    return found


@pytest.mark.parametrize("apart", [1, 3])
def test_rows_are_those_of_whole_maps(apart: int, documents: Any, maps: list[np.ndarray]) -> None:
    found = hs.pair_heads("-", documents, by="row", apart=apart, chosen_on=CHOSEN)
    hits = np.array(
        [[row_hits(head, pairs, apart) for head in of] for of, (_, pairs) in zip(maps, documents, strict=True)]
    )
    queries = np.array(
        [
            [len({pair[side] for pair in pairs if abs(pair[0] - pair[1]) >= apart}) for side in (0, 1)]
            for _, pairs in documents
        ]
    )
    for at, (name, probe) in enumerate(found.directions.items()):
        alone = hits[:CHOSEN, :, at].sum(0) / queries[:CHOSEN, at].sum()
        np.testing.assert_allclose(found.table[name].array.ravel(), alone, atol=1e-9)
        best = int(alone.argmax())
        assert probe.head == divmod(best, found.table[name].array.shape[1])
        assert probe.accuracy == pytest.approx(hits[CHOSEN:, best, at].sum() / queries[CHOSEN:, at].sum())
        assert probe.intervals["accuracy"][0] < probe.accuracy < probe.intervals["accuracy"][1]
        assert probe.queries == queries[:, at].sum()
        offsets = {
            offset: [
                rule_hits(len(words), pairs, apart, lambda i, others: [j for j in others if j == i + offset])[at]  # noqa: B023
                for words, pairs in documents
            ]
            for offset in range(-60, 61)
        }
        chosen = max(offsets, key=lambda offset: (sum(offsets[offset][:CHOSEN]), -offset))
        assert probe.distance == chosen
        assert probe.offset == pytest.approx(sum(offsets[chosen][CHOSEN:]) / queries[CHOSEN:, at].sum())

        def nearest(i: int, others: list[int]) -> list[int]:
            return [j for j in others if abs(i - j) == min(abs(i - other) for other in others)]

        near = [rule_hits(len(words), pairs, apart, nearest)[at] for words, pairs in documents]
        assert probe.nearest == pytest.approx(sum(near[CHOSEN:]) / queries[CHOSEN:, at].sum())


def test_rows_hold_every_document_out_once(documents: Any, maps: list[np.ndarray]) -> None:
    found = hs.pair_heads(hs.open(), [{"words": words, "pairs": pairs} for words, pairs in documents], by="row")
    assert repr(found) == repr(hs.pair_heads("-", documents, by="row"))
    hits = np.array([[row_hits(head, pairs, 1) for head in of] for of, (_, pairs) in zip(maps, documents, strict=True)])
    queries = np.array([[len({pair[side] for pair in pairs}) for side in (0, 1)] for _, pairs in documents])
    for at, probe in enumerate(found.directions.values()):
        total = 0
        for document in range(COUNT):
            others = [other for other in range(COUNT) if other % 5 != document % 5]
            total += hits[document, hits[others, :, at].sum(0).argmax(), at]
        assert probe.accuracy == pytest.approx(total / queries[:, at].sum())
    assert len(found.to_pandas()) == len(found.table.rows())


def test_a_head_built_to_look_at_partners_is_found_by_row() -> None:
    """A previous-token head: each marked word looks at the one before it, whose weight is small in the whole text."""
    model = hs.open()
    words = ["she", "took", "off", "her", "hat", "and", "put", "it", "on", "the", "table"]
    found = hs.pair_heads(model, [(words[at:], [(4, 3)]) for at in range(4)] * 2, by="row")
    head = found.directions["forward"]
    assert head.accuracy == 1
    assert (head.distance, head.offset) == (-1, 1)
    assert head.chance < 0.2


def test_the_command(tmp_path: Path) -> None:
    shown = run("pairs", "-", TREEBANK, "--set", "chosen_on=10", "--set", "by=row", "--top", "2")
    found = hs.pair_heads("-", TREEBANK, chosen_on=10, by="row")
    layer, head = found.directions["forward"].head
    assert f"head {layer}.{head} looks most at the partner" in " ".join(shown.output.split())
    record = json.loads(run("pairs", "-", TREEBANK, "--set", "chosen_on=10", "--set", "by=row", "--json").stdout)
    assert record["schema"] == "headscope/pairs-row"
    assert record["directions"]["back"]["accuracy"] == pytest.approx(found.directions["back"].accuracy)
    only = run("pairs", "-", TREEBANK, "--set", "by=row", "--csv").stdout.splitlines()[0]
    assert only == "layer,head,forward,forward_low,forward_high,back,back_low,back_high"
    only = run("pairs", "-", TREEBANK, "--set", "relations=nsubj,obj", "--csv").stdout.splitlines()[0]
    assert only == "layer,head,precision,precision_low,precision_high"
    run("pairs", "-", TREEBANK, "--set", "by=column", code=2)
    run("pairs", "-", str(tmp_path / "none.jsonl"), code=2)


ATOM = (
    "{kind:<6}{at:>5} {atom:<4}{alternative}{residue:>3} {chain}{number:>4}    {x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00\n"
)


def protein(residues: list[tuple[str, float]], chain: str = "A") -> str:
    """Residues along a line, their C-alpha atoms far from everything."""
    lines = []
    for number, (residue, x) in enumerate(residues, 5):
        kind = "HETATM" if residue == "MSE" else "ATOM"
        atoms = [(" CA ", 0.0 if residue == "GLY" else 99.0 + 20 * number)] + [(" CB ", 0.0)] * (residue != "GLY")
        for atom, y in atoms:
            for alternative, shift in ((" ", 0.0),) if residue != "SER" else (("A", 0.0), ("B", 50.0)):
                fields = {"alternative": alternative, "residue": residue, "chain": chain, "number": number}
                lines.append(ATOM.format(kind=kind, at=1, atom=atom, x=x + shift, y=y, z=0.0, **fields))
    return "".join(lines)


def test_contacts_are_read_from_a_protein(tmp_path: Path) -> None:
    chain = [("ALA", 0.0), ("GLY", 5.0), ("MSE", 12.9), ("SER", 13.1), ("TRP", 30.0)]
    other = "MODEL        1\n" + protein(chain) + protein([("ALA", 1.0)], "B") + "ENDMDL\n" + protein(chain)
    (tmp_path / "a.pdb").write_text("HEADER    X\nHETATM    1  O   HOH A   1       0.000   0.000   0.000\n" + other)
    (one,) = read_marked(tmp_path / "a.pdb", None)
    assert "".join(one.words) == "AGMSW"
    assert one.pairs == ((0, 1), (1, 2), (2, 3))  # 5.0, 7.9 and 0.2; from G to S it is 8.1
    (tmp_path / "b.ent").write_text(protein(chain[:2]))
    assert [len(found.words) for found in read_marked(tmp_path, None)] == [5, 2]


def test_forms_of_files(tmp_path: Path, documents: Any) -> None:
    found = read_marked(TREEBANK, None)
    assert [([*one.words], [*one.pairs]) for one in found[:COUNT]] == documents
    subjects = read_marked(TREEBANK, ["nsubj"])
    assert read_marked(TREEBANK, "nsubj") == subjects
    assert read_marked(TREEBANK, "nsubj, obj") == read_marked(TREEBANK, ["nsubj", "obj"])
    rows = [tree for document in read_trees(TREEBANK) for tree in document]
    assert sum(len(one.pairs) for one in subjects) == sum(relations.count("nsubj") for *_, relations in rows)
    lines = tmp_path / "pairs.jsonl"
    lines.write_text('{"words": ["A", "cat"], "pairs": [[1, 0], [1, 0]]}\n\n{"text": "MKV", "pairs": [[0, 2]]}\n')
    assert [(one.words, one.pairs) for one in read_marked(lines, None)] == [
        (("A", "cat"), ((1, 0),)),
        (("M", "K", "V"), ((0, 2),)),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "no document has a pair"),
        ("a.jsonl", "[1]\n", "line 1 isn't a document"),
        ("a.jsonl", '{"pairs": [[0, 1]]}', "its words are None"),
        ("a.jsonl", '{"words": ["a", 3], "pairs": [[0, 1]]}', "its words are"),
        ("a.jsonl", '{"words": ["a", " "], "pairs": [[0, 1]]}', "its words are"),
        ("a.jsonl", '{"words": ["a", "b"], "pairs": [[0, 2]]}', r"\[0, 2\] is no pair of positions from 0 to 1"),
        ("a.jsonl", '{"words": ["a", "b"], "pairs": [[-1, 0]]}', "is no pair"),
        ("a.jsonl", '{"words": ["a", "b"], "pairs": [[0, 1, 1]]}', "is no pair"),
        ("a.jsonl", '{"words": ["a", "b"], "pairs": [[0, true]]}', "is no pair"),
        ("a.jsonl", '{"words": ["a", "b"], "pairs": 7}', "7 is no pair"),
        ("a.jsonl", '{"words": ["a", "b"], "pairs": [[1, 1]]}', "pairs a word with itself"),
        ("a.jsonl", b"\xff\n", "can't be read|isn't a document"),
        ("a.txt", "x", ".txt is no form of pairs"),
        ("a.pdb", "HEADER\n", "no residue has"),
        ("a.pdb", "ATOM      1  CA  ALA A   1       x.000   0.000   0.000\n", "line 1 has no coordinates"),
        ("a.pdb", "ATOM      1  CA  ALA A   1         nan   0.000   0.000\n", "line 1 has no coordinates"),
        ("missing.jsonl", None, "can't be read"),
    ],
)
def test_files_that_are_no_pairs(name: str, content: str | bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as error:
        hs.pair_heads("-", tmp_path / name)
    assert error.value.where
    assert error.value.advice


@pytest.mark.parametrize(
    ("documents", "options", "message"),
    [
        ([(["A", "cat"], [(0, 1)])], {}, "1 documents have pairs: none is left"),
        ([(["A", "cat"], [(0, 1)])] * 3, {"chosen_on": 3}, "none is left to report on"),
        ([(["A", "cat"], [(0, 1)])] * 3, {"apart": 2}, "no marked pair has tokens on both sides"),
        ([(["A", "cat"], [(0, 1)])] * 3, {"apart": 0}, "apart is 0"),
        ([(["A", "cat"], [(0, 1)])] * 3, {"relations": ["nsubj"]}, "only a treebank has relations"),
        ([(["word"] * 900, [(0, 1)])] * 2, {}, "tokens"),
        (["A cat"], {}, "'A cat' is no document with pairs"),
        ([(["A", "cat"],)], {}, "is no document with pairs"),
        ({"words": ["A", "cat"], "pairs": [[0, 1]]}, {}, "expected documents, got dict"),
        (None, {}, "expected documents, got NoneType"),
    ],
)
def test_what_leaves_nothing_to_report(documents: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        hs.pair_heads("-", documents, **options)


def test_a_word_without_a_token_is_left_out_and_counted() -> None:
    words = ["The", "\u200b", "cat", "sat"]
    found = hs.pair_heads("-", [(words, [(0, 2), (1, 2), (2, 3)])] * 2)
    assert (found.pairs, found.left_out) == (4, 2)
