"""MPNet (Song et al. 2020): T5's relative position bias, the same in every layer, with a scale of 1 / sqrt(d_head)."""

from __future__ import annotations

from typing import Any

import torch

from headscope._capture.masks import RawMask
from headscope._capture.readers.reading import Arguments, Reader, Reading, Run, heads_of


def read(module: Any, arguments: Arguments, run: Run) -> Reading:
    """Read a call of MPNetSelfAttention."""
    d_head = module.attention_head_size
    q, k, v = (heads_of(run(part, arguments["hidden_states"]), d_head) for part in (module.q, module.k, module.v))
    bias = arguments["position_bias"]
    if bias is not None and all(torch.equal(row, bias[0]) for row in bias[1:]):
        bias = bias[:1]  # the model repeats it for every text of the batch
    return Reading(q, k, v, scale=d_head**-0.5, mask=RawMask(mask=arguments["attention_mask"], bias=bias))


READER = Reader(read, projection="o")
