"""Layers and heads of a trace: q, k and v, and the scores, weights and contexts that follow from them.

Also weights with a name for each query and key: between tokens, or between words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from headscope.anatomy.heads import check_index
from headscope.attention.patterns import GIVEN, OneHead, context_under
from headscope.attention.scores import Mask, attend, scores, weights
from headscope.attention.terms import Terms
from headscope.errors import InputError, TraceError
from headscope.late import Suggesting, late
from headscope.results.arrays import NamedMap, full
from headscope.results.lazy_maps import LazyMap, stacked
from headscope.results.tokens import TokenAxis, whole_words

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from headscope.results.explained import Promotion
    from headscope.results.lazy_maps import Index
    from headscope.results.score_parts import Why
    from headscope.traces.layer_records import LayerRecord, ModelWeights
    from headscope.traces.record import Trace


class _View(Suggesting):
    """One layer's record, as `trace[layer]` and `trace[layer, head]` have it."""

    _elsewhere: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("attention", "attentions", "attn"), "weights"),
        **dict.fromkeys(("frame", "to_pandas"), "trace.frame(layer, head)"),
        **{name: f"trace.{name}" for name in ("ids", "text", "tokens")},
        **{f"W_{part}": f"model.layers[layer].heads[head].W_{part}" for part in "QKVO"},
        "plot": "trace.plot(layer, head)",
        "shape": "weights.shape",
        "statistics": "trace.statistics().of((layer, head))",
        "view": "trace.view()",
    }

    def __init__(self, trace: Trace, layer: int, record: LayerRecord) -> None:
        self.trace = trace
        self.layer = layer
        self._record = record

    @property
    def scale(self) -> float:
        """Factor of q . k: 1 / sqrt(d_head), unless the model uses another scale or has already scaled q."""
        return self._record.scale

    @late("headscope.screens.html_tables:html_screen")
    def _repr_html_(self) -> str | None:
        """The weights as a notebook shows them."""


class LayerTrace(_View):
    """One layer of a trace: `trace[3]`.

        layer = trace[3]
        layer[5].weights          # head 5, as in trace[3, 5]
        layer.weights.shape       # (heads, queries, keys)
        for head in layer: …      # its heads in order

    Scores, weights and contexts are computed on demand from q, k, v and lse. Heads are indexed by their number in the
    model. The first axis of the arrays has the kept heads in order; if not all were kept, `numbers` lists them.

    Attributes:
        trace: the trace that it is of.
        layer: the layer's number in the model.
        numbers: the numbers of its heads.
    """

    def __init__(self, trace: Trace, layer: int, record: LayerRecord) -> None:
        super().__init__(trace, layer, record)
        self.numbers = trace.head_numbers(layer)

    @property
    def q(self) -> Float[np.ndarray, "heads queries d_head"]:
        """(heads, queries, d_head): the query vectors."""
        return full(self._record.q)

    @property
    def k(self) -> Float[np.ndarray, "kv_heads keys d_head"]:
        """(kv_heads, keys, d_head): the key vectors; under grouped-query attention, several heads share a key head."""
        return full(self._record.k)

    @property
    def v(self) -> Float[np.ndarray, "kv_heads keys d_value"]:
        """(kv_heads, keys, d_value): the value vectors.

        Raises:
            TraceError: the trace has no values.
        """
        return full(kept_values(self._record, f"layer {self.layer}"))

    @property
    def lse(self) -> Float[np.ndarray, "heads queries"]:
        """(heads, queries): log-sum-exp of each query's scores; -inf for a query that sees no key."""
        return self._record.lse

    @property
    def mask(self) -> Mask:
        """The rule for which keys a query may look at."""
        return self._record.mask

    @property
    def terms(self) -> Terms:
        """Terms that the model adds to scale * q . k: see headscope.attention.terms."""
        return self._record.terms

    @property
    def stage(self) -> str:
        """State of q and k: projected, scaled or rotated."""
        return self._record.stage

    @property
    def name(self) -> str:
        """The attention module's name in a live model; empty if the trace is not of a live model."""
        return self._record.name

    @property
    def scores(self) -> LazyMap:
        """(heads, queries, keys), lazy: scores before the softmax, -inf where masked."""
        return stacked([head.scores for head in self])

    @property
    def weights(self) -> LazyMap:
        """(heads, queries, keys), lazy: weights after the softmax. Only the indexed tile is computed."""
        return stacked([head.weights for head in self])

    @property
    def context(self) -> Float[np.ndarray, "heads queries d_value"]:
        """(heads, queries, d_value): weights @ V, computed in blocks of queries.

        Raises:
            TraceError: the trace has no values.
        """
        return attend(self.q, self.k, self.v, scale=self.scale, mask=self.mask, terms=self.terms)[0]

    @property
    def output(self) -> Float[np.ndarray, "queries d_model"]:
        """(queries, d_model): the sum of its heads' outputs, context @ W_O, without the bias b_O.

        Raises:
            TraceError: the trace has no values, or no model to take W_O from.
            UnsupportedError: W_O of a live model can't be determined.
        """
        return np.sum([head.output for head in self], axis=0)

    def by_words(self, *, special: bool = True) -> NamedMap:
        """(heads, words, words): the weights between words, of every head: see `HeadTrace.by_words`."""
        return by_words([*self], special=special)

    @late("headscope.explain.promotes:layer_promotes")
    def promotes(self, query: int, *, top: int = 10, part: str = "feed_forward") -> Promotion:
        """The tokens whose masked-LM logits a part of the layer directly raises and lowers most.

        See headscope.explain.promotes.

        Args:
            query: position of the token at which it writes.
            top: number of tokens on each side.
            part: "feed_forward", or "attention", all heads and b_O together.

        Returns:
            The promoted and suppressed tokens with their logits.
        """

    def __len__(self) -> int:
        """Number of heads."""
        return len(self.numbers)

    def __getitem__(self, head: int) -> HeadTrace:
        """One head, by its number.

        Raises:
            InputError: there is no such head, or it was not kept.
        """
        at = position_of(head, self.numbers, "head", f"layer {self.layer}")
        return HeadTrace(self.trace, self.layer, self.numbers[at], self._record, at)

    def __iter__(self) -> Iterator[HeadTrace]:
        return (self[head] for head in self.numbers)

    def __repr__(self) -> str:
        heads, queries, d_head = self._record.q.shape
        return (
            f"layer {self.layer} (counted from 0): {heads} heads of {d_head}, {queries} queries, "
            f"{self._record.k.shape[1]} keys, scale {self.scale:.6g}"
        )


class HeadTrace(_View):
    """One head of a trace: `trace[layer, head]`.

        head = trace[0, 3]
        head.weights[2]           # the weights of query 2, (keys,)
        head.context              # (queries, d_value)

    Scores, weights and contexts are computed on demand from q, k, v and lse.

    Attributes:
        trace: the trace that it is of.
        layer: the layer's number in the model.
        head: the head's number in the layer.
    """

    def __init__(self, trace: Trace, layer: int, head: int, record: LayerRecord, at: int) -> None:
        super().__init__(trace, layer, record)
        self._at = at
        self._key_head = at * len(record.k) // len(record.q)
        self.head = head

    @property
    def q(self) -> Float[np.ndarray, "queries d_head"]:
        """(queries, d_head): the query vector of each token."""
        return full(self._record.q[self._at])

    @property
    def k(self) -> Float[np.ndarray, "keys d_head"]:
        """(keys, d_head): the key vector of each token that can be attended to."""
        return full(self._record.k[self._key_head])

    @property
    def v(self) -> Float[np.ndarray, "keys d_value"]:
        """(keys, d_value): the value vector of each of these tokens.

        Raises:
            TraceError: the trace has no values.
        """
        return full(kept_values(self._record, f"layer {self.layer}, head {self.head}")[self._key_head])

    @property
    def lse(self) -> Float[np.ndarray, " queries"]:
        """(queries,): log-sum-exp of each query's scores; -inf for a query that sees no key."""
        return self._record.lse[self._at]

    @property
    def silenced(self) -> bool:
        """True if this head was silenced in the trace's forward pass."""
        return (self.layer, self.head) in self.trace.ablated

    @property
    def swapped(self) -> str | None:
        """The way in which this head's context was replaced, as in `trace.swapped`; None if it was not."""
        return self.trace.swapped.get((self.layer, self.head))

    @property
    def scores(self) -> LazyMap:
        """(queries, keys), lazy: scores before the softmax, -inf where masked. Only the indexed tile is computed."""
        return self._map("scores", False)

    @property
    def weights(self) -> LazyMap:
        """(queries, keys), lazy: weights after the softmax. Only the indexed tile is computed."""
        return self._map("weights", True)

    @property
    def context(self) -> Float[np.ndarray, "queries d_value"]:
        """(queries, d_value): weights @ V, computed in blocks of queries; for a changed head, as if it weren't.

        Raises:
            TraceError: the trace has no values.
        """
        mask, terms = self._record.mask.of_head(self._at), self._record.terms.of_head(self._at)
        context, _ = attend(self.q[None], self.k[None], self.v[None], scale=self.scale, mask=mask, terms=terms)
        return context[0]

    @property
    def output(self) -> Float[np.ndarray, "queries d_model"]:
        """(queries, d_model): context @ W_O, the head's contribution to the residual stream; 0 if it was silenced.

        Of a head under another map, the context is that map @ V.

        Raises:
            TraceError: the trace has no values, or no model to take W_O from, as when read from a file; or the head
                attended with a map that the trace doesn't have.
            UnsupportedError: W_O of a live model can't be determined.
        """
        source = _source_of(self.trace, f"layer {self.layer}, head {self.head}")
        W_O = np.asarray(source.W_O(self.layer, self.head), dtype=np.float32)
        if self.silenced and self.swapped is None:
            return np.zeros((len(self.q), W_O.shape[1]), dtype=np.float32)
        context = self.written
        if context is None:
            raise TraceError(
                f"head {self.layer}.{self.head} attended with another map ({self.swapped}), which the trace lacks",
                where="trace.swapped",
                advice="multiply the map by the values: cells @ trace[layer, head].v @ model.W_O(layer, head)",
            )
        return context @ W_O

    @property
    def written(self) -> Float[np.ndarray, "queries d_value"] | None:
        """(queries, d_value): the input of W_O: the context, 0 if it was silenced, or map @ V under another map.

        None if the trace doesn't have that map: it was an array or a callable's, or queries are other tokens than keys.
        """
        way = self.swapped
        if way is None:
            return np.zeros_like(self.context) if self.silenced else self.context
        if way in GIVEN or (self.trace.keys is not self.trace.queries and way != "uniform"):
            return None
        mask, terms = self._record.mask.of_head(self._at), self._record.terms.of_head(self._at)
        if way == "mean":
            counted = slice(None) if mask.keys is None else np.asarray(mask.keys)
            return np.broadcast_to(self.context[counted].mean(0), self.context.shape)
        places, where = np.arange(len(self.q)), (self.layer, self.head)
        return context_under(way, OneHead(self.q[None], self.k[None], self.scale, mask, terms, places, *where), self.v)

    def by_words(self, *, special: bool = True) -> NamedMap:
        """(words, words): the weights between words: the sum over the tokens of a key, the mean over those of a query.

        Clark et al. 2019, section 4.1. The words have their names: `by_words().to_pandas()`.

        Args:
            special: False to leave out special tokens, which are words of their own; rows then sum to less than 1.
        """
        return by_words([self], special=special, single=True)

    @late("headscope.explain.promotes:head_promotes")
    def promotes(self, query: int, *, top: int = 10, key: int | None = None) -> Promotion:
        """The tokens whose masked-LM logits the head's output directly raises and lowers most.

        See headscope.explain.promotes.

        Args:
            query: position of the token at which the head writes.
            top: number of tokens on each side.
            key: position of a token; if given, what the OV matrix alone writes with all its weight on it, v_key W_O.

        Returns:
            The promoted and suppressed tokens with their logits.
        """

    @late("headscope.explain.why:why")
    def why(self, query: int, key: int, *, check: bool = True) -> Why:
        """Take the head's weight of a key apart: its score by pairs of input tokens. See headscope.explain.why.

        Args:
            query: position of the query.
            key: position of the key.
            check: also mask the tokens of the strongest pair for real, and keep what the weight's log odds lose.

        Returns:
            The score less the mean of the other keys, taken apart.
        """

    def _map(self, kind: str, normalised: bool) -> LazyMap:
        sizes = (len(self.q), len(self.k))
        mask, terms = self._record.mask.of_head(self._at), self._record.terms.of_head(self._at)

        def tile(rows: Index, columns: Index) -> Float[np.ndarray, "n m"]:
            raw = scores(
                self.q[rows][None],
                self.k[columns][None],
                scale=self.scale,
                mask=mask,
                terms=terms,
                rows=rows,
                columns=columns,
                sizes=sizes,
            )
            return (weights(raw, self.lse[rows][None]) if normalised else raw)[0]

        return LazyMap(kind, sizes, tile)

    def __repr__(self) -> str:
        silenced = f", replaced: {self.swapped}" if self.swapped else ", silenced" if self.silenced else ""
        return (
            f"layer {self.layer}, head {self.head} (counted from 0){silenced}: "
            f"{len(self.q)} queries, {len(self.k)} keys, d_head {self.q.shape[-1]}, scale {self.scale:.6g}"
        )


def kept_values(record: LayerRecord, where: str) -> Float[np.ndarray, "kv_heads keys d_value"]:
    """A layer's values.

    Raises:
        TraceError: the trace has no values.
    """
    if record.v is None:
        raise TraceError("the values were not kept", where=where, advice="create the trace again with values=True")
    return record.v


def position_of(index: int, numbers: tuple[int, ...], noun: str, place: str) -> int:
    """Position of the layer or head with this number among those that were kept.

    Raises:
        InputError: there is no such layer or head, or it was not kept.
    """
    if numbers == tuple(range(len(numbers))) or index < 0:
        return check_index(index, len(numbers), noun, place)
    if index in numbers:
        return numbers.index(index)
    raise InputError(
        f"{noun} {index} was not kept: {place} has {noun}s {', '.join(map(str, numbers))}",
        where=f"{noun} {index}",
        advice=f"capture again with {noun}s=[…, {index}]",
    )


def _source_of(trace: Trace, where: str) -> ModelWeights:
    """The model that a trace came from.

    Raises:
        TraceError: it has none.
    """
    if trace.source is None:
        raise TraceError(
            "this needs W_O, which is in the model and not in the trace",
            where=where,
            advice="read the trace with hs.load(file, model=hs.open(…))",
        )
    return trace.source


def layer_W_O(trace: Trace, layer: int) -> Float[np.ndarray, "heads d_value d_model"]:
    """W_O of each head in the trace, (heads, d_value, d_model); 0 for silenced heads, which write nothing.

    Raises:
        TraceError: the trace has no model, or heads of the layer wrote something else than weights @ V.
        UnsupportedError: it isn't known where this live model keeps W_O.
    """
    refuse_swapped(trace, layer)
    source, heads = _source_of(trace, f"layer {layer}"), trace.head_numbers(layer)
    weights = {head: np.asarray(source.W_O(layer, head), dtype=np.float32) for head in heads}
    silenced = {head for head in heads if (layer, head) in trace.ablated}
    return np.stack([np.zeros_like(weights[head]) if head in silenced else weights[head] for head in heads])


def refuse_swapped(trace: Trace, layer: int | None = None) -> None:
    """Check that heads wrote what their own weights give, or nothing.

    Args:
        trace: the trace.
        layer: number of the layer to check; all by default.

    Raises:
        TraceError: the context of a head was replaced; the message names it.
    """
    for (at, head), way in trace.swapped.items():
        if layer in (None, at):
            raise TraceError(
                f"head {at}.{head} wrote something else ({way}) than its weights and values give",
                where="trace.swapped",
                advice="trace the text again without ablate, or look at weights and scores, which are the head's own",
            )


def by_words(heads: Sequence[HeadTrace], *, special: bool = True, single: bool = False) -> NamedMap:
    """The weights between words of some heads of a trace.

    Between words, the weight is the sum over the tokens that are seen and the mean over those that look, so that each
    row still sums to 1 (Clark, Khandelwal, Levy and Manning 2019, “What Does BERT Look At?”, section 4.1).

    Args:
        heads: the heads.
        special: True to keep special tokens, each as a word of its own.
        single: True for a map without an axis for the heads.
    """
    trace = heads[0].trace
    (rows, sizes, kept, names), (columns, _, seen, key_names) = (
        _words(axis, trace, special) for axis in (trace.queries, trace.keys)
    )
    found = np.zeros((len(heads), len(sizes), columns[-1] + 1))
    starts = np.flatnonzero(np.diff(columns, prepend=-1))
    for at, head in enumerate(heads):
        for (span, _), cells in head.weights.blocks():
            np.add.at(found[at], rows[span], np.add.reduceat(cells.astype(np.float64), starts, axis=1))
    found = (found / sizes[:, None])[:, kept][:, :, seen]
    numbers = tuple((head.layer, head.head) for head in heads)
    return NamedMap.of(found[0] if single else found, names, key_names, () if single else numbers)


def _words(
    axis: TokenAxis, trace: Trace, special: bool
) -> tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, " words"], Bool[np.ndarray, " words"], tuple[str, ...]]:
    """Each token's word, how many tokens each word has, whether it is kept, and the names of those that are."""
    own = axis is trace.queries  # the trace's texts are those of its queries
    numbers, names = whole_words(axis, trace.text if own else None, trace.pair if own else None)
    places = np.array(numbers)
    kept = np.ones(len(names), dtype=bool)
    if not special:
        kept[places[np.array(axis.special, dtype=bool)]] = False
    return places, np.bincount(places), kept, tuple(np.array(names, dtype=object)[kept])


def frame(trace: Trace, layer: int, head: int, *, words: bool = False, special: bool = True) -> Any:
    """A head's weights as a frame of pandas: see `Trace.frame`."""
    one = trace[layer, head]
    if words:
        return one.by_words(special=special).to_pandas()
    rows, columns = (
        np.flatnonzero(~np.array(axis.special, dtype=bool) | special) for axis in (trace.queries, trace.keys)
    )
    queries, keys = (
        [axis.tokens[at] for at in places] for axis, places in ((trace.queries, rows), (trace.keys, columns))
    )
    return NamedMap.of(one.weights[rows][:, columns], queries, keys, ()).to_pandas()
