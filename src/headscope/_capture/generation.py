"""`captured.generations`: the forward passes of one generate() call as one growing causal map.

Nothing is computed again: queries are put one after the other, keys and values are what the last pass's cache held, and
the mask is the rule that gives every pass's mask cell for cell.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headscope._capture.building import Group, Kept, Series, TraceBuilder, records_of
from headscope._capture.calls import Forward
from headscope._capture.checking import Witness
from headscope._capture.growing_masks import Piece, grown, stacked
from headscope._capture.source import CapturedModel
from headscope._capture.strands import Origin, Stretch
from headscope._capture.tokens import joined, part
from headscope._trace import Cut, Trace
from headscope.attention import Mask
from headscope.errors import UnsupportedError

if TYPE_CHECKING:
    from headscope._trace import TokenAxis

IDS = ("decoder_input_ids", "input_ids")
"""What a model calls the tokens that it goes on with."""


ADVICE = "the passes themselves are there: captured.traces, captured.forwards[i]"


@dataclass(frozen=True, eq=False)
class Step:
    """One forward pass's share of a sequence: the first `count` queries of a row of its batch.

    Attributes:
        groups: what was kept of the pass.
    """

    forward: Forward
    groups: list[Group]
    row: int
    count: int

    def layers(self, series: Series) -> dict[int, tuple[Group, Kept]]:
        """The layers of one stack by their numbers."""
        groups = [group for group in self.groups if group.series == series]
        return {kept.call["number"]: (group, kept) for group in groups for kept in group.rows[self.row]}


class Sequences:
    """The sequences that grew in a capture, each with the forward passes that brought its tokens."""

    def __init__(self, builder: TraceBuilder) -> None:
        self.builder = builder
        self._groups = {forward.number: groups for forward, groups in builder.finished}
        self._stretches: dict[tuple[int, Series, int], Stretch] = {}
        continued: set[int] = set()
        for forward, groups in builder.finished:
            for group in groups:
                for row, kept in enumerate(group.rows if group.own and not group.extras else ()):
                    stretch = kept[0].tensors["k"]
                    assert isinstance(stretch, Stretch)
                    self._stretches.setdefault((forward.number, group.series, row), stretch)
                    continued |= {one.forward.number for one in stretch.origins[:-1] if one.forward is not None}
        self._last = [one for one in builder.finished if one[0].number not in continued]

    def traces(self) -> list[Trace]:
        """One trace for each row of the last pass of a sequence, and for each stack. See Captured.generations."""
        found: list[tuple[bool, Trace]] = []
        for forward, groups in self._last:
            stacks = dict.fromkeys(group.series for group in groups if group.own)
            for row in range(max(len(group.rows) for group in groups)):
                for series in stacks:
                    stretch = self._stretches.get((forward.number, series, row))
                    origins = [] if stretch is None else stretch.origins
                    if not origins or (len(origins) == 1 and not _is_causal(groups, series, row)):
                        continue
                    if stretch is not None and stretch.strand.doubtful:
                        raise _unlike(
                            f"row {row}: what its cache held of {series[0].name}, a window of the last tokens, fits "
                            "several sequences"
                        )
                    steps = self._steps(origins)
                    found.append((len(steps) == 1, self._stitched(steps, series)))
                    crossed = dict.fromkeys(group.series for group in groups if not group.own)
                    found += [(len(steps) == 1, self._crossing(steps, other)) for other in crossed]
        return [trace for at, (alone, trace) in enumerate(found) if not (alone and _goes_on(trace, found[at + 1 :]))]

    def _steps(self, origins: Sequence[Origin]) -> list[Step]:
        steps = []
        for one in origins:
            if one.forward is None:
                raise UnsupportedError(
                    f"the cache held {one.stop - one.start} tokens that no captured forward pass brought",
                    where="captured.generations",
                    advice="open the block before the first forward pass with this cache, and pad prompts on the left; "
                    + ADVICE,
                )
            steps.append(Step(one.forward, self._groups[one.forward.number], one.row, one.stop - one.start))
        return steps

    def _stitched(self, steps: list[Step], series: Series) -> Trace:
        """Self-attention: queries and keys grow together."""
        total = sum(step.count for step in steps)
        rows = [step.layers(series) for step in steps]
        masks: dict[tuple[int, ...], Mask] = {}
        kept = []
        for number in self._numbers(rows, series):
            calls = [row[number][1] for row in rows]
            seen = {name: calls[-1].tensors[name] for name in ("k", "v")}
            for name, stretch in seen.items():
                if isinstance(stretch, Stretch):
                    seen[name] = replace(stretch, start=0)
                    if stretch.stop != total or [(one.forward, one.row) for one in stretch.origins] != [
                        (step.forward, step.row) for step in steps
                    ]:
                        raise _unlike(
                            f"layer {number} of {series[0].name}: its cache holds other tokens than that of the first"
                        )
            key = tuple(id(call.call["mask"]) for call in calls)
            if key not in masks:
                masks[key] = grown([_piece(call, step) for call, step in zip(calls, steps, strict=True)], total)
            kept.append(_joined_call(calls, steps, seen, masks[key]))
        first = next(iter(rows[0].values()))[0]
        axis = joined([self._tokens(step, series) for step in steps])
        flags = first.queries_kept[steps[0].row]
        lead = 0 if flags is None else int(np.argmax(flags))
        positions = tuple(range(lead, lead + total))
        return self._trace(
            steps, series, kept, axis, None, Cut(steps[-1].row, positions, positions, (lead + total,) * 2)
        )

    def _crossing(self, steps: list[Step], series: Series) -> Trace:
        """Cross-attention: queries grow, keys stay."""
        rows = [step.layers(series) for step in steps]
        kept = []
        for number in self._numbers(rows, series):
            calls = [row[number][1] for row in rows]
            seen = {name: calls[-1].tensors[name] for name in ("k", "v")}
            for call in calls:
                for name, last in seen.items():
                    before = call.tensors[name]
                    if last is None or before is last:
                        continue
                    assert isinstance(last, Stretch)
                    assert isinstance(before, Stretch)
                    if before.strand is not last.strand and not torch.equal(before.tensor(), last.tensor()):
                        raise _unlike(f"layer {number} of {series[0].name} looked at other keys in a later pass")
            pieces = [_piece(call, step) for call, step in zip(calls, steps, strict=True)]
            kept.append(_joined_call(calls, steps, seen, stacked(pieces)))
        group, step = next(iter(rows[-1].values()))[0], steps[-1]
        earlier = [one for one in self.builder.finished if one[0].number < step.forward.number]
        at = step.groups.index(group)
        axis = joined([self._tokens(one, series) for one in steps])
        keys = self.builder.naming.keys(step.forward, step.groups, at, step.row, earlier)
        flags = group.keys_kept[step.row]
        places = tuple(range(group.sizes[2])) if flags is None else tuple(np.flatnonzero(flags).tolist())
        queries = tuple(range(len(axis)))
        return self._trace(steps, series, kept, axis, keys, Cut(step.row, queries, places, (len(axis), group.sizes[2])))

    def _numbers(self, rows: list[dict[int, tuple[Group, Kept]]], series: Series) -> list[int]:
        if any(set(row) != set(rows[0]) for row in rows):
            raise _unlike(f"{series[0].name} did not run the same layers in every forward pass")
        return sorted(rows[0])

    def _tokens(self, step: Step, series: Series) -> TokenAxis:
        group = next(iter(step.layers(series).values()))[0]
        return part(self.builder.naming.queries(step.forward, group, step.row), 0, step.count)

    def _trace(
        self,
        steps: list[Step],
        series: Series,
        kept: list[Kept],
        queries: TokenAxis,
        keys: TokenAxis | None,
        cut: Cut,
    ) -> Trace:
        builder, last = self.builder, steps[-1]
        stack, turn = series
        own = next(group.series for group in last.groups if group.own)
        forward = Forward(last.forward.number, last.forward.module, *self._call(last.forward, own))
        forward.projections = steps[0].forward.projections
        flags = [
            np.isin(np.arange(size), places) for size, places in zip(cut.sizes, (cut.queries, cut.keys), strict=True)
        ]
        source = CapturedModel(
            builder.name,
            builder.model,
            forward,
            stack,
            turn,
            cut.sizes,
            last.row,
            tuple(one.witness for one in kept),
            *flags,
        )
        return Trace(
            model=builder.name,
            queries=queries,
            keys=queries if keys is None else keys,
            layers=records_of(kept),
            ablated=frozenset((one.call["number"], head) for one in kept for head in one.silenced),
            source=source,
            precision=builder.precision,
            stack=stack.name,
            unrecorded=tuple(dict.fromkeys(str(one) for step in steps for one in step.forward.unrecorded)),
            cut=cut,
        )

    def _call(self, last: Forward, series: Series) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that a call without a cache would have over the final sequences of a batch.

        Where they can't be known, one that no second call would find as it was: see headscope._capture.replay.
        """
        unknown: tuple[tuple[Any, ...], dict[str, Any]] = ((object(),), {})
        given = dict(inspect.signature(last.module.forward).bind_partial(*last.args, **last.kwargs).arguments)
        given |= given.pop("kwargs", {})
        name = next((one for one in IDS if isinstance(given.get(one), torch.Tensor)), None)
        batch = 0 if name is None else len(given[name])
        rows = [self._stretches.get((last.number, series, row)) for row in range(batch)]
        if name is None or not rows:
            return unknown
        ids, positions, seen = [], [], []
        for stretch in rows:
            found = [self._inputs(one, first=not one.start) for one in (stretch.origins if stretch else ())]
            if not found or any(one[0] is None for one in found):
                return unknown
            ids.append(np.concatenate([one[0] for one in found]))
            seen.append(np.concatenate([one[1] for one in found]))
            positions.append([one[2] for one in found])
        if len({len(one) for one in ids}) > 1:
            return unknown
        device = given[name].device
        mask = "decoder_attention_mask" if name == IDS[0] else "attention_mask"
        made: dict[str, Any] = {
            key: value
            for key, value in given.items()
            if key in ("encoder_outputs", "attention_mask", "return_dict") and key != mask
        }
        made[name] = torch.from_numpy(np.stack(ids)).to(device)
        made[mask] = torch.from_numpy(np.stack(seen)).to(device, torch.long)
        made["use_cache"] = False
        if all(one is not None for row in positions for one in row):
            made["position_ids"] = torch.stack([torch.cat(row) for row in positions]).to(device)  # type: ignore[arg-type]
        return (), made

    def _inputs(self, origin: Origin, first: bool) -> tuple[np.ndarray | None, np.ndarray, torch.Tensor | None]:
        """What one pass was given of one row: ids, which of them are no padding, position_ids; padding included."""
        forward, group = origin.forward, origin.group
        if forward is None or group is None:
            return None, np.empty(0), None
        ids = self.builder.naming.own(forward, group).ids
        kept = group.queries_kept[origin.row]
        lead = int(np.argmax(kept)) if first and kept is not None else 0
        count = lead + origin.stop - origin.start
        flags = np.ones(group.sizes[1], dtype=bool) if kept is None else kept.copy()
        mask: Mask = group.rows[origin.row][0].call["mask"]
        if mask.keys is not None:
            flags[np.flatnonzero(flags)] = mask.keys[-int(flags.sum()) :]
        positions = forward.kwargs.get("position_ids")
        if not isinstance(positions, torch.Tensor) or positions.dim() != 2 or positions.shape[1] != group.sizes[1]:
            positions = None
        row = None if positions is None else positions[origin.row if len(positions) > 1 else 0][:count]
        return None if ids is None else ids[origin.row if len(ids) > 1 else 0][:count], flags[:count], row


def _piece(kept: Kept, step: Step) -> Piece:
    stretch, q = kept.tensors["k"], kept.tensors["q"]
    assert isinstance(stretch, Stretch)
    assert isinstance(q, torch.Tensor)
    keys = stretch.stop - stretch.start
    return Piece(kept.call["mask"], stretch.stop - q.shape[1], step.count, (q.shape[1], keys), stretch.start)


def _joined_call(calls: list[Kept], steps: list[Step], seen: dict[str, Any], mask: Mask) -> Kept:
    """One layer of a sequence: what belongs to queries one pass after the other, keys and values as they are."""
    last = calls[-1]
    tensors = dict(last.tensors)
    for name in tensors:
        if name not in seen:
            parts = [call.tensors[name][:, : step.count] for call, step in zip(calls, steps, strict=True)]  # type: ignore[index]
            tensors[name] = torch.cat(parts, dim=1)
    witnesses = [call.witness for call in calls]
    witness: Witness | None = None
    if all(one is not None for one in witnesses):
        values = [one.values[:, : step.count] for one, step in zip(witnesses, steps, strict=True) if one is not None]
        witness = replace(witnesses[0], values=np.concatenate(values, axis=1))  # type: ignore[type-var]
    silenced = frozenset().union(*(call.silenced for call in calls))
    return Kept(call={**last.call, "mask": mask}, tensors={**tensors, **seen}, witness=witness, silenced=silenced)


def _is_causal(groups: list[Group], series: Series, row: int) -> bool:
    """Whether a stack's maps of one forward pass are causal."""
    kept = [one for group in groups if group.series == series for one in group.rows[row]]
    return all(one.call["mask"].causal for one in kept)


def _goes_on(trace: Trace, later: list[tuple[bool, Trace]]) -> bool:
    """Whether a later pass over a whole text, as generate() makes them without a cache, has this text and more."""
    size = len(trace.ids)
    return any(
        alone
        and (other.row, other.stack) == (trace.row, trace.stack)
        and len(other.ids) > size
        and other.ids[:size] == trace.ids
        for alone, other in later
    )


def _unlike(found: str) -> UnsupportedError:
    return UnsupportedError(found, where="captured.generations", advice=ADVICE)
