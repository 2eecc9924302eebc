"""A trace of a live model: against what its modules gave while it was captured, and its eager weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.verify.report import Check, Worst, row_blocks
from headscope.verify.rounding import EPS, Limits, drifted, rerun, witnessed

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope._trace import Trace


def live(trace: Trace, limits: Limits, *, reference: bool) -> tuple[list[Check], list[tuple[str, str]]]:
    """A trace of a live model: against what its modules gave while it was captured, and its eager weights."""
    from headscope._capture.replay import eager_weights
    from headscope._capture.source import CapturedModel

    source = trace.source
    if not isinstance(source, CapturedModel):
        return [], [("the model", f"{type(source).__name__} says nothing to compare with")]
    checks: list[Check] = []
    skipped: list[tuple[str, str]] = []
    eps = max([EPS, *(one.eps for one in source.witnesses if one is not None)])
    reason = limits.reason if eps == EPS else f"the model computes in a precision with a spacing of {eps:.1e}"
    described = "the module's own output, recomputed from Q, K, V and the mask's rule in fp64, seen along one direction"
    outputs = Worst("module output", described, limits.contexts, reason)
    unseen = [number for number, one in zip(trace.numbers, source.witnesses, strict=True) if one is None]
    for number, record, witness in zip(trace.numbers, trace.layers, source.witnesses, strict=True):
        if witness is None or record.v is None:
            continue
        apart = witness.length is None
        ours, *moments = witness.expect(record)
        allowed = witnessed(record, witness, *moments)
        seen = np.isfinite(record.lse) if apart else np.isfinite(record.lse).all(0, keepdims=True)
        for at, row in enumerate(witness.values):
            place = {"head": trace.head_numbers(number)[at]} if apart else {}
            theirs = np.where(seen[at], row, ours[at])
            outputs.see(ours[at], theirs, ("query",), allowed=allowed[at], layer=number, **place)
    if trace.layers[0].v is None:
        skipped.append(("module output", "the values were not kept"))
    elif len(unseen) < len(trace.layers):
        checks.append(outputs.check())
    if unseen:
        skipped.append(
            ("module output", f"layers {unseen}: dropout, silenced or selected heads leave nothing to compare")
        )
    if not reference:
        return checks, [*skipped, ("eager weights", "not asked for")]
    cells = Worst("weights (eager)", "against the model's own eager attention, run once more", limits.weights, reason)

    def see(
        number: int,
        theirs: Float[np.ndarray, "heads queries keys"],
        q: Float[np.ndarray, "heads queries d_head"],
        k: Float[np.ndarray, "heads keys d_head"],
    ) -> None:
        record = trace.layers[trace.numbers.index(number)]
        # Whether q and k are the model's is seen in the module's output, where there is that check.
        drift = None if eps == EPS or number in unseen or record.v is None else drifted(record, q, k)
        allowed = rerun(record, number, eps / 2, drift)
        for at, head in enumerate(trace.head_numbers(number)):
            one = trace[number, head]
            seen = np.isfinite(one.lse)
            for rows in row_blocks(len(one.q)):
                ours, kept = one.weights[rows], seen[rows]
                cells.see(
                    ours[kept],
                    theirs[at][rows][kept],
                    ("query", "key"),
                    allowed=allowed[at, rows][kept, None],
                    layer=number,
                    head=head,
                    query=rows.start,
                )

    why_not = eager_weights(trace, source, see)
    if why_not:
        return checks, [*skipped, ("eager weights", why_not)]
    return [*checks, cells.check()], skipped
