"""A real JupyterLab and a real marimo, each in a process of its own, for the widget's tests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from looking import eventually

from patience import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

TOKEN = "test"
THEMES = Path("lab", "user-settings", "@jupyterlab", "apputils-extension")


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@contextmanager
def _running(command: list[str], port: int, folder: Path, **more: str) -> Iterator[str]:
    log = folder / "log.txt"
    with log.open("w") as out:
        server = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env={**os.environ, **more})
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + PATIENCE
        while True:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, f"it never answers: {log.read_text()}"
            try:
                urllib.request.urlopen(f"{address}/api/status?token={TOKEN}", timeout=PATIENCE).close()
                break
            except urllib.error.HTTPError:
                break  # it answers
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        server.kill()  # one that is asked to end may wait for its kernel for ever; without it, the kernel ends itself
        server.wait()


@contextmanager
def lab(folder: Path, cells: list[str], *, dark: bool = False) -> Iterator[str]:
    """The address of a notebook with these cells, in a JupyterLab with nothing of this machine's settings."""
    book = {
        "cells": [
            {"cell_type": "code", "id": f"c{n}", "metadata": {}, "execution_count": None, "outputs": [], "source": cell}
            for n, cell in enumerate(cells)
        ],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (folder / "book.ipynb").write_text(json.dumps(book), encoding="utf-8")
    settings = folder / "config" / THEMES
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    if dark:
        (settings / "themes.jupyterlab-settings").write_text('{"theme": "JupyterLab Dark"}')
    port = _free_port()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.root_dir={folder}"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", f"--IdentityProvider.token={TOKEN}"]
    homes = {f"JUPYTER_{name.upper()}_DIR": str(folder / name) for name in ("config", "data", "runtime")}
    homes["JUPYTERLAB_SETTINGS_DIR"] = str(folder / "config" / "lab" / "user-settings")
    with _running(command, port, folder, **homes) as address:
        yield f"{address}/lab/tree/book.ipynb?token={TOKEN}&reset"


@contextmanager
def marimo(folder: Path, cells: list[str]) -> Iterator[str]:
    """The address of a marimo app with these cells."""
    book = folder / "book.py"
    defined = "\n\n".join(f"@app.cell\n{cell}" for cell in cells)
    book.write_text(
        f"import marimo\n\napp = marimo.App()\n\n\n{defined}\n\n\nif __name__ == '__main__':\n    app.run()\n"
    )
    port = _free_port()
    command = [sys.executable, "-m", "marimo", "run", str(book), "--headless", "--no-token", "--host", "127.0.0.1"]
    with _running([*command, "--port", str(port)], port, folder, XDG_CONFIG_HOME=str(folder)) as address:
        yield address


def frame_of(page: Page) -> Frame:
    """The widget's page, once its grid is painted."""

    def frames() -> list[Frame]:
        return [frame for frame in page.frames if frame.name.startswith("headscope:")]

    eventually(page, frames, "a widget")
    frame = frames()[0]
    frame.wait_for_selector("html[data-painted]")
    return frame
