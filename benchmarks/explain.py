"""What measures beyond raw weights cost, each beside the paper's own way or beside the forward pass, within one run.

    python benchmarks/explain.py --json results.json --markdown results.md
    python benchmarks/explain.py --model FOLDER --tokens 128 512

    effects         all heads of a model, beside one forward pass; the naive way takes one pass for each head
    DecompX, ALTI   one output, beside one forward pass
    norm map        |F_ij| of all pairs of a layer, the Gram way, beside S x S x H x d products
    mixing ratio    all layers, beside the forward pass
    findings        beside trace.statistics()

Ratios are medians of rounds in turn, with the lowest and the highest. `--model -` (the default) is the bundled model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

import headscope as hs
from measure import Pair, pair_calls

WORDS = "the cat sat on the mat and she took off her old hat while it rained all day in town".split()  # noqa: SIM905


def text_of(model: hs.Model, tokens: int) -> tuple[str, int]:
    """A text of about so many tokens, as many as the model takes at most, and its true number of tokens."""
    most = min(tokens, model.anatomy.longest_text)
    text = " ".join(WORDS[at % len(WORDS)] for at in range(most - 2))
    return text, len(model.trace(text, max_length=most))


def naive_norms(trace: hs.Trace, layer: int) -> np.ndarray:
    """|sum_h p_ij v_j W_O| of all pairs, one query after the other: S x S x d numbers in all."""
    heads = list(trace[layer])
    assert trace.source is not None
    sent = [head.v @ np.asarray(trace.source.W_O(layer, head.head), dtype=np.float32) for head in heads]
    weights = [head.weights[:] for head in heads]
    rows = []
    for query in range(len(trace)):
        vectors = sum(p[query][:, None] * f for p, f in zip(weights, sent, strict=True))
        rows.append(np.linalg.norm(vectors, axis=-1))
    return np.stack(rows)


def tasks(model: hs.Model, text: str, length: int) -> dict[str, tuple[str, Callable[[], object], Callable[[], object]]]:
    """Name -> what it is measured beside, ours, the other."""
    trace = model.trace(text, max_length=length, hidden_states=True)
    last = len(trace.layers) - 1

    def forward() -> object:
        return model.trace(text, max_length=length)

    np.testing.assert_allclose(trace.norm_map(last)[:], naive_norms(trace, last), rtol=1e-3, atol=1e-5)
    target = ("embedding",)
    return {
        "effects of all heads": ("one forward pass", lambda: model.effects(text, target, max_length=length), forward),
        "DecompX": ("one forward pass", lambda: model.attribute(text, target, max_length=length), forward),
        "norm map of a layer": (
            "S x S x H x d products",
            lambda: trace.norm_map(last)[:],
            lambda: naive_norms(trace, last),
        ),
        "mixing ratio of all layers": ("one forward pass", lambda: trace.mixing_ratio("AttnResLn-N").mean, forward),
        "findings": ("trace.statistics()", lambda: trace.findings(), lambda: trace.statistics()),
    }


def line(task: str, beside: str, length: int, pair: Pair) -> str:
    """A row of the table: seconds, and how many times as long as the other."""
    times = [a / b for a, b in pair.rounds]
    ratio = f"{float(np.median(times)):.2f} ({min(times):.2f} to {max(times):.2f})"
    return f"| {task} | {length} | {pair.ours:.3f} | {ratio} | {beside} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="-")
    parser.add_argument("--tokens", type=int, nargs="*", default=[32, 128])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    model = hs.open(given.model)
    sizes = model.anatomy.known()
    lines = [
        f"{sizes.layers} layers of {sizes.heads} heads, d_model {sizes.d_model}",
        "",
        "| measure | tokens | seconds | times | beside |",
        "|---|---:|---:|---:|---|",
    ]
    results = []
    for tokens in given.tokens:
        text, length = text_of(model, tokens)
        for task, (beside, ours, theirs) in tasks(model, text, length).items():
            pair = pair_calls(ours, theirs, rounds=given.rounds)
            lines.append(line(task, beside, length, pair))
            results.append({"task": task, "tokens": length, "beside": beside, **asdict(pair)})
            print(lines[-1], flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1))
    if given.markdown is not None:
        given.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
