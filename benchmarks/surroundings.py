"""The surroundings of the scoreboard's figures: the tools' environments, their versions, the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from captor import last_line
from measure import CLOCK

HERE = Path(__file__).parent
PEERS = {
    "TransformerLens": "transformer-lens",
    "torchlens": "torchlens",
    "bertviz": "bertviz",
    "torchinfo": "torchinfo",
    "attnread": "attnread",
    "neuronscope-cli": "neuronscope-cli",
}
"""Tool -> its environment's name in benchmarks/peers; the other tools are in this Python's environment."""
ALONE = "# without its dependencies"
"""Begins a line of pins; what follows is installed without what it asks for, which is pinned above."""
PACKAGES = (
    "headscope",
    "torch",
    "transformers",
    "transformer-lens",
    "torchlens",
    "bertviz",
    "torchinfo",
    "attnread",
    "neuronscope-cli",
    "numpy",
)


STARTED = time.monotonic()


def say(text: str) -> None:
    """A line of progress, with the time since the start."""
    print(f"[{time.monotonic() - STARTED:6.0f} s] {text}", file=sys.stderr, flush=True)


def environments(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The Python of each tool, installed if missing, and the reason for each that can't be installed."""
    pythons, failed = {"headscope": sys.executable, "transformers": sys.executable}, {}
    for tool, file in PEERS.items():
        home, pins = (folder / file).absolute(), HERE / "peers" / f"{file}.txt"
        python, installed = home / "bin" / "python", home / "pins.txt"
        if not installed.exists() or installed.read_text() != pins.read_text():
            say(f"installing {tool}")
            whole, _, alone = pins.read_text().partition(ALONE)
            install = [str(python), "-m", "pip", "install", "-q"]
            for command in (
                [sys.executable, "-m", "venv", str(home)],
                [*install, *whole.split()],
                [*install, "--no-deps", *alone.partition("\n")[2].split()] if alone else [str(python), "-V"],
            ):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    failed[tool] = f"Installation failed: {last_line(done.stderr)}"
                    break
            else:
                installed.write_text(pins.read_text())
        if tool not in failed:
            pythons[tool] = str(python)
    return pythons, failed


def versions(python: str) -> dict[str, str]:
    """Versions of the relevant packages in an environment."""
    code = (
        "import json, sys, importlib.metadata as m\n"
        "held = {d.metadata['Name'].lower().replace('_', '-'): d.version for d in m.distributions()}\n"
        "print(json.dumps({name: held[name] for name in sys.argv[1:] if name in held}))"
    )
    done = subprocess.run([python, "-c", code, *PACKAGES], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def machine() -> dict[str, Any]:
    """The machine. A child process asks torch, because a process's memory counts towards its children's peaks."""
    code = "import torch; print(torch.__version__, torch.get_num_threads())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return {
        "cpu": cpu or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": said[0],
        "threads": int(said[1]),
        "clock": CLOCK,
        "load_at_start": round(os.getloadavg()[0], 2),
    }
