"""The trace: the record of one forward pass. It holds Q, K, V and log-sum-exps, never a map of all pairs."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np

from headscope.checkpoint import called
from headscope.errors import InputError, TraceError
from headscope.late import Suggesting
from headscope.results.arrays import Named, NamedMap
from headscope.results.lazy_maps import LazyMap, stacked
from headscope.results.tokens import TokenAxis
from headscope.traces.late_methods import Questions
from headscope.traces.layer_records import Cut, LayerRecord, ModelWeights, Outputs, is_broken, kept_outputs, misfit
from headscope.traces.views import HeadTrace, LayerTrace, by_words, frame, position_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Int


REMAKE = "the file or the capture is incomplete: create the trace again"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Trace(Questions, Suggesting):
    """The attention of one forward pass over one text: Q, K and V of every head, from which everything else follows.

        trace = hs.open().trace("The cat sat on the mat.")
        trace.tokens              # the tokens as text
        trace[3]                  # one layer: LayerTrace
        trace[3, 5].weights       # one head's weights: lazy (queries, keys)
        trace.statistics()        # numbers about every head

    Traces are immutable. They come from `Model.trace`, `hs.trace`, `hs.capture` and `hs.load`.

    Attributes:
        model: name of the model.
        fingerprint: hash of the checkpoint's config and header; empty if there was no checkpoint.
        queries: the tokens along the query axis.
        keys: the tokens along the key axis; the same object as `queries` unless the tokens differ, as in
            cross-attention.
        layers: the record of each layer, in order.
        outputs: the model's outputs by name.
        text: the text; None if the model was called with ids.
        pair: the second text of a pair; None if there was none.
        ablated: the silenced heads, as (layer, head).
        swapped: the heads whose context was replaced by something else than 0, with the way: `mean`, `uniform`,
            `shuffle`, `identity`, `array` or `callable`. Their q and k, hence their scores and weights, are their own.
        source: the model that the trace came from; None if it is not available.
        stack: name of the stack of attention: self, cross, encoder, decoder, vision_model, ….
        unrecorded: descriptions of attention that ran in the same forward pass but could not be recorded; empty
            unless the trace was captured with strict=False.
        cut: the row of the batch, and the positions in it, that the trace holds.
        notes: what was done to the text before the model saw it, in sentences.
        precision: "fp16" if Q, K and V were rounded to half precision by a capture or a file, otherwise "fp32".

    Raises:
        TraceError: the shapes of the layers and the tokens don't match, or the layers are numbered inconsistently.
    """

    model: str
    queries: TokenAxis
    layers: Sequence[LayerRecord]
    outputs: Mapping[str, Named] = field(default_factory=dict)
    keys: TokenAxis = None  # type: ignore[assignment]  # the queries, by default
    fingerprint: str = ""
    text: str | None = None
    pair: str | None = None
    ablated: frozenset[tuple[int, int]] = frozenset()
    swapped: Mapping[tuple[int, int], str] = field(default_factory=dict)
    source: ModelWeights | None = None
    stack: str = "self"
    unrecorded: tuple[str, ...] = ()
    cut: Cut = None  # type: ignore[assignment]  # the whole batch, by default
    notes: tuple[str, ...] = ()
    precision: str = "fp32"

    def __post_init__(self) -> None:
        def set_field(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        set_field("layers", tuple(self.layers))
        set_field("swapped", dict(sorted(self.swapped.items())))
        set_field("outputs", Outputs(self.outputs, self.source, self.prompt))
        if self.keys is None:
            set_field("keys", self.queries)
        if self.cut is None:
            set_field("cut", Cut.none(len(self.queries), len(self.keys)))
        sizes, positions = (len(self.queries), len(self.keys)), (len(self.cut.queries), len(self.cut.keys))
        if sizes != positions:
            raise TraceError(
                f"expected batch positions for {sizes} queries and keys, got {positions} positions",
                where="positions",
                advice=REMAKE,
            )
        for index, record in enumerate(self.layers):
            mismatch = misfit(record, len(self.queries), len(self.keys))
            if mismatch is not None:
                raise TraceError(f"layer {index} holds {mismatch}", where=f"layer {index}", advice=REMAKE)
        if not self.layers or min(self.numbers) < 0 or len(set(self.numbers)) != len(self.layers):
            raise TraceError(
                f"the layers are numbered {', '.join(map(str, self.numbers))}" if self.layers else "there is no layer",
                where="the layers of a trace",
                advice=REMAKE,
            )

    @property
    def changed(self) -> frozenset[tuple[int, int]]:
        """The heads that wrote something else than their weights and values give: silenced, or under another map."""
        return self.ablated | frozenset(self.swapped)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The query tokens, as the vocabulary spells them."""
        return self.queries.tokens

    @property
    def ids(self) -> tuple[int, ...]:
        """The query tokens' ids."""
        return self.queries.ids

    @property
    def segments(self) -> Int[np.ndarray, " queries"]:
        """0 for each token of the first text, 1 for each token of the second."""
        return _index(self.queries.segments)

    @property
    def special(self) -> Bool[np.ndarray, " queries"]:
        """True for each token that the tokenizer added: [CLS], [SEP], …: `hidden[~trace.special]` is without them."""
        return _index(self.queries.special, bool)

    @property
    def words(self) -> tuple[int | None, ...]:
        """Number of the word that each token belongs to; None for special tokens, or if unknown."""
        return self.queries.words

    @property
    def row(self) -> int:
        """The trace's row of the batch; 0 for a single text."""
        return self.cut.row

    @property
    def positions(self) -> Int[np.ndarray, " queries"]:
        """Positions of the queries in the row of the batch, padding included: 0, 1, 2, … without padding before them.

        `attentions[layer][trace.row][:, trace.positions][:, :, trace.key_positions]` is this trace's part of the
        `attentions` that the model returns.
        """
        return _index(self.cut.queries)

    @property
    def key_positions(self) -> Int[np.ndarray, " keys"]:
        """Positions of the keys in the row of the batch, padding included."""
        return _index(self.cut.keys)

    def replaced(self, **changes: Any) -> Trace:
        """Return a copy of the trace with some fields changed; keys that are the queries remain so."""
        if self.keys is self.queries:
            changes.setdefault("keys", None)
        return replace(self, **changes)

    @property
    def prompt(self) -> int:
        """Number of tokens at the beginning that are left out of the text's vector."""
        return self.queries.prompt

    @property
    def left_out(self) -> Int[np.ndarray, " left_out"]:
        """Positions in the batch of the queries that were left out as padding."""
        return np.setdiff1d(np.arange(self.cut.sizes[0]), self.positions)

    @property
    def hidden_states(self) -> tuple[Named, ...]:
        """(S, d_model) of the embeddings and of every layer; empty unless requested with hidden_states=True."""
        names = [f"hidden_states.{index}" for index in range(len(self.layers) + 1)]
        kept = kept_outputs(self.outputs)
        return tuple(kept[name] for name in names if name in kept)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The layers' numbers in the model: 0, 1, 2, … unless only some layers were kept."""
        return tuple(at if record.number is None else record.number for at, record in enumerate(self.layers))

    def head_numbers(self, layer: int) -> tuple[int, ...]:
        """The heads' numbers in a layer: 0, 1, 2, … unless only some heads were kept.

        Args:
            layer: the layer's number in the model.

        Raises:
            InputError: there is no such layer, or it was not kept.
        """
        record = self.layers[position_of(layer, self.numbers, "layer", "the trace")]
        return tuple(range(len(record.q))) if record.numbers is None else record.numbers

    @property
    def heads(self) -> int:
        """Number of query heads in the first layer."""
        return len(self.layers[0].q)

    @property
    def d_head(self) -> int:
        """Width of the query and key vectors in the first layer."""
        return self.layers[0].q.shape[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of Q, K, V and lse of all layers; linear in the number of tokens."""
        return sum(record.nbytes for record in self.layers)

    @cached_property
    def broken(self) -> tuple[tuple[int, int], ...]:
        """(layer, head) of each head whose weights are NaN because the model's numbers are not finite."""
        return tuple(
            (layer, head)
            for layer, record in zip(self.numbers, self.layers, strict=True)
            for head, broken in zip(self.head_numbers(layer), is_broken(record), strict=True)
            if broken
        )

    def __len__(self) -> int:
        """Number of query tokens."""
        return len(self.queries)

    @overload
    def __getitem__(self, index: int) -> LayerTrace: ...
    @overload
    def __getitem__(self, index: tuple[int, int]) -> HeadTrace: ...
    def __getitem__(self, index: int | tuple[int, int]) -> LayerTrace | HeadTrace:
        """One layer, `trace[layer]`, or one head, `trace[layer, head]`, by their numbers in the model.

        Raises:
            InputError: there is no such layer or head, or it was not kept.
        """
        parts = index if isinstance(index, tuple) and len(index) == 2 else (index,)
        try:
            number, *rest = map(operator.index, parts)
        except (TypeError, ValueError):
            raise InputError(
                f"expected a layer or a (layer, head) pair, got {index!r:.60}",
                where="trace[layer, head]",
                advice="index a trace with a layer, or with a layer and a head, both counted from 0",
            ) from None
        at = position_of(number, self.numbers, "layer", "the trace")
        layer = LayerTrace(self, self.numbers[at], self.layers[at])
        return layer[rest[0]] if rest else layer

    _elsewhere: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("attention", "attentions", "attention_weights"), "trace.weights, or trace[layer].weights"),
        **{name: f"model.{name}, which hs.open(…) has" for name in ("attribute", "effects", "predict")},
        "input_ids": "trace.ids",
        "shape": "trace.weights.shape",
        "token_type_ids": "trace.segments",
        **{name: f"trace.outputs[{name!r}]" for name in ("last_hidden_state", "pooler_output", "logits")},
    }

    __iter__ = None
    """Traces can't be iterated: len() counts tokens, indices are layers. Use `trace.layers` or `trace.tokens`."""

    @property
    def weights(self) -> LazyMap:
        """(layers, heads, queries, keys), lazy: weights after the softmax of all kept layers, in order.

        Raises:
            InputError: the layers differ in their number of heads.
        """
        return self._stacked("weights")

    @property
    def scores(self) -> LazyMap:
        """(layers, heads, queries, keys), lazy: scores before the softmax, -inf where masked.

        Raises:
            InputError: the layers differ in their number of heads.
        """
        return self._stacked("scores")

    def by_words(self, *, special: bool = True) -> NamedMap:
        """(heads, words, words): the weights between words, of every head: see `HeadTrace.by_words`."""
        return by_words([head for layer in self.numbers for head in self[layer]], special=special)

    def frame(self, layer: int, head: int, *, words: bool = False, special: bool = True) -> Any:
        """Return a head's weights as a frame of pandas: queries down, keys across, with the tokens as names.

        Args:
            layer: the layer's number.
            head: the head's number.
            words: True for words instead of tokens, as `HeadTrace.by_words` has them.
            special: False to leave out special tokens; rows then sum to less than 1.

        Raises:
            InputError: there is no such layer or head, or it was not kept.
            MissingExtraError: pandas is not installed.
        """
        return frame(self, layer, head, words=words, special=special)

    def _stacked(self, kind: str) -> LazyMap:
        counts = [len(record.q) for record in self.layers]
        if len(set(counts)) > 1:
            raise InputError(
                f"the layers have {min(counts)} to {max(counts)} heads, so their {kind} don't form one array",
                where=f"trace.{kind}",
                advice=f"read them layer by layer: trace[{self.numbers[0]}].{kind}",
            )
        return stacked([getattr(self[number], kind) for number in self.numbers])

    def __repr__(self) -> str:
        ablated = f", {len(self.ablated)} silenced" if self.ablated else ""
        ablated += f", {swapped} under another map" if (swapped := len(self.swapped.keys() - self.ablated)) else ""
        missing = f", unrecorded attention: {'; '.join(self.unrecorded)}" if self.unrecorded else ""
        stack = "" if self.stack == "self" else f" ({self.stack})"
        tokens = f"{len(self)} tokens" if self.keys is self.queries else f"{len(self)} queries, {len(self.keys)} keys"
        cut = f" ({len(self.left_out)} of {self.cut.sizes[0]} left out as padding)" if self.left_out.size else ""
        heads = sorted({(len(record.q), record.q.shape[-1]) for record in self.layers})
        each = f"{self.heads} heads of {self.d_head}" if len(heads) == 1 else f"{heads[0][0]} to {heads[-1][0]} heads"
        kept = f"{self.nbytes / 1e6:.1f} MB of Q, K, V and log-sum-exps"
        return (
            f"trace of {called(self.model)}{stack}: {tokens}{cut}, "
            f"{len(self.layers)} layers x {each}{ablated}{missing}, {kept}"
            + "".join(f"; {note}" for note in self.notes)
        )


def _index(values: Sequence[int], kind: type = int) -> np.ndarray:
    """The values as an array, which indexes one axis of another; a tuple would index as many axes as it has values."""
    return np.array(values, dtype=kind)
