"""The page beside bertviz, in one run: size, time to write, first picture, change of head, frames while hovering.

    python benchmarks/page.py                         # headscope alone
    python benchmarks/page.py --bertviz PYTHON        # beside bertviz 1.4.1 in an environment of its own

Traces of BERT-base's shape with random numbers, whose heads look at the token before.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headscope.attention import attend
from headscope.trace import LayerRecord, TokenAxis, Trace

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
PATIENCE = 150_000
BERTVIZ = """
import sys, time, numpy as np, torch
from bertviz import head_view, model_view
held = np.load(sys.argv[1])
attention = [torch.tensor(layer)[None] for layer in held["weights"]]
tokens = [f"t{n}" for n in range(attention[0].shape[-1])]
began = time.perf_counter()
view = {"head_view": head_view, "model_view": model_view}[sys.argv[2]]
open(sys.argv[3], "w").write(view(attention, tokens, html_action="return").data)
print(time.perf_counter() - began)
"""


def made(tokens: int, *, layers: int = 12, heads: int = 12, d_head: int = 64) -> Trace:
    """A trace of BERT-base's shape, with heads that look somewhere."""
    generator = np.random.default_rng(0)
    records = []
    for _ in range(layers):
        k = generator.normal(size=(heads, tokens, d_head)).astype(np.float32)
        q = np.roll(k, 1, axis=1) + 0.5 * generator.normal(size=k.shape).astype(np.float32)
        v = generator.normal(size=k.shape).astype(np.float32)
        _, lse = attend(q, k, v, scale=d_head**-0.5)
        records.append(LayerRecord(q, k, v, lse=lse, scale=d_head**-0.5))
    axis = TokenAxis(
        tuple(f"t{n}" for n in range(tokens)),
        tuple(range(tokens)),
        (0,) * tokens,
        (False,) * tokens,
        tuple(range(tokens)),
        (None,) * tokens,
    )
    return Trace(model="bert-base", queries=axis, layers=records, outputs={}, text=None)


class WithModel:
    """Stands for the model in what the page adds of W_O."""

    name = "bert-base"

    def __init__(self, d_model: int, d_head: int) -> None:
        self.weight = np.random.default_rng(1).normal(size=(d_model // d_head, d_head, d_model)).astype(np.float32)

    def W_O(self, layer: int, head: int) -> np.ndarray:
        return self.weight[head]

    def late_output(self, name: str, last_hidden_state: np.ndarray) -> None:
        return None

    def late_outputs(self) -> tuple[str, ...]:
        return ()


def looked_at(browser: Any, file: Path) -> dict[str, float]:
    """Seconds to the first picture, milliseconds for another head, frames a second while hovering."""
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.goto(file.as_uri(), wait_until="commit")
    page.wait_for_selector("html[data-painted]", timeout=PATIENCE)
    painted = float(page.evaluate("document.documentElement.dataset.painted")) / 1000
    page.wait_for_timeout(1500)
    change = page.evaluate(
        """async () => {
          const times = [];
          const canvas = document.querySelector('.matrix canvas');
          const sum = () => { const c = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            let s = 0; for (let n = 0; n < c.length; n += 4093) s = (s * 31 + c[n]) >>> 0; return s; };
          for (let n = 0; n < 8; n++) {
            const before = sum(); const began = performance.now();
            dispatchEvent(new KeyboardEvent('keydown', { key: n % 2 ? 'ArrowDown' : 'ArrowRight' }));
            while (sum() === before && performance.now() - began < 5000) await new Promise((r) => setTimeout(r, 1));
            times.push(performance.now() - began);
            await new Promise((r) => setTimeout(r, 300));
          }
          return times.sort((a, b) => a - b)[4];
        }"""
    )
    box = page.locator(".matrix").bounding_box()
    frames = page.evaluate(
        """async ([x, y, w, h]) => {
          const element = document.querySelector('.matrix');
          const end = performance.now() + 2000; let frames = 0;
          while (performance.now() < end) {
            const t = frames / 60;
            element.dispatchEvent(new PointerEvent('pointermove', { bubbles: true,
              clientX: x + w * (0.5 + 0.4 * Math.sin(t)), clientY: y + h * (0.5 + 0.4 * Math.cos(t * 1.3)) }));
            await new Promise(requestAnimationFrame); frames++;
          }
          return frames / 2;
        }""",
        [box["x"], box["y"], box["width"], box["height"]],
    )
    page.close()
    return {"first picture, s": painted, "another head, ms": change, "hover, frames/s": frames}


def painted_by_bertviz(browser: Any, file: Path) -> float | None:
    """Seconds until its drawing is there; None where that takes longer than the patience.

    Its file fetches three scripts from elsewhere: without a network it is never painted.
    """
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    began = time.perf_counter()
    try:
        page.goto(file.as_uri(), wait_until="commit", timeout=PATIENCE)
        page.wait_for_selector("svg line, svg path", state="attached", timeout=PATIENCE)
        return time.perf_counter() - began
    except Exception as error:  # noqa: BLE001 - whatever stops it, it was not painted
        print(f"  not painted: {type(error).__name__}")
        return None
    finally:
        page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bertviz", metavar="PYTHON", help="a Python that has bertviz and torch")
    parser.add_argument("--tokens", type=int, nargs="*", default=[64, 512])
    parser.add_argument(
        "--long", type=int, default=0, metavar="TOKENS", help="also a long text of 22 layers x 12 heads"
    )
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    found: list[dict[str, Any]] = []
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for tokens in arguments.tokens:
            trace = made(tokens)
            trace.source = WithModel(768, 64)  # type: ignore[assignment]
            file = Path(folder) / f"{tokens}.html"
            times = []
            for _ in range(3):
                began = time.perf_counter()
                trace.to_html(file)
                times.append(time.perf_counter() - began)
            row = {"what": "headscope", "tokens": tokens, "MB": file.stat().st_size / 1e6, "written, s": min(times)}
            found.append(row | looked_at(browser, file))
            print(json.dumps(found[-1]), flush=True)
            if arguments.bertviz:
                weights = np.stack(
                    [np.stack([np.asarray(trace[layer, head].weights) for head in range(12)]) for layer in range(12)]
                )
                np.savez(Path(folder) / "weights.npz", weights=weights)
                for view in ("head_view", "model_view"):
                    other = Path(folder) / f"{view}.html"
                    done = subprocess.run(
                        [arguments.bertviz, "-c", BERTVIZ, Path(folder) / "weights.npz", view, other],
                        capture_output=True,
                        text=True,
                        check=True,
                    )
                    row = {
                        "what": f"bertviz {view}",
                        "tokens": tokens,
                        "MB": other.stat().st_size / 1e6,
                        "written, s": float(done.stdout),
                    }
                    found.append(row | {"first picture, s": painted_by_bertviz(browser, other)})
                    print(json.dumps(found[-1]), flush=True)
        if arguments.long:
            for tokens in (arguments.long // 2, arguments.long):
                trace = made(tokens, layers=22)
                trace = Trace(
                    model="long",
                    queries=trace.queries,
                    layers=[replace(record, v=None) for record in trace.layers],
                    outputs={},
                )
                file = Path(folder) / "long.html"
                began = time.perf_counter()
                trace.to_html(file)
                row = {
                    "what": "headscope, 22 x 12",
                    "tokens": tokens,
                    "MB": file.stat().st_size / 1e6,
                    "written, s": time.perf_counter() - began,
                }
                found.append(row | looked_at(browser, file))
                print(json.dumps(found[-1]), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
