"""On a real local Ray, where a worker is killed or a node goes down in mid-run: the same bytes as here."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

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


def test_a_killed_worker_changes_nothing(ray_cluster, corpus, whole, tmp_path, monkeypatch):
    import ray

    from headscope.atlas import on_ray

    processes: list[int] = []

    class Watched(on_ray.RayWorkers):
        def __enter__(self):
            processes.extend(ray.get([actor.process.remote() for actor in self.actors]))
            return self

    def kill(tally) -> None:
        if tally.parts == 2:
            os.kill(processes[0], signal.SIGKILL)

    monkeypatch.setattr(on_ray, "RayWorkers", Watched)
    result = hs.survey(
        "-", corpus, out=tmp_path / "out", head_distances=2, ray=True, workers=2, progress=kill, **OPTIONS
    )
    assert len(set(processes)) == 2
    until(lambda: not alive(processes[0]))  # Ray buries its dead in its own time
    assert contents(result.folder) == contents(whole.folder)
    assert ray.is_initialized()


def test_errors_come_back_as_they_were(ray_cluster, corpus, tmp_path):
    with pytest.raises(InputError, match="the model's limit of 256") as error:
        hs.survey("-", corpus, out=tmp_path / "out", ray=True, workers=1, length=1000)
    assert error.value.where == "length"
    with pytest.raises(InputError, match="3 workers of 1 CPUs each don't fit; 2 do"):
        hs.survey("-", corpus, out=tmp_path / "out", ray=True, workers=3)


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
