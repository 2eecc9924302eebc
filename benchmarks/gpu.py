"""A GPU: is everything right on it, does capture wait for it, and what does capture cost?

    python benchmarks/gpu.py --json cuda.json                       # on a machine with a GPU
    python benchmarks/gpu.py --device cpu --tokens 128 --quick      # the same steps on the CPU, at a tiny size

Three parts, each a list of rows that say what was measured:

- `checks`: capture, statistics, survey and ablation in fp32, fp16 and bf16, under autocast and in TF32, with PyTorch's
  flash, memory-efficient and unfused kernels, with and without padding, in a single stream and in two. Each is compared
  with something independent: the module's output in fp64, transformers' eager attention, statistics in fp64, the same
  on the CPU, a projection whose columns are 0.
- `waits`: how often a captured forward pass waits for the GPU, for models of 2 and of 6 layers: the same, if capture
  waits for no layer.
- `times`: the time of a captured forward pass and of eager attention with output_attentions over that of the model's
  own forward pass. `benchmarks/capture.py --device cuda --transformer-lens PYTHON` adds TransformerLens.

The exit code is 0 only if every check agrees.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

import headscope as hs
from headscope.heads.fast import fast_statistics
from headscope.heads.reference import LayerArrays, roles_of

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
KERNELS_OF = {("cpu", name): ("flash", "math") for name in DTYPES}
KERNELS_OF |= {("cuda", name): ("flash", "efficient", "math") for name in ("fp16", "bf16")}
KERNELS_OF["cuda", "fp32"] = ("efficient", "math")
"""(device, precision) -> the kernels that PyTorch has."""

LENGTHS = (128, 512, 2048, 8192, 32768)
UNFUSED = 2048
"""Longest text whose maps are built as a whole."""
VERIFIED = 512
"""Longest text that is recomputed in fp64 in full; longer ones are compared in 64 rows."""
TEXTS = ["The cat sat on the mat.", "A rose is a rose is a rose.", "To be, or not to be: that is the question."]
Row = dict[str, Any]


def bert(tokens: int, layers: int, quick: bool, dtype: torch.dtype, device: str) -> Any:
    """BERT-base's shape with random weights, large enough that attention is not near-uniform; tiny if quick."""
    torch.manual_seed(0)
    width, heads = (32, 4) if quick else (768, 12)
    config = transformers.BertConfig(
        vocab_size=500,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=max(tokens, 64),
        initializer_range=0.1,
    )
    return transformers.BertModel(config, add_pooling_layer=False).eval().to(device, dtype)


def inputs_of(tokens: int, device: str, *, padded: bool) -> dict[str, torch.Tensor]:
    """Two texts; if padded, the second is a quarter shorter."""
    ids = torch.randint(5, 500, (2, tokens), generator=torch.Generator().manual_seed(1)).to(device)
    mask = torch.ones_like(ids)
    if padded:
        mask[1, -tokens // 4 :] = 0
    return {"input_ids": ids, "attention_mask": mask} if padded else {"input_ids": ids}


def agrees(name: str, find: Callable[[], str]) -> Row:
    """A row for a check. `find` returns what disagrees, "" if nothing does; an error counts as that."""
    try:
        return {"check": name, "no": find()}
    except Exception as error:  # noqa: BLE001 - a check that fails must not hide the others
        return {"check": name, "no": f"{type(error).__name__}: {str(error).splitlines()[0]}"}


def captured_of(model: Any, inputs: dict[str, torch.Tensor], **options: Any) -> list[hs.Trace]:
    """The traces of one call."""
    with torch.no_grad(), hs.capture(model, **options) as captured:
        model(**inputs)
    return list(captured.traces)


def check_traces(traces: list[hs.Trace]) -> str:
    """Compare traces with the module's output, with eager attention, and their statistics with fp64."""
    for trace in traces:
        if len(trace) > VERIFIED:
            rows = np.linspace(0, len(trace) - 1, 64).astype(int)
            q, k = (x[0].astype(np.float64) for x in (trace.layers[1].q[:, rows], trace.layers[1].k))
            shares = np.exp(trace.layers[1].scale * q @ k.T)
            gap = np.abs(np.asarray(trace[1, 0].weights[rows]) - shares / shares.sum(-1, keepdims=True)).max()
            if not gap <= 1e-4:
                return f"row {trace.row}: weights differ by {gap:.1e}"
            continue
        report = trace.verify()
        if not report.agrees:
            return f"row {trace.row}: {report}"
        weights = np.asarray(trace[1].weights, dtype=np.float64)
        entropy = -np.where(weights > 0, weights * np.log(np.maximum(weights, 1e-300)), 0).sum(-1).mean(-1)
        gap = np.abs(np.asarray(trace.statistics(["entropy"])["entropy"])[1] - entropy).max()
        if not gap <= 1e-3:
            return f"row {trace.row}: mean entropies differ by {gap:.1e}"
    return ""


def check_ablation(model: Any, inputs: dict[str, torch.Tensor]) -> str:
    """Compare a silenced head with W_O's columns set to 0."""
    with torch.no_grad():
        with hs.ablate(model, {(1, 1)}):
            silenced = model(**inputs).last_hidden_state
        projection = model.encoder.layer[1].attention.output.dense.weight
        d_head = model.config.hidden_size // model.config.num_attention_heads
        before = projection.clone()
        projection[:, d_head : 2 * d_head] = 0
        expected = model(**inputs).last_hidden_state
        projection.copy_(before)
    kept = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    gap = float((silenced - expected)[kept].abs().max())
    limit = 64 * torch.finfo(silenced.dtype).eps * float(expected[kept].abs().max())
    return "" if gap <= limit else f"outputs differ by {gap:.1e}, more than {limit:.1e}"


@contextmanager
def tf32() -> Iterator[None]:
    """Let fp32 products round their factors to TF32, and see that headscope leaves the setting alone."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        left = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32
        torch.set_float32_matmul_precision(before)
        if left != ("high", True):
            raise RuntimeError(f"the precision of products was changed to {left}")


def check_statistics(model: Any, inputs: dict[str, torch.Tensor]) -> str:
    """Compare statistics computed on the device with those in NumPy."""
    names, device = ["entropy", "strongest", "previous"], model.device
    for trace in captured_of(model, inputs):
        record, roles = trace.layers[1], roles_of(trace)
        q, k = (torch.from_numpy(x).to(device) for x in (record.q, record.k))
        found = fast_statistics(LayerArrays(q, k, None, record.scale, record.mask), roles, names)
        expected = trace.statistics(names, per_query=True)
        for name in names:
            gap = float(np.nanmax(np.abs(found[name].cpu().numpy() - np.asarray(expected[name])[1])))
            if not gap <= 1e-4:
                return f"row {trace.row}: {name} differs by {gap:.1e}"
    return ""


def check_survey(device: str, dtype: str | None) -> str:
    """Compare a survey with the same on the CPU in fp32."""
    runs = [
        hs.survey("-", TEXTS, length=16, statistics=["strongest", "entropy"], report=False, device=place, dtype=kind)
        for place, kind in (("cpu", None), (device, dtype))
    ]
    gap = max(float(np.nanmax(np.abs(runs[0][name].array - runs[1][name].array))) for name in runs[0])
    limit = 1e-3 if dtype in (None, "fp32") else 0.1
    return "" if gap <= limit else f"statistics differ by {gap:.1e}, more than {limit:.0e}"


def check_streams(model: Any, inputs: dict[str, torch.Tensor], device: str) -> str:
    """Compare captures in two threads, each with a stream of its own, with a capture alone."""
    want = captured_of(model, inputs)

    def in_a_stream(_: int) -> list[hs.Trace]:
        stream = torch.cuda.Stream() if device == "cuda" else None
        if stream is not None:
            stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            return captured_of(model, inputs)

    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(in_a_stream, range(2)))
    for traces in together:
        for one, other in zip(want, traces, strict=True):
            pairs = list(zip(one.layers, other.layers, strict=True))
            if not all(np.allclose(a.q, b.q, atol=1e-5) and np.allclose(a.k, b.k, atol=1e-5) for a, b in pairs):
                return f"row {one.row}: queries or keys differ"
    return ""


def checks(device: str, tokens: list[int], quick: bool) -> Iterator[Row]:
    """Every combination, shortest texts first."""
    for length in tokens:
        for name, dtype in DTYPES.items():
            for kernel, backend in KERNELS.items():
                if kernel not in KERNELS_OF[device, name] or (kernel == "math" and length > UNFUSED):
                    continue  # the unfused kernel would build maps that don't fit
                for padded in (False, True):
                    if padded and kernel == "flash" and device == "cuda":
                        continue  # that kernel takes no mask
                    model, inputs = bert(length, 2, quick, dtype, device), inputs_of(length, device, padded=padded)
                    with sdpa_kernel(backend):
                        what = f"{length} tokens, {name}, {kernel}{', padded' if padded else ''}"
                        yield agrees(f"capture, {what}", lambda m=model, i=inputs: check_traces(captured_of(m, i)))
                        yield agrees(f"ablation, {what}", lambda m=model, i=inputs: check_ablation(m, i))
        model, inputs = bert(length, 2, quick, torch.float32, device), inputs_of(length, device, padded=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            what = f"capture, {length} tokens, autocast"
            yield agrees(what, lambda m=model, i=inputs: check_traces(captured_of(m, i)))
        with tf32():
            what = f"{length} tokens, TF32"
            yield agrees(f"capture, {what}", lambda m=model, i=inputs: check_traces(captured_of(m, i)))
            yield agrees(f"statistics, {what}", lambda m=model, i=inputs: check_statistics(m, i))
        yield agrees(f"two streams, {length} tokens", lambda m=model, i=inputs: check_streams(m, i, device))
        yield agrees(
            f"copies kept on the device, {length} tokens",
            lambda m=model, i=inputs: check_traces(captured_of(m, i, device=device)),
        )
    for kind in (None, "fp16", "bf16"):
        yield agrees(f"survey, {kind or 'fp32'}", lambda kind=kind: check_survey(device, kind))


def waits(device: str, tokens: int, quick: bool) -> list[Row]:
    """Number of times that a captured forward pass waits for the GPU, by padding and layers; None on a CPU."""
    rows = []
    for padded, layers in product((False, True), (2, 6)):
        model, inputs = bert(tokens, layers, quick, torch.float32, device), inputs_of(tokens, device, padded=padded)
        captured_of(model, inputs)
        count = None
        if device == "cuda":
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                try:
                    captured_of(model, inputs)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
            count = sum("called a synchronizing" in str(warning.message) for warning in caught)
        else:
            captured_of(model, inputs)
        rows.append({"layers": layers, "padded": padded, "waits": count})
    return rows


def seconds_of(run: Callable[[], Any], device: str) -> float:
    """Seconds of one run, with the GPU's work."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def times(device: str, tokens: list[int], quick: bool, rounds: int) -> list[Row]:
    """Medians of the ratios to the model's own forward pass, round by round, with the lowest and the highest."""
    rows = []
    for length in tokens:
        for name, dtype in DTYPES.items():
            model = bert(length, 2 if quick else 12, quick, dtype, device)
            inputs = inputs_of(length, device, padded=False)

            def eager(model: Any = model, inputs: Any = inputs) -> None:
                model.set_attn_implementation("eager")
                try:
                    model(**inputs, output_attentions=True)
                finally:
                    model.set_attn_implementation("sdpa")

            ways: dict[str, Callable[[], Any]] = {
                "capture": lambda m=model, i=inputs: captured_of(m, i),
                "capture, kept on the device": lambda m=model, i=inputs: captured_of(m, i, device=device),
            }
            ways |= {} if length > UNFUSED else {"eager with output_attentions": eager}
            ratios: dict[str, list[float]] = {way: [] for way in ways}
            with torch.no_grad():
                for at in range(-1, rounds):
                    for way, run in ways.items():
                        own = seconds_of(lambda m=model, i=inputs: m(**i), device)
                        taken = seconds_of(run, device) / own
                        ratios[way] += [taken] if at >= 0 else []
            for way, raw in ratios.items():
                row = {"tokens": length, "dtype": name, "way": way, "ratio": statistics.median(raw)}
                rows.append({**row, "lowest": min(raw), "highest": max(raw)})
    return rows


def measured(device: str, tokens: list[int], quick: bool, rounds: int) -> dict[str, Any]:
    """All three parts."""
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {
        "device": name,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "headscope": hs.__version__},
        "checks": list(checks(device, tokens, quick)),
        "waits": waits(device, tokens[0], quick),
        "times": times(device, tokens, quick, rounds),
    }


def failures(report: dict[str, Any]) -> list[str]:
    """What disagrees, and that capture waits for each layer if it does."""
    failed = [f"{row['check']}: {row['no']}" for row in report["checks"] if row["no"]]
    counts = [row["waits"] for row in report["waits"]]
    pairs = zip(counts[::2], counts[1::2], strict=True)
    return failed + [f"{few} waits with 2 layers, {many} with 6" for few, many in pairs if few != many]


def main() -> int:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--tokens", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="tiny models: does everything run?")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --device cpu runs the same steps on the CPU")
    report = measured(options.device, options.tokens, options.quick, options.rounds)
    failed = failures(report)
    for row in report["times"]:
        span = f"{row['ratio']:.3f} ({row['lowest']:.3f} to {row['highest']:.3f})"
        print(f"{row['tokens']:>6} {row['dtype']} {row['way']:<30} {span}")
    counts = [row["waits"] for row in report["waits"]]
    print(
        "\n".join(failed)
        or f"{len(report['checks'])} checks agree; waits with 2 and 6 layers, and with padding: {counts}"
    )
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
