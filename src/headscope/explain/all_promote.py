"""Every head in words at once: what each adds to some tokens' masked-LM logits at some positions of many texts.

The formula is that of `promotes`, computed beside one forward pass. In the bundled model, at 15 % of the tokens, it
takes about a third of that pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headscope.attention.scores import join_heads
from headscope.explain.promotes import before_the_decoder, normed
from headscope.explain.residual import from_sum
from headscope.runs.engine import NumpyRunner

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from headscope.encoder import Encoder, Input
    from headscope.model import Model

    Places = Sequence[Int[np.ndarray, " _"]]

CELLS = 1 << 23
"""Most numbers of the heads' directions that are held at once."""


class AtPlaces(NamedTuple):
    """One layer at some positions.

    Attributes:
        contexts: (n, heads * d_value), the heads' contexts side by side.
        deviation: (n,), by which the attention's LayerNorm divides.
        output_deviation: (n,), by which the layer's last LayerNorm divides.
    """

    contexts: Float[np.ndarray, "n joined"]
    deviation: Float[np.ndarray, " n"]
    output_deviation: Float[np.ndarray, " n"]


def all_promote(
    model: Model, texts: Sequence[Input], places: Places, tokens: Int[np.ndarray, "heads_or_one k"]
) -> Iterator[tuple[slice, Float[np.ndarray, "heads_total n k"]]]:
    """Yield a few positions at a time, which of all they are, and what each head adds to the tokens' logits at them.

    Args:
        model: with a masked-LM head, and norms that follow the sums: see `with_masked_lm`.
        texts: run side by side; memory grows linearly with their tokens.
        places: the positions in each text, in ascending order.
        tokens: the ids whose logits are wanted, of each head (layer 0's first), or one row for all heads.

    Raises:
        InputError: an id is beyond the vocabulary, or a text is longer than the position table.
        CheckpointError: a parameter is missing.
    """
    layers, last = _at_places(model, texts, places)
    decoder = np.swapaxes(model.tops.decoder()[0][tokens], 1, 2)  # (heads or 1, width, k)
    sizes = model.anatomy.known()
    step = max(1, CELLS // (sizes.layers * sizes.heads * (last.shape[1] + tokens.shape[1])))
    for start in range(0, len(last), step):
        rows = slice(start, min(start + step, len(last)))
        directions = _directions(model.encoder, layers, rows)
        yield rows, before_the_decoder(model, last[rows], directions) @ decoder


def _at_places(
    model: Model, texts: Sequence[Input], places: Places
) -> tuple[list[AtPlaces], Float[np.ndarray, "n d_model"]]:
    """Every layer at these positions, and the last hidden state there, from one pass over the texts."""
    base = NumpyRunner(model).base(texts)
    rows = np.concatenate([span.start + at for span, at in zip(base.rows, places, strict=True)])
    layers = []
    for layer, kept in enumerate(base.layers):
        assert kept.summed is not None
        assert kept.contexts is not None
        written = from_sum(model.encoder, layer, kept.into[rows], kept.summed[rows])
        contexts = join_heads(kept.contexts[:, rows])
        layers.append(AtPlaces(contexts, written.deviation, written.output_deviation))
    return layers, base.last[rows]


def _directions(
    encoder: Encoder, layers: Sequence[AtPlaces], rows: slice
) -> Float[np.ndarray, "heads_total n d_model"]:
    """Every head's output as it reaches the last hidden state along the residual alone, at some of the positions."""
    sizes, n = encoder.anatomy.known(), rows.stop - rows.start
    found = np.empty((0, n, sizes.d_model), dtype=np.float32)
    for layer, at in enumerate(layers):
        W_O = encoder.weight("layer.attention_output.weight", layer)  # (d_model, heads * d_value), as stored
        contexts = at.contexts[rows].reshape(n, sizes.heads, -1).transpose(1, 0, 2)
        found = np.concatenate([found, contexts @ W_O.reshape(len(W_O), sizes.heads, -1).transpose(1, 2, 0)])
        for role, deviation in (("attention", at.deviation), ("output", at.output_deviation)):
            found = normed(
                found, encoder.weight(f"layer.{role}_norm.weight", layer), deviation[rows].astype(np.float32)
            )
    return found
