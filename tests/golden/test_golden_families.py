"""Captures of every family x implementation x padding: tokens, positions, masks, terms, and the sizes of Q, K and V."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headscope as hs
from golden.keeping import differing, keep

sys.path.insert(0, str(Path(__file__).parents[1] / "capture"))
from families import FAMILIES, Family

CLOSE = 1e-3
"""Of sums of absolute values: weights are six times their usual size here, and so are roundings."""
PADDINGS: dict[str, dict[str, bool]] = {
    "whole": {"padded": False},
    "right": {"padded": True},
    "left": {"padded": True, "left": True},
}


def layer_line(record: Any) -> str:
    """A layer: its module, stage, scale, mask and terms, and the sums of |Q|, |K|, |V| and of what the mask adds."""
    mask = record.mask
    keys = "" if mask.keys is None else f", keys {np.flatnonzero(mask.keys).tolist()}"
    window = f"{', causal' * mask.causal}{'' if mask.window is None else f', window {mask.window}'}{keys}"
    terms = [name for name, term in vars(record.terms).items() if term is not None]
    parts = [record.q, record.k, record.v]
    if mask.bias is not None:
        parts.append(mask.bias[np.isfinite(mask.bias)])
    sizes = " ".join(f"{np.abs(np.float64(part)).sum():.6e}" for part in parts)
    return f"{record.name} {record.stage} x {record.scale:.6e}{window}, terms {terms}: {sizes}"


def facts(trace: hs.Trace) -> dict[str, Any]:
    """A trace, in what a change of capture could change of it."""
    return {
        "stack": f"{trace.stack}, row {trace.row}",
        "queries": f"{list(trace.queries.ids)} at {np.asarray(trace.positions).tolist()}",
        "keys": "the same" if trace.keys is trace.queries else str(list(trace.keys.ids)),
        "left out": np.asarray(trace.left_out).tolist(),
        "layers": [layer_line(record) for record in trace.layers],
    }


def captured(family: Family, implementation: str, padding: str) -> list[dict[str, Any]] | str:
    """The facts of all traces, or the sentence with which a model is refused."""
    model = family.build()
    if implementation != "default":
        model.set_attn_implementation(implementation)
    try:
        with torch.no_grad(), hs.capture(model) as found:
            model(**family.inputs(**PADDINGS[padding]))
    except hs.HeadscopeError as error:
        return type(error).__name__
    return [facts(trace) for trace in found.traces]


@pytest.mark.parametrize("part", range(4))
def test_what_is_captured_of_every_family(part: int, request: pytest.FixtureRequest) -> None:
    """In four files, for four workers. A family without text has no padding."""
    kept = {}
    for family in FAMILIES[part::4]:
        paddings = PADDINGS if family.takes in ("text", "both") else ("whole",)
        for padding in paddings:
            kept[f"{family}, {padding}"] = captured(family, "default", padding)
        padding = "right" if "right" in paddings else "whole"
        eager = captured(family, "eager", padding)
        same = not [*differing(eager, kept[f"{family}, {padding}"], CLOSE)]
        kept[f"{family}, eager"] = "the same" if same else eager
    keep(request, f"families-{part}", kept, close=CLOSE)
