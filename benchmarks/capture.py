"""What a capture costs beside the model's own forward pass: time as a ratio within one run, memory beyond the forward.

    python benchmarks/capture.py --json results.json

BERT-base, random weights, one text. Each round runs every way once, in turn, and medians are compared. Ways that are
not installed here (TransformerLens, bertviz) say so. `--count 8192` counts every tensor that a capture allocates and
names the largest.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from headscope.capture import capture


def bert(tokens: int, layers: int = 12) -> Any:
    """BERT-base with room for this many tokens, random weights."""
    torch.manual_seed(0)
    config = transformers.BertConfig(max_position_embeddings=max(512, tokens), num_hidden_layers=layers)
    return transformers.BertModel(config, add_pooling_layer=False).eval()


def ids_of(tokens: int, device: str) -> torch.Tensor:
    """(1, tokens) ids."""
    return torch.randint(1000, 20000, (1, tokens), generator=torch.Generator().manual_seed(1)).to(device)


def rounds(ways: dict[str, Callable[[], Any]], count: int, device: str) -> dict[str, list[float]]:
    """Seconds of each way in each round, the ways in turn."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for name in ways:
        ways[name]()
    for _ in range(count):
        for name, run in ways.items():
            gc.collect()
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            kept = run()
            if device == "cuda":
                torch.cuda.synchronize()
            found[name].append(time.perf_counter() - start)
            del kept
    return found


def ways_for(tokens: int, device: str) -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """What is measured, and what is not installed."""
    model = bert(tokens).to(device)
    eager = bert(tokens).to(device)
    eager.set_attn_implementation("eager")
    ids = ids_of(tokens, device)

    def captured() -> Any:
        with capture(model) as found:
            model(input_ids=ids)
        return found

    def kept_there() -> Any:
        with capture(model, device=device) as found:
            model(input_ids=ids)
        return found

    ways: dict[str, Callable[[], Any]] = {"sdpa": lambda: model(input_ids=ids), "headscope": captured}
    if device == "cuda":
        ways["headscope, kept on the device"] = kept_there
    ways["eager, output_attentions"] = lambda: eager(input_ids=ids, output_attentions=True)
    missing = [name for name in ("transformer_lens", "bertviz") if importlib.util.find_spec(name) is None]
    return ways, missing


class Allocated(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the size of every tensor that an operator makes, views left out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[tuple[int, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in given:
                self.sizes.append((one.untyped_storage().nbytes() // max(1, one.element_size()), str(func)))
        return result


def largest_allocations(tokens: int, padded: bool) -> dict[str, Any]:
    """The largest tensor made in a forward pass of one layer, by the model alone and while it is captured."""
    model, ids = bert(tokens, layers=1), ids_of(tokens, "cpu")
    given = {"input_ids": ids}
    if padded:
        mask = torch.ones_like(ids)
        mask[:, -tokens // 4 :] = 0
        given["attention_mask"] = mask
    found: dict[str, Any] = {"tokens": tokens, "padded": padded, "cells of one map": tokens * tokens}
    with torch.no_grad():
        with Allocated() as alone:
            model(**given)
        with Allocated() as watched, capture(model) as captured:
            model(**given)
            captured.traces  # noqa: B018
    found["model alone"], found["captured"] = max(alone.sizes), max(watched.sizes)
    found["as large as a map, model alone"] = sum(size >= tokens * tokens for size, _ in alone.sizes)
    found["as large as a map, captured"] = sum(size >= tokens * tokens for size, _ in watched.sizes)
    return found


def peak(run: Callable[[], Any], device: str) -> int:
    """Bytes that live at most during a run, beyond what lived before."""
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kept = run()
        found = torch.cuda.max_memory_allocated() - before
        del kept
        return found
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        kept = run()
    del kept
    live = most = 0
    for event in sorted(_memory_events(profile), key=lambda pair: pair[0]):
        live += event[1]
        most = max(most, live)
    return most


def _memory_events(profile: Any) -> list[tuple[int, int]]:
    """(time, bytes) of each allocation (positive) and release (negative)."""
    found = []
    stack = list(profile.profiler.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.typed[0].name == "Allocation":
            found.append((event.start_time_ns, event.typed[1].alloc_size))
    return found


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, help="of torch; as many as it takes unless told")
    parser.add_argument("--count", type=int, nargs="*", default=[8192])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    report: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__, "device": device}
    report["times"], report["memory"], report["allocations"] = [], [], []
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {device}")
    torch.set_grad_enabled(False)
    for tokens in options.tokens:
        ways, missing = ways_for(tokens, options.device)
        seconds = rounds(ways, options.rounds, options.device)
        base = statistics.median(seconds["sdpa"])
        for name, all_of_them in seconds.items():
            ratio = statistics.median(one / own for one, own in zip(all_of_them, seconds["sdpa"], strict=True))
            median = statistics.median(all_of_them)
            report["times"].append({"tokens": tokens, "way": name, "seconds": median, "ratio": ratio})
            print(f"{tokens:>6} tokens  {name:<32}{median * 1e3:>10.1f} ms  {ratio:>6.3f} x the model's own forward")
        parts = 3 * 12 * tokens * 768 * 4
        own = peak(ways["sdpa"], options.device)
        with_capture = peak(
            ways["headscope, kept on the device" if options.device == "cuda" else "headscope"], options.device
        )
        share = (with_capture - own) / parts
        report["memory"].append(
            {"tokens": tokens, "forward": own, "captured": with_capture, "qkv": parts, "share": share}
        )
        print(
            f"{tokens:>6} tokens  peak beyond the forward {(with_capture - own) / 1e6:.1f} MB = {share:.3f} x Q, K, V"
        )
        for name in missing:
            print(f"{tokens:>6} tokens  {name}: not installed")
        if base <= 0:
            sys.exit("the clock stands still")
    for tokens in options.count if options.device == "cpu" else ():
        for padded in (False, True):
            counted = largest_allocations(tokens, padded)
            report["allocations"].append(counted)
            print(json.dumps(counted))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
