"""On a real local Ray of two workers, one of which is killed in mid-run: the same bytes as here."""

from __future__ import annotations

import os
import signal
import time

import pytest
from surveying import OPTIONS, contents

import headscope as hs
from headscope.errors import InputError
from patience import PATIENCE

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
    end = time.monotonic() + PATIENCE
    while alive(processes[0]):  # Ray buries its dead in its own time
        assert time.monotonic() < end
        time.sleep(0.01)
    assert contents(result.folder) == contents(whole.folder)
    assert ray.is_initialized()


def test_errors_come_back_as_they_were(ray_cluster, corpus, tmp_path):
    with pytest.raises(InputError, match="the model's limit of 256") as error:
        hs.survey("-", corpus, out=tmp_path / "out", ray=True, workers=1, length=1000)
    assert error.value.where == "length"
    with pytest.raises(InputError, match="3 workers of 1 CPUs each don't fit; 2 do"):
        hs.survey("-", corpus, out=tmp_path / "out", ray=True, workers=3)
