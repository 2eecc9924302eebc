"""transformers' eager forward pass over the same checkpoint, the reference for `verify`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headscope.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    from headscope._trace import Trace
    from headscope.model import Model


@dataclass(frozen=True)
class Eager:
    """The outputs of transformers' forward pass.

    Attributes:
        attentions: weights of each layer, (heads, S, S).
        hidden_states: (S, d_model) of the embeddings, then of each layer.
    """

    attentions: list[Float[np.ndarray, "heads tokens tokens"]]
    hidden_states: list[Float[np.ndarray, "tokens d_model"]]


def run_eager(model: Model, trace: Trace) -> Eager:
    """Build the checkpoint's base class in transformers, with eager attention in fp32, and run the trace's ids.

    The class is built from config.json and filled with the stored tensors under the class's names, so nothing is
    unpickled and no code of the checkpoint runs. The columns of W_O of silenced heads are set to 0.

    Raises:
        UnsupportedError: transformers has no such class, rejects the config, or requires parameters that the checkpoint
            lacks.
    """
    import torch
    import transformers

    base = getattr(transformers, model.anatomy.base_class, None)
    if base is None:
        raise UnsupportedError(
            f"transformers {transformers.__version__} has no class {model.anatomy.base_class}",
            where="transformers",
            advice="install a newer version of transformers",
        )
    try:
        config = base.config_class(**dict(model.checkpoint.config))
        config._attn_implementation = "eager"
        module = base(config).eval().float()
    except Exception as error:
        raise UnsupportedError(
            f"transformers {transformers.__version__} rejects the config: {' '.join(str(error).split())}",
            where=model.checkpoint.where,
            advice="correct config.json",
        ) from error
    state = {
        row.name: torch.from_numpy(model.encoder.weight(row.role, row.layer).copy())
        for row in model.parameters
        if row.role is not None
    }
    missing = module.load_state_dict(state, strict=False).missing_keys
    buffers = dict(module.named_buffers())
    required = [name for name in missing if not name.startswith("pooler.") and name not in buffers]
    if required:
        raise UnsupportedError(
            f"{model.anatomy.base_class} in transformers requires parameters that the checkpoint lacks: "
            f"{', '.join(required[:5])}",
            where=model.name,
            advice="use a complete checkpoint",
        )
    parameters = dict(module.named_parameters())
    inputs = {"input_ids": torch.tensor([trace.ids])}
    if model.anatomy.known().types:
        inputs["token_type_ids"] = torch.tensor([trace.segments])
    with torch.inference_mode():
        for layer, head in trace.ablated:
            name = model.anatomy.parameter("layer.attention_output.weight", layer).name
            parameters[name][:, model.layers[layer].heads[head].span] = 0
        outputs = module(**inputs, output_attentions=True, output_hidden_states=True)
    return Eager(
        attentions=[attention[0].numpy() for attention in outputs.attentions],
        hidden_states=[state[0].numpy() for state in outputs.hidden_states],
    )
