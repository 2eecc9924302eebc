"""Parts of a page that follow a word through the layers: vectors that make shares of V, and two measures beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headscope.errors import InputError, TraceError, UnsupportedError
from headscope.explain.mixing import rollouts_to
from headscope.explain.residual import check_whole
from headscope.explain.taken_in import KIND, followed, readers_of
from headscope.page.runs import CHEAP
from headscope.results.followed import LEAST_SHARE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float

    from headscope.explain.taken_in import Readers
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
        "view.followed": _followed(trace, held),
    }


def _followed(trace: Trace, held: Sequence[Readers]) -> Float[np.ndarray, "tokens eleven"]:
    """The finding of each token in these layers, as `Followed.brought` counts words; NaN where no word brings much.

    The first token of the word that brings most over all layers, its best layer's place, the head's (layers * heads)
    that brings most there; the same two of the word that brings most in another layer, NaN without one. Then of the
    first word the head that looks hardest at it, its weight and its share; and those of the head that brings most.
    """
    found = np.full((len(trace.queries), 11), np.nan)
    for token in range(len(found)):
        one = followed(trace, token, [(number, vectors[:, [token]], kept[[token]]) for number, vectors, kept in held])
        brought = one.brought()
        if not brought or max(word.share for word in brought) < LEAST_SHARE:
            continue
        places, row = np.array(one.places), one.layers.index(brought[0].layer)
        first = brought[0].position
        heads = one.shares.shape[1]
        found[token, :3] = first, row, row * heads + brought[0].head[1]
        others = [word for word in brought if word.layer != brought[0].layer and word.share >= LEAST_SHARE]
        if others:
            other = max(others, key=lambda word: word.share)
            found[token, 3:5] = other.position, one.layers.index(other.layer)
        looks, brings = (part[:, :, places == one.places[first]].sum(-1).ravel() for part in (one.weights, one.shares))
        for at, head in ((5, looks.argmax()), (8, brings.argmax())):
            found[token, at : at + 3] = head, looks[head], brings[head]
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
