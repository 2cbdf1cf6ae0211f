"""The `ray` launcher: the ranks are actors of a Ray cluster that already runs.

A placement group holds one bundle a node, STRICT_SPREAD and pinned to the node's address, so that
ranks sit where the cluster file says, whatever Ray would have chosen. An actor only relays JSON
lines to the same worker process that every launcher starts; nothing durable lives in Ray."""

import contextlib
import math
import queue
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from autosync.cancellation import check_cancelled
from autosync.cluster import Cluster
from autosync.environment import allowed_environment
from autosync.errors import NotSupported
from autosync.trials.commands import Answer
from autosync.trials.contract import OnWait, Workload
from autosync.trials.launchers.local_launcher import refuse_dedicated_servers
from autosync.trials.launchers.ray_cluster import (
    alive_nodes,
    connect_to_ray,
    disconnect_from_ray,
    gpus_of_nodes,
    ray_addresses,
)
from autosync.trials.pool.process_pool import ProcessPool, usual_repeats
from autosync.trials.pool.worker_process import (
    Answers,
    WorkerAnswer,
    WorkerExit,
    WorkerProcess,
    carried_environment,
    worker_arguments,
)

LISTEN_SECONDS = 5.0
"""How long one call to an actor waits for the worker's next answer."""

KILL_SECONDS = 5.0
LOST_SECONDS = 20.0
"""How long a call may stay unanswered: an actor on a node that has gone never answers."""


class Relay(WorkerProcess):
    """The actor: a worker process on its node, whose answers are fetched by calls."""

    def __init__(self, rank: int, workloads: tuple[str, ...], carried: Mapping[str, str]) -> None:
        self._answers: Answers = queue.Queue()
        command = [sys.executable, *worker_arguments(workloads)]
        super().__init__(rank, command, {**allowed_environment(), **carried}, self._answers)

    def process_id(self) -> int:
        return self.pid

    def listen(self, seconds: float) -> list[Answer | None]:
        """The worker's next answer (None: it has ended); empty where none comes in time."""
        try:
            return [self._answers.get(timeout=seconds).answer]
        except queue.Empty:
            return []


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
        found = self._asked("process_id", -1)
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
        _answer_of(self._killing, KILL_SECONDS, None)
        with contextlib.suppress(RayError):  # the head has gone
            ray.kill(self._actor)
        self._listener.join(LISTEN_SECONDS)

    def _asked(self, method: str, otherwise: object) -> object:
        return _answer_of(getattr(self._actor, method).remote(), LOST_SECONDS, otherwise)

    def _listen(self, answers: Answers) -> None:
        while not self._stopped.is_set():
            heard = _answer_of(self._actor.listen.remote(LISTEN_SECONDS), None, [None])
            for answer in heard:
                if not self._stopped.is_set():
                    answers.put(WorkerAnswer(self.rank, answer))
            if None in heard:
                return


def _answer_of(reference: Any, seconds: float | None, otherwise: object) -> Any:
    """otherwise: where the actor or its node has gone, or does not answer in time."""
    import ray
    from ray.exceptions import RayError

    try:
        return ray.get(reference, timeout=seconds)
    except RayError:
        return otherwise


PLACING_SECONDS = 60.0
"""How long Ray may take to reserve the resources of a pool."""

PLACING_POLL_SECONDS = 0.2

CONCURRENT_CALLS = 4
"""An actor listens for answers while it takes commands."""

GPU_PARTS = 10_000
"""Of a GPU, that Ray tells apart."""

NODE_SHARE = 0.001
"""Of Ray's `node:ADDRESS` resource (1 on every node): enough to pin a bundle."""


@dataclass(frozen=True, slots=True)
class RayLauncher:
    """address: of the Ray head, `HOST:PORT`. Node addresses of the cluster file are Ray's own
        (`ray list nodes`) or the hosts' names.
    share_gpus: ranks of a node may share its GPUs, by CUDA MPS where it runs there; NCCL then sends
        by sockets, over `interface` where it is given. Ray reserves a part of a GPU for each.
    environment: added to the workers'. interface: for gloo; by default the one towards rank 0.
    workloads: `name=package.module:function` entries that requests may name.
    on_wait: receives which rank is slow to start.
    """

    address: str
    environment: tuple[tuple[str, str], ...] = ()
    interface: str = ""
    workloads: tuple[str, ...] = ()
    share_gpus: bool = False
    repeats: int = field(default_factory=usual_repeats)
    on_wait: OnWait | None = None
    name: ClassVar[str] = "ray"

    def with_wait_reports(self, on_wait: OnWait) -> Self:
        return replace(self, on_wait=on_wait)

    def open(self, workload: Workload) -> ProcessPool:
        """Reserve the nodes; workers start with the first trial.

        Raises:
            NotSupported: Ray is not installed, not reachable, runs without a token, or has not
                the resources; or trials want GPUs and a node has none.
            InvalidInput: a node of the cluster is none of Ray's.
        """
        cluster = workload.domain.cluster
        refuse_dedicated_servers(workload)
        connected = connect_to_ray(self.address)
        try:
            addresses = ray_addresses(cluster, alive_nodes())
            gpus = gpus_a_rank(self, workload, addresses)
            group = _placement_group(cluster, addresses, gpus)
        except BaseException:  # whatever it was, the connection does not stay
            disconnect_from_ray(connected)
            raise

        def release() -> None:
            import ray.util
            from ray.exceptions import RayError

            try:
                with contextlib.suppress(RayError):  # the head has gone, its reservations too
                    ray.util.remove_placement_group(group)
            finally:
                disconnect_from_ray(connected)

        nodes = [int(node) for node in cluster.node_of_server()[: cluster.world_size]]
        return ProcessPool(
            workload=workload,
            place=f"ray ({len(cluster.nodes)} nodes)",
            places=tuple(
                RayPlace(self, cluster.nodes[node].address, addresses[node], node, gpus, group)
                for node in nodes
            ),
            host=addresses[nodes[0]],
            links="cluster",
            workloads=self.workloads,
            share_gpus=self.share_gpus,
            on_wait=self.on_wait,
            repeats=self.repeats,
            on_close=release,
        )


def gpus_a_rank(launcher: RayLauncher, workload: Workload, addresses: Sequence[str]) -> float:
    """What Ray reserves for each rank; it hides GPUs from actors that reserve none. Ray gives an
    actor a part of one GPU, never parts of two.

    addresses: Ray's, of the cluster's nodes.

    Raises:
        NotSupported: names a node that has none.
    """
    if workload.device != "cuda":
        return 0.0
    there, parts = gpus_of_nodes(), []
    for node, address in zip(workload.domain.cluster.nodes, addresses, strict=True):
        gpus = there[address]
        if gpus < 1:
            raise NotSupported(
                f"node {node.address!r} has no GPU that Ray knows of.",
                thing=f"node {node.address}",
                value=gpus,
                remedy="Start Ray there with --num-gpus, or where the driver's GPUs are seen.",
            )
        parts.append(1 / math.ceil(node.ranks / gpus))
    return math.floor(min(parts) * GPU_PARTS) / GPU_PARTS if launcher.share_gpus else 1.0


@dataclass(frozen=True, slots=True)
class RayPlace:
    """One rank: an actor in the bundle of its node. ray_address: what Ray calls the node. gpus:
    that it reserves."""

    launcher: RayLauncher
    address: str
    ray_address: str
    node: int
    gpus: float
    group: Any

    def start(self, rank: int, workloads: tuple[str, ...], answers: Answers) -> "RayWorker":
        if self.ray_address not in alive_nodes().values():
            raise NotSupported(
                f"host {self.address!r} has left the Ray cluster.",
                thing="address",
                value=self.address,
                remedy=f"Start Ray there again: `ray start --address={self.launcher.address}`.",
            )
        one = self.launcher
        carried = carried_environment(rank, one.interface, one.share_gpus, one.environment)
        actor = _actor(self, rank, workloads, carried)
        return RayWorker(rank, self.address, actor, answers)


def _placement_group(cluster: Cluster, addresses: Sequence[str], gpus: float) -> Any:
    """Raises NotSupported when Ray cannot reserve it."""
    import ray.util

    bundles = [
        {
            f"node:{address}": NODE_SHARE,
            "CPU": node.ranks,
            **({"GPU": whole_above_one(gpus * node.ranks)} if gpus else {}),
        }
        for node, address in zip(cluster.nodes, addresses, strict=True)
    ]
    group = ray.util.placement_group(bundles, strategy="STRICT_SPREAD")
    try:
        placed = _placed(group)
    except BaseException:  # whatever it was, nothing stays reserved
        ray.util.remove_placement_group(group)
        raise
    if not placed:
        ray.util.remove_placement_group(group)
        raise NotSupported(
            f"Ray did not reserve {bundles} within {PLACING_SECONDS:.0f} s.",
            thing="resources",
            value=bundles,
            remedy="See `ray status`: are the nodes taken, or smaller than the cluster file says?",
        )
    return group


def whole_above_one(gpus: float) -> float:
    """Ray takes a part of one GPU, or whole ones."""
    return gpus if gpus <= 1 else float(math.ceil(gpus))


def _placed(group: Any) -> bool:
    """Whether Ray reserves it in time. Raises Cancelled meanwhile."""
    until = time.monotonic() + PLACING_SECONDS
    while time.monotonic() < until:
        check_cancelled()
        if group.wait(PLACING_POLL_SECONDS):
            return True
    return False


def _actor(
    place: RayPlace, rank: int, workloads: tuple[str, ...], carried: Mapping[str, str]
) -> Any:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    where = PlacementGroupSchedulingStrategy(place.group, placement_group_bundle_index=place.node)
    actor_class = ray.remote(Relay).options(
        num_cpus=1,
        num_gpus=place.gpus,
        max_concurrency=CONCURRENT_CALLS,
        max_restarts=0,
        scheduling_strategy=where,
    )
    return actor_class.remote(rank, workloads, carried)
