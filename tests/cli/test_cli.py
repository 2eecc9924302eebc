"""The commands, run in this process: forms of output, exit codes, errors in words; the tour."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex

import numpy as np
import pytest

import headscope as hs
from commands import answer, run
from headscope.errors import UnsupportedError
from headscope.screens.anatomy_sheets import shapes_sheet
from headscope.screens.labels import width
from headscope.screens.terminal import Paper, plain_text
from headscope.screens.tour import proof, take_tour, tour_drawings
from headscope.verify import Check, Report
from making import BASE, BERT_CONFIG, bert_checkpoint, change_json, sparse_safetensors, write_config
from small_bert import small_bert

TEXT = "The cat sat on the mat."
ESCAPE = "\x1b"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return str(bert_checkpoint(tmp_path_factory.mktemp("base"), published=True))


# What is in a checkpoint


def test_shapes_in_csv_and_markdown(published):
    rows = list(csv.DictReader(io.StringIO(run("shapes", published, "--csv").stdout)))
    assert len(rows) == 206
    assert sum(int(row["count"]) for row in rows if row["part"] == "base") == 109_482_240
    lines = run("shapes", published, "--markdown").stdout.splitlines()
    assert len(lines) == 2 + 206
    assert lines[2] == "| `embeddings.word_embeddings.weight` | (30522, 768) | F32 | 23,440,896 | embeddings | base |"


@pytest.mark.parametrize("command", ["shapes", "summary", "config"])
def test_screens_fit_eighty_columns_in_a_pipe(command, published):
    text = run(command, published).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert ESCAPE not in text


def test_summary_says_first_what_is_wrong(tmp_path):
    """Missing, not finite, or more tokens than the embeddings have rows; `--strict` exits with 1."""
    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "bert"
    small_bert(folder)
    run("summary", folder, "--strict")
    file = folder / "model.safetensors"
    whole = load_file(file)
    name = next(key for key in whole if key.endswith("layer.1.output.dense.weight"))
    words = next(key for key in whole if key.endswith("word_embeddings.weight"))
    for said, changed in (
        (f"NaN or infinity in: {name}", {name: np.full_like(whole[name], np.nan)}),
        ("missing from the checkpoint", {name: None}),
        ("the tokenizer has", {words: whole[words][:-2]}),
    ):
        tensors = {key: value for key, value in {**whole, **changed}.items() if value is not None}
        save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, file)
        change_json(folder / "config.json", vocab_size=len(tensors[words]))
        strict = run("summary", folder, "--strict", code=1).stdout
        assert said in strict
        assert strict == run("summary", folder).stdout
        record = answer("summary", folder)
        assert record["problems"] or record["missing"]


def test_head_says_where_its_slices_lie(small, tmp_path):
    found = answer("head", small, "1.1")
    query = found["slices"][0]
    assert query["tensor"] == "bert.encoder.layer.1.attention.self.query.weight"
    assert (query["axis"], query["start"], query["stop"], query["shape"]) == ("rows", 24, 48, [48, 24])
    head = hs.open(small).layers[1].heads[1]
    assert query["norm"] == pytest.approx(float(np.linalg.norm(head.W_Q)))
    saved = run("head", small, "1.1", "--save", tmp_path / "head.npz")
    assert "wrote" in saved.stderr
    assert "wrote" not in saved.stdout
    with np.load(tmp_path / "head.npz") as file:
        np.testing.assert_array_equal(file["W_O"], head.W_O)


# What it does with a text


def test_attend_threshold(small):
    rows = list(
        csv.DictReader(
            io.StringIO(run("attend", small, TEXT, "--heads", "0.1", "--set", "threshold=0.7", "--csv").stdout)
        )
    )
    assert [(row["query"], row["key"]) for row in rows] == [(str(at), str(at)) for at in range(9)]


def test_attend_pair_words_ids_and_max_length(small):
    assert answer("attend", small, "the cat", "--pair", "the dog")["segments"] == [0, 0, 0, 0, 1, 1, 1]
    assert answer("attend", small, "tired dog", "--set", "words=true")["tokens"] == [
        "[CLS]",
        "tir",
        "##ed",
        "dog",
        "[SEP]",
    ]
    assert answer("attend", small, "2, 5 6 3", "--set", "ids=true")["tokens"] == ["[CLS]", "the", "cat", "[SEP]"]
    assert len(answer("attend", small, "the cat " * 30, "--set", "max_length=8")["tokens"]) == 8


@pytest.mark.parametrize("ending", ["npz", "csv", "safetensors"])
def test_attend_saves(small, tmp_path, ending):
    path = tmp_path / f"weights.{ending}"
    result = run("attend", small, TEXT, "--heads", "0", "--save", path, "--json")
    assert path.stat().st_size > 0
    assert str(path) in result.stderr
    json.loads(result.stdout)


def test_a_saved_trace_is_seen_again(small, tmp_path):
    file = tmp_path / "cat.safetensors"
    fresh = answer("attend", small, TEXT, "--heads", "0.1", "--save", file)
    again = answer("attend", file, "--heads", "0.1")
    assert again["tokens"] == fresh["tokens"]
    np.testing.assert_array_equal(again["weights"], fresh["weights"])
    page = run("view", file, "--html", tmp_path / "cat.html")
    assert "wrote" in page.stderr
    assert (tmp_path / "cat.html").stat().st_size > 10_000
    assert "can't change a saved trace" in run("attend", file, "--ablate", "0.1", code=2).stderr
    assert "hs.load" in run("shapes", file, code=2).stderr
    assert "hs.load" in run("attend", file, TEXT, code=2).stderr


def test_what_looks_wrong_is_said_beside_the_answer(tmp_path):
    """The config counts one layer, the file has two: one is computed, as transformers does, and that is said."""
    folder = small_bert(tmp_path)
    change_json(folder / "config.json", num_hidden_layers=1)
    found = run("attend", folder, TEXT, "--json")
    assert "num_hidden_layers" in found.stderr
    assert json.loads(found.stdout)


def test_a_text_from_standard_input(small):
    def piped(*args: str, given: bytes):
        return run(*args, "--json", input=given, code=None)

    read = piped("attend", small, "-", "--heads", "0.1", given=f"{TEXT}\n".encode())
    assert json.loads(read.stdout) == answer("attend", small, TEXT, "--heads", "0.1")
    assert "not valid UTF-8: byte 1 is 0xff" in piped("attend", small, "-", given=b"a\xff").stderr


def test_a_text_that_was_left_out(small):
    assert "- 'The cat sat.'" in run("attend", "The cat sat.", code=2).stderr
    for command in ("attend", "verify", "predict"):
        assert f'{shlex.quote(small)} "The cat sat on the mat."' in run(command, small, code=2).stderr


def test_verify_exits_with_1_where_it_does_not_agree(small, monkeypatch):
    wrong = Report("small", (Check("weights", "a against b", 0.5, 2e-5, "fp32", 1, 0, 2, 3),))
    monkeypatch.setattr(hs.Trace, "verify", lambda *_, **__: wrong)
    text = run("verify", small, TEXT, code=1).stdout
    assert "1 of 1 comparisons do not agree" in text
    assert re.search(r"layer 1, head 0,\s+(query 2,\s+)?", text)


COMMANDS = {
    "shapes": (),
    "summary": (),
    "config": (),
    "fit": ("BertForSequenceClassification",),
    "head": ("1.0",),
    "attend": ("the cat's hat", "--pair", "she sat", "--ablate", "0.1", "--set", "max_length=9"),
    "verify": ("5 6 7", "--set", "ids=true"),
    "predict": ("the [MASK] sat",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_next_step_can_be_pasted(small, command):
    """Every screen ends with a command of its own model and text, which a shell takes and which runs."""
    *_, last = run(command, small, *COMMANDS[command]).stdout.splitlines()
    program, *args = shlex.split(last.removeprefix("next: "))
    assert program == "headscope"
    assert args[1] == small
    if command in ("attend", "verify", "predict"):
        assert args[2] == COMMANDS[command][0]
        assert set(COMMANDS[command][1:]) <= set(args[3:])
    if args[0] != "view":
        run(*args)
    assert "next: " not in run(command, small, *COMMANDS[command], "--json").stdout


@pytest.mark.parametrize(
    ("typed", "options", "step"),
    [
        (["attend", "-the cat"], ["--set", "max_length=9"], "attend"),
        (["match", "-the cat", "a dog"], ["--set", "check=false"], "attribute"),
        (["match", "-", "a dog"], ["--set", "check=false"], "summary"),
    ],
)
def test_a_step_after_a_text_that_begins_with_a_dash_can_be_pasted(small, typed, options, step):
    *_, last = run(typed[0], *options, "--", small, *typed[1:]).stdout.splitlines()
    program, command, *args = shlex.split(last.removeprefix("next: "))
    assert (program, command, args[-2:]) == ("headscope", step, [small, "-the cat"] if "-the cat" in typed else [small])
    assert "max_length=9" in args or typed[0] == "match"
    run(command, *args)


def test_a_step_after_a_long_text_is_about_the_model(small):
    *_, last = run("attend", small, 100 * "cat ", "--set", "max_length=9").stdout.splitlines()
    assert last == f"next: headscope summary {shlex.quote(small)}"


def test_shapes_at_a_terminal_shows_layers_that_are_alike_once(published):
    sheet, every = (shapes_sheet(hs.open(published), every=every) for every in (False, True))
    terminal, pipe = (plain_text(sheet.drawings, Paper(width=120, folds=folds)) for folds in (True, False))
    assert "encoder.layer.0-11.attention.self.query.weight" in terminal
    assert "7,077,888" in terminal  # 12 x 768 x 768
    assert "199 tensors, 109,482,240 parameters" in terminal.splitlines()
    assert terminal.count("\n") < 45
    for whole in (pipe, plain_text(every.drawings, Paper(width=120))):
        assert whole.count("encoder.layer.") == 192
        assert "layer.0-11" not in whole


def test_fill_with_a_head_silenced(small):
    args = "predict", small, "the [MASK] sat on [MASK]", "--top", "3"
    found = answer(*args, "--ablate", "0.1")
    assert found != answer(*args)
    for mask, one in zip(found["masks"], hs.open(small).fill(args[2], top=3, ablate={(0, 1)}), strict=True):
        assert mask["position"] == one.position
        assert [piece["probability"] for piece in mask["pieces"]] == pytest.approx(one.probabilities)


@pytest.mark.parametrize("form", ["json", "csv", "markdown"])
def test_a_form_has_a_short_option(small, form):
    assert run("shapes", small, "--as", form).stdout == run("shapes", small, f"--{form}").stdout
    short, long = (run("head", small, "9.9", *form, code=2).stdout for form in ([f"--{form}"], [f"--as={form}"]))
    assert short == long
    assert short.startswith("{") is (form == "json")


# Errors: what, where, what to do; exit code 2; no traceback; nothing on stdout


def refused(*args: str) -> str:
    result = run(*args, code=2)
    assert result.stdout == "" or "--json" in args
    assert "Traceback" not in result.stderr
    assert re.sub(r"(?m)\A(  \S.*\n)+", "", result.stderr).startswith("error: ")  # settings may be listed first
    assert "what to do: " in result.stderr
    assert ESCAPE not in result.stderr
    return result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["attend", "{small}", ""], "is empty"),
        (["attend", "{small}", "the", "--heads", "2"], "no layer 2"),
        (["attend", "{small}", "the", "--heads", "0.2"], "no head 2"),
        (["attend", "{small}", "the", "--heads", "0.1,1"], "can't be shown together"),
        (["attend", "{small}", "the", "--heads", "0.1,1.0", "--save", "x.npz"], "--save writes one head"),
        (["attend", "{small}", "the", "--heads", ","], "no head was given"),
        (["attend", "{small}", "the", "--heads", "x.1"], "'x.1' is not a head"),
        (["attend", "{small}", "the", "--heads", "0", "--top", "2"], "requires a head, and a layer is selected"),
        (["attend", "{small}", "the cat", "-q", "dog"], "no token 'dog'"),
        (["attend", "{small}", "the cat", "--heads", "0.0", "-q", "dog"], "no token 'dog'"),
        (["attend", "{small}", "the", "--heads", "0.0", "--set", "threshold=70"], "is not between 0 and 1"),
        (["attend", "{small}", "the", "--heads", "0.0", "--top", "0"], "--top is 0"),
        (["attend", "{small}", "the", "--heads", "0.0", "--set", "start=9"], "no token 9"),
        (["attend", "{small}", "the", "--set", "scale=log"], "unknown scale 'log'"),
        (["attend", "{small}", "the", "--ablate", "x"], "is not a head"),
        (["attend", "{small}", "the", "--ablate", "3"], "no layer 3"),
        (["attend", "{small}", "the", "--ablate", "0.7"], "no head 7"),
        (["attend", "{small}", "1 x", "--set", "ids=true"], "'x' is not a token id"),
        (["view", "{small}", "cat", "--html", "cat.html", "--heads", "0,x"], "'x' is not a head"),
        (["view", "{small}", "cat", "--html", "cat.html", "--heads", "0.0,1.1"], "the same heads of each"),
        (["view", "{small}", "cat", "--set", "runs=false"], "runs requires --html"),
        (["view", "{small}", "cat", "--heads", "0"], "--heads requires --html"),
        (["attend", "{small}", "999", "--set", "ids=true"], "999"),
        (["attend", "{small}", " ", "--set", "words=true"], "no word was given"),
        (["attend", "{small}", "1", "--set", "ids=true", "--set", "words=true"], "both words and ids"),
        (["attend", "{small}", "1", "--set", "ids=true", "--pair", "x"], "--pair can't be combined"),
        (["attend", "{small}", "the cat " * 30], "62"),
        (["attend", "{small}", "the", "--save", "x.png"], "unsupported suffix"),
        (["attend", "{small}", "the", "--save", "/nowhere/x.npz"], "can't be written"),
        (["attend", "{small}", "the", "--json", "--csv"], "exclude each other"),
        (["attend", "{small}", "the", "--as", "csv", "--json"], "exclude each other"),
        (["attend", "{small}", "the", "--set", "max_length"], "'max_length' has no value"),
        (["attend", "{small}", "the", "--set", "max_length=3.5"], "'3.5' is not a whole number"),
        (["attend", "{small}", "the", "--set", "ids=perhaps"], "'perhaps' is not true or false"),
        (["attend", "{small}", "the", "--set", "start=1", "--set", "start=2"], "start is set twice"),
        (["head", "{small}", "0"], "0 is not one head"),
        (["head", "{small}", "0.-9"], "-9"),
        (["head", "{small}", "0.2"], "no head 2"),
        (["head", "{small}", "0.1", "--save", "x.csv"], "unsupported suffix"),
        (["fit", "{small}", "BertForEverything"], "no class 'BertForEverything'"),
        (["predict", "{small}", "the [MASK]", "--top", "0"], "top is 0"),
        (["shapes", "{small}", "--tree", "--csv"], "--tree shows a tree, not a table"),
        (["shapes", "{small}", "--modules", "--all"], "--modules shows a tree, not a table"),
        (["view", "{small}", "--heads", "0.1"], "add a TEXT"),
        (["view", "{small}", "--pair", "the cat"], "add a TEXT"),
        (["head", "{small}", "x.0"], "x.0"),
        (["shapes", "nowhere/at-all"], "nowhere/at-all"),
        (["effects", "{small}"], "TEXT is missing"),
        (["effects", "{small}", "the [MASK]", "--target", "hat", "--set", "vector=true"], "exclude each other"),
        (["effects", "{small}", "the [MASK]", "--at", "5"], "--at requires --target"),
        (["effects", "{small}", "the [MASK]", "--top", "0"], "--top is 0"),
        (["compare", "-", "no-such-folder/at/all"], "no-such-folder"),
        (["why", "{small}", "the cat", "0.0", "dog", "cat"], "where: QUERY"),
        (["why", "{small}", "the cat", "0.0", "cat", "dog"], "where: KEY"),
    ],
)
def test_refusals(args, said, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused(*(arg.format(small=small) for arg in args))
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_refused(tmp_path):
    write_config(tmp_path, {**BERT_CONFIG, **BASE})
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 16)
    for command in (["shapes"], ["summary"], ["attend", "text"]):
        refused(command[0], str(tmp_path), *command[1:])


def test_a_model_without_masked_lm_is_refused_by_name(tmp_path):
    said = refused("predict", str(small_bert(tmp_path, masked_lm=False)), "the [MASK]")
    assert "no head that predicts" in said


def test_another_family_has_its_table_and_no_heads(tmp_path):
    write_config(tmp_path, {"model_type": "gpt2"})
    sparse_safetensors(tmp_path / "model.safetensors", {"wte.weight": ("F16", (10, 4)), "h.0.b": ("F32", (4,))})
    assert answer("shapes", str(tmp_path))["total"] == 44
    assert "gpt2" in run("summary", str(tmp_path)).stdout
    assert "doesn't know the heads" in repr(hs.open(tmp_path))
    run("shapes", str(tmp_path), "--tree")
    run("config", str(tmp_path))
    for command in (["head", "0.0"], ["attend", "text"], ["verify", "text"], ["predict", "text"]):
        refused(command[0], str(tmp_path), *command[1:])


def test_debug_shows_the_traceback_wherever_it_stands(small):
    for args in (["--debug", "attend", small, ""], ["attend", small, "", "--debug"]):
        result = run(*args, code=None)
        assert isinstance(result.exception, hs.HeadscopeError)


def test_debug_after_two_dashes_is_text(small):
    found = json.loads(run("attend", small, "--json", "--", "--debug").stdout)
    assert found["tokens"] == ["[CLS]", "[UNK]", "[UNK]", "[UNK]", "[SEP]"]


def test_words_that_the_vocabulary_lacks_are_said():
    assert "8 tokens, 6 of them unknown to its vocabulary" in run("attend", "-", "吾輩は猫である。").stdout
    assert "unknown" not in run("attend", "-", "The cat sat.").stdout


def test_wrong_usage_exits_with_2(small):
    for args in (["shapes"], ["nonsense"], ["shapes", small, "--nonsense"]):
        result = run(*args, code=2)
        assert result.stdout == ""
        assert "Traceback" not in result.stderr


def test_one_statistic_of_every_head(small):
    """The screen's grid holds the entropies of the weights themselves, and names the heads at the ends."""
    trace = hs.open(small).trace(TEXT)
    entropies = np.zeros((2, 2))
    for layer, head in np.ndindex(2, 2):
        p = np.asarray(trace[layer, head].weights, dtype=np.float64)
        entropies[layer, head] = -(p * np.log(p, where=p > 0, out=np.zeros_like(p))).sum(1).mean()
    text = run("attend", small, TEXT, "--statistic", "entropy").stdout
    grid = [line.split()[2:] for line in text.splitlines() if re.match(r"layer +\d", line)]
    np.testing.assert_allclose(np.array(grid, dtype=float), entropies, atol=0.006)
    layer, head = np.unravel_index(entropies.argmax(), (2, 2))
    assert f"Layer {layer}, head {head} spreads its weight widest" in text
    record = answer("attend", small, TEXT, "--statistic", "entropy")
    assert record["statistic"] == "entropy"
    assert [row["entropy"] for row in record["heads"]] == pytest.approx(entropies.ravel().tolist(), abs=1e-5)
    assert "unknown statistic 'banana'" in run("attend", small, TEXT, "--statistic", "banana", code=2).stderr
    for more in (["--heads", "0"], ["--query", "1"], ["--top", "2"], ["--set", "threshold=0.5"]):
        assert "of all heads" in run("attend", small, TEXT, "--statistic", "entropy", *more, code=2).stderr


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    model = hs.open(small_bert(tmp_path_factory.mktemp("small")))
    model.checkpoint.name = "-"
    return take_tour(model)


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_the_tour_is_one_screen(tour, columns):
    lines = plain_text(tour_drawings(tour), Paper(columns)).splitlines()
    assert max(map(width, lines)) <= min(columns, 100)
    assert columns < 100 or len(lines) <= 40


def test_the_head_is_the_one_that_the_prediction_rests_on(tour):
    """The model runs with each head silenced, and the predicted token's probability is read from the logits."""
    token, place = tour.model.tokenizer.id(tour.effects.target.label), tour.filled.position

    def probability(**options) -> float:
        logits = np.float64(tour.model.trace(tour.trace.text, **options).outputs["logits"].array[place])
        return float(np.exp(logits[token] - logits.max()) / np.exp(logits - logits.max()).sum())

    assert tour.head == min(np.ndindex(2, 2), key=lambda head: probability(ablate={head}))
    line = " ".join(plain_text(tour_drawings(tour), Paper(100)).split())
    assert f"rests most on head {tour.head[1]} of layer {tour.head[0]}" in line
    assert f"is {probability(ablate={tour.head}):.1%} instead of {probability():.1%}" in line
    row = np.array(tour.trace[tour.head].weights[place])
    row[[0, place, -1]] = 0  # [CLS], [MASK], [SEP]
    key = int(row.argmax())
    assert f"[MASK] looks at “{tour.trace.tokens[key]}” more than at any other word: {row[key]:.0%}" in line


def test_its_commands_work(tour, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tour.model.checkpoint.where
    lines = plain_text(tour_drawings(tour), Paper(100)).splitlines()
    commands = [shlex.split(line.split("   ")[0]) for line in lines if line.startswith("  headscope ")]
    assert [command[1] for command in commands] == ["effects", "attend", "view", "summary", "view"]
    for command in commands[:3]:
        arguments = [folder if part == "-" else part for part in command[1:]]
        run(*arguments)


def test_it_never_calls_a_difference_proven():
    wrong = Report("x", (Check("weights", "a against b", float("nan"), 2e-5, "fp32"),))
    assert proof(wrong).startswith("NOT verified: weights")


def test_a_model_that_fills_no_masks_has_no_tour(tmp_path):
    with pytest.raises(UnsupportedError, match="no masked-LM head"):
        take_tour(hs.open(small_bert(tmp_path, masked_lm=False)))
