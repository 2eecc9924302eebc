"""Examples: exact however the corpus is cut, varied, with their text, and the same bytes when resumed."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from surveying import ALICE, SENTENCES, TREEBANK, contents
from transformers import AutoModel, AutoTokenizer

import headscope as hs
from headscope.atlas.labels.choices import DRAWN, STRONGEST, TWICE, capped, merged
from headscope.checkpoint.resolve import BUNDLED
from headscope.errors import InputError
from small_bert import small_bert


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
    """Each head's words with their choice: strength, document, window, query, key; the strongest first."""
    model = AutoModel.from_pretrained(BUNDLED, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    found: dict[tuple[int, int], list[tuple[float, int, int, int, int]]] = {}
    for document, number, words in sentences(TREEBANK):
        encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            attentions = model(**encoded, output_attentions=True).attentions
        of = [[token for token, word in enumerate(encoded.word_ids()) if word == at] for at in range(len(words))]
        sizes = np.array([len(tokens) for tokens in of])
        for layer, attention in enumerate(attentions):
            for head, weights in enumerate(attention[0].double().numpy()):
                summed = np.stack([weights[:, columns].sum(1) for columns in of], 1)
                for query, rows in enumerate(of):
                    to = summed[rows].mean(0)
                    others = [key for key in range(len(words)) if key != query]
                    even = to[others].sum() * sizes[others] / sizes[others].sum()
                    best = int(np.argmax(to[others] - even))
                    strength = to[others[best]] - even[best] if to[others[best]] >= 2 * even[best] else 0.0
                    found.setdefault((layer, head), []).append((strength, document, number, query, others[best]))
    return {place: sorted(rows, key=lambda row: (-row[0], row[1:])) for place, rows in found.items()}


@pytest.fixture(scope="module")
def survey(treebank_survey: hs.Survey) -> hs.Survey:
    return treebank_survey


def pairs_of(survey: hs.Survey) -> Any:
    count = len(survey.manifest["parts"])
    tables = [parquet.read_table(survey.folder / f"atlas/pairs-{at:05}.parquet") for at in range(count)]
    return merged(tables, [part["documents"] for part in survey.manifest["parts"]])


def test_the_strongest_pairs(survey: hs.Survey) -> None:
    """The lists hold the strongest pairs of each half of the corpus, as loops over eager weights find them."""
    assert len(survey.manifest["parts"]) > 3
    words = {(document, number): words for document, number, words in sentences(TREEBANK)}
    heads = [(layer, head) for layer, row in enumerate(survey.manifest["model"]["heads"]) for head in row]
    rows = pairs_of(survey).to_pylist()
    naive = naive_pairs()
    for cell, place in enumerate(heads):
        for half in (0, 1):
            expected = [row for row in naive[place] if row[1] % 2 == half and row[0] > 1e-6]
            forms = [tuple(words[row[1], row[2]][at].casefold() for at in row[3:]) for row in expected]
            expected = [expected[at] for at in capped(forms)][:STRONGEST]
            own = [row for row in rows if row["list"] == half and row["cell"] == cell and row["strength"] > 1e-6]
            assert len(own) == pytest.approx(len(expected), abs=2)  # of words at just twice the even share
            count = min(len(own), len(expected))
            strengths = [row["strength"] for row in own]
            assert np.allclose(strengths[:count], [row[0] for row in expected[:count]], atol=2e-4)


def test_examples_are_varied_and_have_their_text(survey: hs.Survey) -> None:
    words = {(document, number): words for document, number, words in sentences(TREEBANK)}
    assert len(survey.examples) == sum(len(row) for row in survey.manifest["model"]["heads"])
    drawn = set()
    for place, examples in survey.examples.items():
        best = [example for example in examples if example.kind == "best"]
        random = [example for example in examples if example.kind == "random"]
        assert len(best) <= 4
        assert len(random) == DRAWN
        drawn.add(tuple((example.document, example.window, example.query) for example in random))
        assert [example.rank for example in best] == list(range(len(best)))
        assert len({(example.document, example.window) for example in best}) == len(best)
        pairs = Counter((example.query_word.casefold(), example.key_word.casefold()) for example in best)
        assert max(pairs.values(), default=0) <= TWICE
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
    other = hs.survey("-", TREEBANK, out=tmp_path / "out", **{**SENTENCES, "part_size": 10**6, "batch_tokens": 200})
    assert len(other.manifest["parts"]) == 1
    ours, theirs = survey.examples.table.to_pylist(), other.examples.table.to_pylist()
    for one, two in zip(ours, theirs, strict=True):
        assert one.pop("weight") == pytest.approx(two.pop("weight"), abs=1e-6)
    same = [one == two for one, two in zip(ours, theirs, strict=True)]
    assert np.mean(same) > 0.99  # weights that are as good as equal may change places


def test_resumed_where_files_are_missing(tmp_path: Path) -> None:
    """Files of a part that never came to be, as after a kill between them; text as a corpus."""
    (tmp_path / "texts").mkdir()
    for at in range(6):
        (tmp_path / "texts" / f"{at}.txt").write_text(ALICE[400 * at : 400 * (at + 1)], encoding="utf-8")
    options = {**SENTENCES, "labels": True, "length": 24, "part_size": 800}
    model = small_bert(tmp_path / "model")
    survey = hs.survey(model, tmp_path / "texts", out=tmp_path / "out", **options)
    bytes_of = contents(survey.folder)
    assert {"labels.parquet", "examples.parquet", "atlas/texts-00000.parquet"} <= bytes_of.keys()
    for name in ("atlas/pairs-00001.parquet", "atlas/choices-00000.parquet", "examples.parquet", "manifest.json"):
        (survey.folder / name).unlink()
        if name.startswith("atlas"):  # a kill comes before the part itself
            (survey.folder / "parts" / f"part-{name[-13:]}").unlink()
            (survey.folder / "manifest.json").unlink()
        with pytest.warns(UserWarning, match="written again") if name != "examples.parquet" else nullcontext():
            hs.survey(model, tmp_path / "texts", out=survey.folder, **options)
        assert contents(survey.folder) == bytes_of
    with pytest.raises(InputError, match="other settings"):
        hs.survey(model, tmp_path / "texts", out=survey.folder, **{**options, "examples": 5})
