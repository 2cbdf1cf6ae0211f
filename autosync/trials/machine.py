"""What the kernel says about this machine: CPU time, network bytes, killed processes."""

import os
from dataclasses import dataclass
from pathlib import Path


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
    """The share of a machine's CPU time that others used."""
    if total_seconds <= 0:
        return 0.0
    return min(1.0, max(0.0, (busy_seconds - own_seconds) / total_seconds))


def host_id() -> str:
    """The same for all processes of one running kernel, whatever namespace they are in."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def network_bytes() -> int:
    """Bytes that the interfaces of this network namespace have sent, loopback left out."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    sent = {name.strip(): rest.split()[8] for name, _, rest in (li.partition(":") for li in lines)}
    return sum(int(count) for name, count in sent.items() if name != "lo")


def killed_for_memory() -> int | None:
    """Processes the kernel has killed for lack of memory since it started; None if not told."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def process_start(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None when there is none.

    With its number it identifies a process: numbers are used again.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]
