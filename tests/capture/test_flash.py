"""FlashAttention 2 and 3 and kernels from the hub through transformers' own functions, around kernels by the formula.

The libraries need a GPU. What transformers does before it calls them, and after, is its own code here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch
from comparing import assert_same_weights, eager_attentions
from flash_kernels import Flash2, Flash3
from test_generation import agrees_with, eager, generated, model_of
from transformers import AttentionInterface, AttentionMaskInterface, modeling_flash_attention_utils
from transformers.integrations import hub_kernels

from families import BY_NAME
from headscope.errors import UnsupportedError
from headscope.live import capture
from products import pairwise

HUB = "kernels-community/flash-attn2"
HUB_3 = "kernels-community/vllm-flash-attn3"
NAMES = ("flash_attention_2", "flash_attention_3", HUB, HUB_3)

Loaded = Callable[[str, str], Any]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """A function that builds a model of a family with an attention implementation of this name."""
    library = ModuleType("flash_attn_interface")
    library.__spec__ = ModuleSpec("flash_attn_interface", None)
    vars(library).update(flash_attn_with_kvcache=None, **{name: getattr(Flash3, name) for name in dir(Flash3)[-2:]})
    monkeypatch.setitem(sys.modules, "flash_attn_interface", library)
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda *_: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda name, **_: Flash3 if name == HUB_3 else Flash2)
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


@pytest.mark.parametrize(("name", "family", "padding"), pairwise(NAMES, FAMILIES, ("none", "right", "left")))
def test_weights_are_the_eager_ones(name: str, family: str, padding: str, loaded: Loaded) -> None:
    if family == "GptOssModel" and "3" not in name:
        name = HUB_3  # FlashAttention 2 has no sinks
    model, inputs = loaded(family, name), BY_NAME[family].inputs(padded=padding != "none", left=padding == "left")
    if family == "BartModel" and padding == "right":
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])  # see the test below
    with torch.no_grad():
        alone = model(**inputs).last_hidden_state
        with capture(model) as captured:
            assert torch.equal(model(**inputs).last_hidden_state, alone)
    expected = eager_attentions(BY_NAME[family].build(), inputs, BY_NAME[family].stacks)
    assert_same_weights(captured, expected, 2e-5)
    assert all(trace.verify().agrees for trace in captured.traces)


@pytest.mark.parametrize("name", ["flash_attention_2", HUB])
@pytest.mark.parametrize("family", ["BartModel", "GptOssModel"])
def test_what_transformers_loses_on_the_way_is_refused(name: str, family: str, loaded: Loaded) -> None:
    """It unpads cross-attention's queries by the mask of the keys, and drops sinks that a kernel doesn't take."""
    model, inputs = loaded(family, name), BY_NAME[family].inputs(padded=True)
    with torch.no_grad(), pytest.raises(UnsupportedError, match="recomputed contexts differ"), capture(model):
        model(**inputs)


def test_texts_packed_into_one_row_are_refused(loaded: Loaded) -> None:
    """transformers takes them apart by their positions, and a trace has no rule for that."""
    model = loaded("LlamaModel", "flash_attention_2")
    ids, positions = torch.arange(3, 12)[None], torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    with torch.no_grad(), pytest.raises(UnsupportedError, match="recomputed contexts differ"), capture(model):
        model(input_ids=ids, position_ids=positions)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("name", ["flash_attention_2", HUB_3])
def test_generation(name: str, family: str, cache: str, loaded: Loaded) -> None:
    loaded("BertModel", name)
    model = model_of(family)
    model.config._attn_implementation = name
    captured, final, mask = generated(model, 3, cache_implementation=cache)
    attentions = eager(model_of(family), final[:, :-1], mask[:, :-1])
    for row, trace in enumerate(captured.generations):
        agrees_with(trace, attentions, row)


class Wrong(Flash2):
    """Kernels that do what a call doesn't say: what a comparison of log-sum-exps would find, that of contexts finds."""

    changes: dict[str, Any]

    @classmethod
    def flash_attn_func(cls, *given: Any, **options: Any) -> torch.Tensor:  # type: ignore[override]
        return Flash2.flash_attn_func(*given, **{**options, **cls.changes})


@pytest.mark.parametrize(
    "changes", [{"softmax_scale": 0.36}, {"causal": False}, {"window_size": (4, 0)}, {"softcap": 5.0}], ids=str
)
def test_a_kernel_that_ignores_its_arguments_is_refused(
    changes: dict[str, Any], loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda *_, **__: type("Changed", (Wrong,), {"changes": changes}))
    model = loaded("LlamaModel", "flash_attention_2")
    with torch.no_grad(), pytest.raises(UnsupportedError, match="recomputed contexts differ"), capture(model):
        model(**BY_NAME["LlamaModel"].inputs(padded=False))
