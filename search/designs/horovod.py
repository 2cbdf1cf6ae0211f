"""Horovod's tensor fusion: what is ready when a cycle begins travels together, up to a buffer."""

from itertools import count

from autosync.domain import Domain
from autosync.graph import Variable
from autosync.search.designs.building_blocks import all_reduced
from autosync.search.designs.mg_wfbp import all_reduce_estimate
from autosync.search.designs.wire_estimates import ready_seconds
from autosync.strategy import Strategy
from autosync.units import MIB

FUSION_BYTES = 64 * MIB
"""Horovod's documented HOROVOD_FUSION_THRESHOLD; 128 MiB since version 0.21."""

CYCLE_SECONDS = 5e-3
"""Its HOROVOD_CYCLE_TIME beside that threshold; 1 ms since version 0.21."""


def horovod_strategy(domain: Domain, fusion_bytes: int = FUSION_BYTES) -> Strategy:
    """All-reduces fused as Horovod's background loop would (docs/tensor-fusion.rst): every cycle
    takes what has become ready, in that order and each type by itself, into buffers that hold at
    most `fusion_bytes`; a larger tensor goes alone. The next cycle begins when all of these are
    through, at the earliest a cycle time later.

    The loop follows the clock, so its messages differ from iteration to iteration; these are the
    ones of an iteration in which an all-reduce takes what it took alone. Sparse gradients are
    gathered one by one.
    """
    order = domain.graph.gradient_order
    ready = ready_seconds(domain)
    startup_seconds, seconds_per_byte = all_reduce_estimate(domain)
    groups, group = count(), {}
    now, coming = 0.0, 0
    while coming < len(order):
        now = max(now, float(ready[order[coming]]))
        first = coming
        while coming < len(order) and ready[order[coming]] <= now:
            coming += 1
        sent_bytes, messages = 0, set()
        buffers: dict[str, tuple[int, int]] = {}
        for index in order[first:coming]:
            variable = domain.graph.variables[index]
            number = _buffer(variable, fusion_bytes, buffers, groups)
            group[index] = number
            messages.add(number)
            sent_bytes += variable.size_bytes
        busy = startup_seconds * len(messages) + seconds_per_byte * sent_bytes
        now += max(busy, CYCLE_SECONDS)
    return all_reduced(domain, group)


def _buffer(
    variable: Variable, fusion_bytes: int, buffers: dict[str, tuple[int, int]], groups: "count[int]"
) -> int:
    """The number of the message that takes the variable. buffers: of each type, the open message
    and its bytes."""
    if variable.sparse:
        return next(groups)
    number, filled = buffers.get(variable.dtype, (-1, fusion_bytes))
    if filled + variable.size_bytes > fusion_bytes:
        number, filled = next(groups), 0
    buffers[variable.dtype] = number, filled + variable.size_bytes
    return number
