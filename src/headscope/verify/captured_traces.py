"""Verify the trace of a live model against its modules' outputs during the capture, and against eager attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscope.results.verify_report import Check
from headscope.verify.rounding import EPS, Limits, Worst, drifted, products_tolerance, rerun, row_blocks

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.live.keeping.source import CapturedModel
    from headscope.traces import Trace


def live(trace: Trace, limits: Limits, *, reference: bool) -> tuple[list[Check], list[tuple[str, str]]]:
    """Compare a trace of a live model with its modules' outputs and with a second run in eager attention.

    Args:
        trace: the trace.
        limits: its tolerances.
        reference: True to run eager attention.

    Returns:
        The comparisons, and those that were not possible, each with the reason.
    """
    from headscope.live.keeping.source import CapturedModel
    from headscope.live.replay import eager_weights

    source = trace.source
    if not isinstance(source, CapturedModel):
        return [], [("the model", f"a source of class {type(source).__name__} keeps no outputs to compare with")]
    checks: list[Check] = []
    skipped: list[tuple[str, str]] = []
    eps = max([EPS, *(products.eps for products in source.products if products is not None)])
    reason = limits.reason if eps == EPS else f"the model computes in a precision with a spacing of {eps:.1e}"
    described = "the module's output, against Q, K, V and the mask's rule in fp64, projected onto one direction"
    outputs = Worst("module output", described, limits.contexts, reason)
    unseen = [number for number, found in zip(trace.numbers, source.products, strict=True) if found is None]
    for number, record, products in zip(trace.numbers, trace.layers, source.products, strict=True):
        if products is None or record.v is None:
            continue
        ours, *moments = products.expect(record)
        allowed = products_tolerance(record, products, *moments)
        sees_keys = np.isfinite(record.lse)
        for at, row in enumerate(products.values):
            head = trace.head_numbers(number)[at]
            expected = np.where(sees_keys[at] | ~np.isnan(row), row, ours[at])  # a softmax over no key may be NaN
            outputs.see(ours[at], expected, ("query",), allowed=allowed[at], layer=number, head=head)
    if trace.layers[0].v is None:
        skipped.append(("module output", "the values were not kept"))
    elif len(unseen) < len(trace.layers):
        checks.append(outputs.check())
    if unseen:
        skipped.append(
            ("module output", f"layers {unseen}: not comparable because of dropout, or of silenced or selected heads")
        )
    if not reference:
        return checks, [*skipped, ("tokens", "not requested"), ("eager weights", "not requested")]
    found = tokens(trace, source)
    if isinstance(found, Check) and not found.agrees:
        found = source.switched or found
    checks += [] if isinstance(found, str) else [found]
    skipped += [("tokens", found)] if isinstance(found, str) else []
    cells = Worst("weights (eager)", "against a second run in the model's eager attention", limits.weights, reason)

    def see(
        number: int,
        weights: Float[np.ndarray, "heads queries keys"],
        q: Float[np.ndarray, "heads queries d_head"],
        k: Float[np.ndarray, "heads keys d_head"],
    ) -> None:
        record = trace.layers[trace.numbers.index(number)]
        # The check of the module's output, if there is one, shows that q and k are the model's.
        drift = None if eps == EPS or number in unseen or record.v is None else drifted(record, q, k)
        allowed = rerun(record, number, eps / 2, drift)
        for at, head in enumerate(trace.head_numbers(number)):
            head_trace = trace[number, head]
            sees_keys = np.isfinite(head_trace.lse)  # fused kernels give 0 for no key, eager ones even weights
            for rows in row_blocks(len(head_trace.q)):
                ours, kept = head_trace.weights[rows], sees_keys[rows]
                cells.see(
                    ours[kept],
                    weights[at][rows][kept],
                    ("query", "key"),
                    allowed=allowed[at, rows][kept, None],
                    layer=number,
                    head=head,
                    query=rows.start,
                )

    why_not = eager_weights(trace, source, see)
    check = cells.check()
    if why_not := why_not or ("" if check.agrees else source.switched):
        return checks, [*skipped, ("eager weights", why_not)]
    return [*checks, check], skipped


def tokens(trace: Trace, source: CapturedModel) -> Check | str:
    """Compare the ids of a trace's tokens with those whose embeddings enter its stack; or say why it is impossible."""
    from headscope.live.entering import UNDECIDED, entering_ids

    named = {"query": np.array(trace.queries.ids), "key": np.array(trace.keys.ids)}
    if all((ids < 0).all() for ids in named.values()):
        return "none of them has an id"
    found = entering_ids(trace, source)
    if isinstance(found, str):
        return found
    pairs = [(axis, named[axis][: len(entered)], entered) for axis, entered in zip(named, found, strict=True)]
    decided = [(ids >= 0) & (entered != UNDECIDED) for _, ids, entered in pairs]
    count = sum(int(flags.sum()) for flags in decided)
    if not count:
        return "no single id changes what enters the first layer at their places"
    described = f"{count} ids, each against the one that changes what enters the first layer there"
    worst = Worst("tokens", described, 0.5, "ids are whole numbers")
    for (axis, ids, entered), flags in zip(pairs, decided, strict=True):
        worst.see(ids, np.where(flags, entered, ids), (axis,), allowed=np.full(len(ids), 0.5))
    return worst.check()
