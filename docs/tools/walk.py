"""Helpers of the walkthroughs: pictures and pages as HTML, a terminal, files without weights."""

from __future__ import annotations

import atexit
import html
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from headscope._trace import Trace

BLUE, ORANGE, GREEN, GREY = "#4c78c8", "#e0803a", "#3fa98a", "#8a8f98"
PALE_BLUE, PALE_ORANGE, INK = "#a9c1e8", "#f0bf9a", "#15202b"
"""Areas with text on them, and that text: the same on light and dark pages."""


def plain_axes() -> Any:
    """matplotlib.pyplot, set to draw SVG whose text is text and that reads on light and dark pages."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "headscope",
            "font.family": "sans-serif",
            "font.size": 10,
            "figure.facecolor": "none",
            "axes.facecolor": "none",
            "savefig.facecolor": "none",
            "axes.spines.top": False,
            "axes.spines.right": False,
            **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY),
        }
    )
    return plt


def picture(figure: Any, says: str) -> str:
    """A matplotlib figure as SVG inside the page.

    Args:
        figure: it is closed afterwards.
        says: what is to be seen, under the picture and for those who can't see it.
    """
    import matplotlib.pyplot as plt

    file = io.StringIO()
    with warnings.catch_warnings():
        # The page's fonts draw the text, so it doesn't matter if matplotlib's font lacks a character.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    drawing = file.getvalue()
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing[drawing.index("<svg") :], flags=re.DOTALL)
    drawing = re.sub(r' (?:width|height)="[\d.]+pt"', "", drawing, count=2)
    width = figure.get_size_inches()[0] * 96
    spoken = html.escape(re.sub(r"<[^>]*>", "", says))
    drawing = drawing.replace(
        "<svg ", f'<svg role="img" aria-label="{spoken}" style="max-width:{width:.0f}px;width:100%" ', 1
    )
    # A blank line would end the HTML block and let Markdown read the rest.
    drawing = re.sub(r"\n\s*\n", "\n", drawing)
    return f'<figure class="picture">{drawing}<figcaption>{says}</figcaption></figure>'


def page(trace: Trace, *, height: int = 640) -> str:
    """headscope's own page of a trace in an isolated frame, as a notebook shows it, at four fifths of its size."""
    from headscope.view.notebook import frame

    whole = frame(trace, height=height * 5 // 4)
    return f'<div class="headscope-page" style="height:{height}px">{whole}</div>'


def terminal(*command: str | Path) -> str:
    """The output of a headscope command, 96 columns wide."""
    surroundings = {**os.environ, "COLUMNS": "96", "NO_COLOR": "1", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        capture_output=True,
        encoding="utf-8",
        env=surroundings,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def checkpoint_without_weights(model: Any, **renamed: str) -> Path:
    """A folder with config.json and a model.safetensors whose header is true and whose weights are zeros.

    The zeros are a hole in the file: it has its full length and takes no room on the disk.

    Args:
        model: a transformers model; it may be on torch's meta device. What is tied is stored once.
        renamed: parts of tensor names -> what the file calls them; such as gamma for LayerNorm's weight.
    """
    header: dict[str, Any] = {}
    reached = 0
    for name, parameter in model.named_parameters():
        size = parameter.numel() * 4
        header[stored_name(name, renamed)] = {
            "dtype": "F32",
            "shape": list(parameter.shape),
            "data_offsets": [reached, reached + size],
        }
        reached += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    room = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, room, ignore_errors=True)
    folder = Path(room) / (model.config.name_or_path or "checkpoint")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps({**model.config.to_dict(), "architectures": [type(model).__name__]}), encoding="utf-8"
    )
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + reached)
    return folder


def stored_name(name: str, renamed: dict[str, str]) -> str:
    """A parameter's name in the file; only LayerNorm's weight and bias are ever called otherwise."""
    before, _, last = name.rpartition(".")
    return f"{before}.{renamed.get(last, last)}" if before.endswith("LayerNorm") else name


def heat(axes: Any, values: np.ndarray, labels: list[str], title: str) -> None:
    """Attention weights as a matrix: queries down, keys across, tokens at both sides."""
    axes.imshow(values, cmap="Blues", vmin=0)
    axes.set_xticks(range(len(labels)), labels, rotation=90)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0)
