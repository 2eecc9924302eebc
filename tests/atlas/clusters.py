"""A Ray cluster whose nodes may take their time to start.

Ray is imported where it is used: most workers run no test with it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from patience import PATIENCE

if TYPE_CHECKING:
    from ray._private import node
    from ray.cluster_utils import Cluster


@contextmanager
def unhurried() -> Iterator[None]:
    """Give a node PATIENCE to start, where Ray has a fixed 30 seconds: on a busy machine that is not long."""
    from ray import cluster_utils
    from ray._private import node, services

    def slow(clock: Callable[[], float]) -> Callable[[], float]:
        return lambda: clock() * 30 / PATIENCE

    clocks = SimpleNamespace(**{**vars(time), "time": slow(time.time), "monotonic": slow(time.monotonic)})
    with pytest.MonkeyPatch.context() as patch:
        for module in (node, services, cluster_utils):
            patch.setattr(module, "time", clocks)
        yield


PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
"""Of a node's agents: it would wait 15 seconds for them to choose their own, and die."""


def add_node(cluster: Cluster, **options: Any) -> Any:
    from ray._private import node
    from ray._raylet import DASHBOARD_AGENT_LISTEN_PORT_NAME, persist_port

    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in PORTS]
        for each in sockets:
            each.bind(("", 0))
        ports = dict(zip(PORTS, (each.getsockname()[1] for each in sockets), strict=True))
    start = node.Node.start_raylet

    def start_with_port(self: node.Node, *args: Any, **named: Any) -> None:
        name = DASHBOARD_AGENT_LISTEN_PORT_NAME  # the one that a node looks for even if it was chosen
        persist_port(self.get_session_dir_path(), self.node_id, name, ports["dashboard_agent_listen_port"])
        start(self, *args, **named)

    with unhurried(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.Node, "start_raylet", start_with_port)
        return cluster.add_node(num_cpus=2, **ports, **options)


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """A cluster of one node with two CPUs, which this process is connected to."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_gcs_server_port_wait_time_s": str(PATIENCE)}
    cluster = Cluster()
    try:
        add_node(cluster, include_dashboard=False, include_log_monitor=False, no_monitor=True)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
