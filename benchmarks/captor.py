"""A tool in a separate process that captures every head on request. The process runs peers/calls.py."""

from __future__ import annotations

import json
import select
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class CantError(Exception):
    """A tool can't do a task; the message is the tool's."""


def last_line(text: str) -> str:
    """The last line that isn't blank."""
    return next((line.strip()[:300] for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


class Captor:
    """A tool's process that captures on request."""

    def __init__(self, python: str, tool: str, folder: Path, patience: int) -> None:
        self.patience, self.left = patience, b""
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        command = [python, "-W", "ignore", str(HERE / "peers" / "calls.py"), tool, str(folder)]
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, bufsize=0
        )
        self.answer()

    def ask(self, what: str, way: str, tokens: int) -> float:
        """Seconds or bytes of one capture.

        Raises:
            CantError: the tool's error, its end, or no answer in time.
        """
        if self.child.poll() is not None:
            raise CantError(f"its process had ended: {self.ended()}")
        assert self.child.stdin is not None
        self.child.stdin.write(f"{what}\t{way}\t{tokens}\n".encode())
        answer = self.answer()
        if "no" in answer:
            raise CantError(answer["no"])
        return float(answer["seconds" if what == "time" else "bytes"])

    def answer(self) -> dict[str, Any]:
        """Its next line of JSON; other lines, such as a profiler's, are skipped."""
        assert self.child.stdout is not None
        end = time.monotonic() + self.patience
        while True:
            line, newline, rest = self.left.partition(b"\n")
            if newline:
                self.left = rest
                if line.startswith(b"{"):
                    return dict(json.loads(line))
                continue
            ready, _, _ = select.select([self.child.stdout], [], [], max(0, end - time.monotonic()))
            if not ready:
                self.close()
                raise CantError(f"no answer after {self.patience} s")
            more = self.child.stdout.read(65536)
            if not more:
                self.child.wait()
                raise CantError(self.ended())
            self.left += more

    def ended(self) -> str:
        """Its last message and its exit status."""
        self.errors.seek(0)
        return f"{last_line(self.errors.read())} (exit status {self.child.returncode})"

    def close(self) -> None:
        """End it."""
        self.child.kill()
        self.child.wait()
