"""NCCL, between GPUs: which algorithm it runs for a message, and how long that takes.

`collectives` is what others use. It asks `tuner`, which chooses among what `algorithms` offers on a
topology, at the `constants` of its classes. `edges` says which rank sends to which.
"""

from autosync.simulator.backends.nccl.collectives import (
    CollectiveTimes,
    CostSegment,
    collective_times,
    confidence,
    cost_segments,
)
from autosync.simulator.backends.nccl.edges import NCCL
from autosync.simulator.backends.nccl.tuner import Forced

__all__ = [
    "NCCL",
    "CollectiveTimes",
    "CostSegment",
    "Forced",
    "collective_times",
    "confidence",
    "cost_segments",
]
