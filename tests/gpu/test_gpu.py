"""headscope on a GPU: `pytest -m cuda` on a machine with one. The same steps run on the CPU in an ordinary test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import gpu


def test_the_steps_agree_on_the_cpu() -> None:
    report = gpu.measured("cpu", [24], quick=True, rounds=1)
    assert gpu.failures(report) == []
    checks = [row["check"] for row in report["checks"]]
    assert len(checks) == len(set(checks)) == 2 * 3 * 2 * 2 + 5 + 3
    assert {row["way"] for row in report["times"]} == {
        "capture",
        "capture, kept on the device",
        "eager with output_attentions",
    }


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = gpu.bert(24, 2, True, torch.float32, "cpu"), gpu.inputs_of(24, "cpu", padded=True)
    assert gpu.check_ablation(model, inputs) == ""
    traces = gpu.captured_of(model, inputs)
    traces[0].layers[1].k[:] += 1e-2 * torch.randn(traces[0].layers[1].k.shape).numpy()
    assert "row 0" in gpu.check_traces(traces)
    monkeypatch.setattr(gpu.hs, "ablate", lambda model, heads: gpu.nullcontext())
    assert "outputs differ" in gpu.check_ablation(model, inputs)
    report = {"checks": [{"check": "one", "no": "wrong"}], "waits": [{"waits": 3}, {"waits": 7}]}
    assert gpu.failures(report) == ["one: wrong", "3 waits with 2 layers, 7 with 6"]


@pytest.mark.cuda
@pytest.mark.parametrize("tokens", [128, 512, 2048])
def test_everything_agrees_on_the_gpu(tokens: int) -> None:
    assert torch.cuda.is_available(), "pytest -m cuda needs a GPU"
    assert [row for row in gpu.checks("cuda", [tokens], quick=False) if row["no"]] == []


@pytest.mark.cuda
def test_capture_waits_for_no_layer() -> None:
    assert gpu.failures({"checks": [], "waits": gpu.waits("cuda", 128, quick=False)}) == []


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_flex_attention_agrees_on_the_gpu(dtype: torch.dtype, padded: bool) -> None:
    model, inputs = gpu.bert(200, 2, False, dtype, "cuda"), gpu.inputs_of(200, "cuda", padded=padded)
    model.set_attn_implementation("flex_attention")
    assert gpu.check_traces(gpu.captured_of(model, inputs)) == ""
