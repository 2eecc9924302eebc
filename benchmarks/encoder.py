"""A forward pass with its trace, compared with ONNX Runtime (fp32) and transformers' eager pass, with as many threads.

    python benchmarks/encoder.py [--rounds 9] [--threads 1] [--layers 4] [--json FILE]

The table has the median of the ratios within each round, with the lowest and the highest. The model has BERT-base's
widths, random weights and a few layers. The time is processor time; the three alternate. ONNX Runtime is a yardstick:
it gives the last hidden state, and no queries, keys, values or weights. It requires onnxruntime and onnx (pip install
onnxruntime onnx).
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

from measure import WARM, in_turn, limit_threads

os.environ["HF_HUB_OFFLINE"] = "1"

TOKENS = (12, 128, 512)

OURS, PEERS = "headscope", ("ONNX Runtime", "transformers eager")


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


def main() -> None:
    """Measure, and print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--json", type=Path, help="also write every round's seconds there")
    options = parser.parse_args()
    limit_threads(options.threads)
    import numpy as np
    import onnxruntime
    import torch
    from transformers import BertConfig, BertModel

    import headscope as hs

    torch.manual_seed(0)
    config = BertConfig(vocab_size=5000, num_hidden_layers=options.layers, attn_implementation="eager")
    theirs = BertModel(config).eval()
    figures: list[dict[str, Any]] = []
    head = ("tokens", "headscope, with its trace", *(f"× {peer}" for peer in PEERS), "largest difference")
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
                OURS: lambda row=row: ours.trace(ids=row),  # type: ignore[misc]
                PEERS[0]: lambda feed=feed: session.run(None, feed),  # type: ignore[misc]
                PEERS[1]: run_torch,
            }
            times = 8 if tokens < 100 else 1
            seconds = in_turn(calls, rounds=options.rounds, clock=time.process_time, times=times, warm_ups=WARM)
            figures += [{"tokens": tokens, "way": way, "raw": raw} for way, raw in seconds.items()]
            state = ours.trace(ids=row).outputs["last_hidden_state"].array
            difference = np.abs(state - session.run(None, feed)[0][0]).max()
            cells = []
            for peer in PEERS:
                ratios = [a / b for a, b in zip(seconds[OURS], seconds[peer], strict=True)]
                cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
            milliseconds = statistics.median(seconds[OURS]) * 1e3
            print(f"| {tokens} | {milliseconds:.1f} ms | {cells[0]} | {cells[1]} | {difference:.1e} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
