"""Options and settings: declared once, one meaning each; misspelt ones, missing extras: errors say what is meant."""

from __future__ import annotations

import ast
import copy
import inspect
import json
import pickle
import re
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from transformers import AutoTokenizer, BertConfig, BertModel, RobertaConfig, RobertaModel
from typer.main import get_command

import headscope as hs
from commands import answer, python, run
from headscope.atlas.survey_settings import SurveySettings
from headscope.checkpoint.resolve import BUNDLED
from headscope.cli import app, explain, one_text, request, surveys
from headscope.cli.app import named
from headscope.errors import InputError, install
from headscope.settings import declared
from small_bert import small_bert

GROUP: Any = get_command(app)
COMMANDS = {name: GROUP.get_command(None, name) for name in GROUP.list_commands(None)}
SHOWN = [
    (command, one)
    for command, of in COMMANDS.items()
    for one in of.params
    if one.param_type_name == "option" and not one.hidden
]
SETTINGS = (
    SurveySettings,
    surveys.CompareSettings,
    explain.AttributionSettings,
    one_text.AttendSettings,
    one_text.PageSettings,
    request.Request,
)
TEXT = "the cat sat"
SOURCE = Path(hs.__file__).parent


def test_an_option_has_one_meaning() -> None:
    """Its help and the form of its value are the same in each command that has it."""
    meanings: dict[str, set[tuple[str, Any]]] = {}
    for _, one in SHOWN:
        for name in one.opts:
            meanings.setdefault(name, set()).add((one.help, one.metavar))
    several = {name for name, texts in meanings.items() if len(texts) > 1}
    assert several == {"--set"}, "--set names each command's own settings"


def test_an_option_keeps_its_help_whatever_its_default() -> None:
    """Python 3.10's get_type_hints hides an annotation whose default is None: its help, its metavar, its short name."""
    assert [f"{command} {one.name}" for command, one in SHOWN if not one.help] == []
    assert "-q" in {name for _, one in SHOWN for name in one.opts}


def test_a_setting_has_one_meaning() -> None:
    """Commands that have a setting of one name read it by the same rule."""
    settings: dict[str, set[Any]] = {}
    for kind in SETTINGS:
        for name, (setting, _) in declared(kind).items():
            settings.setdefault(name, set()).add(setting)
    assert {name for name, of in settings.items() if len(of) > 1} == {"dtype"}, "precision of a model, or of a page"


def test_a_layer_stands_for_its_heads(small: str) -> None:
    whole, each = (answer("attend", small, TEXT, "--ablate", heads, "--heads", "1.0") for heads in ("0", "0.0,0.1"))
    assert whole == each
    assert whole != answer("attend", small, TEXT, "--heads", "1.0")


def test_several_heads_are_shown_one_after_the_other(small: str) -> None:
    both = run("attend", small, TEXT, "--heads", "0.1,1.0", "--csv").stdout.splitlines()
    first, second = (run("attend", small, TEXT, "--heads", one, "--csv").stdout.splitlines() for one in ("0.1", "1.0"))
    assert both == first + second[1:]
    records = answer("attend", small, TEXT, "--heads", "0.1,1.0")["heads"]
    assert [(record["layer"], record["head"]) for record in records] == [(0, 1), (1, 0)]


def test_an_unknown_setting_lists_all_with_their_help(small: str) -> None:
    message = run("survey", small, "texts", "--out", "out", "--set", "lenght=3", code=2).stderr
    for name, (setting, _) in declared(SurveySettings).items():
        assert f"  {name}=" in message
        assert setting.help in message
    assert "there is no setting 'lenght'" in message


def test_a_survey_takes_its_settings_as_keywords() -> None:
    parameters = inspect.signature(hs.survey).parameters
    assert list(parameters)[:2] == ["model", "documents"]
    fields = inspect.signature(SurveySettings).parameters
    assert {name: one.default for name, one in list(parameters.items())[2:]} == {
        name: one.default for name, one in fields.items()
    }
    assert all(f"\n    {name}: " in (inspect.getdoc(hs.survey) or "") for name in fields)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, "length is 0"),
        ({"length": True}, "length is True"),
        ({"threads": 5000}, "at least 1, at most 4096"),
        ({"dtype": "fp8"}, "unknown dtype 'fp8'"),
        ({"effects": 1, "effects_method": "halve"}, "use one of zero, mean"),
        ({"effects_method": "mean"}, "none are requested"),
        ({"labels": "no"}, "use True or False"),
        ({"report": None}, "report is None"),
        ({"field": None}, "field is None"),
        ({"field": 3}, "use a text"),
    ],
)
def test_settings_are_checked_when_they_are_made(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(hs.HeadscopeError, match=message):
        SurveySettings(**settings)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("owner/name@v1", ("owner/name", "v1")),
        ("name@refs/pr/1", ("name", "refs/pr/1")),
        ("owner/name", ("owner/name", None)),
        ("owner/name@", ("owner/name@", None)),
        ("-", ("-", None)),
        ("./folder@v1", ("./folder@v1", None)),
        ("https://a.b/c@d", ("https://a.b/c@d", None)),
    ],
)
def test_a_revision_follows_a_hub_id(name: str, expected: tuple[str, str | None]) -> None:
    assert named(name) == expected


def test_a_folder_with_an_at_sign_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small_bert(tmp_path / "model@v1")
    assert named("model@v1") == ("model@v1", None)
    assert "parameters" in run("summary", "model@v1").stdout


def test_one_opener_for_models_traces_and_surveys(small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = hs.open(small)
    assert isinstance(model, hs.Model)
    trace = model.trace(TEXT)
    trace.save("cat.safetensors")
    read = hs.open("cat.safetensors", model=model)
    assert isinstance(read, hs.Trace)
    assert list(read.ids) == list(trace.ids)
    assert read.source is model
    survey = hs.survey("-", ["The cat sat on the mat."], out="found", statistics="entropy", report=False)
    again = hs.open(Path("found"))
    assert isinstance(again, hs.Survey)
    assert list(again) == list(survey)
    for call, message in (
        (lambda: hs.open("found", revision="v1"), "a survey takes no revision"),
        (lambda: hs.open("found", model=model), "a survey takes no model"),
        (lambda: hs.open("cat.safetensors", revision="v1"), "a trace takes no revision"),
        (lambda: hs.open(small, model=model), "only a saved trace takes a model"),
        (lambda: hs.load(model), "expected a file, got Model"),  # type: ignore[arg-type]
        (lambda: hs.open(model, segments="two"), "a model that is open takes no segments"),
        (lambda: hs.open(model, tokenizer="tokenizer"), "a model that is open takes no tokenizer"),
        (
            lambda: hs.open(BertModel(BertConfig(num_hidden_layers=1, vocab_size=9)), revision="v1"),
            "in memory takes no rev",
        ),
    ):
        with pytest.raises(hs.HeadscopeError, match=message):
            call()
    (tmp_path / "found" / "manifest.json").write_text("{}")
    with pytest.raises(hs.HeadscopeError, match="manifest"):
        hs.open("found")


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # as if it were not installed
import headscope as hs
for name in hs.__all__:
    try:
        getattr(hs, name)
    except hs.HeadscopeError as error:
        assert "torch is not installed" in str(error)
        print(name)
"""


def test_what_needs_torch_says_so() -> None:
    assert {"capture", "effects", "removal", "trace"} <= {*python(WITHOUT_TORCH).split()}


def test_what_is_public_is_called_by_its_public_name() -> None:
    """In `help`, in errors of Python, in a debugger."""
    assert [name for name in hs.__all__ if getattr(hs, name).__name__ != name] == []
    with pytest.raises(TypeError, match=r"^open\(\) takes"):
        hs.open("-", "a tokenizer")  # type: ignore[misc]


SENTENCE = "The cat sat."
OPTIONS: dict[str, tuple[Callable[[], Any], str]] = {
    "trace": (lambda: hs.open().trace(SENTENCE, max_len=3), "'max_len'; did you mean 'max_length'?"),
    "effects": (lambda: hs.open().effects(SENTENCE, methd="mean"), "'methd'; did you mean 'method'?"),
    "attribute": (lambda: hs.open().attribute(SENTENCE, chek=True), "'chek'; did you mean 'check'?"),
    "match": (lambda: hs.match("-", SENTENCE, SENTENCE, chek=False), "'chek'; did you mean 'check'?"),  # type: ignore[call-arg]
    "compare": (lambda: hs.compare("-", "-", corpsu="x"), "'corpsu'; did you mean 'corpus'?"),  # type: ignore[call-arg]
    "survey": (lambda: hs.survey("-", "x", lables=True), "'lables'; did you mean 'labels'?"),
    "fill": (
        lambda: hs.open().fill("a [MASK].", tokenizer=1),  # type: ignore[call-arg]
        "'tokenizer'; hs.open(model, tokenizer=tokenizer) takes it",
    ),
    "capture": (lambda: hs.capture(torch.nn.Linear(2, 2), layer=[0]), "'layer'; did you mean 'layers'?"),  # type: ignore[call-arg]
    "to_html": (lambda: hs.open().trace(SENTENCE).to_html("x", pth=1), "'pth'; did you mean 'path'?"),  # type: ignore[call-arg]
}
ATTRIBUTES: dict[str, tuple[Callable[[], Any], str]] = {
    "attentions": (lambda: hs.open().trace(SENTENCE).attentions, "use trace.weights"),
    "logits": (lambda: hs.open().trace(SENTENCE).logits, r"use trace\.outputs\['logits'\]"),
    "hidden_state": (lambda: hs.open().trace(SENTENCE).hidden_state, "did you mean 'hidden_states'?"),
    "attn": (lambda: hs.open().trace(SENTENCE)[0, 1].attn, "use weights"),
    "hidden_size": (lambda: hs.open().config.hidden_size, r"use config\['hidden_size'\]"),
    "hiden_size": (lambda: hs.open().config.hiden_size, "did you mean 'hidden_size'?"),
    "num_layers": (lambda: hs.open().num_layers, r"use model\.anatomy\.dimensions\.layers"),
    "show": (lambda: hs.open().show(), r"use model\.trace\(text\)\.view\(\)"),
    "predict": (lambda: hs.open().trace(SENTENCE).predict(), r"use model\.predict, which hs\.open"),
    "tokens": (lambda: hs.open().trace(SENTENCE)[0, 1].tokens, r"use trace\.tokens"),
    "encode": (lambda: hs.open().encode(SENTENCE), "sentence_embedding"),
    "paramters": (lambda: hs.open().paramters, "did you mean 'parameters'?"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_misspelt_option_names_the_function_that_was_called(name: str) -> None:
    call, expected = OPTIONS[name]
    with pytest.raises(TypeError) as raised:
        call()
    assert str(raised.value) == f"{name}() got an unexpected keyword argument {expected}"


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_that_is_called_otherwise_here(name: str) -> None:
    call, expected = ATTRIBUTES[name]
    with pytest.raises(AttributeError, match=expected) as raised:
        call()
    assert raised.value.name == name


def test_what_stands_for_an_attribute_of_another_library_is_there() -> None:
    model = hs.open()
    trace = model.trace(SENTENCE)
    known = {
        "hs": hs,
        "model": model,
        "trace": trace,
        "weights": trace[0, 1].weights,
        "layer": 0,
        "head": 1,
        "a": "x",
        "b": "y",
    }
    for thing in (model, trace, trace[0], trace[0, 1]):
        for name, use in type(thing)._elsewhere.items():
            with pytest.raises(AttributeError, match=re.escape(f"{name!r}; use {use}")):
                getattr(thing, name)
            with suppress(KeyError):  # an output that this model lacks
                assert eval(re.split(r", (?:or|which)|\(\)$", use)[0], {**known, "text": SENTENCE}) is not None


def test_a_misspelt_statistic() -> None:
    with pytest.raises(InputError, match="unknown statistic 'entrop'; did you mean 'entropy'"):
        hs.open().trace(SENTENCE).statistics(["entrop"])


def test_what_suggests_is_still_asked_and_copied_as_usual() -> None:
    trace = hs.open().trace(SENTENCE)
    assert not hasattr(trace, "attentions")
    assert "text/latex" not in DisplayFormatter().format(trace)[0]
    assert copy.deepcopy(trace).tokens == pickle.loads(pickle.dumps(trace)).tokens == trace.tokens
    assert list(inspect.signature(hs.match).parameters)[:3] == ["model", "query", "documents"]


@pytest.mark.parametrize("first", [0, 2])
def test_a_text_that_is_too_long_for_a_live_model(first: int) -> None:
    """RoBERTa's table of positions begins after the row of padding."""
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    model: Any = BertModel.from_pretrained(BUNDLED)
    if first:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        model = RobertaModel(RobertaConfig(max_position_embeddings=66, pad_token_id=1, type_vocab_size=2, **sizes))
    most = 64 if first else 256
    text = "cat " * (most - 2)
    assert len(hs.trace(model, text, tokenizer=tokenizer)) == most
    with pytest.raises(InputError, match=f"the text has {most + 1} tokens, the model takes {most} at most"):
        hs.trace(model, text + "cat", tokenizer=tokenizer)


class Installed:
    """A distribution with this direct_url.json, by which pip remembers where a package came from (PEP 610)."""

    def __init__(self, origin: Any) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.origin if self.origin is None or isinstance(self.origin, str) else json.dumps(self.origin)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, "pip install 'headscope[view]'"),
        ({"url": "{here}", "dir_info": {"editable": True}}, "pip install -e '{path}[view]'"),
        ({"url": "{here}", "dir_info": {}}, "pip install '{path}[view]'"),
        ({"url": "{here}/gone.whl", "archive_info": {}}, "pip install 'headscope[view]'"),
        ({"url": "https://example.org/headscope.git", "vcs_info": {}}, "pip install 'headscope[view]'"),
        ("not JSON", "pip install 'headscope[view]'"),
        ("[]", "pip install 'headscope[view]'"),
    ],
)
def test_extras_are_installed_from_where_headscope_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: Any, expected: str
) -> None:
    folder = tmp_path / "a clone"
    folder.mkdir()
    if isinstance(origin, dict):
        origin["url"] = origin["url"].replace("{here}", folder.as_uri())
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(origin))
    assert install("view", "view") == expected.replace("{path}", str(folder))


def test_an_option_or_a_setting_that_a_message_names_exists() -> None:
    """Those of other programs, of CSS, and of all commands stand here."""
    others = {"--dicdir", "--rcfile", "--userdic", "--less", "--more", "--headscope", "--help", "--debug", "--version"}
    options = {name for of in COMMANDS.values() for one in of.params for name in (*one.opts, *one.secondary_opts)}
    settings = {f"--set {name}=" for kind in SETTINGS for name in declared(kind)}
    texts = [
        (path.name, node.value)
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    for pattern, known in ((r"(?<![\w-])--[a-z][a-z-]*", options | others), (r"--set [a-z_]+=", settings)):
        named = {(at, name) for at, text in texts for name in re.findall(pattern, text)}
        assert {one for one in named if one[1] not in known} == set()
