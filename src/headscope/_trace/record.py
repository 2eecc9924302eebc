"""The trace: what one forward pass leaves behind. Q, K, V and the log-sum-exps, never a map of all pairs."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from headscope import upward
from headscope._trace.arrays import LazyMap, Named
from headscope._trace.broken import broken_heads
from headscope._trace.cut import Cut
from headscope._trace.head import HeadTrace, position_of
from headscope._trace.layer import LayerTrace
from headscope._trace.outputs import Outputs, Source
from headscope._trace.tiled import stacked
from headscope._trace.token_axis import TokenAxis
from headscope.attention import EVERYTHING, Mask, log_sum_exps
from headscope.checkpoint import called
from headscope.errors import InputError, TraceError

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.explain.findings import Finding
    from headscope.explain.mixing import MixingRatio
    from headscope.statistics import Statistics
    from headscope.verify import Report


REMAKE = "the file or the capture is not whole: make the trace again"


class LogSumExps:
    """The attribute `lse` of a layer's record: as it was given, else computed when it is first asked for, and kept."""

    @overload
    def __get__(self, record: None, owner: type) -> LogSumExps: ...
    @overload
    def __get__(self, record: LayerRecord, owner: type) -> Float[np.ndarray, "heads queries"]: ...
    def __get__(self, record: LayerRecord | None, owner: type) -> LogSumExps | Float[np.ndarray, "heads queries"]:
        if record is None:
            raise AttributeError("lse")  # so a dataclass is told that the field has no default
        if vars(record)["lse"] is None:
            found = log_sum_exps(record.q, record.k, scale=record.scale, mask=record.mask)
            vars(record)["lse"] = found
        kept: Float[np.ndarray, "heads queries"] = vars(record)["lse"]
        return kept

    def __set__(self, record: LayerRecord, value: Float[np.ndarray, "heads queries"] | None) -> None:
        vars(record)["lse"] = value


@dataclass(frozen=True, eq=False)
class LayerRecord:
    """What attention saw in one layer.

    Attributes:
        q: (heads, queries, d_head).
        k: (kv_heads, keys, d_head).
        v: (kv_heads, keys, d_value); None where it was not kept.
        lse: (heads, queries), log-sum-exp of each query's scores. None has it computed from q and k, in fp64, when it
            is first asked for.
        scale: what q . k is multiplied by.
        mask: which keys a query may look at.
        stage: what q and k are: `projected` (X W + b), `scaled` (the scale is in q already), `rotated` (RoPE).
        name: the attention module's name in a live model; empty where there was none.
        number: which layer of the model this is, where not all layers were kept; None where it is its position.
        numbers: which heads of the layer these are, where not all were kept; k and v then have one head for each.
    """

    q: Float[np.ndarray, "heads queries d_head"]
    k: Float[np.ndarray, "kv_heads keys d_head"]
    v: Float[np.ndarray, "kv_heads keys d_value"] | None
    lse: LogSumExps = LogSumExps()
    scale: float  # type: ignore[misc]  # lse has no default: see LogSumExps
    mask: Mask = EVERYTHING
    stage: str = "projected"
    name: str = ""
    number: int | None = None
    numbers: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of q, k, v and lse; where lse is yet to be computed, of what it will be."""
        given = vars(self)["lse"]
        size = 8 * self.q.shape[0] * self.q.shape[1] if given is None else given.nbytes
        return size + sum(part.nbytes for part in (self.q, self.k, self.v) if part is not None)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Trace:
    """What one forward pass leaves behind.

    `trace[l]` is one layer, `trace[l, h]` one head; everything a person sees of it is a function of this record.

    Attributes:
        model: the name of the model.
        fingerprint: of the checkpoint's config and header; empty where there was no checkpoint.
        queries: the tokens that look.
        keys: the tokens that are looked at; the same object but in cross-attention.
        layers: what attention saw, layer by layer.
        outputs: what the model returned; any mapping of names to arrays is taken.
        text: the text, where there was one.
        pair: the second text, where there was one.
        ablated: the heads that were silenced, (layer, head).
        source: the model itself, where it is at hand.
        stack: which attention of the model this is: self, cross, encoder, decoder, vision_model, ….
        unrecorded: attention that ran in the same forward pass and is in no trace, in words; empty unless the capture
            was told to accept that.
        cut: the row of a batch, and the positions of it, that this is.
        precision: fp32, or fp16 where Q, K and V were rounded to half precision on the way through a file.
    """

    model: str
    queries: TokenAxis
    layers: Sequence[LayerRecord]
    outputs: Outputs = field(default_factory=Outputs)
    keys: TokenAxis = None  # type: ignore[assignment]  # the queries, by default
    fingerprint: str = ""
    text: str | None = None
    pair: str | None = None
    ablated: frozenset[tuple[int, int]] = frozenset()
    source: Source | None = None
    stack: str = "self"
    unrecorded: tuple[str, ...] = ()
    cut: Cut = None  # type: ignore[assignment]  # none, by default
    precision: str = "fp32"

    def __post_init__(self) -> None:
        def settle(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        settle("layers", tuple(self.layers))
        settle("outputs", Outputs(self.outputs, self.source))
        if self.keys is None:
            settle("keys", self.queries)
        if self.cut is None:
            settle("cut", Cut.none(len(self.queries), len(self.keys)))
        sizes, positions = (len(self.queries), len(self.keys)), (len(self.cut.queries), len(self.cut.keys))
        if sizes != positions:
            raise TraceError(
                f"{positions} positions of a batch for {sizes} queries and keys", where="positions", advice=REMAKE
            )
        for index, record in enumerate(self.layers):
            wrong = _misfit(record, len(self.queries), len(self.keys))
            if wrong is not None:
                raise TraceError(f"layer {index} holds {wrong}", where=f"layer {index}", advice=REMAKE)
        if not self.layers or min(self.numbers) < 0 or len(set(self.numbers)) != len(self.layers):
            raise TraceError(
                f"the layers are numbered {', '.join(map(str, self.numbers))}" if self.layers else "there is no layer",
                where="the layers of a trace",
                advice=REMAKE,
            )

    @property
    def tokens(self) -> tuple[str, ...]:
        """The pieces, as the vocabulary spells them."""
        return self.queries.tokens

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens' ids."""
        return self.queries.ids

    @property
    def segments(self) -> tuple[int, ...]:
        """0 for tokens of the first text, 1 for those of the second."""
        return self.queries.segments

    @property
    def special(self) -> tuple[bool, ...]:
        """Whether the tokenizer added the token: [CLS], [SEP], …."""
        return self.queries.special

    @property
    def words(self) -> tuple[int | None, ...]:
        """Which word each piece belongs to; None for special tokens."""
        return self.queries.words

    @property
    def row(self) -> int:
        """The row of the batch that this trace is of; 0 where there was one text."""
        return self.cut.row

    @property
    def positions(self) -> tuple[int, ...]:
        """Where its queries stand in the row of the batch, padding counted: 0, 1, 2, … where there is none before them.

        `attentions[layer][trace.row][:, trace.positions][:, :, trace.key_positions]` is this trace's part of what the
        model returned as `attentions`.
        """
        return self.cut.queries

    @property
    def key_positions(self) -> tuple[int, ...]:
        """Where its keys stand in the row, likewise."""
        return self.cut.keys

    def replaced(self, **changes: Any) -> Trace:
        """A copy of this trace with some of its fields changed. Where keys and queries are one, they stay one."""
        if self.keys is self.queries:
            changes.setdefault("keys", None)
        return replace(self, **changes)

    @property
    def hidden_states(self) -> tuple[Named, ...]:
        """(S, d_model) of the embeddings and of every layer, where the trace was made with hidden_states=True."""
        names = [f"hidden_states.{index}" for index in range(len(self.layers) + 1)]
        return tuple(self.outputs.kept[name] for name in names if name in self.outputs.kept)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The layers' numbers in the model: 0, 1, 2, … unless only some were kept. `trace[5, 3]` is layer 5."""
        return tuple(at if record.number is None else record.number for at, record in enumerate(self.layers))

    def head_numbers(self, layer: int) -> tuple[int, ...]:
        """The numbers of a layer's heads in the model: 0, 1, 2, … unless only some were kept."""
        record = self.layers[self.numbers.index(layer)]
        return tuple(range(len(record.q))) if record.numbers is None else record.numbers

    @property
    def heads(self) -> int:
        """Query heads in the first layer."""
        return len(self.layers[0].q)

    @property
    def d_head(self) -> int:
        """The width of the first layer's queries and keys, per head."""
        return self.layers[0].q.shape[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of Q, K, V and lse of all layers: linear in the number of tokens."""
        return sum(record.nbytes for record in self.layers)

    @property
    def broken(self) -> tuple[tuple[int, int], ...]:
        """(layer, head) of each head whose weights are not numbers, because NaN or infinity is in the model."""
        return broken_heads(self)

    def __len__(self) -> int:
        """How many tokens."""
        return len(self.queries)

    @overload
    def __getitem__(self, index: int) -> LayerTrace: ...
    @overload
    def __getitem__(self, index: tuple[int, int]) -> HeadTrace: ...
    def __getitem__(self, index: int | tuple[int, int]) -> LayerTrace | HeadTrace:
        """One layer, `trace[layer]`, or one head of it, `trace[layer, head]`, counted from 0.

        Raises:
            InputError: there is no such layer or head.
        """
        parts = index if isinstance(index, tuple) and len(index) == 2 else (index,)
        if not all(isinstance(one, SupportsIndex) for one in parts):
            raise InputError(
                f"trace[{index!r:.60}] names no head and no layer",
                where="trace[layer, head]",
                advice="index a trace with a layer, or with a layer and a head, both counted from 0",
            )
        at = position_of(operator.index(parts[0]), self.numbers, "layer", "the trace")
        layer = LayerTrace(self, self.numbers[at], self.layers[at])
        return layer if len(parts) == 1 else layer[operator.index(parts[1])]

    __iter__ = None
    """A trace is as long as its text, and its indices are layers: iterate over `trace.layers` or `trace.tokens`."""

    @property
    def weights(self) -> LazyMap:
        """(layers, heads, queries, keys), after the softmax, of the layers that were kept, in order.

        Raises:
            InputError: the layers differ in their number of heads.
        """
        return self._stacked("weights")

    @property
    def scores(self) -> LazyMap:
        """(layers, heads, queries, keys), before the softmax; -inf where masked.

        Raises:
            InputError: the layers differ in their number of heads.
        """
        return self._stacked("scores")

    def _stacked(self, kind: str) -> LazyMap:
        counts = [len(record.q) for record in self.layers]
        if len(set(counts)) > 1:
            raise InputError(
                f"the layers have {min(counts)} to {max(counts)} heads, so their {kind} are not one array",
                where=f"trace.{kind}",
                advice=f"take them layer by layer: trace[{self.numbers[0]}].{kind}",
            )
        return LazyMap.of(stacked([getattr(self[number], kind) for number in self.numbers]))

    def __repr__(self) -> str:
        ablated = f", {len(self.ablated)} silenced" if self.ablated else ""
        missing = f", unrecorded attention: {'; '.join(self.unrecorded)}" if self.unrecorded else ""
        stack = "" if self.stack == "self" else f" ({self.stack})"
        tokens = f"{len(self)} tokens" if self.keys is self.queries else f"{len(self)} queries, {len(self.keys)} keys"
        heads = sorted({(len(record.q), record.q.shape[-1]) for record in self.layers})
        each = f"{self.heads} heads of {self.d_head}" if len(heads) == 1 else f"{heads[0][0]} to {heads[-1][0]} heads"
        return (
            f"trace of {called(self.model)}{stack}: {tokens}, {len(self.layers)} layers x {each}{ablated}{missing}, "
            f"{self.nbytes / 1e6:.1f} MB of Q, K, V and lse"
        )

    def save(self, path: str | Path, *, dtype: str = "fp32", values: bool = True) -> Path:
        """Write the trace as one safetensors file, whole or not at all. See docs/trace-format.md.

        Args:
            path: the file.
            dtype: fp32, or fp16 for half the size (lse stays fp32).
            values: whether V is kept.
        """
        return upward.save(self, Path(path), dtype=dtype, values=values)

    # The face: what other parts of headscope make of a trace.

    def verify(self, *, reference: bool = True, against: Any = None) -> Report:
        """Recompute this trace in independent ways and compare. See headscope.verify.

        Args:
            reference: whether to run the model's eager attention, or transformers, too.
            against: weights from anywhere, to compare with these alone: the `attentions` that a model of transformers
                returned, or arrays of (layers, heads, queries, keys). See headscope.verify.against.
        """
        return upward.verify(self, reference=reference, against=against)

    def statistics(
        self,
        names: str | Iterable[str] | None = None,
        *,
        per_query: bool = False,
        special: bool = True,
        engine: str = "numpy",
    ) -> Statistics:
        """Where every head looks, as numbers: name -> (layers, heads). See headscope.statistics and docs/statistics.md.

        Args:
            names: which statistics; all that the trace can give if None.
            per_query: (layers, heads, queries) instead of the mean over queries.
            special: whether queries that the tokenizer added count.
            engine: `numpy`, or `torch` for long texts.
        """
        return upward.statistics(self, names, per_query=per_query, special=special, engine=engine)

    def head_distances(self, *, special: bool = True) -> Named:
        """(heads_total, heads_total): Jensen-Shannon distance between heads. See headscope.statistics.distances.

        Args:
            special: whether queries that the tokenizer added count.
        """
        return upward.head_distances(self, special=special)

    def mixing_ratio(self, kind: str = "AttnResLn-N") -> MixingRatio:
        """(layers, queries): the share of each token's new vector that other tokens send.

        See headscope.explain.mixing.

        Args:
            kind: Attn-W, Attn-N, AttnRes-W, AttnRes-N or AttnResLn-N.
        """
        return upward.mixing_ratio(self, kind)

    def norm_map(self, layer: int, kind: str = "Attn-N", head: int | None = None) -> LazyMap:
        """(queries, keys), lazy: how long the vector is that each token sends to each other in a layer or a head.

        See headscope.explain.mixing.

        Args:
            layer: its number.
            kind: Attn-N, AttnRes-N or AttnResLn-N.
            head: one head of the layer.
        """
        return upward.norm_map(self, layer, kind, head)

    def rollout(self, *, to: int | None = None, from_: int | None = None, kind: str = "AttnRes-W") -> Named:
        """(tokens,): how much each input token flows into output token `to`, or input token `from_` into each output.

        See headscope.explain.rollout.

        Args:
            to: an output token.
            from_: an input token.
            kind: as for `mixing_ratio`.
        """
        return upward.rollout(self, to=to, from_=from_, kind=kind)

    def value_zeroing(self, layer: int, query: int) -> Named:
        """(keys,): how far a token's vector turns in one layer without each other token's value.

        See headscope.explain.value_zeroing.
        """
        return upward.value_zeroing(self, layer, query)

    def findings(self, *, layers: Sequence[int] | None = None) -> tuple[Finding, ...]:
        """The findings of this trace: sentences with their numbers and cells, the most surprising first.

        See headscope.explain.findings.

        Args:
            layers: the numbers of the layers to look at; all by default.
        """
        return upward.findings(self, layers=layers)

    def to_html(
        self,
        path: str | Path,
        *,
        dtype: str = "fp16",
        values: bool | None = None,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        title: str | None = None,
    ) -> Path:
        """Write the page with this trace inside: one HTML file that needs no network. See headscope.view.html."""
        return upward.to_html(self, path, dtype=dtype, values=values, layers=layers, heads=heads, title=title)

    def view(self, *, height: int | None = None, open_browser: bool = True) -> None:
        """Show the page: in the cell of a notebook, else served on this machine until Ctrl-C.

        Args:
            height: of the frame in a notebook, in pixels.
            open_browser: whether a browser is asked to open the served page.
        """
        upward.show(self, height=height, open_browser=open_browser)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return upward.mimebundle(self)


def _misfit(record: LayerRecord, queries: int, keys: int) -> str | None:
    """What doesn't fit in a layer's arrays, in words; None where all do."""
    q, k, v, lse, mask = record.q, record.k, record.v, vars(record)["lse"], record.mask
    if q.ndim != 3 or k.ndim != 3 or q.shape[2] != k.shape[2] or not len(q) or not len(k) or len(q) % len(k):
        return f"q {q.shape} and k {k.shape}: not (heads, queries, d_head) and (kv_heads, keys, d_head)"
    if (q.shape[1], k.shape[1]) != (queries, keys):
        return f"{q.shape[1]} queries and {k.shape[1]} keys for {queries} and {keys} tokens"
    if v is not None and (v.ndim != 3 or v.shape[:2] != k.shape[:2]):
        return f"v {v.shape} beside k {k.shape}"
    if lse is not None and lse.shape != q.shape[:2]:
        return f"lse {lse.shape} beside q {q.shape}"
    if mask.keys is not None and np.shape(mask.keys) != (keys,):
        return f"a mask of {np.shape(mask.keys)} for {keys} keys"
    if mask.bias is not None and np.shape(mask.bias) not in ((1, queries, keys), (len(q), queries, keys)):
        return f"a bias {np.shape(mask.bias)} for {len(q)} heads, {queries} queries and {keys} keys"
    numbers = record.numbers
    if numbers is not None and (len(numbers) != len(q) or len(set(numbers)) != len(q) or min(numbers) < 0):
        return f"{len(q)} heads with the numbers {', '.join(map(str, numbers))}"
    return None
