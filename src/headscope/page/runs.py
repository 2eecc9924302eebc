"""Answers to the page's questions of cause and effect: JSON records of runs, each with the change that made it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.anatomy import check_index
from headscope.errors import InputError
from headscope.explain.attribution import attribution_of
from headscope.explain.residual import check_whole
from headscope.page.questions import Question
from headscope.results.arrays import Named
from headscope.results.effect_records import Target
from headscope.runs.effects import LayerRead, effects_of
from headscope.runs.engine import Edit, NumpyRunner
from headscope.runs.groups import DRAWS, ORDERS, POINTS, RANGE, STEPS, GroupEffect, silenced_groups
from headscope.runs.masking import mask_of
from headscope.runs.predicting import outcomes, shifts
from headscope.runs.targets import choose, read, token_id
from headscope.runs.texts import as_input, of_trace, self_attended
from headscope.screens.pieces import labels

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.model import Model
    from headscope.traces import Trace

KEPT_RUNS = 64
SHORT = 300
"""Characters of a text in a record."""
CHEAP = 2e10
"""Multiplications and additions up to which a file gets its effects without being asked: about a second."""

DRAWS_IN_A_FILE = 30
"""Sets of heads at random beside each group: a few, so that a file stays quick to write."""

Progress = Callable[[int, int], None]
Labels = Sequence[tuple[dict[str, str], Sequence[tuple[int, int]]]]
"""Language -> a survey's label, with the heads that have it."""


@dataclass
class Runs:
    """The records of the last KEPT_RUNS runs, the oldest first.

    Attributes:
        records: by id.
    """

    records: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, record: dict[str, Any]) -> dict[str, Any]:
        """Keep a record and return it with its id; it replaces one that answers the same question on the same text."""
        same = [name for name, kept in self.records.items() if all(kept[key] == record[key] for key in ("base", "ask"))]
        for name in same:
            del self.records[name]
        record = {"id": secrets.token_hex(8), **record}
        self.records[record["id"]] = record
        while len(self.records) > KEPT_RUNS:
            del self.records[next(iter(self.records))]
        return record

    def listed(self, traces: Mapping[str, Trace]) -> list[dict[str, Any]]:
        """The records, without the traces that are no longer kept."""
        return [
            {**record, "trace": record["trace"] if record["trace"] in traces else None}
            for record in self.records.values()
        ]


def record_of(
    base: str, trace: Trace, question: Question, target: Target | None, result: dict[str, Any]
) -> dict[str, Any]:
    """A run as a JSON record.

    Args:
        base: the id of the text's trace.
        trace: the text's trace.
        question: what was changed and read.
        target: the output; None if none was read.
        result: the numbers.
    """
    names = labels(trace.queries, trace.text, trace.pair)
    text = trace.text if trace.pair is None or trace.text is None else f"{trace.text} | {trace.pair}"
    return {
        "base": base,
        "text": (text or " ".join(names))[:SHORT],
        "ask": question.plain(),
        "names": {str(at): names[at] for at in question.places() if 0 <= at < len(names)},
        "target": None if target is None else _plain_target(target),
        "result": result,
        "trace": None,
    }


def answer(
    model: Model, base: str, trace: Trace, question: Question, progress: Progress, layer_read: LayerRead
) -> dict[str, Any]:
    """Run a question that leaves no trace: each head in turn, an edge, an attribution.

    Args:
        model: the model.
        base: the id of the text's trace.
        trace: the text's trace.
        question: what to change and read.
        progress: called with the layers done and all layers.
        layer_read: called with a layer's number and the changes of its heads.

    Raises:
        InputError: no such head, token or output; a text that is too long for the method.
        UnsupportedError: the model lacks the output.
    """
    if question.kind == "heads":
        return _each_head(model, base, trace, question, progress, layer_read)
    return (_edge if question.kind == "edge" else _tokens)(model, base, trace, question)


def _each_head(
    model: Model, base: str, trace: Trace, question: Question, progress: Progress | None, layer_read: LayerRead | None
) -> dict[str, Any]:
    way: dict[str, Any] = {"method": question.method} if question.method in ("zero", "mean") else {}
    (result,) = effects_of(
        model,
        [of_trace(trace)],
        question.wanted,
        [question.patch_from],
        edge=None if question.edge is None else (question.edge[0], question.edge[1]),
        progress=progress,
        layer_read=layer_read,
        **way,
    )
    numbers = {
        "change": result.change.tolist(),
        "aside": None if result.aside is None else result.aside.tolist(),
        "base": result.base,
        "base_aside": result.base_aside,
    }
    return record_of(base, trace, question, result.target, numbers)


def groups_in(
    model: Model,
    base: str,
    trace: Trace,
    question: Question,
    labels: Labels = (),
    *,
    draws: int = DRAWS,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The record of groups of heads that were silenced, as headscope.runs.groups has them.

    Args:
        model: the model.
        base: the id of the text's trace.
        trace: the text's trace.
        question: the output.
        labels: groups of a survey.
        draws: sets of heads at random beside each group.
        progress: called with the runs done and all runs.

    Raises:
        TraceError: the trace lacks layers or heads.
    """
    check_whole(trace)
    found = silenced_groups(model, trace, question.wanted, labels, draws=draws, progress=progress)
    numbers = {
        "base": round(found.base, 5),
        "change": (found.alone - found.base).round(5).tolist(),
        "groups": [_plain_group(one) for one in found.groups],
        "draws": draws,
        "first": trace.keys.tokens[0],
        "curve": [(count, round(value, 5)) for count, value in sorted(found.curve.items())],
        "random": [(count, *_spread(found.at_random[count])) for count in sorted(found.at_random)],
    }
    return record_of(base, trace, question, found.target, numbers)


def _plain_group(one: GroupEffect) -> dict[str, Any]:
    return {
        "kind": one.group.kind,
        "name": one.group.name,
        "heads": sorted(one.group.heads),
        "value": round(one.value, 5),
        "turn": one.turn.round(4).tolist(),
        "moved": [one.together, one.summed],
        "drawn": _spread(one.drawn, one.value),
        "matched": None if one.matched is None else _spread(one.matched, one.value),
    }


def _spread(draws: Float[np.ndarray, " draws"], value: float = np.nan) -> list[float]:
    """The median and the middle 90 % of draws, and how many are below a value."""
    return [*np.percentile(draws, RANGE).round(4).tolist(), int((draws < value).sum())]


def _edge(model: Model, base: str, trace: Trace, question: Question) -> dict[str, Any]:
    assert question.edge is not None
    layer, head, query, key = question.edge
    runner = NumpyRunner(model)
    tokens = len(trace.queries)
    edge = check_index(query, tokens, "query", "edge"), check_index(key, tokens, "key", "edge")
    base_run = runner.base([as_input(self_attended(trace))])
    ((_, (hidden,)),) = runner.states(base_run, [frozenset({Edit(layer, head, "edge", edge=edge)})])
    last = Named("last_hidden_state", ("tokens", "d_model"), hidden[0])
    after = trace.replaced(outputs={"last_hidden_state": last}, source=model)
    return compared(model, base, trace, after, question)


def _tokens(model: Model, base: str, trace: Trace, question: Question) -> dict[str, Any]:
    result = attribution_of(model, of_trace(trace), question.wanted)
    numbers = {"scores": result.scores.tolist(), "total": result.total, "rest": result.rest, "gap": result.gap}
    return record_of(base, trace, question, result.target, numbers)


def compared(model: Model, base: str, before: Trace, after: Trace, question: Question) -> dict[str, Any]:
    """The record of a changed run: the output and the predictions before and after, and how far each token moved.

    Args:
        model: the model.
        base: the id of the text's trace.
        before: the text's trace.
        after: the changed run's trace.
        question: what was changed.

    Raises:
        InputError: no such output.
        UnsupportedError: the model lacks it.
    """
    shift = shifts(before, after)
    target, numbers = None, {}
    if shift is not None:
        first, second = (trace.outputs["last_hidden_state"].array for trace in (before, after))
        target = choose(model, self_attended(before), first, question.wanted)
        was, now = (read(model, target, target.rows_of(last)[None]) for last in (first, second))
        numbers = {"before": float(was.values[0]), "after": float(now.values[0])}
        if was.aside is not None and now.aside is not None:
            numbers |= {"before_aside": float(was.aside[0]), "after_aside": float(now.aside[0])}
    result = {
        **numbers,
        "moved": None if shift is None else float(shift.mean()),
        "shift": None if shift is None else shift.tolist(),
        "was": [outcome.plain() for outcome in outcomes(model, before)],
        "now": [outcome.plain() for outcome in outcomes(model, after)],
    }
    return record_of(base, before, question, target, result)


def rerun(model: Model, base: Trace, question: Question, progress: Progress | None = None) -> Trace:
    """Run the same tokens with heads silenced and tokens masked or replaced; words and spans stay those of the text.

    Raises:
        InputError: a head or token doesn't exist.
        UnsupportedError: the tokenizer has no mask token.
    """
    tokenizer = model.tokenizer
    ids, tokens = list(base.ids), list(base.tokens)
    mask = [(at, None) for at in question.mask]
    for at, word in (*mask, *question.replace):
        if not 0 <= at < len(ids):
            raise InputError(f"there is no token {at}", where="mask", advice=f"tokens run from 0 to {len(ids) - 1}")
        if word is not None:
            ids[at] = token_id(model, word.strip(), "a token is replaced by one token")
            tokens[at] = tokenizer.token(ids[at])
            continue
        ids[at], tokens[at] = mask_of(model), str(tokenizer.mask_token)
    again = model.trace(ids=ids, segments=list(base.segments), ablate=question.ablate, progress=progress)
    axis = replace(base.queries, tokens=tuple(tokens), ids=tuple(ids))
    told = {name: getattr(base, name) for name in ("text", "pair", "notes")}
    return again.replaced(queries=axis, source=model, **told)


def cost_of_effects(model: Model, tokens: int) -> float:
    """Multiplications and additions of silencing each head in turn, as headscope.runs.effects counts passes."""
    sizes = model.anatomy.known()
    return _cost(model, tokens, sizes.heads * (sizes.layers - 1) / 2 + 2 * sizes.heads / 3 + 1)


def cost_of_groups(model: Model, tokens: int) -> float:
    """The same of a file's groups, which run side by side: a sixth of the time.

    They are each head, the curve, random orders, and draws beside the first group and a layer.
    """
    sizes = model.anatomy.known()
    draws = DRAWS_IN_A_FILE * (3 + STEPS * ORDERS)
    return _cost(model, tokens, sizes.heads * sizes.layers / 2 + POINTS + draws) / 6


def _cost(model: Model, tokens: int, passes: float) -> float:
    return 2.0 * sum(row.count for row in model.parameters if row.layer is not None) * tokens * passes


def is_cheap(model: Model, trace: Trace, cost: Callable[[Model, int], float] = cost_of_effects) -> bool:
    """Return True if a file gets such runs unasked: the text's is whole, unchanged and finite; they take a second."""
    return (
        model.anatomy.dimensions is not None
        and cost(model, len(trace.queries)) <= CHEAP
        and not trace.changed
        and trace.keys is trace.queries
        and shifts(trace, trace) is not None
    )


def runs_of(
    model: Model, trace: Trace, base: str, labels: Labels | None = None, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """The runs that a file holds: groups of heads, each head in turn, and DecompX of the same output where it can.

    Args:
        model: the model.
        trace: the text's trace.
        base: the trace's id in the file.
        labels: groups of a survey; None leaves out groups.
        progress: called with the layers done and all layers.

    Raises:
        CheckpointError: the model's output is not a number.
        TraceError: groups were asked for, and the trace lacks layers or heads.
    """
    records = []
    if labels is not None:
        records.append(groups_in(model, base, trace, Question("groups"), labels, draws=DRAWS_IN_A_FILE))
    records.append(_each_head(model, base, trace, Question("heads", "zero"), progress, None))
    records.append(_tokens(model, base, trace, Question("tokens", "decompx")))
    return [{"id": f"{base}-{record['ask']['kind']}", **record} for record in records]


def _plain_target(target: Target) -> dict[str, Any]:
    return {
        "kind": target.kind,
        "label": target.label[:SHORT],
        "row": target.row,
        "unit": target.unit,
        "aside": target.aside,
        "chosen": target.chosen,
    }
