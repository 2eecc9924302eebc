"""Writes what the page's arithmetic is tested against: a trace file, and what headscope's own formulas make of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from headscope.attention.scores import Mask, log_sum_exps
from headscope.attention.terms import NO_TERMS, Terms
from headscope.heads.catalog import MASSES, ON_PAGE, ROLE_TOKENS
from headscope.page.trace import page_bytes
from headscope.results.tokens import TokenAxis
from headscope.traces import LayerRecord, Trace

SIZE, HEADS, D = 12, 4, 16
SHIFTED = np.linspace(-1, 1, SIZE * SIZE, dtype=np.float32).reshape(1, SIZE, SIZE)
SHIFTED[0, 2] -= 20_000
SHIFTED[0, 4] = np.finfo(np.float32).min
SHIFTED[0, 5] = -np.inf
SHIFTED[0, 7, 3:] = -np.inf
SHIFTED[0, 7, :3] += 1e6
MASKS = (
    Mask(),
    Mask(causal=True),
    Mask(keys=np.arange(SIZE) < 9),
    Mask(window=(2, 3)),
    Mask(bias=np.where(np.arange(SIZE)[:, None] == 3, np.float32(-np.inf), np.zeros((1, SIZE, SIZE), np.float32))),
    Mask(bias=SHIFTED),
    Mask(bias=np.linspace(-2, 2, SIZE * SIZE, dtype=np.float32).reshape(1, SIZE, SIZE)),
)


def more_terms() -> list[tuple[Mask, Terms]]:
    """Layers with score terms: DeBERTa's, T5's and ALiBi's with a cap and sinks."""
    generator = np.random.default_rng(11)
    buckets = np.clip(np.arange(2 * SIZE - 1) - SIZE + 1, -4, 4).astype(np.int32) + 4

    def table(*shape: int) -> np.ndarray:
        return generator.normal(size=shape).astype(np.float16).astype(np.float32)

    relative = Terms(buckets=buckets, relative_keys=table(HEADS, 9, D), relative_queries=table(HEADS, 9, D))
    by_distance = Terms(buckets=buckets, by_distance=table(HEADS, 9), cap=2.5)
    alibi = Terms(by_key=table(HEADS, SIZE), sinks=table(HEADS))
    beside_shifts = Terms(sinks=table(HEADS))
    shifted = SHIFTED.copy()
    shifted[0, [2, 4]], shifted[0, 7, :3] = [[150], [250]], 400
    return [
        (Mask(), relative),
        (Mask(keys=np.arange(SIZE) < 9), by_distance),
        (Mask(causal=True), alibi),
        (Mask(bias=shifted), beside_shifts),
    ]


def fixture() -> Trace:
    """One layer for each kind of mask, and for score terms; some have two key heads for four query heads."""
    generator = np.random.default_rng(7)
    records = []
    kinds = [(mask, NO_TERMS) for mask in MASKS] + more_terms()
    for at, (mask, terms) in enumerate(kinds):
        key_heads = 2 if at >= len(MASKS) - 1 else HEADS
        q = generator.normal(size=(HEADS, SIZE, D), scale=1.6).astype(np.float32)
        k, v = (generator.normal(size=(key_heads, SIZE, D)).astype(np.float32) for _ in range(2))
        q, k, v = (part.astype(np.float16).astype(np.float32) for part in (q, k, v))
        lse = log_sum_exps(q, k, scale=0.25, mask=mask, terms=terms)
        records.append(LayerRecord(q, k, v, lse=lse, scale=0.25, mask=mask, terms=terms))
    tokens = ("[CLS]", "a", "tir", "##ed", "cat", "[SEP]", "猫", "!", "</script>", "قط", "é", "[SEP]")
    axis = TokenAxis(
        tokens=tokens,
        ids=tuple(range(SIZE)),
        segments=(0,) * 6 + (1,) * 6,
        special=tuple(token in ("[CLS]", "[SEP]") for token in tokens),
        words=(None, 0, 1, 1, 2, None, 3, 4, 5, 6, 7, None),
        spans=(None,) * SIZE,
    )
    return Trace(model="fixture", queries=axis, layers=records, text="a tired cat", pair="!")


def expected(trace: Trace) -> dict[str, object]:
    """Weights, scores and statistics of every head, by headscope's own formulas."""
    table = trace.statistics(ON_PAGE)
    return {
        "masses": {name: sorted(ROLE_TOKENS[role]) for name, role in MASSES.items() if role in ROLE_TOKENS},
        "weights": [
            [np.asarray(trace[layer, head].weights).ravel().tolist() for head in range(HEADS)]
            for layer in range(len(trace.layers))
        ],
        "scores": [
            np.nan_to_num(np.asarray(trace[layer, 1].scores), neginf=-1e30).ravel().tolist()
            for layer in range(len(trace.layers))
        ],
        "statistics": [
            {name: table[name].array[layer].tolist() for name in ON_PAGE} for layer in range(len(trace.layers))
        ],
    }


def write(folder: Path) -> None:
    """Both files, the same bytes each time."""
    trace = fixture()
    (folder / "fixture.safetensors").write_bytes(page_bytes(trace, values=True))
    rounded = json.loads(json.dumps(expected(trace)), parse_float=lambda text: round(float(text), 7))
    (folder / "fixture.json").write_text(json.dumps(rounded, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
