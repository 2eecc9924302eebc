"""Do independent computations of the same thing agree, and where is the worst cell?

The trace was made the fused way, in fp32: one product for all heads, then a split. Against it stand

- the paper's way, in fp64: X W_i^Q, X W_i^K, X W_i^V for each head, softmax over whole rows, Concat, W^O
  (Vaswani et al. 2017, 3.2.2), from each head's own slices of the file;
- the sum over heads of context_i W_i^O, plus b_O;
- transformers' own eager attentions and hidden states, where torch and transformers are installed.

A trace that was captured from a live model is held against what the model's modules gave at that moment, and against
its eager attention, run once more.

A query whose keys are all masked has weights 0 here; eager attention in transformers is uniform there. Such rows are
left out of that comparison.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.attention import entropy
from headscope.errors import HeadscopeError
from headscope.model import Model
from headscope.reference import run_eager
from headscope.trace import Trace

if TYPE_CHECKING:
    from jaxtyping import Float

ROW_BLOCK = 64
"""Queries whose rows are held at a time."""

UNIFORM = 0.98
"""A head whose mean entropy is above this share of log S is called near-uniform."""

FP32_REASON = "fp32 rounds each product of a few hundred terms to about 1e-6 of its size"
FP16_REASON = "the trace was stored in half precision, which keeps 11 bits"


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        name: what was compared: queries, weights, context, ….
        compared: with what, in words.
        worst: the largest absolute difference.
        tolerance: what it may be, and reason why.
        layer, head, query, key: where the worst is, counted from 0; None where the axis doesn't apply.
    """

    name: str
    compared: str
    worst: float
    tolerance: float
    reason: str
    layer: int | None = None
    head: int | None = None
    query: int | None = None
    key: int | None = None

    @property
    def agrees(self) -> bool:
        """Whether the worst difference is within the tolerance; NaN is not."""
        return self.worst <= self.tolerance

    @property
    def place(self) -> str:
        """Where the worst is, in words."""
        axes = ("layer", "head", "query", "key")
        return ", ".join(f"{axis} {getattr(self, axis)}" for axis in axes if getattr(self, axis) is not None)


@dataclass(frozen=True)
class Report:
    """What `verify` found.

    Attributes:
        model: the model's name.
        checks: the comparisons.
        notes: what looks wrong with the checkpoint: tensors missing or unexpected, NaN, heads that look untrained.
        skipped: comparisons that could not be made, each with the reason.
    """

    model: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether there were comparisons and all of them agree."""
        return bool(self.checks) and all(check.agrees for check in self.checks)

    @property
    def worst(self) -> Check:
        """The check that is closest to its tolerance, or furthest beyond it."""
        return max(self.checks, key=lambda check: (np.isnan(check.worst), check.worst / check.tolerance))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: numbers that are no JSON numbers become null."""

        def row(check: Check) -> dict[str, Any]:
            kept = {name: getattr(check, name) for name in check.__dataclass_fields__}
            return {**kept, "worst": check.worst if np.isfinite(check.worst) else None, "agrees": check.agrees}

        return {
            "model": self.model,
            "agrees": self.agrees,
            "checks": [row(check) for check in self.checks],
            "notes": list(self.notes),
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped],
        }

    def __repr__(self) -> str:
        lines = [
            f"{'agrees' if check.agrees else 'DIFFERS':<8}{check.name:<16}{check.worst:.1e} of {check.tolerance:.1e}  "
            f"{check.place}  ({check.compared})"
            for check in self.checks
        ]
        lines += [f"skipped {name}: {reason}" for name, reason in self.skipped]
        return "\n".join([*lines, *self.notes])


class Worst:
    """Keeps the largest difference of one comparison over all layers and heads, and where it was."""

    def __init__(self, name: str, compared: str, tolerance: float, reason: str) -> None:
        self._fixed = {"name": name, "compared": compared, "reason": reason}
        self._tolerance = tolerance
        self._size = 0.0
        self._worst = -1.0
        self._place: dict[str, int] = {}

    def see(
        self, ours: Float[np.ndarray, "..."], theirs: Float[np.ndarray, "..."], axes: tuple[str, ...], **place: int
    ) -> None:
        """Compare two arrays.

        Args:
            axes: what the first axes of the arrays are; later axes are not named.
            place: where the arrays stand; an axis that is named in both is an offset.
        """
        difference = np.abs(np.asarray(ours, dtype=np.float64) - theirs)
        if not difference.size:
            return
        self._size = max(self._size, float(np.max(np.abs(theirs))))
        at = int(np.argmax(np.where(np.isnan(difference), np.inf, difference)))
        worst = float(difference.reshape(-1)[at])
        if np.isnan(self._worst) or not (np.isnan(worst) or worst > self._worst):
            return
        index = np.unravel_index(at, difference.shape)
        self._worst = worst
        self._place = {
            **place,
            **{axis: int(i) + place.get(axis, 0) for axis, i in zip(axes, index, strict=False)},
        }

    def check(self) -> Check:
        """The comparison's result; the tolerance grows with the numbers compared, where they are beyond 1."""
        tolerance = self._tolerance * max(1.0, self._size if np.isfinite(self._size) else 1.0)
        return Check(**self._fixed, worst=self._worst, tolerance=tolerance, **self._place)  # type: ignore[arg-type]


def verify(trace: Trace, *, reference: bool = True) -> Report:
    """Compute what a trace holds in independent ways, and compare.

    Args:
        trace: what a forward pass left behind. One that was read from a file needs its model
            (`hs.load(file, model=hs.open(…))`) for all but its own consistency.
        reference: whether to run transformers too, where it is installed; that takes seconds to import.
    """
    checks = [consistency(trace)]
    notes: list[str] = []
    skipped: list[tuple[str, str]] = []
    model = trace.source
    if isinstance(model, Model):
        states = input_states(trace, model)
        checks += paper(trace, model, states)
        if reference:
            found, reason = transformers_eager(trace, model, states)
            checks += found
            skipped += [("transformers", reason)] if reason else []
        else:
            skipped.append(("transformers", "not asked for"))
        notes += health(trace, model)
    elif model is None:
        skipped.append(("the paper's way", "the trace has no model: hs.load(file, model=hs.open(…)) gives it one"))
    else:
        found, left = live(trace, reference=reference)
        checks += found
        skipped += left
    return Report(trace.model, tuple(checks), tuple(notes), tuple(skipped))


def tolerance_of(trace: Trace) -> tuple[float, str]:
    """What two right computations may differ by, for numbers around 1, and why."""
    return (2e-5, FP32_REASON) if trace.precision == "fp32" else (1e-2, FP16_REASON)


def row_blocks(count: int) -> Iterator[slice]:
    """A few queries at a time."""
    for start in range(0, count, ROW_BLOCK):
        yield slice(start, min(start + ROW_BLOCK, count))


def consistency(trace: Trace) -> Check:
    """Every row of weights sums to 1: exp(s - lse) with the lse that the trace kept."""
    worst = Worst("row sums", "each query's weights against 1", *tolerance_of(trace))
    for layer in trace.numbers:
        for head in trace.head_numbers(layer):
            one = trace[layer, head]
            for rows in row_blocks(len(one.q)):
                seen = np.isfinite(one.lse[rows]) | np.isnan(one.lse[rows])
                sums = one.weights[rows].sum(axis=-1, dtype=np.float64)[seen]
                worst.see(sums, np.ones_like(sums), ("query",), layer=layer, head=head, query=rows.start)
    return worst.check()


def input_states(trace: Trace, model: Model) -> list[Float[np.ndarray, "tokens d_model"]]:
    """(S, d_model) for each layer: what went into it, and what came out of the last."""
    kept = trace.hidden_states
    if len(kept) != len(trace.layers) + 1:
        again = model.trace(ids=trace.ids, segments=trace.segments, ablate=trace.ablated, hidden_states=True)
        kept = again.hidden_states
    return [state.array for state in kept]


def paper(trace: Trace, model: Model, states: list[Float[np.ndarray, "tokens d_model"]]) -> list[Check]:
    """The paper's way, head by head in fp64, and the sum over heads."""
    limit = tolerance_of(trace)
    parts = {
        name: Worst(name, f"the fused product's split against X W_i + b_i of each head, {symbol}, in fp64", *limit)
        for name, symbol in (("queries", "W_Q"), ("keys", "W_K"), ("values", "W_V"))
    }
    cells = Worst("weights", "exp(s - lse) against softmax(Q K^T / sqrt(d_head)) of whole rows in fp64", *limit)
    contexts = Worst("context", "weights @ V in fp32 against fp64", *limit)
    summed = Worst("sum over heads", "sum of context_i W_i^O + b_O against Concat(context) W^O + b_O in fp64", *limit)
    for layer, x in enumerate(states[:-1]):
        x = x.astype(np.float64)
        concat, adds_up = [], np.zeros_like(x)
        for head, slices in enumerate(model.layers[layer].heads):
            one = trace[layer, head]
            q = x @ slices.W_Q.astype(np.float64) + slices.b_Q
            k = x @ slices.W_K.astype(np.float64) + slices.b_K
            v = x @ slices.W_V.astype(np.float64) + slices.b_V
            place = {"layer": layer, "head": head}
            for worst, ours, theirs in zip(parts.values(), (one.q, one.k, one.v), (q, k, v), strict=True):
                worst.see(ours, theirs, ("query" if worst is parts["queries"] else "key",), **place)
            context = np.empty_like(v)
            for rows in row_blocks(len(q)):
                s = q[rows] @ k.T / np.sqrt(q.shape[1])
                p = np.exp(s - s.max(axis=-1, keepdims=True))
                p /= p.sum(axis=-1, keepdims=True)
                cells.see(one.weights[rows], p, ("query", "key"), **place, query=rows.start)
                context[rows] = p @ v
            contexts.see(one.context, context, ("query",), **place)
            concat.append(np.zeros_like(context) if one.silenced else context)
            adds_up += one.output
        stored = model.anatomy.parameter("layer.attention_output.weight", layer).stored
        b_O = model.layers[layer].b_O
        together = np.concatenate(concat, axis=1) @ model.checkpoint.read(stored).T.astype(np.float64) + b_O
        summed.see(adds_up + b_O, together, ("query",), layer=layer)
    return [worst.check() for worst in (*parts.values(), cells, contexts, summed)]


def transformers_eager(
    trace: Trace, model: Model, states: list[Float[np.ndarray, "tokens d_model"]]
) -> tuple[list[Check], str]:
    """transformers' own eager attentions and hidden states, or the reason why not."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        return [], "torch and transformers are not installed: pip install 'headscope[torch]'"
    try:
        eager = run_eager(model, trace)
    except HeadscopeError as error:
        return [], error.found
    limit = tolerance_of(trace)
    cells = Worst("weights (eager)", "against transformers' eager attentions", *limit)
    hidden = Worst("hidden states", "of the embeddings and every layer, against transformers'", *limit)
    for layer, attention in enumerate(eager.attentions):
        for head in range(trace.heads):
            for rows in row_blocks(len(trace)):
                ours = trace[layer, head].weights[rows]
                cells.see(ours, attention[head, rows], ("query", "key"), layer=layer, head=head, query=rows.start)
    ours = [*states[:-1], trace.outputs["last_hidden_state"].array]
    for layer, (state, theirs) in enumerate(zip(ours, eager.hidden_states, strict=True)):
        hidden.see(state, theirs, ("query",), layer=layer)
    return [cells.check(), hidden.check()], ""


def live(trace: Trace, *, reference: bool) -> tuple[list[Check], list[tuple[str, str]]]:
    """A trace of a live model: against what its modules gave while it was captured, and its eager weights."""
    from headscope.capture.replay import eager_weights
    from headscope.capture.source import CapturedModel

    source = trace.source
    if not isinstance(source, CapturedModel):
        return [], [("the model", f"{type(source).__name__} says nothing to compare with")]
    checks: list[Check] = []
    skipped: list[tuple[str, str]] = []
    eps = max([1e-7, *(one.eps for one in source.witnesses if one is not None)])
    tolerance, reason = tolerance_of(trace)
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
        for at, row in enumerate(witness.values):
            place = {"head": trace.head_numbers(number)[at]} if axes[0] else {}
            outputs.see(ours[at], row, ("query",), layer=number, **place)
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


def health(trace: Trace, model: Model) -> list[str]:
    """Whether the model looks properly loaded: what is missing, unexpected, not a number, or looks untrained."""
    anatomy = model.anatomy
    notes = [f"contradiction: {problem}" for problem in anatomy.problems]
    if anatomy.missing:
        notes.append(f"missing tensors: {_few(anatomy.missing)}")
    unexpected = [row.stored for row in anatomy.extra if row.role is None]
    if unexpected:
        notes.append(f"unexpected tensors: {_few(unexpected)}")
    broken = []
    for name in model.checkpoint.tensors:
        values = model.checkpoint.read(name)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            broken.append(name)
    if broken:
        notes.append(f"NaN or infinity in: {_few(broken)}")
    shares = entropy_shares(trace)
    if len(shares) and bool((shares > UNIFORM).all()):
        notes.append(
            f"every head of every layer is near-uniform (entropy above {UNIFORM:.0%} of log S): "
            "the weights look newly initialised, not trained"
        )
    elif len(shares):
        uniform = np.argwhere(shares > UNIFORM)
        if len(uniform):
            named = _few([f"{layer}.{head}" for layer, head in uniform])
            notes.append(f"near-uniform heads (layer.head): {named}")
    return notes


def entropy_shares(trace: Trace) -> Float[np.ndarray, "layers heads"]:
    """(layers, heads): mean entropy over log S; empty for texts under 3 tokens, where it means nothing."""
    if len(trace.keys) < 3:
        return np.zeros((0, trace.heads))
    return np.stack(
        [
            entropy(record.q, record.k, record.lse, scale=record.scale, mask=record.mask).mean(axis=-1)
            for record in trace.layers
        ]
    ) / np.log(len(trace.keys))


def _few(names: list[str] | tuple[str, ...], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
