"""Syntax held against a naive implementation: loops over words, on the weights of transformers' eager attention."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from surveying import OPTIONS, SENTENCES, TREEBANK, Looks, Tree, numbers_of, observed, read_trees, screen_of
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, BertTokenizerFast, GPT2Config, GPT2Model

import headscope as hs
from headscope.atlas.documents import Sentence, read_conllu
from headscope.atlas.shapes import Strongest
from headscope.atlas.syntax import DIRECTIONS, HITS, LEAST, Arcs, relations_in
from headscope.atlas.words import Tile, Words, cut_trees
from headscope.checkpoint.resolve import BUNDLED
from headscope.checkpoint.tokenizer import load_tokenizer
from headscope.heads.intervals import Moments
from headscope.heads.windows import Cutter
from headscope.results.schemas import SyntaxRow, columns
from random_models import SIZES
from tokenizer_folders import Folder, roberta_folder

SMALL = {**OPTIONS, "length": 96, "part_size": 5000}


def naive(model: Any, tokenizer: Any, documents: dict[int, list[Tree]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Relation and direction -> hits and counts of every (layer, head) by half, and the offsets."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for number, document in documents.items():
        for words, heads, relations in document:
            looks = Looks(model, tokenizer, words)
            pairs = [
                (word, head - 1, relation)
                for word, (head, relation) in enumerate(zip(heads, relations, strict=True))
                if head and looks.of[word] and looks.of[head - 1]
            ]
            for direction in DIRECTIONS:
                for word, head, relation in pairs:
                    entry = found.setdefault(
                        (relation, direction), {"hits": Counter(), "counts": [0, 0], "offsets": Counter(), "by": {}}
                    )
                    entry["counts"][number % 2] += 1
                    entry["offsets"][head - word] += 1
                    entry["by"].setdefault(number, [Counter(), 0])[1] += 1
            for layer, maps in enumerate(looks.words):
                for head_number, weights in enumerate(maps):
                    table = np.where(np.isnan(weights) | np.eye(len(words), dtype=bool), -1.0, weights)
                    for word, head, relation in pairs:
                        for direction, right in (
                            (DIRECTIONS[0], table[word].argmax() == head and table[word].max() > 0),
                            (DIRECTIONS[1], table[:, word].argmax() == head and table[:, word].max() > 0),
                        ):
                            entry = found[relation, direction]
                            entry["hits"][layer, head_number, number % 2] += int(right)
                            entry["by"][number][0][layer, head_number] += int(right)
    return found


def check(survey: hs.Survey, source: Any, corpus: Path, model: Any, tokenizer: Any, **options: Any) -> None:
    numbers = numbers_of(survey)
    documents = {numbers[f"{corpus.name}#{at}"]: document for at, document in enumerate(read_trees(corpus), 1)}
    expected = naive(model, tokenizer, documents)
    cells = [(layer, head) for layer, heads in enumerate(survey.manifest["model"]["heads"]) for head in heads]
    # Every count of every head.
    found: Counter[Any] = Counter()
    counts: Counter[Any] = Counter()
    given = None if isinstance(source, (str, Path)) else tokenizer
    seen = observed(source, corpus, given, **options)
    for relation in relations_in(seen.windows, seen.arcs):
        for way, direction in enumerate(DIRECTIONS):
            for half in (0, 1):
                some = relation.odd == half
                counts[relation.name, direction, half] += int(relation.counts[some].sum())
                for cell, hits in zip(cells, relation.hits[way, some].sum(0).tolist(), strict=True):
                    found[(relation.name, direction, *cell, half)] += hits
    for (relation, direction), entry in expected.items():
        assert [counts[relation, direction, half] for half in (0, 1)] == entry["counts"]
        for cell in cells:
            for half in (0, 1):
                assert found[(relation, direction, *cell, half)] == entry["hits"][(*cell, half)]
    assert sum(counts.values()) == sum(sum(entry["counts"]) for entry in expected.values())
    # The table.
    table = survey.syntax
    assert [(field.name, field.type) for field in table.schema] == list(columns(SyntaxRow))
    kept = {claim: entry for claim, entry in expected.items() if sum(entry["counts"]) >= LEAST}
    rows = {(row["relation"], row["direction"]): row for row in table.to_pylist()}
    assert set(rows) == set(kept)
    assert kept
    for claim, entry in kept.items():
        row = rows[claim]
        best = max(entry["hits"][(*cell, 0)] for cell in cells)
        cell = (row["layer"], row["head"])
        assert entry["hits"][(*cell, 0)] == best
        assert row["count"] == sum(entry["counts"])
        assert row["accuracy"] == (best + entry["hits"][(*cell, 1)]) / row["count"]
        assert row["accuracy_held_out"] == entry["hits"][(*cell, 1)] / entry["counts"][1]
        assert row["low"] <= row["accuracy_held_out"] <= row["high"]
        assert entry["offsets"][row["offset"]] == max(entry["offsets"].values())
        assert row["offset_accuracy"] == entry["offsets"][row["offset"]] / row["count"]


@pytest.fixture(scope="module")
def random_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of random, sharp weights whose vocabulary splits most words."""
    folder = tmp_path_factory.mktemp("random")
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = ["th", "the", "of", "in", "an", "and", "tion", "er", "ing", "ed", ",", ".", "-", '"', "'", "“", "”", "’"]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *"0123456789$%–", *pieces]
    vocabulary += ["##" + piece for piece in (*letters, *pieces[:10], *"0123456789")]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    torch.manual_seed(3)
    sizes = {**SIZES, "vocab_size": len(vocabulary), "num_hidden_layers": 2, "max_position_embeddings": 256}
    model = BertModel(BertConfig(**sizes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query" in name or "key" in name:
                parameter.mul_(20)
    model.save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=256).save_pretrained(folder)
    return folder


def test_a_random_bert(random_bert: Path, tmp_path: Path) -> None:
    """Words of many pieces; a word that becomes no token; parts of two documents."""
    text = TREEBANK.read_text(encoding="utf-8").replace("\tmuch\tmuch", "\t\u200b\tmuch", 1)
    (tmp_path / "t.conllu").write_text(text, encoding="utf-8")
    options = {**SMALL, "length": 256}
    survey = hs.survey(random_bert, tmp_path / "t.conllu", out=tmp_path / "out", **options)
    assert len(survey.manifest["parts"]) > 3
    model = AutoModel.from_pretrained(random_bert, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(random_bert)
    check(survey, random_bert, tmp_path / "t.conllu", model, tokenizer, **options)


def test_a_decoder(random_bert: Path, tmp_path: Path) -> None:
    """Words see nothing to their right: what has no weight is nobody's strongest word."""
    tokenizer = AutoTokenizer.from_pretrained(random_bert)
    torch.manual_seed(4)
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=256)
    config._attn_implementation = "eager"
    model = GPT2Model(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "c_attn.weight" in name:
                parameter.mul_(20)
    options = {**SMALL, "length": 256, "statistics": "entropy", "labels": True, "examples": 2}
    survey = hs.survey(model, TREEBANK, out=tmp_path / "out", tokenizer=tokenizer, **options)
    check(survey, model, TREEBANK, model, tokenizer, **options)
    assert all(example.key < example.query for of in survey.examples.values() for example in of)


def test_tiles(treebank_survey: hs.Survey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A window in many tiles gives what it gives in one."""
    import headscope.atlas.words as words

    monkeypatch.setattr(words.tiles, "__defaults__", (900,))
    tiled = hs.survey("-", TREEBANK, out=tmp_path / "tiled", **{**SENTENCES, "examples": 0})
    for ours, theirs in zip(treebank_survey.syntax.to_pylist(), tiled.syntax.to_pylist(), strict=True):
        assert ours == theirs


@pytest.mark.parametrize("kind", ["wordpiece", "byte level"])
def test_words_as_our_own_tokenizer_cuts_them(kind: str, tmp_path: Path) -> None:
    """RoBERTa's gives a word that stands alone no space before it."""
    config = json.loads((BUNDLED / "config.json").read_text(encoding="utf-8"))
    files = Folder(BUNDLED, config) if kind == "wordpiece" else roberta_folder(tmp_path)
    cutter, ours = Cutter(AutoTokenizer.from_pretrained(files.path), 256), load_tokenizer(files)
    count = 0
    for document in read_conllu(TREEBANK, "t", field="text", max_document=10**7):
        windows, refused = cut_trees(cutter, [(0, at, tree) for at, tree in enumerate(document.sentences)])
        assert not refused
        for window, tree in zip(windows, document.sentences, strict=True):
            encoded = ours.encode_words(tree.words)
            assert window.ids.tolist() == list(encoded.ids)
            assert window.words.of_token.tolist() == [-1 if word is None else word for word in encoded.words]
            of = [at for at, word in enumerate(encoded.words) if word is not None and tree.words[word] in ',.“”’"–']
            assert set(of) <= set(np.flatnonzero(window.roles.punctuation).tolist()) or kind != "wordpiece"
            count += 1
    assert count == 20


def test_long_sentences_and_one_document(tmp_path: Path) -> None:
    """A sentence that fits no window is refused by its line; from one document nothing can be held out."""
    text = TREEBANK.read_text(encoding="utf-8").replace("# newdoc", "# document")
    (tmp_path / "t.conllu").write_text("# newdoc\n" + text, encoding="utf-8")
    options = {**SMALL, "length": 40, "max_document": 10**6, "statistics": "entropy"}
    survey = hs.survey("-", tmp_path / "t.conllu", out=tmp_path / "out", **options)
    assert survey.manifest["counts"]["documents"] == 1
    assert survey.manifest["refused"]["reasons"]["no window"] > 0
    assert "a window holds 40" in survey.manifest["refused"]["documents"][0]["detail"]
    assert survey.syntax.num_rows
    assert set(survey.syntax["accuracy_held_out"].to_pylist()) == {None}
    assert "no accuracy can be held out" in screen_of(survey)


def test_intervals() -> None:
    """They cover the truth as often as they say, where documents differ; and agree with a bootstrap."""
    generator = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        shares = generator.beta(6, 4, size=40)
        counts = generator.integers(1, 12, size=40)
        moments = Moments()
        moments.add(generator.binomial(counts, shares).astype(float), counts)
        low, high = moments.interval()
        inside += low <= 0.6 <= high
    assert 0.91 <= inside / 400 <= 0.985
    hits, counts = generator.binomial(8, 0.7, size=200).astype(float), np.full(200, 8.0)
    moments = Moments()
    moments.add(hits, counts)
    drawn = random.Random(0)
    shares = sorted(sum(drawn.choices(hits.tolist(), k=200)) / 1600 for _ in range(2000))
    assert moments.interval() == pytest.approx((shares[50], shares[1949]), abs=0.006)


def test_intervals_at_the_ends() -> None:
    moments = Moments()
    moments.add(np.array([3.0, 5.0, 2.0]), np.array([3.0, 5.0, 2.0]))
    low, high = moments.interval()
    assert moments.share == 1
    assert high == 1
    assert 0.2 < low < 0.9


def test_the_directions_of_the_documented_example() -> None:
    """docs/reference/labels.md: the weights of three words, and which direction is right for which relation."""
    text = (
        (Path(__file__).parents[2] / "docs" / "reference" / "labels.md")
        .read_text(encoding="utf-8")
        .split("For example, let")[1]
    )
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    forms, weights = tuple(lines[0][1:]), [[float(cell or "nan") for cell in line[1:]] for line in lines[2:5]]
    stated = {line[0].strip("`"): [cell.partition(":")[0] == "right" for cell in line[1:]] for line in lines[7:9]}
    sentence = Sentence(1, forms, ("DET", "NOUN", "VERB"), (1, 2, -1), ("det", "nsubj", "root"))
    words = Words(np.array([-1, 0, 1, 2, -1]), forms, sentence)
    maps = torch.tensor([weights]).nan_to_num()
    strongest = Strongest(words, 1, maps)
    strongest.take(Tile(0, slice(1, 4), maps, maps.clone()))
    arcs = Arcs(sentence, words, 1)
    arcs.take(strongest.done(), slice(0, 1))
    found = {name: [bool(arcs.hits[way, at, 0]) for way in range(len(HITS))] for at, name in enumerate(arcs.relations)}
    # The authors' way: argmax over each word's row, of the map or of its transpose; and for a head's row, its own.
    plain = np.nan_to_num(np.array(weights))
    by_hand = {
        relation: [plain[word].argmax() == head, plain.T[word].argmax() == head, plain[head].argmax() == word]
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True))
        if head >= 0
    }
    assert stated == found == by_hand
    assert {"det", "nsubj"} == set(stated)
