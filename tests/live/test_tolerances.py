"""Precision: traces keep the kernel's inputs, weights are as exact as eager attention's, `verify` finds what is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import cache
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from comparing import Seen, captured_of, own, pass_of, passed
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

import headscope as hs
from families import BY_NAME, built
from headscope.attention import precision
from headscope.attention.precision import exact_products, matmul_precision
from headscope.attention.scores import Mask, log_sum_exps
from headscope.errors import UnsupportedError
from headscope.live.seeing.observed import product_dtype
from headscope.results.lazy_maps import TILE_CELLS
from headscope.traces import LayerRecord, Trace, layer_records, load
from headscope.verify import Check, Report, Worst
from peak import Peak
from products import in_turn, pairwise
from random_models import ids, made

PRECISIONS = ["fp32", "bf16", "fp16", "autocast bf16", "autocast fp16", "kept in fp16", "bf16, kept in fp16"]


def half(precision: str) -> torch.dtype:
    """The precision in which the model runs, if not fp32."""
    return torch.float16 if precision in ("fp16", "autocast fp16") else torch.bfloat16


def autocast(precision: str) -> torch.autocast:
    return torch.autocast("cpu", dtype=half(precision), enabled=precision.startswith("autocast"))


@cache
def alive(name: str, dtype: torch.dtype) -> Any:
    """A model that is kept alive, because verifying its traces runs it again."""
    if name != "MultiheadAttention":
        return BY_NAME[name].build(dtype)
    torch.manual_seed(0)
    return nn.MultiheadAttention(16, 2, batch_first=True).eval().to(dtype)


def traced(name: str, precision: str, implementation: str = "sdpa") -> list[Trace]:
    dtype = half(precision) if precision in ("bf16", "fp16", "bf16, kept in fp16") else torch.float32
    model: Any = alive(name, dtype)
    if name == "MultiheadAttention":
        x = 3 * torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))
        inputs = dict.fromkeys(("query", "key", "value"), x.to(dtype))
    else:
        model.set_attn_implementation(implementation)
        inputs = BY_NAME[name].inputs(padded=True)
    with autocast(precision):
        return captured_of(model, options={"dtype": "fp16" if "kept" in precision else None}, **inputs).traces


@cache
def right(precision: str) -> tuple[Trace, Report]:
    """A correct trace of BERT, and what is found in it."""
    trace = traced("BertModel", precision)[0]
    return trace, trace.verify()


RIGHT = ("BertModel", "RobertaModel", "LlamaModel", "MistralModel", "ModernBertModel", "GPT2Model", "T5Model")


@pytest.mark.parametrize(("name", "implementation", "precision"), in_turn(RIGHT, ("sdpa", "eager"), PRECISIONS))
def test_every_right_capture_agrees(name: str, implementation: str, precision: str) -> None:
    for trace in traced(name, precision, implementation):
        report = trace.verify(reference=trace.row == 1)  # outside autocast, as users call it; the padded text
        assert report.agrees, report
        # Which id enters is undecided where all do, as after an encoder.
        assert trace.row == 0 or [name for name, _ in report.skipped] in ([], ["tokens"][: trace.stack == "cross"])


class Injected:
    """Move one number of one comparison a given number of tolerances away from its expected value.

    Args:
        check: the unchanged comparison's result.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, check: Check, factor: float) -> None:
        self.done = False
        original = Worst.see

        def see(worst: Worst, ours: Any, theirs: Any, axes: Any, *, allowed: Any = None, **given: Any) -> None:
            ours = np.array(ours, dtype=np.float64)
            if worst._fixed["name"] == check.name and ours.size and not self.done:
                self.done = True
                at = (0,) * ours.ndim
                limit = check.tolerance if allowed is None else np.broadcast_to(allowed, ours.shape)[at]
                ours[at] = np.asarray(theirs)[at] + factor * limit
            original(worst, ours, theirs, axes, allowed=allowed, **given)

        monkeypatch.setattr(Worst, "see", see)


def checked(report: Report, name: str) -> Check:
    return next(check for check in report.checks if check.name == name)


def assert_both_sides(patch: pytest.MonkeyPatch, trace: Trace, before: Report, check: str, factor: float) -> None:
    injected = Injected(patch, checked(before, check), factor)
    report = trace.verify(reference=check in ("weights (eager)", "hidden states"))
    assert injected.done
    assert checked(report, check).agrees == (factor < 1)
    assert all(one.agrees for one in report.checks if one.name != check)


@pytest.mark.parametrize("factor", [0.99, 4.0])
@pytest.mark.parametrize("check", ["row sums", "module output", "weights (eager)"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_both_sides_of_every_tolerance_of_a_capture(
    monkeypatch: pytest.MonkeyPatch, precision: str, check: str, factor: float
) -> None:
    assert_both_sides(monkeypatch, *right(precision), check, factor)


PARTS = ("queries", "keys", "values", "weights", "context")


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Report]:
    """The trace of a checkpoint as a file kept it, and what is found in it."""
    folder = tmp_path_factory.mktemp("saved")
    made(folder / "bert", "Bert")
    model = hs.open(folder / "bert")
    trace = hs.load(model.trace(ids=ids(10)).save(folder / "t.safetensors", dtype=request.param), model=model)
    return trace, trace.verify()


@pytest.mark.parametrize("factor", [0.99, 4.0])
@pytest.mark.parametrize("check", [*PARTS, "row sums", "sum over heads", "weights (eager)", "hidden states"])
def test_both_sides_of_every_tolerance_of_a_checkpoint(
    saved: tuple[Trace, Report], monkeypatch: pytest.MonkeyPatch, check: str, factor: float
) -> None:
    assert_both_sides(monkeypatch, *saved, check, factor)


def changed(trace: Trace, change: Callable[[LayerRecord], dict[str, Any]]) -> Trace:
    """The trace with its second layer changed and its log-sum-exps recomputed."""
    layers = list(trace.layers)
    layers[1] = dataclasses.replace(layers[1], lse=None, **change(layers[1]))
    return trace.replaced(layers=layers)


def swapped(array: np.ndarray) -> np.ndarray:
    """Swap two tokens."""
    order = np.arange(array.shape[1])
    order[[1, 3]] = order[[3, 1]]
    return array[:, order]


ERRORS: dict[str, Callable[[LayerRecord], dict[str, Any]]] = {
    "two queries swapped": lambda record: {"q": swapped(record.q)},
    "two keys swapped": lambda record: {"k": swapped(record.k)},
    "two values swapped": lambda record: {"v": swapped(record.v)},  # type: ignore[arg-type]
    "another scale": lambda record: {"scale": record.scale * 1.25},
    "a hidden key": lambda record: {"mask": dataclasses.replace(record.mask, keys=np.arange(record.k.shape[1]) != 2)},
    "a causal mask": lambda record: {"mask": dataclasses.replace(record.mask, causal=True)},
    "heads in another order": lambda record: {"q": record.q[::-1], "k": record.k[::-1]},
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_real_errors_are_found_in_every_precision(precision: str, error: str) -> None:
    trace, before = right(precision)
    assert before.agrees
    report = changed(trace, ERRORS[error]).verify(reference=False)
    assert not checked(report, "module output").agrees
    assert checked(report, "module output").layer == 1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_multihead_attention_agrees_and_differs(precision: str) -> None:
    for trace in traced("MultiheadAttention", precision):
        report = trace.verify()
        assert report.agrees, report
        record = dataclasses.replace(trace.layers[0], q=swapped(trace.layers[0].q), lse=None)
        assert not trace.replaced(layers=[record]).verify().agrees


@pytest.mark.parametrize("precision", ["fp32", "bf16", "kept in fp16"])
def test_a_log_sum_exp_that_is_off_shows_in_the_row_sums(precision: str) -> None:
    """On both sides of the tolerance, in any precision of the model: rows of weights are computed in fp32."""
    trace, before = right(precision)
    allowed = checked(before, "row sums").tolerance
    assert allowed < 1e-4
    for factor in (0.9, 4.0):
        lse = trace.layers[1].lse.copy()
        lse[2, 3] -= np.log1p(factor * allowed)
        layers = [trace.layers[0], dataclasses.replace(trace.layers[1], lse=lse)]
        moved = Trace(model="x", queries=trace.queries, layers=layers, outputs={})
        report = moved.verify()
        assert report.agrees == (factor < 1)
        assert report.agrees or report.checks[0].place == "layer 1, head 2, query 3"


HALVES = [torch.bfloat16, torch.float16]


def rotating(disabled: bool) -> Any:
    """A custom module that rotates in fp32, as many do, and calls the kernel."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).float().unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        q, k = q * torch.cos(q), k * torch.sin(k) + k
        with torch.autocast("cpu", enabled=False) if disabled else nullcontext():
            return scaled_dot_product_attention(q, k, v)

    project = nn.Linear(16, 48)
    with torch.no_grad():
        project.weight.mul_(4)
    return own(forward, project=project)


def assert_sums(trace: Trace) -> None:
    for layer in trace.numbers:
        np.testing.assert_allclose(trace[layer].weights[:].sum(-1), 1, atol=2e-6)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("disabled", [False, True])
def test_a_module_that_gives_fp32_to_the_kernel_under_autocast(dtype: torch.dtype, disabled: bool) -> None:
    model, x = rotating(disabled), torch.randn(2, 11, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        with Seen() as seen:
            model(x)
        captured = captured_of(model, x)
    assert seen.calls[0][0].dtype == (torch.float32 if disabled else dtype)
    for row, trace in enumerate(captured.traces):
        for ours, theirs in zip((trace.layers[0].q, trace.layers[0].k, trace.layers[0].v), seen.calls[0], strict=True):
            np.testing.assert_array_equal(ours, theirs[row].float().numpy())
        q, k = (x[row].double() for x in seen.calls[0][:2])
        np.testing.assert_allclose(trace[0].weights[:], torch.softmax(q @ k.mT / 8**0.5, -1), atol=1e-6)
        assert_sums(trace)
        assert trace.verify().agrees


FAMILIES = ("LlamaModel", "MistralModel", "ModernBertModel", "BertModel", "T5Model")


@pytest.mark.parametrize(
    ("name", "way", "dtype"),
    [
        *pairwise(FAMILIES, ("sdpa", "eager"), HALVES),
        *(("MultiheadAttention", way, dtype) for way in (False, True) for dtype in HALVES),
    ],
)
def test_models_under_autocast(name: str, way: str | bool, dtype: torch.dtype) -> None:
    """RoPE leaves q and k in fp32, and autocast casts them at the product; nn.MultiheadAttention returns weights."""
    if isinstance(way, str):
        model, inputs = built(name, padded=True)
        model.set_attn_implementation(way)
    else:
        torch.manual_seed(0)
        model = nn.MultiheadAttention(16, 2, batch_first=True).eval()
        inputs = {**dict.fromkeys(("query", "key", "value"), 3 * torch.randn(2, 9, 16)), "need_weights": way}
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        alone, (output, captured) = model(**inputs)[0], passed(model, **inputs)
        assert torch.equal(output[0], alone) or name == "MultiheadAttention"
        for trace in captured.traces:
            assert_sums(trace)
            for record in trace.layers:
                for kept in (record.q, record.k, record.v):
                    again = torch.from_numpy(kept).to(dtype).float().numpy()
                    np.testing.assert_array_equal(kept, again)
            report = trace.verify(reference=trace.row == 1)
            assert report.agrees, report


def test_flash_attention_is_given_what_transformers_casts_to() -> None:
    """As in transformers' flash_attention_forward: autocast's precision, or that of the module's weights."""
    module = nn.Sequential(nn.Linear(2, 2).to(torch.bfloat16))
    q = torch.zeros(1, 1, 2, 2)
    assert product_dtype("flash_attention_2", module, q) == torch.bfloat16
    assert product_dtype("flash_attention_2", module, q.half()) == torch.float16
    assert product_dtype("sdpa", module, q) == torch.float32
    with torch.autocast("cpu", dtype=torch.float16):
        assert product_dtype("flash_attention_2", module, q) == torch.float16
        assert product_dtype("eager", module, q) == torch.float16
        assert product_dtype("sdpa", module, q.double()) == torch.float64
        with torch.autocast("cpu", enabled=False):
            assert product_dtype("sdpa", module, q) == torch.float32


def bert(dtype: torch.dtype, tokens: int, heads: int) -> Any:
    sizes = {"hidden_size": 64 * heads, "num_hidden_layers": 1, "num_attention_heads": heads, "intermediate_size": 8}
    config = transformers.BertConfig(**sizes, vocab_size=99, max_position_embeddings=tokens)
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query.weight" in name or "key.weight" in name:
                parameter.mul_(6)
    return model.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("tokens", [128, 512])
def test_weights_are_as_exact_as_eager_attention_s(tokens: int, dtype: torch.dtype) -> None:
    """Both are compared with a softmax in fp64 of the same q and k, head by head."""
    model = bert(dtype, tokens, heads=4)
    ids = torch.randint(0, 99, (1, tokens), generator=torch.Generator().manual_seed(1))
    trace = captured_of(model, ids).trace
    q, k = (torch.from_numpy(part) for part in (trace.layers[0].q, trace.layers[0].k))
    exact = torch.softmax(trace.layers[0].scale * q.double() @ k.double().mT, -1)
    eager = torch.softmax((q.to(dtype) @ k.to(dtype).mT) * trace.layers[0].scale, -1)
    ours, theirs = (np.abs(x - exact.numpy()).max() for x in (trace[0].weights[:], eager.double().numpy()))
    assert exact.max() > 0.3
    assert ours <= 2 * theirs + 5e-7, "a kernel's log-sum-exps are ten times as far off"
    assert_sums(trace)


def test_log_sum_exps_are_computed_on_demand_and_saved_in_fp64(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(wraps=layer_records.log_sum_exps)
    monkeypatch.setattr(layer_records, "log_sum_exps", counted)
    _, captured, _ = pass_of(BY_NAME["BertModel"], padded=False)
    trace = captured.traces[0]
    assert trace.nbytes > 0
    assert not counted.call_count
    first = trace[1, 0].weights[0, 0]
    assert trace[1, 2].weights[3, 3] > 0
    assert counted.call_count == 1, "once for a layer"
    again = load(trace.save(tmp_path / "t.safetensors"))
    assert counted.call_count == 2
    assert again[1, 0].weights[0, 0] == first
    np.testing.assert_array_equal(again.layers[0].lse, trace.layers[0].lse)
    assert counted.call_count == 2, "what was saved is read"


def test_memory_of_log_sum_exps_is_linear() -> None:
    q, k = np.random.default_rng(0).normal(size=(2, 2, 6000, 4)).astype("f4")
    with Peak() as peak:
        log_sum_exps(q, k, scale=0.5, mask=Mask(causal=True))
    assert peak.bytes < 40 * TILE_CELLS < 6000 * 6000


# Products that PyTorch may round. No processor of ours does, so an attention function that does stands for a GPU.

MATMUL, MKLDNN = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul


def cut(x: torch.Tensor) -> torch.Tensor:
    """With the ten bits that TF32 keeps of a number's fraction."""
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def in_tf32(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, **given: Any) -> Any:
    weights = torch.softmax(cut(q) @ cut(k).mT * scaling, -1)
    return (cut(weights) @ cut(v)).transpose(1, 2).contiguous(), None


def without_a_key(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, **given: Any) -> Any:
    scores = q @ k.mT * scaling
    scores[:, 1, 3, 2] = -torch.inf
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).contiguous(), None


@pytest.fixture
def products() -> Iterator[None]:
    """PyTorch's settings, as they were before the test."""
    yield
    torch.set_float32_matmul_precision("highest")
    for backend in (torch.backends, MATMUL, MKLDNN):
        backend.fp32_precision = "none"


def settings() -> list[object]:
    """All that says how products are computed; "mixed" where PyTorch can't say."""

    def read(find: Callable[[], object]) -> object:
        try:
            return find()
        except RuntimeError:
            return "mixed"

    own = (lambda: MATMUL.fp32_precision, lambda: MKLDNN.fp32_precision, lambda: torch.backends.fp32_precision)
    return [read(find) for find in (lambda: MATMUL.allow_tf32, torch.get_float32_matmul_precision, *own)]


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize(
    ("allow", "expected"),
    [
        (lambda: setattr(MATMUL, "allow_tf32", True), {"cuda": "high", "cpu": "highest"}),
        (lambda: torch.set_float32_matmul_precision("high"), {"cuda": "high", "cpu": "high"}),
        (lambda: torch.set_float32_matmul_precision("medium"), {"cuda": "high", "cpu": "medium"}),
        (lambda: setattr(MATMUL, "fp32_precision", "tf32"), {"cuda": "high", "cpu": "highest"}),
        (lambda: setattr(torch.backends, "fp32_precision", "tf32"), {"cuda": "high", "cpu": "high"}),
        (lambda: None, {"cuda": "highest", "cpu": "highest"}),
    ],
    ids=["allow_tf32", "high", "medium", "cuda", "everywhere", "nothing"],
)
def test_products_are_exact_in_the_block_and_as_before_after_it(
    allow: Callable[[], None], expected: dict[str, str]
) -> None:
    allow()
    before = settings()
    assert matmul_precision() == expected
    with exact_products():
        with exact_products():
            assert {MATMUL.fp32_precision, MKLDNN.fp32_precision} <= {"ieee", "none"}
        assert {MATMUL.fp32_precision, MKLDNN.fp32_precision} <= {"ieee", "none"}
        assert matmul_precision() == expected  # what a model in another thread was allowed
    assert settings() == before


@pytest.mark.usefixtures("products")
def test_products_are_exact_in_older_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_MATMULS", ())
    torch.set_float32_matmul_precision("medium")
    assert matmul_precision() == {"cuda": "medium", "cpu": "medium"}
    with exact_products():
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == "medium"


@pytest.mark.usefixtures("products")
def test_products_are_exact_until_the_last_thread_is_done() -> None:
    MATMUL.fp32_precision = "tf32"
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(exact_products())
        second.enter_context(exact_products())
        first.close()
        assert MATMUL.fp32_precision == "ieee"
        second.close()
    assert MATMUL.fp32_precision == "tf32"


@pytest.mark.usefixtures("products", "registered")
def test_attention_whose_products_are_rounded() -> None:
    for attend in (in_tf32, without_a_key):
        AttentionInterface.register(attend.__name__, attend)
    model = BY_NAME["BertModel"].build()
    ids = torch.randint(3, 99, (2, 12), generator=torch.Generator().manual_seed(2))

    def captured_under(name: str, implementation: str) -> list[Trace]:
        torch.set_float32_matmul_precision(name)
        model.set_attn_implementation(implementation)
        return list(captured_of(model, ids).traces)

    for name, implementation in (("highest", "in_tf32"), ("high", "without_a_key")):
        with pytest.raises(UnsupportedError, match="something other than softmax"):
            captured_under(name, implementation)
    for implementation in ("in_tf32", "sdpa"):
        for trace in captured_under("high", implementation):
            assert trace.verify().agrees
            q, k = (torch.from_numpy(x).double() for x in (trace.layers[1].q, trace.layers[1].k))
            np.testing.assert_allclose(
                trace[1].weights[:], torch.softmax(q @ k.mT * trace.layers[1].scale, -1), atol=1e-6
            )
    assert settings()[:2] == [True, "high"]
