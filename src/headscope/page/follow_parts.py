"""Parts of a page that follow a word through the layers: vectors that make shares of V, and two measures beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError, TraceError, UnsupportedError
from headscope.explain.content import content_of
from headscope.explain.mixing import rollouts_to
from headscope.explain.residual import check_whole, record_of, values_of, weights_of
from headscope.explain.taken_in import KIND, readers_of
from headscope.heads import roles_of
from headscope.page.runs import CHEAP
from headscope.results.followed import LEAST_SHARE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float

    from headscope.model import Model
    from headscope.traces import Trace


def readers(trace: Trace, narrow: Trace, dtype: type[np.floating[Any]]) -> dict[str, np.ndarray]:
    """Vectors that make shares of V, as large as V, and what each token keeps (headscope.explain.taken_in).

    Nothing where `trace.follow` raises an error, or a layer's heads are not all there: shares would not add up to 1.
    """
    try:
        check_whole(trace)
        if narrow.heads < trace.heads:
            return {}
        held = [part for part in readers_of(trace, np.arange(len(trace.queries))) if part[0] in narrow.numbers]
    except (TraceError, UnsupportedError):
        return {}
    return {
        "view.readers": np.concatenate([vectors.astype(dtype) for _, vectors, _ in held]),
        "view.kept": np.array([kept for _, _, kept in held], dtype=np.float32),
        "view.followed": _followed(trace, [number for number, _, _ in held], [vectors for _, vectors, _ in held]),
    }


def _followed(
    trace: Trace, numbers: Sequence[int], held: Sequence[Float[np.ndarray, "heads tokens d_value"]]
) -> Float[np.ndarray, "tokens eleven"]:
    """The finding of each token in these layers, as `Followed.brought` counts words; NaN where no word brings much.

    The first token of the word that brings most over all layers, its best layer's place, the head's (layers * heads)
    that brings most there; the same two of the word that brings most in another layer, NaN without one. Then of the
    first word the head that looks hardest at it, its weight and its share; and those of the head that brings most.
    """
    content = content_of(trace, trace.queries, roles_of(trace))
    places = np.where(content.group < 0, -1, content.place)
    words, firsts = np.unique(places, return_index=True)
    member = (places[:, None] == words).astype(np.float64)  # (tokens, words)
    values = [values_of(record_of(trace, number), number) for number in numbers]
    found = np.full((len(places), 11), np.nan)
    for token, own in enumerate(places):
        rows = np.array([token])
        weights = np.array([weights_of(record_of(trace, number), rows)[:, 0] for number in numbers])
        shares = weights * np.array([(v @ u[:, token, :, None])[..., 0] for v, u in zip(values, held, strict=True)])
        others = (words != -1) & (words != own)
        shares[:, :, token] = 0
        brings, looks = (part @ member[:, others] for part in (shares, weights))  # (layers, heads, words)
        by_layer, which = brings.sum(1), firsts[others]
        if not len(which) or by_layer.max() < LEAST_SHARE:
            continue
        first = by_layer.sum(0).argmax()
        layer = by_layer[:, first].argmax()
        heads = brings.shape[1]
        found[token, :3] = which[first], layer, layer * heads + brings[layer, :, first].argmax()
        best, peaks = by_layer.argmax(0), by_layer.max(0)
        peaks[best == layer] = 0
        if peaks.max() >= LEAST_SHARE:
            found[token, 3:5] = which[peaks.argmax()], best[peaks.argmax()]
        for at, table in ((5, looks), (8, brings)):
            head = table[:, :, first].argmax()
            found[token, at : at + 3] = head, looks[:, :, first].flat[head], brings[:, :, first].flat[head]
    return found.astype(np.float32)


def beside(trace: Trace, token: int) -> Float[np.ndarray, "two layers tokens"]:
    """Two more measures of what a token takes in from each other, after each layer.

    The first is 1 - the cosine of its vector with what it is where the other token is masked, one pass for each: it
    counts whatever the other does on the way, and is no sum. NaN at the token itself and at special tokens. The second
    is the rollout of AttnResLn-N up to the layer.

    Raises:
        InputError: the trace has no model that headscope runs, or its tokenizer has no mask token.
        TraceError, UnsupportedError: as `trace.rollout`.
    """
    model = _maskable(trace)
    if model is None:
        raise InputError("masking needs the model, and a mask token", where="follow", advice="look at the shares alone")
    turns = np.full((len(trace.layers), len(trace.queries)), np.nan)
    before = _vectors(model, trace, token, None)
    for at, special in enumerate(trace.special):
        if at != token and not special:
            after = _vectors(model, trace, token, at)
            lengths = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
            turns[:, at] = 1 - (before * after).sum(-1) / lengths
    return np.stack([turns, rollouts_to(trace, token, KIND)]).astype(np.float32)


def with_masks(trace: Trace, include: bool | None, most: float = CHEAP) -> bool:
    """Return True if a page has what is `beside`: if it can be had, and was asked for or costs no more than this."""
    model = _maskable(trace)
    if model is None or include is not None:
        return model is not None and bool(include)
    encoder = sum(row.count for row in model.parameters if row.layer is not None)
    return model.anatomy.dimensions is not None and 2.0 * encoder * len(trace.queries) ** 2 <= most


def _maskable(trace: Trace) -> Model | None:
    """The trace's model, if it can run its text again with a token masked."""
    from headscope.model import Model

    model = trace.source
    return model if isinstance(model, Model) and not trace.changed and model.tokenizer.mask_id is not None else None


def _vectors(model: Model, trace: Trace, token: int, masked: int | None) -> Float[np.ndarray, "layers d_model"]:
    """A token's vectors after each layer, with another token masked."""
    ids = [model.tokenizer.mask_id if at == masked else one for at, one in enumerate(trace.ids)]
    run = model.trace(ids=ids, segments=list(trace.segments), hidden_states=True)  # type: ignore[arg-type]
    layers = range(1, len(trace.layers) + 1)
    return np.stack([run.outputs[f"hidden_states.{layer}"].array[token] for layer in layers]).astype(np.float64)
