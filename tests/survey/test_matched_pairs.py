"""Many pairs: every form of file, interruption and resume, wrong pairs against a plain count, what isn't a pair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import headscope as hs
from explain.tops import readable
from headscope.atlas.matching import match_pairs
from headscope.atlas.pair_readers import Pair, pair_of, read_pairs
from headscope.cli import app
from headscope.errors import InputError

QUERIES = {"q1": "the cat sat on the mat", "q2": "she took her hat"}
TEXTS = {"d1": "the dog took her hat .", "d2": "she sat on the mat", "d3": "cat cat", "d4": "her hat ."}
JUDGED = [("q1", "d1", 1), ("q1", "d2", 0), ("q1", "d3", 0), ("q2", "d4", 1), ("q2", "d3", 0)]
PAIRS = [Pair(QUERIES[query], TEXTS[document], label) for query, document, label in JUDGED]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    readable(folder, "Bert", "Model")
    return folder


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    """A folder in BEIR's layout."""
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    lines(folder / "queries.jsonl", [{"_id": name, "text": text} for name, text in QUERIES.items()])
    lines(folder / "corpus.jsonl", [{"_id": name, "title": "", "text": text} for name, text in TEXTS.items()])
    rows = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in JUDGED)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(rows), encoding="utf-8")
    return folder


def test_every_form_holds_the_same_pairs(judged: Path, tmp_path: Path) -> None:
    given = lines(tmp_path / "pairs.jsonl", [pair._asdict() for pair in PAIRS])
    table = tmp_path / "pairs.csv"
    rows = "".join(f'"{query}","{document}",{label}\n' for query, document, label in PAIRS)
    table.write_text(f"query,document,label\n{rows}", encoding="utf-8")
    for source in (given, table, judged):
        assert [pair_of(document) for document in read_pairs(source)] == PAIRS, source
    (judged / "first.run").write_text("q1 Q0 d2 1 9.5 bm25\nq1 Q0 d4 2 9.1 bm25\n", encoding="utf-8")
    run = [pair_of(document) for document in read_pairs(judged)]
    assert run == [Pair(QUERIES["q1"], TEXTS[name], 0) for name in ("d2", "d4")], "what nobody judged counts as 0"
    (judged / "qrels" / "test.tsv").rename(judged / "trec.qrels")
    (judged / "trec.qrels").write_text("q1 0 d2 2\n", encoding="utf-8")
    assert [pair_of(document).label for document in read_pairs(judged)] == [1, 0]


def test_a_run_is_resumed_and_its_wrong_pairs_are_those_above(
    model: Path, judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscope.atlas.matching.PART_SIZE", 300)
    whole = match_pairs(model, judged, tmp_path / "whole")

    def stop(tally: Any) -> None:
        if tally.parts == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        match_pairs(model, judged, tmp_path / "out", progress=stop)
    kept = []
    again = match_pairs(model, judged, tmp_path / "out", progress=lambda tally: kept.append(tally.kept_parts))
    assert max(kept) == 1, "the finished part wasn't made again"
    assert again.path.read_bytes() == whole.path.read_bytes()
    rows = again.table().to_pylist()
    opened = hs.open(model)
    for row, pair in zip(rows, PAIRS, strict=True):
        (match,) = hs.match(opened, pair.query, pair.document, check=False)
        assert (row["score"], row["label"]) == (pytest.approx(match.score, abs=1e-6), pair.label)
        assert row["words"][0]["word"] == match.strongest()[0].label
    named = list(zip(rows, JUDGED, strict=True))
    good = {query: min(row["score"] for row, of in named if of[0] == query and of[2]) for query in QUERIES}
    wrong = {row["pair"] for row, (query, _, label) in named if not label and row["score"] > good[query]}
    assert {one.pair for one in again.wrong} == wrong
    assert again.mistakes == len(wrong)
    links = [link for one in again.wrong for link in one.links if link.share > 0]
    for one in again.confused():
        words = (one.query, one.document)
        same = [link.share for link in links if (link.query.label, link.document.label) == words]
        assert (one.pairs, one.share) == (len(same), pytest.approx(np.mean(same)))
    (judged / "queries.jsonl").write_text((judged / "queries.jsonl").read_text().replace("hat", "mat"))
    with pytest.raises(InputError, match="the corpus has changed"):
        match_pairs(model, judged, tmp_path / "out")


def test_labels_of_single_pairs_are_parted_by_one_score(model: Path, tmp_path: Path) -> None:
    texts = ["the cat sat", "her hat .", "the dog", "she took"]
    pairs = [(text, other) for at, text in enumerate(texts) for other in [*texts[:at], f"{text} cat"]]
    rows = [{"query": f"{a} on {at}", "document": b, "label": at % 2} for at, (a, b) in enumerate(pairs)]
    page = tmp_path / "report.html"
    given = lines(tmp_path / "pairs.jsonl", rows)
    command = ["match", str(model), str(given), "--out", str(tmp_path / "out")]
    screen = CliRunner().invoke(app, [*command, "--html", str(page)], env={"COLUMNS": "100"})
    assert screen.exit_code == 0, screen.output
    record = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    found = match_pairs(model, given, tmp_path / "out").table().to_pylist()
    scores, good = np.array([row["score"] for row in found]), np.array([row["label"] == 1 for row in found])
    errors = min(int(((scores > border) != good).sum()) for border in [-2, *scores])
    assert 0 < errors == record["mistakes"] == len(record["wrong"])
    heading = f"{errors} of {len(rows)} pairs are wrong"
    assert heading in screen.output
    assert heading in page.read_text()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pairs.jsonl", '{"query": "a"}', "there is no document"),
        ("pairs.jsonl", '{"query": "a", "document": " "}', "the document is empty"),
        ("pairs.jsonl", '{"query": "\\ud800", "document": "b"}', "can't be encoded"),
        ("pairs.jsonl", '{"query": 3, "document": "b"}', "expected the query to be a text, got 3"),
        ("pairs.jsonl", '{"query": "a", "document": "b", "label": 7}', "the label is 7"),
        ("pairs.jsonl", "[1]", "pairs.jsonl#1"),
        ("pairs.csv", "question,document\na,b\n", "there is no query"),
        ("pairs.csv", 'query,document\n"a,b\n', "pairs.csv#2"),
        ("pairs.txt", "a b", "not a file of pairs"),
        ("beir/queries.jsonl", "", "neither judgements nor a run"),
        ("beir/a.run", "q1 Q0 d1\n", "six fields of a run, got 3"),
    ],
)
def test_what_isnt_a_pair_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as error:
        list(read_pairs(path if path.parent == tmp_path else path.parent))
    assert message in str(error.value)


def test_a_missing_text_and_bad_options_are_named(model: Path, judged: Path, tmp_path: Path) -> None:
    (judged / "corpus.jsonl").write_text('{"_id": "d1", "text": "a"}\n', encoding="utf-8")
    with pytest.raises(InputError, match="no text for 'd2'"):
        list(read_pairs(judged))
    for extra in (["query"], ["query", "document", "--out", "y"]):
        assert CliRunner().invoke(app, ["match", str(model), *extra]).exit_code != 0
    with pytest.raises(InputError, match="no kind"):
        match_pairs(model, judged, tmp_path / "out", kind="dense")
