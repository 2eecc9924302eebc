"""Cost of a capture compared with the model's forward pass: time as a ratio within one run, additional memory.

    python benchmarks/capture.py --json results.json --markdown results.md

BERT-base, random weights, one text of 128, 512 and 2,048 tokens. Each round runs every way once, in turn; ratios are
taken round by round: the median, the lowest and the highest. `--count 8192` counts every tensor that a capture
allocates there, in a BERT of two layers of two heads of 64: the number and the kind of a capture's tensors don't depend
on the width, and a full-size forward pass of that length takes minutes.

Peers run in environments of their own, each beside the plain forward pass of transformers in the same process:

    python -m venv lens && lens/bin/pip install "transformer_lens<4"
    python -m venv bertviz && bertviz/bin/pip install bertviz "transformers<5"
    python benchmarks/capture.py --transformer-lens lens/bin/python --bertviz bertviz/bin/python

A peer that can't do it gets a "no" with its error. With `--threads 1`, the processor's time is what a capture costs;
its ratio has the 95 % interval of the median over the rounds, which alternate in one process. `--only mask` and
`--only foreign` measure what the checks of masks and of functions that aren't transformers' own cost.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.utils._python_dispatch import TorchDispatchMode

OWN = "sdpa, the model's own forward"
LEAST_TIMED = 120
"""Seconds that a peer is given at least; ten more for every round and a thousand tokens."""


def bert(tokens: int, layers: int = 12, heads: int = 12) -> Any:
    """BERT-base with room for this many tokens, random weights; narrower with fewer heads."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        max_position_embeddings=max(512, tokens),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        hidden_size=64 * heads,
        intermediate_size=256 * heads,
    )
    return transformers.BertModel(config, add_pooling_layer=False).eval()


def ids_of(tokens: int, device: str) -> torch.Tensor:
    """(1, tokens) ids."""
    return torch.randint(1000, 20000, (1, tokens), generator=torch.Generator().manual_seed(1)).to(device)


def rounds(ways: dict[str, Callable[[], Any]], count: int, device: str) -> tuple[dict[str, list[float]], ...]:
    """Seconds of each way in each round, alternating, after one run of each: on the clock and of the processor."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    worked: dict[str, list[float]] = {name: [] for name in ways}
    for name in ways:
        ways[name]()
    for _ in range(count):
        for name, run in ways.items():
            gc.collect()
            if device == "cuda":
                torch.cuda.synchronize()
            start, begun = time.perf_counter(), time.process_time()
            result = run()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
            worked[name].append(time.process_time() - begun)
            del result
    return seconds, worked


def interval(ratios: list[float]) -> tuple[float, float]:
    """The 95 % interval of the median of paired rounds, from 2,000 resamples of them."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[49], medians[1949]


def own_forward(tokens: int, device: str) -> Callable[[], Any]:
    """transformers' BERT, its own fast attention."""
    model, ids = bert(tokens).to(device), ids_of(tokens, device)
    return lambda: model(input_ids=ids)


def headscope_ways(tokens: int, device: str) -> dict[str, Callable[[], Any]]:
    """The forward pass, the same watched and under capture, and transformers' own way to the weights."""
    from headscope.live import capture
    from headscope.live.seeing import operators, sdpa_watch

    model, eager, ids = bert(tokens).to(device), bert(tokens).to(device), ids_of(tokens, device)
    eager.set_attn_implementation("eager")

    def captured(place: str, *, values: bool = True) -> Any:
        with capture(model, device=place, values=values) as found:
            model(input_ids=ids)
        return found

    def watched() -> Any:
        operators.observe(sdpa_watch.observe)
        operators.watch(True)
        try:
            return model(input_ids=ids)
        finally:
            operators.watch(False)

    ways: dict[str, Callable[[], Any]] = {
        OWN: lambda: model(input_ids=ids),
        "the same, watched for attention that is not recorded": watched,
        "headscope": lambda: captured("cpu"),
        "headscope, without V": lambda: captured("cpu", values=False),
        "transformers, eager with output_attentions": lambda: eager(input_ids=ids, output_attentions=True),
    }
    if device == "cuda":
        ways["headscope, kept on the device"] = lambda: captured(device)
    return ways


def lens_ways(tokens: int, device: str) -> dict[str, Callable[[], Any]]:
    """TransformerLens: HookedEncoder.run_with_cache, which keeps every activation and also scores the vocabulary."""
    from transformer_lens import HookedEncoder, HookedTransformerConfig

    model = HookedEncoder(
        HookedTransformerConfig(
            n_layers=12,
            d_model=768,
            n_ctx=max(512, tokens),
            d_head=64,
            n_heads=12,
            d_mlp=3072,
            d_vocab=30522,
            act_fn="gelu",
            normalization_type="LN",
            attention_dir="bidirectional",
            device=device,
        )
    ).eval()
    ids = ids_of(tokens, device)
    return {
        OWN: own_forward(tokens, device),
        "TransformerLens, run_with_cache": lambda: model.run_with_cache(ids),
    }


def bertviz_ways(tokens: int, device: str) -> dict[str, Callable[[], Any]]:
    """bertviz's neuron view: its own BertModel, which returns queries, keys and weights for `show` to spell out."""
    from bertviz.transformers_neuron_view import BertConfig, BertModel

    config = BertConfig(30522, max_position_embeddings=max(512, tokens), output_attentions=True)
    model, ids = BertModel(config).eval().to(device), ids_of(tokens, device)
    return {OWN: own_forward(tokens, device), "bertviz, the neuron view's BertModel": lambda: model(ids)}


def long_ways(tokens: int, device: str) -> dict[str, Callable[[], Any]]:
    """The forward pass and the same under capture, alone: other ways would build maps of gigabytes."""
    ways = headscope_ways(tokens, device)
    return {name: ways[name] for name in (OWN, "headscope")}


def mask_ways(tokens: int, device: str) -> dict[str, Callable[[], Any]]:
    """The same with an additive mask of all pairs, which a capture looks at in every layer."""
    from headscope.live import capture

    model, ids = bert(tokens).to(device), ids_of(tokens, device)
    mask = torch.zeros(1, 1, tokens, tokens, device=device)
    mask[..., tokens // 2 :] = float("-inf")

    def captured() -> Any:
        with capture(model) as found:
            model(input_ids=ids, attention_mask=mask)
        return found

    return {OWN: lambda: model(input_ids=ids, attention_mask=mask), "headscope": captured}


def foreign_ways(tokens: int, device: str) -> dict[str, Callable[[], Any]]:
    """The same with functions of other code: one operator, and two, of which every query is compared."""
    from headscope.live import capture

    def in_parts(count: int) -> Callable[..., Any]:
        def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
            parts = [sdpa(part, k, v) for part in q.split(-(-q.shape[2] // count), 2)]
            return torch.cat(parts, 2).transpose(1, 2).contiguous(), None

        return attend

    model, ids = bert(tokens).to(device), ids_of(tokens, device)
    for name, count in (("one operator", 1), ("two operators", 2)):
        transformers.AttentionInterface.register(name, in_parts(count))

    def run(name: str, *, watched: bool) -> Any:
        model.set_attn_implementation(name)
        if not watched:
            return model(input_ids=ids)
        with capture(model) as found:
            model(input_ids=ids)
        return found

    return {
        OWN: lambda: run("two operators", watched=False),
        "headscope, one operator": lambda: run("one operator", watched=True),
        "headscope, two operators": lambda: run("two operators", watched=True),
    }


WAYS = {
    "headscope": headscope_ways,
    "long": long_ways,
    "mask": mask_ways,
    "foreign": foreign_ways,
    "transformer-lens": lens_ways,
    "bertviz": bertviz_ways,
}


def peak(run: Callable[[], Any], device: str) -> int:
    """Peak bytes in use during a run, beyond those in use before."""
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run()
        peak_bytes = torch.cuda.max_memory_allocated() - before
        del result
        return peak_bytes
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = run()
    del result
    live = most = 0
    for event in sorted(_memory_events(profile), key=lambda pair: pair[0]):
        live += event[1]
        most = max(most, live)
    return most


def _memory_events(profile: Any) -> list[tuple[int, int]]:
    """(time, bytes) of each allocation (positive) and release (negative)."""
    events = []
    stack = list(profile.profiler.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.typed[0].name == "Allocation":
            events.append((event.start_time_ns, event.typed[1].alloc_size))
    return events


def measure(who: str, tokens: int, count: int, device: str) -> list[dict[str, Any]]:
    """One row for each way: seconds, ratio to the model's own forward of the same round, peak memory beyond it."""
    ways = WAYS[who](tokens, device)
    seconds, worked = rounds(ways, count, device)
    base = peak(ways[OWN], device)
    rows = []
    for name, own in seconds.items():
        ratios = sorted(one / forward for one, forward in zip(own, seconds[OWN], strict=True))
        processor = [one / forward for one, forward in zip(worked[name], worked[OWN], strict=True)]
        beyond = peak(ways[name], device) - base if name != OWN else 0
        rows.append(
            {
                "tokens": tokens,
                "way": name,
                "seconds": statistics.median(own),
                "ratio": statistics.median(ratios),
                "lowest": ratios[0],
                "highest": ratios[-1],
                "processor": statistics.median(processor),
                "interval": interval(processor),
                "raw": own,
                "beyond": beyond,
                "of_qkv": beyond / (3 * 12 * tokens * 768 * 4),
            }
        )
    return rows


def measure_peer(python: Path, who: str, tokens: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The same in a peer's environment, or its error."""
    command = [str(python), __file__, "--only", who, "--tokens", str(tokens), "--rounds", str(options.rounds)]
    command += ["--device", options.device] + (["--threads", str(options.threads)] if options.threads else [])
    limit = LEAST_TIMED + 10 * options.rounds * tokens / 1000
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return [{"tokens": tokens, "way": who, "no": f"not done after {limit:.0f} s"}]
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
        return [{"tokens": tokens, "way": who, "no": lines[-1]}]
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return [row for row in rows if row["way"] != OWN]


class Allocated(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the size of every tensor that an operator makes, views left out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[tuple[int, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        for output in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(output, torch.Tensor) and output.untyped_storage().data_ptr() not in inputs:
                self.sizes.append((output.untyped_storage().nbytes() // max(1, output.element_size()), str(func)))
        return result


def largest_allocations(tokens: int, padded: bool) -> dict[str, Any]:
    """Tensors as large as a map in a forward pass of two layers, by the model alone and while it is captured."""
    from headscope.live import capture

    model, ids = bert(tokens, layers=2, heads=2), ids_of(tokens, "cpu")
    inputs = {"input_ids": ids}
    if padded:
        mask = torch.ones_like(ids)
        mask[:, -tokens // 4 :] = 0
        inputs["attention_mask"] = mask
    with Allocated() as alone:
        model(**inputs)
    with Allocated() as watched, capture(model) as captured:
        model(**inputs)
        captured.traces  # noqa: B018
    cells = tokens * tokens
    return {
        "tokens": tokens,
        "padded": padded,
        "alone": sum(size >= cells for size, _ in alone.sizes),
        "captured": sum(size >= cells for size, _ in watched.sizes),
        "largest_alone": max(alone.sizes),
        "largest_captured": max(watched.sizes),
    }


def table(report: dict[str, Any]) -> str:
    """The results in Markdown."""
    lines = [
        f"torch {report['torch']}, transformers {report['transformers']}, {report['device']}",
        "",
        "| tokens | way | time | of the own forward (range) | processor (95 %) | peak beyond it | of Q, K, V |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report["times"]:
        if "no" in row:
            lines.append(f"| {row['tokens']:,} | {row['way']} | no | {row['no']} | | | |")
            continue
        span = f"{row['ratio']:.3f} ({row['lowest']:.3f} to {row['highest']:.3f})" if row["way"] != OWN else "1"
        low, high = row["interval"]
        span += f" | {row['processor']:.3f} ({low:.3f} to {high:.3f})" if row["way"] != OWN else " | 1"
        memory = f"{row['beyond'] / 1e6:,.1f} MB | {row['of_qkv']:.3f}" if row["way"] != OWN else "| "
        lines.append(f"| {row['tokens']:,} | {row['way']} | {row['seconds'] * 1e3:,.1f} ms | {span} | {memory} |")
    if report["allocations"]:
        lines += [
            "",
            "| tokens | padded | tensors as large as a map: model alone | captured | largest while captured |",
            "|---|---|---|---|---|",
        ]
    for one in report["allocations"]:
        size, made_by = one["largest_captured"]
        padded = "yes" if one["padded"] else "no"
        lines.append(
            f"| {one['tokens']:,} | {padded} | {one['alone']} | {one['captured']} | {size:,} numbers by {made_by} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="*", default=[128, 512, 2048])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, help="of torch; as many as it takes unless told")
    parser.add_argument("--count", type=int, nargs="*", default=[8192])
    parser.add_argument("--transformer-lens", type=Path, help="Python of an environment that has transformer_lens")
    parser.add_argument("--bertviz", type=Path, help="Python of an environment that has bertviz")
    parser.add_argument("--only", choices=list(WAYS), help="measure this one here, print its rows as JSON")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    if options.only:
        rows = [row for n in options.tokens for row in measure(options.only, n, options.rounds, options.device)]
        print(json.dumps(rows))
        if options.json:
            options.json.write_text(json.dumps(rows) + "\n")
        return
    device = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    report: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__, "device": device}
    report["times"], report["allocations"] = [], []
    for tokens in options.tokens:
        report["times"] += measure("headscope", tokens, options.rounds, options.device)
        for who, python in (("transformer-lens", options.transformer_lens), ("bertviz", options.bertviz)):
            if python is not None:
                report["times"] += measure_peer(python, who, tokens, options)
        print(f"{tokens} tokens measured", file=sys.stderr)
    for tokens in options.count if options.device == "cpu" else ():
        report["allocations"] += [largest_allocations(tokens, padded) for padded in (False, True)]
        print(f"allocations at {tokens} tokens counted", file=sys.stderr)
    print(table(report))
    if options.markdown:
        options.markdown.write_text(table(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
