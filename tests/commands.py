"""The commands, run in this process; and a stream that says it is a terminal."""

from __future__ import annotations

import io
import json
from typing import Any

from typer.testing import CliRunner

from headscope.cli import app


def run(*args: object, code: int | None = 0, **more: Any) -> Any:
    """What a command prints, and its exit code, which is this one."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], **more)
    assert code in (None, result.exit_code), result.output + repr(result.exception)
    return result


def answer(*args: object, code: int = 0) -> Any:
    """The record of a command."""
    return json.loads(run(*args, "--json", code=code).stdout)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True
