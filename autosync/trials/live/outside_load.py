"""Who uses the machine while a running job measures: the job itself, or others."""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autosync.trials.machine import cpu_ticks, outside_share

PARENT, OWN, REAPED = 1, slice(11, 13), slice(13, 15)
"""Fields of /proc/PID/stat behind the name: the parent; ticks of the process itself, in user and
kernel mode; those of children that have ended."""


@dataclass(frozen=True, slots=True)
class CpuUse:
    """CPU seconds until now, or between two moments: of this process with all that it started (a
    data loader's workers), of everybody on the machine, and how many there were in all."""

    job_seconds: float
    busy_seconds: float
    total_seconds: float

    def since(self, before: "CpuUse") -> "CpuUse":
        return CpuUse(
            self.job_seconds - before.job_seconds,
            self.busy_seconds - before.busy_seconds,
            self.total_seconds - before.total_seconds,
        )


def cpu_use() -> CpuUse:
    """Until this moment."""
    ticks = cpu_ticks()
    return CpuUse(_family_seconds(os.getpid()), ticks.busy_seconds, ticks.total_seconds)


def largest_outside_share(used: Sequence[tuple[str, CpuUse]]) -> float:
    """The share of the CPU that others used, on the machine where that is largest.

    used: of all ranks, the host and what was used during the pass.
    """
    shares = []
    for host in {host for host, _ in used}:
        here = [each for of, each in used if of == host]
        own = sum(each.job_seconds for each in here)
        shares.append(outside_share(here[0].busy_seconds, own, here[0].total_seconds))
    return max(shares)


def _family_seconds(root: int) -> float:
    """CPU seconds of a process, of its living descendants, and of those that have ended."""
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
    seconds, left = 0, [root]
    while left:
        process = left.pop()
        seconds += ticks.get(process, 0)
        left += children[process]
    return seconds / os.sysconf("SC_CLK_TCK")
