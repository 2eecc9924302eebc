"""W_O of live models, which test_architectures.py compares: what is no one matrix, has changed since, or is gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from comparing import captured_of, own, pass_of
from torch import nn

from families import BY_NAME
from headscope.errors import TraceError, UnsupportedError
from headscope.live import ablate, capture
from headscope.page.trace import page_bytes


def adapted(base: nn.Linear) -> Any:
    """A Linear with a low-rank addition."""
    down, up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)
    return own(lambda self, x: self.base(x) + self.up(self.down(x)), base=base, down=down, up=up)


def with_numbers(base: nn.Linear) -> Any:
    """The same, with the additions stored as parameters and multiplied by hand."""
    down, up = (nn.Parameter(torch.randn(*size)) for size in ((base.in_features, 2), (2, base.out_features)))
    return own(lambda self, x: self.base(x) + x @ self.down @ self.up, base=base, down=down, up=up)


class OwnLinear(nn.Linear):
    """A Linear that does more than a Linear."""

    @classmethod
    def of(cls, base: nn.Linear) -> OwnLinear:
        made = cls(base.in_features, base.out_features, bias=False)
        made.weight = base.weight
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x.mean()


def llama(change: Any) -> tuple[Any, Any]:
    """A Llama whose first layer's output projection was changed, and its trace."""
    family = BY_NAME["LlamaModel"]
    model = family.build()
    attention = model.layers[0].self_attn
    attention.o_proj = change(attention.o_proj)
    captured = captured_of(model, **family.inputs(padded=False))
    return model, captured.traces[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (adapted, "2 modules read the contexts"),
        (with_numbers, "2 modules read the contexts"),
        (OwnLinear.of, r"OwnLinear\) overrides forward"),
        (lambda projection: nn.Sequential(nn.LayerNorm(32), projection), "no Linear reads the contexts"),
    ],
)
def test_a_projection_that_is_not_one_matrix_raises(change: Any, message: str) -> None:
    model, trace = llama(change)
    with pytest.raises(UnsupportedError, match=message) as caught:
        trace[0, 0].output
    assert caught.value.advice
    assert trace[1, 0].output.shape == (7, model.config.hidden_size)
    assert "view.writes" not in safetensors.numpy.load(page_bytes(trace))


def test_when_the_model_is_gone() -> None:
    model, captured, _ = pass_of(BY_NAME["BertModel"], padded=False)
    trace = captured.traces[0]
    assert "view.writes" in safetensors.numpy.load(page_bytes(trace))
    del captured, model
    with pytest.raises(TraceError, match="no longer exists"):
        trace[1, 0].output
    report = trace.verify()
    assert report.agrees
    assert ("eager weights", "the model no longer exists") in report.skipped


def test_selected_and_silenced_heads() -> None:
    model = BY_NAME["BertModel"].build()
    inputs = BY_NAME["BertModel"].inputs(padded=True)
    whole = captured_of(model, **inputs)
    with torch.no_grad(), ablate(model, [(1, 3)]), capture(model, layers=[1], heads=[2, 3]) as some:
        model(**inputs)
    for row in range(2):
        np.testing.assert_array_equal(some.traces[row][1, 2].output, whole.traces[row][1, 2].output)
        assert some.traces[row][1, 3].silenced
        assert not some.traces[row][1, 3].output.any()


def stepped(model: Any) -> None:
    model.train()
    model(torch.arange(5)[None])[0][..., 0].sum().backward()
    torch.optim.SGD(model.parameters(), lr=10.0).step()
    model.eval()


def loaded(model: Any) -> None:
    model.load_state_dict({name: weight + 0.5 for name, weight in model.state_dict().items()})


def averaged(model: Any) -> None:
    """As libraries for moving averages do: version counters don't tell."""
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data * 0.9)


def pruned(model: Any) -> None:
    model.encoder.layer[1].attention.output.dense.weight.data[3, 7] = 2.0


def replaced(model: Any) -> None:
    model.encoder.layer[1].attention.output.dense = nn.Linear(32, 32).eval()


def taken_out(model: Any) -> None:
    del model.encoder.layer[1]


@pytest.mark.parametrize("change", [stepped, loaded, averaged, pruned, replaced, taken_out])
def test_weights_that_have_changed_since(change: Any) -> None:
    """An output has the numbers of its pass, or is refused; a second run with other weights would tell nothing."""
    model, captured, _ = pass_of(BY_NAME["BertModel"], padded=False)
    trace = captured.traces[0]
    before = trace[1, 0].output
    assert trace.verify().skipped == ()
    change(model)
    with pytest.raises(TraceError, match=r"encoder\.layer\.1\.attention\.output\.dense .* has other weights"):
        _ = trace[1, 0].output
    assert trace.verify().agrees
    reason = "the weights have changed since"
    assert trace.verify().skipped == (("tokens", reason), ("eager weights", reason))
    assert np.isfinite(before).all()


def test_weights_that_changed_and_came_back() -> None:
    """Whoever restores the weights gets the numbers again; so does a copy in the same precision."""
    model, captured, _ = pass_of(BY_NAME["BertModel"], padded=False)
    trace, state = captured.traces[0], {name: x.clone() for name, x in model.state_dict().items()}
    before = trace[1, 0].output
    averaged(model)
    model.load_state_dict(state)
    np.testing.assert_array_equal(trace[1, 0].output, before)
    replacement = nn.Linear(32, 32)
    replacement.load_state_dict(model.encoder.layer[1].attention.output.dense.state_dict())
    model.encoder.layer[1].attention.output.dense = replacement
    np.testing.assert_array_equal(trace[1, 0].output, before)


def test_other_layers_may_change() -> None:
    family = BY_NAME["BertModel"]
    model = family.build()
    with torch.no_grad(), capture(model) as captured:
        model(**family.inputs(padded=False))
        pruned(model)
        model(**family.inputs(padded=False))
    first, second = captured.forwards[0][0], captured.forwards[1][0]
    assert first[0, 1].output.shape == second[1, 0].output.shape
    assert second.verify().skipped == ()
    with pytest.raises(TraceError, match="has other weights"):
        _ = first[1, 0].output


def test_outputs_of_a_torch_model_that_was_trained() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    captured = captured_of(model, torch.linspace(-1, 1, 96).view(1, 6, 16))
    model(torch.linspace(-1, 2, 96).view(1, 6, 16))[..., 0].sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    with pytest.raises(TraceError, match=r"layers\.0\.self_attn\.out_proj .* has other weights"):
        _ = captured.trace[0, 1].output
