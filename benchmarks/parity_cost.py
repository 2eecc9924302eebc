"""Cost of parity and doctor in processor time, beside one forward pass of each side over the same texts.

    OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 python benchmarks/parity_cost.py --model FOLDER --onnx FILE

`forward` is a side's pass over the twenty texts that parity reads by default, one by one: by headscope's encoder,
transformers, or onnxruntime. Everything is opened before; ratios are within one run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headscope as hs
from headscope.runs.texts import as_input
from headscope.verify.parity import PROBES


def cost(do: Callable[[], Any]) -> float:
    """Seconds of processor time, the least of three."""
    seconds = []
    for _ in range(3):
        before = time.process_time()
        do()
        seconds.append(time.process_time() - before)
    return min(seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="a bi-encoder's folder")
    parser.add_argument("--onnx", type=Path, required=True, help="its export in fp32")
    given = parser.parse_args()
    import onnxruntime
    import torch
    from transformers import AutoModel, AutoTokenizer

    model, live = hs.open(given.model), AutoModel.from_pretrained(given.model, trust_remote_code=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(given.model, trust_remote_code=False)
    batches = [tokenizer(text, return_tensors="pt", truncation=True, max_length=256) for text in PROBES]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(given.onnx, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    texts = [model.tokenizer.encode(text, max_length=256) for text in PROBES]

    def transformers() -> None:
        with torch.inference_mode():
            for batch in batches:
                live(**batch)

    def file() -> None:
        for batch in batches:
            session.run(None, {name: batch[name].numpy() for name in names})

    ours = cost(lambda: [model.encoder.forward([as_input(text)]) for text in texts])
    sides = {"a live model": (cost(transformers), live), "an ONNX file": (cost(file), given.onnx)}
    print(f"{model.name}: {len(PROBES)} texts, {sum(map(len, texts))} tokens; headscope's forward {ours:.2f} s")
    for name, (theirs, side) in sides.items():
        seconds = cost(lambda side=side: hs.parity(model, side))
        times = seconds / (ours + theirs)
        print(f"parity with {name}: {seconds:.2f} s; its forward {theirs:.2f} s; {times:.1f} times both passes")
    seconds = cost(lambda: hs.doctor(model))
    print(f"doctor: {seconds:.2f} s, {seconds / ours:.1f} times headscope's forward")


if __name__ == "__main__":
    main()
