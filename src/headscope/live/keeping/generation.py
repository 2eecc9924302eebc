"""`captured.generations`: join the forward passes of one generate() call into one trace with a causal mask.

Nothing is recomputed: the queries of all passes are concatenated, keys and values are those in the last pass's cache,
and the mask is a rule that reproduces every pass's mask cell for cell.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from headscope.attention.scores import Mask
from headscope.attention.terms import Terms
from headscope.errors import UnsupportedError
from headscope.live.calls import Forward
from headscope.live.keeping.building import TraceBuilder, places_of
from headscope.live.keeping.cached_sequences import KeySpan, Origin
from headscope.live.keeping.contents import ContextProducts
from headscope.live.keeping.copies import Group, LayerCopy, Series
from headscope.live.masks.analyst import RawMask
from headscope.live.masks.chunks import Part
from headscope.live.masks.generated import grown_terms, joined_mask
from headscope.live.masks.guess import NEGLIGIBLE
from headscope.live.names.axes import joined, part
from headscope.traces import Cut, Trace

IDS = ("decoder_input_ids", "input_ids")
"""Names of the argument that holds the tokens to continue, in order of preference."""

ADVICE = "use the traces of the passes instead: captured.traces, captured.forwards[i]"

Layers = dict[int, tuple[Group, LayerCopy]]
"""Layer number -> the layer's group and its copy."""


class Sequences:
    """The sequences generated in a capture, each with the forward passes that computed its tokens."""

    def __init__(self, builder: TraceBuilder) -> None:
        self.builder = builder
        self._groups = {forward.number: groups for forward, groups in builder.finished}
        self._spans: dict[tuple[int, Series, int], KeySpan] = {}
        continued: set[int] = set()
        for forward, groups in builder.finished:
            for group in groups:
                for row, layers in enumerate(group.rows if group.own and not group.extras else ()):
                    span = layers[0].tensors["k"]
                    assert isinstance(span, KeySpan)
                    self._spans.setdefault((forward.number, group.series, row), span)
                    continued |= {origin.forward.number for origin in span.origins[:-1] if origin.forward is not None}
        self._last = [finished for finished in builder.finished if finished[0].number not in continued]

    def traces(self) -> list[Trace]:
        """One trace for each row of a sequence's last pass and for each stack. See Captured.generations."""
        traces: list[tuple[bool, Trace]] = []
        for forward, groups in self._last:
            stacks = dict.fromkeys(group.series for group in groups if group.own)
            for row in range(max(len(group.rows) for group in groups)):
                for series in stacks:
                    span = self._spans.get((forward.number, series, row))
                    if span is None or not (origins := span.origins):
                        continue
                    alone, layers = len(origins) == 1, _layers_of(groups, series, row).values()
                    if alone and not all(layer.call["mask"].causal for _, layer in layers):
                        continue
                    if span.sequence.doubtful:
                        raise _inconsistent(
                            f"row {row}: the window of tokens in its cache of {series[0].name} fits several sequences"
                        )
                    traces.append((alone, self._trace(origins, series, own=True)))
                    crossed = dict.fromkeys(group.series for group in groups if not group.own)
                    traces += [(alone, self._trace(origins, other, own=False)) for other in crossed]
        return [
            trace for at, (alone, trace) in enumerate(traces) if not (alone and _is_continued(trace, traces[at + 1 :]))
        ]

    def _trace(self, origins: Sequence[Origin], series: Series, *, own: bool) -> Trace:
        """Join the passes of one stack. Its queries grow, and in self-attention its keys with them."""
        forwards = list(map(_forward_of, origins))
        total, row, naming = sum(origin.count for origin in origins), origins[-1].row, self.builder.naming
        rows = [
            _layers_of(self._groups[forward.number], series, origin.row)
            for forward, origin in zip(forwards, origins, strict=True)
        ]
        if any(set(layers) != set(rows[0]) for layers in rows):
            raise _inconsistent(f"{series[0].name} did not run the same layers in every forward pass")
        groups = [next(iter(layers.values()))[0] for layers in rows]
        if own and any(group.is_padding(origin.row) for group, origin in zip(groups, origins, strict=True)):
            raise _inconsistent(f"row {row}: a pass reads nothing but padding")
        queries = joined(
            [
                part(naming.queries(forward, group, origin.row), 0, origin.count)
                for forward, group, origin in zip(forwards, groups, origins, strict=True)
            ]
        )
        if own:
            flags = groups[0].keys_kept[origins[0].row]
            lead = 0 if flags is None else int(np.argmax(flags))
            positions = tuple(range(lead, lead + total))
            keys, cut = queries, Cut(row, positions, positions, (lead + total,) * 2)
        else:
            size, keys = groups[-1].sizes[2], naming.keys(forwards[-1], groups[-1], row)
            places = places_of(groups[-1].keys_kept[row], size)
            cut = Cut(row, tuple(range(total)), places, (total, size))
        self_attention = next(group.series for group in self._groups[forwards[-1].number] if group.own)
        args, kwargs = self._call(forwards[-1], self_attention)
        projections = forwards[0].projections
        forward = replace(forwards[-1], args=args, kwargs=kwargs, contents=None, projections=projections)
        return self.builder.trace_of(
            forward,
            series,
            _joined_layers(rows, origins, series, own=own),
            queries=queries,
            keys=keys,
            unrecorded=tuple(dict.fromkeys(str(call) for each in forwards for call in each.unrecorded)),
            cut=cut,
        )

    def _call(self, last: Forward, series: Series) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a single call, without a cache, over the final sequences of a batch.

        If they can't be determined, the arguments contain an object that headscope.live.replay refuses to reuse.
        """
        unknown: tuple[tuple[Any, ...], dict[str, Any]] = ((object(),), {})
        arguments = dict(inspect.signature(last.module.forward).bind_partial(*last.args, **last.kwargs).arguments)
        arguments |= arguments.pop("kwargs", {})
        name = next((candidate for candidate in IDS if isinstance(arguments.get(candidate), torch.Tensor)), None)
        batch = 0 if name is None else len(arguments[name])
        rows = [self._spans.get((last.number, series, row)) for row in range(batch)]
        if name is None or not rows:
            return unknown
        mask = "decoder_attention_mask" if name == IDS[0] else "attention_mask"
        ids, positions, attended = [], [], []
        for span in rows:
            inputs = [self._inputs(origin, mask) for origin in (span.origins if span else ())]
            if not inputs or any(part[0] is None for part in inputs):
                return unknown
            ids.append(np.concatenate([part[0] for part in inputs]))
            attended.append(np.concatenate([part[1] for part in inputs]))
            positions.append([part[2] for part in inputs])
        if len({len(row) for row in ids}) > 1:
            return unknown
        device = arguments[name].device
        joined_call: dict[str, Any] = {
            key: value
            for key, value in arguments.items()
            if key in ("encoder_outputs", "attention_mask", "return_dict") and key != mask
        }
        joined_call[name] = torch.from_numpy(np.stack(ids)).to(device)
        joined_call[mask] = torch.from_numpy(np.stack(attended)).to(device, torch.long)
        joined_call["use_cache"] = False
        if all(part is not None for row in positions for part in row):
            joined_call["position_ids"] = torch.stack([torch.cat(row) for row in positions]).to(device)  # type: ignore[arg-type]
        return (), joined_call

    def _inputs(self, origin: Origin, mask: str) -> tuple[np.ndarray | None, np.ndarray, torch.Tensor | None]:
        """The inputs of one pass for one row, padding included: ids, a mask that is False for padding, position_ids.

        Args:
            origin: the pass and its row.
            mask: the name of the argument that masks padding.
        """
        forward, group = origin.forward, origin.group
        if forward is None or group is None:
            return None, np.empty(0), None
        ids = self.builder.naming.ids(forward, group)
        kept = group.queries_kept[origin.row]
        lead = int(np.argmax(kept)) if not origin.start and kept is not None else 0
        count = lead + origin.count
        flags = np.ones(group.sizes[1], dtype=bool) if kept is None else kept.copy()
        given = forward.kwargs.get(mask)
        if kept is None and isinstance(given, torch.Tensor) and given.dim() == 2 and given.shape[1] >= len(flags):
            flags = given[origin.row % len(given), given.shape[1] - len(flags) :].bool().cpu().numpy()
        rule: Mask = group.rows[origin.row][0].call["mask"]
        if rule.keys is not None:
            flags[np.flatnonzero(flags)] = rule.keys[len(rule.keys) - int(flags.sum()) :]
        positions = forward.kwargs.get("position_ids")
        if not isinstance(positions, torch.Tensor) or positions.dim() != 2 or positions.shape[1] != group.sizes[1]:
            positions = None
        row = None if positions is None else positions[origin.row if len(positions) > 1 else 0][:count]
        return None if ids is None else ids[origin.row][:count], flags[:count], row


def _forward_of(origin: Origin) -> Forward:
    """The forward pass that computed some tokens of a sequence.

    Raises:
        UnsupportedError: the cache held them before the capture began.
    """
    if origin.forward is None:
        raise UnsupportedError(
            f"the cache held {origin.count} tokens that no captured forward pass computed",
            where="captured.generations",
            advice="open the block before the first forward pass with this cache, and pad prompts on the left; "
            + ADVICE,
        )
    return origin.forward


def _layers_of(groups: list[Group], series: Series, row: int) -> Layers:
    """The layers of one stack in a row of a forward pass."""
    of_stack = [group for group in groups if group.series == series]
    return {layer.call["number"]: (group, layer) for group in of_stack for layer in group.rows[row]}


def _refuse_other_keys(calls: list[LayerCopy], cached: dict[str, Any], where: str) -> None:
    """Raise an error if the keys of cross-attention, or what is added to them, differ between passes or by place."""
    for before, last in ((call.tensors[name], last) for call in calls for name, last in cached.items()):
        if last is None or before is last:
            continue
        assert isinstance(last, KeySpan)
        assert isinstance(before, KeySpan)
        if before.sequence is not last.sequence and not torch.equal(before.tensor(), last.tensor()):
            raise _inconsistent(f"{where} had other keys in a later pass")
    if any(call.call["terms"].adds for call in calls):
        raise _inconsistent(f"{where} has a position bias on other tokens' keys")


def _queries_of(layer: LayerCopy) -> torch.Tensor:
    q = layer.tensors["q"]
    assert isinstance(q, torch.Tensor)
    return q


def _part_of(layer: LayerCopy, origin: Origin, total: int | None) -> Part:
    """A pass's part of a layer, up to the end of the sequence, if it is known: tokens that were undone come after."""
    span, q = layer.tensors["k"], _queries_of(layer)
    assert isinstance(span, KeySpan)
    whole = q.shape[1], span.stop - span.start
    undone = 0 if total is None else max(0, span.stop - total)
    mask, terms, (queries, keys) = layer.call["mask"], layer.call["terms"], (size - undone for size in whole)
    allowed, bias = (None if x is None else torch.from_numpy(x)[None, ..., :keys] for x in (mask.keys, mask.bias))
    raw = RawMask(None if bias is None else bias[:, :, :queries], None, allowed, mask.causal, mask.window)
    begin = 0 if total is None else span.start
    places = {2: range(origin.start, origin.start + origin.count), 3: range(begin, begin + keys)}
    return Part(raw, (1, 1, queries, keys), places, terms.window(0, queries, 0, keys, whole) if undone else terms)


def _joined_layers(rows: list[Layers], origins: Sequence[Origin], series: Series, *, own: bool) -> list[LayerCopy]:
    """The layers of a sequence, each joined from its passes."""
    total = sum(origin.count for origin in origins)
    masks: dict[tuple[int, ...], Mask] = {}
    layers = []
    for number in sorted(rows[0]):
        calls, where = [row[number][1] for row in rows], f"layer {number} of {series[0].name}"
        end = total if own else None
        parts = [_part_of(call, origin, end) for call, origin in zip(calls, origins, strict=True)]
        # CachedSequences.keep gives all layers of a pass the same sequence, ending at the same token: all have
        # these origins.
        cached = {name: calls[-1].tensors[name] for name in ("k", "v")}
        if own:
            cached = {name: replace(x, start=0) if isinstance(x, KeySpan) else x for name, x in cached.items()}
        else:
            _refuse_other_keys(calls, cached, where)
        key = tuple(id(call.call["mask"]) for call in calls)
        if key not in masks:
            masks[key] = joined_mask(parts, total, total if own else parts[-1].sizes[3])
            bias = masks[key].bias
            highest = np.zeros(1) if bias is None or not own else bias.max(-1)
            if (np.isfinite(highest) & (highest <= NEGLIGIBLE)).any():
                raise _inconsistent(f"padding of {series[0].name} looks at all keys alike, at more of them in one pass")
        terms = grown_terms(parts, total) if own else parts[-1].terms
        if terms is None:
            raise _inconsistent(f"{where}: the position biases of the forward passes don't form one table")
        layers.append(_joined_call(calls, origins, cached, masks[key], terms))
    return layers


def _joined_call(
    calls: list[LayerCopy], origins: Sequence[Origin], cached: dict[str, Any], mask: Mask, terms: Terms
) -> LayerCopy:
    """One layer of a sequence: the queries of all passes concatenated, with the cached keys and values."""
    q = torch.cat([_queries_of(call)[:, : origin.count] for call, origin in zip(calls, origins, strict=True)], dim=1)
    parts = [call.products for call in calls if call.products is not None]
    products: ContextProducts | None = None
    if len(parts) == len(calls):
        values = [each.values[:, : origin.count] for each, origin in zip(parts, origins, strict=True)]
        products = replace(parts[0], values=np.concatenate(values, axis=1))
    return LayerCopy(
        call={**calls[-1].call, "mask": mask, "terms": terms},
        tensors={"q": q, **cached},
        products=products,
        silenced={head: way for call in calls for head, way in call.silenced.items()},
    )


def _is_continued(trace: Trace, later: list[tuple[bool, Trace]]) -> bool:
    """Return True if a later pass over a whole text begins with this text: generate() without a cache makes those."""
    size = len(trace.ids)
    return any(
        alone
        and (other.row, other.stack) == (trace.row, trace.stack)
        and len(other.ids) > size
        and other.ids[:size] == trace.ids
        for alone, other in later
    )


def _inconsistent(message: str) -> UnsupportedError:
    return UnsupportedError(message, where="captured.generations", advice=ADVICE)
