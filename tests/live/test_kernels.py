"""All computations of attention with log-sum-exps against the formula in fp64; common cases use a fused kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from headscope.attention.kernels import KernelNotes, KernelWatch, attend_with_lse, is_fused
from headscope.attention.scores import EVERYTHING, Mask, attend
from headscope.errors import UnsupportedError
from headscope.live import capture
from largest import Largest

KEYS = np.array([True] * 7 + [False] * 2)
MASKS = {
    "everything": EVERYTHING,
    "causal": Mask(causal=True),
    "padding": Mask(keys=KEYS),
    "causal and padding": Mask(causal=True, keys=KEYS),
    "window": Mask(window=(2, 1)),
    "nothing at all": Mask(keys=np.zeros(9, dtype=bool)),
    "bias": Mask(
        bias=torch.randn(4, 9, 9, generator=torch.Generator().manual_seed(0)).masked_fill(
            torch.eye(9) > 0, float("-inf")
        )
    ),
    "bias with an empty row": Mask(bias=torch.zeros(1, 9, 9).index_fill(1, torch.tensor([3]), float("-inf"))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("name", MASKS)
def test_all_agree_with_the_formula(name: str, kv_heads: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 4, 9, 8, generator=generator).to(dtype)
    k, v = (torch.randn(2, kv_heads, 9, 8, generator=generator).to(dtype) for _ in range(2))
    mask = MASKS[name]
    wide = mask if mask.bias is None else Mask(bias=mask.bias.double().numpy())
    context, lse = attend_with_lse(q, k, v, scale=0.5, mask=mask)
    assert context.dtype == dtype
    for row in range(2):
        exact, exact_lse = attend(*(x[row].double().numpy() for x in (q, k, v)), scale=0.5, mask=wide)
        np.testing.assert_allclose(lse[row].double().numpy(), exact_lse, atol=2e-2 if dtype == torch.bfloat16 else 1e-5)
        tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5
        np.testing.assert_allclose(context[row].double().numpy(), exact, atol=tolerance)


@pytest.mark.parametrize("name", ["everything", "causal", "padding"])
def test_what_is_common_is_fused(name: str) -> None:
    q = torch.randn(2, 4, 9, 8)
    watch = KernelWatch()
    with watch:
        attend_with_lse(q, q, q, scale=0.5, mask=MASKS[name])
    assert is_fused(q, q, q, None, False, 0.5)


@pytest.mark.parametrize(("factor", "message"), [(1 / np.log(2), "in powers of 2"), (3.0, "returned the log-sum-exp")])
@pytest.mark.parametrize("name", ["everything", "causal", "padding"])
def test_log_sum_exps_of_another_base_are_an_error(
    name: str, factor: float, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of the operator below flex_attention, whose log-sum-exps are in powers of 2."""
    monkeypatch.setattr("headscope.attention.kernels._CHECKED", set())
    q = torch.randn(2, 4, 9, 8, generator=torch.Generator().manual_seed(0))
    attend_with_lse(q, q, q, scale=0.5, mask=MASKS[name])
    right = KernelNotes.lse
    monkeypatch.setattr("headscope.attention.kernels._CHECKED", set())
    monkeypatch.setattr(KernelNotes, "lse", lambda *given: right(*given) * factor)  # type: ignore[operator]
    with pytest.raises(UnsupportedError, match=rf"flash_attention_for_cpu[\s\S]*{message}[\s\S]*sdpa_kernel"):
        attend_with_lse(q, q, q, scale=0.5, mask=MASKS[name])


def test_other_widths_of_values_go_in_blocks() -> None:
    q, v = torch.randn(4, 9, 8), torch.randn(4, 9, 3)
    context, _ = attend_with_lse(q, q, v, scale=0.5)
    exact, _ = attend(q.double().numpy(), q.double().numpy(), v.double().numpy(), scale=0.5)
    np.testing.assert_allclose(context.numpy(), exact, atol=1e-5)


@pytest.mark.parametrize(
    "mask", [EVERYTHING, Mask(causal=True), Mask(keys=np.arange(3000) < 2900), Mask(window=(8, None))]
)
def test_nothing_is_as_large_as_a_map(mask: Mask) -> None:
    q = torch.randn(1, 1, 3000, 8)
    with torch.no_grad(), Largest() as largest:
        attend_with_lse(q, q, q, scale=0.5, mask=mask)
    assert largest.cells < 3000 * 3000 / 8


@pytest.mark.parametrize("padded", [False, True])
def test_a_capture_makes_nothing_as_large_as_a_map(padded: bool) -> None:
    """At 4,096 tokens, a capture creates no tensor of a map's size beyond those of the model's forward pass."""
    tokens = 4096
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 16}
    config = transformers.BertConfig(**sizes, vocab_size=99, max_position_embeddings=tokens)
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    inputs = {"input_ids": torch.ones(1, tokens, dtype=torch.long)}
    if padded:
        inputs["attention_mask"] = (torch.arange(tokens) < 4000).long()[None]
    with torch.no_grad():
        with Largest() as alone:
            model(**inputs)
        with Largest() as watched, capture(model) as captured:
            model(**inputs)
        assert len(captured.trace) == (4000 if padded else tokens)
    assert watched.maps(tokens) == alone.maps(tokens)
    if not padded:
        assert watched.maps(tokens) == 0
