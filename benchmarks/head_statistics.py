"""Cost of all fast statistics of a layer, compared with one SDPA call on the same tensors and with row blocks.

    python benchmarks/head_statistics.py --threads 2 --json results.json

12 heads of 64, fp32, random. Ours and SDPA run in turn within one process; the ratio is the median over rounds. Memory
is the growth of this process's peak over what it held before, in bytes per token and head: flat where memory is O(S).
Lengths are measured from the shortest on, so that each peak is its own.
(This file has another name than the part it measures: `statistics.py` here would hide Python's own.)
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headscope.heads import Roles
from headscope.heads.fast import fast_statistics
from headscope.heads.measure import measure as measure_plainly
from headscope.heads.reference import LayerArrays
from measure import now, pair_calls

HEADS, D_HEAD = 12, 64


def roles_for(tokens: int) -> Roles:
    """A pair of texts with some punctuation, so that every statistic has something to measure."""
    special = np.isin(np.arange(tokens), [0, tokens // 2, tokens - 1])
    sentences = np.where(special, -1, (np.arange(tokens) > tokens // 2).astype(np.int64))
    punctuation = ~special & (np.arange(tokens) % 9 == 4)
    cls = np.arange(tokens) == 0
    return Roles(cls, special & ~cls, punctuation, punctuation, special, sentences, sentences, special)


def peak() -> int:
    """Bytes: the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(tokens: int, rounds: int, plain: bool) -> dict[str, Any]:
    """Seconds, ratio and memory at one length."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(HEADS, tokens, D_HEAD, generator=generator) for _ in range(3))
    W_O = torch.randn(HEADS, D_HEAD, HEADS * D_HEAD, generator=generator) / 28
    scale, roles = D_HEAD**-0.5, roles_for(tokens)

    def sdpa() -> object:
        return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], scale=scale)

    def ours() -> object:
        return fast_statistics(LayerArrays(q, k, v, scale, W_O=W_O), roles)

    with torch.no_grad():
        sdpa()
        before = peak()
        ours()
        grown = peak() - before
        pair = pair_calls(ours, sdpa, rounds=rounds)
    result: dict[str, Any] = {
        "tokens": tokens,
        "threads": torch.get_num_threads(),
        "statistics_s": pair.ours,
        "sdpa_s": pair.theirs,
        "calls": 1 / pair.ratio,
        "calls_low": 1 / pair.high,
        "calls_high": 1 / pair.low,
        "seconds": {"statistics": [ours for ours, _ in pair.rounds], "sdpa": [theirs for _, theirs in pair.rounds]},
        "peak_growth_bytes_per_token_and_head": grown / tokens / HEADS,
        "one_map_bytes_per_token_and_head": 4 * tokens,
    }
    if plain:
        started = now()
        measure_plainly(LayerArrays(q.numpy(), k.numpy(), v.numpy(), scale, W_O=W_O.numpy()), roles)
        result["plain_s"] = now() - started
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--threads", type=int, help="torch's threads; as many as it takes by itself if left out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plain", action="store_true", help="time the row blocks too, once")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    results = []
    for tokens in sorted(arguments.tokens):
        result = measure(tokens, arguments.rounds, arguments.plain)
        results.append(result)
        print(
            f"{tokens} tokens: statistics {result['statistics_s']:.3f} s, SDPA {result['sdpa_s']:.3f} s: "
            f"{result['calls']:.2f} calls ({result['calls_low']:.2f} to {result['calls_high']:.2f}), peak grew by "
            f"{result['peak_growth_bytes_per_token_and_head']:.0f} bytes per token and head "
            f"(a map: {result['one_map_bytes_per_token_and_head']})"
            + (f", row blocks {result['plain_s']:.2f} s" if "plain_s" in result else ""),
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
