"""The `command` launcher: every rank is started by a prefix that reaches its host.

`ssh {host}`, `srun -w {host} ... --cpu-bind=none` or `kubectl exec -i {host} --` come from the
operator; only host addresses come from a cluster document, and only harmless ones pass.
"""

import re
import shlex
import sys
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import ClassVar, Self

from autosync.cluster import Cluster
from autosync.environment import allowed_environment
from autosync.errors import InvalidInput
from autosync.trials.contract import OnWait, Workload
from autosync.trials.launchers.local_launcher import refuse_dedicated_servers
from autosync.trials.pool.process_pool import ProcessPool, usual_repeats
from autosync.trials.pool.worker_process import (
    Answers,
    WorkerProcess,
    carried_environment,
    worker_arguments,
)

PLACEHOLDER = re.compile(r"\{(\w*)\}")
SAFE_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
"""No space, quote, dollar or leading dash: nothing that a program could take for an option or a
shell for syntax. Cluster files may come from a request."""

REMOTE_SHELLS = frozenset({"ssh", "rsh"})
"""Programs that join their words with spaces and hand them to a shell on the other side."""

MPI_STARTERS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
"""Programs that start others without a shell, and may themselves reach hosts by ssh: `--mca
plm_rsh_agent ssh`, `-bootstrap ssh`."""


@dataclass(frozen=True, slots=True)
class CommandLauncher:
    """prefix: words before the worker's command, split as a shell would. `{host}` is the node's
        address, `{node}` and `{rank}` their numbers. `{command}`, where the prefix has it, is
        the worker's command, quoted for a shell; without it the command's words follow the
        prefix as they are (quoted as one word where a word of the prefix is ssh or rsh, unless a
        starter of MPI comes before it).
    python: interpreter on the hosts, which has autosync installed.
    environment: passed on the worker's command line (`env NAME=value ...`).
    interface: the network interface gloo binds to; by default the one that leads to rank 0.
    share_gpus: ranks of a host may share its GPUs, by CUDA MPS where it runs there; NCCL then sends
        by sockets, over `interface` where it is given.
    workloads: `name=package.module:function` entries that requests may name.
    on_wait: receives which rank is slow to start.
    """

    prefix: str
    python: str = sys.executable
    environment: tuple[tuple[str, str], ...] = ()
    interface: str = ""
    workloads: tuple[str, ...] = ()
    share_gpus: bool = False
    repeats: int = field(default_factory=usual_repeats)
    on_wait: OnWait | None = None
    name: ClassVar[str] = "command"

    def with_wait_reports(self, on_wait: OnWait) -> Self:
        return replace(self, on_wait=on_wait)

    def open(self, workload: Workload) -> ProcessPool:
        """Workers start with the first trial.

        Raises:
            InvalidInput: the prefix or an address cannot be used.
            NotSupported: the cluster has dedicated servers.
        """
        cluster = workload.domain.cluster
        refuse_dedicated_servers(workload)
        refuse_unsafe_addresses(cluster)
        nodes = [int(node) for node in cluster.node_of_server()[: cluster.world_size]]
        places = tuple(
            CommandPlace(self, cluster.nodes[node].address, node, rank)
            for rank, node in enumerate(nodes)
        )
        program = places[0].prefix_words("")[0]
        return ProcessPool(
            workload=workload,
            place=f"command ({PurePath(program).name}, {len(cluster.nodes)} hosts)",
            places=places,
            host=cluster.nodes[nodes[0]].address,
            links="cluster",
            workloads=self.workloads,
            share_gpus=self.share_gpus,
            on_wait=self.on_wait,
            repeats=self.repeats,
        )


@dataclass(frozen=True, slots=True)
class CommandPlace:
    """One rank behind the launcher's prefix."""

    launcher: CommandLauncher
    address: str
    node: int
    rank: int

    def start(self, rank: int, workloads: tuple[str, ...], answers: Answers) -> WorkerProcess:
        shown = self.words([self.launcher.python, *worker_arguments(())])
        return WorkerProcess(
            rank,
            self.words(self.worker_command(workloads)),
            allowed_environment(),
            answers,
            where=self.address,
            shown=shlex.join(shown),  # without the environment, which may hold secrets
        )

    def worker_command(self, workloads: tuple[str, ...]) -> list[str]:
        one = self.launcher
        carried = carried_environment(self.rank, one.interface, one.share_gpus, one.environment)
        assignments = [f"{name}={value}" for name, value in carried.items()]
        return ["env", *assignments, self.launcher.python, *worker_arguments(workloads)]

    def words(self, command: list[str]) -> list[str]:
        """The whole command line."""
        quoted = shlex.join(command)
        words = self.prefix_words(quoted)
        if "{command}" in self.launcher.prefix:
            return words
        named = (PurePath(word).name for word in shlex.split(self.launcher.prefix))
        first = next((name for name in named if name in REMOTE_SHELLS | MPI_STARTERS), "")
        return [*words, quoted] if first in REMOTE_SHELLS else [*words, *command]

    def prefix_words(self, quoted_command: str) -> list[str]:
        values = {
            "host": self.address,
            "node": str(self.node),
            "rank": str(self.rank),
            "command": quoted_command,
        }

        def value(found: re.Match[str]) -> str:
            if found[1] not in values:
                raise self._refusal(f"has no placeholder {found[0]}")
            return values[found[1]]

        try:
            words = shlex.split(self.launcher.prefix)
        except ValueError as error:
            raise self._refusal(f"cannot be split into words ({error})") from None
        if not words:
            raise self._refusal("is empty")
        return [PLACEHOLDER.sub(value, word) for word in words]

    def _refusal(self, why: str) -> InvalidInput:
        return InvalidInput(
            f"the launcher's prefix {self.launcher.prefix!r} {why}.",
            thing="prefix",
            value=self.launcher.prefix,
            remedy='Examples: "ssh {host}", "srun -w {host} -N1 -n1 --overlap --cpu-bind=none"; '
            "there are {host}, {node}, {rank} and {command}.",
        )


def refuse_unsafe_addresses(cluster: Cluster) -> None:
    """Raises InvalidInput naming a node whose address is no plain host name or address."""
    for node in cluster.nodes:
        if not SAFE_ADDRESS.fullmatch(node.address):
            raise InvalidInput(
                f"node address {node.address!r} is no host name or IP address, so it is not "
                "put into a command.",
                thing="address",
                value=node.address,
                remedy="Use letters, digits, dots, colons, dashes and underscores only.",
            )
