"""What commands print, Python returns, and surveys and pages hold, kept as files that a rearrangement may not change.

`pytest tests/golden --refresh-screens` writes them anew; look at the diff. Text must be equal, numbers within rounding.
Processors add in different orders, so what only rounding decides is not kept: last digits, and the size and place of
the largest rounding error.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscope as hs
from commands import run
from golden.keeping import same
from headscope.traces import kept_outputs
from small_bert import small_bert

KEPT = Path(__file__).parent / "kept"
TEXT = "The cat sat on the mat because it was tired."
NUMBER = re.compile(r"(?<![\w.])-?(?:\d+(?:\.\d+)?e-?\d+|\d+\.\d+)(?![\w.]*\w)")
ROUNDING = {
    "verify.txt": r"(?m)(?<=  yes) .*|(?<=─  ──────) .*",
    "tour.txt": r"(?<=agree).*",
}
"""What rounding decides on a screen: the worst difference, its tolerance and place, the rules of their width."""
COMMANDS = {
    "tour": (),
    "shapes": ("shapes", "-"),
    "summary": ("summary", "-"),
    "config": ("config", "-"),
    "tree": ("shapes", "-", "--tree"),
    "fit": ("fit", "-", "BertForSequenceClassification"),
    "head": ("head", "-", "1.2"),
    "attend": ("attend", "-", TEXT),
    "attend-layer": ("attend", "-", TEXT, "--heads", "1"),
    "attend-head": ("attend", "-", TEXT, "--heads", "1.0"),
    "attend-query": ("attend", "-", TEXT, "--heads", "1.0", "--query", "cat", "--top", "3"),
    "attend-pair": ("attend", "-", TEXT, "--pair", "It was old.", "--ablate", "0.1"),
    "verify": ("verify", "-", TEXT),
    "fill": ("predict", "-", "The [MASK] sat on the mat."),
}
HELPED = "shapes summary config fit head attend verify predict view survey"
"""Commands whose help is kept, beside the program's own."""
MACHINE = {"shapes", "summary", "config", "tree", "fit", "head", "attend", "attend-head", "fill"}


def cases() -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, args in COMMANDS.items():
        yield f"{name}.txt", args
        if name in MACHINE:
            yield f"{name}.json", (*args, "--json")
    for command in ("", *HELPED.split()):
        yield f"help-{command or 'headscope'}.txt", (*((command,) if command else ()), "--help")


def settled(name: str, text: str) -> str:
    """A text without what differs from one processor to another; JSON has at most five digits of each number."""
    text = text.replace(str(Path(hs.__file__).parent), "HEADSCOPE")
    if name.endswith(".json"):
        return NUMBER.sub(lambda match: min(match[0], str(float(f"{float(match[0]):.5g}")), key=len), text)
    return re.sub(ROUNDING.get(name, "(?!)"), "", text)


def near(value: Any, kept: Any, scale: float = 0.0) -> bool:
    """Return True if JSON values agree: a number of a list to a ten-thousandth of the largest there."""
    if isinstance(kept, dict):
        return all(near(value[key], kept[key]) for key in kept)
    if isinstance(kept, list):
        scale = max((abs(one) for one in kept if isinstance(one, float) and not math.isnan(one)), default=0.0)
        return all(near(one, other, scale) for one, other in zip(value, kept, strict=True))
    if isinstance(kept, float):
        return str(value) == str(kept) or math.isclose(value, kept, rel_tol=1e-4, abs_tol=max(1e-4 * scale, 1e-6))
    return bool(value == kept)


def compare(name: str, text: str, request: pytest.FixtureRequest) -> None:
    """Hold a text against the one that is kept."""
    path = KEPT / name
    text = settled(name, text)
    if request.config.getoption("--refresh-screens"):
        path.write_text(text, encoding="utf-8")
        return
    kept = path.read_text(encoding="utf-8")
    if text == kept:
        return
    assert NUMBER.sub("#", text) == NUMBER.sub("#", kept)
    assert near(json.loads(text), json.loads(kept)) if name.endswith(".json") else same(text, kept, 1e-6), name


def brief(value: Any) -> Any:
    """A value as JSON keeps it: arrays as shape, mean size and a few cells, other objects as they print."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        there = np.isfinite(array)
        cells = array.reshape(-1)[:: max(1, array.size // 5)].tolist()
        return {
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "mean_size": float(np.abs(array[there]).mean()) if there.any() else None,
            "cells": cells,
        }
    if isinstance(value, dict):
        return {str(key): brief(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [brief(item) for item in value]
    return value if isinstance(value, str | int | float | bool | type(None)) else repr(value)


def face(trace: hs.Trace) -> dict[str, Any]:
    """What Python says of a trace."""
    last = trace.numbers[-1]
    head = trace[last, 0]
    table = trace.statistics()
    return {
        "repr": repr(trace),
        "tokens": trace.tokens,
        "numbers": trace.numbers,
        "nbytes": trace.nbytes,
        "stack": trace.stack,
        "positions": trace.positions.tolist(),
        "outputs": {name: brief(trace.outputs[name].array) for name in kept_outputs(trace.outputs)},
        "head": repr(head),
        "q": brief(head.q),
        "k": brief(head.k),
        "weights": brief(head.weights[:]),
        "scores": brief(np.where(np.isfinite(head.scores[:]), head.scores[:], 0)),
        "context": brief(head.context),
        "layer": brief(trace[last].weights[:]),
        "statistics": {name: brief(table[name].array) for name in table},
        "left_out": table.left_out,
        "per_query": brief(trace.statistics("entropy", per_query=True)["entropy"].array),
        "distances": brief(trace.head_distances().array),
        "agrees": trace.verify(reference=False).agrees,
    }


def random_bert(tmp_path: Path) -> hs.Trace:
    return hs.open(small_bert(tmp_path)).trace("the cat sat", "she took her hat", ablate={(0, 1)}, hidden_states=True)


def captured(tmp_path: Path) -> hs.Trace:
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    given = torch.randn(1, 7, 16)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(7)
    with hs.capture(attention) as found, torch.inference_mode():
        attention(given, given, given, attn_mask=mask, need_weights=False)
    return found.trace


MODELS = {"bundled": lambda _: hs.open().trace(TEXT), "random": random_bert, "captured": captured}


@pytest.mark.parametrize(("name", "args"), list(cases()))
def test_commands(name: str, args: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    compare(name, run(*args, env={"COLUMNS": "100"}).stdout, request)


@pytest.mark.parametrize("name", MODELS)
def test_python(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = json.dumps(brief(face(MODELS[name](tmp_path))), indent=1, ensure_ascii=False)
    compare(f"face-{name}.json", text.replace(str(tmp_path), "FOLDER"), request)
