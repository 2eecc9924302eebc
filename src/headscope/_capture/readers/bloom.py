"""BLOOM (Le Scao et al. 2022): ALiBi (Press et al. 2022), a number for each head and key; padding is not counted."""

from __future__ import annotations

from typing import Any

from headscope._capture.masks import RawMask
from headscope._capture.readers.reading import Arguments, Reader, Reading, Run, from_cache


def read(module: Any, arguments: Arguments, run: Run) -> Reading:
    """Read a call of BloomAttention."""
    q, k, v = module._reshape(run(module.query_key_value, arguments["hidden_states"]))
    if arguments["layer_past"] is not None:
        k, v = from_cache(arguments["layer_past"], module.layer_idx, False)
    alibi = arguments["alibi"].reshape(len(q), module.num_heads, 1, -1)
    mask = RawMask(mask=arguments["attention_mask"], bias=alibi)
    return Reading(q, k, v, scale=module.inv_norm_factor, mask=mask)


def refusal(module: Any) -> str | None:
    """The reason why a BLOOM attention can't be read."""
    if module.pretraining_tp > 1 and module.slow_but_exact:
        return "slow_but_exact is set: the output projection is computed in slices"
    return None


READER = Reader(read, projection="dense", refusal=refusal, dropouts=("attention_dropout",))
