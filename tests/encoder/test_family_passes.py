"""Every family's forward pass against transformers': distances from fp64, half precision, verification, effects."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import headscope as hs
from headscope.encoder import Input
from headscope.errors import ConfigError, HeadscopeError, UnsupportedError
from headscope.runs.engine import Edit, NumpyRunner
from making import change_json
from random_models import FAMILIES, WITH_SEGMENTS, ids, made, run

SHAPES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "Albert": [("two groups", {"num_hidden_groups": 2, "num_hidden_layers": 5}), ("inner", {"inner_group_num": 2})],
    "Ernie": [("no task", {"use_task_id": False})],
    "RoFormer": [("values", {"rotary_value": True}), ("wide", {"embedding_size": 32})],
    "ModernBert": [
        ("biases", dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True)),
        ("no decoder bias", {"decoder_bias": False}),
        ("wide heads", {"num_attention_heads": 2}),
        ("tanh", {"hidden_activation": "gelu_new", "classifier_activation": "silu"}),
        ("types", {"layer_types": ["sliding_attention", "full_attention"] * 2}),
    ],
    "Esm": [
        ("absolute", {"position_embedding_type": "absolute", "emb_layer_norm_before": True}),
        ("no dropout", {"token_dropout": False}),
    ],
    "NomicBert": [("narrow heads", {"head_dim": 4}), ("base", {"rope_parameters": {"rope_theta": 50.0}})],
    "Gte": [("no types", {"type_vocab_size": 0}), ("types", {"type_vocab_size": 2})],
    "MPNet": [("wide heads", {"num_attention_heads": 2})],
    "DebertaV2": [
        ("own projections", {"share_att_key": False}),
        ("c2p", {"share_att_key": False, "pos_att_type": ["c2p"]}),
        ("p2c", {"share_att_key": False, "pos_att_type": ["p2c"]}),
        ("all distances", {"position_buckets": -1, "norm_rel_ebd": "none"}),
        ("few distances", {"position_buckets": -1, "max_relative_positions": 7}),
        ("positions and types", {"position_biased_input": True, "type_vocab_size": 2}),
        ("convolution", {"conv_kernel_size": 3, "conv_act": "gelu"}),
        ("grouped convolution", {"conv_kernel_size": 3, "conv_groups": 2}),
        ("narrow embeddings", {"embedding_size": 16, "conv_kernel_size": 5}),
        ("no distances", {"relative_attention": False, "position_biased_input": True}),
        ("scale only", {"relative_attention": False, "position_biased_input": True, "pos_att_type": ["c2p"]}),
        ("another head", {"legacy": False}),
    ],
    "EuroBert": [
        ("biases", {"attention_bias": True, "mlp_bias": True}),
        ("wide heads", {"head_dim": 16}),
        ("tied", {"tie_word_embeddings": True}),
        ("no groups", {"num_key_value_heads": 4}),
    ],
}
NAMED_SHAPES = [(f"{stem}-{name}", stem, config) for stem, cases in SHAPES.items() for name, config in cases]
CASES = [*((stem, {}) for stem in FAMILIES), *(pytest.param(*shape, id=name) for name, *shape in NAMED_SHAPES)]


def distances(trace: hs.Trace, outputs: Any, exact: Any) -> dict[str, tuple[float, float]]:
    """Of every kind of number, our largest distance from the fp64 run and that of transformers' fp32 run."""
    size = len(trace)
    kinds: dict[str, list[tuple[np.ndarray, torch.Tensor, torch.Tensor]]] = {
        "weights": [
            (trace[layer].weights[:], outputs.attentions[layer][0], exact.attentions[layer][0])
            for layer in range(len(outputs.attentions))
        ],
        "hidden": [
            (state.array, theirs[0], truth[0])
            for state, theirs, truth in zip(
                trace.hidden_states, outputs.hidden_states, exact.hidden_states, strict=True
            )
        ],
    }
    for name in ("logits", "pooler_output"):
        if name in outputs:
            kinds[name] = [(trace.outputs[name].array, outputs[name][0], exact[name][0])]
    found = {}
    for kind, triples in kinds.items():
        ours = max(float(np.abs(mine - truth.numpy()).max()) for mine, _, truth in triples)
        theirs = max(float((other.double() - truth).abs().max()) for _, other, truth in triples)
        found[kind] = (ours, theirs)
    assert size == outputs.attentions[0].shape[-1]
    return found


@pytest.mark.parametrize(
    ("stem", "config", "suffix"),
    [
        *((stem, {}, suffix) for stem in FAMILIES for suffix in ("Model", "ForMaskedLM")),
        *(pytest.param(*shape, "ForMaskedLM", id=name) for name, *shape in NAMED_SHAPES),
    ],
)
def test_as_close_to_fp64_as_transformers(tmp_path: Path, stem: str, config: dict[str, Any], suffix: str) -> None:
    """At most twice as far as transformers' own fp32 run, or within 2 units in the last place of numbers around 1."""
    checkpoint = made(tmp_path, stem, suffix, **config)
    row = [*ids(50), 4, *ids(11, 1)]
    segments = [0] * 30 + [1] * 32 if stem in WITH_SEGMENTS or config.get("type_vocab_size") == 2 else None
    exact = run(copy.deepcopy(checkpoint.module).double(), [row], [segments] if segments else None)
    outputs = run(checkpoint.module, [row], [segments] if segments else None)
    trace = hs.open(tmp_path).trace(ids=row, segments=segments, hidden_states=True)
    for kind, (ours, theirs) in distances(trace, outputs, exact).items():
        assert ours <= 2 * theirs + 2.5e-7, kind


NAMES = [
    *("row sums", "queries", "keys", "values", "weights", "context", "sum over heads", "weights (eager)"),
    "hidden states",
]


SIDE_BY_SIDE = (("W_V", 1), ("b_V", 0), ("W_O", 0))
"""Parts of heads, and the axis along which a layer has them beside each other."""


@pytest.mark.parametrize(("stem", "config"), CASES)
def test_verification_passes(tmp_path: Path, stem: str, config: dict[str, Any]) -> None:
    """The paper's formulas in fp64, head by head, and transformers; of each family, also with silenced heads.

    The formulas multiply with each head's slices of what is stored.
    """
    made(tmp_path, stem, **config)
    model = hs.open(tmp_path)
    layer, ones = model.layers[0], np.ones((1, 1))
    W_V, b_V, W_O = (np.concatenate([getattr(head, name) for head in layer.heads], axis) for name, axis in SIDE_BY_SIDE)
    if len(b_V) == len(layer.b_O):  # the authors' matrices, else the affine map
        first = np.block([[W_V, np.zeros((len(W_V), 1))], [b_V, ones]])
        second = np.block([[W_O, layer.b_O[:, None]], [np.zeros((1, len(layer.b_O))), ones]])
        product = first @ second
    else:
        product = np.block([[W_V @ W_O, np.zeros((len(W_V), 1))], [b_V @ W_O + layer.b_O, ones]])
    assert layer.expansion_rate == pytest.approx(np.linalg.norm(product) / np.sqrt(len(W_V) + 1), rel=1e-4)
    for silenced in ((), {(1, 2), (2, 0)}) if not config else ((),):
        report = model.trace(ids=ids(24), ablate=silenced).verify()
        assert report.agrees, report
        assert [check.name for check in report.checks] == NAMES
        assert all(0 <= check.worst <= check.tolerance for check in report.checks)
        assert report.skipped == ()
        assert json.loads(json.dumps(report.to_dict()))["agrees"] is True


@pytest.mark.parametrize(("stem", "config"), CASES)
def test_runs_are_those_of_silenced_forward_passes(tmp_path: Path, stem: str, config: dict[str, Any]) -> None:
    """Runs restart from kept layers; silencing the heads in a whole forward pass gives the same numbers."""
    made(tmp_path, stem, **config)
    model = hs.open(tmp_path)
    texts = [Input(row, np.zeros_like(row)) for row in (np.array(ids(size), dtype=np.int64) for size in (21, 9))]
    last = model.anatomy.known().layers - 1
    sets: list[set[tuple[int, int]]] = [{(0, 1)}, {(1, 0)}, {(last, 1)}, {(0, 0), (1, 1)}, {(0, 1), (last, 0)}]
    edits = [frozenset(Edit(*head) for head in heads) for heads in sets]
    wholes = [
        [model.trace(ids=text.ids.tolist(), ablate=heads).outputs["last_hidden_state"].array for text in texts]
        for heads in sets
    ]
    runner = NumpyRunner(model)
    for kept in (True, False):
        base = runner.base(texts, contexts=kept)
        for places in (None, [np.array([2, 13]), np.array([0])]):
            for runs, hidden in runner.states(base, edits, places):
                for at, which in enumerate(runs):
                    for text, states in enumerate(hidden):
                        whole = wholes[which][text] if places is None else wholes[which][text][places[text]]
                        np.testing.assert_allclose(states[at], whole, atol=3e-5, rtol=3e-5)
    without = runner.base(texts, edits=frozenset({Edit(last, 0)}), contexts=False)
    ((_, hidden),) = runner.states(without, [frozenset({Edit(0, 1)})])
    for text, states in enumerate(hidden):
        np.testing.assert_allclose(states[0], wholes[4][text], atol=3e-5, rtol=3e-5)


@pytest.mark.parametrize(
    ("stem", "field", "value"),
    [
        ("NomicBert", "rope_parameters", {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0}),
        ("Gte", "rope_parameters", {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0}),
        ("EuroBert", "rope_parameters", {"rope_type": "default", "rope_theta": -1}),
        ("EuroBert", "partial_rotary_factor", 0.5),
        ("ModernBert", "layer_types", ["full_attention"]),
        ("ModernBert", "layer_types", ["chunked_attention"] * 4),
        ("ModernBert", "local_attention", "wide"),
        ("Esm", "position_embedding_type", "relative_key"),
        ("Bert", "position_embedding_type", "rotary"),
        ("DebertaV2", "pos_att_type", ["p2p"]),
        ("DebertaV2", "conv_kernel_size", 2),
        ("DebertaV2", "attention_head_size", 4),
        ("ModernBert", "auto_map", {"AutoModel": "modeling.Model"}),
    ],
)
def test_settings_that_are_not_computed_are_named(tmp_path: Path, stem: str, field: str, value: Any) -> None:
    made(tmp_path, stem)
    change_json(tmp_path / "config.json", **{field: value})
    name = "rope_theta" if value == {"rope_type": "default", "rope_theta": -1} else field
    with pytest.raises(UnsupportedError, match=name):
        hs.open(tmp_path).trace(ids=[5, 6])


BUCKETS = "buckets can't hold distances up to 64"
"""log((longest - 1) / (buckets / 2)) is no positive number: transformers gives rows at random."""


@pytest.mark.parametrize(
    ("stem", "config", "message"),
    [
        ("MPNet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets"),
        ("DebertaV2", {"position_buckets": 1}, f"1 {BUCKETS}"),
        ("DebertaV2", {"position_buckets": 200}, f"200 {BUCKETS}"),
    ],
)
def test_shapes_that_are_not_computed_are_named(
    tmp_path: Path, stem: str, config: dict[str, Any], message: str
) -> None:
    made(tmp_path, stem, **config)
    with pytest.raises(HeadscopeError, match=message):
        hs.open(tmp_path).trace(ids=ids(5))


def without(folder: Path, *names: str) -> hs.Model:
    """The model, with these fields taken out of its config."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({name: config[name] for name in config if name not in names}))
    return hs.open(folder)


def test_a_deberta_that_does_not_say_how_long_its_texts_are(tmp_path: Path) -> None:
    """Its class takes 512; there is no table of positions that could tell."""
    row = ids(40)
    made(tmp_path / "64", "DebertaV2")
    stated = made(tmp_path / "512", "DebertaV2", max_position_embeddings=512)
    other = hs.open(tmp_path / "64").trace(ids=row)[2, 1].weights[:]
    model = without(tmp_path / "512", "max_position_embeddings", "max_relative_positions")
    assert model.anatomy.longest_text == 512
    trace = model.trace(ids=row)
    weights = trace[2, 1].weights[:]
    np.testing.assert_allclose(weights, run(stated.module, [list(row)]).attentions[2][0, 1], atol=2e-5)
    assert np.abs(weights - other).max() > 1e-4  # buckets up to 512 are not those up to 64
    assert trace.verify().agrees


def test_numbers_without_a_default_are_named_where_they_are_missing(tmp_path: Path) -> None:
    made(tmp_path, "Esm")
    with pytest.raises(ConfigError, match=r"config\.json has no mask_token_id"):
        without(tmp_path, "mask_token_id").trace(ids=ids(5))


def test_a_roformer_without_its_table_computes_it(tmp_path: Path) -> None:
    checkpoint = made(tmp_path, "RoFormer")
    file, name = tmp_path / "model.safetensors", "encoder.embed_positions.weight"
    plain = type(checkpoint.module)(checkpoint.module.config)
    state = {**load_file(file), name: plain.state_dict()[name]}
    save_file(state, file, {"format": "pt"})
    before = hs.open(tmp_path).trace(ids=ids(30)).outputs["last_hidden_state"].array
    del state[name]
    save_file(state, file, {"format": "pt"})
    model = hs.open(tmp_path)
    assert model.anatomy.missing == ()
    np.testing.assert_allclose(model.trace(ids=ids(30)).outputs["last_hidden_state"].array, before, atol=2e-5)
