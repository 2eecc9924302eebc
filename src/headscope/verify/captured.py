"""A trace of a live model: against what its modules gave while it was captured, and its eager weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.verify.report import Check, Limit, Worst, row_blocks

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.trace import Trace


def live(trace: Trace, limit: Limit, *, reference: bool) -> tuple[list[Check], list[tuple[str, str]]]:
    """A trace of a live model: against what its modules gave while it was captured, and its eager weights."""
    from headscope.capture.replay import eager_weights
    from headscope.capture.source import CapturedModel

    source = trace.source
    if not isinstance(source, CapturedModel):
        return [], [("the model", f"{type(source).__name__} says nothing to compare with")]
    checks: list[Check] = []
    skipped: list[tuple[str, str]] = []
    eps = max([1e-7, *(one.eps for one in source.witnesses if one is not None)])
    tolerance, reason = limit
    tolerance *= 5
    if eps > 1e-5:
        tolerance, reason = max(tolerance, 8 * eps), f"the model computes in a precision with a spacing of {eps:.1e}"
    said = "the module's own output, recomputed from Q, K, V and the mask's rule in fp64, seen along one direction"
    outputs = Worst("module output", said, tolerance, reason)
    unseen = [number for number, one in zip(trace.numbers, source.witnesses, strict=True) if one is None]
    for number, record, witness in zip(trace.numbers, trace.layers, source.witnesses, strict=True):
        if witness is None or record.v is None:
            continue
        axes = ("head", "query") if len(witness.values) == len(record.q) else ("", "query")
        ours = witness.expect(record)
        seen = np.isfinite(record.lse) if axes[0] else np.isfinite(record.lse).all(0, keepdims=True)
        for at, row in enumerate(witness.values):
            place = {"head": trace.head_numbers(number)[at]} if axes[0] else {}
            outputs.see(ours[at], np.where(seen[at], row, ours[at]), ("query",), layer=number, **place)
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
    cells = Worst("weights (eager)", "against the model's own eager attention, run once more", tolerance, reason)

    def see(number: int, theirs: Float[np.ndarray, "heads queries keys"]) -> None:
        for at, head in enumerate(trace.head_numbers(number)):
            one = trace[number, head]
            seen = np.isfinite(one.lse)
            for rows in row_blocks(len(one.q)):
                ours, kept = one.weights[rows], seen[rows]
                cells.see(
                    ours[kept], theirs[at][rows][kept], ("query", "key"), layer=number, head=head, query=rows.start
                )

    why_not = eager_weights(trace, source, see)
    if why_not:
        return checks, [*skipped, ("eager weights", why_not)]
    return [*checks, cells.check()], skipped
