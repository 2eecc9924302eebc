"""Options and settings: declared once, one meaning each."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import headscope as hs
from commands import answer, run
from headscope.atlas.survey_settings import SurveySettings
from headscope.cli import app
from headscope.cli.app import named
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
TEXT = "the cat sat"


def test_an_option_has_one_meaning() -> None:
    """Its help and the form of its value are the same in each command that has it."""
    meanings: dict[str, set[tuple[str, Any]]] = {}
    for _, one in SHOWN:
        for name in one.opts:
            meanings.setdefault(name, set()).add((one.help, one.metavar))
    several = {name for name, texts in meanings.items() if len(texts) > 1}
    assert several == {"--set"}, "--set names each command's own settings"


def test_a_setting_has_one_meaning() -> None:
    """Commands that have a setting of one name read it by the same rule."""
    from headscope.cli import explain, one_text, request, surveys

    settings: dict[str, set[Any]] = {}
    kinds = (
        SurveySettings,
        surveys.CompareSettings,
        explain.AttributionSettings,
        one_text.AttendSettings,
        one_text.PageSettings,
    )
    for kind in (*kinds, request.Request):
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
    assert all(f"        {name}: " in (hs.survey.__doc__ or "") for name in fields)
    with pytest.raises(TypeError, match="unexpected keyword argument 'lables'"):
        hs.survey("-", ["a text"], lables=True)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, "length is 0"),
        ({"length": True}, "length is True"),
        ({"threads": 5000}, "at least 1, at most 4096"),
        ({"dtype": "fp8"}, "unknown dtype 'fp8'"),
        ({"effects": 1, "effects_method": "halve"}, "use one of zero, mean"),
        ({"effects_method": "mean"}, "none are requested"),
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
        (lambda: hs.open("found", revision="v1"), "a survey has no revision"),
        (lambda: hs.open("found", model=model), "a survey has no model"),
        (lambda: hs.open("cat.safetensors", revision="v1"), "a trace has no revision"),
        (lambda: hs.open(small, model=model), "only a saved trace takes a model"),
        (lambda: hs.open(3), "can't be opened"),
    ):
        with pytest.raises(hs.HeadscopeError, match=message):
            call()
    (tmp_path / "found" / "manifest.json").write_text("{}")
    with pytest.raises(hs.HeadscopeError, match="manifest"):
        hs.open("found")


def test_types_of_results_are_exported(small: str) -> None:
    model = hs.open(small)
    trace = model.trace("the [MASK] sat")
    results = {
        hs.HeadTable: trace.statistics("entropy"),
        hs.HeadValues: trace.statistics("entropy")["entropy"],
        hs.Report: trace.verify(reference=False),
        hs.Effects: model.effects("the [MASK] sat"),
        hs.HeadValues: model.effects(["the [MASK] sat", "a [MASK]"]),
        hs.Attribution: model.attribute("the [MASK] sat"),
        hs.Comparison: hs.compare(small, small),
    }
    for kind, result in results.items():
        assert isinstance(result, kind)
