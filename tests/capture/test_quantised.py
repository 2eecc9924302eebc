"""Models that PyTorch quantises (`quantize_dynamic`): what is read of them, and what is refused."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from comparing import captured_of
from torch import nn

import headscope as hs
from headscope.errors import NoteWarning, UnsupportedError
from headscope.live import capture

IDS = torch.arange(3, 9)[None]


def quantised(model: nn.Module, dtype: torch.dtype = torch.qint8, kinds: set[type] | None = None) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: nn.Module = torch.ao.quantization.quantize_dynamic(model, kinds or {nn.Linear}, dtype=dtype)
    return found


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return BertModel(BertConfig(vocab_size=60, **sizes)).eval()


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@torch.no_grad()
def test_a_quantised_model_is_captured_and_verified(dtype: torch.dtype) -> None:
    model = quantised(bert(), dtype)
    captured = captured_of(model, IDS)
    trace, report = captured.trace, captured.trace.verify()
    assert report.agrees
    assert [check.name for check in report.checks] == ["row sums", "module output", "weights (eager)"]
    assert not any("training" in str(skipped) for skipped in report.skipped)
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")  # type: ignore[operator]
    for layer, weights in enumerate(eager(IDS, output_attentions=True).attentions):
        for head in range(4):
            np.testing.assert_allclose(trace[layer, head].weights[:], weights[0, head], atol=1e-6)


@torch.no_grad()
def test_packed_output_projections_are_refused_by_name() -> None:
    model = quantised(bert())
    captured = captured_of(model, IDS)
    with pytest.raises(
        UnsupportedError, match=r"layer\.1\.attention\.output\.dense stores packed weights \(torch.qint8"
    ):
        captured.trace[1, 0].output


@torch.no_grad()
def test_weights_in_half_precision_are_those_that_the_model_multiplies_with() -> None:
    model = quantised(bert(), torch.float16)
    captured = captured_of(model, IDS)
    dense = model.encoder.layer[0].attention.output.dense  # type: ignore[union-attr,index]
    contexts = torch.cat([torch.as_tensor(captured.trace[0, head].context[:]) for head in range(4)], -1)
    total = sum(torch.as_tensor(captured.trace[0, head].output[:]) for head in range(4)) + dense.bias()
    torch.testing.assert_close(total, dense(contexts), atol=1e-5, rtol=1e-5)


def test_packed_weights_are_counted() -> None:
    plain = nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False), nn.Embedding(5, 4)).eval()
    described, before = hs.describe(quantised(plain)), hs.describe(plain)
    assert (described.total, described.frozen) == (before.total, 8 * 4 + 4 + 4 * 2)
    assert [part.count for part in described.components] == [part.count for part in before.components]
    assert [part.count for part in described.tree.parts] == [part.count for part in before.tree.parts]
    assert {row[:2] for row in described.parameters} == {row[:2] for row in before.parameters}
    assert ("0.weight", (4, 8), "qint8", 32, False) in described.parameters
    assert hs.describe(quantised(plain)[0]).total == 36  # type: ignore[index]
    model = bert()
    assert hs.describe(quantised(model)).total == hs.describe(model).total
    with pytest.raises(UnsupportedError, match="LSTM packs its weights in a form that can't be counted") as raised:
        hs.describe(quantised(nn.Sequential(nn.LSTM(4, 4)), kinds={nn.LSTM}))
    assert raised.value.where == "0"


def test_a_quantised_model_is_not_opened() -> None:
    with pytest.raises(
        UnsupportedError, match=r"BertModel whose weights are packed can't be opened: encoder\.layer\.0"
    ):
        hs.open(quantised(bert()))


@torch.no_grad()
def test_modules_made_in_training_mode_are_no_reason_to_skip() -> None:
    """A layer that is replaced after eval() is in training mode, for which dropout asks, but not a Linear."""
    model = bert()
    dense = model.encoder.layer[0].attention.output  # type: ignore[union-attr,index]
    dense.dense = nn.Linear(32, 32)
    captured = captured_of(model, IDS)
    assert "weights (eager)" in [check.name for check in captured.trace.verify().checks]
    dense.dropout = nn.Dropout(0.1)
    with capture(model) as captured, pytest.warns(NoteWarning, match="training mode"):
        model(IDS)
    assert any("training mode" in str(skipped) for skipped in captured.trace.verify().skipped)
