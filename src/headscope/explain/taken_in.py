"""The shares of a word's new vector that the other words bring, layer by layer and head by head.

With F_ij^h = p_ij^h v_j^h W_O^h through the LayerNorm made linear, F_ii with the residual, and r_i the mixing ratio
AttnResLn-N (Kobayashi et al. 2021; headscope.explain.mixing). Where norms come before the sums, as in ModernBERT,
nothing follows them: there the LayerNorm is left out, and r_i is that of AttnRes-N.

    A_i        = sum of F_ij^h over all heads h and tokens j != i
    share_ij^h = r_i F_ij^h . A_i / |A_i|^2
    kept_i     = 1 - r_i

The shares of a layer and what is kept add up to 1. A share is below 0 where a head writes against all others. With
F_ij^h . A_i = p_ij^h v_j^h . u_i^h and u_i^h = W_O^h A_i, no F is ever built: a layer costs one row of weights and one
reader u of each head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headscope.anatomy.heads import check_index
from headscope.explain.content import content_of
from headscope.explain.mixing import LayerMixing
from headscope.explain.residual import check_whole, layer_inputs, record_of, values_of, weights_of
from headscope.heads import roles_of
from headscope.model import Model
from headscope.results.explained import Followed

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.explain.residual import Rows
    from headscope.traces import Trace

    Readers = tuple[int, Float[np.ndarray, "heads n d_value"], Float[np.ndarray, " n"]]
    """A layer's number, r_i u_i^h / |A_i|^2 of some queries, and what these keep."""
    Shares = tuple[Float[np.ndarray, " n"], Float[np.ndarray, "heads n tokens"], Float[np.ndarray, "heads n tokens"]]


def kind_of(trace: Trace) -> str:
    """The kind whose F_ij add up to a word's new vector: with the LayerNorm where one follows the sum, as in BERT."""
    source = trace.source
    return "AttnRes-N" if isinstance(source, Model) and source.anatomy.is_pre_norm else "AttnResLn-N"


def follow(trace: Trace, token: int) -> Followed:
    """The shares of one token's new vectors that every other brings, head by head (after Kobayashi et al. 2021).

    A large weight is not yet much taken in: the value may be short, or point where the token already does. The shares
    of a layer and what the token keeps of itself add up to 1 (headscope.explain.taken_in). The feed-forward is left
    out, so "keeps" is said of one layer; it isn't how much of the word is left.

    Costs one token's way through the layers, and O(heads * tokens) memory for each layer.

    Args:
        trace: of self-attention, with all layers and heads.
        token: its position.

    Raises:
        InputError: there is no such token.
        TraceError: cross-attention, missing layers or heads, no model, values or hidden states.
        UnsupportedError: a live model whose W_O or LayerNorm is not known, or a convolution beside a layer.
    """
    check_whole(trace)
    token = check_index(token, len(trace), "token", "the trace")
    return followed(trace, token, [*readers_of(trace, np.array([token]))])


def followed(trace: Trace, token: int, held: Sequence[Readers]) -> Followed:
    """Make a token's record from its readers in these layers."""
    parts = [*shares_by(trace, np.array([token]), held)]
    kept = np.array([of_layer for of_layer, _, _ in parts], dtype=np.float32)
    most = max(len(of_layer) for _, _, of_layer in parts)  # layers with fewer heads get rows of 0
    shares, weights = np.zeros((2, len(parts), most, 1, len(trace)), dtype=np.float32)
    for at, (_, of_shares, of_weights) in enumerate(parts):
        shares[at, : len(of_shares)], weights[at, : len(of_weights)] = of_shares, of_weights
    content = content_of(trace, trace.queries, roles_of(trace))
    places = tuple(np.where(content.group < 0, -1, content.place).tolist())
    return Followed(
        token,
        trace.tokens,
        content.words,
        places,
        tuple(layer for layer, _, _ in held),
        kept[:, 0],
        shares[:, :, 0],
        weights[:, :, 0],
    )


def shares_by(trace: Trace, rows: Rows, held: Iterable[Readers]) -> Iterator[Shares]:
    """By layer, of these queries: what they keep, the shares of all tokens through every head, and the weights."""
    for layer, readers, kept in held:
        weights = weights_of(record_of(trace, layer), rows)
        shares = weights * (readers @ values_of(record_of(trace, layer), layer).swapaxes(1, 2))
        shares[:, np.arange(len(rows)), rows] = 0  # what a token sends to itself is in what it keeps
        yield kept, shares, weights


def readers_of(trace: Trace, rows: Rows) -> Iterator[Readers]:
    """By layer, of these queries: its number, r_i u_i^h / |A_i|^2, which make values shares, and what they keep."""
    for layer, x in layer_inputs(trace, rows).items():
        yield layer, *LayerMixing(trace, layer, kind_of(trace), None).readers(rows, x)
