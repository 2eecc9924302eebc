"""Checkpoints as the hub has them: published fields, old names, pickles and shards; and on a hub of this machine."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

import headscope as hs
from headscope.checkpoint import open_checkpoint
from headscope.errors import CheckpointError, HeadscopeError, NoteWarning, NotFoundError, UnsupportedError
from hub_server import HubServer, go_offline, serve
from making import LARGE, bert_checkpoint, change_json, write_config, write_safetensors
from random_models import FAMILIES, assert_same, ids, random_model, run
from small_bert import small_bert

Tensors = dict[str, torch.Tensor]
Names = Callable[[Tensors], Tensors]
DATA = Path(__file__).parents[1] / "data"


def deberta_v3(tensors: Tensors) -> Tensors:
    """Names of microsoft/deberta-v3-base: other heads on top, which transformers' classes don't have."""
    names = {
        "cls.predictions.transform.dense": "lm_predictions.lm_head.dense",
        "cls.predictions.transform.LayerNorm": "lm_predictions.lm_head.LayerNorm",
        "cls.predictions.bias": "lm_predictions.lm_head.bias",
    }
    renamed = {}
    for name, tensor in tensors.items():
        old = next((old for old in names if name.startswith(old)), None)
        renamed[name if old is None else names[old] + name.removeprefix(old)] = tensor
    renamed.pop("cls.predictions.decoder.weight", None)
    renamed.pop("cls.predictions.decoder.bias", None)
    width = tensors["deberta.embeddings.word_embeddings.weight"].shape[1]
    return {
        **renamed,
        "mask_predictions.dense.weight": torch.ones(width, width),
        "mask_predictions.dense.bias": torch.ones(width),
        "mask_predictions.LayerNorm.weight": torch.ones(width),
        "mask_predictions.LayerNorm.bias": torch.ones(width),
        "mask_predictions.classifier.weight": torch.ones(1, width),
        "mask_predictions.classifier.bias": torch.ones(1),
    }


def esm2(tensors: Tensors) -> Tensors:
    """Names of facebook/esm2_t6_8M_UR50D: unused positions, one table of frequencies per layer, a decoder."""
    width = tensors["esm.embeddings.word_embeddings.weight"].shape[1]
    half = width // FAMILIES["Esm"]["num_attention_heads"] // 2
    frequencies = 1.0 / 10000 ** (torch.arange(half, dtype=torch.float32) / half)
    layers = range(FAMILIES["Esm"]["num_hidden_layers"])
    return {
        **tensors,
        "esm.embeddings.position_embeddings.weight": torch.ones(64, width),
        "esm.embeddings.position_ids": torch.arange(64)[None],
        "lm_head.decoder.weight": tensors["esm.embeddings.word_embeddings.weight"].clone(),
        **{f"esm.encoder.layer.{at}.attention.self.rotary_embeddings.inv_freq": frequencies.clone() for at in layers},
    }


def within(old: str, new: str) -> Names:
    """The base model's names begin with another prefix than the class's."""
    return lambda tensors: {
        new + name.removeprefix(old) if name.startswith(old) else name: tensor for name, tensor in tensors.items()
    }


def google(tensors: Tensors) -> Tensors:
    """The oldest names of norms, gamma and beta."""
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }


def tied(anchor: str, *copies: str) -> Names:
    """Old pickles hold tied weights twice, as two names of one storage."""
    return lambda tensors: {**tensors, **dict.fromkeys(copies, tensors[anchor])}


FIELDS: dict[str, dict[str, Any]] = json.loads((DATA / "published_configs.json").read_text(encoding="utf-8"))
"""Repository -> its config.json, with the sizes of a small model."""


class Published:
    """A repository: the class that it was saved from, its fields, and the names in its file.

    Args:
        repository: in FIELDS.
        stem: of the class.
        suffix: of the class.
        names: from those that transformers saves.
        config: of the class, where it is not the small one's of the family.
        fields: more than the repository has.
    """

    def __init__(
        self, repository: str, stem: str, suffix: str, names: Names = dict, *, config: Any = (), **fields: Any
    ) -> None:
        self.repository, self.stem, self.suffix, self.names, self.config = repository, stem, suffix, names, dict(config)
        self.fields = {**FIELDS[repository], **fields}

    def __str__(self) -> str:
        return f"{self.repository} {self.suffix}"


def mpnet(tensors: Tensors) -> Tensors:
    """With the positions that transformers 4 saved."""
    return {"embeddings.position_ids": torch.arange(66)[None], **tensors}


MODERN = tied("model.embeddings.tok_embeddings.weight", "decoder.weight")
ALBERT = tied("albert.embeddings.word_embeddings.weight", "predictions.decoder.weight")
GTE, NOMIC = "alibaba-nlp-community/gte-multilingual-base", "nomic-ai/nomic-embed-text-v1.5"
LABELS = {"architectures": ["GteForTokenClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}}
ROTATION = {"rope_parameters": {"rope_theta": 250000.0, "rope_type": "default"}}
BERT = within("nomic_bert.", "bert.")
PUBLISHED = (
    Published("microsoft/deberta-v3-base", "DebertaV2", "ForMaskedLM", deberta_v3),
    Published("answerdotai/ModernBERT-base", "ModernBert", "ForMaskedLM", MODERN),
    Published("sentence-transformers/all-mpnet-base-v2", "MPNet", "Model", mpnet, config={"layer_norm_eps": 1e-5}),
    Published("albert/albert-base-v2", "Albert", "ForMaskedLM", ALBERT),
    Published("facebook/esm2_t6_8M_UR50D", "Esm", "ForMaskedLM", esm2, config={"layer_norm_eps": 1e-5}),
    Published(NOMIC, "NomicBert", "Model"),
    Published(NOMIC, "NomicBert", "ForMaskedLM", BERT, architectures=["NomicBertForPreTraining"]),
    Published(GTE, "Gte", "ForMaskedLM", config={"type_vocab_size": 1}),
    Published(GTE, "Gte", "ForTokenClassification", within("gte.", "new."), config={"type_vocab_size": 1}, **LABELS),
    Published("EuroBERT/EuroBERT-210m", "EuroBert", "ForMaskedLM", config=ROTATION),
    Published("google-bert/bert-base-uncased", "Bert", "ForPreTraining", google),
)


def saved(folder: Path, case: Published, kind: str) -> Any:
    """Write the repository; return the module of the same weights."""
    module = random_model(case.stem, case.suffix, **case.config)
    module.save_pretrained(folder)
    tensors = case.names(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").unlink()
    if kind == "pickle":
        torch.save(tensors, folder / "pytorch_model.bin")
    elif kind == "safetensors":
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    else:
        parts = list(tensors.items())
        shards = {"1-of-2": dict(parts[::2]), "2-of-2": dict(parts[1::2])}
        for shard, some in shards.items():
            save_file(
                {name: tensor.clone() for name, tensor in some.items()}, folder / f"model-0000{shard}.safetensors"
            )
        index = {name: f"model-0000{shard}.safetensors" for shard, some in shards.items() for name in some}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(case.fields))
    return module


KINDS = ("safetensors", "pickle", "shards")


@pytest.mark.parametrize(
    ("case", "kind"),
    [*((case, KINDS[at % 3]) for at, case in enumerate(PUBLISHED)), *((PUBLISHED[-1], kind) for kind in KINDS)],
    ids=str,
)
def test_published_checkpoints_are_read(tmp_path: Path, case: Published, kind: str) -> None:
    """Every head's weights, the hidden states and the logits, and the parameters' total."""
    module = saved(tmp_path, case, kind)
    row = list(ids(40))
    outputs = run(module, [row], padding=case.fields.get("pad_token_id", 0))
    model = hs.open(tmp_path)
    trace = model.trace(ids=row, hidden_states=True)
    assert not model.anatomy.problems
    assert_same(trace, outputs)
    logits = "logits" in outputs or "prediction_logits" in outputs
    assert ("logits" in trace.outputs) == (logits and case.repository != "microsoft/deberta-v3-base")
    base = getattr(module, module.base_model_prefix, module)
    assert model.parameters.total == sum(parameter.numel() for parameter in base.parameters())
    assert trace.verify(reference=False).agrees


def nomic(folder: Path, **fields: Any) -> Path:
    """A small nomic-embed-text with other fields."""
    case = next(case for case in PUBLISHED if case.stem == "NomicBert")
    saved(folder, case, "safetensors")
    (folder / "config.json").write_text(json.dumps({**case.fields, **fields}))
    return folder


OTHER_CODE = (
    "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
    "someone/modeling_hf_nomic_bert.NomicBertModel--modeling.Other",
    "modeling_eurobert.EuroBertModel",
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("activation_function", "gelu"),
        ("causal", True),
        ("prenorm", True),
        ("parallel_block", True),
        ("rotary_emb_fraction", 0.5),
        ("rotary_emb_interleaved", True),
        ("rotary_emb_scale_base", 512),
        ("rotary_scaling_factor", 2),
        ("use_rms_norm", True),
        *(("auto_map", {"AutoModel": code}) for code in OTHER_CODE),
    ],
)
def test_what_the_custom_code_could_do_is_named(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(UnsupportedError, match="custom code" if field == "auto_map" else f"{field} is"):
        hs.open(nomic(tmp_path, **{field: value})).trace(ids=[5, 6])


def test_the_published_base_of_the_rotation_counts(tmp_path: Path) -> None:
    model = hs.open(nomic(tmp_path, rotary_emb_base=50))
    assert set(model.anatomy.rotation_bases) == {50.0}


def test_new_models_of_alibaba_name_the_field_and_a_way_out(tmp_path: Path) -> None:
    """gte-base-en-v1.5: its custom code stretches the rotation, and transformers has no class for it."""
    case = next(case for case in PUBLISHED if case.stem == "Gte")
    saved(tmp_path, case, "safetensors")
    code = "Alibaba-NLP/new-impl--modeling.NewModel"
    scaling = {"factor": 2.0, "type": "ntk"}
    change_json(tmp_path / "config.json", model_type="new", auto_map={"AutoModel": code}, rope_scaling=scaling)
    model = hs.open(tmp_path)
    assert model.parameters.total > 0
    with pytest.raises(UnsupportedError, match="model_type 'new'") as refused:
        model.trace(ids=[5, 6])
    assert "hs.capture" in str(refused.value)


# On the hub: a local server counts requests and bytes.


QUERY = "encoder.layer.3.attention.self.query.weight"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    for name in ("hub", "elsewhere"):
        (tmp_path / name).mkdir()
    with serve(tmp_path / "hub") as server:
        server.use(monkeypatch, tmp_path / "cache")
        monkeypatch.chdir(tmp_path / "elsewhere")
        yield server


def small(hub: HubServer, identity: str = "owner/small", seed: int = 5) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    tensors = {
        "big": generator.normal(size=(1000, 64)).astype(np.float32),
        "half": generator.normal(size=(8, 4)).astype(np.float16),
    }
    write_safetensors(hub.root / identity / "model.safetensors", tensors)
    write_config(hub.root / identity, {"model_type": "bert", "hidden_size": 64})
    (hub.root / identity / "vocab.txt").write_text("[PAD]\n")
    return tensors


def test_opening_bert_large_costs_kilobytes(hub: HubServer) -> None:
    bert_checkpoint(hub.root / "google-bert" / "bert-large-uncased", LARGE)
    checkpoint = open_checkpoint("google-bert/bert-large-uncased")
    assert sum(entry.count for entry in checkpoint.tensors.values()) == 335_141_888
    assert hub.served < 200_000
    assert len(hub.requests) <= 8
    assert (checkpoint.origin, checkpoint.local) == ("hub", False)
    assert checkpoint.where == f"google-bert/bert-large-uncased@{hub.commit('google-bert/bert-large-uncased')}"
    before = hub.served
    assert checkpoint.read(QUERY, slice(64, 128)).shape == (64, 1024)
    assert hub.served - before == 64 * 1024 * 4


def test_reads_are_what_the_file_holds(hub: HubServer) -> None:
    tensors = small(hub)
    checkpoint = open_checkpoint("owner/small")
    assert checkpoint.config["hidden_size"] == 64
    for name, array in tensors.items():
        np.testing.assert_array_equal(checkpoint.read(name), array, strict=True)
        part = checkpoint.read(name, slice(2, 5), slice(1, 3))
        np.testing.assert_array_equal(part, array[2:5, 1:3], strict=True)
        assert not part.flags.writeable


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_pickles_over_ranges(hub: HubServer, zipped: bool) -> None:
    state = {f"layer.{i}.weight": torch.randn(300, 300) for i in range(40)}
    state["tied"] = state["layer.0.weight"]
    folder = hub.root / "owner" / "pickled"
    folder.mkdir(parents=True)
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    checkpoint = open_checkpoint("owner/pickled")
    assert hub.served < 200_000
    assert not checkpoint.has_config
    assert dict(checkpoint.shared) == {"tied": "layer.0.weight"}
    assert checkpoint.tensors == open_checkpoint(folder).tensors
    before = hub.served
    # torch orders a legacy file by address: the last tensor is surely not in the range that the header was read with.
    name = max(checkpoint.tensors, key=lambda name: checkpoint.tensors[name].start)
    expected = state[name].numpy()[10:20]
    np.testing.assert_array_equal(checkpoint.read(name, slice(10, 20)), expected, strict=True)
    assert hub.served - before == expected.nbytes


def test_shards_over_ranges(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = small(hub, "owner/shards")
    folder = hub.root / "owner" / "shards"
    (folder / "model.safetensors").unlink()
    for name, array in tensors.items():
        write_safetensors(folder / f"{name}.safetensors", {name: array})
    weight_map = ", ".join(f'"{name}": "{name}.safetensors"' for name in tensors)
    (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {{{weight_map}}}}}')
    checkpoint = open_checkpoint("owner/shards")
    assert checkpoint.files == ("big.safetensors", "half.safetensors")
    np.testing.assert_array_equal(checkpoint.read("half"), tensors["half"], strict=True)
    go_offline(monkeypatch)
    assert "HF_HUB_OFFLINE" in refused("owner/shards")  # the index is in the cache, its shards are not


def test_another_name_is_found_in_the_listing(hub: HubServer) -> None:
    tensors = small(hub, "owner/odd")
    folder = hub.root / "owner" / "odd"
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    checkpoint = open_checkpoint("owner/odd")
    assert checkpoint.files == ("weights.safetensors",)
    np.testing.assert_array_equal(checkpoint.read("half"), tensors["half"], strict=True)


def test_fetch_then_read_without_the_hub(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = small(hub)
    checkpoint = open_checkpoint("owner/small")
    header = dict(checkpoint.tensors)
    checkpoint.fetch()
    assert checkpoint.local
    requests = len(hub.requests)
    checkpoint.fetch()
    np.testing.assert_array_equal(checkpoint.read("big"), tensors["big"], strict=True)
    assert (dict(checkpoint.tensors), len(hub.requests)) == (header, requests)
    again = open_checkpoint("owner/small")
    assert again.local
    go_offline(monkeypatch)
    offline = open_checkpoint("owner/small")
    assert (offline.local, offline.config, offline.fingerprint()) == (True, again.config, checkpoint.fingerprint())
    hub.broken = 503
    hub.use(monkeypatch, Path(constants.HF_HUB_CACHE).parent)
    np.testing.assert_array_equal(open_checkpoint("owner/small").read("half"), tensors["half"], strict=True)


def test_one_commit_for_everything(hub: HubServer) -> None:
    small(hub)
    hub.tags.add("v1.0")
    checkpoint = open_checkpoint("owner/small", revision="v1.0")
    assert checkpoint.where.endswith("@" + hub.commit("owner/small"))
    checkpoint.read("half")
    assert checkpoint.file("vocab.txt")
    for request in hub.requests:
        if "/resolve/" in request.path:
            revision = "v1.0" if request.path.endswith("config.json") else hub.commit("owner/small")
            assert f"/resolve/{revision}/" in request.path


def test_files_come_through_the_cache(hub: HubServer) -> None:
    small(hub)
    checkpoint = open_checkpoint("owner/small")
    path = checkpoint.file("vocab.txt")
    assert path.read_text() == "[PAD]\n"
    assert Path(constants.HF_HUB_CACHE) in path.parents
    assert checkpoint.file("merges.txt") is None
    requests = len(hub.requests)
    assert checkpoint.file("vocab.txt") == path
    assert checkpoint.file("merges.txt") is None
    assert len(hub.requests) == requests


def refused(name: str, revision: Any = None) -> str:
    with pytest.raises(NotFoundError) as caught:
        open_checkpoint(name, revision=revision)
    assert caught.value.where
    assert caught.value.advice
    return str(caught.value)


def test_what_the_hub_does_not_have(hub: HubServer) -> None:
    small(hub)
    hub.gated.add("owner/secret")
    write_config(hub.root / "owner" / "bare", {})
    write_config(hub.root / "owner" / "parts", {})
    write_safetensors(hub.root / "owner" / "parts" / "text_encoder" / "model.safetensors", {"x": np.ones(1)})
    assert re.search(r"no weights here, but in text_encoder[\s\S]*download the model", refused("owner/parts"))
    assert "no model with this id" in refused("owner/nobody")
    assert "did you mean google-bert/bert-base-uncased?" in refused("google-bert/bert-base-uncasd")
    assert "did you mean google-bert/bert-base-uncased?" in refused("bert-base-uncased")
    assert "no revision v7" in refused("owner/small", "v7")
    assert "no revision 7" in refused("owner/small", 7)
    assert "gated" in refused("owner/secret")
    assert "no weights: it holds config.json" in refused("owner/bare")


@pytest.mark.parametrize("with_the_config", [False, True])
def test_offline(hub: HubServer, monkeypatch: pytest.MonkeyPatch, with_the_config: bool) -> None:
    small(hub)
    if with_the_config:
        open_checkpoint("owner/small")
    before = len(hub.requests)
    go_offline(monkeypatch)
    assert "HF_HUB_OFFLINE" in refused("owner/small")
    assert len(hub.requests) == before


def test_a_tokenizer_that_is_not_in_the_cache(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repository has one: nothing is said to be missing in it."""
    small_bert(hub.root / "owner" / "bert")
    small_bert(hub.root / "owner" / "other")
    open_checkpoint("owner/bert").fetch()
    asked = hs.open("owner/other")
    asked.checkpoint.fetch()
    assert asked.pooling.mode == "mean"  # the cache keeps that there is no modules.json
    go_offline(monkeypatch)
    assert hs.open("owner/other").pooling.mode == "mean"
    with pytest.raises(CheckpointError, match=r"can't be reached, and its cache lacks .*vocab\.txt") as refused:
        hs.open("owner/bert").trace("the cat")
    assert "unset HF_HUB_OFFLINE" in str(refused.value.advice)
    assert hs.open("owner/bert").trace(ids=[2, 5, 3]).tokens == ("#2", "#5", "#3")
    with pytest.warns(NoteWarning, match="lacks modules.json of owner/bert.*: a text's vector is the mean"):
        assert hs.open("owner/bert").pooling.mode == "mean"
    with pytest.raises(NotFoundError, match="HF_HUB_OFFLINE"):
        hs.open("-", tokenizer="owner/bert").tokenizer


def test_a_tokenizer_is_borrowed_without_a_look_at_its_weights(hub: HubServer) -> None:
    folder = small_bert(hub.root / "owner" / "words")
    (folder / "model.safetensors").unlink()
    assert hs.open("-", tokenizer="owner/words").tokenizer.encode("the cat").tokens[1:3] == ("the", "cat")
    assert not [request for request in hub.requests if "safetensors" in request.path]


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:{free}", "no-scheme", "http://[bad", "http://127.0.0.1:{free}x"]
)
def test_an_unusable_endpoint(hub: HubServer, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        hub.endpoint = endpoint.format(free=free.getsockname()[1])
    hub.use(monkeypatch, Path("cache"))
    message = refused("owner/small")
    assert "there is no file or folder owner/small here, and the hub can't be reached" in message
    assert hub.endpoint in message


@pytest.mark.parametrize(("broken", "message"), [(500, "answered 500"), (200, "not a hub")])
def test_a_hub_out_of_order(hub: HubServer, broken: int, message: str) -> None:
    """The chain of a client's own exceptions, a hundred lines of them, says nothing that the message doesn't."""
    hub.broken = broken
    with pytest.raises(NotFoundError, match=message) as caught:
        open_checkpoint("owner/small")
    lines = traceback.format_exception(caught.value)
    assert len(lines) < 20
    assert "During handling" not in "".join(lines)
    assert "direct cause" not in "".join(lines)


def test_a_server_without_ranges_serves_only_what_is_short(hub: HubServer) -> None:
    small(hub)
    hub.ignores_ranges = True
    with pytest.raises(CheckpointError, match="requested a range of bytes"):
        open_checkpoint("owner/small")
    write_safetensors(hub.root / "owner" / "tiny" / "model.safetensors", {"x": np.arange(3)})
    np.testing.assert_array_equal(open_checkpoint("owner/tiny").read("x"), np.arange(3), strict=True)


@pytest.mark.parametrize("data", [b"", b"\x08", b"\xff" * 70_000, b"PK\3\4" + bytes(70_000)])
def test_damaged_files_are_refused_from_afar_too(hub: HubServer, data: bytes) -> None:
    for name in ("model.safetensors", "pytorch_model.bin"):
        folder = hub.root / "owner" / name.split(".")[0]
        folder.mkdir(parents=True)
        (folder / name).write_bytes(data)
        with pytest.raises(HeadscopeError):
            open_checkpoint(f"owner/{folder.name}")


def test_a_folder_of_that_name_comes_first(hub: HubServer) -> None:
    write_safetensors(Path("bert-base-uncased", "model.safetensors"), {"x": np.ones(1)})
    assert open_checkpoint("bert-base-uncased").origin == "folder"
    assert hub.requests == []


def test_a_whole_process_by_its_environment(hub: HubServer, tmp_path: Path) -> None:
    """HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_OFFLINE as a person sets them; no NumPy until a tensor is read."""
    small(hub)
    script = (
        "import sys; from headscope.checkpoint import open_checkpoint\n"
        "checkpoint = open_checkpoint('owner/small'); print(len(checkpoint.tensors), 'numpy' in sys.modules)"
    )
    environment = {**os.environ, **hub.environment(tmp_path / "other cache")}
    for offline, expected in (("0", "2 False"), ("1", "HF_HUB_OFFLINE")):
        environment["HF_HUB_OFFLINE"] = offline
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
        assert expected in done.stdout + done.stderr


def test_a_survey_of_a_hub_id_is_that_of_its_folder(hub: HubServer, tmp_path: Path) -> None:
    folder = small_bert(hub.root / "owner" / "bert")
    expected = hs.survey(folder, ["the cat sat"], statistics="same", report=False)
    result = hs.survey("owner/bert", ["the cat sat"], statistics="same", report=False)
    np.testing.assert_array_equal(result["same"], expected["same"])
    assert result.manifest["model"]["name"] == "owner/bert"
    assert result.manifest["model"]["sha256"] == expected.manifest["model"]["sha256"]
    with pytest.MonkeyPatch.context() as patch:
        go_offline(patch)
        again = hs.survey("owner/bert", ["the cat sat"], statistics="same", report=False)
    np.testing.assert_array_equal(again["same"], expected["same"])
