"""On a Ray cluster of two nodes, one of which goes down in mid-run: the same bytes as here, labels and effects too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from surveying import OPTIONS, contents

import headscope as hs
from patience import PATIENCE

ATLAS = {**OPTIONS, "statistics": "entropy", "labels": True, "examples": 2, "effects": 6}


def patiently(start: Callable[[], Any], end: float | None = None) -> Any:
    """Start a node: Ray gives up after 30 seconds, which is not long on a busy machine."""
    end = time.monotonic() + PATIENCE if end is None else end
    try:
        return start()
    except Exception as error:
        if "timed out during startup" not in str(error) or time.monotonic() > end:
            raise
        return patiently(start, end)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    nodes = Cluster()
    patiently(lambda: nodes.add_node(num_cpus=2, include_dashboard=False))
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def test_a_node_goes_down(cluster: Cluster, corpus: Path, tmp_path: Path) -> None:
    second = patiently(lambda: cluster.add_node(num_cpus=2))
    cluster.wait_for_nodes(timeout=PATIENCE)
    here = hs.survey("-", corpus, out=tmp_path / "here", **ATLAS)
    down: list[int] = []

    def fell(tally) -> None:
        if tally.parts == 2 and not down:
            on_second = [node for node in ray.nodes() if node["NodeID"] == second.node_id]
            down.append(len(on_second))
            cluster.remove_node(second, allow_graceful=False)

    there = hs.survey("-", corpus, out=tmp_path / "there", ray=True, workers=2, progress=fell, **ATLAS)
    assert down == [1]
    assert len([node for node in ray.nodes() if node["Alive"]]) == 1
    assert contents(there.folder) == contents(here.folder)
