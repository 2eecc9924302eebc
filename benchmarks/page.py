"""The page and bertviz's, in one run: size, time to write, first picture, change of head, frames while hovering.

    python benchmarks/page.py                     # headscope alone, 64 and 512 tokens
    python benchmarks/page.py --long 4096         # and 22 layers x 12 heads at 2,048 and 4,096 tokens
    python benchmarks/page.py --served 8192       # and a served page of 22 layers x 12 heads at 8,192 tokens
    python benchmarks/page.py --bertviz PYTHON    # beside bertviz 1.4.1 in an environment of its own

Traces of BERT-base's shape with random numbers, whose heads look at the token before. Both pages come from the same
local server. bertviz's pages fetch three scripts from elsewhere; here they come from npm packages of the versions that
the pages name (the nearest version where npm has no such one, and that is printed). --json and --markdown write the
table to files.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention.scores import attend
from headscope.page.html import LargePageWarning
from headscope.results.arrays import TokenAxis
from headscope.traces import LayerRecord, Trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
PATIENCE = 150_000
SCRIPT = re.compile(r"//[\w.-]+/ajax/libs/([\w.]+)/([\d.]+)/([\w.-]+)")
"""Pattern of the scripts that a bertviz page fetches: name, version, file."""
PACKAGES = {"require.js": "requirejs", "d3": "d3", "jquery": "jquery"}
TARGETS = {"MB": 27.0, "written, s": 2.0, "first picture, s": 1.5, "next head, ms": 60.0, "any head, ms": 60.0}
"""At 512 tokens; hovering is to keep 50 frames a second."""
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


def made(tokens: int, *, layers: int = 12, heads: int = 12, d_head: int = 64, lse: bool = True) -> Trace:
    """A trace of BERT-base's shape, with heads that look somewhere; without lse, as a capture leaves it."""
    generator = np.random.default_rng(0)
    records: list[LayerRecord] = []
    for layer in range(layers):
        if tokens > 1024 and layer > 0:
            # attend() over long texts takes minutes: the first layer's heads, in another order, stand for every layer's
            first = records[0]
            q, k = (np.roll(part, layer, 0) for part in (first.q, first.k))
            v = None if first.v is None else np.roll(first.v, layer, 0)
            records.append(replace(first, q=q, k=k, v=v, lse=np.roll(first.lse, layer, 0) if lse else None))
            continue
        k = generator.normal(size=(heads, tokens, d_head)).astype(np.float32)
        q = np.roll(k, 1, axis=1) + 0.5 * generator.normal(size=k.shape).astype(np.float32)
        v = generator.normal(size=k.shape).astype(np.float32)
        sums = attend(q, k, v, scale=d_head**-0.5)[1] if lse else None
        records.append(LayerRecord(q, k, v, lse=sums, scale=d_head**-0.5))
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
    """Stand-in for the model, with a W_O for the page."""

    name = "bert-base"

    def __init__(self, d_model: int, d_head: int) -> None:
        self.weight = np.random.default_rng(1).normal(size=(d_model // d_head, d_head, d_model)).astype(np.float32)

    def W_O(self, layer: int, head: int) -> np.ndarray:
        return self.weight[head]

    def late_output(self, name: str, last_hidden_state: np.ndarray) -> None:
        return None

    def late_outputs(self) -> tuple[str, ...]:
        return ()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder without logging."""

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder's address on this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


CHANGES = """async ([keys, cells]) => {
  const canvas = document.querySelector('.matrix canvas');
  const row = () => { const y = Math.floor(canvas.height * 0.6);
    const c = canvas.getContext('2d').getImageData(0, y, canvas.width, 1).data;
    let s = 0; for (let n = 0; n < c.length; n++) s = (s * 31 + c[n]) >>> 0; return s; };
  const timed = async (change) => {
    const before = row(); const began = performance.now();
    change();
    while (row() === before && performance.now() - began < 20000) await new Promise((r) => setTimeout(r, 1));
    const took = performance.now() - began;
    await new Promise((r) => setTimeout(r, 400));
    return took;
  };
  const middle = (times) => times.sort((a, b) => a - b)[Math.floor(times.length / 2)];
  const next = []; const any = [];
  for (const key of keys) next.push(await timed(() => dispatchEvent(new KeyboardEvent('keydown', { key }))));
  for (const [l, h] of cells) any.push(await timed(() => { location.hash = `l=${l}&h=${h}`; }));
  return [middle(next), middle(any)];
}"""
"""Until the picture on screen is another one: for an arrow key, and for heads that nothing was computed of before."""

HOVER = """async ([x, y, w, h]) => {
  const element = document.querySelector('.matrix');
  const end = performance.now() + 3000; let frames = 0; let slowest = 0; let last = performance.now();
  while (performance.now() < end) {
    const t = frames / 60;
    element.dispatchEvent(new PointerEvent('pointermove', { bubbles: true,
      clientX: x + w * (0.5 + 0.4 * Math.sin(t)), clientY: y + h * (0.5 + 0.4 * Math.cos(t * 1.3)) }));
    await new Promise(requestAnimationFrame); frames++;
    slowest = Math.max(slowest, performance.now() - last); last = performance.now();
  }
  element.dispatchEvent(new PointerEvent('pointerleave'));
  return [frames / 3, slowest];
}"""


def looked_at(browser: Browser, address: str) -> dict[str, float]:
    """Seconds to the first picture, milliseconds for another head, frames per second while hovering."""
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.set_default_timeout(PATIENCE)
    page.goto(address, wait_until="commit")
    page.wait_for_selector("html[data-painted]")
    painted = float(page.evaluate("document.documentElement.dataset.painted")) / 1000
    page.evaluate("location.hash = 'mode=both'")  # a long text opens as text
    settled(page)
    keys = ["ArrowRight", "ArrowDown"] * 4
    near, far = page.evaluate(CHANGES, [keys, [[n, 11 - n] for n in range(1, 10)]])
    settled(page)
    box = page.locator(".matrix").bounding_box()
    assert box is not None
    frames, slowest = page.evaluate(HOVER, [box["x"], box["y"], box["width"], box["height"]])
    page.close()
    return {
        "first picture, s": painted,
        "next head, ms": near,
        "any head, ms": far,
        "hover, frames/s": frames,
        "slowest frame, ms": slowest,
    }


def settled(page: Page) -> None:
    """Wait until all computation is done: a row of the matrix is the same twice, half a second apart."""
    look = """() => { const c = document.querySelector('.matrix canvas'); if (!c || !c.width) return '';
      const d = c.getContext('2d').getImageData(0, Math.floor(c.height * 0.6), c.width, 1).data;
      return Array.from(d).join(); }"""
    before, end = "", time.monotonic() + PATIENCE / 1000
    while (now := page.evaluate(look)) != before or not now:
        assert time.monotonic() < end, "the picture never settled"
        before = now
        page.wait_for_timeout(500)


def scripts(html: str, folder: Path) -> dict[str, Path]:
    """The files that a bertviz page fetches, from npm packages: by the end of their address."""
    files = {}
    for name, version, file in sorted(set(SCRIPT.findall(html))):
        file = file if file.endswith(".js") else f"{file}.js"
        package = PACKAGES[name]
        home = folder / f"{package}-{version}"
        if not home.exists():
            had = json.loads(subprocess.run(["npm", "view", package, "versions", "--json"], **CAPTURED).stdout)
            taken = version if version in had else min(had, key=lambda release: apart(release, version))
            if taken != version:
                print(f"  {package} {version} is not on npm: using {taken} instead")
            install = ["npm", "install", "--prefix", str(home), "--no-audit", "--no-fund", "--ignore-scripts"]
            subprocess.run([*install, f"{package}@{taken}"], **CAPTURED)
        inside = home / "node_modules" / package
        wanted = [file, file.replace(".min.js", ".js"), file.replace("require.min.js", "require.js")]
        place = next(
            path
            for one in wanted
            for path in sorted(inside.rglob(one))
            if "node_modules" not in path.relative_to(inside).parts
        )
        files[f"/ajax/libs/{name}/{version}/{file}"] = place
    return files


CAPTURED: dict[str, Any] = {"check": True, "capture_output": True, "text": True}


def apart(one: str, other: str) -> tuple[int, ...]:
    """Distance between two versions; releases only."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", one):
        return (10**9,)
    return tuple(abs(int(a) - int(b)) for a, b in zip(one.split("."), other.split("."), strict=True))


def answering(path: Path) -> Callable[[Route], None]:
    return lambda route: route.fulfill(path=path, content_type="text/javascript")


def painted_by_bertviz(browser: Browser, address: str, held: dict[str, Path]) -> dict[str, Any]:
    """Seconds until the drawing is done, and its number of nodes; None if that takes longer than the patience."""
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    for end, path in held.items():
        page.route(f"**{end}", answering(path))
    began = time.perf_counter()
    try:
        page.goto(address, wait_until="commit", timeout=PATIENCE)
        page.wait_for_selector("svg line, svg path", state="attached", timeout=PATIENCE)
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        painted = time.perf_counter() - began
        return {"first picture, s": painted, "nodes": page.evaluate("document.getElementsByTagName('*').length")}
    except Exception as error:  # noqa: BLE001 - whatever stops it, it was not painted
        print(f"  not painted: {type(error).__name__}")
        return {"first picture, s": None}
    finally:
        page.close()


def page_row(browser: Browser, root: str, folder: Path, trace: Trace, what: str, times: int) -> dict[str, Any]:
    """Write a trace's page, look at it, and measure both."""
    file = folder / "page.html"
    took = []
    for _ in range(times):
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LargePageWarning)
            trace.to_html(file)
        took.append(time.perf_counter() - began)
    row = {"what": what, "tokens": len(trace), "MB": file.stat().st_size / 1e6, "written, s": min(took)}
    print(json.dumps(row), flush=True)
    row |= looked_at(browser, f"{root}/page.html")
    print(json.dumps(row), flush=True)
    return row


def serve(tokens: int) -> None:
    """Serve a page of 22 layers x 12 heads, until the process is ended."""
    from headscope.page.server import serve as run

    trace = made(tokens, layers=22, lse=False).replaced(source=WithModel(768, 64))
    print(json.dumps({"trace": sum(record.nbytes for record in trace.layers)}), flush=True)
    run(trace, open_browser=False, announce=lambda line: print(line.split()[3], flush=True))


HEADS = """async (heads) => {
  const label = () => document.querySelector('.sampled');
  const frame = () => new Promise(requestAnimationFrame);
  const appeared = []; const exact = [];
  for (const head of heads) {
    const began = performance.now();
    location.hash = `l=${head}&h=${head}`;
    while (!label() && performance.now() - began < 20000) await frame();
    appeared.push(performance.now() - began);
    while (label() && performance.now() - began < 60000) await frame();
    exact.push(performance.now() - began);
    await new Promise((r) => setTimeout(r, 600));
  }
  const middle = (times) => times.sort((a, b) => a - b)[Math.floor(times.length / 2)];
  return [middle(appeared), middle(exact)];
}"""
"""For heads that were not looked at: until every nth of its rows is on the screen, and until all are."""


def served_row(browser: Browser, tokens: int) -> dict[str, Any]:
    """A long text from `headscope view`'s own server, in a process of its own: from the end of the forward pass on."""
    command = [sys.executable, __file__, "--serve", str(tokens)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            arrays = json.loads(server.stdout.readline())["trace"]
            began = time.perf_counter()
            address = server.stdout.readline().strip()
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.set_default_timeout(PATIENCE)
            page.goto(address, wait_until="commit")
            page.wait_for_selector(".sampled")
            row: dict[str, Any] = {"what": "served, 22 x 12", "tokens": tokens}
            row["first picture, s"] = time.perf_counter() - began
            page.wait_for_selector(".sampled", state="detached")
            row["exact, s"] = time.perf_counter() - began
            row["MB"] = page.evaluate(
                "performance.getEntries().reduce((sum, entry) => sum + (entry.transferSize ?? 0), 0) / 1e6"
            )
            row["any head, ms"], row["exact head, ms"] = page.evaluate(HEADS, [3, 5, 7, 9, 11])
            page.wait_for_selector("[data-test=awaited]", state="detached")
            row["all thumbnails, s"] = time.perf_counter() - began
            if (status := Path(f"/proc/{server.pid}/status")).exists():
                peak = int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) * 1024  # type: ignore[index]
                row["server beyond the trace, MB"] = (peak - arrays) / 1e6
            page.close()
        finally:
            server.terminate()
    print(json.dumps(row), flush=True)
    return row


def bertviz_rows(browser: Browser, root: str, folder: Path, tokens: int, python: str) -> Iterator[dict[str, Any]]:
    trace = made(tokens)
    weights = np.stack(
        [np.stack([np.asarray(trace[layer, head].weights) for head in range(12)]) for layer in range(12)]
    )
    np.savez(folder / "weights.npz", weights=weights)
    for view in ("head_view", "model_view"):
        other = folder / f"{view}.html"
        done = subprocess.run([python, "-c", BERTVIZ, folder / "weights.npz", view, other], **CAPTURED)
        row = {"what": f"bertviz {view}", "tokens": tokens, "MB": other.stat().st_size / 1e6}
        row["written, s"] = float(done.stdout.split()[-1])
        files = scripts(other.read_text(encoding="utf-8"), folder / "scripts")
        yield row | painted_by_bertviz(browser, f"{root}/{view}.html", files)


def markdown(rows: list[dict[str, Any]], about: dict[str, Any]) -> str:
    """The rows as a table, with the machine above it and the targets below."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = [", ".join(f"{name} {value}" for name, value in about.items()), ""]
    text += ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in rows:
        cells = ["-" if row.get(name) is None else shown(row[name]) for name in names]
        text.append("| " + " | ".join(cells) + " |")
    aims = ", ".join(f"{name} at most {value:g}" for name, value in TARGETS.items())
    return "\n".join([*text, "", f"Aims at 512 tokens: {aims}, hover at least 50 frames/s.", ""])


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="*", default=[64, 512])
    parser.add_argument("--long", type=int, default=0, metavar="TOKENS", help="also a long text, 22 layers x 12 heads")
    parser.add_argument(
        "--served", type=int, default=0, metavar="TOKENS", help="also a served text, 22 layers x 12 heads"
    )
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--bertviz", metavar="PYTHON", help="a Python that has bertviz and torch")
    parser.add_argument("--bertviz-tokens", type=int, nargs="*", default=[64, 128])
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--markdown", type=Path, help="write the table there")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    from playwright.sync_api import sync_playwright

    rows: list[dict[str, Any]] = []
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        about = {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "chromium": browser.version,
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
        }
        with served(folder) as root:
            for tokens in arguments.tokens:
                trace = made(tokens).replaced(source=WithModel(768, 64))
                rows.append(page_row(browser, root, folder, trace, "headscope", 3))
            if arguments.long:
                for tokens in (arguments.long // 2, arguments.long):
                    trace = without_values(made(tokens, layers=22))
                    rows.append(page_row(browser, root, folder, trace, "headscope, 22 x 12", 1))
            if arguments.served:
                rows.append(served_row(browser, arguments.served))
            for tokens in arguments.bertviz_tokens if arguments.bertviz else ():
                for row in bertviz_rows(browser, root, folder, tokens, arguments.bertviz):
                    rows.append(row)
                    print(json.dumps(row), flush=True)
        browser.close()
    table = markdown(rows, about)
    print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    if arguments.markdown:
        arguments.markdown.write_text(table, encoding="utf-8")


def without_values(trace: Trace) -> Trace:
    records = [replace(record, v=None) for record in trace.layers]
    return Trace(model=trace.model, queries=trace.queries, layers=records, outputs={})


if __name__ == "__main__":
    main()
