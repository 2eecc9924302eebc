"""A survey's work on Ray: actors with one replica each, on this machine or on a cluster.

Actors rather than Ray Data: this process reads the corpus (which may be standard input) part by part, and it alone
writes the results. So no other machine needs the corpus or the folder, and at most two parts per actor are in memory.
Ray restarts an actor that dies and runs its part again; a part is a pure function of its texts, so nothing is lost or
counted twice.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

import ray

from headscope.atlas.job import Task, Workers
from headscope.atlas.loading import ModelSource
from headscope.atlas.replica import Replica, limit_threads
from headscope.atlas.survey_settings import Settings
from headscope.errors import HeadscopeError, InputError, first_line

TRIES = 3
"""Retries of a part whose actor died. Limited, because a part may kill every actor."""

PAUSE = 1.0
"""Seconds before an actor that is gone is asked again."""

IN_HAND = 2
"""Parts per actor: one running, one waiting."""


class Worker:
    """An actor. The model is loaded on the first call, so that a failure comes back as that call's error.

    `lent` is a list with the reference to the model's source. Every call passes it, because a restarted actor has
    nothing but its constructor's arguments.
    """

    def __init__(self, settings: Settings, threads: int) -> None:
        self._settings = settings
        self._threads = threads
        self._replica: Replica | None = None

    def call(self, lent: list[Any], method: str, *arguments: Any) -> Any:
        """Call a method of the replica."""
        if self._replica is None:
            limit_threads(self._threads)
            self._replica = Replica(ray.get(lent[0]), self._settings)
        return getattr(self._replica, method)(*arguments)

    def process(self) -> int:
        """The actor's process id."""
        return os.getpid()


class RayWorkers(Workers):
    """Actors on a Ray that is running already, or on one that is started here and stopped at the end.

    Args:
        address: of a cluster; by default the one that the environment names, otherwise this machine.
    """

    def __init__(
        self, source: ModelSource, settings: Settings, *, threads: int | None, workers: int | None, address: str | None
    ) -> None:
        self._started_ray = not ray.is_initialized()
        if self._started_ray:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                found = f"could not connect to Ray: {first_line(error)}"
                advice = "give the address of a running cluster, or omit it to start Ray on this machine"
                raise InputError(found, where=f"address {address!r}", advice=advice) from error
        try:
            self.actors = self._start(settings, threads, workers)
            self._lent = [ray.put(source)]
            self.described = self.once("__getattribute__", "described")  # an attribute of the replica, by a call
        except BaseException:
            self.__exit__()
            raise

    def _start(self, settings: Settings, threads: int | None, workers: int | None) -> list[Any]:
        cpus = 1 if threads is None else threads
        gpus = 1 if settings.device.startswith("cuda") else 0
        resources = ray.cluster_resources()
        most = int(min(resources.get("CPU", 0) // cpus, resources.get("GPU", 0) if gpus else float("inf")))
        count = max(most, 1) if workers is None else workers
        if not 1 <= count <= most:
            found = f"{count} workers of {cpus} CPUs" + (" and a GPU" if gpus else "") + f" each don't fit; {most} do"
            raise InputError(found, where="workers", advice="use fewer workers, or fewer threads per worker")
        actor = ray.remote(Worker).options(num_cpus=cpus, num_gpus=gpus, max_restarts=-1)
        return [actor.remote(settings, cpus) for _ in range(count)]

    def __exit__(self, *error: object) -> None:
        if self._started_ray:
            ray.shutdown()
            return
        for actor in getattr(self, "actors", ()):
            ray.kill(actor)

    def each(self, method: str, tasks: Iterable[Task], *others: Any) -> Iterator[tuple[Task, Any]]:
        """See Workers; each actor has at most IN_HAND tasks.

        A task whose actor is gone goes to the next that is free. That actor gets none until it answers again: when a
        node goes down, Ray says for a while that its actors are unavailable, before it restarts them on another.

        Raises:
            InputError: the same task was lost TRIES + 1 times.
        """
        todo = iter(tasks)
        free = deque(actor for _ in range(IN_HAND) for actor in self.actors)
        running: dict[Any, tuple[Task | None, Any]] = {}
        lost: deque[Task] = deque()
        losses: Counter[int] = Counter()
        any_left = True
        while any_left or lost or any(task is not None for task, _ in running.values()):
            while free and (lost or any_left):
                task = lost.popleft() if lost else next(todo, None)
                if task is None:
                    any_left = False
                    break
                actor = free.popleft()
                running[actor.call.remote(self._lent, method, task, *others)] = (task, actor)
            if not running:
                continue
            (ready,), _ = ray.wait(list(running), num_returns=1)
            done, actor = running.pop(ready)
            try:
                result = ray.get(ready)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, HeadscopeError):
                    raise error.cause from error
                raise
            except ray.exceptions.RayActorError as error:
                if done is not None:
                    losses[id(done)] += 1
                    if losses[id(done)] > TRIES:
                        raise InputError(
                            f"a worker died {TRIES + 1} times on the same part: {first_line(error)}",
                            where="Ray",
                            advice="it may be out of memory: set a smaller batch_tokens or part_size, or take fewer "
                            "workers; finished parts are kept",
                        ) from error
                    lost.append(done)
                time.sleep(PAUSE)
                running[actor.process.remote()] = (None, actor)
                continue
            free.append(actor)
            if done is not None:
                losses.pop(id(done), None)
                yield done, result
