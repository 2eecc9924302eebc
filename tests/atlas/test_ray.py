"""On a real local Ray, where a worker is killed or a node goes down in mid-run: the same bytes as here."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from clusters import add_node
from surveying import OPTIONS, contents

import headscope as hs
from headscope.errors import InputError
from patience import PATIENCE, until

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster


pytestmark = pytest.mark.slow  # a cluster takes longer to start than most files of tests to run


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


ATLAS = {**OPTIONS, "head_distances": 2, "labels": True, "examples": 2, "effects": 6, "writes": 6}


def test_a_killed_worker_and_a_lost_node_change_nothing(
    ray_cluster: Cluster, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other in one survey: a worker takes seconds to start, and each of the two makes Ray start one."""
    import ray
    from ray._private.state import actors

    from headscope.atlas import on_ray

    second = add_node(ray_cluster)
    ray_cluster.wait_for_nodes(timeout=PATIENCE)
    here = hs.survey("-", corpus, out=tmp_path / "here", **ATLAS)
    nodes: dict[int, str] = {}

    class Watched(on_ray.RayWorkers):
        def __enter__(self) -> Watched:
            assert len({ray.get(actor.process.remote()) for actor in self.actors}) == 2
            nodes.update({one["Pid"]: one["Address"]["NodeID"] for one in actors().values()})
            return self

    def fail(tally: Any) -> None:
        first = min(nodes, key=lambda process: nodes[process] == second.node_id)  # of the other node, if there is one
        if tally.parts == 2 and alive(first):
            os.kill(first, signal.SIGKILL)
        if tally.parts == 4 and second in ray_cluster.worker_nodes:
            ray_cluster.remove_node(second, allow_graceful=False)

    monkeypatch.setattr(on_ray, "RayWorkers", Watched)
    there = hs.survey("-", corpus, out=tmp_path / "there", ray=True, workers=2, progress=fail, **ATLAS)
    until(lambda: not any(map(alive, nodes)))  # Ray buries its dead in its own time
    assert len([node for node in ray.nodes() if node["Alive"]]) == 1
    assert contents(there.folder) == contents(here.folder)
    assert ray.is_initialized()


def test_errors_come_back_as_they_were(ray_cluster, corpus, tmp_path):
    with pytest.raises(InputError, match="the model's limit of 256") as error:
        hs.survey("-", corpus, out=tmp_path / "out", ray=True, workers=1, length=1000)
    assert error.value.where == "length"
    with pytest.raises(InputError, match="3 workers of 1 CPUs each don't fit; 2 do"):
        hs.survey("-", corpus, out=tmp_path / "out", ray=True, workers=3)
