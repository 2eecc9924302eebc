"""Attention that is read from inside: score terms, outputs, silenced heads, generation, and what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from comparing import assert_weights, captured_of, pass_of, passed, softmax_of, split

from families import BY_NAME, DEBERTA, DEBERTA_V2, DECODER, EAGER, FAMILIES, T5, TEXT, VISION, Family
from headscope.errors import UnsupportedError
from headscope.live import ablate, capture, checking
from headscope.live.masks import analyst as masks
from headscope.live.seeing import inside
from headscope.live.seeing.readers import deberta
from headscope.live.seeing.readers.reading import Arguments
from largest import Largest

pytestmark = pytest.mark.usefixtures("no_grad")

NAMES = ("Deberta", "MPNet", "RoFormer", "Megatron", "RemBert", "Tapas", "VisualBert", "BlipText")
NAMES += ("XLMModel", "Flaubert", "Bloom", "Mpt", "Falcon")
READ = [family for family in FAMILIES if family.name.startswith(NAMES)]
ALIKE = [[family for family in READ if family.name == name] for name in dict.fromkeys(one.name for one in READ)]
WITH_TERMS = [family for family in FAMILIES if family.name.startswith((*NAMES, "Gemma2", "GptOss", "T5", "UMT5"))]

TERMS = {
    "DebertaModel-both relative terms": ("relative_keys", "relative_queries"),
    "DebertaModel-one relative term": ("relative_queries",),
    "DebertaModel-no relative terms": (),
    "DebertaV2Model-no buckets": ("relative_keys",),
    "DebertaV2Model-projections of their own": ("relative_keys", "relative_queries"),
    "MPNetModel-position bias": ("by_distance",),
    "RoFormerModel": (),
    "BloomModel-ALiBi": ("by_key",),
    "MptModel-ALiBi": ("by_key",),
    "Gemma2Model-soft cap": ("cap",),
    "GptOssModel-sinks": ("sinks",),
    "T5Model-position bias, no scale": ("by_distance",),
}


@pytest.mark.parametrize("family", WITH_TERMS, ids=str)
def test_terms_are_tables_and_every_check_agrees(family: Family) -> None:
    """That the weights are transformers' is tested in test_architectures.py."""
    _, captured, _ = pass_of(family)
    assert {str(family): captured.traces[0].layers[-1].terms.named}.items() <= TERMS.items() or str(family) not in TERMS
    for trace in captured.traces:
        assert trace.layers[0].mask.bias is None
        report = trace.verify(reference=trace.row == 1)  # the shorter text, which is padded
        assert report.agrees, report
        again = ["tokens", "weights (eager)"] * (trace.row == 1)
        assert [check.name for check in report.checks] == ["row sums", "module output", *again]
    assert not captured.unrecorded


@pytest.mark.parametrize(
    ("family", "way", "adapted"),
    [  # each class in all of these ways, in which its families take turns
        (family, way, adapted)
        for alike in [[BY_NAME["BertModel"]], *ALIKE]
        for number, family in enumerate(alike)
        for at, (way, adapted) in enumerate([("zero", False), ("mean", False), ("zero", True)])
        if (at - number) % min(3, len(alike)) == 0
    ],
    ids=str,
)
def test_silenced_heads(family: Family, way: str, adapted: bool) -> None:
    """Silencing head 1 of layer 1 is the same as changing what its projection is given, with an adapter or without."""
    model, inputs = family.build(), family.inputs(padded=True)
    names = ("attention.output.dense", "attn.o", "self_attention.dense", "attn.out_proj", "out_lin")
    linear = [part for name, part in model.named_modules() if name.endswith(names)][1]
    heads = getattr(model.config, "num_attention_heads", 4)
    if adapted:
        plain, weight = linear.forward, linear.weight
        linear.forward = lambda x: plain(x) + x.tanh() @ weight  # type: ignore[method-assign]

    def changed(module: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        x = args[0].clone()
        one = slice(x.shape[-1] // heads, 2 * x.shape[-1] // heads)
        for row, kept in enumerate(inputs["attention_mask"].bool()):
            x[row, :, one] = 0 if way == "zero" else x[row, kept][:, one].mean(0)
        return (x,)

    with ablate(model, {(1, 1): way}):
        output, captured = passed(model, **inputs)
    handle = linear.register_forward_pre_hook(changed)
    expected = model(**inputs)[0]
    handle.remove()
    assert not torch.allclose(model(**inputs)[0], expected, atol=1e-3)
    kept = inputs["attention_mask"].bool()
    torch.testing.assert_close(output[0][kept], expected[kept], atol=2e-5, rtol=1e-4)
    assert captured.traces[0].ablated == {(1, 1)}
    assert captured.traces[0][1, 1].silenced
    assert captured.traces[0].verify().agrees


PADDING = {
    "between tokens": [[1, 1, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]],
    "left": [[1] * 7, [0, 0, 1, 1, 1, 1, 1]],
    "none": [[1] * 7, [1] * 7],
}
KEEP = ("drop", "keep")
BLIND = torch.tensor([[1, 1, 0, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1, 1]]).bool()[:, None, None] & torch.tensor(
    [[0] * 7, *([1] * 7 for _ in range(5)), [0] * 7], dtype=torch.bool
)


TAKES_PAIRS = [family for family in READ if family.name.startswith(("MPNet", "RoFormer", "Mpt"))]
HIDDEN = [*((padding, keep) for padding in ("between tokens", "left") for keep in KEEP), ("none", "drop")]
SEEN = [  # each class with all of them; its families take turns, and the other products are slow
    pytest.param(family, PADDING[padding], keep, marks=[pytest.mark.slow][(at - number) % len(alike) == 0 :])
    for alike in ALIKE
    for number, family in enumerate(alike)
    for at, (padding, keep) in enumerate(HIDDEN)
]
SEEN += [(family, BLIND, keep) for family in TAKES_PAIRS for keep in KEEP]


@pytest.mark.parametrize(("family", "padding", "keep"), SEEN)
def test_weights_are_those_that_the_model_returns_itself(family: Family, padding: Any, keep: Any) -> None:
    """Queries that see no key look at all alike where the module writes the lowest number over scores."""
    model = family.build()
    inputs = {**family.inputs(padded=False), "attention_mask": torch.as_tensor(padding), "output_attentions": True}
    output, captured = passed(model, options={"padding": keep}, **inputs)
    assert_weights(captured, output.attentions, 2e-6)
    again = keep == "drop" and (padding is BLIND or padding is PADDING["between tokens"])
    for trace in captured.traces:
        report = trace.verify(reference=again and trace.row == 0)
        assert report.agrees, report
        if keep == "drop" and padding is not BLIND:
            report = trace.verify(against=output.attentions)
            assert report.agrees, report
            assert report.checks[0].worst < 2e-6


@pytest.mark.parametrize("family", [READ[0], *(family for family in READ if family.name == "MptModel")], ids=str)
def test_a_reader_that_thinks_they_look_at_none_is_refused(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = family.build(), {**family.inputs(padded=False), "attention_mask": torch.tensor(PADDING["left"])}
    monkeypatch.setattr(masks.RawMask, "filled", lambda allowed, bias=None: masks.RawMask(mask=allowed, bias=bias))
    wrong = pytest.raises(UnsupportedError, match="computes something other than")
    with wrong, capture(model, padding="keep"):
        model(**inputs)
    monkeypatch.setattr(checking, "_sampled", lambda rule, queries: np.array([queries - 1]))
    captured = captured_of(model, options={"padding": "keep"}, **inputs)
    report = captured.traces[1].verify()
    assert [check.name for check in report.checks if not check.agrees] == ["module output"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", [READ[0], READ[4], *READ[8:9], *READ[11:13]], ids=str)
def test_half_precision(family: Family, dtype: torch.dtype) -> None:
    _, captured, _ = pass_of(family, dtype)
    for trace in captured.traces:
        report = trace.verify(reference=False)
        assert report.agrees, report


def test_captures_in_half_precision_and_of_some_heads() -> None:
    family = next(family for family in READ if str(family) == "DebertaV2Model-shared, convolution")
    _, whole, _ = pass_of(family)
    _, some, _ = pass_of(family, heads=[3, 1], layers=[1], dtype="fp16")
    record = some.traces[1].layers[0]
    assert record.terms.relative_keys.dtype == np.float16
    for head in (1, 3):
        np.testing.assert_allclose(some.traces[1][1, head].weights[:], whole.traces[1][1, head].weights[:], atol=2e-2)
    assert some.traces[1].verify().agrees


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("left", [False, True])
def test_falcons_alibi_is_counted_as_it_was(implementation: str, left: bool) -> None:
    """Once by SDPA, twice by its eager attention; against the formula written out."""
    family = Family("FalconModel", {**TEXT, "alibi": True, "attn_implementation": implementation})
    _, captured, _ = pass_of(family, padded=True, left=left)
    slopes = torch.tensor([2.0 ** (-2 * (h + 1)) for h in range(4)]).bfloat16().float()
    times = 1 if implementation == "sdpa" else 2
    for trace in captured.traces:
        record = trace.layers[1]
        assert record.terms.named == ("by_key",)
        assert record.mask.causal
        assert record.mask.bias is None
        q, k = (torch.from_numpy(part) for part in (record.q, record.k))
        size = len(trace)
        scores = (q @ k.transpose(1, 2) + times * slopes[:, None, None] * torch.arange(size)) / 8**0.5
        scores = scores.masked_fill(~torch.ones(size, size, dtype=torch.bool).tril(), float("-inf"))
        np.testing.assert_allclose(trace[1].weights[:], scores.softmax(-1), atol=1e-5)
        report = trace.verify()
        assert report.agrees
        assert [name for name, _ in report.skipped] == ["eager weights"] * (implementation == "sdpa")


def test_infinite_distances_as_cpus_and_gpus_convert_them() -> None:
    """transformers divides by log 1 if distances are clipped at 3; as whole numbers, infinities differ."""
    lowest, highest = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    for beyond in (lowest, highest):  # on a CPU both infinities are the lowest number
        relative = torch.tensor([[0, -1, lowest], [1, 0, -1], [beyond, 1, 0]])[None]
        expected = (relative + 3).clamp(0, 5)[0]  # as transformers looks up W_K's vectors
        assert torch.equal((3 - relative).clamp(0, 5)[0].T, expected)  # and W_Q's
        line = deberta.buckets_of(relative, 3, "")
        assert [[line[j - i + 2] for j in range(3)] for i in range(3)] == expected.tolist()
    with pytest.raises(UnsupportedError, match="not an odd function"):
        deberta.buckets_of(torch.tensor([[0, 1, 2], [1, 0, 1], [2, 1, 0]])[None], 3, "")


@pytest.mark.parametrize("name", ["DebertaModel", "DebertaV2Model", "MPNetModel", "BloomModel"])
def test_nothing_of_ours_is_as_large_as_a_map(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 512 tokens and 12 heads: while it is captured, in the trace, and in what is computed from it."""
    size, heads = 512, 12
    base = {"hidden_size": 96, "num_attention_heads": heads, "max_position_embeddings": size + 8}
    settings: dict[str, Any] = {
        "DebertaModel": {**DEBERTA, **base, "pos_att_type": ["c2p", "p2c"]},
        "DebertaV2Model": {**DEBERTA_V2, **base, "position_buckets": 256, "pos_att_type": ["c2p", "p2c"]},
        "MPNetModel": {**TEXT, **base},
        "BloomModel": {"hidden_size": 96, "n_layer": 2, "n_head": heads, "vocab_size": 99},
    }[name]
    model = Family(name, settings).build()
    watch = Largest()
    original = inside.observe_call

    def observed(*args: Any) -> Any:
        with watch:
            return original(*args)

    monkeypatch.setattr(inside, "observe_call", observed)
    captured = captured_of(model, torch.randint(3, 99, (1, size), generator=torch.Generator().manual_seed(1)))
    trace, layer_map = captured.trace, heads * size * size
    assert 0 < watch.cells <= layer_map / 3, "a block of rows at most"
    for record in trace.layers:
        tables = [getattr(record.terms, field) for field in record.terms.named]
        for array in (record.q, record.k, record.v, record.lse, record.terms.buckets, *tables):
            assert np.size(array) <= heads * 2 * size * record.q.shape[-1] < layer_map / 3
    with Largest() as computed:
        trace.statistics("entropy", engine="torch")
    assert computed.cells <= layer_map / 3
    assert trace.verify(reference=False).agrees


def causal(name: str, **settings: Any) -> Family:
    """The class of a family that generates."""
    return Family(f"{name}ForCausalLM", {**BY_NAME[f"{name}Model"].settings, **settings}, config=f"{name}Config")


GENERATING = [
    causal("Bloom"),
    causal("Mpt"),
    Family("FalconForCausalLM", {**TEXT, "alibi": True}, config="FalconConfig"),
    Family("T5ForConditionalGeneration", T5, config="T5Config"),
    causal("GptOss"),
    Family(
        "Gemma2ForCausalLM", {**DECODER, **EAGER, "head_dim": 8, "attn_logit_softcapping": 2.0}, config="Gemma2Config"
    ),
]


PROMPTS = {
    "input_ids": torch.randint(3, 99, (2, 7), generator=torch.Generator().manual_seed(1)),
    "attention_mask": torch.tensor([[1] * 7, [0, 0, *[1] * 5]]),
}


DECODED = torch.tensor([[0, 5, 6, 7], [0, 8, 9, 10]])
"""A decoder's prompts: the numbers of their distances are those of several queries."""


def generation(model: Any, **options: Any) -> tuple[Any, torch.Tensor]:
    """A capture of the tokens that a model generates after two prompts, and the sequences."""
    prompts = {**PROMPTS, **({"decoder_input_ids": DECODED} if model.config.is_encoder_decoder else {})}
    with capture(model, **options) as captured:
        sequences = model.generate(**prompts, max_new_tokens=5, do_sample=False, pad_token_id=0, eos_token_id=None)
    return captured, sequences


@pytest.mark.parametrize("family", GENERATING, ids=str)
def test_generated_sequences_have_the_terms_of_one_pass(family: Family) -> None:
    """The joined trace has the weights that one pass over the whole sequence has, with padding on the left, too."""
    model = family.build()
    captured, generated = generation(model)
    ids, mask = PROMPTS.values()
    sequences = [trace for trace in captured.generations if not trace.stack.startswith("cross")]
    assert len(sequences) == 2
    for row, trace in enumerate(sequences):
        assert trace.verify(reference=row == 0).agrees
        assert trace.layers[0].mask.bias is None
        at = slice(row, row + 1)
        given = {"input_ids": generated[at, 2 * row : -1]}
        if family.name.startswith("T5"):
            given = {"input_ids": ids[at], "attention_mask": mask[at], "decoder_input_ids": generated[at, :-1]}
        whole = next(one for one in captured_of(model, **given).traces if one.stack == trace.stack)
        np.testing.assert_allclose(trace[1].weights[:], whole[1].weights[:], atol=1e-4)


@pytest.mark.parametrize("family", GENERATING[-2:], ids=str)
def test_a_generation_with_padding_that_is_kept(family: Family) -> None:
    """Padding that looks at all keys of its pass alike has more of them in one pass; beside a sink it looks at none."""
    model = family.build()  # verifying runs it
    captured, _ = generation(model, padding="keep")
    assert all(trace.verify().agrees for trace in captured.traces)
    if family.name == "Gemma2ForCausalLM":
        with pytest.raises(UnsupportedError, match="looks at all keys alike"):
            _ = captured.generations
        return
    assert [len(trace) for trace in captured.generations] == [11, 11]
    assert all(trace.verify().agrees for trace in captured.generations)


def test_a_cache_is_found_under_any_name_and_a_missing_argument_is_named() -> None:
    """transformers 5.24 calls `cache` what was `past_key_values`."""
    cache, given = transformers.DynamicCache(), partial(Arguments, torch.nn.Linear(1, 1))
    for name in ("past_key_values", "layer_past", "cache"):
        assert given({"hidden_states": torch.zeros(1), "mask": None, name: cache}).cache is cache
    assert given({"hidden_states": torch.zeros(1), "cache": None}).cache is None
    with pytest.raises(UnsupportedError, match=r"Linear has no argument 'alibi'; it has hidden_states"):
        given({"hidden_states": torch.zeros(1)})["alibi"]


def test_sdpa_has_no_soft_cap() -> None:
    """transformers 5.24 refuses one there; 5.20, the last for Python 3.10, leaves it out, and is so by default."""
    model = Family("Gemma2Model", {**DECODER, "head_dim": 8, "attn_logit_softcapping": 2.0}).build()
    model.config._attn_implementation = "sdpa"
    ids = torch.tensor([[4, 5, 6, 7]])
    if not model._supports_sdpa:
        with pytest.raises(ValueError, match="`sdpa` attention does not support `softcap`"):
            captured_of(model, ids)
        return
    captured = captured_of(model, ids)
    model.set_attn_implementation("eager")
    for module in (model.config, *model.modules()):
        if hasattr(module, "attn_logit_softcapping"):
            module.attn_logit_softcapping = None
    uncapped = captured_of(model, ids).trace
    assert_weights(captured, [[uncapped[layer].weights[...]] for layer in range(2)])
    assert captured.trace.verify().agrees


def test_one_module_that_attends_from_the_text_to_an_image_and_back() -> None:
    """LXMERT's returns the weights from the text; those of the way back follow from what it was given."""
    model, captured, inputs = pass_of(BY_NAME["LxmertModel"])
    given: list[Any] = []
    for layer in model.encoder.x_layers:
        layer.visual_attention.att.register_forward_pre_hook(lambda module, args: given.append((module, *args)))
    expected = model(**inputs, output_attentions=True).cross_encoder_attentions
    for trace in captured["visual_attention"]:
        for layer in range(2):
            module, x, seen, mask = given[2 * layer + (trace.cut.sizes == (5, 7))][:4]
            weights = softmax_of(split(module.query(x)), split(module.key(seen)), mask)
            assert_weights([trace], {layer: weights}, 2e-5)
        if trace.cut.sizes == (7, 5):
            assert_weights([trace], expected, 2e-5)
    there, back = (
        [one for one in captured["visual_attention"] if one.cut.sizes == sizes] for sizes in ((7, 5), (5, 7))
    )
    names = [inputs["input_ids"][0].tolist(), inputs["input_ids"][1, :5].tolist()]
    assert [list(one.queries.ids) for one in there] == [list(map(int, one.keys.tokens)) for one in back] == names
    assert {name for one in there for name in one.keys.ids} == {-1}


DRAWN = [
    Family("ViltModel", {**VISION, **TEXT, "max_image_length": -1}, takes="text and image"),
    Family("ViTMAEModel", VISION, takes="image"),
]


@pytest.mark.parametrize("family", DRAWN, ids=str)
def test_patches_that_are_drawn_at_random(family: Family) -> None:
    """In eval mode, too. A second pass, for verify, draws the same, and leaves the next random numbers as they were."""
    model, inputs = family.build(), family.inputs(padded=family.name == "ViltModel")
    torch.manual_seed(1)
    captured = captured_of(model, **inputs)
    before = torch.get_rng_state()
    for trace in captured.traces:
        report = trace.verify()
        assert report.agrees, report
        assert "weights (eager)" in [check.name for check in report.checks]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    expected = model(**inputs, output_attentions=True).attentions
    assert_weights(captured, expected, 2e-5)
    if family.name == "ViltModel":
        torch.manual_seed(1)
        drawn, grid = model.embeddings.visual_embed(inputs["pixel_values"], torch.ones(2, 16, 16))[2]
        named = [
            tuple(map(int, token.split()[1].split(","))) for token in captured.traces[0].tokens if "patch" in token
        ]
        assert named == [tuple(place) for place in drawn[0].tolist()], grid
