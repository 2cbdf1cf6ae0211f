"""The `ray` launcher: the ranks are actors of a Ray cluster that already runs.

A placement group holds one bundle a node, STRICT_SPREAD and pinned to the node's address, so that
ranks sit where the cluster file says, whatever Ray would have chosen. An actor only relays JSON
lines to the same worker process that every launcher starts; nothing durable lives in Ray.
"""

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autosync.cluster import Cluster
from autosync.errors import InvalidInput, NotSupported
from autosync.trials.contract import Workload
from autosync.trials.launchers.local_launcher import refuse_dedicated_servers
from autosync.trials.pool.process_pool import REPEATS, ProcessPool
from autosync.trials.pool.worker_process import (
    ENVIRONMENT,
    Answers,
    WorkerAnswer,
    WorkerExit,
    WorkerProcess,
    worker_arguments,
)
from autosync.trials.pool.worker_transport import WorkerTransport
from autosync.trials.worker.commands import Answer

PLACING_SECONDS = 60.0
"""How long Ray may take to reserve the resources of a pool."""

LISTEN_SECONDS = 5.0
"""How long one call to an actor waits for the worker's next answer."""

KILL_SECONDS = 5.0
LOST_SECONDS = 20.0
"""How long a call may stay unanswered: an actor on a node that has gone never answers."""

CONCURRENT_CALLS = 4
"""An actor listens for answers while it takes commands."""

NODE_SHARE = 0.001
"""Of Ray's `node:ADDRESS` resource (1 on every node): enough to pin a bundle."""


@dataclass(frozen=True, slots=True)
class RayLauncher:
    """address: of the Ray head, `HOST:PORT`. Node addresses of the cluster file are Ray's own
        (`ray list nodes`) or the hosts' names.
    cpus, gpus: what Ray reserves for each rank; it hides GPUs from actors that reserve none.
    environment: added to the workers'. interface: for gloo; by default the one towards rank 0.
    workloads: `name=package.module:function` entries that requests may name.
    """

    address: str
    cpus: float = 1.0
    gpus: float = 0.0
    environment: tuple[tuple[str, str], ...] = ()
    interface: str = ""
    workloads: tuple[str, ...] = ()
    repeats: int = REPEATS
    name: str = "ray"

    def open(self, workload: Workload) -> ProcessPool:
        """Reserve the nodes; workers start with the first trial.

        Raises:
            NotSupported: Ray is not installed, not reachable, runs without a token, or has not
                the resources; or trials want GPUs and none are reserved.
            InvalidInput: a node of the cluster is none of Ray's.
        """
        cluster = workload.domain.cluster
        refuse_dedicated_servers(workload)
        refuse_unreserved_gpus(workload, self.gpus)
        connected = _connect(self.address)
        try:
            addresses = ray_addresses(cluster, alive_nodes())
            group = _placement_group(self, cluster, addresses)
        except (InvalidInput, NotSupported):
            _disconnect(connected)
            raise

        def release() -> None:
            import ray.util
            from ray.exceptions import RayError

            try:
                with contextlib.suppress(RayError):  # the head has gone, its reservations too
                    ray.util.remove_placement_group(group)
            finally:
                _disconnect(connected)

        nodes = [int(node) for node in cluster.node_of_server()[: cluster.world_size]]
        transport = WorkerTransport(
            workload=workload,
            place=f"ray ({len(cluster.nodes)} nodes)",
            placements=tuple(
                RayPlace(self, cluster.nodes[node].address, addresses[node], node, group)
                for node in nodes
            ),
            host=addresses[nodes[0]],
            links="cluster",
            workloads=self.workloads,
        )
        return ProcessPool(transport, self.repeats, release)


def refuse_unreserved_gpus(workload: Workload, gpus: float) -> None:
    """Raises NotSupported where trials want GPUs and each rank reserves `gpus` = 0 of them."""
    if workload.device == "cuda" and gpus == 0:
        raise NotSupported(
            "the launcher ray reserves no GPUs for its workers.",
            thing="device",
            value="cuda",
            remedy="Let it reserve some, `RayLauncher(..., gpus=1)`, or reach the hosts with the "
            "launcher command (ssh, srun).",
        )


@dataclass(frozen=True, slots=True)
class RayPlace:
    """One rank: an actor in the bundle of its node. ray_address: what Ray calls the node."""

    launcher: RayLauncher
    address: str
    ray_address: str
    node: int
    group: Any

    def start(self, rank: int, workloads: tuple[str, ...], answers: Answers) -> "RayWorker":
        if self.ray_address not in alive_nodes().values():
            raise NotSupported(
                f"host {self.address!r} has left the Ray cluster.",
                thing="address",
                value=self.address,
                remedy=f"Start Ray there again: `ray start --address={self.launcher.address}`.",
            )
        carried = {**ENVIRONMENT, **dict(self.launcher.environment)}
        if self.launcher.interface:
            carried["GLOO_SOCKET_IFNAME"] = self.launcher.interface
        actor = _actor(self, rank, workloads, carried)
        return RayWorker(rank, self.address, actor, answers)


class Relay:
    """The actor: starts the worker on its node and passes lines to and fro."""

    def __init__(self, rank: int, workloads: tuple[str, ...], carried: Mapping[str, str]) -> None:
        self._answers: Answers = queue.Queue()
        command = [sys.executable, *worker_arguments(workloads)]
        environment = {**os.environ, **carried}
        self._worker = WorkerProcess(rank, command, environment, self._answers)

    def pid(self) -> int:
        return self._worker.pid

    def send(self, line: str) -> None:
        self._worker.send(line)

    def listen(self, seconds: float) -> list[Answer | None]:
        """The worker's next answer (None: it has ended); empty where none comes in time."""
        try:
            return [self._answers.get(timeout=seconds).answer]
        except queue.Empty:
            return []

    def exit(self) -> WorkerExit:
        return self._worker.exit()

    def stderr_tail(self) -> str:
        return self._worker.stderr_tail()

    def kill(self) -> None:
        self._worker.kill()


class RayWorker:
    """A worker behind an actor, as the worker group sees it."""

    def __init__(self, rank: int, where: str, actor: Any, answers: Answers) -> None:
        self.rank = rank
        self.where = where
        self.command = f"a Ray actor on {where}"
        self._actor = actor
        self._killing: Any = None
        self._stopped = threading.Event()
        self._listener = threading.Thread(target=self._listen, args=(answers,), daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """Of the worker's process, on its own host."""
        found = self._asked("pid", -1)
        assert isinstance(found, int)
        return found

    def send(self, line: str) -> None:
        self._actor.send.remote(line)

    def stderr_tail(self) -> str:
        return str(self._asked("stderr_tail", ""))

    def exit(self) -> WorkerExit:
        found = self._asked("exit", WorkerExit(None, False))
        assert isinstance(found, WorkerExit)
        return found

    def begin_kill(self) -> None:
        self._stopped.set()
        self._killing = self._actor.kill.remote()

    def kill(self) -> None:
        """The worker first, by its own actor; then the actor, alive or not."""
        import ray
        from ray.exceptions import RayError

        self.begin_kill()
        self._wait(self._killing, KILL_SECONDS, None)
        with contextlib.suppress(RayError):  # the head has gone
            ray.kill(self._actor)
        self._listener.join(LISTEN_SECONDS)

    def _asked(self, method: str, otherwise: object) -> object:
        return self._wait(getattr(self._actor, method).remote(), LOST_SECONDS, otherwise)

    def _wait(self, reference: Any, seconds: float, otherwise: object) -> object:
        from ray.exceptions import RayError

        try:
            return _get(reference, seconds)
        except RayError:  # the actor or its node has gone
            return otherwise

    def _listen(self, answers: Answers) -> None:
        from ray.exceptions import RayError

        while not self._stopped.is_set():
            try:
                heard = _get(self._actor.listen.remote(LISTEN_SECONDS), None)
            except RayError:
                heard = [None]
            for answer in heard:
                if not self._stopped.is_set():
                    answers.put(WorkerAnswer(self.rank, answer))
            if None in heard:
                return


def ray_addresses(cluster: Cluster, alive: Mapping[str, str]) -> list[str]:
    """Ray's address of each of the cluster's nodes.

    alive: Ray's nodes by address and by host name.

    Raises:
        InvalidInput: names the node that is none of them, or the two that are one.
    """
    found: dict[str, str] = {}
    for node in cluster.nodes:
        if node.address not in alive:
            raise InvalidInput(
                f"node {node.address!r} is not in the Ray cluster.",
                thing="address",
                value=node.address,
                remedy=f"Ray has: {', '.join(sorted(set(alive.values())))}.",
            )
        there = alive[node.address]
        if there in found:
            raise InvalidInput(
                f"nodes {found[there]!r} and {node.address!r} are the same Ray node, {there}.",
                thing="address",
                value=node.address,
                remedy="Name every host once.",
            )
        found[there] = node.address
    return list(found)


def _connect(address: str) -> bool:
    """Whether this call made the connection (and so shall end it).

    Raises:
        NotSupported: Ray is not installed, not reachable, or runs without a token.
    """
    try:
        import ray
    except ImportError:
        raise NotSupported(
            "Ray is not installed.",
            thing="launcher",
            value="ray",
            remedy="Install it: `pip install autosync[ray]`.",
        ) from None
    if os.environ.get("RAY_AUTH_MODE") != "token":
        raise NotSupported(
            f"RAY_AUTH_MODE is {os.environ.get('RAY_AUTH_MODE', 'not set')!r}: without a token, "
            "everyone who reaches Ray's ports can run code on its nodes.",
            thing="RAY_AUTH_MODE",
            value=os.environ.get("RAY_AUTH_MODE"),
            remedy="Set RAY_AUTH_MODE=token here and where Ray starts; see "
            "`ray get-auth-token --generate`.",
        )
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises anything from ConnectionError to ValueError here
        raise NotSupported(
            f"the Ray cluster at {address!r} cannot be joined: {error}",
            thing="address",
            value=address,
            remedy="Check `ray status --address` and the token (RAY_AUTH_TOKEN).",
        ) from None
    return True


def _disconnect(connected: bool) -> None:
    import ray

    if connected:
        ray.shutdown()


def alive_nodes() -> dict[str, str]:
    """Ray's address of every node that is alive, by address and by host name where that tells
    them apart."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    names = [node["NodeManagerHostname"] for node in nodes]
    by_name = {
        name: str(node["NodeManagerAddress"])
        for name, node in zip(names, nodes, strict=True)
        if names.count(name) == 1
    }
    return by_name | {str(node["NodeManagerAddress"]): node["NodeManagerAddress"] for node in nodes}


def _placement_group(launcher: RayLauncher, cluster: Cluster, addresses: Sequence[str]) -> Any:
    """Raises NotSupported when Ray cannot reserve it."""
    import ray.util

    bundles = [
        {
            f"node:{address}": NODE_SHARE,
            "CPU": launcher.cpus * node.ranks,
            **({"GPU": launcher.gpus * node.ranks} if launcher.gpus else {}),
        }
        for node, address in zip(cluster.nodes, addresses, strict=True)
    ]
    group = ray.util.placement_group(bundles, strategy="STRICT_SPREAD")
    if not group.wait(PLACING_SECONDS):
        ray.util.remove_placement_group(group)
        raise NotSupported(
            f"Ray did not reserve {bundles} within {PLACING_SECONDS:.0f} s.",
            thing="resources",
            value=bundles,
            remedy="See `ray status`: are the nodes taken, or smaller than the cluster file says?",
        )
    return group


def _actor(
    place: RayPlace, rank: int, workloads: tuple[str, ...], carried: Mapping[str, str]
) -> Any:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    where = PlacementGroupSchedulingStrategy(place.group, placement_group_bundle_index=place.node)
    actor_class = ray.remote(Relay).options(
        num_cpus=place.launcher.cpus,
        num_gpus=place.launcher.gpus,
        max_concurrency=CONCURRENT_CALLS,
        max_restarts=0,
        scheduling_strategy=where,
    )
    return actor_class.remote(rank, workloads, carried)


def _get(reference: Any, seconds: float | None) -> Any:
    import ray

    return ray.get(reference, timeout=seconds)
