"""The page with a model in it: sizes, time until it answers, and from a keystroke to the picture.

    python benchmarks/typed.py                    # the bundled model, 12, 40 and 100 tokens
    python benchmarks/typed.py MODEL --tokens 20  # another model of BERT's form

The page runs in headless Chromium from a file. A keystroke ends where the frame after the new trace's pictures is
painted. --markdown writes the table to a file.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import headscope as hs
from headscope.page.typed import typed_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
PATIENCE = 300_000
TURN = "() => Number(document.querySelector('.measured').dataset.turn ?? -1)"
TYPED = "() => Number(document.querySelector('.measured').dataset.ms)"


def keystrokes(page: Page, tokens: int, count: int) -> list[float]:
    """Milliseconds of keystrokes at the end of a text of this many tokens."""
    words = " ".join(["the"] * (tokens - 3))
    times = []
    for at in range(count + 2):
        before = page.evaluate(TURN)
        page.fill("[data-test=live-text-0]", f"{words} {'ab'[at % 2]}")
        while page.evaluate(TURN) <= before:
            page.wait_for_timeout(5)
        times.append(page.evaluate(TYPED))
        page.wait_for_timeout(30)
    return times[2:]


def measured(model: str, lengths: list[int], count: int) -> list[tuple[str, str]]:
    """The rows of the table."""
    from playwright.sync_api import sync_playwright

    content, _ = typed_page(hs.open(model))
    rows = [("file", f"{len(content) / 1e6:.2f} MB"), ("with gzip", f"{len(gzip.compress(content)) / 1e6:.2f} MB")]
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        file = Path(folder) / "live.html"
        file.write_bytes(content)
        page = driver.chromium.launch(executable_path=chromium, args=FLAGS).new_page()
        page.set_default_timeout(PATIENCE)
        began = time.perf_counter()
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-painted]")
        rows.append(("from disk until it answers", f"{time.perf_counter() - began:.1f} s"))
        for tokens in lengths:
            median, late = np.percentile(keystrokes(page, tokens, count), [50, 95])
            rows.append((f"keystroke to picture, {tokens} tokens: median, 95 %", f"{median:.0f} ms, {late:.0f} ms"))
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="-")
    parser.add_argument("--tokens", type=int, nargs="+", default=[12, 40, 100])
    parser.add_argument("--count", type=int, default=40, help="keystrokes of each length")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows = measured(options.model, options.tokens, options.count)
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    print("\n".join(lines), f"\n{os.cpu_count()} cores, load {load:.1f} before", sep="\n")
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
