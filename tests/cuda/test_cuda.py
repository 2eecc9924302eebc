"""headscope on a GPU: `pytest -m cuda` on a machine with one. The same steps run on the CPU in an ordinary test."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch


def benchmark() -> Any:
    """benchmarks/cuda.py, under a name that no package of NVIDIA's has."""
    spec = spec_from_file_location("cuda_benchmark", Path(__file__).parents[2] / "benchmarks" / "cuda.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cuda = benchmark()


def test_the_steps_agree_on_the_cpu() -> None:
    report = cuda.measured("cpu", [24], quick=True, rounds=1)
    assert cuda.failures(report) == []
    checks = [row["check"] for row in report["checks"]]
    assert len(checks) == len(set(checks)) == 2 * 3 * 2 * 2 + 3 + 3
    assert {row["way"] for row in report["times"]} == {
        "capture",
        "capture, kept on the device",
        "eager with output_attentions",
    }


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = cuda.bert(24, 2, True, torch.float32, "cpu"), cuda.inputs_of(24, "cpu", padded=True)
    assert cuda.check_ablation(model, inputs) == ""
    traces = cuda.captured_of(model, inputs)
    traces[0].layers[1].k[:] += 1e-2 * torch.randn(traces[0].layers[1].k.shape).numpy()
    assert "row 0" in cuda.check_traces(traces)
    monkeypatch.setattr(cuda.hs, "ablate", lambda model, heads: cuda.nullcontext())
    assert "outputs differ" in cuda.check_ablation(model, inputs)
    report = {"checks": [{"check": "one", "no": "wrong"}], "waits": [{"waits": 3}, {"waits": 7}]}
    assert cuda.failures(report) == ["one: wrong", "3 waits with 2 layers, 7 with 6"]


@pytest.mark.cuda
@pytest.mark.parametrize("tokens", [128, 512, 2048])
def test_everything_agrees_on_the_gpu(tokens: int) -> None:
    assert torch.cuda.is_available(), "pytest -m cuda needs a GPU"
    assert [row for row in cuda.checks("cuda", [tokens], quick=False) if row["no"]] == []


@pytest.mark.cuda
def test_capture_waits_for_no_layer() -> None:
    few, many = (row["waits"] for row in cuda.waits("cuda", 128, quick=False))
    assert few == many
