"""Runs started again: what a model's outputs become when some of its heads give something else than they gave.

In a layer with input x, a head's context c_h enters as the sum x + sum_h c_h W_O^h + b_O. Another context r_h therefore
changes that sum by (r_h - c_h) W_O^h, and no product before it has to be repeated. So a run starts at the sum after
attention of the first layer that it changes, and only what comes after is computed anew, of the last layer only the
rows that are read. Several runs of several texts go side by side, up to BATCH_TOKENS.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from headscope.anatomy import check_index
from headscope.attention.scores import join_heads, scores, silent
from headscope.encoder import rows_of
from headscope.encoder.forward import PROJECTIONS, convolved
from headscope.errors import InputError, not_a_number
from headscope.runs.targets import Readings, read
from headscope.runs.texts import BATCH_TOKENS

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.encoder import Input
    from headscope.model import Model
    from headscope.results.effect_records import Target

    Tokens = Float[np.ndarray, "_ d_model"]
    Contexts = Float[np.ndarray, "heads _ d_head"]
    Places = Sequence[Int[np.ndarray, " _"]] | None
    """The positions of some rows in each text, in ascending order; None for all."""

WAYS = ("zero", "mean", "patch", "edge")
WHOLE = ("mean", "edge")
"""Changes that need all rows of a head's context."""


def check_way(way: object, ways: Collection[str], where: str) -> None:
    """Check the name of a way to change a head.

    Raises:
        InputError: it is none of these.
    """
    if not isinstance(way, str) or way not in ways:
        raise InputError(f"a head can't be changed by {way!r:.40}", where=where, advice=f"use {', '.join(ways)}")


@dataclass(frozen=True)
class Edit:
    """Replacement of one head's context.

    Attributes:
        layer: the layer.
        head: the head.
        do: `zero`: 0; `mean`: every token gets the mean of the contexts over its text; `patch`: the head's context in
            another pass; `edge`: one query can't see one key.
        source: for `patch`, the other pass: of as many texts, each with as many tokens.
        edge: for `edge`, the positions of the query and the key, in every text.
    """

    layer: int
    head: int
    do: str = "zero"
    source: Base | None = None
    edge: tuple[int, int] | None = None


Edits = frozenset[Edit]
"""Heads that are changed in the same run, each once."""


@dataclass(frozen=True, eq=False)
class KeptLayer:
    """Starting point of runs in a layer, for all texts one below the other.

    Attributes:
        into: (tokens, d_model), the layer's input.
        summed: (tokens, d_model), the input plus the attention's output, before the norm; None if it wasn't kept.
        contexts: (heads, tokens, d_head); None likewise.
    """

    into: Tokens
    summed: Tokens | None = None
    contexts: Contexts | None = None


@dataclass(frozen=True, eq=False)
class Base:
    """A pass over some texts that other runs differ from: 4 tokens d_model bytes for a layer, or 12 with contexts.

    Attributes:
        rows: each text's rows in `last` and in the layers' arrays.
        layers: what runs start from.
        last: (tokens, d_model), the last hidden states.
        edits: what is changed in this pass, and in all runs that start from it.
    """

    rows: tuple[slice, ...]
    layers: tuple[KeptLayer, ...]
    last: Tokens
    edits: Edits = frozenset()


@dataclass(frozen=True, eq=False)
class Attended:
    """One text's attention in a layer: queries (of some rows), keys, values and contexts."""

    q: Float[np.ndarray, "heads rows d_head"]
    k: Float[np.ndarray, "kv_heads tokens d_head"]
    v: Float[np.ndarray, "kv_heads tokens d_head"]
    contexts: Float[np.ndarray, "heads rows d_head"]


@dataclass(frozen=True)
class NumpyRunner:
    """Runs by headscope's own encoder.

    Attributes:
        model: the model.
    """

    model: Model

    def base(
        self,
        texts: Sequence[Input],
        *,
        edits: Edits = frozenset(),
        contexts: bool = True,
        like: Base | None = None,
    ) -> Base:
        """One pass over all texts side by side, whose layers are kept.

        Args:
            texts: the texts.
            edits: what is changed in this pass, and in all that start from it.
            contexts: True to keep contexts and sums, which saves runs the attention of the layer that they start in.
            like: a pass over the same texts, kept in the same way. The layers before the first that is changed
                otherwise are taken from it, and are the same to the bit.

        Raises:
            InputError: an id is beyond the vocabulary, a text is longer than the position table, or there is no such
                head.
            UnsupportedError: the model is one that headscope doesn't run.
        """
        encoder, sizes = self.model.encoder, self.model.anatomy.computable()
        encoder.checkpoint.fetch()
        for text in texts:
            encoder.check(text)
        rows = tuple(rows_of(texts))
        self._check([edits], rows)
        if like is None:
            x = embedded = encoder.embed(texts)
            layers = []
        else:
            same = min((edit.layer for edit in like.edits ^ edits), default=sizes.layers - 1)
            x, embedded, layers = like.layers[same].into, like.layers[0].into, [*like.layers[:same]]
        for layer in range(len(layers), sizes.layers):
            parts = [attended.contexts for attended in self._attended(x, layer, rows, None, [edits])]
            summed = self._summed(parts, x, layer)
            layers.append(KeptLayer(x, summed.copy(), _stacked(parts)) if contexts else KeptLayer(x))
            x = self._after_attention(summed, layer, embedded, rows)
        return Base(rows, tuple(layers), encoder.after_layers(x), edits)

    def run(self, base: Base, edits: Sequence[Edits], targets: Sequence[Target]) -> Readings:
        """Each text's target, (edits, texts), in a run for each set of edits.

        Args:
            base: the pass that the runs differ from.
            edits: what each run changes, besides what `base` changes.
            targets: the number to read of each text.

        Raises:
            InputError: no such head, the same head twice in a set, a pass to patch from with other texts.
            CheckpointError: a number is not finite.
        """
        shape = len(edits), len(base.rows)
        values, aside = np.empty(shape), np.empty(shape)
        for runs, hidden in self.states(base, edits, [target.places for target in targets]):
            for text, (target, rows) in enumerate(zip(targets, hidden, strict=True)):
                readings = read(self.model, target, rows)
                values[runs, text] = readings.values
                aside[runs, text] = np.nan if readings.aside is None else readings.aside
        if not np.isfinite(values).all():
            raise not_a_number("with a head changed the output is not a number", self.model.checkpoint.where)
        return Readings(values, aside if all(target.aside for target in targets) else None)

    def together(self, base: Base) -> int:
        """Number of runs that go side by side."""
        return max(1, BATCH_TOKENS // len(base.last))

    def states(
        self, base: Base, edits: Sequence[Edits], places: Sequence[Sequence[int] | None] | None = None
    ) -> Iterator[tuple[list[int], list[Float[np.ndarray, "runs _ d_model"]]]]:
        """Yield last hidden states batch by batch: which runs, and for each text the rows at `places` in these runs.

        None stands for all rows of a text, or of all texts.
        """
        if not all(edits):
            raise InputError("a run changes no head", where="edits", advice="read the base itself: base.last")
        self._check([base.edits | changes for changes in edits], base.rows)
        most, places = self.together(base), places or [None] * len(base.rows)
        alone = [np.array(at) for at in places if at is not None]
        order = sorted(range(len(edits)), key=lambda run: -_first(edits[run]))  # the last layers cost least
        for layer, group in groupby(order, key=lambda run: _first(edits[run])):
            runs = list(group)
            changed = frozenset().union(base.edits, *(edits[run] for run in runs))
            start = self._start(base, layer, edges=any(edit.do == "edge" for edit in _in(changed, layer)))
            computed = alone if len(alone) == len(places) and self._computes_rows_alone(layer, changed) else None
            for first in range(0, len(runs), most):
                some = runs[first : first + most]
                x = self._through(base, layer, start, [edits[run] for run in some], computed)
                x = x.reshape(len(some), -1, x.shape[-1])
                if computed is not None:
                    ends = np.cumsum([len(rows) for rows in computed])
                    yield some, np.split(x, ends[:-1], axis=1)
                else:
                    texts = zip((x[:, rows] for rows in base.rows), places, strict=True)
                    yield some, [text if at is None else text[:, list(at)] for text, at in texts]

    def _computes_rows_alone(self, layer: int, changed: Edits) -> bool:
        """Return True if the last layer needs only the rows that are read: nothing in it looks at other ones."""
        final = self.model.anatomy.known().layers - 1
        beside = final == 0 and self.model.anatomy.has("convolution.weight")
        return not beside and not (layer < final and any(edit.do in WHOLE for edit in _in(changed, final)))

    def _start(self, base: Base, layer: int, *, edges: bool) -> tuple[Tokens, Contexts, list[Attended]]:
        """A layer's sums after attention and contexts, kept or computed again; for edges, with queries and keys."""
        kept = base.layers[layer]
        if kept.summed is not None and kept.contexts is not None and not edges:
            return kept.summed, kept.contexts, []
        attended = [*self._attended(kept.into, layer, base.rows, None, [base.edits])]
        parts = [text.contexts for text in attended]
        return self._summed(parts, kept.into, layer), _stacked(parts), attended if edges else []

    def _through(
        self,
        base: Base,
        layer: int,
        start: tuple[Tokens, Contexts, list[Attended]],
        edits: Sequence[Edits],
        places: Places,
    ) -> Tokens:
        """The last hidden states of runs whose first change is in the same layer, one below the other."""
        final, tokens, embedded = len(base.layers) - 1, len(base.last), base.layers[0].into
        spans = [
            slice(at + rows.start, at + rows.stop) for at in range(0, len(edits) * tokens, tokens) for rows in base.rows
        ]
        summed, contexts, attended = start
        W_O, width = self.model.encoder.weight("layer.attention_output.weight", layer).T, contexts.shape[-1]
        part = _rows(base.rows, places if layer == final else None)
        sums = np.repeat(summed[None, part], len(edits), axis=0)  # to which each changed head adds (r_h - c_h) W_O^h
        for run, changes in enumerate(edits):
            for edit in _in(changes, layer):
                before = contexts[edit.head]
                after = [
                    self._context(edit, text, None, before[rows], attended[text] if attended else None)
                    for text, rows in enumerate(base.rows)
                ]
                of_head = slice(edit.head * width, (edit.head + 1) * width)
                sums[run] += (np.concatenate(after) - before)[part] @ W_O[of_head]
        x = self._after_attention(sums.reshape(-1, sums.shape[-1]), layer, embedded, spans)
        for later in range(layer + 1, final + 1):
            wanted = places if later == final else None
            texts = self._attended(x, later, spans, wanted, [base.edits | changes for changes in edits])
            x = self._summed([text.contexts for text in texts], x[_rows(spans, wanted)], later)
            x = self._after_attention(x, later, embedded, spans)
        return self.model.encoder.after_layers(x)

    def _attended(
        self, x: Tokens, layer: int, spans: Sequence[slice], places: Places, edits: Sequence[Edits]
    ) -> Iterator[Attended]:
        """The attention of each text of each run, with the run's edits.

        Args:
            x: the layer's input.
            layer: the layer.
            spans: the rows of each text of the first run, of the second, and so on.
            places: the rows of each text whose queries are wanted.
            edits: of each run, in all layers.
        """
        encoder, sizes = self.model.encoder, self.model.anatomy.known()
        inputs, width = encoder.attention_input(x, layer), sizes.kv_heads * sizes.d_head
        if places is None:
            product = encoder.product(inputs, PROJECTIONS, layer)
            queries, keys, values = product[:, : -2 * width], product[:, -2 * width : -width], product[:, -width:]
        else:
            queries = encoder.product(inputs[_rows(spans, places)], PROJECTIONS[:1], layer)
            product = encoder.product(inputs, PROJECTIONS[1:], layer)
            keys, values = product[:, :width], product[:, width:]
        count, end = len(spans) // len(edits), 0
        for at, span in enumerate(spans):
            run, text = divmod(at, count)
            place = None if places is None else places[text]
            mine = slice(end, end := end + (span.stop - span.start if place is None else len(place)))
            angles = encoder.angles(layer, span.stop - span.start)
            turned = angles if angles is None or place is None else (angles[0][place], angles[1][place])
            q = encoder.split(queries[mine], PROJECTIONS[0], layer, turned)
            k = encoder.split(keys[span], PROJECTIONS[1], layer, angles)
            v = encoder.split(values[span], PROJECTIONS[2], layer, angles)
            attended = Attended(q, k, v, encoder.attend(q, k, v, layer, place)[0])
            for edit in _in(edits[run], layer):
                before = attended.contexts[edit.head]
                attended.contexts[edit.head] = self._context(edit, text, place, before, attended)
            yield attended

    def _context(
        self,
        edit: Edit,
        text: int,
        place: Int[np.ndarray, " rows"] | None,
        context: Float[np.ndarray, "rows d_head"],
        attended: Attended | None,
    ) -> Float[np.ndarray, "rows d_head"]:
        """Return what replaces a head's context in one text, of which only the rows at `place` may be there."""
        if edit.source is not None:
            other = edit.source.layers[edit.layer].contexts
            assert other is not None  # _check looks for it
            whole = other[edit.head, edit.source.rows[text]]
            return whole if place is None else whole[place]
        if edit.edge is None:
            return silent(context, edit.do)
        assert attended is not None
        encoder, (query, key), tokens = self.model.encoder, edit.edge, len(context)
        of_key = edit.head * len(attended.k) // len(attended.q)
        row = scores(
            attended.q[edit.head, None, query : query + 1],
            attended.k[of_key, None],
            scale=encoder.scale,
            mask=encoder.mask(edit.layer),
            terms=encoder.terms(edit.layer, tokens).of_head(edit.head),
            rows=np.array([query]),
            sizes=(tokens, tokens),
        )[0, 0]
        changed = context.copy()
        changed[query] = without_key(row, attended.v[of_key], query, key, f"layer {edit.layer}, head {edit.head}")
        return changed

    def _summed(self, contexts: Sequence[Contexts], x: Tokens, layer: int) -> Tokens:
        """The layer's input plus its attention's output, for texts one below the other."""
        joined = [join_heads(text) for text in contexts]
        summed = self.model.encoder.linear(
            joined[0] if len(joined) == 1 else np.concatenate(joined), "layer.attention_output", layer
        )
        summed += x
        return summed

    def _after_attention(self, summed: Tokens, layer: int, embedded: Tokens, spans: Sequence[slice]) -> Tokens:
        """A layer's output from the sum after attention, which is overwritten; `embedded` is the first run's."""
        out = self.model.encoder.after_attention(summed, layer)
        if layer == 0 and self.model.anatomy.has("convolution.weight"):
            return convolved(self.model.encoder, np.concatenate([embedded] * (len(out) // len(embedded))), out, spans)
        return out

    def _check(self, runs: Sequence[Edits], rows: Sequence[slice]) -> None:
        sizes, edits = self.model.anatomy.known(), frozenset().union(*runs)
        if any(len({(edit.layer, edit.head) for edit in run}) < len(run) for run in runs):
            raise InputError(
                "a head is changed in two ways at once", where="edits", advice="change each head of a run once"
            )
        for edit in edits:
            where = f"layer {edit.layer}, head {edit.head}"
            if min(edit.layer, edit.head, *(edit.edge or ())) < 0:
                raise InputError("an edit counts from 0", where=where, advice="add the number of them all")
            check_index(edit.layer, sizes.layers, "layer", "the model")
            check_index(edit.head, sizes.heads, "head", f"layer {edit.layer}")
            check_way(edit.do, WAYS, where)
            if (edit.do == "patch") != (edit.source is not None) or (edit.do == "edge") != (edit.edge is not None):
                raise InputError(
                    f"{edit.do!r} without what it needs, or with what it doesn't",
                    where=where,
                    advice="pass source= for patch, edge= for edge, and neither for other ways",
                )
            for place in edit.edge or ():
                check_index(place, min(text.stop - text.start for text in rows), "token", "edge")
            of = edit.source
            if of is not None and (of.rows != tuple(rows) or any(layer.contexts is None for layer in of.layers)):
                raise InputError(
                    "the pass to patch from is of other texts, or without contexts",
                    where=where,
                    advice="patch from texts with as many tokens, kept with their contexts",
                )


def base_readings(model: Model, base: Base, targets: Sequence[Target]) -> Readings:
    """Each text's target in the pass itself, (texts,)."""
    texts = [
        read(model, target, target.rows_of(base.last[rows])[None])
        for rows, target in zip(base.rows, targets, strict=True)
    ]
    aside = [readings.aside for readings in texts]
    return Readings(
        np.array([readings.values[0] for readings in texts]),
        None if any(one is None for one in aside) else np.array([one[0] for one in aside if one is not None]),
    )


def _first(edits: Edits) -> int:
    return min(edit.layer for edit in edits)


def _in(edits: Edits, layer: int) -> list[Edit]:
    """The edits of one layer, in the order of the heads, so that sums are rounded alike in every process."""
    return sorted((edit for edit in edits if edit.layer == layer), key=lambda edit: edit.head)


def _rows(spans: Sequence[slice], places: Places) -> Int[np.ndarray, " rows"] | slice:
    """Rows at some positions of each text, where the texts of all runs are one below the other."""
    if places is None:
        return slice(None)
    return np.concatenate([span.start + places[at % len(places)] for at, span in enumerate(spans)])


def _stacked(contexts: Sequence[Contexts]) -> Contexts:
    return contexts[0] if len(contexts) == 1 else np.concatenate(contexts, axis=1)


def without_key(
    scores: Float[np.ndarray, " keys"], values: Float[np.ndarray, "keys d_value"], query: int, key: int, where: str
) -> Float[np.ndarray, " d_value"]:
    """The context of a query from the scores of all keys but one.

    Raises:
        InputError: the key is the only one that the query sees.
    """
    rest = scores.astype(np.float64)
    rest[key] = -np.inf
    if np.isfinite(scores[key]) and not np.isfinite(rest).any():
        raise InputError(
            f"key {key} is the only one that query {query} sees, so there is no context without it",
            where=where,
            advice="knock out an edge of a query that sees several keys",
        )
    rest = np.exp(rest - rest.max())
    return (rest @ values.astype(np.float64) / rest.sum()).astype(np.float32)
