"""What one message costs besides its bytes: fitted by a probe, or assumed."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict

from autosync.documents import STRICT

Backend = Literal["gloo", "nccl"]
MessageKind = Literal[
    "all_reduce", "reduce", "broadcast", "all_gather", "all_to_all", "send_recv", "engine"
]


@dataclass(frozen=True, slots=True)
class MessageCost:
    """What one message of a kind costs besides its bytes on the link, fitted by the probe.

    seconds = startup_seconds + startup_seconds_per_worker * workers
              + seconds_per_byte * wire bytes (an engine's own copies).
    host_seconds, host_seconds_per_byte: how long a message occupies the hosts' processors, during
        which they process no other message of any kind. Where ranks share few cores, or an
        interpreter lock, this dominates the cost of many small messages.
    residual: relative error of the fit (0.05 is 5 %); None where the cost is assumed.
    """

    kind: MessageKind
    startup_seconds: float
    startup_seconds_per_worker: float = 0.0
    seconds_per_byte: float = 0.0
    host_seconds: float = 0.0
    host_seconds_per_byte: float = 0.0
    residual: float | None = None
    __pydantic_config__: ClassVar[ConfigDict] = STRICT


def _assumed(backend: Backend) -> dict[MessageKind, MessageCost]:
    # gloo: a 1 KB all-reduce of 4 ranks takes 1.1 to 1.5 ms on two cores under batch scheduling
    # (measured on the testbed); NCCL: tens of microseconds, the order nccl-tests reports.
    base, per_worker = (4e-4, 2e-4) if backend == "gloo" else (1.5e-5, 2e-6)
    kinds: tuple[MessageKind, ...] = (
        "all_reduce",
        "reduce",
        "broadcast",
        "all_gather",
        "all_to_all",
        "send_recv",
    )
    costs = {kind: MessageCost(kind, base, per_worker) for kind in kinds}
    costs["engine"] = MessageCost("engine", 0.0)
    return costs


ASSUMED_COSTS: dict[Backend, dict[MessageKind, MessageCost]] = {
    "gloo": _assumed("gloo"),
    "nccl": _assumed("nccl"),
}
