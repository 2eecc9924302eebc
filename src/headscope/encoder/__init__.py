"""Forward passes in NumPy: from ids to hidden states, with a record of every layer's attention.

    products.py       x W, for few and for many tokens; copies of weights for models that read many texts
    role_weights.py   parameters by role; x W + b; norms
    distances.py      rotary positions; what MPNet and DeBERTa add to the scores
    attending.py      attention without mask or terms; within a window, in linear time and memory
    forward.py        the forward pass over a batch of texts: embeddings, where a layer's norms stand, its networks
    task_heads.py     heads on top of the base model, and one vector for a text

Read `forward.py` first. A family is a table (headscope.anatomy.families): no file here names one. Models, runs and
explanations call it.

    Encoder(checkpoint, anatomy).forward([Input(ids, segments)])[0].layers[3].q    # (heads, queries, d_head)
"""

from typing import TYPE_CHECKING

from headscope.encoder.forward import Encoder, Input, Pass, rows_of

if TYPE_CHECKING:
    from headscope.encoder.forward import Tokens as Tokens

__all__ = ["Encoder", "Input", "Pass", "rows_of"]
