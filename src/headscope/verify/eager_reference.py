"""transformers' eager forward pass over the same checkpoint, the reference for `verify`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headscope.anatomy.sizes import SAVED_CONFIG
from headscope.encoder.distances import STORED
from headscope.errors import UnsupportedError

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float
    from torch import nn

    from headscope.model import Model
    from headscope.traces import Trace


OPTIONAL = ("pooler.", "pooler_", "contact_head.", "encoder.embed_positions.")
"""Modules of the base class that a checkpoint may lack, and that change no hidden state."""


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
    unpickled and no code of the checkpoint runs. The contexts of silenced heads are set to 0.

    Raises:
        UnsupportedError: transformers has no such class, rejects the config, or requires parameters that the checkpoint
            lacks.
    """
    import torch
    import transformers

    from headscope.live.built import check_size, configured, foreign_errors, quiet

    base = getattr(transformers, model.anatomy.base_class, None)
    if base is None:
        raise UnsupportedError(
            f"transformers {transformers.__version__} has no class {model.anatomy.base_class}",
            where="transformers",
            advice="install a newer version of transformers",
        )
    where = model.checkpoint.where
    config = configured(base.config_class, model.checkpoint.config, where=where, tensors=len(model.checkpoint.tensors))
    check_size(base, config, model.checkpoint)
    with quiet(), foreign_errors(where, "correct config.json"):
        config._attn_implementation = "eager"
        module = base(config).eval().float()
    state = {
        name: torch.from_numpy(model.encoder.read(row).copy())
        for name, row in model.anatomy.class_rows(model.parameters)
        if row.role is not None
    }
    for name in model.anatomy.buffers:
        if name.endswith(STORED):  # ESM runs with the file's frequencies
            state[STORED] = torch.from_numpy(np.array(model.checkpoint.read(name), dtype=np.float32))
    with foreign_errors(where, SAVED_CONFIG):
        missing = module.load_state_dict(state, strict=False).missing_keys
    buffers = dict(module.named_buffers())
    required = [name for name in missing if not name.startswith(OPTIONAL) and name not in buffers]
    if required:
        raise UnsupportedError(
            f"{model.anatomy.base_class} in transformers requires parameters that the checkpoint lacks: "
            f"{', '.join(required[:5])}",
            where=model.name,
            advice="use a complete checkpoint",
        )
    inputs = {"input_ids": torch.tensor([trace.ids])}
    if model.anatomy.known().types:
        inputs["token_type_ids"] = torch.tensor([trace.queries.segments])
    with foreign_errors(where, SAVED_CONFIG), torch.inference_mode():
        silence(module, model, trace.ablated)
        outputs = module(**inputs, output_attentions=True, output_hidden_states=True)
    return Eager(
        attentions=[attention[0].numpy() for attention in outputs.attentions],
        hidden_states=[state[0].numpy() for state in outputs.hidden_states],
    )


def silence(module: nn.Module, model: Model, ablated: Collection[tuple[int, int]]) -> None:
    """Set the contexts of these heads to 0 before W_O. Layers that share a module call it in their order."""
    if not ablated:
        return
    users: dict[str, list[int]] = {}
    for layer in range(model.anatomy.known().layers):
        row = model.anatomy.parameter("layer.attention_output.weight", layer)
        ((name, _),) = model.anatomy.class_rows([row])
        users.setdefault(name.removesuffix(".weight"), []).append(layer)
    for name, layers in users.items():
        calls = iter(layers)

        def before(
            _module: nn.Module, inputs: tuple[torch.Tensor], calls: Iterator[int] = calls
        ) -> tuple[torch.Tensor]:
            layer = next(calls)
            contexts = inputs[0].clone()
            for at, head in ablated:
                if at == layer:
                    contexts[..., model.layers[layer].heads[head].span] = 0
            return (contexts,)

        module.get_submodule(name).register_forward_pre_hook(before)
