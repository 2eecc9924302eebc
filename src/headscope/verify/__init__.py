"""Compare independent computations of a trace, and report the worst cell of each comparison.

A trace is computed the fused way, in fp32: one product for all heads, then a split. It is compared with

- the paper's formulas in fp64: X W_i^Q, X W_i^K, X W_i^V for each head, softmax over whole rows, Concat, W^O
  (Vaswani et al. 2017, 3.2.2), from each head's slices of the checkpoint;
- the sum over heads of context_i W_i^O, plus b_O;
- transformers' own eager attentions and hidden states, if torch and transformers are installed.

A trace that was captured from a live model is compared with the outputs of the model's modules during the capture, and
with a second run in eager attention. Tolerances follow from the precisions involved: see headscope.verify.rounding.

`trace.verify(against=attentions)` compares the trace with any other weights instead.

A query whose keys are all masked has weights 0 here, while transformers' eager attention gives it uniform weights. Such
rows are left out of that comparison.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope.explain.residual import what_it_lacks
from headscope.model import Model
from headscope.results.verify_report import Check, Report
from headscope.traces import Trace
from headscope.verify.against import causes, compare
from headscope.verify.captured_traces import live
from headscope.verify.health import health
from headscope.verify.opened import UNKEPT, input_states, paper, transformers_eager
from headscope.verify.rounding import Limit, Worst, limits_of, row_blocks

__all__ = ["Check", "Report", "Worst", "verify"]


def verify(trace: Trace, *, reference: bool = True, against: Any = ...) -> Report:
    """Recompute a trace in independent ways and compare. Options, result and errors are those of `Trace.verify`.

    Of a trace that was read from a file without its model, only the consistency is checked.
    """
    limits = limits_of(trace)
    if against is not ...:
        check = compare(trace, against, (limits.weights, limits.reason))
        return Report(trace.model, (check,), causes(trace, against, check))
    checks = [consistency(trace, (limits.sums, limits.reason))]
    notes: list[str] = []
    skipped: list[tuple[str, str]] = []
    model = trace.source
    if isinstance(model, Model):
        model.anatomy.computable()
        lacks = what_it_lacks(trace)
        states = None if lacks else input_states(trace, model)
        if lacks:
            skipped.append(("the paper's way", lacks))
        elif states is None:
            skipped.append(("the paper's way", f"{UNKEPT}: trace the text again with hidden_states=True"))
        else:
            checks += paper(trace, model, states, limits)
        if states is not None and reference:
            eager, reason = transformers_eager(trace, model, states, limits)
            checks += eager
            skipped += [("transformers", reason)] if reason else []
        else:
            skipped.append(("transformers", (lacks or UNKEPT) if reference else "not requested"))
        notes += health(trace, model)
    elif model is None:
        skipped.append(("the paper's way", "the trace has no model: pass it with hs.load(file, model=hs.open(…))"))
    else:
        live_checks, live_skipped = live(trace, limits, reference=reference)
        checks += live_checks
        skipped += live_skipped
        notes += trace.notes
    notes += [f"unrecorded attention, in no trace and not verified: {name}" for name in trace.unrecorded]
    return Report(trace.model, tuple(checks), tuple(notes), tuple(skipped))


def consistency(trace: Trace, limit: Limit) -> Check:
    """Check that each row of weights, exp(s - lse) with the trace's own lse, sums to 1, together with its sink's."""
    worst = Worst("row sums", "each query's weights against 1", *limit)
    for layer in trace.numbers:
        sinks = trace[layer].terms.sinks
        for at, head in enumerate(trace.head_numbers(layer)):
            head_trace = trace[layer, head]
            for rows in row_blocks(len(head_trace.q)):
                sees_keys = np.isfinite(head_trace.lse[rows]) | np.isnan(head_trace.lse[rows])
                sums = head_trace.weights[rows].sum(axis=-1, dtype=np.float64)[sees_keys]
                if sinks is not None:
                    sums += np.exp(float(sinks[at]) - head_trace.lse[rows][sees_keys])
                worst.see(sums, np.ones_like(sums), ("query",), layer=layer, head=head, query=rows.start)
    return worst.check()
