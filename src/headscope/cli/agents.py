"""`headscope mcp`: commands as tools of the Model Context Protocol; each answers what it prints with `--json`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headscope.cli.app import app, error_text
from headscope.errors import MissingExtraError, install

if TYPE_CHECKING:
    from mcp.server import Server

ABOUT = "See inside the attention heads of BERT-like models. Layers and heads count from 0. All tools only read."
ARGUMENTS = {
    "model": "hub id, folder or file of the checkpoint; `-` is a small bundled model",
    "head": "layer.head: 3.1",
    "text": "the text; a masked-LM model fills [MASK]",
    "query": "the query, or one of two texts",
    "documents": "the documents, or the other text",
    "pair": "a second text of the same input",
    "token": "the token that looks: its text, or its position from 0",
    "target": "a word at the first mask, or a class; by default the likeliest",
    "top": "most rows in the answer",
}
TYPES: dict[str, Any] = {"documents": {"type": "array", "items": {"type": "string"}}, "top": {"type": "integer"}}
OPTIONS = {"pair": "--pair", "token": "--query", "target": "--target", "top": "--top"}
"""Arguments that are options of the command; the others are its arguments, in their order."""
TOOLS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], str]] = {
    "summary": ("What a checkpoint holds: sizes, parts, memory, problems.", ("model",), (), "summary"),
    "shapes": ("Every tensor of a checkpoint, from its header alone.", ("model",), (), "shapes"),
    "head": ("One head's slices of the checkpoint's tensors, with norms.", ("model", "head"), (), "head"),
    "attend": ("The heads that look from one token most.", ("model", "text", "token"), ("pair", "top"), "attend-token"),
    "fill": ("The likeliest tokens at each [MASK].", ("model", "text"), ("pair",), "fill"),
    "predict": ("The classes that a classifier predicts.", ("model", "text"), ("pair",), "predict"),
    "effects": ("How silencing each head changes the output.", ("model", "text"), ("pair", "target"), "effects"),
    "attribute": ("How much each token adds to the output.", ("model", "text"), ("pair", "target"), "attribute"),
    "match": ("Which words make documents match a query.", ("model", "query", "documents"), (), "match"),
}
"""A command -> its purpose, the arguments that it needs, those that it may have, and the schema of its answer."""


@app.command(rich_help_panel="For agents")
def mcp() -> None:
    """Serve headscope's commands to an agent over standard input and output (Model Context Protocol)."""
    import asyncio

    asyncio.run(_serve())


async def _serve() -> None:
    built = server()
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (incoming, outgoing):
        await built.run(incoming, outgoing, built.create_initialization_options())


def server() -> Server[Any]:
    """Return the server, not running yet, or raise MissingExtraError if the protocol's SDK is not installed."""
    try:
        from mcp import types
        from mcp.server import Server
    except ImportError as error:
        found = "the SDK of the Model Context Protocol is not installed"
        raise MissingExtraError(found, where="headscope mcp", advice=install("mcp")) from error
    from headscope import __version__
    from headscope.results.json_schemas import json_schema

    async def list_tools(ctx: Any, params: Any) -> Any:
        reads_only = types.ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True)
        listed = []
        for name, (purpose, needs, may, answer) in TOOLS.items():
            properties = {
                one: TYPES.get(one, {"type": "string"}) | {"description": ARGUMENTS[one]} for one in needs + may
            }
            takes: dict[str, Any] = {
                "type": "object",
                "properties": properties,
                "required": needs,
                "additionalProperties": False,
            }
            gives: dict[str, Any] = {"output_schema": json_schema(answer), "annotations": reads_only}
            listed.append(types.Tool(name=name, description=purpose, input_schema=takes, **gives))
        return types.ListToolsResult(tools=listed)

    async def call_tool(ctx: Any, params: Any) -> Any:
        printed, failed = answered(params.name, params.arguments or {})
        text = types.TextContent(type="text", text=printed)
        return types.CallToolResult(
            content=[text], structured_content=None if failed else json.loads(printed), is_error=failed
        )

    handlers: dict[str, Any] = {"on_list_tools": list_tools, "on_call_tool": call_tool}
    return Server("headscope", version=__version__, instructions=ABOUT, **handlers)


def answered(name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
    """Return what the command prints with `--json`, and True for an error. Standard input is the protocol's."""
    _, needs, may, _ = TOOLS.get(name, ("", (), (), ""))
    wrong = [*({*arguments} - {*needs, *may}), *({*needs} - {*arguments})]
    if name not in TOOLS or wrong:
        found = f"unknown or missing: {', '.join(sorted(wrong))}" if name in TOOLS else f"no tool {name!r}"
        return error_text("UsageError", found, name, f"use {', '.join((*needs, *may) or TOOLS)}"), True
    options = [f"{OPTIONS[one]}={value}" for one, value in arguments.items() if one in OPTIONS]
    typed = [part for one in needs if one not in OPTIONS for part in _parts(arguments[one])]
    command = [sys.executable, "-m", "headscope", name, *options, "--json", "--", *typed]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False)
    return done.stdout, done.returncode > 1


def _parts(value: object) -> list[str]:
    return [str(one) for one in (value if isinstance(value, list) else [value])]
