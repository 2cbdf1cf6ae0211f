"""Emulated clusters as kernel objects: brought up, listed, entered and taken down.

A testbed is one supervisor process with a network and a mount namespace of its own (and, without
root, a user namespace). Everything hangs on it: the bridge is in its network namespace, the
nodes' namespaces are named in its private /run. Nothing is visible outside, two testbeds cannot
collide, and when the supervisor ends, killed or not, the kernel removes the rest. It ends with
its owner, because it reads its owner's pipe; a record in the runtime folder lets others find it.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from autosync.cancellation import wait_readable
from autosync.cluster import Cluster
from autosync.errors import InvalidInput, NotFound, NotSupported
from autosync.trials.machine import process_start
from autosync.trials.testbed.link_shaping import EmulatedNode, emulated_nodes, supervisor_script

BUILDING_SECONDS = 60.0
"""How long a supervisor may take; four nodes take half a second."""


@dataclass(frozen=True, slots=True)
class Testbed:
    """A live emulated cluster.

    supervisor, owner: (process, start time); the owner is None for one that lives until `down`.
    user_namespace: it was made without root.
    """

    __test__ = False  # not a test class, whatever its name

    id: str
    cluster: str
    byte_scale: float
    time_scale: float
    addresses: tuple[str, ...]
    supervisor: tuple[int, str]
    owner: tuple[int, str] | None
    user_namespace: bool
    loopback: str

    def prefix(self, node: int) -> tuple[str, ...]:
        """What to put before a command that shall run on a node."""
        process = self.supervisor[0]
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
        process = self.supervisor[0]
        user = (f"/proc/{process}/ns/user",) if self.user_namespace else ()
        return (
            *user,
            f"/proc/{process}/ns/mnt",
            f"/proc/{process}/root/run/netns/n{node}",
        )

    @property
    def alive(self) -> bool:
        return process_start(self.supervisor[0]) == self.supervisor[1]


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
    lasting: bool = False,
    unprivileged: bool = False,
) -> Testbed:
    """Build the emulated cluster; links run at bandwidth * s / k.

    lasting: it outlives this process, until `down`. unprivileged: do without root's rights even
        as root.

    Raises:
        NotSupported: this machine cannot have network namespaces, or lacks a tool.
        InvalidInput: the folder of records is not this user's alone, or a record is wrong.
    """
    remove_stale()
    for tool in ("ip", "tc", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            raise NotSupported(f"{tool!r} is not installed.", thing=tool, remedy=_remedy())
    nodes = emulated_nodes(cluster, byte_scale, time_scale)
    failures = []
    for user_namespace in (True,) if unprivileged or os.geteuid() != 0 else (False, True):
        supervisor, why = _supervise(nodes, user_namespace, lasting)
        if supervisor is not None:
            break
        failures.append(why)
    else:
        raise NotSupported(
            f"this machine cannot emulate a cluster: {failures[-1]}.",
            thing="testbed",
            remedy=_remedy(),
        )
    testbed = Testbed(
        id=secrets.token_hex(4),
        cluster=cluster.name,
        byte_scale=byte_scale,
        time_scale=time_scale,
        addresses=tuple(node.address for node in nodes),
        supervisor=supervisor,
        owner=None if lasting else _identity(os.getpid()),
        user_namespace=user_namespace,
        loopback="shaped" if any(node.loopback_bits for node in nodes) else "unshaped",
    )
    try:
        _record_path(testbed.id).write_text(json.dumps(asdict(testbed)))
    except BaseException:  # an interrupt, too, leaves no testbed
        down(testbed)
        raise
    return testbed


_pipes: dict[tuple[int, str], subprocess.Popen[str]] = {}
"""Supervisors started here: their stdin must stay open as long as they shall live."""


def _identity(process: int) -> tuple[int, str]:
    """(process, start time): the number alone may be used again."""
    return process, process_start(process) or ""


def _supervise(
    nodes: tuple[EmulatedNode, ...], user_namespace: bool, lasting: bool
) -> tuple[tuple[int, str] | None, str]:
    """A supervisor that is ready (process, start time), or None and what went wrong."""
    flags = ["--net", "--mount", *(["--user", "--map-root-user"] if user_namespace else [])]
    process = subprocess.Popen(
        ["unshare", *flags, "sh", "-c", supervisor_script(nodes, lasting)],
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
            supervisor = _identity(process.pid)
            _pipes[supervisor] = process
            return supervisor, ""
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
    """Kill everything that runs in it and let the kernel remove it. May be called twice.

    Raises:
        InvalidInput: as `inhabitants`.
    """
    if testbed.alive:
        for inhabitant in inhabitants(testbed):
            with contextlib.suppress(ProcessLookupError):
                os.kill(inhabitant, signal.SIGKILL)
    if (started := _pipes.pop(testbed.supervisor, None)) is not None:
        started.communicate()
    _record_path(testbed.id).unlink(missing_ok=True)


def inhabitants(testbed: Testbed) -> list[int]:
    """Processes in the testbed's mount namespace, its supervisor last.

    Raises:
        InvalidInput: that is this process's own namespace, so they are no testbed's.
    """
    supervisor = testbed.supervisor[0]
    home = _mount_namespace(supervisor)
    if home == _mount_namespace(os.getpid()):
        raise InvalidInput(
            f"process {supervisor}, said to be the supervisor of testbed {testbed.id}, is in this "
            "process's own mount namespace: all that runs here would be killed with it.",
            thing=f"testbed {testbed.id}",
            value=supervisor,
            remedy="If you are inside the testbed, leave it first; if not, its record is wrong: "
            f"remove {str(_record_path(testbed.id))!r}.",
        )
    found = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and home is not None and _mount_namespace(int(entry.name)) == home
    ]
    return [process for process in found if process != supervisor] + [supervisor]


def _mount_namespace(process: int) -> str | None:
    try:
        return os.readlink(f"/proc/{process}/ns/mnt")
    except OSError:
        return None


def status() -> tuple[Testbed, ...]:
    """The testbeds of this user that live."""
    return tuple(testbed for testbed in _records() if testbed.alive)


def find(testbed_id: str) -> Testbed:
    """Raises NotFound when no live testbed has this identifier."""
    for testbed in status():
        if testbed.id == testbed_id:
            return testbed
    raise NotFound(
        f"no testbed {testbed_id!r} is up.",
        thing="testbed",
        value=testbed_id,
        remedy="See `autosync testbed status`.",
    )


def remove_stale() -> tuple[str, ...]:
    """Take down testbeds whose owner has died; forget those that died. Their identifiers."""
    removed = []
    for testbed in _records():
        owner = testbed.owner
        orphaned = owner is not None and process_start(owner[0]) != owner[1]
        if orphaned or not testbed.alive:
            down(testbed)
            removed.append(testbed.id)
    return tuple(removed)


def run_inside(testbed: Testbed, node: int, command: list[str]) -> int:
    """Run a command on a node, with this terminal's streams; its exit status."""
    return subprocess.call([*testbed.prefix(node), *command])


def _records() -> list[Testbed]:
    found = []
    for path in sorted(_runtime_folder().glob("*.json")):
        try:
            data = json.loads(path.read_text())
        except (OSError, json.JSONDecodeError):
            continue  # another process is writing or removing it
        data["supervisor"] = tuple(data["supervisor"])
        data["owner"] = tuple(data["owner"]) if data["owner"] else None
        data["addresses"] = tuple(data["addresses"])
        found.append(Testbed(**data))
    return found


def _record_path(testbed_id: str) -> Path:
    return _runtime_folder() / f"{testbed_id}.json"


def _runtime_folder() -> Path:
    """Of this user alone: processes that a record there names are killed.

    Raises:
        InvalidInput: it belongs to another user, or others may use it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"autosync-testbeds-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()  # of a link itself: it may be another user's
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    if not private or found.st_uid != os.geteuid():
        raise InvalidInput(
            f"{str(folder)!r}, where testbeds are recorded, is no folder of this user alone "
            f"({stat.filemode(found.st_mode)}, owner {found.st_uid}).",
            thing="runtime folder",
            value=str(folder),
            remedy="Remove it if you know what it is, or set XDG_RUNTIME_DIR to a folder of your "
            "own.",
        )
    return folder
