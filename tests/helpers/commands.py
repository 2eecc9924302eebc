"""The commands, run in this process; Python in a process of its own; a stream that says it is a terminal."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterable
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


def python(code: str, *args: object, **more: Any) -> str:
    """What a program prints in a fresh Python, which must not fail."""
    words = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", check=False, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported(code: str, names: Iterable[str], **more: Any) -> list[str]:
    """Which of these modules a fresh Python has imported after this code."""
    asked = f"\nimport sys; print('imported', *sorted({set(names)!r} & set(sys.modules)))"
    return python(code + asked, **more).splitlines()[-1].split()[1:]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True
