"""Captures of one pass, modules of one's own, and comparisons with transformers' own eager attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedTokenizerFast

from families import FAMILIES, Family
from headscope.errors import UnsupportedError
from headscope.live import capture
from tokenizer_folders import wordpiece_tokenizer

NOTHING: AbstractContextManager[None] = nullcontext()
PADDABLE = [family for family in FAMILIES if family.takes not in ("image", "audio", "features")]


def passed(model: Any, *given: Any, options: dict[str, Any] | None = None, **named: Any) -> tuple[Any, Any]:
    """The output of one forward pass, and what a capture with these options has of it."""
    with capture(model, **(options or {})) as captured:
        return model(*given, **named), captured


def captured_of(model: Any, *given: Any, **named: Any) -> Any:
    """What a capture has of one forward pass without gradients."""
    with torch.no_grad():
        return passed(model, *given, **named)[1]


def refused(match: str, model: Any, *given: Any, **named: Any) -> UnsupportedError:
    """The error of a pass that can't be captured."""
    with pytest.raises(UnsupportedError, match=match) as raised:
        captured_of(model, *given, **named)
    return raised.value


def tokenizer() -> Any:
    """A tokenizer of transformers with a few words."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "##s", "mat"]
    inner = wordpiece_tokenizer({piece: at for at, piece in enumerate(pieces)})
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


class Seen(torch.overrides.TorchFunctionMode):
    """Records the arguments of scaled_dot_product_attention, after autocast's own cast."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[torch.Tensor, ...]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is scaled_dot_product_attention:
            self.calls.append(tuple(x.to(result.dtype) for x in args[:3]))
        return result


def split(x: torch.Tensor, heads: int = 4) -> torch.Tensor:
    """(batch, tokens, heads * d) to (batch, heads, tokens, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def parts_of(mha: nn.MultiheadAttention, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(batch, heads, tokens, d): queries, keys and values of an nn.MultiheadAttention over one sequence."""
    made = nn.functional.linear(x, mha.in_proj_weight, mha.in_proj_bias)
    return tuple(split(part, mha.num_heads) for part in made.chunk(3, -1))


class Mixer(nn.Module):
    """Four heads of 8, in a class whose name doesn't mention attention."""

    def __init__(self, *, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.into = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def parts(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(split(part, self.heads) if self.heads else part for part in self.into(x).chunk(3, -1))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        mixed = scaled_dot_product_attention(*self.parts(x), attn_mask=mask)
        return self.out(mixed if not self.heads else mixed.transpose(1, 2).flatten(2))


class Residual(Mixer):
    """The same, added to what it reads."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(self.attend(*self.parts(x)).transpose(1, 2).flatten(2))


def softmax_of(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """softmax(q k^T / sqrt(d) + mask), literally; a query without keys has weights of 0."""
    raw = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        raw = raw.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else raw + mask
    return raw.softmax(-1).nan_to_num(0)


def weights_of(mixer: Any, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """(batch, heads, queries, keys) of a Mixer by the formula."""
    weights = softmax_of(*mixer.parts(x)[:2], mask)
    return weights if mixer.heads else weights[:, None]


def own(forward: Any, **parts: Any) -> Any:
    """A module of a class of its own that runs this forward over these parts."""
    module = type("Own", (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(module, name, part)
    return module.eval()


def pass_of(
    family: Family, run_in: torch.dtype = torch.float32, *, padded: bool = True, left: bool = False, **options: Any
) -> tuple[Any, Any, dict[str, Any]]:
    """A family's model, what was captured of a batch, and the inputs."""
    model, inputs = family.build(run_in), family.inputs(padded=padded, left=left)
    return model, captured_of(model, options=options, **inputs), inputs


def watched(model: Any, inputs: dict[str, Any], without: AbstractContextManager[None] = NOTHING) -> Any:
    """What a capture has of a pass, in which the model gives what it gives without one, in the other block."""
    with torch.no_grad():
        with without:
            alone = model(**inputs)
        output, captured = passed(model, **inputs)
    for name, value in alone.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, output[name]), f"{name} changed while it was looked at"
    return captured


def eager_attentions(
    model: Any, inputs: dict[str, Any], stacks: tuple[tuple[str, str], ...] = (("self", "attentions"),)
) -> dict[str, list[np.ndarray]]:
    """For each stack, transformers' weights layer by layer, (batch, heads, queries, keys)."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    model.set_attn_implementation(before)
    weights = {}
    for stack, name in stacks:
        part = output[name]
        layers = part if isinstance(part, tuple) else part.attentions
        weights[stack] = [layer.float().numpy() for layer in layers]
    return weights


def assert_weights(
    traces: Iterable[Any], layers: Mapping[int, Any] | Sequence[Any], atol: float = 1e-6
) -> list[np.ndarray]:
    """Compare every cell of every head in these layers of each trace; return the cells.

    Args:
        traces: traces of one stack.
        layers: by the layer's number, the maps of the whole batch, (batch, heads, queries, keys).
        atol: how far off a cell may be.
    """
    compared = []
    for trace in traces:
        for number, maps in layers.items() if isinstance(layers, Mapping) else enumerate(layers):
            whole = np.asarray(maps[trace.row].detach() if isinstance(maps, torch.Tensor) else maps[trace.row])
            cells, place = whole[:, trace.positions][:, :, trace.key_positions], f"row {trace.row}, layer {number}"
            np.testing.assert_allclose(trace[number].weights[...], cells, atol=atol, err_msg=f"{trace.stack}, {place}")
            compared.append(cells)
    return compared


def assert_same_weights(captured: Any, expected: dict[str, list[np.ndarray]], tolerance: float) -> float:
    """Compare every cell of every head; return how far from uniform the weights are."""
    peaks: list[float] = []
    for stack, layers in expected.items():
        assert [len(trace.layers) for trace in captured[stack]] == [len(layers)] * len(layers[0])
        peaks += [np.abs(x - 1 / x.shape[-1]).max() for x in assert_weights(captured[stack], layers, tolerance)]
    return float(np.mean(peaks))
