"""The Ray launcher against a real Ray cluster of three nodes on this machine's loopback."""

import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autosync.errors import InvalidInput, NotSupported
from autosync.interop.host_clusters import HostHardware, cluster_of_hosts, hosts_of_ray
from autosync.trials.launchers import ray_launcher
from autosync.trials.launchers.ray_cluster import (
    alive_nodes,
    connect_to_ray,
    ray_addresses,
    ray_nodes,
    refuse_unreachable,
)
from autosync.trials.launchers.ray_launcher import RayLauncher
from autosync.trials.pool.process_pool import ProcessPool
from tests.autosync.trials.conftest import FAULTY, MARK
from tests.autosync.trials.contract_suite import PoolContract, SecondNode
from tests.autosync.trials.launchers.test_command_launcher import cluster_at, workload_at
from tests.waiting import until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

REAL = pytest.mark.long
"""Of tests on a real Ray cluster, whose nodes alone take as long as all other launchers' tests."""

ROOT = Path(__file__).parents[4]
HEAD, FIRST, SECOND = "127.0.0.2", "127.0.0.4", "127.0.0.3"
"""Rank 0 belongs on the node that was started last."""

HEALTH_CHECK_MILLISECONDS = "500"
"""After five refused checks in a row Ray counts a node as lost: usually that takes 15 s. Each still
has 10 s for its answer, so a node that is only slow is none."""


@dataclass
class RayCluster:
    address: str
    nodes: dict[str, Any]
    cluster: Any


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[RayCluster]:
    settings = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_health_check_period_ms": HEALTH_CHECK_MILLISECONDS,
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        from ray.cluster_utils import Cluster
    except ImportError:
        pytest.skip("RAY IS NOT INSTALLED, its launcher is not tested (pip install autosync[ray])")
    cluster = Cluster()
    try:
        nodes = {
            address: cluster.add_node(
                node_ip_address=address,
                num_cpus=1,
                object_store_memory=80 * 2**20,
                include_dashboard=False,
            )
            for address in (HEAD, SECOND, FIRST)
        }
        yield RayCluster(cluster.address, nodes, cluster)
    finally:
        cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def launcher_at(cluster: RayCluster) -> RayLauncher:
    here = (("PYTHONPATH", str(ROOT)), MARK)
    return RayLauncher(cluster.address, environment=here, workloads=FAULTY, repeats=0)


@pytest.fixture(scope="module")
def pool(ray_cluster: RayCluster) -> Iterator[ProcessPool]:
    with launcher_at(ray_cluster).open(workload_at(FIRST, SECOND)) as opened:
        yield opened


@REAL
def test_ranks_sit_on_the_hosts_of_the_file(pool: ProcessPool) -> None:
    """A worker's actor is a child of its node's raylet, which was told the node's address."""
    pool.warm_up()
    for worker, address in zip(pool.worker_pids(), (FIRST, SECOND), strict=True):
        raylet = parent(parent(worker))
        arguments = Path(f"/proc/{raylet}/cmdline").read_text().split("\0")
        assert f"--node_ip_address={address}" in arguments


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


@REAL
def test_a_running_ray_cluster_becomes_a_cluster_file(ray_cluster: RayCluster) -> None:
    hosts = hosts_of_ray(ray_nodes(ray_cluster.address))
    assert {host.address for host in hosts} == {HEAD, FIRST, SECOND}
    cluster = cluster_of_hosts(hosts, HostHardware(10.0, slots=1), "Ray")
    assert cluster.backend == "gloo"
    assert [node.devices[0].type for node in cluster.nodes] == ["cpu"] * 3


@REAL
def test_a_host_outside_the_ray_cluster_is_named(ray_cluster: RayCluster) -> None:
    with pytest.raises(InvalidInput, match=r"127\.0\.0\.9.*not in the Ray cluster"):
        launcher_at(ray_cluster).open(workload_at(FIRST, "127.0.0.9"))


def test_a_host_named_twice_is_refused() -> None:
    alive = {"a": "10.0.0.1", "10.0.0.1": "10.0.0.1"}
    with pytest.raises(InvalidInput, match="same Ray node"):
        ray_addresses(cluster_at("a", "10.0.0.1"), alive)


def test_ray_without_a_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(NotSupported, match="RAY_AUTH_MODE"):
        RayLauncher("127.0.0.2:1").open(workload_at(FIRST, SECOND))


def test_a_port_where_nothing_listens_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NotSupported, match=rf"'127\.0\.0\.1:{port}'.*Connection refused"):
        refuse_unreachable(f"127.0.0.1:{port}")


def test_an_impossible_port_is_refused() -> None:
    with pytest.raises(NotSupported, match=r"127\.0\.0\.1:99999"):
        refuse_unreachable("127.0.0.1:99999")


def joining(monkeypatch: pytest.MonkeyPatch, init: Callable[..., None]) -> None:
    """`connect_to_ray` finds a head, and joins by `init`."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    found = "autosync.trials.launchers.ray_cluster.refuse_unreachable"
    monkeypatch.setattr(found, lambda address: None)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)


def test_joining_leaves_sigterm_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is to end gives back what runs; Ray's handler would leave at once."""

    def init(**options: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))

    joining(monkeypatch, init)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert connect_to_ray("10.0.0.1:6379")
        assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_machine_outside_the_cluster_is_told_to_be_a_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init(**options: object) -> None:
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")

    joining(monkeypatch, init)
    with pytest.raises(NotSupported, match="Ray runs on this machine"):
        connect_to_ray("10.0.0.1:6379")


def test_a_head_that_has_gone_leaves_a_pool_that_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from ray.exceptions import RaySystemError

    def gone(group: object) -> None:
        raise RaySystemError("the head has gone")

    ended: list[bool] = []
    alive = {"a": "10.0.0.1", "b": "10.0.0.2"}
    monkeypatch.setattr(ray_launcher, "connect_to_ray", lambda address: True)
    monkeypatch.setattr(ray_launcher, "alive_nodes", lambda: alive)
    monkeypatch.setattr(ray_launcher, "_placement_group", lambda *given: object())
    monkeypatch.setattr(ray_launcher, "disconnect_from_ray", ended.append)
    monkeypatch.setattr("ray.util.remove_placement_group", gone)
    with RayLauncher("10.0.0.1:6379").open(workload_at("a", "b")):
        assert not ended
    assert ended == [True]


@pytest.fixture
def second_node(pool: ProcessPool, ray_cluster: RayCluster) -> SecondNode:
    def lose() -> None:
        actor = parent(pool.worker_pids()[1])
        ray_cluster.cluster.remove_node(ray_cluster.nodes[SECOND], allow_graceful=False)
        with contextlib.suppress(ProcessLookupError):  # it may have seen that its node has gone
            os.kill(actor, signal.SIGKILL)  # a host that goes takes all with it
        until(lambda: SECOND not in alive_nodes(), "the end of the node")

    return SecondNode(lose, f"rank 1 on host '{SECOND}'", ("refused", f"{SECOND}' has left"))


@REAL
class TestRayLauncher(PoolContract):
    """The node that is lost does not come back."""
