"""`headscope mcp`: a server of the Model Context Protocol over standard input and output, for agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headscope.cli.app import app
from headscope.errors import HeadscopeError, MissingExtraError, install

if TYPE_CHECKING:
    from mcp.server import Server

ABOUT = (
    "See inside the attention heads of BERT-like models. Layers and heads count from 0. "
    "`-` is a small bundled model. All tools only read."
)


@app.command(rich_help_panel="For agents")
def mcp() -> None:
    """Serve headscope's tools to an agent over standard input and output (Model Context Protocol)."""
    import asyncio

    asyncio.run(_serve())


async def _serve() -> None:
    built = server()
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (incoming, outgoing):
        await built.run(incoming, outgoing, built.create_initialization_options())


def server() -> Server[Any]:
    """Return the server with its tools; it is not running yet.

    Raises:
        MissingExtraError: the SDK is not installed.
    """
    try:
        from mcp import types
        from mcp.server import Server
    except ImportError as error:
        raise MissingExtraError(
            "the server needs the SDK of the Model Context Protocol, which is not installed",
            where="headscope mcp",
            advice=install("mcp"),
        ) from error
    from headscope import __version__
    from headscope.screens.tables import json_text

    async def list_tools(ctx: Any, params: Any) -> Any:
        return types.ListToolsResult(tools=described())

    async def call_tool(ctx: Any, params: Any) -> Any:
        record, failed = answered(params.name, params.arguments or {})
        text = types.TextContent(type="text", text=json_text(record))
        return types.CallToolResult(content=[text], structured_content=None if failed else record, is_error=failed)

    handlers: dict[str, Any] = {"on_list_tools": list_tools, "on_call_tool": call_tool}
    return Server("headscope", version=__version__, instructions=ABOUT, **handlers)


def described() -> list[Any]:
    """Return the tools as the protocol describes them."""
    from mcp import types

    from headscope.cli.tools import TOOLS
    from headscope.results.json_schemas import json_schema, parameters_schema

    reads_only = types.ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True)
    return [
        types.Tool(
            name=name,
            description=tool.describes,
            input_schema=parameters_schema(tool.takes),
            output_schema=None if tool.schema is None else json_schema(tool.schema),
            annotations=reads_only,
        )
        for name, tool in TOOLS.items()
    ]


def answered(name: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the record of a tool's answer, or of its error, and True for an error."""
    from dataclasses import asdict

    from headscope.cli.streams import REFUSED
    from headscope.cli.tools import TOOLS
    from headscope.results.answers import ErrorAnswer
    from headscope.results.json_schemas import enveloped

    if name not in TOOLS:
        answer = ErrorAnswer("UsageError", f"no tool {name!r}", "name", f"one of {', '.join(TOOLS)}", REFUSED)
        return enveloped("error", asdict(answer)), True
    try:
        return TOOLS[name].call(arguments), False
    except HeadscopeError as error:
        answer = ErrorAnswer(type(error).__name__, error.found, error.where, error.advice, REFUSED)
        return enveloped("error", asdict(answer)), True
