"""A live model as a side of a parity comparison: any dtype and device, compiled or not. Needs torch: imported late."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from headscope.encoder.tops import sentence_embedding
from headscope.errors import InputError, UnsupportedError
from headscope.explain.residual import weights_of
from headscope.live.captured import capture
from headscope.live.evaluating import device_of, undisturbed
from headscope.live.source import CapturedModel
from headscope.results.explained import Pooling
from headscope.runs.edits import Base, KeptLayer
from headscope.verify.sides import Reading, Shape, encoded_by, predictions

if TYPE_CHECKING:
    from jaxtyping import Float

    from headscope.checkpoint.tokenizer import Encoded
    from headscope.traces import Trace

    States = list[Float[np.ndarray, "tokens d_model"]]


class TorchSide:
    """A live transformers model, or a SentenceTransformer around one, as it would run: its own kernels and precision.

    Args:
        model: the model.
        tokenizer: a transformers tokenizer, or None to read the other side's ids.

    Raises:
        InputError: it is not a model.
        UnsupportedError: it gives no hidden states, or a SentenceTransformer does more than pool and normalise.
    """

    def __init__(self, model: nn.Module, tokenizer: Any = None) -> None:
        inner, self.pooling, own = _inside(model)
        self.name = type(getattr(model, "_orig_mod", model)).__name__
        self.inner, self._tokenizer = inner, own if tokenizer is None else tokenizer
        config = getattr(inner, "config", None)
        names = ("num_hidden_layers", "num_attention_heads", "hidden_size")
        layers, heads, width = (getattr(config, name, None) for name in names)
        if not all(isinstance(size, int) for size in (layers, heads, width)):
            raise UnsupportedError(
                f"{self.name} has no transformers config with layers, heads and hidden_size",
                where="parity",
                advice="pass the transformers model inside it",
            )
        self.shape = Shape(int(layers or 0), int(heads or 0), int(width or 0), getattr(config, "vocab_size", None))
        dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
        self.notes: tuple[str, ...] = () if dtype == torch.float32 else (f"{self.name} computes in {dtype}",)
        self._projections: list[str | None] | None = None

    def encode(self, text: str, max_length: int | None) -> Encoded | None:
        """The text's tokens, by the model's own tokenizer; None without one."""
        return None if self._tokenizer is None else encoded_by(self._tokenizer, text, max_length, self.pooling)

    def read(self, text: Encoded, pooling: Pooling) -> Reading:
        """Run the text once; the first text twice, to find W_O's modules."""
        if self._projections is None:
            trace, _, _ = self._run(text)
            self._projections = [_projection(trace, layer) for layer in trace.numbers]
        trace, written, logits = self._run(text)
        states = _states(trace, self.shape, self.name)
        layers = [
            KeptLayer(into, None if attention is None else into + attention)
            for into, attention in zip(states, written, strict=False)
        ]
        base = Base((slice(0, len(text)),), tuple(layers), states[-1])

        def weights(layer: int) -> Float[np.ndarray, "heads queries keys"]:
            return weights_of(trace.layers[layer], np.arange(len(text)))

        predicted = np.zeros(0, int) if logits is None else predictions(logits)
        return Reading(base, weights, sentence_embedding(states[-1], pooling, text.prompt), predicted)

    def _run(self, text: Encoded) -> tuple[Trace, States | list[None], np.ndarray | None]:
        """The trace with its hidden states, what attention writes in each layer, and the logits."""
        model = self.inner
        takes = inspect.signature(getattr(model, "_orig_mod", model).forward).parameters
        device = device_of(model)
        ids = torch.tensor([text.ids], device=device)
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if "token_type_ids" in takes and any(text.segments):
            inputs["token_type_ids"] = torch.tensor([text.segments], device=device)
        with undisturbed(model), self._listening() as written, capture(model) as captured:
            outputs = model(**inputs, output_hidden_states=True)
        logits = outputs.get("logits")
        return captured.trace, written, None if logits is None else logits[0].float().cpu().numpy()

    @contextmanager
    def _listening(self) -> Iterator[list[Any]]:
        """Collect the outputs of W_O's modules, layer by layer; None where a layer's module isn't known."""
        paths = self._projections or []
        written: list[Any] = [None] * self.shape.layers
        layers: dict[str, list[int]] = {}
        for layer, path in enumerate(paths):
            if path is not None:
                layers.setdefault(path, []).append(layer)
        model, hooks = getattr(self.inner, "_orig_mod", self.inner), []
        try:
            for path, users in layers.items():
                order = iter(users)

                def keep(_module: nn.Module, _inputs: Any, output: Any, order: Iterator[int] = order) -> None:
                    written[next(order)] = output[0].detach().float().cpu().numpy()

                hooks.append(model.get_submodule(path).register_forward_hook(keep))
            yield written
        finally:
            for hook in hooks:
                hook.remove()


def _inside(model: nn.Module) -> tuple[nn.Module, Pooling | None, Any]:
    """The transformers model, its pooling and its tokenizer: those of a SentenceTransformer, or the model alone."""
    if not isinstance(model, nn.Module):
        raise InputError(
            f"expected a checkpoint's name or a model, got {type(model).__name__}",
            where="parity",
            advice="pass a name, what hs.open returned, or a live model",
        )
    if type(model).__name__ != "SentenceTransformer":
        return model, None, None
    kinds = [type(module).__name__ for module in model.children()]
    first = next(model.children())
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise UnsupportedError(
            f"a SentenceTransformer of {', '.join(kinds)}; headscope computes Transformer, Pooling and Normalize",
            where="parity",
            advice="save its vectors with numpy.save and pass that file",
        )
    settings = list(model.children())[1].get_config_dict()  # type: ignore[operator]
    modes = str(settings.get("pooling_mode", ""))
    names = {"mean": "mean", "cls": "cls"}
    if modes not in names:
        raise UnsupportedError(
            f"the pooling is {modes or 'unknown'}", where="parity", advice="headscope computes mean and cls"
        )
    pooling = Pooling(
        mode=names[modes],
        normalized=len(kinds) == 3,
        stated=True,
        max_length=getattr(first, "max_seq_length", None),
        lowercase=bool(getattr(first, "do_lower_case", False)),
        prompt=str((getattr(model, "prompts", None) or {}).get(getattr(model, "default_prompt_name", None), "")),
        include_prompt=settings.get("include_prompt") is not False,
    )
    return first.auto_model, pooling, model.tokenizer  # type: ignore[return-value]


def _projection(trace: Trace, layer: int) -> str | None:
    """The path of the only module that reads a layer's contexts; None if there are several or none."""
    source = trace.source
    output = source.projection(layer) if isinstance(source, CapturedModel) else None
    return output.paths[0] if output is not None and len(output.paths) == 1 else None


def _states(trace: Trace, shape: Shape, name: str) -> States:
    """The embeddings' output and each layer's.

    Raises:
        UnsupportedError: the model returned another number of hidden states.
    """
    states = [trace.outputs[key].array for key in trace.outputs if key.startswith("hidden_states.")]
    if len(states) != shape.layers + 1 or len(trace.layers) != shape.layers:
        raise UnsupportedError(
            f"{name} returned {len(states)} hidden states and ran {len(trace.layers)} attentions; its config has "
            f"{shape.layers} layers",
            where="output_hidden_states=True",
            advice="pass the transformers model itself, with one stack of attention",
        )
    return [np.asarray(state, dtype=np.float32) for state in states]
