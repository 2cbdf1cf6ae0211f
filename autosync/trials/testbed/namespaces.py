"""Emulated clusters as kernel objects: brought up, entered and taken down.

A testbed is one supervisor process with a network and a mount namespace of its own (and, without
root, a user namespace). Everything hangs on it: the bridge is in its network namespace, the
nodes' namespaces are named in its private /run. Nothing is visible outside, two testbeds cannot
collide, and when the supervisor ends, killed or not, the kernel removes the rest. It ends with
its owner, because it reads its owner's pipe.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from autosync.cancellation import wait_readable
from autosync.cluster import Cluster
from autosync.errors import NotSupported
from autosync.trials.testbed.link_shaping import EmulatedNode, emulated_nodes, supervisor_script

BUILDING_SECONDS = 60.0
"""How long a supervisor may take; four nodes take half a second."""


@dataclass(frozen=True, slots=True)
class Testbed:
    """A live emulated cluster. addresses: of its nodes. user_namespace: it was made without root.
    loopback: `shaped` where a node's is, else `unshaped`."""

    __test__ = False  # not a test class, whatever its name

    byte_scale: float
    time_scale: float
    addresses: tuple[str, ...]
    supervisor: "subprocess.Popen[str]"
    user_namespace: bool
    loopback: str

    def prefix(self, node: int) -> tuple[str, ...]:
        """What to put before a command that shall run on a node."""
        process = self.supervisor.pid
        user = ("--user", "--preserve-credentials") if self.user_namespace else ()
        return (
            "nsenter",
            f"--target={process}",
            *user,
            "--mount",
            f"--net=/proc/{process}/root/run/netns/n{node}",
            "--",
        )

    def namespaces(self, node: int) -> tuple[str, ...]:
        """Files of the namespaces that a process on a node is in, in the order to enter them."""
        process = self.supervisor.pid
        user = (f"/proc/{process}/ns/user",) if self.user_namespace else ()
        return (
            *user,
            f"/proc/{process}/ns/mnt",
            f"/proc/{process}/root/run/netns/n{node}",
        )

    @property
    def alive(self) -> bool:
        return self.supervisor.poll() is None


def _remedy() -> str:
    """What lets this user have a testbed."""
    user_namespaces = (
        "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1 or "
        "user.max_user_namespaces above 0)"
    )
    rights = (
        f"Run as root, or {user_namespaces}"
        if os.geteuid() != 0
        else f"Give this container the capabilities SYS_ADMIN and NET_ADMIN, or {user_namespaces}"
    )
    return (
        f"{rights}, install iproute2 and util-linux, and have a kernel with sch_htb, sch_fifo and "
        "cls_u32; or use the local launcher, whose links are unshaped."
    )


def up(
    cluster: Cluster,
    byte_scale: float = 1.0,
    time_scale: float = 1.0,
    unprivileged: bool = False,
) -> Testbed:
    """Build the emulated cluster; links run at bandwidth * s / k. It lives until `down`, or until
    this process ends. unprivileged: do without root's rights even as root.

    Raises:
        NotSupported: this machine cannot have network namespaces, or lacks a tool.
    """
    for tool in ("ip", "tc", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            raise NotSupported(f"{tool!r} is not installed.", thing=tool, remedy=_remedy())
    nodes = emulated_nodes(cluster, byte_scale, time_scale)
    failure = ""
    for user_namespace in (True,) if unprivileged or os.geteuid() != 0 else (False, True):
        supervisor, failure = _supervise(nodes, user_namespace)
        if supervisor is not None:
            return Testbed(
                byte_scale,
                time_scale,
                addresses=tuple(node.address for node in nodes),
                supervisor=supervisor,
                user_namespace=user_namespace,
                loopback="shaped" if any(node.loopback_bits for node in nodes) else "unshaped",
            )
    raise NotSupported(
        f"this machine cannot emulate a cluster: {failure}.", thing="testbed", remedy=_remedy()
    )


def _supervise(
    nodes: tuple[EmulatedNode, ...], user_namespace: bool
) -> tuple["subprocess.Popen[str] | None", str]:
    """A supervisor that is ready, or None and what went wrong."""
    flags = ["--net", "--mount", *(["--user", "--map-root-user"] if user_namespace else [])]
    process = subprocess.Popen(
        ["unshare", *flags, "sh", "-c", supervisor_script(nodes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        answered = wait_readable(process.stdout, BUILDING_SECONDS)
        if answered and process.stdout.readline().strip() == "ready":
            return process, ""
    except BaseException:  # an interrupt, too, leaves no process
        _ended(process)
        raise
    return None, _ended(process) or "the supervisor ended"


def _ended(process: "subprocess.Popen[str]") -> str:
    """Kill it and all that it has started; what it wrote to stderr."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    _, words = process.communicate()
    return words.strip().replace("\n", "; ")


def down(testbed: Testbed) -> None:
    """Kill everything that runs in it and let the kernel remove it. May be called twice."""
    if testbed.alive:
        for inhabitant in _inhabitants(testbed):
            with contextlib.suppress(ProcessLookupError):
                os.kill(inhabitant, signal.SIGKILL)
        testbed.supervisor.kill()
        testbed.supervisor.communicate()


def _inhabitants(testbed: Testbed) -> list[int]:
    """Processes in the testbed's mount namespace. Never those of this process's own."""
    home = _mount_namespace(testbed.supervisor.pid)
    if home is None or home == _mount_namespace(os.getpid()):
        return []
    processes = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [process for process in processes if _mount_namespace(process) == home]


def _mount_namespace(process: int) -> str | None:
    try:
        return os.readlink(f"/proc/{process}/ns/mnt")
    except OSError:
        return None
