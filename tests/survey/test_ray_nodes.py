"""On a Ray cluster of two nodes, one of which goes down in mid-run: the same bytes as here, labels and effects too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from clusters import add_node
from surveying import OPTIONS, contents

import headscope as hs
from patience import PATIENCE

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

ATLAS = {**OPTIONS, "statistics": "entropy", "labels": True, "examples": 2, "effects": 6, "writes": 6}


@pytest.mark.slow
def test_a_node_goes_down(ray_cluster: Cluster, corpus: Path, tmp_path: Path) -> None:
    import ray

    second = add_node(ray_cluster)
    ray_cluster.wait_for_nodes(timeout=PATIENCE)
    here = hs.survey("-", corpus, out=tmp_path / "here", **ATLAS)
    down: list[int] = []

    def fell(tally) -> None:
        if tally.parts == 2 and not down:
            on_second = [node for node in ray.nodes() if node["NodeID"] == second.node_id]
            down.append(len(on_second))
            ray_cluster.remove_node(second, allow_graceful=False)

    there = hs.survey("-", corpus, out=tmp_path / "there", ray=True, workers=2, progress=fell, **ATLAS)
    assert down == [1]
    assert len([node for node in ray.nodes() if node["Alive"]]) == 1
    assert contents(there.folder) == contents(here.folder)
