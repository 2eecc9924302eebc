"""Do independent computations of the same thing agree, and where is the worst cell?

The trace was made the fused way, in fp32: one product for all heads, then a split. Against it stand

- the paper's way, in fp64: X W_i^Q, X W_i^K, X W_i^V for each head, softmax over whole rows, Concat, W^O
  (Vaswani et al. 2017, 3.2.2), from each head's own slices of the file;
- the sum over heads of context_i W_i^O, plus b_O;
- transformers' own eager attentions and hidden states, where torch and transformers are installed.

A trace that was captured from a live model is held against what the model's modules gave at that moment, and against
its eager attention, run once more. What may differ by how much follows from the precisions at work: see
headscope.verify.rounding.

Or against anybody's weights, handed over as arrays: `trace.verify(against=attentions)`.

A query whose keys are all masked has weights 0 here; eager attention in transformers is uniform there. Such rows are
left out of that comparison.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headscope._trace import Trace
from headscope.model import Model
from headscope.verify.against import compare
from headscope.verify.captured import live
from headscope.verify.health import health
from headscope.verify.opened import input_states, paper, transformers_eager
from headscope.verify.report import Check, Limit, Report, Worst, row_blocks
from headscope.verify.rounding import limits_of

__all__ = ["Check", "Report", "Worst", "verify"]


def verify(trace: Trace, *, reference: bool = True, against: Any = None) -> Report:
    """Compute what a trace holds in independent ways, and compare.

    Args:
        trace: what a forward pass left behind. One that was read from a file needs its model
            (`hs.load(file, model=hs.open(…))`) for all but its own consistency.
        reference: whether to run transformers too, where it is installed; that takes seconds to import.
        against: weights to compare with, and nothing else then. See headscope.verify.against.

    Raises:
        InputError: `against` is no set of weights of this trace's size.
    """
    limits = limits_of(trace)
    if against is not None:
        return Report(trace.model, (compare(trace, against, (limits.weights, limits.reason)),))
    checks = [consistency(trace, (limits.sums, limits.reason))]
    notes: list[str] = []
    skipped: list[tuple[str, str]] = []
    model = trace.source
    if isinstance(model, Model):
        states = input_states(trace, model)
        checks += paper(trace, model, states, limits)
        if reference:
            found, reason = transformers_eager(trace, model, states, limits)
            checks += found
            skipped += [("transformers", reason)] if reason else []
        else:
            skipped.append(("transformers", "not asked for"))
        notes += health(trace, model)
    elif model is None:
        skipped.append(("the paper's way", "the trace has no model: hs.load(file, model=hs.open(…)) gives it one"))
    else:
        found, left = live(trace, limits, reference=reference)
        checks += found
        skipped += left
    notes += [f"unrecorded attention, in no trace and not verified: {one}" for one in trace.unrecorded]
    return Report(trace.model, tuple(checks), tuple(notes), tuple(skipped))


def consistency(trace: Trace, limit: Limit) -> Check:
    """Every row of weights sums to 1: exp(s - lse) with the lse that the trace kept."""
    worst = Worst("row sums", "each query's weights against 1", *limit)
    for layer in trace.numbers:
        for head in trace.head_numbers(layer):
            one = trace[layer, head]
            for rows in row_blocks(len(one.q)):
                seen = np.isfinite(one.lse[rows]) | np.isnan(one.lse[rows])
                sums = one.weights[rows].sum(axis=-1, dtype=np.float64)[seen]
                worst.see(sums, np.ones_like(sums), ("query",), layer=layer, head=head, query=rows.start)
    return worst.check()
