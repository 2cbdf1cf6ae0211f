"""Logs of nccl-tests: what collectives took on the ranks that ran them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from statistics import median

from autosync.cluster.collective_curve import (
    MOST_SIZES,
    CollectiveCurve,
    CollectiveOperation,
    bus_share,
)
from autosync.interop import refused_file

_refused = partial(
    refused_file, remedy="Give the whole output of nccl-tests (all_reduce_perf and its like)."
)

MOST_LOG_BYTES = 8_000_000
MOST_ROWS = 20_000
LONGEST_LINE = 4096

OPERATIONS: dict[str, CollectiveOperation] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
"""By the name of the program, without _perf."""

CHOICES = {
    each.lower(): each
    for each in ("Ring", "Tree", "NVLS", "NVLSTree", "CollNet", "PAT", "LL", "LL128", "Simple")
}
"""Of NCCL_ALGO and NCCL_PROTO, whose case does not count."""

OTHER_PROGRAMS = ("gather", "scatter", "hypercube", "alltoallv")
"""Whose tables are passed over: no curve is kept of what they run."""

PROGRAM = re.compile(rf"\b({'|'.join((*OPERATIONS, *OTHER_PROGRAMS))})_perf\b")
PREFIX = re.compile(r"^\s*(?:\[\d+,\d+\]<std(?:out|err)>:|\d+:(?=\s|#))")
"""Of a line, as mpirun --tag-output and srun --label write it."""
RANK = re.compile(r"^#\s+Rank\s+(\d+)\s.*?\bPid\s+\d+\s+on\s+(\S+)\s+device\s")
VERSION = re.compile(r"\bNCCL version (\d+\.\d+(?:\.\d+)?)|\bnccl-library=(\d{4,5})\b")
FORCED = re.compile(r"\bNCCL_(ALGO|PROTO)(?:\s*=\s*|\s+set by environment to\s+)([^\s\"']+)")
NCCL_LOG = "NCCL INFO"
TIMESTAMP = re.compile(r"\s\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d$")

SPIKE_BYTES = 65536
"""Smaller messages take no longer than larger ones: where they do, the first rows of a log hold
what the backend sets up at its first message."""

ROUNDING = 0.02
"""By how much two printed numbers may disagree, besides their last digit."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One table of a log. curve: of its out-of-place columns. nccl_version: "" where the log does
    not say."""

    curve: CollectiveCurve
    nccl_version: str = ""


@dataclass(frozen=True, slots=True)
class Stated:
    """What the user says of logs that do not say it themselves. What a log says counts before, what
    its file is called does not."""

    operation: CollectiveOperation | None = None
    ranks: int | None = None
    nodes: int | None = None


@dataclass(slots=True)
class _Heading:
    """What the lines above a table have said so far. program: without _perf; "" where none is
    named. forced: in all runs of the log. run_forced: in one, on the line of its program or in
    NCCL's own log. has_run: whether its table has begun."""

    program: str
    hosts: dict[int, str]
    nccl_version: str
    forced: dict[str, str]
    run_forced: dict[str, str]
    has_run: bool = False


def read_nccl_tests(text: str, source: str, stated: Stated | None = None) -> tuple[Sweep, ...]:
    """The tables of a log, in its order. Lines of NCCL's own log among them are passed over, and
    tables of OTHER_PROGRAMS.

    Raises:
        InvalidInput: names the line; the log has no table, or says and the user states neither the
            operation, nor ranks and nodes; a row contradicts itself or holds wrong results.
    """
    if len(text) > MOST_LOG_BYTES:
        raise _refused(source, f"is larger than {MOST_LOG_BYTES // 1_000_000} MB")
    file = PurePath(source).name
    by_name = PROGRAM.search(file) or re.search(rf"({'|'.join(OPERATIONS)})", file.lower())
    named = None if stated and stated.operation else by_name
    heading = _Heading(named[1] if named else "", {}, "", {}, {})
    tables: list[_Table] = []
    rows = 0
    for number, line in enumerate(text.splitlines(), 1):
        words = TIMESTAMP.sub("", PREFIX.sub("", line[:LONGEST_LINE]).strip())
        if words.startswith("#") and (columns := _columns(words)):
            table = _Table(columns, replace_heading(heading), f"{source}, line {number}")
            tables.append(table)
        elif tables and _is_row(words):
            if (rows := rows + 1) > MOST_ROWS:
                raise _refused(f"{source}, line {number}", f"more than {MOST_ROWS} rows")
            tables[-1].add(words.split(), f"{source}, line {number}")
            heading.has_run = True
        else:
            if rank := RANK.match(words):
                if int(rank[1]) == 0:  # the list of another run, whether or not that one has ended
                    heading.hosts = {}
                heading.hosts[int(rank[1])] = rank[2]
            _read_heading(words, heading)
    sweeps = tuple(
        table.sweep(stated or Stated())
        for table in tables
        if table.seconds and table.heading.program not in OTHER_PROGRAMS
    )
    if not sweeps:
        raise _refused(source, "has no table of nccl-tests (size, count, type, ..., time, algbw)")
    return sweeps


def replace_heading(heading: _Heading) -> _Heading:
    """A copy that later lines do not change."""
    forced = heading.forced | heading.run_forced
    return replace(heading, hosts=dict(heading.hosts), forced=forced)


def merged_curves(sweeps: Iterable[Sweep]) -> tuple[CollectiveCurve, ...]:
    """One curve of each collective: of sizes that several sweeps hold, the median."""
    seconds: dict[tuple[str, int, int, str, str], dict[float, list[float]]] = {}
    kinds: dict[tuple[str, int, int, str, str], CollectiveCurve] = {}
    for sweep in sweeps:
        curve = sweep.curve
        kinds.setdefault(curve.measured, curve)
        found = seconds.setdefault(curve.measured, {})
        for size, each in zip(curve.sizes_bytes, curve.seconds, strict=True):
            found.setdefault(size, []).append(each)
    merged = []
    for key, curve in kinds.items():
        sizes = sorted(seconds[key])
        values = tuple(median(seconds[key][size]) for size in sizes)
        merged.append(replace(curve, sizes_bytes=tuple(sizes), seconds=values))
    return tuple(merged)


class _Table:
    def __init__(self, columns: Sequence[str], heading: _Heading, where: str) -> None:
        self.columns, self.heading, self.where = columns, heading, where
        self.from_end = {
            name: columns.index(name) - len(columns) for name in ("time", "algbw", "busbw")
        }
        self.seconds: dict[float, list[float]] = {}
        self.bus_share: list[float] = []

    def add(self, words: list[str], where: str) -> None:
        size = int(words[0])
        if size == 0:
            return
        try:
            time_us, algbw, busbw = (float(words[place]) for place in self.from_end.values())
        except (IndexError, ValueError):
            raise _refused(where, "is a row whose columns are not those of the heading") from None
        if not time_us > 0:
            raise _refused(where, f"the out-of-place time is {time_us:g}")
        wrong = words[self.from_end["busbw"] + 1] if "#wrong" in self.columns else "0"
        if wrong not in ("0", "N/A"):
            raise refused_file(
                where,
                f"{wrong} values were wrong",
                "Mend the hosts first: what wrong results took says nothing.",
            )
        if algbw >= 1 and abs(size / (time_us * 1e3) / algbw - 1) > ROUNDING:
            raise _refused(
                where,
                f"{size} bytes in {time_us:g} us are {size / (time_us * 1e3):.2f} GB/s, but algbw "
                f"says {algbw:g}",
            )
        if algbw >= 1:
            self.bus_share.append(busbw / algbw)
        self.seconds.setdefault(float(size), []).append(time_us * 1e-6)

    def sweep(self, stated: Stated) -> Sweep:
        heading = self.heading
        operation = OPERATIONS.get(heading.program) or stated.operation
        if operation is None:
            raise refused_file(
                self.where,
                "the log does not say which collective it measured",
                f"State it (--op): {', '.join(OPERATIONS.values())}.",
            )
        ranks = len(heading.hosts) or stated.ranks
        nodes = len(set(heading.hosts.values())) or stated.nodes
        if ranks is None or nodes is None:
            raise refused_file(
                self.where,
                "the log does not list its ranks (# Rank 0 ... on HOST)",
                "State how many there were, and on how many hosts (--ranks, --nodes).",
            )
        if ranks < 2:
            raise refused_file(
                self.where,
                "one rank has nothing to exchange",
                "Give the log of a run on two GPUs or more.",
            )
        if len(self.seconds) > MOST_SIZES:
            raise _refused(self.where, f"has more than {MOST_SIZES} sizes")
        self._check_bus_share(operation, ranks)
        sizes = tuple(sorted(self.seconds))
        seconds = _without_spikes(sizes, [median(self.seconds[size]) for size in sizes])
        forced = heading.forced
        curve = CollectiveCurve(
            operation,
            ranks,
            nodes,
            sizes,
            tuple(seconds),
            forced.get("ALGO", ""),
            forced.get("PROTO", ""),
        )
        return Sweep(curve, heading.nccl_version)

    def _check_bus_share(self, operation: CollectiveOperation, ranks: int) -> None:
        if not self.bus_share:
            return
        share = bus_share(operation, ranks)
        found = median(self.bus_share)
        if abs(found / share - 1) > ROUNDING:
            raise refused_file(
                self.where,
                f"busbw is {found:.3f} times algbw, but {share:.3f} times for {operation} of "
                f"{ranks} ranks",
                "Check which collective and how many ranks it was (--op, --ranks).",
            )


def _columns(words: str) -> tuple[str, ...]:
    """Of the heading of a table; empty where the line is none."""
    found = tuple(word for word in words.lstrip("#").split() if word != "timestamp")
    table = found[:3] == ("size", "count", "type") and {"time", "algbw", "busbw"} <= {*found}
    return found if table else ()


def _is_row(words: str) -> bool:
    return re.match(r"\d{1,15}\s+\d{1,15}\s+[a-z][a-z0-9_]*\s", words) is not None


def _read_heading(words: str, heading: _Heading) -> None:
    program = PROGRAM.search(words)
    of_run = program is not None or NCCL_LOG in words
    if of_run and heading.has_run:  # the next one begins
        heading.run_forced, heading.has_run = {}, False
    if program:
        heading.program = program[1]
    if version := VERSION.search(words):
        heading.nccl_version = version[1] or _from_code(int(version[2]))
    for kind, value in FORCED.findall(words):
        known = CHOICES.get(value.lower(), value)
        forced = heading.run_forced if of_run else heading.forced
        forced[kind] = known if known.isalnum() else ""  # a list forces none


def _from_code(code: int) -> str:
    """NCCL's number of a version: 2708 is 2.7.8, 21805 is 2.18.5."""
    major, rest = divmod(code, 1000 if code < 10000 else 10000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _without_spikes(sizes: Sequence[float], seconds: list[float]) -> list[float]:
    found = list(seconds)
    for place in range(len(sizes) - 2, -1, -1):
        if sizes[place + 1] <= SPIKE_BYTES:
            found[place] = min(found[place], found[place + 1])
    return found
