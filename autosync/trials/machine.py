"""This machine as the kernel reports it: CPU time, network bytes, memory, killed processes."""

import fcntl
import os
import platform
import resource
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from ipaddress import IPv4Address
from pathlib import Path

from autosync.cancellation import check_cancelled
from autosync.environment import own_version
from autosync.errors import NotSupported

SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B
"""Requests of Linux (netdevice(7))."""

INTERFACES = Path("/sys/class/net")

OUT_OF_MEMORY_WORDS = (
    "can't allocate memory",  # torch on the CPU
    "cannot allocate memory",  # the C library's ENOMEM
    "out of memory",  # torch on a GPU
    "bad_alloc",  # a C++ thread that nobody catches for: the process aborts
    "memoryerror",
)


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """busy_seconds: of all CPUs together in user and system code and interrupts, and stolen by
    other guests; soft interrupts are left out, because a trial's own packets run there.
    total_seconds: of all CPUs."""

    busy_seconds: float
    total_seconds: float


def cpu_ticks() -> CpuTicks:
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _, _, interrupts, _, stolen = fields
    second = os.sysconf("SC_CLK_TCK")
    return CpuTicks((user + nice + system + interrupts + stolen) / second, sum(fields) / second)


def outside_share(busy_seconds: float, own_seconds: float, total_seconds: float) -> float:
    """The share of a machine's CPU time that other processes used."""
    if total_seconds <= 0:
        return 0.0
    return min(1.0, max(0.0, (busy_seconds - own_seconds) / total_seconds))


PARENT, OWN, REAPED = 1, slice(11, 13), slice(13, 15)
"""Fields of /proc/PID/stat behind the name: the parent; ticks of the process itself, in user and
kernel mode; those of children that have ended."""


def family_seconds() -> float:
    """CPU seconds of this process, of its living descendants (a data loader's workers), and of
    those that have ended."""
    children = defaultdict(list)
    ticks = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        process = int(stat.parent.name)
        children[int(fields[PARENT])].append(process)
        ticks[process] = sum(map(int, (*fields[OWN], *fields[REAPED])))
    seconds, left = 0, [os.getpid()]
    while left:
        process = left.pop()
        seconds += ticks.get(process, 0)
        left += children[process]
    return seconds / os.sysconf("SC_CLK_TCK")


def usable_cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0))


QUIET_WINDOW_SECONDS = 0.5
"""Fifty ticks of each CPU."""


def wait_until_quiet(
    share: float,
    most_seconds: float,
    ticks: Callable[[], CpuTicks] = cpu_ticks,
) -> bool:
    """Wait until this machine uses less than `share` of its CPUs. Returns whether it does.

    Load comes in bursts: another user's build, another guest on the same host (`stolen` time).
    Raises Cancelled meanwhile.
    """
    until = time.monotonic() + most_seconds
    before = ticks()
    while time.monotonic() < until:
        check_cancelled()
        time.sleep(QUIET_WINDOW_SECONDS)
        now = ticks()
        busy_seconds = now.busy_seconds - before.busy_seconds
        if outside_share(busy_seconds, 0.0, now.total_seconds - before.total_seconds) < share:
            return True
        before = now
    return False


def host_id() -> str:
    """The same for all processes of one running kernel, whatever namespace they are in."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def network_bytes(interfaces: str = "") -> int:
    """Bytes that interfaces of this network namespace have sent, whoever sent them.

    interfaces: names, separated by commas as gloo takes them; by default all but loopback and
        those that send by others, which count the same bytes (a bond, a bridge, a VLAN).
    """
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    sent = {name.strip(): rest.split()[8] for name, _, rest in (li.partition(":") for li in lines)}
    wanted = (
        interfaces.split(",")
        if interfaces
        else [n for n in sent if n != "lo" and not any((INTERFACES / n).glob("lower_*"))]
    )
    return sum(int(sent.get(name, 0)) for name in wanted)


def reset_peak_memory() -> bool:
    """Reset the peak of this process's resident size. Returns whether the kernel allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_memory_bytes() -> int:
    """The largest resident size of this process since the last reset, or in its whole life."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def software_versions() -> dict[str, str]:
    """Versions of the software that a trial's result depends on."""
    return {
        "torch": version("torch"),
        "autosync": own_version(),
        "python": platform.python_version(),
    }


def killed_for_memory() -> int | None:
    """Processes the kernel has killed for lack of memory since it started; None if not counted."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def reports_lack_of_memory(text: str) -> bool:
    """Whether an error's words, or the end of what a process wrote, name a lack of memory."""
    return any(words in text.lower() for words in OUT_OF_MEMORY_WORDS)


def interface_towards(host: str, peer: str = "") -> str:
    """The network interface from which this machine reaches `host`, over IPv4.

    peer: another host than `host`, where there is one. A machine may know its own name by a
        loopback address (Debian's 127.0.1.1), at which no other machine reaches it: there the way
        to the peer counts.

    Raises:
        NotSupported: there is none.
    """
    mine = _address_towards(host)
    if mine.is_loopback and peer:
        host, mine = peer, _address_towards(peer)
    name = _interface_with(mine)
    if name is None:
        raise _unreachable(host, f"no interface has the address {mine}")
    return name


def _address_towards(host: str) -> IPv4Address:
    """This machine's own address on the way to `host`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))  # sends nothing: asks the routing table
        except OSError as error:
            raise _unreachable(host, str(error)) from None
        return IPv4Address(probe.getsockname()[0])


def _interface_with(mine: IPv4Address) -> str | None:
    """The interface that has an own address, else the first in whose network it is: `lo` has only
    the first address of its network."""
    around = None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            address = _interface_field(probe, name, SIOCGIFADDR)
            mask = _interface_field(probe, name, SIOCGIFNETMASK)
            if address is None or mask is None:
                continue
            if address == int(mine):
                return name
            if around is None and address & mask == int(mine) & mask:
                around = name
    return around


def _interface_field(probe: socket.socket, name: str, request: int) -> int | None:
    """An IPv4 address or mask of an interface; None where it has none."""
    try:
        answer = fcntl.ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return None
    return int.from_bytes(answer[20:24])


def _unreachable(host: str, why: str) -> NotSupported:
    return NotSupported(
        f"{socket.gethostname()} finds no way to host {host!r}: {why}.",
        thing="address",
        value=host,
        remedy="Correct the node's address in the cluster file, or name the network interface with "
        "the launcher's option `interface`.",
    )
