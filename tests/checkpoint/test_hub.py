"""Checkpoints on the hub, against a local server that counts requests and bytes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

import headscope as hs
from headscope.checkpoint import open_checkpoint
from headscope.errors import CheckpointError, HeadscopeError, NotFoundError
from hub_server import HubServer, go_offline, serve
from making import LARGE, bert_checkpoint, write_config, write_safetensors
from small_bert import small_bert

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
    torch = pytest.importorskip("torch")
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


def test_shards_over_ranges(hub: HubServer) -> None:
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
    assert path is not None
    assert path.read_text() == "[PAD]\n"
    assert Path(constants.HF_HUB_CACHE) in path.parents
    assert checkpoint.file("merges.txt") is None
    requests = len(hub.requests)
    assert checkpoint.file("vocab.txt") == path
    assert checkpoint.file("merges.txt") is None
    assert len(hub.requests) == requests


def refused(name: str, revision: str | None = None) -> str:
    with pytest.raises(NotFoundError) as caught:
        open_checkpoint(name, revision=revision)
    assert caught.value.where
    assert caught.value.advice
    return str(caught.value)


def test_what_the_hub_does_not_have(hub: HubServer) -> None:
    small(hub)
    hub.gated.add("owner/secret")
    write_config(hub.root / "owner" / "bare", {})
    assert "no model with this id" in refused("owner/nobody")
    assert "did you mean google-bert/bert-base-uncased?" in refused("google-bert/bert-base-uncasd")
    assert "did you mean google-bert/bert-base-uncased?" in refused("bert-base-uncased")
    assert "no revision v7" in refused("owner/small", "v7")
    assert "gated" in refused("owner/secret")
    assert "no weights: it holds config.json" in refused("owner/bare")


def test_weights_further_down(hub: HubServer) -> None:
    write_config(hub.root / "owner" / "parts", {})
    write_safetensors(hub.root / "owner" / "parts" / "text_encoder" / "model.safetensors", {"x": np.ones(1)})
    message = refused("owner/parts")
    assert "no weights here, but in text_encoder" in message
    assert "download the model" in message


@pytest.mark.parametrize("with_the_config", [False, True])
def test_offline(hub: HubServer, monkeypatch: pytest.MonkeyPatch, with_the_config: bool) -> None:
    small(hub)
    if with_the_config:
        open_checkpoint("owner/small")
    before = len(hub.requests)
    go_offline(monkeypatch)
    assert "HF_HUB_OFFLINE" in refused("owner/small")
    assert len(hub.requests) == before


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


def test_a_server_without_ranges(hub: HubServer) -> None:
    small(hub)
    hub.ignores_ranges = True
    with pytest.raises(CheckpointError, match="requested a range of bytes"):
        open_checkpoint("owner/small")


def test_a_server_without_ranges_serves_what_is_short(hub: HubServer) -> None:
    write_safetensors(hub.root / "owner" / "tiny" / "model.safetensors", {"x": np.arange(3)})
    hub.ignores_ranges = True
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
