"""Forward passes in NumPy: from ids to hidden states, with a record of every layer's attention.

    memory.py         memory that begins at a cache line; the room for a text's Q, K and V
    products.py       x W, for few and for many tokens
    copies.py         copies of weights for models that read more than a few texts
    weights.py        parameters by role; x W + b; norms
    embedding.py      from ids to the first layer's input
    rotation.py       rotary positions
    distances.py      what MPNet and DeBERTa add to the scores
    everywhere.py     attention without mask or terms
    nearby.py         attention within a window, in linear time and memory
    convolution.py    DeBERTa v2's convolution beside the first layer
    feed_forward.py   the feed-forward network, plain or gated
    post_norm.py      BERT's layer
    pre_norm.py       the layer of ModernBERT, ESM-2, EuroBERT and MegatronBERT
    forward.py        the forward pass over a batch of texts
    tops.py           heads on top of the base model

A family is a table (headscope.anatomy.families): no file here names one.
"""

from typing import TYPE_CHECKING

from headscope.encoder.embedding import Input
from headscope.encoder.forward import Encoder, Pass, rows_of
from headscope.encoder.tops import TASK_OUTPUTS, Tops

if TYPE_CHECKING:
    from headscope.encoder.forward import Tokens as Tokens

__all__ = ["TASK_OUTPUTS", "Encoder", "Input", "Pass", "Tops", "rows_of"]
