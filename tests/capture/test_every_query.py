"""The comparison of every query: what it accepts, what it sees, and when it runs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers
from comparing import captured_of
from knockouts import IDS, SDPA, Attend, Edge, Mixer, bert, subtracted, weights_of
from torch import nn
from torch.nn.attention import flex_attention
from transformers import AttentionInterface
from transformers.integrations import flex_attention as flex_integration
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from families import BY_NAME
from headscope.errors import UnsupportedError
from headscope.live import capture, every_query, seats

pytestmark = pytest.mark.usefixtures("registered")


def naive(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float | None = None, **given: Any) -> Any:
    weights = weights_of(q, k, scaling)
    return (weights @ v).transpose(1, 2).contiguous(), weights


def in_other_order(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float | None = None, **given: Any) -> Any:
    """Scaled queries, powers divided at the end, head by head."""
    scores = (q * (q.shape[-1] ** -0.5 if scaling is None else scaling)) @ k.mT
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    contexts = [(powers[:, h] @ v[:, h]) / powers[:, h].sum(-1, keepdim=True) for h in range(q.shape[1])]
    return torch.stack(contexts, 2), None


def a_query_at_a_time(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float | None = None, **_: Any) -> Any:
    parts = [SDPA(q[:, :, at : at + 5], k, v, scale=scaling) for at in range(0, q.shape[2], 5)]
    return torch.cat(parts, 2).transpose(1, 2).contiguous(), None


def through_sdpa(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float | None = None, **given: Any) -> Any:
    return sdpa_attention_forward(module, q, k, v, mask, scaling=scaling)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("factor", [0.1, 1.0, 8.0], ids=["flat", "usual", "sharp"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [naive, in_other_order, a_query_at_a_time, through_sdpa])
def test_right_attention_is_accepted(function: Attend, dtype: torch.dtype, factor: float, autocast: bool) -> None:
    casts = torch.autocast("cpu", dtype=torch.bfloat16) if autocast and dtype == torch.float32 else nullcontext()
    with casts:
        captured = captured_of(bert(function, dtype, factor), IDS)
    assert [trace.numbers for trace in captured.traces] == [(0, 1)] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [naive, in_other_order, a_query_at_a_time])
def test_long_rows_and_large_numbers_are_accepted(function: Attend, dtype: torch.dtype) -> None:
    class Long(nn.Module):
        """Attention of transformers' interface over any q, k and v."""

        is_causal = False

        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            attend: Any = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["own"]
            return attend(self, q, k, v, None, scaling=0.125)[0]

    Long.__module__ = "transformers.long"
    AttentionInterface.register("own", function)
    generator = torch.Generator().manual_seed(0)
    model = Long()
    longest = 3000 if function is naive else 1200  # how a function adds matters more than how much
    for size, length in ((1.0, longest), (6.0, 600), (1.0, 600)):
        q, k = (size * torch.randn(1, 2, length, 64, generator=generator) for _ in range(2))
        v = torch.randn(1, 2, length, 64, generator=generator) * torch.tensor([1e-3, 50.0])[:, None, None]
        q[..., 5, :] *= 4
        captured = captured_of(model, *(x.to(dtype) for x in (q, k, v)))
        assert len(captured.traces) == 1


def test_small_values_beside_large_ones() -> None:
    """A head whose values are ten thousand times smaller than another's is compared by its own."""
    model = bert(subtracted(Edge()))
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.value.weight[:8] *= 1e4
    with pytest.raises(UnsupportedError, match=r"row 1, head 2, query 4"):
        captured_of(model, IDS)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_the_libraries_own_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not more: a full comparison of each call would cost as much as the attention itself."""

    def too_much(call: Any) -> None:
        pytest.fail(f"{call.path} is PyTorch's or transformers' own")

    monkeypatch.setattr(seats, "refuse_altered", too_much)
    monkeypatch.setattr(flex_integration.WrappedFlexAttention, "__call__", lambda self: flex_attention.flex_attention)
    with torch.no_grad():
        for implementation in ("sdpa", "eager", "flex_attention"):
            model = bert()
            model.set_attn_implementation(implementation)
            assert len(captured_of(model, IDS).traces) == 3
        for name in ("LlamaModel", "T5Model", "GptOssModel", "DebertaV2Model", "MPNetModel", "FalconModel"):
            model, inputs = BY_NAME[name].build(), BY_NAME[name].inputs(padded=True)
            with capture(model) as captured, torch.device("cpu"):
                model(**inputs)
            assert captured.traces
        x = torch.randn(3, 12, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 32, batch_first=True)
        for own in (nn.TransformerEncoder(layer, 2).eval(), layer.self_attn.eval(), Mixer()):
            with capture(own) as captured:
                own(x, x, x) if isinstance(own, nn.MultiheadAttention) else own(x)
            assert len(captured.traces) == 3


def test_memory_is_linear() -> None:
    """A function of any code over 6,000 tokens: nothing as large as a sixteenth of a map is allocated."""

    class Long(nn.Module):
        is_causal = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            attend: Any = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["own"]
            return attend(self, x, x, x, None)[0]

    Long.__module__ = "transformers.long"
    AttentionInterface.register("own", lambda *given, **options: a_query_at_a_time_of_many(*given, **options))
    x, model = torch.randn(1, 1, 6000, 8), Long()
    with torch.no_grad(), torch.profiler.profile(profile_memory=True) as profile, capture(model) as captured:
        model(x)
    assert len(captured.traces) == 1
    largest = max(event.self_cpu_memory_usage for event in profile.events() or ())
    assert every_query.CELLS["cpu"] <= largest < 6000 * 6000 * 4 / 4


def a_query_at_a_time_of_many(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
    parts = [SDPA(part, k, v) for part in q.split(1000, 2)]
    return torch.cat(parts, 2).transpose(1, 2).contiguous(), None
