"""What a job sets of NCCL: algorithm and protocol by size, CTAs, sockets and PXN.

NCCL takes them from a communicator's `ncclConfig_t`, which torch fills from a process group's
options, from environment variables of the process, or from a tuner plugin. NVIDIA's example of
such a plugin (`plugins/tuner/example` of NCCL, `ext-tuner/example` before 2.28) reads its choices
from a CSV file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import ConfigDict

from autosync.documents import LARGEST_COUNT, STRICT, UNLESS_NO_ITEMS, UNLESS_NONE, UNLESS_ZERO
from autosync.errors import InvalidStrategy
from autosync.extensions.document import ExtensionDocument

NcclOperation = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]
NcclAlgorithm = Literal["Ring", "Tree", "NVLS", "NVLSTree", "PAT"]
NcclProtocol = Literal["LL", "LL128", "Simple"]

OPERATIONS: tuple[NcclOperation, ...] = get_args(NcclOperation)

MOST_CTAS = 64
"""NCCL's MAXCHANNELS: a channel is run by one CTA."""
LARGEST_CLUSTER = 8
"""CTAs that CUDA schedules together (NCCL_CGA_CLUSTER_SIZE)."""
MOST_SOCKET_THREADS = 16
MOST_SOCKETS = 64
"""Threads times sockets of each (NCCL_NSOCKS_PERTHREAD)."""

TUNER_PLUGIN = "libnccl-tuner-example.so"
TUNER_FILE = "nccl_tuner.conf"
TUNER_FILE_VARIABLE = "NCCL_TUNER_CONFIG_FILE"
TUNER_COLUMNS = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"
OWN_CHANNELS = 0
"""Channels of a line of that file that leave the number to NCCL. For -1, and for messages that no
line is for, the example plugin answers one channel, and NCCL then uses no more."""


@dataclass(frozen=True, slots=True)
class NcclRange:
    """How an operation runs for messages of `least_bytes` and more, up to the operation's next
    range. Bytes are of the whole buffer, as nccl-tests count them. channels: 0 leaves the number to
    NCCL."""

    operation: NcclOperation
    algorithm: NcclAlgorithm
    protocol: NcclProtocol
    least_bytes: Annotated[int, UNLESS_ZERO] = 0
    channels: Annotated[int, UNLESS_ZERO] = 0
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        _check(f"{self.operation}: least_bytes", self.least_bytes, 0, LARGEST_COUNT)
        _check(f"{self.operation}: channels", self.channels, 0, MOST_CTAS)


@dataclass(frozen=True, slots=True)
class NcclKnobs(ExtensionDocument):
    """What NCCL is told; it chooses whatever is left out.

    ranges: ascending in size within each operation.
    min_ctas, max_ctas: of a communicator's kernels, which take as many multiprocessors from
        compute; 0: not set.
    cga_cluster_size: CTAs of a thread block cluster, from Hopper on; 0 is none, None not set.
    socket_threads, sockets_per_thread: of each connection over TCP; 0: not set, and 1 where the
        other is.
    pxn: whether messages pass another GPU of the node, over NVLink, to the NIC near it.
    """

    ranges: Annotated[tuple[NcclRange, ...], UNLESS_NO_ITEMS] = ()
    min_ctas: Annotated[int, UNLESS_ZERO] = 0
    max_ctas: Annotated[int, UNLESS_ZERO] = 0
    cga_cluster_size: Annotated[int | None, UNLESS_NONE] = None
    socket_threads: Annotated[int, UNLESS_ZERO] = 0
    sockets_per_thread: Annotated[int, UNLESS_ZERO] = 0
    pxn: Annotated[bool | None, UNLESS_NONE] = None
    key: ClassVar[str] = "nccl"
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        ordered = sorted(self.ranges, key=lambda each: (each.operation, each.least_bytes))
        object.__setattr__(self, "ranges", tuple(ordered))
        _check("min_ctas", self.min_ctas, 0, MOST_CTAS)
        _check("max_ctas", self.max_ctas, 0, MOST_CTAS)
        _check("cga_cluster_size", self.cga_cluster_size or 0, 0, LARGEST_CLUSTER)
        _check("socket_threads", self.socket_threads, 0, MOST_SOCKET_THREADS)
        _check("sockets_per_thread", self.sockets_per_thread, 0, MOST_SOCKETS)
        _check("socket_threads x sockets_per_thread", self.sockets, 1, MOST_SOCKETS)
        if self.max_ctas and self.min_ctas > self.max_ctas:
            raise _refused(
                "min_ctas",
                self.min_ctas,
                f"is {self.min_ctas}, more than max_ctas, {self.max_ctas}",
                "Give no more than max_ctas.",
            )
        for one, following in pairwise(self.ranges):
            if (one.operation, one.least_bytes) == (following.operation, following.least_bytes):
                raise _refused(
                    "ranges",
                    one.least_bytes,
                    f"has two ranges of {one.operation} from {one.least_bytes} bytes on",
                    "Give each range its own least_bytes.",
                )

    @property
    def sockets(self) -> int:
        """That carry a connection between two nodes over TCP; what is not set counts as one."""
        return max(self.socket_threads, 1) * max(self.sockets_per_thread, 1)

    def of_operation(self, operation: str) -> tuple[NcclRange, ...]:
        return tuple(each for each in self.ranges if each.operation == operation)

    @property
    def by_size(self) -> bool:
        """Whether ranges say what environment variables cannot, which hold for all sizes."""
        cut = any(len(self.of_operation(each)) > 1 for each in OPERATIONS)
        return cut or any(each.least_bytes or each.channels for each in self.ranges)


def group_configuration(knobs: NcclKnobs) -> dict[str, int]:
    """The fields of `ProcessGroupNCCL.Options().config` that torch has had since 2.1, by name.

    NCCL refuses a least number of CTAs without a greatest, and lowers a greatest that is above its
    own limit.
    """
    stated = _of_communicators(knobs)
    if knobs.min_ctas and not knobs.max_ctas:
        stated["max_ctas"] = MOST_CTAS
    return stated


def _of_communicators(knobs: NcclKnobs) -> dict[str, int]:
    stated = {
        "min_ctas": knobs.min_ctas or None,
        "max_ctas": knobs.max_ctas or None,
        "cga_cluster_size": knobs.cga_cluster_size,
    }
    return {name: value for name, value in stated.items() if value is not None}


def environment_of(
    knobs: NcclKnobs, tuner_file: str = TUNER_FILE, *, own_groups: bool = False
) -> dict[str, str]:
    """Variables of every rank's process, to be set before its first communicator is made.

    tuner_file: the file that holds `tuner_configuration`; named where ranges depend on sizes.
    own_groups: whether the runtime makes the process groups. They have `group_configuration`
        then, which needs no variables.
    """
    found = {} if own_groups else _variables(_of_communicators(knobs))
    if knobs.socket_threads or knobs.sockets_per_thread:  # both, or the job's would count
        sockets = {
            "socket_nthreads": max(knobs.socket_threads, 1),
            "nsocks_perthread": max(knobs.sockets_per_thread, 1),
        }
        found |= _variables(sockets)
    if knobs.pxn is not None:
        found["NCCL_PXN_DISABLE"] = str(int(not knobs.pxn))
    if knobs.by_size:
        found |= {"NCCL_TUNER_PLUGIN": TUNER_PLUGIN, TUNER_FILE_VARIABLE: tuner_file}
    elif knobs.ranges:
        named = [(each.operation.replace("_", ""), each) for each in knobs.ranges]
        found["NCCL_ALGO"] = ";".join(f"{name}:{each.algorithm.lower()}" for name, each in named)
        found["NCCL_PROTO"] = ";".join(f"{name}:{each.protocol.lower()}" for name, each in named)
    return dict(sorted(found.items()))


def _variables(numbers: Mapping[str, int]) -> dict[str, str]:
    return {f"NCCL_{name.upper()}": str(value) for name, value in numbers.items()}


def tuner_configuration(knobs: NcclKnobs) -> str:
    """The ranges as a file of NCCL's example tuner plugin, for all communicators; empty where
    environment variables can state them."""
    if not knobs.by_size:
        return ""
    lines = [f"# {TUNER_COLUMNS}"]
    for operation in OPERATIONS:
        ranges = knobs.of_operation(operation)
        ends = [*(each.least_bytes - 1 for each in ranges[1:]), LARGEST_COUNT]
        for each, most_bytes in zip(ranges, ends, strict=False):
            algorithm = "nvls_tree" if each.algorithm == "NVLSTree" else each.algorithm.lower()
            channels = each.channels or knobs.max_ctas or OWN_CHANNELS
            name, protocol = operation.replace("_", ""), each.protocol.lower()
            lines.append(
                f"{name},{each.least_bytes},{most_bytes},{algorithm},{protocol},{channels},-1,-1"
            )
    return "\n".join([*lines, ""])


def missing_variables(
    knobs: NcclKnobs, present: Mapping[str, str], *, own_groups: bool = False
) -> dict[str, str]:
    """Those of `environment_of` that a process does not have so; of the tuner's file, any name
    will do; `runtime.transport.nccl.tuner_fault` reads it. own_groups: as there; a variable that
    says otherwise counts, for NCCL puts it above a communicator's configuration."""
    needed = environment_of(knobs, own_groups=own_groups)
    found = {}
    for name, value in environment_of(knobs).items():
        if name == TUNER_FILE_VARIABLE:
            is_so = bool(present.get(name))
        else:
            is_so = present.get(name, "" if name in needed else value) == value
        if not is_so:
            found[name] = value
    return found


def _check(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise _refused(field, value, f"is {value}", f"Give {least} to {most}.")


def _refused(field: str, value: object, why: str, remedy: str) -> InvalidStrategy:
    return InvalidStrategy(
        f"nccl.{field} {why}.", thing=f"nccl.{field}", value=value, remedy=remedy
    )
