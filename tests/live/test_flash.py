"""FlashAttention 2 and 3 and kernels from the hub through transformers' own functions, around kernels by the formula.

The libraries need a GPU. What transformers does before it calls them, and after, is its own code here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from importlib.machinery import ModuleSpec
from inspect import Parameter, Signature
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from comparing import assert_same_weights, assert_weights, eager_attentions, refused, watched
from test_generation import eager, generated, model_of
from transformers import AttentionInterface, AttentionMaskInterface, modeling_flash_attention_utils
from transformers.integrations import hub_kernels

from families import BY_NAME
from products import in_turn

# The kernels, with the signatures of flash-attn 2, flash-attn 3 and kernels from the hub.


def attend(
    *qkv: torch.Tensor, scale: float | None, causal: bool, window: tuple[int, int], cap: float, sinks: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Contexts (batch, queries, heads, d_value) and log-sum-exps (batch, heads, queries).

    Args:
        qkv: each (batch, tokens, heads, width), with fewer heads in k and v under grouped-query attention.
        scale: factor of q . k.
        causal, window: aligned at the last query and the last key; -1 is no limit.
        cap: the soft cap; 0 for none.
        sinks: (heads,).
    """
    q, k, v = (x.repeat_interleave(qkv[0].shape[2] // x.shape[2], 2) for x in qkv)
    scores = torch.einsum("bihd,bjhd->bhij", q.float(), k.float()) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if cap:
        scores = cap * torch.tanh(scores / cap)
    distance = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] - (k.shape[1] - q.shape[1])
    left, right = window[0], 0 if causal else window[1]
    if left >= 0:
        scores = scores.masked_fill(distance < -left, float("-inf"))
    if right >= 0:
        scores = scores.masked_fill(distance > right, float("-inf"))
    lse = scores.logsumexp(-1)
    lse = lse if sinks is None else lse.logaddexp(sinks.float()[:, None])
    weights = (scores - lse[..., None]).exp()
    return torch.einsum("bhij,bjhd->bihd", weights, v.float()).to(q.dtype), lse


def apart(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for texts of several lengths in a row: (tokens, heads, width), and where each text begins."""
    parts = [
        attend(q[a:b][None], k[c:d][None], v[c:d][None], **options)
        for a, b, c, d in zip(queries, queries[1:], keys, keys[1:], strict=False)
    ]
    return torch.cat([context[0] for context, _ in parts]), torch.cat([lse[0] for _, lse in parts], -1)


DEFAULTS = {"softmax_scale": None, "causal": False, "window_size": (-1, -1), "softcap": 0.0, "s_aux": None}
TEXTS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
FLASH_2 = ("dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes", "deterministic")
FLASH_2 += ("return_attn_probs",)
FLASH_3 = ("softmax_scale", "causal", "qv", "window_size", "softcap", "num_splits", "pack_gqa", "deterministic")
FLASH_3 += ("sm_margin", "s_aux")


def kernel(names: tuple[str, ...], *, of_texts: bool = False, sums: bool = False) -> Callable[..., Any]:
    """A kernel with parameters of these names, which transformers looks at before it calls it.

    Args:
        names: of the parameters after queries, keys and values; DEFAULTS has their defaults, if not None.
        of_texts: True for one that takes several texts in a row.
        sums: True for one that returns log-sum-exps, too.
    """
    kind = Parameter.POSITIONAL_OR_KEYWORD
    given = [Parameter(name, kind) for name in ("q", "k", "v", *TEXTS * of_texts)]
    signature = Signature([*given, *(Parameter(name, kind, default=DEFAULTS.get(name)) for name in names)])

    def run(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        of = bound.arguments
        options = {"scale": of["softmax_scale"], "causal": of["causal"], "window": of["window_size"]}
        options |= {"cap": of["softcap"], "sinks": of.get("s_aux")}
        tensors = [of[name] for name in ("q", "k", "v", *TEXTS[: 2 * of_texts])]
        found = (apart if of_texts else attend)(*tensors, **options)
        return found if sums else found[0]

    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


FLASH_ATTN_2 = SimpleNamespace(
    flash_attn_func=kernel(FLASH_2), flash_attn_varlen_func=kernel((*FLASH_2, "block_table"), of_texts=True)
)
"""flash-attn 2, and kernels-community/flash-attn2: they return contexts."""
FLASH_ATTN_3 = SimpleNamespace(
    flash_attn_func=kernel(FLASH_3, sums=True),
    flash_attn_varlen_func=kernel(("seqused_q", "seqused_k", *FLASH_3), of_texts=True, sums=True),
)
"""kernels-community/vllm-flash-attn3, and early versions of flash-attn 3: contexts and log-sum-exps, and sinks."""

HUB = "kernels-community/flash-attn2"
HUB_3 = "kernels-community/vllm-flash-attn3"
NAMES = ("flash_attention_2", "flash_attention_3", HUB, HUB_3)

Loaded = Callable[[str, str], Any]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """A function that builds a model of a family with an attention implementation of this name."""
    library = ModuleType("flash_attn_interface")
    library.__spec__ = ModuleSpec("flash_attn_interface", None)
    vars(library).update(flash_attn_with_kvcache=None, **vars(FLASH_ATTN_3))
    monkeypatch.setitem(sys.modules, "flash_attn_interface", library)
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda *_: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda name, **_: FLASH_ATTN_3 if name == HUB_3 else FLASH_ATTN_2)
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    for name in (HUB, HUB_3):
        for table in (AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping):
            monkeypatch.setitem(table, name, None)  # so that it is removed afterwards
            del table[name]

    def build(family: str, name: str) -> Any:
        if name in (HUB, HUB_3):
            hub_kernels.load_and_register_attn_kernel(name)
        model = BY_NAME[family].build()
        model.config._attn_implementation = name
        return model

    return build


FAMILIES = ("BertModel", "ModernBertModel", "LlamaModel", "MistralModel", "Gemma2Model", "GptOssModel", "BartModel")


@pytest.mark.parametrize(("name", "family", "padding"), in_turn(NAMES, FAMILIES, ("none", "right", "left")))
def test_weights_are_the_eager_ones(name: str, family: str, padding: str, loaded: Loaded) -> None:
    if family == "GptOssModel" and "3" not in name:
        name = HUB_3  # FlashAttention 2 has no sinks
    model, inputs = loaded(family, name), BY_NAME[family].inputs(padded=padding != "none", left=padding == "left")
    if family == "BartModel" and padding == "right":
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])  # see the test below
    captured = watched(model, inputs)
    expected = eager_attentions(BY_NAME[family].build(), inputs, BY_NAME[family].stacks)
    assert_same_weights(captured, expected, 2e-5)
    assert all(trace.verify(reference=trace.row == 1).agrees for trace in captured.traces)


@pytest.mark.parametrize("name", ["flash_attention_2", HUB])
@pytest.mark.parametrize("family", ["BartModel", "GptOssModel"])
def test_what_transformers_loses_on_the_way_is_refused(name: str, family: str, loaded: Loaded) -> None:
    """It unpads cross-attention's queries by the mask of the keys, and drops sinks that a kernel doesn't take."""
    model, inputs = loaded(family, name), BY_NAME[family].inputs(padded=True)
    refused("recomputed contexts differ", model, **inputs)


def test_texts_packed_into_one_row_are_refused(loaded: Loaded) -> None:
    """transformers takes them apart by their positions, and a trace has no rule for that."""
    model = loaded("LlamaModel", "flash_attention_2")
    ids, positions = torch.arange(3, 12)[None], torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    refused("recomputed contexts differ", model, input_ids=ids, position_ids=positions)


@pytest.mark.parametrize(
    ("name", "family", "cache"), in_turn(("flash_attention_2", HUB_3), ("llama", "mistral"), ("dynamic", "static"))
)
def test_generation(name: str, family: str, cache: str, loaded: Loaded) -> None:
    loaded("BertModel", name)
    model = model_of(family)
    model.config._attn_implementation = name
    captured, final, mask = generated(model, 3, cache_implementation=cache)
    assert len(captured.generations) == 3
    assert_weights(captured.generations, eager(model_of(family), final[:, :-1], mask[:, :-1]), 2e-5)


@pytest.mark.parametrize(
    "changes", [{"softmax_scale": 0.36}, {"causal": False}, {"window_size": (4, 0)}, {"softcap": 5.0}], ids=str
)
def test_a_kernel_that_ignores_its_arguments_is_refused(
    changes: dict[str, Any], loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a comparison of log-sum-exps would find, that of contexts finds."""
    right = FLASH_ATTN_2.flash_attn_func

    @wraps(right)
    def wrong(*given: Any, **options: Any) -> torch.Tensor:
        return right(*given, **{**options, **changes})

    library = SimpleNamespace(**{**vars(FLASH_ATTN_2), "flash_attn_func": wrong})
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda *_, **__: library)
    model = loaded("LlamaModel", "flash_attention_2")
    refused("recomputed contexts differ", model, **BY_NAME["LlamaModel"].inputs(padded=False))
