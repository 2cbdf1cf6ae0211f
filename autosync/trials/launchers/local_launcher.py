"""The `local` launcher: every rank on this machine, over loopback, links unshaped."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Self

from autosync.environment import allowed_environment
from autosync.errors import NotSupported
from autosync.trials.contract import OnWait, Workload
from autosync.trials.gpus import CudaMps, NcclEnvironment, refuse_fewer_gpus, shared_gpu_environment
from autosync.trials.pool.fork_server import ForkServer
from autosync.trials.pool.machine_lock import shared_machine_lock
from autosync.trials.pool.process_pool import Links, ProcessPool, usual_repeats
from autosync.trials.pool.worker_process import (
    ENVIRONMENT,
    Answers,
    Begin,
    WorkerProcess,
    worker_arguments,
)
from autosync.trials.request_names import UNSHAPED

LOOPBACK = "127.0.0.1"
DESCRIPTION = f"local ({UNSHAPED})"


@dataclass(frozen=True, slots=True)
class MachineLauncher:
    """A launcher whose ranks are all on this machine.

    workloads: `name=package.module:function` entries that requests may name.
    share_gpus: ranks may share this machine's GPUs, by CUDA MPS where it has that.
    on_wait: receives a message where another pool measures on this machine for long.
    """

    workloads: tuple[str, ...] = ()
    share_gpus: bool = False
    repeats: int = field(default_factory=usual_repeats)
    on_wait: OnWait | None = None

    def with_wait_reports(self, on_wait: OnWait) -> Self:
        return replace(self, on_wait=on_wait)

    def pool(
        self,
        workload: Workload,
        *,
        place: str,
        entries: Sequence[tuple[tuple[str, ...], tuple[str, ...]]],
        interface: str,
        host: str,
        links: Links,
        nccl: NcclEnvironment | None,
        on_close: Callable[[], None] = lambda: None,
    ) -> ProcessPool:
        """Workers are forked from one process, except where they are to use a GPU, as CUDA and
        forks go badly together.

        entries: of every rank, the prefix of its command and the namespaces that this leads to; see
            `LocalPlace`. The others are those of `ProcessPool` and `LocalPlace`.
        """
        on_gpu = workload.device == "cuda"
        preload = None if on_gpu else ForkServer()
        mps = CudaMps() if self.share_gpus and on_gpu else None
        nodes = workload.domain.cluster.node_of_server()[: workload.domain.world_size]

        def close() -> None:
            try:
                if preload:
                    preload.close()
            finally:
                on_close()

        return ProcessPool(
            workload=workload,
            place=place,
            places=tuple(
                LocalPlace(prefix, interface, int(node), namespaces, preload, nccl, mps)
                for node, (prefix, namespaces) in zip(nodes, entries, strict=True)
            ),
            host=host,
            links=links,
            workloads=self.workloads,
            share_gpus=self.share_gpus,
            mps=mps,
            machine_lock=shared_machine_lock(),
            on_wait=self.on_wait,
            repeats=self.repeats,
            on_close=close,
        )


@dataclass(frozen=True, slots=True)
class LocalLauncher(MachineLauncher):
    """Ranks that share GPUs send by sockets over the loopback."""

    name: ClassVar[str] = "local"

    def open(self, workload: Workload) -> ProcessPool:
        """Workers start with the first trial.

        Raises:
            NotSupported: the cluster has dedicated servers, or this machine no GPU to work on, or
                fewer than ranks that may not share them.
        """
        refuse_dedicated_servers(workload)
        if workload.device == "cuda":
            refuse_fewer_gpus(workload.domain.world_size, self.share_gpus)
        return self.pool(
            workload,
            place=self._description(workload),
            entries=[((), ())] * workload.domain.world_size,
            interface="lo",
            host=LOOPBACK,
            links="loopback",
            nccl=shared_gpu_environment if self.share_gpus else None,
        )

    def _description(self, workload: Workload) -> str:
        """Between GPUs of one node NCCL takes the node's own links, unless ranks share GPUs."""
        one_node = len(workload.domain.cluster.nodes) == 1
        own = one_node and workload.backend == "nccl" and not self.share_gpus
        return self.name if own else DESCRIPTION


def refuse_dedicated_servers(workload: Workload) -> None:
    """Raises NotSupported where a node holds no rank: trials run ranks only."""
    for node in workload.domain.cluster.nodes:
        if node.server_only:
            raise NotSupported(
                f"node {node.address!r} is a dedicated server: trials run ranks only.",
                thing=f"node {node.address}",
                value="server_only",
                remedy="Leave dedicated servers out of the cluster that is measured.",
            )


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A rank on this machine: `prefix` goes before the command.

    interface: the network interface that messages pass. node: index of the cluster's node.
    nccl: what NCCL finds in its environment; by default nothing of ours. mps: that it runs by.
    preload: what the worker is forked from instead, into `namespaces` (files), as the prefix would
    bring it there.
    """

    prefix: tuple[str, ...]
    interface: str
    node: int
    namespaces: tuple[str, ...] = ()
    preload: ForkServer | None = None
    nccl: NcclEnvironment | None = None
    mps: CudaMps | None = None

    def start(self, rank: int, workloads: tuple[str, ...], answers: Answers) -> WorkerProcess:
        command = [*self.prefix, sys.executable, *worker_arguments(workloads)]
        environment = {
            **allowed_environment(),
            **ENVIRONMENT,
            "GLOO_SOCKET_IFNAME": self.interface,
            **(self.nccl(rank, self.interface) if self.nccl else {}),
            **(self.mps.variables if self.mps else {}),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        begin: Begin | None = None
        if self.preload is not None:
            begin = partial(self.preload.fork, environment, self.namespaces, workloads)
        return WorkerProcess(rank, command, environment, answers, begin=begin)
