"""`headscope mcp`: commands as tools of the Model Context Protocol; each answers what it prints with `--json`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from headscope.cli.app import DOUBTFUL, app, error_text
from headscope.errors import require

ABOUT = "See inside the attention heads of BERT-like models. Layers and heads count from 0. All tools only read."
ARGUMENTS = {
    "model": "hub id, folder or file of the checkpoint; `-` is a small bundled model",
    "head": "layer.head: 3.1",
    "text": "the text; a masked-LM model predicts [MASK]",
    "query": "the query, or one of two texts",
    "documents": "the documents, or the other text",
    "pair": "a second text of the same input",
    "token": "the token that looks: its text, or its position from 0",
    "target": "a word at the first mask, or a class; by default the likeliest",
    "top": "most rows in the answer",
}
STRING = {"type": "string"}
TYPES: dict[str, Any] = {"documents": {"type": "array", "items": STRING}, "top": {"type": "integer"}}
KINDS = {"string": str, "array": list, "integer": int}
OPTIONS = {"pair": "--pair", "token": "--query", "target": "--target", "top": "--top"}
"""Arguments that are options of the command; the others are its arguments, in their order."""
TOOLS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "summary": ("What a checkpoint holds: sizes, parts, memory, problems.", ("model",), ()),
    "shapes": ("Every tensor of a checkpoint, from its header alone.", ("model",), ()),
    "head": ("One head's slices of the checkpoint's tensors, with norms.", ("model", "head"), ()),
    "attend": ("The heads that look from one token most.", ("model", "text", "token"), ("pair", "top")),
    "predict": ("The likeliest tokens at each [MASK], or a classifier's classes.", ("model", "text"), ("pair",)),
    "effects": ("How silencing each head changes the output.", ("model", "text"), ("pair", "target")),
    "attribute": ("How much each token adds to the output.", ("model", "text"), ("pair", "target")),
    "match": ("Which words make documents match a query.", ("model", "query", "documents"), ()),
}
"""A command -> its purpose, the arguments that it needs and those that it may have."""


@app.command(rich_help_panel="For agents")
def mcp() -> None:
    """Serve headscope's commands to an agent over standard input and output (Model Context Protocol)."""
    server().run()


def server() -> Any:
    """Return the server, not running yet, or raise MissingExtraError if the protocol's SDK is not installed."""
    require("mcp", "mcp", where="headscope mcp")
    from mcp import types
    from mcp.server import MCPServer

    from headscope import __version__

    reads_only = types.ToolAnnotations(read_only_hint=True)

    class Commands(MCPServer):
        async def list_tools(self) -> list[Any]:
            tools = []
            for name, (purpose, needs, may) in TOOLS.items():
                properties = {one: {**TYPES.get(one, STRING), "description": ARGUMENTS[one]} for one in needs + may}
                takes = {"type": "object", "properties": properties, "required": needs, "additionalProperties": False}
                tools.append(types.Tool(name=name, description=purpose, input_schema=takes, annotations=reads_only))
            return tools

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            printed, failed = answered(name, arguments)
            text = types.TextContent(type="text", text=printed)
            answer = None if failed else json.loads(printed)
            return types.CallToolResult(content=[text], structured_content=answer, is_error=failed)

    return Commands("headscope", version=__version__, instructions=ABOUT, log_level="WARNING")


def answered(name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
    """Return what the command prints with `--json`, and True for an error. An argument of None is left out.

    Standard input is the protocol's. The command's holds a dash, which is then the text `-` and not a pipe.
    """
    _, needs, may = TOOLS.get(name, ("", (), ()))
    given = {one: value for one, value in arguments.items() if value is not None}
    wrong = {*given} - {*needs, *may} or {*needs} - {*given}
    wrong = wrong or {one for one in given if not isinstance(given[one], KINDS[TYPES.get(one, STRING)["type"]])}
    if name not in TOOLS or wrong:
        found = (
            f"unknown, missing or of another type: {', '.join(sorted(wrong))}" if name in TOOLS else f"no tool {name!r}"
        )
        takes = (f"{one} ({TYPES.get(one, STRING)['type']})" for one in (*needs, *may))
        return error_text("UsageError", found, name, f"use {', '.join(takes) or ', '.join(TOOLS)}"), True
    options = [f"{OPTIONS[one]}={value}" for one, value in given.items() if one in OPTIONS]
    values = [given[one] for one in needs if one not in OPTIONS]
    typed = [str(part) for value in values for part in (value if isinstance(value, list) else [value])]
    command = [sys.executable, "-m", "headscope", name, *options, "--json", "--", *typed]
    try:
        done = subprocess.run(command, input="-", capture_output=True, encoding="utf-8", check=False)
    except (OSError, ValueError) as error:
        advice = "pass shorter texts, without NUL characters and lone surrogates"
        return error_text("InputError", f"the arguments can't be passed on: {error}", name, advice), True
    if not done.stdout:  # it was killed, or there is a fault in it
        reason = (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]
        found = f"the command ended with {done.returncode}: {reason}"
        return error_text("RuntimeError", found, name, f"try it in a terminal: headscope {name}"), True
    return done.stdout, done.returncode not in (0, DOUBTFUL)
