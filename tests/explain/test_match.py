"""Matches and the vectors they compare, against sentence-transformers' own scores, vectors and pooling; naive sums."""

from __future__ import annotations

import json
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot
from safetensors.torch import load_file, save_file

import headscope as hs
from commands import answer, run
from explain.tops import bi_encoder, readable
from headscope.atlas.writes import check_writer
from headscope.checkpoint.sentence import IDENTITY, read_pooling
from headscope.errors import CheckpointError, HeadscopeError, InputError, NoteWarning, UnsupportedError
from headscope.explain.propagation import hold
from headscope.results.explained import Pooling
from headscope.results.match_record import SIDES
from headscope.runs.texts import as_input, as_traced
from making import change_json
from naive_layers import MINILM
from products import pairwise
from small_bert import small_bert

mpl.use("agg")
QUERY = "the cat sat on the mat"
DOCUMENTS = ["the dog took her hat .", "she sat on the mat and the cat sat down", "cat cat"]
KINDS = {
    "bi": ("SentenceTransformer", "Model"),
    "late": ("MultiVectorEncoder", "Model"),
    "sparse": ("SparseEncoder", "ForMaskedLM"),
    "cross": ("CrossEncoder", "ForSequenceClassification"),
}


def library() -> Any:
    """sentence-transformers, imported late: most workers run no test with it."""
    import sentence_transformers

    return sentence_transformers


def saved(folder: Path, kind: str, stem: str = "Bert") -> Any:
    """A tiny random model of a kind, saved by sentence-transformers; and the object."""
    name, suffix = KINDS[kind]
    made = getattr(library(), name)
    readable(folder / "plain", stem, suffix, **({"num_labels": 1} if kind == "cross" else {}))
    model = made(str(folder / "plain"), device="cpu")
    model.save(str(folder / "saved"), create_model_card=False)
    return model


def their_scores(model: Any, query: str, documents: list[str]) -> np.ndarray:
    if isinstance(model, library().CrossEncoder):
        return model.predict([(query, text) for text in documents])
    return model.similarity(model.encode_query([query]), model.encode_document(documents)).numpy()[0]


FAMILIES = [*((kind, stem) for kind in KINDS for stem in ("Bert", "DistilBert")), ("bi", "MPNet"), ("cross", "MPNet")]


@pytest.mark.parametrize(("kind", "stem"), FAMILIES)
def test_scores_are_sentence_transformers_and_parts_add_up(tmp_path: Path, kind: str, stem: str) -> None:
    """Of a folder, and of the object that was saved there."""
    model = saved(tmp_path, kind, stem)
    result = hs.match(tmp_path / "saved", QUERY, DOCUMENTS)
    given = hs.match(model, QUERY, DOCUMENTS, check=False)
    np.testing.assert_allclose(given.scores, result.scores)
    assert given[0].checks == ()
    assert result[0].scoring.kind == kind
    np.testing.assert_allclose(result.returned, their_scores(model, QUERY, DOCUMENTS), rtol=1e-5, atol=1e-5)
    assert result.ranking() == list(np.argsort(-result.scores))
    for match in result:
        size = 1e-5 * max(1, match.kappa * abs(match.score))
        sides = [side.shares.sum() for side in (match.query, match.document)]
        if kind == "cross":
            assert sum(sides) + match.rest == pytest.approx(match.score, abs=size)
            continue
        for total, side in zip(sides, (match.query, match.document), strict=True):
            assert total + side.rest == pytest.approx(match.score, abs=size)
        assert match.table.sum() == pytest.approx(match.score, abs=size)
        assert match.cells.sum() + match.rest == pytest.approx(match.score, abs=size)
        np.testing.assert_allclose(match.table.sum(1), [*match.query.shares, match.query.rest], atol=size)
        np.testing.assert_allclose(match.table.sum(0), [*match.document.shares, match.document.rest], atol=size)
    above = result.above(1, 0)
    assert above.difference == pytest.approx(result.scores[1] - result.scores[0])
    assert sum(part.share for part in above.query) + above.rest == pytest.approx(above.difference)


def test_a_missing_mask_token_is_one_error_of_the_checkpoint_wherever_one_is_needed(tmp_path: Path) -> None:
    """A match still has its shares, and says that none was checked."""
    folder = readable(tmp_path / "maskless", "Bert", "ForMaskedLM").folder
    change_json(folder / "tokenizer_config.json", mask_token=None)
    model = hs.open(folder)
    matches = hs.match(model, QUERY, DOCUMENTS, kind="bi")
    assert (matches[0].checks, matches[0].unchecked) == ((), "nothing was masked: the tokenizer has no mask token")
    found = []
    for needs_one in (lambda: matches.check(0), lambda: model.fill("the [MASK] sat"), lambda: check_writer(model)):
        with pytest.raises(UnsupportedError, match="no mask token, so nothing can be masked") as error:
            needs_one()
        found.append(str(error.value))
    assert len(set(found)) == 1


def test_cells_are_the_naive_sum_of_the_pooled_shares(minilm: hs.Model) -> None:
    a, b = "She took off her hat.", "A woman removes her cap, tired."
    match = hs.match(minilm, a, b)[0]
    held = [hold(minilm.encoder, as_input(as_traced(minilm, text).encoded), slopes="ratio") for text in (a, b)]
    sides = [one.shares().astype(float).mean(1) for one in held]
    vectors = [side.sum(0) for side in sides]
    expected = sides[0] @ sides[1].T / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    np.testing.assert_allclose(match.table, expected, atol=2e-5)
    theirs = their_scores(library().SentenceTransformer(str(MINILM), device="cpu"), a, [b])
    assert match.score == pytest.approx(float(theirs[0]), abs=1e-5)
    output = hs.match(minilm, a, b, level="output")[0]
    assert output.rest == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_masked_for_real(tmp_path: Path, kind: str) -> None:
    """Sentence-transformers reads [MASK] in a text as the mask token."""
    model = saved(tmp_path, kind)
    query, document = "the cat sat", "she took her hat"
    result = hs.match(tmp_path / "saved", query, document)
    assert len(result[0].checks) == 3
    for part in result.check(0, 5):
        texts = {"query": query, "document": document}
        texts[part.side] = " ".join("[MASK]" if word == part.label else word for word in texts[part.side].split())
        if kind == "cross":
            masked = model.predict([(texts["query"], texts["document"])], activation_fn=None)[0]
            masked = np.log(masked / (1 - masked))
        else:
            masked = their_scores(model, texts["query"], [texts["document"]])[0]
        assert part.change == pytest.approx(result[0].score - masked, abs=2e-5)
    for checked in result[0].checks:
        assert checked.change is not None


def test_links_are_words_that_need_each_other() -> None:
    match = hs.match(MINILM, "She took off her hat", "A woman removes her cap.")[0]
    links = match.links()
    assert (links[0].query.label, links[0].document.label) == ("hat", "cap")
    model = library().SentenceTransformer(str(MINILM), device="cpu")
    pairs = product((" hat", ""), (" cap", ""))
    scores = {(a, b): their_scores(model, f"She took off her{a}", [f"A woman removes her{b}."])[0] for a, b in pairs}
    both = scores[" hat", " cap"] - scores["", " cap"] - scores[" hat", ""] + scores["", ""]
    assert links[0].together == pytest.approx(both, abs=1e-5)
    cell = match.cells[links[0].query.tokens[0], links[0].document.tokens[0]]
    assert links[0].share == pytest.approx(cell)
    assert all(link.share * link.together > 0 for link in links)
    axes = match.plot()
    shown = [text.get_text() for text in axes.texts]
    assert shown == [part.label for side in SIDES for part in match.parts(side) if not part.special]
    places = {text.get_text(): text.get_position()[1] for text in axes.texts}
    ends = [tuple(line.get_ydata()) for line in axes.lines]
    assert ends == [(places[link.query.label], places[link.document.label]) for link in links]
    pyplot.close(axes.figure)


def test_words_that_have_nothing_to_do_with_each_other_are_no_link() -> None:
    """Two texts that both hold a mask are alike for that alone, so masking both would confirm every pair."""
    match = hs.match(MINILM, "How do I reset my password?", "The whale swam past the ship at noon.")[0]
    needed = [link.together for link in match.links(36)]
    assert max(map(abs, needed), default=0) < 0.1
    assert len(needed) < 36
    one = hs.match(MINILM, "hat", "cap")[0]
    assert one.links() == []


def test_late_interaction_names_what_was_found(tmp_path: Path) -> None:
    model = saved(tmp_path, "late")
    match = hs.match(tmp_path / "saved", QUERY, DOCUMENTS[0])[0]
    query, document = (np.asarray(of[0]) for of in (model.encode_query([QUERY]), model.encode_document([DOCUMENTS[0]])))
    table = query @ document.T
    for row, one in enumerate(match.found):
        first, second = np.sort(table[row])[::-1][:2]
        assert (one.query, one.document) == (row, int(table[row].argmax()))
        assert one.similarity == pytest.approx(first, abs=1e-5)
        assert one.margin == pytest.approx(first - second, abs=1e-5)
        assert not one.expansion
    assert sum(one.similarity for one in match.found) == pytest.approx(match.score)


def test_a_dense_of_another_size_is_named(tmp_path: Path) -> None:
    saved(tmp_path, "late")
    path = next((tmp_path / "saved").glob("*Dense/model.safetensors"))
    save_file({name: array[..., :-1].contiguous() for name, array in load_file(path).items()}, path)
    with pytest.raises(CheckpointError, match="takes vectors of"):
        hs.match(tmp_path / "saved", QUERY, DOCUMENTS)
    path.unlink()
    with pytest.raises(CheckpointError, match="there is no"):
        hs.match(tmp_path / "saved", QUERY, DOCUMENTS)


def test_queries_are_expanded_and_skiplists_kept(tmp_path: Path) -> None:
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    readable(tmp_path / "plain", "Bert", "Model")
    model = library().MultiVectorEncoder(str(tmp_path / "plain"), device="cpu")
    transformer, dense = model[0], model[1]
    transformer.query_expansion = {"strategy": "fixed", "attend": True, "length": 16}
    built = library().MultiVectorEncoder(
        modules=[transformer, dense, MultiVectorMask(skiplist_words=[".", "the"]), model[3]], device="cpu"
    )
    built.save(str(tmp_path / "saved"), create_model_card=False)
    result = hs.match(tmp_path / "saved", QUERY, DOCUMENTS)
    np.testing.assert_allclose(result.scores, their_scores(built, QUERY, DOCUMENTS), rtol=1e-5)
    assert [one.expansion for one in result[0].found] == [False] * 8 + [True] * 8
    assert any("filled up with 8 mask tokens" in note for note in result[0].notes)
    tokens = result[0].document.axis.tokens
    assert not {tokens[one.document] for one in result[0].found} & {".", "the"}
    expansion = {"strategy": "fixed", "attend": False, "length": 16}
    change_json(tmp_path / "saved" / "sentence_bert_config.json", query_expansion=expansion)
    with pytest.raises(UnsupportedError, match="query_expansion"):
        hs.match(tmp_path / "saved", QUERY, DOCUMENTS)


@pytest.mark.parametrize("strategy", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_sparse_models_are_a_sum_over_words(tmp_path: Path, strategy: str, activation: str) -> None:
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    plain = saved(tmp_path / "first", "sparse")
    model = library().SparseEncoder(modules=[plain[0], SpladePooling(strategy, activation)], device="cpu")
    model.save(str(tmp_path / "saved"), create_model_card=False)
    match = hs.match(tmp_path / "saved", QUERY, DOCUMENTS[1], check=False)[0]
    encoded = model.encode_query([QUERY]), model.encode_document([DOCUMENTS[1]])
    query, document = (of.to_dense()[0].numpy() for of in encoded)
    assert match.score == pytest.approx(query @ document, rel=1e-5)
    expected = sorted(query * document, reverse=True)[: len(match.dimensions)]
    np.testing.assert_allclose([one.share for one in match.dimensions], expected, rtol=1e-4, atol=1e-5)
    assert match.table.sum() == pytest.approx(match.score, rel=1e-5)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")  # PyTorch's, once
@pytest.mark.parametrize("measure", ["dot", "cosine"])
def test_a_sparse_vector_keeps_its_largest_weights(tmp_path: Path, measure: str) -> None:
    """max_active_dims, as the library saves it, and as the object has it; and its own similarity."""
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    plain = saved(tmp_path / "first", "sparse")
    modules = [plain[0], SpladePooling("max")]
    whole = library().SparseEncoder(modules=modules, device="cpu", similarity_fn_name=measure)
    model = library().SparseEncoder(modules=modules, device="cpu", similarity_fn_name=measure, max_active_dims=4)
    model.save(str(tmp_path / "saved"), create_model_card=False)
    scores = their_scores(model, QUERY, DOCUMENTS)
    assert not np.allclose(scores, their_scores(whole, QUERY, DOCUMENTS), rtol=1e-2)
    for given in (tmp_path / "saved", hs.open(model)):
        result = hs.match(given, QUERY, DOCUMENTS)
        np.testing.assert_allclose(result.scores, scores, rtol=1e-5)
        for match in result:
            assert len(match.dimensions) <= 4
            assert match.table.sum() == pytest.approx(match.score, rel=1e-5, abs=1e-6)
    change_json(tmp_path / "saved" / "config_sentence_transformers.json", similarity_fn_name="euclidean")
    with pytest.raises(UnsupportedError, match="the similarity is 'euclidean'; headscope computes cosine and dot"):
        hs.match(tmp_path / "saved", QUERY, DOCUMENTS)


def test_prompts_lengths_and_dot_products(tmp_path: Path) -> None:
    model = saved(tmp_path, "bi")
    folder = tmp_path / "saved"
    prompts = {"query": "her hat ", "document": "the mat ", "passage": "sat "}
    change_json(folder / "config_sentence_transformers.json", prompts=prompts, similarity_fn_name="dot")
    change_json(folder / "sentence_bert_config.json", max_seq_length=8, do_lower_case=True)
    model = library().SentenceTransformer(str(folder), device="cpu")
    with pytest.warns(NoteWarning, match=r"document \d was cut to 8 tokens"):
        result = hs.match(folder, "The CAT sat", DOCUMENTS)
    np.testing.assert_allclose(result.scores, their_scores(model, "The CAT sat", DOCUMENTS), rtol=1e-5)
    assert result[0].scoring.measure == "dot"
    notes = " ".join(result[1].notes)
    assert "prompt 'her hat ' was put before the query" in notes
    assert "document 1 was cut from 14 to 8 tokens" in notes
    assert "the query was lower-cased, as the model's files say" in notes
    assert "sentence-transformers leaves out the prompt 'passage'" in notes
    words = [part.label for part in result[1].query.parts() if not part.special]
    assert words == ["the", "cat", "sat"], "words of the prompt are named apart"


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("saved/config_sentence_transformers.json", {"activation_fn": IDENTITY}),
        ("plain/config.json", {"sentence_transformers": {"activation_fn": IDENTITY}}),
        ("plain/config.json", {"sbert_ce_default_activation_function": IDENTITY}),
    ],
)
def test_a_rerankers_activation_stands_where_its_version_wrote_it(
    tmp_path: Path, file: str, fields: dict[str, Any]
) -> None:
    saved(tmp_path, "cross")
    change_json(tmp_path / file, **fields)
    folder = (tmp_path / file).parent
    result = hs.match(folder, QUERY, DOCUMENTS, check=False)
    expected = their_scores(library().CrossEncoder(str(folder), device="cpu"), QUERY, DOCUMENTS)
    np.testing.assert_allclose(result.returned, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(result.returned, result.scores)


def test_plain_checkpoints_and_what_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "cross")
    assert hs.match(tmp_path / "plain", QUERY, DOCUMENTS[0])[0].scoring.kind == "cross"
    plain = hs.match(MINILM.parent / "model", QUERY, DOCUMENTS[0], check=False)
    assert plain[0].scoring.kind == "bi"
    readable(tmp_path / "three", "Bert", "ForSequenceClassification")
    saved(tmp_path / "bi", "bi")
    change_json(tmp_path / "bi" / "saved" / "1_Pooling" / "config.json", pooling_mode="max")
    for name, message in (("three", "another head"), ("bi/saved", "the pooling is")):
        with pytest.raises(UnsupportedError, match=message):
            hs.match(tmp_path / name, QUERY, DOCUMENTS)
    with pytest.raises(UnsupportedError, match="no masked-LM head"):
        hs.match(tmp_path / "three", QUERY, DOCUMENTS, kind="sparse")
    for model, arguments, options, message in (
        (MINILM, (QUERY, []), {}, "no documents"),
        (MINILM, (QUERY, ["a", " "]), {}, "document 1 is empty"),
        (MINILM, ("", ["a"]), {}, "the query is empty"),
        (MINILM, (["a"], ["a"]), {}, r"the query is \['a'\], not a text"),
        (MINILM, (QUERY, DOCUMENTS), {"level": "middle"}, "no level 'middle'"),
        (MINILM, (QUERY, DOCUMENTS), {"kind": "dense"}, "no kind 'dense'"),
        (3, (QUERY, DOCUMENTS), {}, "int can't be opened"),
        (tmp_path / "plain", (QUERY, DOCUMENTS), {"level": "output"}, "no output level"),
    ):
        with pytest.raises(InputError, match=message):
            hs.match(model, *arguments, **options)
    cross = hs.match(tmp_path / "plain", QUERY, DOCUMENTS, check=False)
    with pytest.raises(UnsupportedError, match="no sum over pairs"):
        cross[0].cells
    with pytest.raises(InputError, match="above itself"):
        cross.above(1, 1)
    with pytest.raises(InputError, match="no document 3"):
        cross[3]
    assert cross[cross.scores.argmax()] is cross[cross.ranking()[0]]
    with pytest.raises(InputError, match="no side 'left'"):
        cross[0].parts("left")


def test_sides_of_a_pair_by_every_family(tmp_path: Path) -> None:
    """The second text's first token follows the special tokens between both."""
    for stem in ("Bert", "Roberta", "ModernBert", "DebertaV2"):
        readable(tmp_path / stem, stem, "ForSequenceClassification", num_labels=1)
        match = hs.match(tmp_path / stem, "the cat sat", "her hat .", check=False)[0]
        for side, words in ((match.query, "the cat sat"), (match.document, "her hat .")):
            assert [part.label for part in side.parts() if not part.special] == words.split()
        assert sorted((*match.query.inside, *match.document.inside)) == list(range(len(match.query.axis)))


def test_heads_between_the_texts_of_a_cross_encoder(tmp_path: Path) -> None:
    """Weights by the trace, edges cut as `effects` does, the document's words masked one by one."""
    saved(tmp_path, "cross")
    model = hs.open(tmp_path / "plain")
    query, documents = "the cat sat", ["she took her hat", "the mat and the cat"]
    result = hs.match(model, query, documents)

    @cache
    def without(text: str, edge: tuple[int, int]) -> np.ndarray:
        return -model.effects(query, ("class", 0), pair=text, edge=edge).array

    expected = []
    for at, text in enumerate(documents):
        best = max((part for part in result.check(at, 20) if part.side == "document"), key=lambda part: part.change)
        words = [part.tokens[0] for part in result[at].document.parts() if not part.special]
        trace, place = model.trace(query, text), words.index(best.tokens[0])
        rows = []
        for head in (trace[place] for place in result.heads().positions()):
            put = head.weights[1:4][:, words]
            edge = int(put[:, place].argmax()) + 1, best.tokens[0]
            share = put.sum(0) / put.sum()
            rows.append((share[place], share.argmax() == place, without(text, edge)[head.layer, head.head]))
        expected.append(rows)
    heads = result.heads()
    assert heads["effect"].shape == without(documents[0], (1, 5)).shape
    for one, means in zip(heads.rows(), np.mean(expected, axis=0), strict=True):
        np.testing.assert_allclose([one["share"], one["found"], one["effect"]], means, atol=1e-5)
    assert heads.rows(by="found")[0]["found"] == heads["found"].max()
    trace = model.trace(query, documents[0])
    for link in result[0].links():
        edge = link.query.tokens[0], link.document.tokens[0]
        assert link.share == pytest.approx(float(trace[link.head].weights[edge]), abs=1e-6)
        assert link.together == pytest.approx(without(documents[0], edge)[link.head], abs=1e-5)
    with pytest.raises(UnsupportedError, match="reads each text alone"):
        hs.match(tmp_path / "plain", query, documents, kind="bi", check=False).heads()


def test_the_command(tmp_path: Path) -> None:
    saved(tmp_path, "late")
    page = tmp_path / "match.html"
    args = ["match", str(tmp_path / "saved"), QUERY, *DOCUMENTS]
    screen = run(*args, "--html", page, env={"COLUMNS": "100"})
    result = hs.match(tmp_path / "saved", QUERY, DOCUMENTS)
    first, second = result.ranking()[:2]
    assert f"document {first} less document {second}: {result.above(first, second).difference:+.4f}" in screen.output
    assert f"maxsim {result.scores[first]:.4f}" in screen.output
    assert f"document {first} is first (maxsim" in page.read_text()
    record = answer(*args)
    assert record["ranking"] == result.ranking()
    np.testing.assert_allclose([one["score"] for one in record["documents"]], result.scores, atol=1e-6)
    assert {part["side"] for part in record["documents"][0]["checks"]} <= {"query", "document"}
    sentences = run("match", str(tmp_path / "saved"), QUERY, "the cat sat . the hat", "--set", "by=sentence")
    assert "the cat sat ." in sentences.output


# A text's vector, and the parts of a cosine by it.


A = "She took off her hat and sat down, tired."
B = "Weary, the woman removed her hat and took a seat."
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}


def stated(folder: Path, pooling: dict[str, object], modules: object = None) -> Path:
    """The folder with the files that sentence-transformers writes."""
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(MODULES if modules is None else modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def output_level(model: hs.Model, a: str, b: str) -> Any:
    return hs.match(model, a, b, level="output", check=False)[0]


def test_cells_add_up_to_the_cosine_of_sentence_transformers(minilm: hs.Model) -> None:
    vectors = library().SentenceTransformer(str(MINILM), device="cpu").encode([A, B]).astype(float)
    found = output_level(minilm, A, B)
    assert found.scoring.pooling == Pooling("mean", normalized=True, stated=True, max_length=256)
    assert found.cells.sum() == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)
    states = [minilm.trace(text).outputs["last_hidden_state"].array.astype(float) for text in (A, B)]
    lengths = np.prod([len(state) * np.linalg.norm(state.mean(0)) for state in states])
    by_hand = [[float(x @ y) / lengths for y in states[1]] for x in states[0]]
    np.testing.assert_allclose(found.cells, by_hand, atol=1e-6)
    embedding = minilm.trace(A).outputs["sentence_embedding"]
    np.testing.assert_allclose(embedding, vectors[0], atol=1e-6)
    assert "sentence_embedding" in list(minilm.trace(A).outputs)
    assert found.notes == ()


def test_without_modules_json_the_mean_is_the_stated_default(tmp_path: Path) -> None:
    model, texts = hs.open(small_bert(tmp_path)), ("the cat sat", "the dog")
    result = output_level(model, *texts)
    assert not result.scoring.stated
    assert "the default" in str(model.pooling)
    a, b = (model.trace(text).outputs["last_hidden_state"].array.astype(float).mean(0) for text in texts)
    assert result.score == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-6)
    outputs = model.trace("the cat").outputs
    assert "sentence_embedding" not in list(outputs)
    with pytest.raises(InputError, match="no output 'sentence_embedding'"):
        outputs["sentence_embedding"]


TWO_MODES = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}


@pytest.mark.parametrize(
    ("config", "modules", "error", "message"),
    [
        ({"pooling_mode_max_tokens": True}, None, UnsupportedError, "max_tokens"),
        ({"pooling_mode": "lasttoken"}, None, UnsupportedError, "lasttoken"),
        (TWO_MODES, None, UnsupportedError, "mean_tokens' and 'cls_token"),
        ({}, None, UnsupportedError, "no mode"),
        ({}, [*MODULES, {"path": "2_Dense", "type": "x.Dense"}], UnsupportedError, "Dense"),
        ({}, [MODULES[0], {"path": "../../etc", "type": "x.Pooling"}], CheckpointError, r"\.\./\.\./etc"),
        ({}, [MODULES[0], {"path": "elsewhere", "type": "x.Pooling"}], CheckpointError, "no elsewhere/config.json"),
        ({}, {"a": 1}, CheckpointError, "expected a JSON list"),
        ({}, [7], CheckpointError, "a module is 7"),
    ],
)
def test_pooling_that_is_no_sum_is_refused(
    tmp_path: Path, config: dict[str, object], modules: object, error: type[HeadscopeError], message: str
) -> None:
    model = hs.open(stated(small_bert(tmp_path), config, modules))
    with pytest.raises(error, match=message):
        output_level(model, "the cat", "the dog")


def test_what_the_files_say_of_a_text_and_its_vector(tmp_path: Path) -> None:
    """In the words of older versions and of today's."""
    older = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    folder = stated(small_bert(tmp_path), older, [*MODULES, NORMALIZE])
    assert read_pooling(hs.open(folder).checkpoint) == Pooling("cls", normalized=True, stated=True)
    stated(folder, {"pooling_mode": "mean"})
    change_json(folder / "sentence_bert_config.json", max_seq_length=6, do_lower_case=True)
    prompt = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    change_json(folder / "config_sentence_transformers.json", **prompt)
    assert read_pooling(hs.open(folder).checkpoint) == Pooling("mean", False, True, 6, True, "query: ")


@pytest.mark.parametrize("damage", [b"[", b'1, "a": 2', b"\xff", b"[" * 200 + b"]" * 200, b"null"])
def test_damaged_modules(tmp_path: Path, damage: bytes) -> None:
    folder = small_bert(tmp_path)
    (folder / "modules.json").write_bytes(damage)
    with pytest.raises(CheckpointError, match=r"can't be read|expected"):
        output_level(hs.open(folder), "the cat", "the dog")


SAT, RAN = "The cat sat on the mat.", "A dog ran home."


@pytest.mark.parametrize(("mode", "normalised", "measure"), pairwise(("mean", "cls"), (False, True), ("cosine", "dot")))
def test_a_truncated_vector_is_sentence_transformers(mode: str, normalised: bool, measure: str, tmp_path: Path) -> None:
    library = bi_encoder(mode, normalised, truncate_dim=8, similarity_fn_name=measure)
    library.save(str(tmp_path), create_model_card=False)
    vectors = library.encode([SAT, RAN])
    score = float(library.similarity(vectors[0], vectors[1]))
    whole = bi_encoder(mode, normalised, similarity_fn_name=measure)
    assert abs(score - float(whole.similarity(*whole.encode([SAT, RAN])))) > 0.001
    for model in (hs.open(tmp_path), hs.open(library)):
        embedding = model.trace(SAT).outputs["sentence_embedding"]
        np.testing.assert_allclose(embedding, vectors[0], atol=1e-5)
        for level in ("input", "output"):
            match = hs.match(model, SAT, RAN, level=level, check=False)[0]
            assert match.score == pytest.approx(score, abs=1e-5)
            assert match.cells.sum() == pytest.approx(score - getattr(match, "rest", 0), abs=1e-4)
        assert (np.count_nonzero(match.cells) == 1) == (mode == "cls")  # of the last hidden states
        assert "its first 8 numbers" in str(model.pooling)


def test_outputs_that_read_the_vector_read_its_first_numbers(tmp_path: Path) -> None:
    bi_encoder("mean", True, truncate_dim=8).save(str(tmp_path), create_model_card=False)
    model = hs.open(tmp_path)
    traces = model.trace(SAT), model.trace(SAT, ablate=[(2, 1)]), model.trace(RAN)
    states = [trace.outputs["last_hidden_state"].array.astype(float) for trace in traces]
    own, without, there = (torch.tensor(part.mean(0)[:8]) for part in states)
    cosine = torch.nn.functional.cosine_similarity
    expected = {
        ("similarity", RAN): (cosine(own, there, dim=0), cosine(without, there, dim=0)),
        ("embedding_distance",): (torch.tensor(0.0), 1 - cosine(own, without, dim=0)),
        ("embedding",): (torch.tensor(1.0), without @ own / (own @ own)),
    }
    for target, (before, after) in expected.items():
        effects = model.effects(SAT, target)
        assert effects.base == pytest.approx(float(before), abs=1e-5)
        assert np.asarray(effects)[2, 1] == pytest.approx(float(after - before), abs=1e-5)
    answer = model.attribute(SAT, ("similarity", RAN))
    assert answer.total == pytest.approx(float(expected["similarity", RAN][0]), abs=1e-5)
    assert answer.gap == pytest.approx(0, abs=1e-4)


def test_null_truncates_nothing_and_what_is_no_number_is_refused(tmp_path: Path) -> None:
    bi_encoder("mean", True).save(str(tmp_path), create_model_card=False)
    file = tmp_path / "config_sentence_transformers.json"
    change_json(file, truncate_dim=None)
    assert hs.open(tmp_path).trace(SAT).outputs["sentence_embedding"].shape == (192,)
    for wrong in (0, -8, "8", 8.5, True):
        change_json(file, truncate_dim=wrong)
        with pytest.raises(CheckpointError, match=r"truncate_dim is .*, expected a positive number"):
            hs.match(hs.open(tmp_path), SAT, RAN)
