"""What a collective took on a cluster, by the size of its message: a curve of a cluster file."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict

from autosync.documents import FIRST_ERROR, STRICT, UNLESS_EMPTY
from autosync.errors import InvalidInput

CollectiveOperation = Literal[
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_recv"
]


def bus_share(operation: CollectiveOperation, ranks: int) -> float:
    """nccl-tests' busbw over algbw: the bytes that each rank must send, over those of the
    message."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


MOST_RANKS = 131_072
"""Of one curve: eight on each of as many nodes as are predicted at most."""
MOST_SIZES = 256
"""Of one curve: nccl-tests print 28 from 8 B to 1 GiB by doubling."""


@dataclass(frozen=True, slots=True)
class CollectiveCurve:
    """Seconds of one collective over all ranks, measured alone.

    ranks, nodes: that took part. sizes_bytes: ascending, as nccl-tests count them: the buffer of
    one rank; of an all-gather and a reduce-scatter the whole one, ranks times a rank's part.
    seconds: of each size. algorithm, protocol: that were forced ("ring", "ll128"); "": the backend
    chose.
    """

    operation: CollectiveOperation
    ranks: int
    nodes: int
    sizes_bytes: Annotated[tuple[float, ...], FIRST_ERROR]
    seconds: Annotated[tuple[float, ...], FIRST_ERROR]
    algorithm: Annotated[str, UNLESS_EMPTY] = ""
    protocol: Annotated[str, UNLESS_EMPTY] = ""
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    def __post_init__(self) -> None:
        for field, why in self._problems():
            raise InvalidInput(
                f"the curve of {self}: {field} {why}.",
                thing="curves",
                value=field,
                remedy="Correct the cluster file, or write the curves anew with "
                "`autosync cluster calibrate`.",
            )

    def __str__(self) -> str:
        forced = " ".join(each for each in (self.algorithm, self.protocol) if each)
        kind = f"{self.operation} ({forced})" if forced else self.operation
        return f"{kind} of {self.ranks} ranks on {self.nodes} nodes"

    @property
    def measured(self) -> tuple[str, int, int, str, str]:
        """What the curve is of; a cluster has one curve of each."""
        return self.operation, self.ranks, self.nodes, self.algorithm, self.protocol

    def _problems(self) -> list[tuple[str, str]]:
        sizes, seconds = np.array(self.sizes_bytes), np.array(self.seconds)
        found = []
        if not (1 <= self.nodes <= self.ranks and 2 <= self.ranks <= MOST_RANKS):
            least = "must be 2 or more, and as many as nodes or more"
            found.append(("ranks", f"{least}, at most {MOST_RANKS}"))
        if not 1 <= len(sizes) <= MOST_SIZES:
            found.append(("sizes_bytes", f"must be 1 to {MOST_SIZES} sizes, got {len(sizes)}"))
        if len(sizes) != len(seconds):
            found.append(("seconds", f"must be one for each size, got {len(seconds)}"))
        if not (np.isfinite(sizes).all() and (sizes > 0).all() and (np.diff(sizes) > 0).all()):
            found.append(("sizes_bytes", "must be positive and ascending"))
        if not (np.isfinite(seconds).all() and (seconds > 0).all()):
            found.append(("seconds", "must be positive"))
        return found
