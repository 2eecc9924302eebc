"""A forward pass with its trace, compared with ONNX Runtime (fp32) and transformers' eager pass, with as many threads.

    python benchmarks/encoder.py [--rounds 9] [--threads 1] [--layers 4] [--json FILE]

It requires onnxruntime and onnx (pip install onnxruntime onnx). The model has BERT-base's widths, random weights and a
few layers. The time is processor time; the three alternate. ONNX Runtime is a yardstick: it gives the last hidden
state, and no queries, keys, values or weights.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

TOKENS = (12, 128, 512)


def export(module: Any, path: Path) -> None:
    """Write a model as ONNX with a free number of tokens."""
    import torch

    class LastHiddenState(torch.nn.Module):
        """The model, from ids to its last hidden state."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
            """(1, tokens, d_model)."""
            outputs = self.inner(input_ids=ids, attention_mask=mask, token_type_ids=segments)
            last: torch.Tensor = outputs.last_hidden_state
            return last

    ids = torch.arange(5, 17)[None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            LastHiddenState(),
            (ids, torch.ones_like(ids), torch.zeros_like(ids)),
            str(path),
            input_names=["ids", "mask", "segments"],
            output_names=["last"],
            dynamic_axes={name: {1: "tokens"} for name in ("ids", "mask", "segments", "last")},
            opset_version=17,
            dynamo=False,
        )


def measure(calls: dict[str, Callable[[], object]], rounds: int, times: int) -> dict[str, list[float]]:
    """Seconds of processor time of each call, round by round, in turn, after one warm-up of each."""
    for call in calls.values():
        call(), call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.process_time()
            for _ in range(times):
                call()
            seconds[name].append((time.process_time() - started) / times)
    return seconds


def main() -> None:
    """Measure, and print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(options.threads)
    import numpy as np
    import onnxruntime
    import torch
    from transformers import BertConfig, BertModel

    import headscope as hs

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=5000, num_hidden_layers=options.layers, attn_implementation="eager")
    theirs = BertModel(config).eval()
    figures: dict[int, dict[str, list[float]]] = {}
    head = ("tokens", "headscope, with its trace", "× ONNX Runtime", "× transformers, eager", "largest difference")
    print(f"| {' | '.join(head)} |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as made:
        theirs.save_pretrained(made)
        export(theirs, Path(made) / "model.onnx")
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = options.threads
        settings.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(Path(made) / "model.onnx", settings, ["CPUExecutionProvider"])
        ours = hs.open(made)
        for tokens in TOKENS:
            row = [5 + at % 4000 for at in range(tokens)]
            ids = np.array([row])
            feed = {"ids": ids, "mask": np.ones_like(ids), "segments": np.zeros_like(ids)}
            batch = torch.from_numpy(ids)

            def run_torch(batch: torch.Tensor = batch) -> object:
                with torch.inference_mode():
                    return theirs(batch, attention_mask=torch.ones_like(batch))

            calls: dict[str, Callable[[], object]] = {
                "headscope": lambda row=row: ours.trace(ids=row),  # type: ignore[misc]
                "onnxruntime": lambda feed=feed: session.run(None, feed),  # type: ignore[misc]
                "transformers": run_torch,
            }
            seconds = figures[tokens] = measure(calls, options.rounds, 8 if tokens < 100 else 1)
            state = ours.trace(ids=row).outputs["last_hidden_state"].array
            difference = np.abs(state - session.run(None, feed)[0][0]).max()
            cells = []
            for peer in ("onnxruntime", "transformers"):
                ratios = [a / b for a, b in zip(seconds["headscope"], seconds[peer], strict=True)]
                cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
            milliseconds = statistics.median(seconds["headscope"]) * 1e3
            print(f"| {tokens} | {milliseconds:.1f} ms | {cells[0]} | {cells[1]} | {difference:.1e} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
