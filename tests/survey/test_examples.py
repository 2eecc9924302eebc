"""Examples: exact however the corpus is cut, varied, with their text, and the same bytes after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from surveying import ALICE, OPTIONS, contents
from transformers import AutoModel, AutoTokenizer

import headscope as hs
from headscope._survey.examples import TWICE
from headscope._survey.pairs import ALL, DRAWN, FAR, KEPT, merged
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import InputError
from patience import PATIENCE

TREEBANK = Path(__file__).parent.parent / "data" / "treebank" / "en_pud-first20.conllu"
ATLAS = {**OPTIONS, "statistics": "entropy", "examples": 4, "length": 96}


def sentences(path: Path) -> list[tuple[int, int, list[str]]]:
    """Document, number in it, and words."""
    found: list[tuple[int, int, list[str]]] = []
    document, number = -1, 0
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        if "# newdoc" in block:
            document, number = document + 1, 0
        rows = [line.split("\t") for line in block.splitlines() if not line.startswith("#")]
        found.append((document, number, [row[1] for row in rows if row[0].isdigit()]))
        number += 1
    return found


def naive_pairs() -> dict[tuple[int, int], list[tuple[float, int, int, int, int]]]:
    """Each head's words with their strongest other word: weight, document, window, query, key; the strongest first."""
    model = AutoModel.from_pretrained(BUNDLED, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    found: dict[tuple[int, int], list[tuple[float, int, int, int, int]]] = {}
    for document, number, words in sentences(TREEBANK):
        encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            attentions = model(**encoded, output_attentions=True).attentions
        of = [[token for token, word in enumerate(encoded.word_ids()) if word == at] for at in range(len(words))]
        for layer, attention in enumerate(attentions):
            for head, weights in enumerate(attention[0].double().numpy()):
                for query, rows in enumerate(of):
                    to = [
                        -1.0 if key == query else float(np.mean([sum(weights[i, j] for j in columns) for i in rows]))
                        for key, columns in enumerate(of)
                    ]
                    key = int(np.argmax(to))
                    found.setdefault((layer, head), []).append((to[key], document, number, query, key))
    return {place: sorted(rows, key=lambda row: (-row[0], row[1:])) for place, rows in found.items()}


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> hs.Survey:
    return hs.survey("-", TREEBANK, out=tmp_path_factory.mktemp("examples") / "out", **{**ATLAS, "part_size": 5000})


def pairs_of(survey: hs.Survey) -> Any:
    count = len(survey.manifest["parts"])
    tables = [parquet.read_table(survey.folder / f"atlas/pairs-{at:05}.parquet") for at in range(count)]
    return merged(tables, [part["documents"] for part in survey.manifest["parts"]], KEPT)


def test_the_strongest_pairs(survey: hs.Survey) -> None:
    """The lists hold the strongest pairs of the whole corpus, as loops over eager weights find them."""
    assert len(survey.manifest["parts"]) > 3
    heads = [(layer, head) for layer, row in enumerate(survey.manifest["model"]["heads"]) for head in row]
    rows = pairs_of(survey).to_pylist()
    naive = naive_pairs()
    for cell, place in enumerate(heads):
        expected = naive[place]
        for kind, wanted in ((ALL, expected), (FAR, [row for row in expected if abs(row[3] - row[4]) > 1])):
            own = [row for row in rows if row["list"] == kind and row["cell"] == cell]
            assert len(own) == min(KEPT, len(wanted))
            assert np.allclose([row["weight"] for row in own], [row[0] for row in wanted[:KEPT]], atol=2e-6)
            # Neighbours in the order whose weights are as good as equal may change places.
            clear = {row[1:] for row in wanted if row[0] > wanted[len(own) - 1][0] + 1e-5}
            assert clear <= {(row["document"], row["window"], row["query"], row["key"]) for row in own}


def test_examples_are_varied_and_have_their_text(survey: hs.Survey) -> None:
    words = {(document, number): words for document, number, words in sentences(TREEBANK)}
    assert len(survey.examples) == sum(len(row) for row in survey.manifest["model"]["heads"])
    drawn = set()
    for place, examples in survey.examples.items():
        best = [example for example in examples if example.kind == "best"]
        random = [example for example in examples if example.kind == "random"]
        assert 0 < len(best) <= 4
        assert len(random) == DRAWN
        drawn.add(tuple((example.document, example.window, example.query) for example in random))
        assert [example.rank for example in best] == list(range(len(best)))
        assert [example.weight for example in best] == sorted((example.weight for example in best), reverse=True)
        assert len({(example.document, example.window) for example in best}) == len(best)
        for side in ("query_word", "key_word"):
            assert max(Counter(getattr(example, side).casefold() for example in best).values()) <= TWICE
        for example in examples:
            assert (example.layer, example.head) == place
            of = words[int(example.document.rpartition("#")[2]) - 1, example.window]
            assert (of[example.query], of[example.key]) == (example.query_word, example.key_word)
            first, second = sorted((example.query, example.key))
            assert example.before.split() == " ".join(of[max(0, first - 8) : first]).split()
            assert example.after.split() == " ".join(of[second + 1 : second + 9]).split()
            if "…" not in example.between:
                assert example.between.split() == " ".join(of[first + 1 : second]).split()
            assert example.key_word in str(example)
    assert len(drawn) == 1  # the same for every head
    with pytest.raises(InputError, match=r"no examples of \(99, 0\)"):
        _ = survey.examples[99, 0]


def test_parts_do_not_matter(survey: hs.Survey, tmp_path: Path) -> None:
    """Cut into other parts, the examples are the same."""
    other = hs.survey("-", TREEBANK, out=tmp_path / "out", **{**ATLAS, "part_size": 10**6, "batch_tokens": 200})
    assert len(other.manifest["parts"]) == 1
    ours, theirs = survey.examples.table.to_pylist(), other.examples.table.to_pylist()
    for one, two in zip(ours, theirs, strict=True):
        assert one.pop("weight") == pytest.approx(two.pop("weight"), abs=1e-6)
    same = [one == two for one, two in zip(ours, theirs, strict=True)]
    assert np.mean(same) > 0.99  # weights that are as good as equal may change places


def test_killed_and_resumed(tmp_path: Path) -> None:
    """Files of a part that never came to be, as after a kill between them; text as a corpus."""
    (tmp_path / "texts").mkdir()
    for at in range(6):
        (tmp_path / "texts" / f"{at}.txt").write_text(ALICE[400 * at : 400 * (at + 1)], encoding="utf-8")
    options = {**ATLAS, "labels": True, "part_size": 800}
    survey = hs.survey("-", tmp_path / "texts", out=tmp_path / "out", **options)
    bytes_of = contents(survey.folder)
    assert {"labels.parquet", "examples.parquet", "atlas/texts-00000.parquet"} <= bytes_of.keys()
    for name in ("atlas/pairs-00001.parquet", "atlas/acts-00000.parquet", "examples.parquet", "manifest.json"):
        (survey.folder / name).unlink()
        if name.startswith("atlas"):  # a kill comes before the part itself
            (survey.folder / "parts" / f"part-{name[-13:]}").unlink()
            (survey.folder / "manifest.json").unlink()
        with pytest.warns(UserWarning, match="written again") if name != "examples.parquet" else nullcontext():
            hs.survey("-", tmp_path / "texts", out=survey.folder, **options)
        assert contents(survey.folder) == bytes_of
    with pytest.raises(InputError, match="other settings"):
        hs.survey("-", tmp_path / "texts", out=survey.folder, **{**options, "examples": 5})


KILLED = """
import os, signal, sys
import headscope as hs
left = int(sys.argv[3])
def count(event, args):
    global left
    if event == "os.rename":
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
hs.survey("-", sys.argv[1], out=sys.argv[2], **eval(sys.argv[4]))
"""
"""A process that dies when it is about to put one file more in its place than it may."""


@pytest.mark.parametrize("files", [3, 9])
def test_killed_between_files(files: int, survey: hs.Survey, tmp_path: Path) -> None:
    """Killed while a part's files are written, and run again: every file is that of a survey that was never killed."""
    options = {**ATLAS, "part_size": 5000}
    words = [sys.executable, "-c", KILLED, str(TREEBANK), str(tmp_path / "out"), str(files), repr(options)]
    died = subprocess.run(words, capture_output=True, timeout=PATIENCE, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert 0 < len(list((tmp_path / "out").rglob("*.parquet"))) < len(list(survey.folder.rglob("*.parquet")))
    hs.survey("-", TREEBANK, out=tmp_path / "out", **options)
    assert contents(tmp_path / "out") == contents(survey.folder)
