"""Cost of matches in processor time: many short pairs against encoding them, and one pair with a long document.

    OPENBLAS_NUM_THREADS=1 python benchmarks/match_speed.py --model FOLDER --corpus FOLDER --pairs 1000

Pairs are sentences of about 20 tokens from a folder of texts. `encode` is the pass of both texts alone, in batches, as
`headscope` runs it. Ratios are within one run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headscope as hs
from headscope.runs.texts import encoded_text, last_states
from match_faithfulness import SENTENCE


def cost(do: Callable[[], Any]) -> float:
    """Seconds of processor time."""
    before = time.process_time()
    do()
    return time.process_time() - before


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="a bi-encoder's folder")
    parser.add_argument("--corpus", type=Path, required=True, help="a folder of .txt")
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=400, help="of the long document")
    given = parser.parse_args()
    model = hs.open(given.model)
    whole = " ".join(path.read_text(encoding="utf-8", errors="replace") for path in sorted(given.corpus.glob("*.txt")))
    whole = " ".join(whole[:4_000_000].split())
    encoded = ((text, encoded_text(model, text, max_length=None)) for text in SENTENCE.findall(whole))
    sentences = []
    for text, ids in encoded:
        sentences += [text] if 18 <= len(ids) <= 22 else []
        if len(sentences) == 2 * given.pairs:
            break
    pairs = list(zip(sentences[::2], sentences[1::2], strict=True))
    hs.match(model, *pairs[0], check=False)
    encoding = cost(lambda: last_states(model, (encoded_text(model, text, max_length=None) for text in sentences)))
    print(f"encode {len(pairs)} pairs: {encoding:.2f} s")
    for name, form in (("match", {"check": False}), ("match and check", {"check": True})):
        seconds = cost(lambda form=form: [hs.match(model, *pair, **form) for pair in pairs])
        print(f"{name}: {seconds:.2f} s, {seconds / encoding:.2f} times encoding")
    start, document = whole.index(sentences[-1]), ""
    while len(encoded_text(model, document or "a", max_length=None)) < given.tokens:
        document = whole[start : start + len(document) + 50]
    for name, form in (("match", {"check": False}), ("match and check", {"check": True})):
        seconds = cost(lambda form=form: hs.match(model, pairs[0][0], document, **form))
        print(f"one pair with {given.tokens} tokens, {name}: {seconds:.2f} s")
    print(f"links of it: {cost(lambda: hs.match(model, pairs[0][0], document, check=False)[0].links()):.2f} s")


if __name__ == "__main__":
    main()
