"""What is done to a text before a model sees it, at every way in, against sentence-transformers itself."""

from __future__ import annotations

import copy
import json
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscope as hs
from commands import answer, run
from explain.tops import bi_encoder, readable
from headscope.errors import NoteWarning
from making import change_json
from naive_layers import MINILM

pytestmark = pytest.mark.filterwarnings("ignore::headscope.errors.NoteWarning")
"""Texts longer than the models read are the subject here; that they are said is a test of its own."""

A = "The cat sat on the mat and looked at the dog. " * 30
B = "Where is the old ship of the line? It left the harbour at dawn. " * 24
SHORT = "She took off her HAT and sat down."


@lru_cache(maxsize=1)
def library_of(folder: Path) -> Any:
    """The model of a folder as sentence-transformers reads it; no test changes it."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A published model, and what sentence-transformers writes of the bundled one."""
    made, plain = {"published": MINILM}, bi_encoder("mean", normalised=True)
    for name in ("saved", "cut", "prompt", "without prompt", "first without prompt", "lower"):
        model = copy.deepcopy(plain)
        model.max_seq_length = 24 if name == "cut" else 48
        if "prompt" in name:
            model.prompts, model.default_prompt_name = {"find": "Find the BEST: "}, "find"
            model.set_pooling_include_prompt(name == "prompt")
        if name.startswith("first"):
            model[1].pooling_mode = "cls"
        made[name] = tmp_path_factory.mktemp("saved") / name
        model.save_pretrained(str(made[name]))
        if name == "lower":
            _cased(made[name])
    return made


def _cased(folder: Path) -> None:
    """A tokenizer that keeps the case, in a model that lower-cases."""
    change_json(folder / "tokenizer_config.json", do_lower_case=False)
    change_json(folder / "sentence_bert_config.json", do_lower_case=True)
    normalizer = json.loads((folder / "tokenizer.json").read_text())["normalizer"]
    change_json(folder / "tokenizer.json", normalizer={**normalizer, "lowercase": False})


# Of a module's scope: all tests of one model run after one another, and it is loaded once.
NAMES = ("published", "saved", "cut", "prompt", "without prompt", "first without prompt", "lower")


@pytest.mark.parametrize("name", NAMES, scope="module")
def test_every_way_in_gives_the_library_s_cosine(folders: dict[str, Path], name: str) -> None:
    first, second = SHORT, A
    library = library_of(folders[name])
    vectors = library.encode([first, second]).astype(np.float64)
    cosine = float(vectors[0] @ vectors[1])
    model = hs.open(folders[name])
    target = ("similarity", second)
    found = model.attribute(first, target, check=False)
    assert found.total == pytest.approx(cosine, abs=2e-6)
    assert found.gap == pytest.approx(0, abs=1e-5)
    assert model.effects(first, target, method="mean").base == pytest.approx(cosine, abs=2e-6)
    tokens = library.tokenize([library.prompts.get(library.default_prompt_name, "") + first])["input_ids"][0].tolist()
    assert list(found.axis.ids) == tokens
    if "prompt" not in name:  # a match puts the prompts of queries and documents before its texts, and no default
        assert hs.match(model, first, second, level="output", check=False)[0].score == pytest.approx(cosine, abs=2e-6)


@pytest.mark.parametrize("name", ["cut", "without prompt"], scope="module")
def test_long_texts_are_cut_as_the_library_cuts_them(folders: dict[str, Path], name: str) -> None:
    library = library_of(folders[name])
    one, other = library.encode([A, B]).astype(np.float64)
    model = hs.open(folders[name])
    found = model.effects(A, ("similarity", B), method="mean")
    assert found.base == pytest.approx(float(one @ other), abs=2e-6)
    assert len(found.axis) == library.max_seq_length


@pytest.mark.parametrize("name", NAMES, scope="module")
def test_a_trace_has_the_library_s_tokens_and_vector(folders: dict[str, Path], name: str, tmp_path: Path) -> None:
    library = library_of(folders[name])
    model = hs.open(folders[name])
    before = library.prompts.get(library.default_prompt_name, "")
    for text, trace in zip([SHORT, A], model.trace([SHORT, A]), strict=True):
        expected = library.encode(text)
        np.testing.assert_allclose(trace.outputs["sentence_embedding"].array, expected, atol=1e-6)
        assert list(trace.ids) == library.tokenize([before + text])["input_ids"][0].tolist()
        kept = hs.load(trace.save(tmp_path / "trace.safetensors"), model=model)
        np.testing.assert_allclose(kept.outputs["sentence_embedding"].array, expected, atol=1e-6)
        assert kept.notes == trace.notes
        again = model.trace(trace.text)  # the page's box of text shows this
        assert again.ids == trace.ids
        words = {trace.text[slice(*span)] for span in trace.queries.spans if span is not None}  # type: ignore[index]
        assert "hat" in {word.lower() for word in words} if text == SHORT else "cat" in words
        assert not {word.lower() for word in words} & {"find", "best"}


def test_a_person_s_limit_replaces_the_model_s(folders: dict[str, Path]) -> None:
    library = library_of.__wrapped__(folders["cut"])
    library.max_seq_length = 256
    model = hs.open(folders["cut"])
    text = A[: len(A) // 9]
    trace = model.trace(text, max_length=256)
    assert (len(trace), trace.notes) == (42, ())
    np.testing.assert_allclose(trace.outputs["sentence_embedding"].array, library.encode(text), atol=1e-6)
    assert model.effects(text, ("embedding",), method="mean", max_length=256).axis.ids == trace.ids
    with pytest.warns(NoteWarning, match="cut to 256 tokens"):
        assert model.trace(A + B, max_length=9999).notes == ("the text was cut from 794 to 256 tokens",)
    ids = list(trace.ids)
    assert (model.trace(ids=ids).ids, model.trace(ids=ids).notes) == (trace.ids, ())  # ids are used as they are


def test_the_page_reads_the_target_from_the_same_tokens(folders: dict[str, Path]) -> None:
    from headscope.page.questions import Question
    from headscope.page.runs import compared, rerun

    model = hs.open(folders["without prompt"])
    trace = model.trace(SHORT)
    question = Question("change", wanted=("embedding",), mask=(len(trace) - 3,))
    after = rerun(model, trace, question)
    vector = trace.outputs["sentence_embedding"].array.astype(np.float64)
    cosine = float(after.outputs["sentence_embedding"].array @ vector)
    record = compared(model, "t1", trace, after, question)
    length = np.linalg.norm(after.outputs["last_hidden_state"].array[trace.prompt :].mean(0))
    unit = np.linalg.norm(trace.outputs["last_hidden_state"].array[trace.prompt :].mean(0))
    assert trace.prompt == 5  # [CLS] find the best :
    assert record["result"]["after"] == pytest.approx(cosine * length / unit, abs=1e-5)
    assert after.notes == trace.notes


def short(folder: Path, kind: str, suffix: str, **config: Any) -> Any:
    """A model of sentence-transformers that reads twelve tokens."""
    import sentence_transformers

    readable(folder / "plain", "Bert", suffix, **config)
    library = getattr(sentence_transformers, kind)(str(folder / "plain"), device="cpu")
    library.max_seq_length = 12
    return library


@pytest.mark.parametrize(
    ("kind", "suffix"), [("CrossEncoder", "ForSequenceClassification"), ("SparseEncoder", "ForMaskedLM")]
)
def test_models_without_a_text_s_vector_cut_as_the_library_does(tmp_path: Path, kind: str, suffix: str) -> None:
    library = short(tmp_path, kind, suffix, num_labels=1)
    library.prompts, library.default_prompt_name = {"find": "her hat : "}, "find"
    library.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    model = hs.open(tmp_path / "saved")
    first, second = "the cat sat on the mat", "the dog took her hat and sat down . " * 3
    if kind == "CrossEncoder":
        expected = library.predict([(first, second)], activation_fn=torch.nn.Identity()).tolist()
        assert model.predict(first, second).logits.tolist() == pytest.approx(expected, abs=1e-5)
        assert model.predict(first, second).notes == model.trace(first, second).notes != ()
        found = model.attribute(first, pair=second, check=False)
        assert found.total == pytest.approx(expected[0], abs=1e-5)
        return
    tokens = library.tokenize(["her hat : [MASK] " + second])["input_ids"][0].tolist()
    trace = model.trace("[MASK] " + second)
    assert list(trace.ids) == tokens == list(model.attribute("[MASK] " + second, check=False).axis.ids)
    assert [mask.position for mask in model.fill("[MASK] " + second)] == [tokens.index(model.tokenizer.mask_id)]


def test_comparisons_and_surveys_read_the_model_s_texts(folders: dict[str, Path]) -> None:
    from headscope.atlas.loading import ModelSource
    from headscope.atlas.replica import Replica
    from headscope.atlas.survey_settings import Settings

    cut, lower = hs.open(folders["cut"]), hs.open(folders["lower"])
    compared = hs.compare(cut, lower, [A, SHORT])
    assert "documents are cut at 24 tokens: 1 of 2 reach that length" in compared.notes
    assert f"{lower.name}: the text was lower-cased, as the model's files say" in compared.notes
    assert not any("tokenizers differ" in note for note in compared.notes)
    source = ModelSource(str(folders["lower"]))
    windows = Replica(source, Settings()).cutter.cut([A, SHORT])
    tokens = [list(lower.trace(text).ids) for text in (A, SHORT)]
    assert [list(windows[0].ids), list(windows[-1].ids)] == tokens
    assert max(map(len, windows)) == 48


def test_notes_say_what_was_done(folders: dict[str, Path]) -> None:
    cut = hs.open(folders["cut"])
    assert cut.pooling.max_length == 24
    with pytest.warns(NoteWarning, match="was cut to 24 tokens"):
        notes = cut.effects(SHORT, ("similarity", A), method="mean").notes
    assert len(notes) == 1
    assert notes[0].endswith("was cut from 362 to 24 tokens")
    with pytest.warns(NoteWarning, match="the text was cut to 24 tokens"):
        assert cut.effects(A, ("embedding",), method="mean").notes == ("the text was cut from 362 to 24 tokens",)
    assert cut.attribute(A, max_length=20, check=False).notes == ("the text was cut from 362 to 20 tokens",)
    notes = hs.open(folders["without prompt"]).attribute(SHORT, check=False).notes
    assert notes[0] == "the model's prompt 'Find the BEST: ' was put before the text"
    assert "left out of the text's vector" in notes[1]
    lowered = hs.open(folders["lower"]).attribute(SHORT, check=False)
    assert lowered.notes == ("the text was lower-cased, as the model's files say",)
    assert lowered.text == SHORT.lower()


def test_a_cut_is_said_where_people_look(folders: dict[str, Path]) -> None:
    """By one warning at the reader's own line, whatever the number of texts, and in the trace's repr."""
    model = hs.open(folders["cut"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        traces = model.trace([A, SHORT, A + B])
    (said,) = caught
    assert issubclass(said.category, hs.HeadscopeWarning)
    assert said.filename == __file__
    assert str(said.message) == "the text was cut to 24 tokens, the most that the model reads: see .notes"
    assert [repr(trace).partition("; ")[2] for trace in traces] == [
        "the text was cut from 362 to 24 tokens", "", "the text was cut from 794 to 24 tokens"
    ]  # fmt: skip
    model.trace(A, max_length=24)  # who gives the limit knows it


def test_a_special_token_keeps_its_case(folders: dict[str, Path]) -> None:
    text = "The [MASK] SAT down."
    library = library_of(folders["lower"])
    found = hs.open(folders["lower"]).attribute(text, ("embedding",), check=False)
    assert list(found.axis.ids) == library.tokenize([text])["input_ids"][0].tolist()


def test_the_screen_says_what_was_cut(folders: dict[str, Path]) -> None:
    arguments = ("attribute", folders["cut"], A, "--set", "check=false")
    note = "the text was cut from 362 to 24 tokens"
    assert note in " ".join(run(*arguments).output.split())
    assert answer(*arguments)["notes"] == [note]


@pytest.mark.parametrize("command", ["attend", "predict", "verify", "why"])
def test_commands_say_what_was_done_to_a_text(tmp_path: Path, command: str) -> None:
    short(tmp_path, "SparseEncoder", "ForMaskedLM").save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    more = {"why": ["0.0", "1", "2"]}.get(command, [])
    result = run(command, str(tmp_path / "saved"), "[MASK] sat " + "the cat " * 12, *more, "--json")
    note = "the text was cut from 28 to 12 tokens"
    assert result.stderr.count(note) == 1
    assert command in ("verify", "why") or json.loads(result.stdout)["notes"] == [note]
