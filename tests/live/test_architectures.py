"""Models of transformers: which the documentation lists; every weight against eager attention, every output."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers
from comparing import PADDABLE, assert_same_weights, captured_of, eager_attentions, own, pass_of, watched
from torch import nn
from transformers import models

from families import BY_NAME, FAMILIES, IN_GROUPS, Family, built
from headscope.errors import TraceError, UnsupportedError
from headscope.live import capture
from headscope.live.plan.classes import kind_of, names_used
from headscope.live.plan.refusals import REASONS, WITHOUT_WEIGHTS
from headscope.live.seeing.readers import READERS, reader_of
from headscope.page.trace import page_bytes
from random_models import FAMILIES as OPENED
from random_models import ids, random_model


@dataclass(frozen=True)
class Architecture:
    """One folder of transformers.models.

    Attributes:
        name: the folder's name.
        reads: True if it has attention that capture reads.
        inside: classes that compute attention themselves and have a reader.
        alone: classes that compute attention themselves and have none.
        terms: features of its config that become score terms: soft caps, sinks.
    """

    name: str
    reads: bool
    inside: tuple[str, ...]
    alone: tuple[str, ...]
    terms: tuple[str, ...]


def architectures() -> Iterator[Architecture]:
    """Every architecture with a modeling file that can be imported here."""
    for folder in pkgutil.iter_modules(models.__path__):
        classes = [cls for file in _modeling_files(folder.name) for cls in _modules_of(file)]
        if not classes:
            continue
        kinds = {cls: kind_of(cls) for cls in classes}
        used = frozenset(name for cls, kind in kinds.items() if not kind.is_model for name in names_used(cls))
        reads = any(kind.uses_interface or kind.calls_sdpa or reader_of(cls) for cls, kind in kinds.items())
        inside = sorted(cls.__name__ for cls in classes if reader_of(cls))
        alone = sorted(
            one.__name__ for one, kind in kinds.items() if kind.computes_own_attention and not reader_of(one)
        )
        terms = (("attn_logit_softcapping", "soft cap"), ("sinks", "sinks"))
        yield Architecture(
            folder.name,
            reads or "MultiheadAttention" in used,
            tuple(inside),
            tuple(alone),
            tuple(word for name, word in terms if name in used),
        )


def _modeling_files(name: str) -> Iterator[ModuleType]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old architectures warn that they are deprecated
        folder = importlib.import_module(f"{models.__name__}.{name}")
        for file in pkgutil.iter_modules(getattr(folder, "__path__", ())):
            if file.name.startswith("modeling_"):
                try:
                    yield importlib.import_module(f"{folder.__name__}.{file.name}")
                except ImportError:
                    continue  # it requires a library that is not installed, so it can't run here either


def _modules_of(file: ModuleType) -> list[type]:
    return [
        cls
        for cls in vars(file).values()
        if inspect.isclass(cls) and issubclass(cls, nn.Module) and cls.__module__ == file.__name__
    ]


def as_markdown(listed: list[Architecture], compared: set[str]) -> str:
    """The lists of docs/reference/architectures.md.

    Args:
        compared: architectures whose weights the tests compare with transformers' eager attention.
    """
    read = [each for each in listed if each.reads]
    refused = [each for each in listed if not each.reads and each.alone]
    none = [each.name for each in listed if not each.reads and not each.alone]
    proven = [each.name for each in read if each.name in compared]
    why = {
        each.name: "; ".join(dict.fromkeys(REASONS[name] for name in each.alone if name in REASONS)) for each in refused
    }
    by_notes = {notes: [each.name for each in read if _notes(each) == notes] for notes in map(_notes, read) if notes}
    plain = [f"{each.name} ({', '.join(each.alone)})" for each in refused if not why[each.name]]
    return "\n\n".join(
        [
            f"Of {len(listed)} architectures, {len(read)} are read, {len(proven)} of which the tests compare cell by "
            f"cell; {len(refused)} have attention classes without a reader; {len(none)} "
            "have no attention of their own.",
            f"## Read ({len(read)})",
            "In the tests, every weight of these is compared with transformers' own eager attention:",
            _names(proven),
            "Contexts of these, as of all others, are recomputed and compared while they run:",
            _names(each.name for each in read if each.name not in compared),
            "A reader turns a class's inputs into Q, K, V and score terms. An exception is a class that isn't read.",
            _table(("architectures", "notes"), ([", ".join(names), notes] for notes, names in by_notes.items())),
            f"## Not read ({len(refused)})",
            "These classes compute their attention themselves, each in its own way, and have no reader:",
            _names(plain),
            "For these there is a reason, too:",
            _table(
                ("architecture", "classes", "why"),
                ([each.name, _code(each.alone), why[each.name]] for each in refused if why[each.name]),
            ),
            f"## Without attention of their own ({len(none)})",
            "These mix their tokens otherwise:",
            _table(
                ("architecture", "why"), ([name, WITHOUT_WEIGHTS[name]] for name in none if name in WITHOUT_WEIGHTS)
            ),
            "Of the others, it depends on the model inside them whether that is read:",
            _names(name for name in none if name not in WITHOUT_WEIGHTS),
        ]
    )


def _notes(each: Architecture) -> str:
    notes = [f"own reader: {_code(each.inside)}"] if each.inside else []
    notes += [f"with {' and '.join(each.terms)}"] if each.terms else []
    notes += [f"except {_code(each.alone)}"] if each.alone else []
    return "; ".join(notes)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _names(names: Iterable[str]) -> str:
    """A block of names; what stands in brackets after a name stays on its line."""
    listed = ", ".join(name.replace(" ", "\N{NO-BREAK SPACE}") for name in names)
    lines = textwrap.fill(listed, 120, break_long_words=False, break_on_hyphens=False)
    return f"```text\n{lines}\n```".replace("\N{NO-BREAK SPACE}", " ")


def _table(columns: tuple[str, ...], rows: Iterable[list[str]]) -> str:
    return "\n".join(
        [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), *(f"| {' | '.join(row)} |" for row in rows)]
    )


DOCS = Path(__file__).parents[2] / "docs" / "reference" / "architectures.md"
BLOCK = re.compile(r"(<!-- architectures of transformers (\S+) -->\n).*(\n<!-- end -->)", re.DOTALL)


@pytest.mark.slow  # imports every architecture of transformers
def test_the_documented_architectures_are_those_of_the_installed_version(pytestconfig: pytest.Config) -> None:
    """`pytest --refresh-screens` rewrites the lists. They are compared if the documented version is installed."""
    installed = list(architectures())
    compared = {getattr(transformers, family.name).__module__.split(".")[2] for family in FAMILIES}
    lists = as_markdown(installed, compared)
    text = DOCS.read_text(encoding="utf-8")
    if pytestconfig.getoption("--refresh-screens"):
        block = f"<!-- architectures of transformers {transformers.__version__} -->\n{lists}\n<!-- end -->"
        text = BLOCK.sub(lambda _: block, text)
        DOCS.write_text(text, encoding="utf-8")
    kept = BLOCK.search(text)
    if kept[2] == transformers.__version__:
        assert kept[0].split("\n", 1)[1].rsplit("\n", 1)[0] == lists
    by_name = {one.name: one for one in installed}
    assert all(by_name[name].reads or not by_name[name].alone for name in compared)
    classes = {name for one in installed for name in (*one.inside, *one.alone)}
    assert REASONS.keys() <= classes, "a reason for a class that no longer exists"
    assert {name.rpartition(".")[2] for name in READERS} <= classes | {"FalconAttention"}


@contextmanager
def given_by_projections(model: nn.Module, given: dict[str, list[torch.Tensor]]) -> Iterator[None]:
    """Outputs of every Linear and Conv1D by name; nn.MultiheadAttention calls its own without running hooks."""

    def note(module: nn.Module, args: Any, output: Any, path: str) -> None:
        given.setdefault(path, []).append(output[0] if isinstance(output, tuple) else output)

    handles = []
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            handles.append(module.register_forward_hook(partial(note, path=f"{path}.out_proj")))
        elif isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            handles.append(module.register_forward_hook(partial(note, path=path)))
    yield
    for handle in handles:
        handle.remove()


def assert_heads_add_up(captured: Any, model: nn.Module, given: dict[str, list[torch.Tensor]]) -> None:
    """Compare the sum over heads of context W_O, plus the bias, with what the projection gave in another pass."""
    for trace in captured.traces:
        for place, layer in enumerate(trace.numbers):
            total = np.sum([trace[layer, head].output for head in range(trace.heads)], axis=0)
            path = trace.source._projections[layer].paths[0]
            bias: Any = model.get_submodule(path).bias
            calls = [x for x in given[path] if x.numel() == 2 * trace.cut.sizes[0] * x.shape[-1]]
            theirs = calls[place % len(calls)].reshape(2, trace.cut.sizes[0], -1)
            size = max(1.0, float(theirs.abs().max()))
            total = total + (0 if bias is None else bias.detach().numpy())
            np.testing.assert_allclose(total, theirs[trace.row].numpy()[trace.positions], atol=2e-5 * size)


@pytest.mark.parametrize("family", [*FAMILIES, IN_GROUPS], ids=str)
def test_weights_are_the_eager_ones_and_outputs_the_projections(family: Family) -> None:
    model, inputs = family.build(), family.inputs(padded=family in PADDABLE)
    given: dict[str, list[torch.Tensor]] = {}
    captured = watched(model, inputs, given_by_projections(model, given))
    expected = eager_attentions(model, inputs, family.stacks)
    peak = assert_same_weights(
        captured, expected, 1e-4 if family.name.startswith(("T5", "MT5", "UMT5", "Switch")) else 2e-5
    )
    assert peak > 0.04, "near-uniform attention would hide mistakes"
    assert captured.traces[0].layers[0].stage == family.stage
    if family in PADDABLE and family.takes == "text":
        assert [len(trace) for trace in captured.traces] == [7, 5]
        assert captured.traces[1].ids == tuple(inputs["input_ids"][1, :5].tolist())
    assert_heads_add_up(captured, model, given)


# W_O: what is no one matrix, has changed since, or is gone.


def beside(forward: Callable[[Any, torch.Tensor], torch.Tensor], **parts: Any) -> Callable[[nn.Linear], Any]:
    """A Linear, and beside it modules or numbers that multiply the contexts too, or some of them."""
    return lambda base: own(lambda self, x: self.base(x) + forward(self, x), base=base, **parts)


def low_rank() -> list[nn.Parameter]:
    return [nn.Parameter(torch.randn(32, 2)), nn.Parameter(torch.randn(2, 32))]


LORA = {"down": nn.Linear(32, 2, bias=False), "up": nn.Linear(2, 32, bias=False)}


def held(holder: nn.Module) -> Callable[[nn.Linear], Any]:
    """Low-rank additions whose parameters are in a module that computes nothing: peft's LoHa, VeRA, FourierFT, …"""

    def added(self: Any, x: torch.Tensor) -> torch.Tensor:
        down, up = self.held.parameters()
        return x @ down @ up

    return beside(added, held=holder)


def around(
    active: str, read: Callable[[torch.Tensor], torch.Tensor], *of_rows: str
) -> Callable[[nn.Linear], nn.Module]:
    """The same as peft's LoRA: its parts have adapters' names, and read a copy of some rows, or dropped contexts."""

    def forward(self: Any, x: torch.Tensor, adapter_names: tuple[str, ...] = ()) -> torch.Tensor:
        result = self.base_layer(x)
        if "one" in (active, *adapter_names):
            result[: len(read(x))] += self.parts["one"](read(x))
        return result

    def adapt(base: nn.Linear) -> nn.Module:
        made = own(forward, base_layer=base, parts=nn.ModuleDict({"one": nn.Linear(base.in_features, 32)}))
        made.active_adapters, made.disable_adapters, made.merged = [active], False, False
        if of_rows:
            made.register_forward_pre_hook(lambda module, x, _: (x, {"adapter_names": of_rows}), with_kwargs=True)
        return made

    return adapt


def with_buffer(base: nn.Linear) -> Any:
    made = own(lambda self, x: self.base(x) + x @ self.more, base=base)
    made.register_buffer("more", torch.randn(base.in_features, base.out_features))
    return made


def one_number() -> Any:
    """A module with a number of its own, which reads the bits of fp32."""
    return own(lambda self, bits: self.weight * bits.view(torch.float32), weight=nn.Parameter(torch.ones(1)))


def rotated(base: nn.Linear) -> Any:
    """A Linear that reads rotated contexts; beside it stands its weight, as in peft's OFT, HRA, IA3, …"""
    made = own(lambda self, x: self.base(x @ self.turn), base=base)
    made.turn, made.weight = nn.Parameter(torch.randn(base.in_features, base.in_features)), base.weight
    return made


def by_heads(self: Any, x: torch.Tensor) -> torch.Tensor:
    """A Linear of one head's contexts, for each of them."""
    return self.part(x.unflatten(-1, (4, 8))).flatten(-2)


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
    model, inputs = built("LlamaModel")
    attention = model.layers[0].self_attn
    attention.o_proj = change(attention.o_proj)
    captured = captured_of(model, **inputs)
    return model, captured.traces[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (beside(lambda self, x: self.up(self.down(x)), **LORA), "2 modules read the contexts"),
        (beside(lambda self, x: x @ self.down @ self.up, **dict(zip(LORA, low_rank(), strict=True))), "2 modules read"),
        (held(nn.ParameterList(low_rank())), "2 modules read the contexts"),
        (
            held(nn.ModuleDict({"default": nn.ParameterDict(dict(zip("ab", low_rank(), strict=True)))})),
            "2 modules read the contexts",
        ),
        (with_buffer, "2 modules read the contexts"),
        (around("two", lambda x: x[:1].clone(), "__base__", "one"), "2 modules read the contexts"),
        (around("one", nn.functional.dropout), "2 modules read the contexts"),
        (beside(lambda self, x: self.more(x.mT).mT, more=nn.Conv1d(32, 32, 1)), "2 modules read the contexts"),
        (beside(lambda self, x: self.more(self.norm(x)), norm=nn.LayerNorm(32), more=nn.Linear(32, 32)), "o_proj.norm"),
        (beside(lambda self, x: self.more(x[:, 2:3]), more=nn.Linear(32, 32)), "2 modules read the contexts"),
        (beside(lambda self, x: self.more(x[..., 16:]), more=nn.Linear(16, 32)), "2 modules read the contexts"),
        (beside(lambda self, x: self.more(input=x), more=nn.Linear(32, 32)), "2 modules read the contexts"),
        (beside(lambda self, x: self.more(x.new_ones(2, 7, 1), x), more=nn.Bilinear(1, 32, 32)), "2 modules read the"),
        (beside(lambda self, x: self.more(x.view(torch.float64)), more=one_number()), "2 modules read the contexts"),
        (beside(lambda self, x: self.more(x.view(torch.int32)), more=one_number()), "2 modules read the contexts"),
        (lambda projection: own(by_heads, part=nn.Linear(8, 8)), r"unchanged, so there is no W_O\nwhere"),
        (lambda projection: nn.Sequential(nn.LayerNorm(32), projection), r"o_proj\.0 does, which is not a plain"),
        (rotated, r"no Linear reads the contexts .*: layers\.0\.self_attn\.o_proj does"),
        (OwnLinear.of, r"OwnLinear\) overrides forward"),
    ],
)
def test_a_projection_that_is_not_one_matrix_raises(change: Any, message: str) -> None:
    model, trace = llama(change)
    with pytest.raises(UnsupportedError, match=message) as caught:
        trace[0, 0].output
    assert caught.value.advice
    assert trace[1, 0].output.shape == (7, model.config.hidden_size)
    assert "view.writes" not in safetensors.numpy.load(page_bytes(trace))


def test_a_sparse_argument_is_in_no_memory_of_contexts() -> None:
    more = own(lambda self, graph: graph @ self.weight, weight=nn.Parameter(torch.randn(7, 32)))
    _, trace = llama(beside(lambda self, x: self.more(torch.eye(7).to_sparse()), more=more))
    assert trace[0, 0].output.shape == (7, 32)


@pytest.mark.parametrize("idle", ["disable_adapters", "merged", "not used"])
def test_an_adapter_that_is_idle_leaves_its_linear_the_projection(idle: str) -> None:
    def change(base: nn.Linear) -> Any:
        if idle == "not used":
            return around("two", torch.clone)(base)
        made = held(nn.ParameterList(low_rank()))(base)
        setattr(made, idle, True)
        made.forward = lambda x: base(x)
        return made

    model, trace = llama(change)
    contexts = torch.cat([torch.as_tensor(trace[0, head].context[:]) for head in range(trace.heads)], -1)
    total = sum(torch.as_tensor(trace[0, head].output[:]) for head in range(trace.heads))
    torch.testing.assert_close(total, model.layers[0].self_attn.o_proj(contexts), atol=1e-5, rtol=1e-5)


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


def stepped(model: Any) -> None:
    model.train()
    model(torch.arange(5)[None])[0][..., 0].sum().backward()
    torch.optim.SGD(model.parameters(), lr=10.0).step()
    model.eval()


def averaged(model: Any) -> None:
    """As libraries for moving averages do: version counters don't tell."""
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data * 0.9)


def pruned(model: Any) -> None:
    model.encoder.layer[1].attention.output.dense.weight.data[3, 7] = 2.0


CHANGES: dict[str, Callable[[Any], Any]] = {
    "stepped": stepped,
    "loaded": lambda model: model.load_state_dict({name: x + 0.5 for name, x in model.state_dict().items()}),
    "averaged": averaged,
    "pruned": pruned,
    "replaced": lambda model: setattr(model.encoder.layer[1].attention.output, "dense", nn.Linear(32, 32).eval()),
    "taken out": lambda model: model.encoder.layer.__delitem__(1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_have_changed_since(change: str) -> None:
    """An output has the numbers of its pass, or is refused; a second run with other weights would tell nothing."""
    model, captured, _ = pass_of(BY_NAME["BertModel"], padded=False)
    trace = captured.traces[0]
    before = trace[1, 0].output
    assert trace.verify().skipped == ()
    CHANGES[change](model)
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
    model, inputs = built("BertModel")
    with torch.no_grad(), capture(model) as captured:
        model(**inputs)
        pruned(model)
        model(**inputs)
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


@pytest.mark.parametrize("stem", OPENED)
def test_every_family_that_is_opened_is_captured(stem: str) -> None:
    """Surveys and verify() run transformers' own classes."""
    with torch.no_grad(), capture(model := random_model(stem)) as captured:
        model(input_ids=torch.tensor([ids(7)]))
    assert captured.trace.numbers == tuple(range(len(captured.trace.layers)))
    assert captured.trace.verify().agrees
