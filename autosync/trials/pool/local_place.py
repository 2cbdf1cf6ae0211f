"""A rank's place on this machine: its worker starts behind a prefix, or is forked from a process
that has torch loaded.
"""

import os
import sys
from dataclasses import dataclass
from functools import partial

from autosync.environment import allowed_environment
from autosync.trials.pool.fork_server import ForkServer
from autosync.trials.pool.worker_contract import Answers
from autosync.trials.pool.worker_process import ENVIRONMENT, Begin, WorkerProcess, worker_arguments
from autosync.trials.shared_gpu import CudaMps, NcclEnvironment


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
