"""Answers for scripts and agents: --json with schema and version, errors as JSON, the server of `headscope mcp`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from commands import answer, run
from explain.tops import TEXT, readable
from headscope.cli import PLACES
from headscope.cli.agents import TOOLS, server
from headscope.results.answers import ANSWERS, VERSION
from json_schemas import DIALECT, json_schema

if TYPE_CHECKING:
    from mcp import Client

PUBLISHED = Path(__file__).parents[2] / "docs" / "schemas"
MASKED = "She took off her [MASK]."
COMMANDS = {
    "shapes": ("shapes", "-"),
    "summary": ("summary", "-"),
    "config": ("config", "-"),
    "tree": ("shapes", "-", "--tree"),
    "tree of a class": ("shapes", "-", "--modules"),
    "fit": ("fit", "-", "BertForSequenceClassification"),
    "head": ("head", "-", "2.1"),
    "attend": ("attend", "-", MASKED),
    "attend of a layer": ("attend", "-", MASKED, "--heads", "2"),
    "attend-head": ("attend", "-", MASKED, "--heads", "2.1"),
    "attend-head with few keys": ("attend", "-", MASKED, "--heads", "2.1", "--top", "2"),
    "attend-head of a query": ("attend", "-", MASKED, "--heads", "2.1", "-q", "took", "--ablate", "1.0"),
    "attend-several": ("attend", "-", MASKED, "--heads", "2.1,0.3"),
    "attend-several layers": ("attend", "-", MASKED, "--heads", "2,0"),
    "attend-several heads of a token": ("attend", "-", MASKED, "--heads", "2,0", "-q", "took"),
    "attend-statistic": ("attend", "-", MASKED, "--statistic", "entropy"),
    "attend-token": ("attend", "-", MASKED, "-q", "took"),
    "fill": ("predict", "-", MASKED),
    "effects": ("effects", "-", MASKED),
    "attribute": ("attribute", "-", MASKED),
    "why": ("why", "-", MASKED, "2.1", "her", "took"),
    "verify": ("verify", "-", MASKED),
    "compare": ("compare", "-", "-", "{texts}"),
    "survey": ("survey", "-", "{texts}", "--out", "{out}"),
    "pairs": ("pairs", "-", "{marked}"),
    "pairs-row": ("pairs", "-", "{marked}", "--set", "by=row"),
    "match": ("match", "-", "her hat", "a coat", "his hat"),
    "error": ("predict", "./nowhere", MASKED),
}


def checked(name: str, record: Any) -> None:
    import jsonschema  # half a second, which every worker would take

    jsonschema.Draft202012Validator(json_schema(name)).validate(record)
    assert list(record)[:2] == ["schema", "version"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_record_is_what_its_schema_says(name: str, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("She took off her hat.\nHe put on his hat.\n", encoding="utf-8")
    marked = {"words": ["the", "cat", "sat", "on", "the", "mat"], "pairs": [[0, 1], [4, 5]]}
    (tmp_path / "marked.jsonl").write_text(f"{json.dumps(marked)}\n" * 4, encoding="utf-8")
    places = {Path(name).stem: tmp_path / name for name in ("texts.txt", "marked.jsonl", "out")}
    record = answer(*(part.format(**places) for part in COMMANDS[name]), code=2 if name == "error" else 0)
    checked(name.split()[0], record)


@pytest.mark.parametrize("suffix", ["ForSequenceClassification", "ForTokenClassification"])
def test_so_is_a_classifiers(tmp_path: Path, suffix: str) -> None:
    readable(tmp_path, "Bert", suffix)
    checked("predict", answer("predict", str(tmp_path), TEXT))
    if suffix == "ForSequenceClassification":
        checked("effects", answer("effects", str(tmp_path), TEXT))
        checked("attribute", answer("attribute", str(tmp_path), TEXT))


def test_a_schema_refuses_what_it_does_not_describe() -> None:
    import jsonschema

    record = answer(*COMMANDS["fill"])
    for broken in ({**record, "more": 1}, {**record, "version": VERSION + 1}, {**record, "tokens": [1]}):
        with pytest.raises(jsonschema.ValidationError):
            checked("fill", broken)


@pytest.mark.parametrize("name", ANSWERS)
def test_schemas_are_published(name: str, request: pytest.FixtureRequest) -> None:
    """`pytest --refresh-screens` writes docs/schemas."""
    import jsonschema

    schema = json_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == DIALECT
    text = json.dumps(schema, indent=1) + "\n"
    if request.config.getoption("--refresh-screens"):
        (PUBLISHED / f"{name}.json").write_text(text, encoding="utf-8")
    assert (PUBLISHED / f"{name}.json").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("args", "kind"),
    [
        (("predict", "-", MASKED, "--no-such-option"), "UsageError"),
        (("attend", "-", MASKED, "--heads", "9.9"), "OutOfRangeError"),
        (("shapes", "no-such-folder/at-all/x"), "NotFoundError"),
    ],
)
def test_an_error_is_json_on_stdout_and_words_on_stderr(args: tuple[str, ...], kind: str) -> None:
    done = run(*args, "--json", code=2)
    record = json.loads(done.stdout)
    checked("error", record)
    assert record["kind"] == kind
    assert record["exit_code"] == 2
    assert record["message"] in " ".join(done.stderr.split()) or kind == "UsageError"
    assert run(*args, code=2).stdout == ""


def asked(ask: Callable[[Client], Any], transport: Any = None) -> Any:
    """What the SDK's own client gets from the server, here but in a thread: a browser's loop may run in this one."""
    from mcp import Client

    async def run() -> Any:
        async with Client(transport or server()) as client:
            return await ask(client)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(run())).result()


def test_tools_only_read_and_say_what_they_take() -> None:
    import jsonschema

    listed = asked(lambda client: client.list_tools()).tools
    assert [tool.name for tool in listed] == list(TOOLS)
    for tool in listed:
        assert tool.annotations.read_only_hint
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        for one in tool.input_schema["properties"].values():
            assert one["type"] in ("string", "integer") or one["items"] == {"type": "string"}
        assert set(tool.input_schema["required"]) <= set(tool.input_schema["properties"])


def test_the_command_serves_over_standard_input_and_output() -> None:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    process = StdioServerParameters(command=sys.executable, args=["-m", "headscope", "mcp"], env=dict(os.environ))
    listed = asked(lambda client: client.list_tools(), stdio_client(process)).tools
    assert [tool.name for tool in listed] == list(TOOLS)


@pytest.mark.parametrize(
    ("tool", "arguments", "command"),
    [
        ("shapes", {"model": "-"}, COMMANDS["shapes"]),
        ("head", {"model": "-", "head": "2.1"}, COMMANDS["head"]),
        ("attend", {"model": "-", "text": MASKED, "token": "took"}, COMMANDS["attend-token"]),
        ("predict", {"model": "-", "text": MASKED}, COMMANDS["fill"]),
        ("effects", {"model": "-", "text": MASKED}, COMMANDS["effects"]),
        ("attribute", {"model": "-", "text": MASKED}, COMMANDS["attribute"]),
        ("match", {"model": "-", "query": "her hat", "documents": ["a coat", "his hat"]}, COMMANDS["match"]),
        ("predict", {"model": "-", "text": MASKED, "pair": None}, COMMANDS["fill"]),
    ],
)
def test_a_tool_answers_as_its_command_does(tool: str, arguments: dict[str, Any], command: tuple[str, ...]) -> None:
    reply = asked(lambda client: client.call_tool(tool, arguments))
    assert not reply.is_error
    assert reply.structured_content == answer(*command)
    assert json.loads(reply.content[0].text) == reply.structured_content


@pytest.mark.parametrize(
    ("tool", "arguments", "kind"),
    [
        ("predict", {"model": "-", "text": "a cat"}, "InputError"),
        ("effects", {"model": "-"}, "UsageError"),
        ("effects", {"model": "-", "text": MASKED, "more": 1}, "UsageError"),
        ("match", {"model": "-", "query": "a", "documents": []}, "UsageError"),
        ("head", {"model": "-", "head": "9.0"}, "OutOfRangeError"),
        ("predict", {"model": "--out=x", "text": "-"}, "NotFoundError"),
        ("survey", {"model": "-"}, "UsageError"),
        ("effects", {"model": "-", "text": None}, "UsageError"),
        ("head", {"model": "-", "head": 2.1}, "UsageError"),
        ("predict", {"model": "-", "text": "a\0cat"}, "InputError"),
        ("predict", {"model": "-", "text": "a\ud800cat"}, "InputError"),
        ("predict", {"model": "-", "text": "cat " * 200_000}, "InputError"),
    ],
)
def test_an_error_of_a_tool_says_what_to_do(tool: str, arguments: dict[str, Any], kind: str) -> None:
    reply = asked(lambda client: client.call_tool(tool, arguments))
    assert reply.is_error
    record = json.loads(reply.content[0].text)
    checked("error", record)
    assert record["kind"] == kind
    assert record["advice"]


@pytest.mark.parametrize(("code", "stderr"), [(-9, ""), (1, "Traceback\nZeroDivisionError: division by zero\n")])
def test_a_command_that_dies_is_an_error_of_its_tool(monkeypatch: pytest.MonkeyPatch, code: int, stderr: str) -> None:
    died = subprocess.CompletedProcess([], code, "", stderr)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: died)
    reply = asked(lambda client: client.call_tool("summary", {"model": "-"}))
    assert reply.is_error
    record = json.loads(reply.content[0].text)
    checked("error", record)
    assert f"ended with {code}: {stderr.splitlines()[-1] if stderr else 'nothing was printed'}" in record["message"]


def test_a_dash_is_a_text_to_a_tool() -> None:
    reply = asked(lambda client: client.call_tool("attend", {"model": "-", "text": "-", "token": "1"}))
    assert reply.structured_content["tokens"] == ["[CLS]", "-", "[SEP]"]


def test_the_skill_names_commands_that_exist() -> None:
    import re

    skill = (Path(__file__).parents[2] / "skills" / "headscope" / "SKILL.md").read_text(encoding="utf-8")
    assert skill.startswith("---\nname: headscope\ndescription: ")
    named = set(re.findall(r"headscope (\w+)", skill.partition("# headscope")[2]))
    assert named <= set(PLACES), named - set(PLACES)
    assert {"predict", "attribute", "effects", "attend", "verify"} <= named
