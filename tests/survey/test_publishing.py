"""Surveys on the hub: a dataset that can be opened again, a Space that is the site, and what goes wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from surveying import TREEBANK, contents

import headscope as hs
import hub_server
from headscope.atlas.result import Survey
from headscope.errors import InputError, NotFoundError

NAME = "someone/heads"
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own upload


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """A survey with a site, labels, examples and effects."""
    out = tmp_path_factory.mktemp("told") / "out"
    return hs.survey("-", TREEBANK, out=out, statistics="entropy", labels=True, examples=2, effects=2, threads=1)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.HubServer]:
    (tmp_path / "root").mkdir()
    with hub_server.serve(tmp_path / "root") as server:
        server.use(monkeypatch, tmp_path / "cache")
        yield server


def card(path: Path) -> tuple[dict, str]:
    """The metadata of a README.md, and its text."""
    _, metadata, text = path.read_text(encoding="utf-8").split("---\n", 2)
    return json.loads(metadata), text


def test_the_dataset_opens_as_the_same_survey(told: Survey, hub: hub_server.HubServer) -> None:
    dataset, space = told.push_to_hub(NAME, private=True)
    assert (dataset, space) == (f"{hub.endpoint}/datasets/{NAME}", f"{hub.endpoint}/spaces/{NAME}")
    assert [(one["type"], one.get("sdk"), one["visibility"]) for one in hub.cards] == [
        ("dataset", None, "private"),
        ("space", "static", "private"),
    ]
    opened = hs.open(hub.root / "datasets" / NAME)
    assert opened.arrow().equals(told.arrow())
    assert opened.windows().equals(told.windows())
    assert opened.labels.equals(told.labels)


def test_the_viewer_finds_every_table(told: Survey, hub: hub_server.HubServer) -> None:
    told.push_to_hub(NAME)
    folder = hub.root / "datasets" / NAME
    metadata, text = card(folder / "README.md")
    tables = [one["config_name"] for one in metadata["configs"]]
    assert tables[0] == "labels"
    assert {"labels", "effects", "removal", "examples", "syntax", "aggregates"} <= set(tables)
    assert all((folder / one["data_files"]).is_file() for one in metadata["configs"])
    assert "16 heads of a BertModel in 4 layers" in text
    assert f'snapshot_download("{NAME}", repo_type="dataset")' in text


def test_the_space_is_the_site(told: Survey, hub: hub_server.HubServer) -> None:
    told.push_to_hub(NAME)
    folder = hub.root / "spaces" / NAME
    metadata, _ = card(folder / "README.md")
    assert (metadata["sdk"], metadata["app_file"], metadata["datasets"]) == ("static", "index.html", [NAME])
    site = contents(told.folder / "site")
    assert {name: data for name, data in contents(folder).items() if name != "README.md"} == site
    linked = set(re.findall(rb'href="([\w-]+\.html)"', site["index.html"]))
    assert linked <= {name.encode() for name in site}


def test_without_a_site_there_is_no_space(whole: Survey, hub: hub_server.HubServer) -> None:
    assert whole.push_to_hub(NAME) == [f"{hub.endpoint}/datasets/{NAME}"]
    assert not (hub.root / "spaces").exists()


def test_what_goes_wrong_is_said_and_nothing_is_written(
    whole: Survey, hub: hub_server.HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.writable = False
    with pytest.raises(NotFoundError, match=r"answered 403[^$]*that may write"):
        whole.push_to_hub(NAME)
    with pytest.raises(NotFoundError, match="not a hub id"):
        whole.push_to_hub("no such/name at all")
    hub_server.go_offline(monkeypatch)
    with pytest.raises(NotFoundError, match="unset HF_HUB_OFFLINE"):
        whole.push_to_hub(NAME)
    assert contents(hub.root) == {}


def test_a_single_file_is_no_space(tmp_path: Path, corpus: Path) -> None:
    survey = hs.survey("-", corpus / "0.txt", out=tmp_path / "out", statistics="entropy", single=True, threads=1)
    with pytest.raises(InputError, match="without single=True"):
        survey.push_to_hub(NAME)
