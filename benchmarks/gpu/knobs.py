"""Messages with knobs of NCCL and without: milliseconds of an all-reduce, and what NCCL says.

    python -m benchmarks.gpu.knobs [--mib 1 25 100] [--ranks 2] [--device cuda] [--backend nccl]
        [--rounds N] [--seconds S] [--json FILE]

Limits of CTAs are given to communicators of the runtime's own, so one process has them all, and
they take turns. Forced algorithms are variables, for which the ranks start anew. What NCCL says of
a communicator and of its messages comes from its log (NCCL_DEBUG=INFO). Where ranks share a GPU
they send by sockets. Ways that are not begun within `--seconds` are left out.
"""

import os
import re
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from autosync.codes import Op
from autosync.documents import to_data
from autosync.nccl_knobs import NcclKnobs, NcclRange, environment_of
from autosync.runtime.device.streams import Streams, streams_for
from autosync.runtime.transport.base import Operation, Start
from autosync.runtime.transport.process_groups import Groups, open_groups, working_group
from autosync.units import MIB
from benchmarks.gpu.ranks import RankFailed, gpu_options, machine_facts, on_ranks, sharing_of
from benchmarks.output import in_turn, write_json

OWN = "NCCL's choice"
WAYS = {
    OWN: NcclKnobs(),
    "at most 1 CTA": NcclKnobs(max_ctas=1),
    "at most 4 CTAs": NcclKnobs(max_ctas=4),
    "at least 16 CTAs": NcclKnobs(min_ctas=16),
    "Tree/Simple": NcclKnobs((NcclRange("all_reduce", "Tree", "Simple"),)),
    "Ring/LL": NcclKnobs((NcclRange("all_reduce", "Ring", "LL"),)),
}
QUEUE = "knobs"
LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING"}
UNSET = {"NCCL_MAX_CTAS": "", "NCCL_PROTO": ""}
"""Takes from ranks that share a GPU what `shared_gpu_environment` gives them: in NCCL a variable
wins over a communicator's configuration."""
TELLING = re.compile(
    r"Comm config|coll channels|Bytes -> Algo|NCCL_(ALGO|PROTO|M(IN|AX)_CTAS|CGA_CLUSTER_SIZE)"
)
"""Lines of NCCL's log that say what was asked of a communicator, and what it does."""
PREFIX = re.compile(r"^.*NCCL INFO ")


@dataclass(frozen=True, slots=True)
class WayFigures:
    """Medians over rounds, of rank 0, by MiB of the message. ratio: to NCCL's own choice in the
    same processes, or, of an algorithm, in others. said: lines of NCCL's log."""

    way: str
    knobs: dict[str, Any]
    environment: dict[str, str]
    milliseconds: dict[int, float]
    ratio: dict[int, float]
    said: list[str]


Measured = dict[str, tuple[dict[int, list[float]], list[str]]]
"""Of each way, milliseconds of every round by MiB, and what NCCL said."""


def measured(
    rank: int,
    world: int,
    device: torch.device,
    ways: dict[str, NcclKnobs],
    sizes_mib: list[int],
    rounds: int,
    logs: str,
) -> Measured:
    """logs: the folder of NCCL's, a file for each process."""
    groups = open_groups(working_group(None), device)
    streams = streams_for(device, groups.backend)
    log = Path(logs) / f"{os.getpid()}"
    starts: dict[tuple[str, int], Start] = {}
    said = {}
    for name, knobs in ways.items():
        read = len(lines_of(log))
        for size_mib in sizes_mib:
            start = prepared(groups.on(streams, knobs), rank, world, device, size_mib)
            starts[name, size_mib] = start
            milliseconds(start, streams)
        said[name] = telling(lines_of(log)[read:])
    found: dict[str, dict[int, list[float]]] = {
        name: {size_mib: [] for size_mib in sizes_mib} for name in ways
    }
    for turn in range(rounds):
        for name in in_turn(list(ways), turn):
            for size_mib in sizes_mib:
                found[name][size_mib].append(milliseconds(starts[name, size_mib], streams))
    groups.close()
    return {name: (found[name], said[name]) for name in ways}


def prepared(groups: Groups, rank: int, world: int, device: torch.device, size_mib: int) -> Start:
    """An all-reduce over all ranks, on a communicator with the knobs of `groups`."""
    wire = torch.ones(size_mib * MIB // 4, device=device)
    operation = Operation(Op.ALL_REDUCE, rank, 0, world, len(wire), 0)
    return groups.transport(QUEUE, tuple(range(world))).prepare(operation, wire, wire)


def milliseconds(start: Start, streams: Streams) -> float:
    """From an idle device to an idle device."""
    with streams.issuing(QUEUE):
        streams.synchronize_current()
        begun = time.perf_counter()
        start().wait()
        streams.synchronize_current()
        return 1e3 * (time.perf_counter() - begun)


def lines_of(log: Path) -> list[str]:
    """Empty where nobody has written, as gloo does."""
    return log.read_text(errors="replace").splitlines() if log.is_file() else []


def telling(lines: list[str]) -> list[str]:
    """Each once, without the host's, process's and GPU's names in front."""
    return list(dict.fromkeys(PREFIX.sub("", line) for line in lines if TELLING.search(line)))


def figures(
    ways: dict[str, NcclKnobs], found: Measured, own: dict[int, float] | None
) -> list[WayFigures]:
    """own: milliseconds of NCCL's choice, where it is not among these ways."""
    rows = []
    for name, (rounds, said) in found.items():
        medians = {size_mib: statistics.median(each) for size_mib, each in rounds.items()}
        own = own or medians
        rows.append(
            WayFigures(
                way=name,
                knobs=to_data(ways[name]),
                environment=environment_of(ways[name], own_groups=True),
                milliseconds=medians,
                ratio={size_mib: medians[size_mib] / own[size_mib] for size_mib in medians},
                said=said,
            )
        )
    return rows


def by_environment(ways: dict[str, NcclKnobs]) -> list[tuple[dict[str, str], dict[str, NcclKnobs]]]:
    """Those that one set of processes can measure, beside the variables that it starts with."""
    found: list[tuple[dict[str, str], dict[str, NcclKnobs]]] = []
    for name, knobs in ways.items():
        environment = environment_of(knobs, own_groups=True)
        together = next((each for known, each in found if known == environment), None)
        if together is None:
            found.append((environment, {name: knobs}))
        else:
            together[name] = knobs
    return found


def main() -> None:
    parser = gpu_options(__doc__)
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 25, 100])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    written: dict[str, Any] = {
        "machine": machine_facts(),
        "backend": given.backend,
        "sharing": sharing_of(given.ranks, given.device),
        "rows": [],
        "left_out": [],
    }
    own: dict[int, float] | None = None
    for environment, ways in by_environment(WAYS):
        if time.monotonic() > until:
            written["left_out"] += [f"{name}: no time was left" for name in ways]
            continue
        with TemporaryDirectory() as logs:
            variables = {**LOG, **UNSET, **environment, "NCCL_DEBUG_FILE": f"{logs}/%p"}
            sent = (ways, given.mib, given.rounds, logs)
            where = (given.ranks, given.device, given.backend)
            try:
                found: Measured = on_ranks(*where, measured, *sent, environment=variables)[0]
            except RankFailed as error:  # an algorithm that does not run here, say
                if own is None:
                    raise
                written["left_out"] += [f"{name}: {error}" for name in ways]
                continue
        rows = figures(ways, found, own)
        own = own or rows[0].milliseconds
        for row in rows:
            times = ", ".join(
                f"{size_mib} MiB {row.milliseconds[size_mib]:.2f} ms ({row.ratio[size_mib]:.2f})"
                for size_mib in given.mib
            )
            print(
                f"{row.way:18}{times}", *(f"    {line}" for line in row.said), sep="\n", flush=True
            )
        written["rows"] += [asdict(row) for row in rows]
        write_json(given.json, written)
    for line in written["left_out"]:
        print(f"left out: {line}")
    write_json(given.json, written)


if __name__ == "__main__":
    main()
